"""bdfl's learning on a workload: schedule, train, aggregate, account, round after round, without a network or a chain.

What these cost on top is measured by `python -m benchmarks --only chain`.
"""

import sys
import time

import msgspec
import numpy as np
import torch

from bdfl import __version__
from bdfl.aggregation import Update, aggregate, get_aggregator
from bdfl.experiment.simulation import play_rounds
from bdfl.experiment.training_run import prepare_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import Evaluation, LocalResult
from bdfl.scenario import Engine, Precision, Scenario, load_scenario
from bdfl.scheduling.registry import get_scheduler
from benchmarks.learning.gate import SCHEDULE, TRAIN, Gate, read_arguments


def play(gate: Gate, scenario: Scenario, workers: int) -> Evaluation:
    """Rounds for as long as the gate opens; what the model that came out is worth."""
    federated = prepare_run(scenario)
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    rule = get_aggregator(scenario.learning.aggregation)
    samples = federated.partition.samples.astype(np.int64).tolist()
    with open_trainer(scenario, federated.data, federated.partition, workers=workers) as trainer:
        weights = trainer.initial_weights()
        rounds = play_rounds(scenario, scheduler, federated.draws)
        phases_s: dict[str, float] = {}
        while gate.opens(phases_s):
            began_s = time.perf_counter()
            planned = next(rounds)
            scheduled_s = time.perf_counter()
            results = trainer.train(weights, planned.state.round, planned.clients)
            trained_s = time.perf_counter()
            weights = aggregate(rule, [_update(result, samples) for result in results])
            planned.settle(planned.decision.selected)
            phases_s = {SCHEDULE: scheduled_s - began_s, TRAIN: trained_s - scheduled_s}
        return trainer.evaluate(weights)


def _update(result: LocalResult, samples: list[int]) -> Update:
    if result.weights is None:
        raise AssertionError(f"client {result.client}: {result.outcome}, all clients should train")
    return Update(result.client, result.weights, samples[result.client])


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, kind, workers, threads = read_arguments()
    gate = Gate()
    scenario = load_scenario(path)
    learning = msgspec.structs.replace(scenario.learning, threads=threads)
    if kind == Precision.BFLOAT16:
        learning = msgspec.structs.replace(learning, precision=Precision.BFLOAT16)
    else:
        learning = msgspec.structs.replace(learning, engine=Engine(kind))
    found = play(gate, msgspec.structs.replace(scenario, learning=learning), workers)
    versions = f"Python {sys.version.split()[0]}, bdfl {__version__}, torch {torch.__version__}"
    gate.close(found.accuracy, found.loss, versions)


if __name__ == "__main__":
    main()
