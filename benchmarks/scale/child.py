"""One run in a process of its own, whose memory is then its own: what it took, as a line of JSON.

python -m benchmarks.scale.child crowd drc 1000000 3
python -m benchmarks.scale.child network 100 2
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bdfl.scenario import Scenario, load_scenario
from bdfl.scenario.files import find_scenario


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took."""

    set_up_s: float  # until the first round began
    round_s: float  # mean of all rounds; without a protocol of all but the first, which is part of setting up
    round_cpu_s: float  # the same of the processor, whatever else the machine does
    peak_mb: float  # of the whole process
    trained: float  # mean number of clients that trained in a round
    block_mb: float  # mean size of a block; 0 where there is no chain
    delay_s: float  # simulated, mean of a round


def crowd_scenario(scheduler: str, num_clients: int, num_rounds: int) -> Scenario:
    """The shipped scenario of a million clients, for so many: all that grows with them grows in proportion."""
    share = num_clients / 1_000_000
    return load_scenario(
        find_scenario("million"),
        [
            f"rounds={num_rounds}",
            f"clients.count={num_clients}",
            f"clients.min_selected={max(1, round(1000 * share))}",
            f"mining.difficulty={3.75e12 * share}",
            f"scheduler.tradeoff={1e5 * share}",
            f"scheduler.name={scheduler}",
        ],
    )


def network_scenario(num_nodes: int, num_rounds: int) -> Scenario:
    """The shipped scenario of a thousand nodes, for so many; as many train in a round, if there are as many."""
    share = num_nodes / 1000
    return load_scenario(
        find_scenario("thousand-nodes"),
        [
            f"rounds={num_rounds}",
            f"clients.count={num_nodes}",
            f"clients.min_selected={min(20, num_nodes)}",
            f"participation.mean={min(0.02 / share, 0.5)}",
            f"mining.difficulty={3.75e9 * share}",
        ],
    )


def run_crowd(scenario: Scenario) -> Found:
    """Plays rounds without a model or a network."""
    from bdfl.experiment.simulation import simulate_aggregate

    began_s = time.perf_counter()
    ended: list[tuple[float, float]] = []
    record = simulate_aggregate(scenario, on_round=lambda _: ended.append(_now()))
    round_s, round_cpu_s = _mean_between(ended[0], ended[-1], len(ended) - 1)
    rows = record.rounds
    return Found(
        set_up_s=max(ended[0][0] - began_s - round_s, 0.0),
        round_s=round_s,
        round_cpu_s=round_cpu_s,
        peak_mb=_peak_mb(),
        trained=sum(row.num_selected for row in rows) / len(rows),
        block_mb=0.0,
        delay_s=sum(row.delay_s for row in rows) / len(rows),
    )


def run_network(scenario: Scenario) -> Found:
    """Plays rounds of the whole protocol, with real models, signatures and blocks."""
    from bdfl.encoding import encode
    from bdfl.experiment.run_folder import create_run_folder
    from bdfl.experiment.training_run import prepare_run, train_run
    from bdfl.learning.trainer_pool import open_trainer
    from bdfl.ledger.sqlite_store import ChainStore

    began_s = time.perf_counter()
    federated = prepare_run(scenario)
    planned: list[tuple[float, float]] = []
    ended: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        open_trainer(scenario, federated.data, federated.partition, workers=1) as trainer,
        create_run_folder(Path(temporary) / "run", scenario) as folder,
    ):
        record, _ = train_run(
            federated,
            trainer,
            folder,
            on_planned=lambda _: planned.append(_now()),
            on_settled=lambda *_: ended.append(_now()),
        )
        peak_mb = _peak_mb()
        with ChainStore.open(folder.chain_path, read_only=True) as archive:
            sizes = [len(encode(block)) for block in archive.blocks()]
    round_s, round_cpu_s = _mean_between(planned[0], ended[-1], scenario.rounds)
    return Found(
        set_up_s=planned[0][0] - began_s,
        round_s=round_s,
        round_cpu_s=round_cpu_s,
        peak_mb=peak_mb,
        trained=float(record.num_selected.mean()),
        block_mb=sum(sizes) / len(sizes) / 1e6,
        delay_s=record.mean_delay_s,
    )


def _now() -> tuple[float, float]:
    """Time (s) on the wall and of the processor."""
    return time.perf_counter(), time.process_time()


def _mean_between(began: tuple[float, float], ended: tuple[float, float], num_rounds: int) -> tuple[float, float]:
    return (ended[0] - began[0]) / num_rounds, (ended[1] - began[1]) / num_rounds


def _peak_mb() -> float:
    """Most memory (MB) that this process had at any time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main(words: list[str]) -> None:
    match words:
        case ["crowd", scheduler, num_clients, num_rounds]:
            found = run_crowd(crowd_scenario(scheduler, int(num_clients), int(num_rounds)))
        case ["network", num_nodes, num_rounds]:
            found = run_network(network_scenario(int(num_nodes), int(num_rounds)))
        case _:
            sys.exit(
                f"error: {' '.join(words)!r} given, crowd SCHEDULER CLIENTS ROUNDS or network NODES ROUNDS expected"
            )
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
