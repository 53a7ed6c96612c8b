"""A federation of Flower clients: sizes are measured once, then clients train and evaluate each round."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from bdfl.learning.flower_bench import Beginning, FlowerBench, FlowerResult, FlowerTask
from bdfl.learning.partition import Partition
from bdfl.learning.training import (
    NAN,
    Evaluation,
    FullGradient,
    InvalidTraining,
    LocalResult,
    TrainingFailed,
    no_samples,
    validate_clients,
)
from bdfl.learning.weights import Layout, Vector, validate_weights
from bdfl.learning.workers import open_benches
from bdfl.scenario import Scenario

OnRehearsed: TypeAlias = Callable[[int, int], None]  # clients done so far, of how many
_REHEARSED_ROUND = 1
_WORTH_PROCESSES_S = 60.0  # of training: shorter runs end before more processes have started

Result = TypeVar("Result")


class FlowerMap(Protocol):
    """Maps a function over tasks, in this process or in others; results come in order."""

    def __call__(
        self, function: Callable[[FlowerBench, FlowerTask], Result], tasks: Sequence[FlowerTask], /
    ) -> Iterator[Result]: ...


@dataclass(frozen=True, eq=False)
class FlowerClients:
    """Known facts about the clients of a federation: sizes and the initial model, but not their data."""

    name: str  # module:name
    beginning: Beginning
    samples: tuple[int, ...]  # |D_i|, as reported; empty if clients were not asked
    digest: str  # SHA-256 (hex) of all answers: changes with the code or the data
    training_s: float  # mean duration of a client's training

    @property
    def label_names(self) -> tuple[str, ...]:
        """A single label: the labels are known to the client only."""
        return ("all",)

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def partition(self) -> Partition:
        """Sizes of the clients' data sets; the indices are empty, since samples are known to the client only."""
        counts = np.array(self.samples, dtype=np.int64).reshape(-1, 1)
        counts.setflags(write=False)
        return Partition(tuple(np.zeros(0, np.int64) for _ in self.samples), counts)


def meet_clients(scenario: Scenario) -> FlowerClients:
    """Read the first client's initial model only; sizes stay unknown."""
    beginning = FlowerBench(scenario).begin(0)
    return FlowerClients(str(scenario.learning.flower), beginning, (), _digest(beginning, []), NAN)


def rehearse_clients(scenario: Scenario, on_rehearsed: OnRehearsed | None = None) -> FlowerClients:
    """Train every client once to learn its number of examples: Flower has no other request for it.

    It is the training of round 1 from the initial model, so answers are reproducible. A different digest means that
    code or data have changed.
    """
    bench = FlowerBench(scenario)
    beginning = bench.begin(0)
    num_clients = scenario.clients.count
    found: list[FlowerResult] = []
    begun_s = time.perf_counter()
    for client in range(num_clients):
        found.append(rehearse(bench, beginning, client))
        if on_rehearsed is not None:
            on_rehearsed(client + 1, num_clients)
    training_s = (time.perf_counter() - begun_s) / num_clients
    samples = tuple(one.num_examples for one in found)
    if not any(samples):
        raise InvalidTraining(f"learning.flower: {scenario.learning.flower!r} has no examples, expected some")
    return FlowerClients(str(scenario.learning.flower), beginning, samples, _digest(beginning, found), training_s)


def rehearse(bench: FlowerBench, beginning: Beginning, client: int) -> FlowerResult:
    """Train one client on the initial model to learn its number of examples."""
    return bench.train(FlowerTask(beginning.form, beginning.weights, _REHEARSED_ROUND, client))


def count_examples(scenario: Scenario, client: int) -> int:
    """Number of examples that one client trains on; no other client is called."""
    bench = FlowerBench(scenario)
    return rehearse(bench, bench.begin(client), client).num_examples


def validate_examples(found: FlowerResult, expected: int) -> None:
    """Raise `TrainingFailed` unless a client trained on the number of examples it reported, which is its weight."""
    if found.num_examples != expected:
        raise TrainingFailed(
            f"learning.flower: client {found.result.client} trained on {found.num_examples} examples, {expected}"
            " expected, as many as at the start"
        )


def suggest_workers(clients: FlowerClients, scenario: Scenario, num_cores: int) -> int:
    """Number of training processes for a fast run: one per core, or one if starting more would cost more."""
    trainings = scenario.rounds * scenario.clients.min_selected
    if trainings * clients.training_s < _WORTH_PROCESSES_S:
        return 1
    return max(1, min(num_cores // scenario.learning.threads, scenario.clients.count))


@contextmanager
def open_flower(scenario: Scenario, clients: FlowerClients, *, workers: int = 1) -> Iterator["FlowerTrainer"]:
    """Open a trainer of these clients, in this process or spread over several: the same bits either way."""
    bench = FlowerBench(scenario)

    def map_here(
        function: Callable[[FlowerBench, FlowerTask], Result], tasks: Sequence[FlowerTask]
    ) -> Iterator[Result]:
        return (function(bench, task) for task in tasks)

    if workers == 1:
        yield FlowerTrainer(clients, map_here)
    else:
        with open_benches(FlowerBench, (scenario,), workers) as map_there:
            yield FlowerTrainer(clients, map_there)


class FlowerTrainer:
    """Trains Flower clients; all of them evaluate the global model, each on its own test data."""

    def __init__(self, clients: FlowerClients, map: FlowerMap) -> None:
        self.layout: Layout = clients.beginning.form.layout
        self._form = clients.beginning.form
        self._initial = clients.beginning.weights
        self._samples = clients.samples
        self._map = map

    def initial_weights(self) -> Vector:
        return self._initial.copy()

    def train(self, weights: Vector, round: int, clients: Sequence[int]) -> list[LocalResult]:
        validate_weights(weights, self.layout)
        validate_clients(clients, len(self._samples))
        holders = [client for client in clients if self._samples[client]]
        found = self._map(FlowerBench.train, [FlowerTask(self._form, weights, round, client) for client in holders])
        results: dict[int, LocalResult] = {}
        for one in found:
            validate_examples(one, self._samples[one.result.client])
            results[one.result.client] = one.result
        return [results.get(client, no_samples(client)) for client in clients]

    def evaluate(self, weights: Vector) -> Evaluation:
        """Means over all clients, weighted by the examples each evaluated on; NaN if no client evaluates."""
        validate_weights(weights, self.layout)
        everybody = range(len(self._samples))
        tasks = [FlowerTask(self._form, weights, 0, client) for client in everybody]
        found = [one for one in self._map(FlowerBench.evaluate, tasks) if one is not None and one.num_examples]
        sizes = [one.num_examples for one in found]
        return Evaluation(
            _weighted_mean([one.accuracy for one in found], sizes),
            _weighted_mean([one.loss for one in found], sizes),
            np.full(1, np.nan),
        )

    def full_gradient(self, weights: Vector) -> FullGradient:
        raise InvalidTraining("learning.gradient_every: a Flower client gives no gradients, expected 0")


def _weighted_mean(values: Sequence[float], sizes: Sequence[int]) -> float:
    total = sum(sizes)
    return math.fsum(value * size for value, size in zip(values, sizes, strict=True)) / total if total else NAN


def _digest(beginning: Beginning, found: Sequence[FlowerResult]) -> str:
    whole = hashlib.sha256(repr(beginning.form).encode())
    whole.update(beginning.weights.data)
    for one in found:
        whole.update(f"{one.result.client} {one.num_examples} {one.result.outcome};".encode())
        if one.result.weights is not None:
            whole.update(one.result.weights.data)
    return whole.hexdigest()
