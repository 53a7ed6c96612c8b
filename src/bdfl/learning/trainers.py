"""Trainers: split requests into tasks, map them, and combine the results in order."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from bdfl.learning.bench import Bench, BlockTask, ClientTask
from bdfl.learning.evaluation import blocks_of, combine_evaluation, combine_gradient
from bdfl.learning.training import Evaluation, FullGradient, InvalidTraining, LocalResult, validate_clients
from bdfl.learning.weights import Layout, Vector, validate_weights

Task = TypeVar("Task")
Result = TypeVar("Result")


class Map(Protocol):
    """Maps a function over tasks, on this process's trainer or on others like it; results come in order."""

    def __call__(self, function: Callable[[Bench, Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]: ...


class LoopTrainer:
    """Trains clients one by one, or in parallel if `map` does."""

    def __init__(self, bench: Bench, map: Map) -> None:
        self.layout: Layout = bench.model.layout
        self._bench = bench
        self._map = map

    def initial_weights(self) -> Vector:
        return self._bench.initial_weights.copy()

    def train(self, weights: Vector, round: int, clients: Sequence[int]) -> list[LocalResult]:
        self._validate(weights, clients)
        return list(self._map(Bench.train, [ClientTask(weights, round, client) for client in clients]))

    def evaluate(self, weights: Vector) -> Evaluation:
        self._validate(weights)
        blocks = blocks_of(len(self._bench.test_inputs))
        return combine_evaluation(self._map(Bench.evaluate, [BlockTask(weights, block) for block in blocks]))

    def full_gradient(self, weights: Vector) -> FullGradient:
        self._validate(weights)
        blocks = blocks_of(len(self._bench.held))
        if not blocks:
            raise InvalidTraining("partition: no client holds data, expected some for the gradient of their loss")
        return combine_gradient(self._map(Bench.differentiate, [BlockTask(weights, block) for block in blocks]))

    def _validate(self, weights: Vector, clients: Sequence[int] = ()) -> None:
        validate_weights(weights, self.layout)
        validate_clients(clients, len(self._bench.material.indices))


class VmapTrainer(LoopTrainer):
    """Trains all clients of a round in one call."""

    def train(self, weights: Vector, round: int, clients: Sequence[int]) -> list[LocalResult]:
        self._validate(weights, clients)
        return self._bench.train_together(weights, round, clients)
