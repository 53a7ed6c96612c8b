"""Spin and the C compiler: the model with its parameters becomes a program, whose words are read here."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bdfl.errors import BdflError
from campaigns.model.traces import Trace

MODEL = Path(__file__).parents[2] / "models" / "agreement" / "agreement.pml"
MISSING = "no Spin: `apt-get install spin gcc`, or `make browser` as root, installs it; the model is not checked"
_VERDICT = re.compile(r"errors: (\d+)")
_STATES = re.compile(r"^ *([\d.e+]+) states, stored", re.MULTILINE)
_MEMORY = re.compile(r"([\d.]+)\s+total actual memory usage")
_VIOLATED = re.compile(r"pan:\d+: (.*?) \(at depth")
_REACHED = re.compile(r"reached step (\d+) of (\d+)")
_LAWS = {
    "invalid end state": "progress",
    "stable": "progress",
    "said[": "one vote",
    "w==": "agreement",
    "decided[": "agreement",
}


class SpinFailed(BdflError):
    """Spin, the compiler or the checker did not do what it was asked for."""


@dataclass(frozen=True)
class Checked:
    """The verdict of the checker on one instance."""

    law: str  # that is broken; empty: none
    num_states: int
    memory_mb: float
    took_s: float
    reached: tuple[int, int] = (0, 0)  # steps of a trace that were taken, of so many


def find_spin() -> Path | None:
    """Spin on the path, if a C compiler is there as well."""
    found = shutil.which("spin")
    return None if found is None or shutil.which("gcc") is None else Path(found)


def check(
    parameters: Mapping[str, int | str],
    *,
    folder: Path | None = None,
    trace: Trace | None = None,
    hash_bits: int = 20,
) -> Checked:
    """The model with these `-D` parameters, looked at in full; or with a trace, along that alone."""
    if find_spin() is None:
        raise SpinFailed(MISSING)
    if folder is not None:
        return _check_in(folder, parameters, trace, hash_bits)
    with tempfile.TemporaryDirectory() as name:
        return _check_in(Path(name), parameters, trace, hash_bits)


def check_trace(trace: Trace, *, folder: Path | None = None) -> Checked:
    """The verdict on a trace: `law` is empty if it is a behaviour of the model, else names the step that is not."""
    _, others = trace.numbered_blocks()
    sizes = {"N": trace.num_members, "A": trace.num_attempts, "B": others + 1, "H": trace.num_heights + 1}
    found = check({"TRACE": 1, **sizes}, folder=folder, trace=trace)
    taken, wanted = found.reached
    if found.law or taken < wanted:
        line = trace.render().splitlines()[min(taken, wanted - 1)]
        return Checked(f"step {taken} is none of the model: {line}", found.num_states, 0.0, found.took_s, found.reached)
    return found


def _check_in(folder: Path, parameters: Mapping[str, int | str], trace: Trace | None, hash_bits: int) -> Checked:
    defines = [f"-D{name}={value}" for name, value in parameters.items()]
    level = "-O2" if hash_bits > 22 else "-O1"  # a small search ends before the compiler would
    kind = ["-DHC4", "-DVECTORSZ=2000000", "-O0"] if trace is not None else [level]
    checker = folder / "pan"
    _run(["spin", "-a", *defines, str(MODEL)], folder)
    _run(["gcc", *kind, "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c"], folder)
    depth = 1_000_000
    environment = {}
    if trace is not None:
        text = trace.render()
        (folder / "trace.txt").write_text(text, encoding="utf-8")
        environment = {"TRACE_FILE": "trace.txt"}
        depth = 10 * len(text.splitlines()) + 1000
    started = time.monotonic()
    said = _run([str(checker), f"-m{depth}", f"-w{hash_bits}", "-n"], folder, environment)
    took_s = time.monotonic() - started
    verdict, states, memory = _VERDICT.search(said), _STATES.search(said), _MEMORY.search(said)
    if verdict is None or states is None or "max search depth too small" in said:
        raise SpinFailed(f"no verdict: {said.strip().splitlines()[-1] if said.strip() else 'nothing said'}")
    violated = _VIOLATED.search(said)
    law = "" if verdict[1] == "0" else violated[1] if violated else "unknown"
    law = next((name for words, name in _LAWS.items() if words in law), law)
    reached = _REACHED.search(said)
    return Checked(
        law,
        int(float(states[1])),
        float(memory[1]) if memory else 0.0,
        took_s,
        (int(reached[1]), int(reached[2])) if reached else (0, 0),
    )


def _run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode or "Error:" in said:
        raise SpinFailed(f"{command[0]}: exit code {done.returncode}: {said.strip()[:200]}")
    return said
