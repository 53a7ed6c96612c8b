"""A newcomer's path: from a clone to a finished run with its report, in two commands, timed.

`make newcomer` walks it for real in an empty folder, with a new environment that pip fills; that takes minutes and
a network. `tests/test_newcomer.py` walks it with the environment there is.
"""

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "bdfl"
COMMANDS = (f"git clone {{source}} {NAME}", f"make -C {NAME} run")
REPORT = Path("runs", "quickstart", "report.html")
NUM_ROUNDS = 30
_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Step:
    """One command of the path."""

    command: str
    seconds: float
    output: str


def walk(
    folder: Path,
    environment: Mapping[str, str] = os.environ,
    between: Callable[[Path], Mapping[str, str]] | None = None,
) -> list[Step]:
    """Both commands in `folder`, which is empty; `between` them more of the environment may be said."""
    first = _run(COMMANDS[0].format(source=shlex.quote(str(ROOT))), folder, environment)
    more = {} if between is None else between(folder / NAME)
    return [first, _run(COMMANDS[1], folder, {**environment, **more})]


def validate_report(clone: Path) -> None:
    """Raises `AssertionError` unless the run is finished and its report whole."""
    run = clone / REPORT.parent
    report = (clone / REPORT).read_text(encoding="utf-8")
    assert report.rstrip().endswith("</html>")
    assert report.count("<svg") >= 5
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", report), "the report needs a network"
    rounds = (run / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rounds) == 1 + NUM_ROUNDS
    for name in ("scenario.toml", "rounds.parquet", "clients.parquet", "final.safetensors", "chain/chain.sqlite"):
        assert (run / name).is_file(), name


def _run(command: str, folder: Path, environment: Mapping[str, str]) -> Step:
    started = time.perf_counter()
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=_LIMIT_S
    )
    output = done.stdout + done.stderr
    if done.returncode:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{output}")
    return Step(command, time.perf_counter() - started, output)


def main() -> None:
    clean = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    with tempfile.TemporaryDirectory(prefix="bdfl-newcomer-") as place:
        steps = walk(Path(place), clean)
        validate_report(Path(place) / NAME)
        print(steps[-1].output)
    for step in steps:
        print(f"{step.seconds:8.1f} s  {step.command}")
    print(f"{sum(step.seconds for step in steps):8.1f} s  from nothing to a report")


if __name__ == "__main__":
    main()
