"""What a round of a live network takes beside its training: real processes on this machine, TLS, stores that sync."""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from bdfl.records.files import ROUNDS_FILE, RoundTimes, read_rounds
from benchmarks.live.p2pfl_rounds import INSTALL, run_p2pfl
from benchmarks.results import Result, make_result

Report = Callable[[str], None]
SMALL_ASKED_S = 0.3
LARGE_ASKED_S = 1.5
_LIMIT_S = 1800.0
_NANO = 1e9
_FIRST_COUNTED = 3  # the rounds before it are those of processes that warm up


class NetworkFailed(Exception):
    """A network that did not end well."""


@dataclass(frozen=True)
class Case:
    """A network, and what a round may take beside its training."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    blocks: int = 30
    nodes: int = 8
    access_points: int = 0
    needs_images: bool = False
    asked_s: float | None = None


@dataclass(frozen=True)
class LiveRow:
    """Medians over rounds (s), each of them the median of its nodes."""

    case: str
    nodes: int
    access_points: int
    model_kb: int
    rounds: int
    accuracy: float | None
    round_s: float
    training_s: float
    overhead_s: float
    worst_overhead_s: float
    mining_s: float
    voting_s: float
    asked_s: float | None


@dataclass(frozen=True)
class OtherRow:
    """Another framework's rounds on the small workload."""

    framework: str
    nodes: int
    rounds: int
    round_s: float
    remark: str


def plan_cases(*, quick: bool) -> list[Case]:
    """Small models with and without access points, and models of 4.3 MB whose training is next to nothing."""
    blocks = 8 if quick else 30
    large = {
        "learning.model": "paper-cnn",
        "learning.batch": "32",
        "learning.local_steps": "1",
        "learning.learning_rate": "0.001",
        "clients.samples": "32",
    }
    return [
        Case("digits", blocks=blocks, asked_s=SMALL_ASKED_S),
        Case("digits, behind access points", blocks=blocks, access_points=2, asked_s=SMALL_ASKED_S),
        Case("paper-cnn", large, blocks=8 if quick else 20, needs_images=True, asked_s=LARGE_ASKED_S),
    ]


def measure_live(*, quick: bool, report: Report) -> list[Result]:
    """Tables of rounds of live networks, and of p2pfl's where it is installed."""
    rows = []
    for case in plan_cases(quick=quick):
        report(f"live: {case.name}")
        rows.append(_measure_case(case))
    notes = (
        "Real processes on this machine: signed and encrypted messages, stores that sync, proof of work by Argon2.",
        "Nothing waits for modelled time. Overhead: a round without the longest training in it; mining is part of it.",
        f"Rounds before the {_FIRST_COUNTED}rd are not counted. All chains were verified and are the same bytes.",
    )
    results = [make_result("live-rounds", "Rounds of a live network", rows, notes)]
    report("live: p2pfl")
    return [*results, *_measure_p2pfl(rows[0], quick=quick)]


def run_network(case: Case, folder: Path) -> tuple[dict[str, object], dict[int, list[RoundTimes]]]:
    """What `bdfl network up` says of a network that it ran, and the times of every round by its number."""
    settings = dict(case.settings)
    if case.needs_images:
        settings["data.source"] = json.dumps(str(_write_images(folder / "images.npz", 32 * case.nodes)))
    command = [sys.executable, "-m", "bdfl.cli", "network", "up", "live", "--json", "--out", str(folder / "network")]
    command += ["--nodes", str(case.nodes), "--aps", str(case.access_points), "--blocks", str(case.blocks)]
    command += ["--time-scale", "0", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise NetworkFailed(f"{case.name}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    rounds: dict[int, list[RoundTimes]] = defaultdict(list)
    for path in sorted((folder / "network").glob(f"node-*/{ROUNDS_FILE}")):
        for times in read_rounds(path):
            rounds[times.round].append(times)
    return json.loads(done.stdout), rounds


def _measure_case(case: Case) -> LiveRow:
    with tempfile.TemporaryDirectory(prefix="bdfl-live-") as folder:
        said, rounds = run_network(case, Path(folder))
        blobs = [path.stat().st_size for path in Path(folder).glob("network/node-0/chain/blobs/*/*")]
    return _make_row(case, said, [rounds[number] for number in sorted(rounds) if number >= _FIRST_COUNTED], max(blobs))


def _make_row(
    case: Case, said: Mapping[str, object], rounds: Sequence[Sequence[RoundTimes]], model_size: int
) -> LiveRow:
    def middle(choose: Callable[[RoundTimes], int]) -> list[float]:
        return [median(choose(times) for times in nodes if times.is_whole) / _NANO for nodes in rounds]

    training_s = [max(times.training_ns or 0 for times in nodes) / _NANO for nodes in rounds]
    round_s = middle(lambda times: times.delay_ns)
    overhead_s = [whole - training for whole, training in zip(round_s, training_s, strict=True)]
    accuracy = said.get("accuracy")
    return LiveRow(
        case=case.name,
        nodes=case.nodes,
        access_points=case.access_points,
        model_kb=model_size // 1000,
        rounds=len(rounds),
        accuracy=accuracy if isinstance(accuracy, float) else None,
        round_s=median(round_s),
        training_s=median(training_s),
        overhead_s=median(overhead_s),
        worst_overhead_s=max(overhead_s),
        mining_s=median(middle(lambda times: times.mining_ns)),
        voting_s=median(middle(lambda times: times.voting_ns)),
        asked_s=case.asked_s,
    )


def _measure_p2pfl(ours: LiveRow, *, quick: bool) -> list[Result]:
    """p2pfl beside the first of our rows; nothing where it is not installed."""
    if not Path(".venv-p2pfl/.installed").exists():
        return []
    variants = {"p2pfl": True} if quick else {"p2pfl, as it comes": True, "p2pfl without Ray": False}
    rows = [OtherRow("bdfl", ours.nodes, ours.rounds, ours.round_s, "verified and mined blocks, durable stores")]
    for name, with_ray in variants.items():
        found = run_p2pfl(num_rounds=2 if quick else 5, with_ray=with_ray)
        remark = found.failure or f"accuracy {found.accuracies[-1]:.3f}" if found.accuracies else found.failure
        rows.append(OtherRow(name, found.num_nodes, len(found.rounds), found.round_s, remark))
    notes = (
        f"The digits of the quick start, 8 nodes, all linked, encrypted. p2pfl's nodes share one process; {INSTALL}.",
        "p2pfl aggregates and does not keep, mine, vote or verify: its rounds do less.",
    )
    return [make_result("live-p2pfl", "A round of digits, beside p2pfl", rows, notes)]


def _write_images(path: Path, num_train: int) -> Path:
    """Noise in the form of CIFAR-10: only its size matters here."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), np.arange(count) % 10

    inputs, labels = draw(num_train)
    test_inputs, test_labels = draw(20)
    np.savez(path, train_inputs=inputs, train_labels=labels, test_inputs=test_inputs, test_labels=test_labels)
    return path
