"""bdfl on a workload, the way `bdfl run` goes: schedule, train, aggregate, account, journal, round after round."""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from bdfl import __version__
from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.simulation import PlannedRound
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.training import Evaluation, FullGradient, LocalResult, Outcome, Trainer
from bdfl.learning.weights import Vector
from bdfl.learning.workers import open_trainer
from bdfl.records import LearningRound, RoundRecord
from bdfl.scenario import Engine, Scenario, load_scenario
from benchmarks.learning.gate import SCHEDULE, TRAIN, Gate, read_arguments


class Enough(Exception):
    """The benchmark wants no further round."""


class TimedTrainer:
    """A trainer that knows how long it has trained."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.layout = trainer.layout
        self.train_s = 0.0

    def initial_weights(self) -> Vector:
        return self._trainer.initial_weights()

    def train(self, weights: Vector, round: int, clients: Sequence[int]) -> list[LocalResult]:
        start = time.perf_counter()
        results = self._trainer.train(weights, round, clients)
        self.train_s = time.perf_counter() - start
        return results

    def evaluate(self, weights: Vector) -> Evaluation:
        return self._trainer.evaluate(weights)

    def full_gradient(self, weights: Vector) -> FullGradient:
        return self._trainer.full_gradient(weights)


def play(gate: Gate, scenario: Scenario, workers: int, folder: Path) -> Evaluation:
    """Rounds for as long as the gate opens; what the model that came out is worth."""
    federated = prepare_run(scenario)
    began_s = schedule_s = 0.0

    with (
        create_run_folder(folder, scenario) as run,
        open_trainer(scenario, federated.data, federated.partition, workers=workers) as opened,
    ):
        trainer = TimedTrainer(opened)

        def begin(phases_s: dict[str, float]) -> None:
            nonlocal began_s
            if not gate.opens(phases_s):
                raise Enough
            began_s = time.perf_counter()

        def note_plan(planned: PlannedRound) -> None:
            nonlocal schedule_s
            schedule_s = time.perf_counter() - began_s

        def end_round(record: RoundRecord, row: LearningRound) -> None:
            if row.outcome != [Outcome.TRAINED] * scenario.clients.count:
                raise AssertionError(f"round {row.round}: all clients should train, the outcomes are {row.outcome}")
            begin({SCHEDULE: schedule_s, TRAIN: trainer.train_s})

        try:
            begin({})
            train_run(federated, trainer, run, on_planned=note_plan, on_settled=end_round)
        except Enough:
            pass
        return trainer.evaluate(run.read_model(len(run.rounds), trainer.layout))


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, engine, workers, threads = read_arguments()
    gate = Gate()
    scenario = load_scenario(path)
    learning = msgspec.structs.replace(scenario.learning, engine=Engine(engine), threads=threads)
    with tempfile.TemporaryDirectory(prefix="run-", dir=path.parent) as folder:
        found = play(gate, msgspec.structs.replace(scenario, learning=learning), workers, Path(folder) / "run")
    versions = f"Python {sys.version.split()[0]}, bdfl {__version__}, torch {torch.__version__}"
    gate.close(found.accuracy, found.loss, versions)


if __name__ == "__main__":
    main()
