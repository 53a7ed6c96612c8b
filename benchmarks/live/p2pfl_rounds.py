"""p2pfl's rounds on the quick start's data, model and batches: how long they last, and whether its network holds."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from benchmarks.learning.cases import make_workload
from benchmarks.learning.sides import Side, SideFailed, open_side
from benchmarks.learning.workload import save_workload

INSTALL = "make .venv-p2pfl/.installed"
_WORKLOAD_FILE = "workload.npz"
_BEYOND_S = 180.0  # for importing, joining and judging, beside the rounds


@dataclass(frozen=True)
class P2pflRound:
    """One round, from the last node's end of the round before to the last node's end of it."""

    seconds: float
    nodes: int  # that ended the round
    least_neighbours: int  # that a node knew at its end
    missing_updates: int  # of chosen trainers, that some node went on without


@dataclass(frozen=True)
class P2pflResult:
    """What came of a run: `failure` says in a line why it is not what was asked for, empty: it is."""

    num_nodes: int
    asked_rounds: int
    rounds: tuple[P2pflRound, ...]
    accuracies: tuple[float, ...]  # of every node's model on the test set, at the end
    failure: str
    versions: str

    @property
    def round_s(self) -> float:
        """Median over the rounds that all nodes ended, NaN where there is none."""
        whole = [round.seconds for round in self.rounds if round.nodes == self.num_nodes]
        return median(whole) if whole else float("nan")


def run_p2pfl(
    *,
    num_rounds: int = 5,
    trainers: int = 4,
    topology: str = "full",
    with_ray: bool = True,
    limit_s: float = 600.0,
    scenario: str = "quickstart",
) -> P2pflResult:
    """Eight p2pfl nodes on this machine over gRPC with mutual TLS, with the settings it calls standalone.

    Data, model, batch and number of steps are the scenario's; every round repeats its batches of round 1, since p2pfl
    counts in epochs. `trainers` of the nodes, whom they elect, train in a round (4 is p2pfl's default). Ray is how
    p2pfl trains wherever it is installed, and it comes with it. Nothing lasts beyond `limit_s` and a few minutes.
    """
    chosen = load_scenario(find_scenario(scenario))
    side = Side("p2pfl", "benchmarks.live.p2pfl_side", "ray" if with_ray else "threads", 1, 1, "p2pfl")
    asked = chosen.clients.count, num_rounds
    if not side.is_installed:
        return P2pflResult(*asked, (), (), f"not installed: {INSTALL}", "")
    plan = {
        "rounds": num_rounds,
        "trainers": trainers,
        "topology": topology,
        "momentum": chosen.learning.momentum,
        "limit_s": limit_s,
    }
    with tempfile.TemporaryDirectory(prefix="p2pfl-") as name:
        workload = Path(name) / _WORKLOAD_FILE
        save_workload(make_workload(chosen, 1), workload)
        with open_side(side, workload, workload.parent) as running:
            try:
                answer = running.ask(json.dumps(plan), limit_s + _BEYOND_S)
            except SideFailed as error:
                return P2pflResult(*asked, (), (), str(error), "")
    rounds = tuple(P2pflRound(**round) for round in answer["rounds"])
    failure = tell_failure(chosen.clients.count, num_rounds, rounds, answer["stuck_in"])
    return P2pflResult(*asked, rounds, tuple(answer["accuracies"]), failure, answer["versions"])


def tell_failure(num_nodes: int, asked: int, rounds: tuple[P2pflRound, ...], stuck_in: list[str]) -> str:
    """The first round that was not whole, and where nodes stood at the end."""
    troubles = []
    for number, round in enumerate(rounds, start=1):
        if round.nodes < num_nodes:
            troubles.append(f"round {number} was ended by {round.nodes} of {num_nodes} nodes")
        if round.least_neighbours < num_nodes - 1:
            troubles.append(f"after round {number} a node knew {round.least_neighbours} of {num_nodes - 1} others")
        if round.missing_updates:
            troubles.append(f"in round {number} a node went on without {round.missing_updates} updates")
        if troubles:
            break
    if len(rounds) < asked:
        troubles.append(f"{len(rounds)} of {asked} rounds were ended by anybody")
    stuck = sorted({stage for stage in stuck_in if stage})
    if stuck:
        troubles.append(f"{sum(map(bool, stuck_in))} nodes did not come to an end, last in {', '.join(stuck)}")
    return "; ".join(troubles)
