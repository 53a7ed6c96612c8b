"""Worker process that corrupts copies of a store and opens them with commands, one after the other.

It reads case numbers from standard input and writes a line of JSON for each. A case that computes for too long ends the
process, so its line is missing.
"""

import json
import os
import random
import resource
import shutil
import sys
import time
import traceback
from pathlib import Path

from typer.testing import CliRunner

from bdfl.cli import app
from campaigns.hostile_folders.corruptions import CORRUPTIONS
from campaigns.hostile_folders.judging import MAX_CPU_S, MAX_MEMORY, fingerprint

_OTHERS = (
    ("chain", "show"),
    ("chain", "show", "--json"),
    ("chain", "block", "--json"),
    ("chain", "trace"),
    ("chain", "export"),
    ("chain", "prove", "1", "0"),
    ("export", "--table", "blocks", "--out", "-"),
    ("chain", "prune", "--keep", "2"),
)


def judge_case(number: int, seed: int, whole: Path, place: Path, expected: str) -> dict[str, object]:
    """Test one corruption; return its kind, the verdict of the commands, and violations."""
    draw = random.Random(f"{seed}/{number}")
    kind = list(CORRUPTIONS)[number % len(CORRUPTIONS)]
    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    CORRUPTIONS[kind](draw, folder)
    verified = _invoke(("chain", "verify", str(folder)))
    is_same = fingerprint(folder / "chain") == expected
    first, *rest = draw.choice(_OTHERS)
    asked = (first, rest[0], str(folder), *rest[1:]) if first == "chain" else (first, str(folder), *rest)
    faults = [fault for outcome in (verified, _invoke(asked)) for fault in outcome[1]]
    if verified[0] == 0 and not is_same:
        faults.append("false accepted")
    verdict = {0: "the same, accepted" if is_same else "other, accepted"}.get(verified[0], "found")
    return {"case": number, "kind": kind, "verdict": verdict, "command": " ".join(asked[:2]), "faults": faults}


def _invoke(arguments: tuple[str, ...]) -> tuple[int, list[str]]:
    """Run a command in this process; return its exit code and violations."""
    used_s = time.process_time()
    _limit_time(MAX_CPU_S + 2)
    result = CliRunner().invoke(app, arguments)
    used_s = time.process_time() - used_s
    faults = []
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        place = traceback.extract_tb(result.exc_info[2])[-1] if result.exc_info else None
        faults.append(f"traceback: {result.exception!r:.200} at {place}")
    if used_s > MAX_CPU_S:
        faults.append(f"{used_s:.1f} s of computing")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if memory > MAX_MEMORY:
        faults.append(f"{memory >> 20} MB of memory")
    if not all(one.isprintable() or one == "\n" for one in result.output):
        faults.append("control characters")
    return result.exit_code, faults


def _limit_time(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))


def main() -> None:
    """Process cases until standard input ends."""
    seed, whole, place = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    os.chdir(place)
    expected = fingerprint(whole / "chain")
    for line in sys.stdin:
        print(json.dumps(judge_case(int(line), seed, whole, place, expected)), flush=True)


if __name__ == "__main__":
    main()
