"""Time and memory of a round over growing federations: delay-only, and the whole protocol."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.clock import growth_exponent
from benchmarks.results import Result, make_result
from benchmarks.scale.child import Found

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured: schedulers and numbers of clients without a protocol, and numbers of nodes with one."""

    schedulers: tuple[str, ...]
    clients: tuple[int, ...]
    crowd_rounds: int
    nodes: tuple[int, ...]
    network_rounds: int


FULL = Plan(
    schedulers=("random", "round-robin", "channel-best", "drc", "exact"),
    clients=(10_000, 100_000, 1_000_000),
    crowd_rounds=3,
    nodes=(50, 100, 200, 400, 1000),
    network_rounds=2,
)
QUICK = Plan(
    schedulers=("random", "drc", "exact"),
    clients=(10_000, 100_000),
    crowd_rounds=2,
    nodes=(25, 50, 100),
    network_rounds=2,
)


@dataclass(frozen=True)
class CrowdRow:
    """A run without a protocol: a round's time, and the most memory of the whole process."""

    scheduler: str
    clients: int
    rounds: int
    trained: float
    set_up_s: float
    round_s: float
    round_cpu_s: float
    peak_mb: float
    bytes_per_client: float


@dataclass(frozen=True)
class NetworkRow:
    """A run of the whole protocol."""

    nodes: int
    rounds: int
    trained: float
    set_up_s: float
    round_s: float
    round_cpu_s: float
    us_per_pair: float  # of nodes: processor time over nodes squared
    peak_mb: float
    block_mb: float


@dataclass(frozen=True)
class GrowthRow:
    """Exponents p of processor time and memory ~ size^p, from all sizes and from the two largest."""

    what: str
    time: float
    time_at_the_end: float
    memory_at_the_end: float


def measure_scale(plan: Plan, report: Report) -> list[Result]:
    """The tables of both kinds of run, and of how both grow."""
    crowds = [_measure_crowd(plan, name, size, report) for name in plan.schedulers for size in plan.clients]
    networks = [_measure_network(plan, size, report) for size in plan.nodes]
    growth = [
        _growth(
            f"delay-only, {name}",
            [(row.clients, row.round_cpu_s, row.peak_mb) for row in crowds if row.scheduler == name],
        )
        for name in plan.schedulers
    ]
    growth.append(_growth("whole protocol", [(row.nodes, row.round_cpu_s, row.peak_mb) for row in networks]))
    return [
        make_result(
            "scale-crowd",
            "Delay-only rounds: scenario `million`, cut to size",
            crowds,
            [
                "Each run in a process of its own; `peak mb` is the most memory of it, Python and numpy with it;"
                " `bytes per client` divides all of it.",
                "Set-up draws clients, places, label counts and the first round's channels. No model is trained.",
            ],
        ),
        make_result(
            "scale-network",
            "Rounds of signing nodes: scenario `thousand-nodes`, cut to size",
            networks,
            [
                "Every node reports, signs, verifies, mines and votes; those scheduled train a real model. One process."
                " The first round begins with everybody's hello to everybody and is counted.",
                "PyTorch and the data take some 400 MB of the memory.",
            ],
        ),
        make_result("scale-growth", "Growth with the number of clients or nodes", growth, []),
    ]


def _measure_crowd(plan: Plan, scheduler: str, num_clients: int, report: Report) -> CrowdRow:
    report(f"scale: {scheduler}, {num_clients:,} clients")
    found = _run("crowd", scheduler, num_clients, plan.crowd_rounds)
    return CrowdRow(
        scheduler=scheduler,
        clients=num_clients,
        rounds=plan.crowd_rounds,
        trained=found.trained,
        set_up_s=found.set_up_s,
        round_s=found.round_s,
        round_cpu_s=found.round_cpu_s,
        peak_mb=found.peak_mb,
        bytes_per_client=found.peak_mb * 1e6 / num_clients,
    )


def _measure_network(plan: Plan, num_nodes: int, report: Report) -> NetworkRow:
    report(f"scale: {num_nodes:,} signing nodes")
    found = _run("network", num_nodes, plan.network_rounds)
    return NetworkRow(
        nodes=num_nodes,
        rounds=plan.network_rounds,
        trained=found.trained,
        set_up_s=found.set_up_s,
        round_s=found.round_s,
        round_cpu_s=found.round_cpu_s,
        us_per_pair=found.round_cpu_s * 1e6 / num_nodes**2,
        peak_mb=found.peak_mb,
        block_mb=found.block_mb,
    )


def _growth(what: str, measured: Sequence[tuple[int, float, float]]) -> GrowthRow:
    sizes, seconds, megabytes = zip(*measured, strict=True)
    return GrowthRow(
        what=what,
        time=growth_exponent(sizes, seconds),
        time_at_the_end=growth_exponent(sizes[-2:], seconds[-2:]),
        memory_at_the_end=growth_exponent(sizes[-2:], megabytes[-2:]),
    )


def _run(*words: object) -> Found:
    command = [sys.executable, "-m", "benchmarks.scale.child", *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Found)
