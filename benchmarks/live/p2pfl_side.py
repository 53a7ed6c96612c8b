"""p2pfl on a workload; runs in an environment of its own: requirements-p2pfl.txt.

Reads a plan as one line of JSON and answers with one. Settings are those p2pfl calls standalone, for many nodes on one
machine; certificates are those it ships.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}  # before it is imported

from benchmarks.learning.gate import read_arguments
from benchmarks.learning.workload import load_workload

if TYPE_CHECKING:
    from p2pfl.node import Node

_START, _VOTE, _GOSSIP, _FINISHED = "StartLearningStage", "VoteTrainSetStage", "GossipModelStage", "RoundFinishedStage"
_JOIN_LIMIT_S = 60.0
_LOOK_AGAIN_S = 0.2


class Diary(list[str]):
    """Stands where p2pfl notes the stages a node has entered, and notes when, and who was there."""

    def __init__(self, node: "Node") -> None:
        super().__init__()
        self._node = node
        self.began_s: list[float] = []  # of every round, by the node
        self.ended_s: list[float] = []
        self.neighbours: list[int] = []  # that the node knew at the end of each round
        self.missing: list[int] = []  # updates that the node went on without in each round

    def append(self, stage: str) -> None:
        super().append(stage)
        if stage == _VOTE:
            self.began_s.append(time.perf_counter())
        elif stage == _GOSSIP:
            self.missing.append(len(self._node.aggregator.get_missing_models()))
        elif stage == _FINISHED:
            self.neighbours.append(len(self._node.get_neighbors()))
            self.ended_s.append(time.perf_counter())


def main() -> None:
    """Plays the plan, or as much of it as the network lives to see."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a framework prints must not look like an answer
    path, kind, _, _ = read_arguments()
    plan = json.loads(sys.stdin.readline())
    stand_in_for_torchvision()
    _prepare_ray(path.parent, wanted=kind == "ray")

    import torch
    from p2pfl.utils.topologies import TopologyFactory, TopologyType
    from p2pfl.utils.utils import set_standalone_settings, wait_convergence

    from benchmarks.learning.models import judge
    from benchmarks.live.p2pfl_app import make_node

    torch.set_num_threads(1)
    set_standalone_settings()
    workload = load_workload(path)
    nodes = [make_node(workload, client, plan["momentum"]) for client in range(workload.num_clients)]
    diaries = [Diary(node) for node in nodes]
    for node, diary in zip(nodes, diaries, strict=True):
        node.learning_workflow.history = diary
        node.start()
    TopologyFactory.connect_nodes(TopologyFactory.generate_matrix(TopologyType(plan["topology"]), len(nodes)), nodes)
    try:
        wait_convergence(nodes, len(nodes) - 1, wait=_JOIN_LIMIT_S)
    except AssertionError:
        print(f"not all nodes knew all others after {_JOIN_LIMIT_S:.0f} s", file=sys.stderr, flush=True)
        os._exit(1)  # as below
    end_s = time.perf_counter() + plan["limit_s"]
    nodes[0].set_start_learning(rounds=plan["rounds"], epochs=1, trainset_size=plan["trainers"])
    while time.perf_counter() < end_s and not all(node.learning_workflow.finished for node in nodes):
        time.sleep(_LOOK_AGAIN_S)
    answer = {
        "rounds": tell_rounds(diaries, plan["rounds"]),
        "stuck_in": [
            "" if node.learning_workflow.finished else (diary or [_START])[-1]
            for node, diary in zip(nodes, diaries, strict=True)
        ],
        "accuracies": [judge(node.get_model().get_model().model, workload)[0] for node in nodes],
        "versions": f"Python {sys.version.split()[0]}, p2pfl {version('p2pfl')}, grpcio {version('grpcio')}, "
        f"lightning {version('lightning')}, ray {version('ray')}, torch {torch.__version__}",
    }
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    os._exit(0)  # threads of a network that fell apart would keep the process alive; Ray's processes end with it


def tell_rounds(diaries: Sequence[Diary], num_rounds: int) -> list[dict[str, float | int | None]]:
    """Every round that some node ended, from the last end of the round before to the last of its own."""
    told = []
    last_s = min((diary.began_s[0] for diary in diaries if diary.began_s), default=0.0)
    for round in range(num_rounds):
        there = [diary for diary in diaries if len(diary.ended_s) > round]
        if not there:
            break
        ended_s = max(diary.ended_s[round] for diary in there)
        told.append(
            {
                "seconds": ended_s - last_s,
                "nodes": len(there),
                "least_neighbours": min(diary.neighbours[round] for diary in there),
                "missing_updates": max(diary.missing[round] for diary in there),
            }
        )
        last_s = ended_s
    return told


def stand_in_for_torchvision() -> None:
    """An empty module of that name: p2pfl imports torchvision, and only its own download of MNIST uses it."""
    import torchmetrics  # noqa: F401 - has looked whether torchvision is there

    package, datasets = (module_from_spec(ModuleSpec(name, None)) for name in ("torchvision", "torchvision.datasets"))
    package.datasets = datasets
    sys.modules |= {"torchvision": package, "torchvision.datasets": datasets}


def _prepare_ray(folder: Path, *, wanted: bool) -> None:
    """Begins Ray on loopback before p2pfl begins it on every address, or tells p2pfl to train without it."""
    from p2pfl.settings import Settings

    Settings.general.DISABLE_RAY = not wanted
    if wanted:
        import ray

        ray.init(
            namespace="p2pfl",  # where p2pfl looks for its own
            include_dashboard=False,
            logging_level="warning",
            runtime_env={"worker_process_setup_hook": stand_in_for_torchvision},
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder / "ray"),
        )


if __name__ == "__main__":
    main()
