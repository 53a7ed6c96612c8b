"""Every command in environments made for it, from a wheel: the core alone, with each extra alone, and with all.

A command works there, or ends in one line that says what to install. `python -m campaigns.installation.environments
WHEEL [NAME ...]` (`make environments`) tries all of them, which takes minutes each and pip's index;
`tests/test_environments.py` the core alone.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CORE, ALL = "core", "all"
_TOOLS = ("docs", "bench", "dev")  # extras without which every command works
_LIMIT_S = 3600.0
# Lines of progress may come before it on a slow machine.
_MISSING = re.compile(r"(?:.+ s left\n)*error: .+ needs .+: pip install 'bdfl\[([a-z,]+)\]'\n")
_LEARN, _LIVE, _REPORT = ("torch", "sklearn"), ("zenoh", "psutil", "prometheus_client"), ("matplotlib", "pyarrow")


@dataclass(frozen=True)
class Call:
    """A command line, the modules of extras that it needs, and its exit code where they are there, none for any."""

    line: str
    needs: tuple[str, ...] = ()
    code: int | None = 0
    serves: bool = False  # replaces its process by a server, which ends with its input


# In this order, in a folder that `make_samples` filled.
CALLS = (
    Call("--version"),
    Call("scenario list"),
    Call("scenario show minimal"),
    Call("schedulers"),
    Call("schedulers check random --rounds 3"),
    Call("simulate minimal --rounds 3 --out simulated"),
    Call("simulate minimal --rounds 3 --json"),
    Call("compare minimal --schedulers random,drc --seeds 2 --rounds 3 --workers 1 --no-frontier"),
    Call("bound minimal --rounds 3"),
    Call("solve problem.json --table"),
    Call("leaderboard minimal --schedulers random,drc --seeds 1 --rounds 3 --workers 1 --out board"),
    Call("reproduce fig4 --seeds 1 --workers 1 --out paper", ("matplotlib",)),
    Call("chain verify run"),
    Call("chain show run"),
    Call("chain block run 1"),
    Call("chain trace run 2"),
    Call("chain blame run", ("torch", "sklearn")),
    Call("chain without run 0"),
    Call("chain audit run --out audited.html"),
    Call("chain prove run 1 CLIENT"),
    Call("chain export run --out chain.jsonl"),
    Call("chain privacy run", code=2),  # not a private one
    Call("chain prune run --keep 1"),
    Call("chain verify run"),
    Call("data sources"),
    Call("data show quickstart", ("sklearn",)),
    Call("keygen --access-point ap-0 --host 127.0.0.1 --out ap-0"),
    Call("genesis show our.draft"),
    Call("genesis new quickstart --out other.draft", _LEARN),
    Call("member show none.change --folder node", code=2),
    Call("node doctor", code=None),  # its own tests know
    Call("node status nowhere", code=None),
    Call("node --genesis no --key no --folder no", _LIVE, code=2),
    Call("ap --genesis no --key no --listen 127.0.0.1:0", _LIVE, code=2),
    Call("network status nowhere", code=2),
    Call("network up --nodes 4 --blocks 1 --time-scale 0 --out network", (*_LEARN, *_LIVE)),
    Call("explore run --export site"),
    Call("explore run --port 0 --while-input", ("starlette", "uvicorn"), serves=True),
    Call("export run --list", ("pyarrow",)),
    Call("track run --to tensorboard:board", ("tensorboard",)),
    Call("track run --to mlflow:flow", ("mlflow", "sqlalchemy")),
    Call("sweep sweep.toml --dry-run"),
    Call("sweep sweep.toml --workers 1 --out sweep", ("pyarrow",)),
    Call("plot sweep", ("pyarrow",)),
    Call("poison --attacks sign-flip --rules mean --seeds 1 --rounds 2 --workers 1 --out poison", _LEARN),
    Call("run quickstart --rounds 1 --out again", (*_LEARN, *_REPORT)),
    Call("report whole", ("sklearn", *_REPORT)),
)


@dataclass(frozen=True)
class Answer:
    """Output and exit code of a command."""

    call: Call
    missing: tuple[str, ...]  # modules it needs that are not installed
    code: int
    stdout: str
    stderr: str

    def find_fault(self, extras: set[str]) -> str | None:
        """Return the fault of the answer, if any; `extras` are those that bdfl has."""
        said = self.stdout + self.stderr
        if "Traceback" in said:
            return f"a traceback\n{said}"
        if not self.missing:
            return (
                None
                if self.call.code in (self.code, None)
                else f"exit code {self.code}, {self.call.code} expected\n{said}"
            )
        line = _MISSING.fullmatch(self.stderr)
        if self.code != 2 or line is None or not set(line[1].split(",")) <= extras:
            return f"exit code {self.code}, one line that names the extra expected ({', '.join(self.missing)})\n{said}"
        return None


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own with bdfl and perhaps extras, installed from a wheel."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def walk(self, place: Path) -> list[Answer]:
        """All calls in `place`, which `make_samples` filled, and the help of every command."""
        script = [self.python, str(Path(__file__).resolve()), "--walk"]
        return [
            Answer(Call(**one.pop("call")), tuple(one.pop("missing")), **one) for one in json.loads(_run(script, place))
        ]

    def size_mb(self) -> int:
        """Megabytes on the disk, without the bytecode that Python writes when it likes."""
        found = (path for path in self.folder.rglob("*") if path.suffix != ".pyc")
        return sum(path.lstat().st_blocks * 512 for path in found) // 2**20


def make_environment(folder: Path, wheel: Path, extra: str = CORE) -> Environment:
    """The environment in `folder`, with the versions of `constraints.txt`."""
    _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
    wanted = f"bdfl @ {wheel.as_uri()}" if extra == CORE else f"bdfl[{extra}] @ {wheel.as_uri()}"
    made = Environment(folder)
    options = ["--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    _run([made.python, "-m", "pip", "install", *options, wanted], folder.parent)
    _run([made.python, "-m", "pip", "check"], folder.parent)
    return made


def make_samples(place: Path) -> None:
    """Make the files that the calls need: a run of two rounds, a draft, a problem, a sweep."""
    from bdfl.experiment.run_folder import create_run_folder
    from bdfl.experiment.training_run import prepare_run, train_run
    from bdfl.learning.trainer_pool import open_trainer
    from bdfl.scenario import load_scenario
    from bdfl.scenario.files import find_scenario

    scenario = load_scenario(find_scenario("quickstart"), ["rounds=2"])
    federated = prepare_run(scenario)
    with (
        open_trainer(scenario, federated.data, federated.partition) as trainer,
        create_run_folder(place / "run", scenario) as folder,
    ):
        train_run(federated, trainer, folder)
    shutil.copytree(place / "run", place / "whole")
    _run([sys.executable, "-m", "bdfl.cli", "genesis", "new", "quickstart", "--out", "our.draft"], place, os.environ)
    client = {"queue": 0.4, "cycles": 3e8, "capacitance": 5e-28, "energy_budget_j": 0.4, "gain": 2.5e-8, "power_w": 0.2}
    rest = {"power_max_w": 0.2, "model_bits": 1e6, "cpu_max_hz": None, "mining_max_hz": None}
    problem = {"min_clients": 3, "tradeoff": 50.0, "work_cycles": 7e8, "bandwidth_hz": 180e3, "noise_w_per_hz": 1e-16}
    (place / "problem.json").write_text(json.dumps({**problem, "clients": [{**client, **rest}] * 5}))
    (place / "sweep.toml").write_text('scenario = "minimal"\nrounds = 3\nseeds = 2\nschedulers = ["drc"]\n')


def list_extras() -> set[str]:
    """The extras that bdfl has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def _run(command: list[str], place: Path, environment: Mapping[str, str] | None = None) -> str:
    """Standard output; nothing of this environment gets into another one's unless it is given."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=place, env=dict(environment or clean), capture_output=True, text=True, timeout=_LIMIT_S
    )
    if done.returncode:
        raise AssertionError(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _walk_here() -> Iterator[dict[str, Any]]:
    """The answers of this very environment: one process for all but servers, as starting many takes minutes."""
    from importlib.util import find_spec

    from typer.main import get_command
    from typer.testing import CliRunner

    from bdfl.cli import app

    def name_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        yield path
        for name, below in getattr(command, "commands", {}).items():
            yield from name_commands(below, (*path, name))

    helps = [Call(" ".join((*path, "--help"))) for path in name_commands(get_command(app))]
    for call in (*helps, *CALLS):
        missing = [module for module in call.needs if find_spec(module) is None]
        words = shlex.split(call.line.replace("CLIENT", _find_trained()))
        if call.serves:
            command = [sys.executable, "-m", "bdfl.cli", *words]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S)
            code, stdout, stderr = done.returncode, done.stdout, done.stderr
        else:
            result = CliRunner().invoke(app, words)
            code, stdout, stderr = result.exit_code, result.stdout, result.stderr
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                stderr += f"Traceback: {result.exception!r}\n"
        yield {"call": vars(call), "missing": missing, "code": code, "stdout": stdout, "stderr": stderr}


def _find_trained() -> str:
    """A client that the first block of the sample has an update of."""
    from bdfl.ledger.sqlite_store import ChainStore

    with ChainStore.open(Path("run", "chain"), read_only=True) as chain:
        return str(chain.block(1).body.updates[0].update.client)


def main(wheel: Path, names: list[str]) -> None:
    extras = list_extras()
    failed = False
    with tempfile.TemporaryDirectory(prefix="bdfl-environments-") as temporary:
        samples = Path(temporary) / "samples"
        samples.mkdir()
        make_samples(samples)
        for name in names or [CORE, *sorted(extras - {*_TOOLS, ALL}), ALL]:
            started_s = time.perf_counter()
            place = shutil.copytree(samples, Path(temporary) / name)
            made = make_environment(place / "environment", wheel, name)
            answers = made.walk(place)
            worked = sum(not answer.missing for answer in answers)
            seconds = time.perf_counter() - started_s
            print(
                f"{name:9} {made.size_mb():5} MB  {worked} of {len(answers)} calls have all they need  {seconds:.0f} s",
                flush=True,
            )
            for answer in answers:
                fault = answer.find_fault(extras)
                if fault is not None:
                    failed = True
                    print(f"  bdfl {answer.call.line}: {fault}", flush=True)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--walk"]:
        json.dump(list(_walk_here()), sys.stdout)
    else:
        main(Path(sys.argv[1]).resolve(), sys.argv[2:])
