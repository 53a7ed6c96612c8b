"""Open corrupted stores and hostile folders with the real commands, and record the results.

python -m campaigns hostile_folders --corruptions 10000 --folders 200 --out results/hostile-folders
"""

import argparse
import importlib
import json
import os
import platform
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

from bdfl import __version__
from campaigns.hostile_folders.corruptions import CORRUPTIONS
from campaigns.hostile_folders.judging import fingerprint, run_command
from campaigns.hostile_folders.kinds import IMPORTING, KINDS, find_harm, make_hostile

_WORKERS = 2
_CASE_WALL_S = 120.0
_PREPARED = (
    "bdfl.cli",
    "bdfl.audit.tables",
    "bdfl.report.audit_page",
    "bdfl.explorer.export",
    "bdfl.experiment.training_run",
)


def make_whole(place: Path) -> Path:
    """Create an undamaged run."""
    done = run_command(["run", "minimal", "--out", "whole"], place)
    if done.exit_code != 0:
        raise RuntimeError(done.output)
    return place / "whole"


def corrupt_stores(count: int, seed: int, whole: Path, place: Path, until_s: float) -> list[dict[str, object]]:
    """Test so many corruptions in worker processes, which are restarted if they die."""
    small = place / "small"  # without figures, which take long to copy
    shutil.copytree(whole / "chain", small / "chain")
    shutil.copy(whole / "journal.jsonl", small)
    cases: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(count):
        cases.put(number)
    found: list[dict[str, object]] = []
    threads = [
        threading.Thread(target=_feed_worker, args=(cases, found, seed, small, place / f"worker-{number}", until_s))
        for number in range(min(_WORKERS, count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _feed_worker(
    cases: "queue.SimpleQueue[int]", found: list[dict[str, object]], seed: int, whole: Path, place: Path, until_s: float
) -> None:
    place.mkdir()
    command = [sys.executable, "-m", "campaigns.hostile_folders.worker", str(seed), str(whole), str(place)]
    process: subprocess.Popen[str] | None = None
    while time.monotonic() < until_s:
        try:
            number = cases.get_nowait()
        except queue.Empty:
            break
        if process is None:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        watchdog = threading.Timer(_CASE_WALL_S, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        if line:
            found.append(json.loads(line))
        else:
            kind = list(CORRUPTIONS)[number % len(CORRUPTIONS)]
            faults = [f"hang or crash, exit {process.wait()}"]
            found.append({"case": number, "kind": kind, "verdict": "none", "command": "", "faults": faults})
            process = None
        if len(found) % 200 == 0:
            print(f"corruptions: {len(found)}", flush=True)
    if process is not None and process.stdin is not None:
        process.stdin.close()
        process.wait()


def open_folders(
    count: int,
    seed: int,
    whole: Path,
    place: Path,
    only: str | None = None,
    *,
    num_commands: int = 3,
    until_s: float = float("inf"),
) -> list[dict[str, object]]:
    """Test so many hostile folders, of all kinds in turn, each with a few of the real commands.

    Commands that might import code from the folder run as the script itself, others in a fork of this process.
    """
    for name in _PREPARED:
        importlib.import_module(name)
    kinds = [kind for kind in KINDS if only is None or only in kind]
    expected = fingerprint(whole / "chain")
    start_up_s: dict[tuple[str, ...], float] = {}
    found = []
    for number in range(count):
        if time.monotonic() > until_s:
            break
        draw = random.Random(f"{seed}/folder/{number}")
        kind = kinds[number % len(kinds)]
        choices, is_forked = KINDS[kind].commands, kind not in IMPORTING
        for arguments in draw.sample(choices, min(num_commands, len(choices))):
            asked = (*arguments, str(is_forked))
            if asked not in start_up_s:
                start_up_s[asked] = _measure_start(arguments, whole, place, is_forked=is_forked)
            target = Path(tempfile.mkdtemp(dir=place))
            folder = _make_apart(kind, random.Random(f"{seed}/folder/{number}"), whole, target)
            outcome = run_command(arguments, folder, is_forked=is_forked)
            faults = outcome.find_faults(start_up_s[asked]) + find_harm(target)
            is_verified = arguments[:2] == ("chain", "verify") and outcome.exit_code == 0
            if is_verified and fingerprint(folder / "chain") != expected:
                faults.append("false accepted")
            found.append(
                {
                    "case": number,
                    "kind": kind,
                    "command": " ".join(arguments),
                    "exit": outcome.exit_code,
                    "cpu_s": round(outcome.cpu_s, 2),
                    "memory_mb": outcome.memory >> 20,
                    "faults": faults,
                    "said": outcome.output[-400:] if faults else outcome.output[-160:],
                }
            )
            shutil.rmtree(target)
            if faults:
                print(json.dumps(found[-1]), flush=True)
        if (number + 1) % 10 == 0:
            print(f"folders: {number + 1}", flush=True)
    return found


def _make_apart(kind: str, draw: random.Random, whole: Path, target: Path) -> Path:
    """Make a hostile folder in a process of its own, so that its memory is not attributed to the command."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            make_hostile(kind, draw, whole, target)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError(f"{kind}: could not be made")
    return target / "run"


def _measure_start(arguments: tuple[str, ...], whole: Path, place: Path, *, is_forked: bool) -> float:
    """Return the processor time (s) of a command on the undamaged run."""
    target = Path(tempfile.mkdtemp(dir=place))
    shutil.copytree(whole, target / "run")
    took_s = run_command(arguments, target / "run", is_forked=is_forked).cpu_s
    shutil.rmtree(target)
    return took_s


def write_results(
    out: Path, corrupted: list[dict[str, object]], opened: list[dict[str, object]], seed: int, took_s: float
) -> list[str]:
    """Write the tables and all faulty cases; return the faults as text."""
    out.mkdir(parents=True, exist_ok=True)
    faulty = [case for case in (*corrupted, *opened) if case["faults"]]
    lines = [
        "# Hostile folders",
        "",
        f"Command: `python -m campaigns hostile_folders --corruptions {len(corrupted)}"
        f" --folders {len({case['case'] for case in opened})} --seed {seed}`.",
        f"bdfl {__version__}, commit {_commit()}, Python {platform.python_version()},"
        f" {platform.system()} {platform.machine()}, {os.cpu_count()} cores, {took_s / 60:.0f} minutes.",
        "",
        f"Faults: {len(faulty)}.",
        "",
        "## Random corruptions of a store",
        "",
        "| kind | tried | found | the same, accepted | other, accepted | faults |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for case in corrupted:
        rows[str(case["kind"])][str(case["verdict"])] += 1
        rows[str(case["kind"])]["faults"] += bool(case["faults"])
    for kind, row in rows.items():
        tried = sum(count for name, count in row.items() if name != "faults")
        cells = [tried, row["found"], row["the same, accepted"], row["other, accepted"], row["faults"]]
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    lines += ["", "## Hostile folders", "", "| kind | folders | commands | refused | read | most computing (s) |"
              " most memory (MB) | faults |", "|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    by_kind: dict[str, list[dict[str, object]]] = defaultdict(list)
    for case in opened:
        by_kind[str(case["kind"])].append(case)
    for kind, cases in by_kind.items():
        folders = len({case["case"] for case in cases})
        read = sum(case["exit"] == 0 for case in cases)
        cpu_s = max(float(str(case["cpu_s"])) for case in cases)
        memory = max(int(str(case["memory_mb"])) for case in cases)
        faults = sum(bool(case["faults"]) for case in cases)
        lines.append(
            f"| {kind} | {folders} | {len(cases)} | {len(cases) - read} | {read} | {cpu_s:.1f} | {memory} | {faults} |"
        )
    (out / "README.md").write_text("\n".join(lines) + "\n")
    with (out / "faults.jsonl").open("w") as file:
        file.writelines(json.dumps(case) + "\n" for case in faulty)
    return [f"{case['kind']}, {case['command']}: {case['faults']}" for case in faulty]


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> int:
    """Run the campaign; return exit code 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m campaigns hostile_folders", description=__doc__)
    parser.add_argument("--corruptions", type=int, default=10_000)
    parser.add_argument("--folders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="each half ends after so long")
    parser.add_argument("--kind", help="only kinds of folders with this in their name")
    parser.add_argument("--out", type=Path, default=Path("results/hostile-folders"))
    asked = parser.parse_args()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        place = Path(temporary)
        whole = make_whole(place)
        until_s = time.monotonic() + 60 * asked.minutes
        corrupted = corrupt_stores(asked.corruptions, asked.seed, whole, place, until_s)
        until_s = time.monotonic() + 60 * asked.minutes
        opened = open_folders(asked.folders, asked.seed, whole, place, asked.kind, until_s=until_s)
    faults = write_results(asked.out, corrupted, opened, asked.seed, time.monotonic() - started_s)
    for fault in faults[:100]:
        print(fault)
    print(f"{len(corrupted)} corruptions, {len(opened)} commands on hostile folders, {len(faults)} faults; {asked.out}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
