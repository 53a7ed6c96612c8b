"""Trainers of a scenario, in this process or spread over several: the same bits either way."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bdfl.errors import require
from bdfl.learning.data import DataSet
from bdfl.learning.own_function import show_exception
from bdfl.learning.partition import Partition
from bdfl.learning.training import InvalidTraining, Trainer, TrainingFailed
from bdfl.process_pool import open_process_pool
from bdfl.scenario import Engine, Scenario

if TYPE_CHECKING:
    from bdfl.learning.bench import Bench
    from bdfl.learning.flower_trainer import FlowerClients

Task = TypeVar("Task")
Result = TypeVar("Result")


class MapBenches(Protocol):
    """Maps a function over tasks, on trainers in other processes; results come in order."""

    def __call__(self, function: Callable[[Any, Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]: ...


@contextmanager
def open_trainer(
    scenario: Scenario, data: "DataSet | FlowerClients", partition: Partition, *, workers: int = 1
) -> Iterator[Trainer]:
    """Open a trainer of the scenario's model on these data, or of its Flower clients.

    With one worker everything is computed in this process. With more, clients are spread over as many spawned
    processes, each with `learning.threads` threads; the results have the same bits. The engine `vmap` computes all
    clients in one call in this process and ignores `workers`.
    """
    if workers < 1:
        raise InvalidTraining(f"workers: {workers} given, at least 1 is needed")
    if not isinstance(data, DataSet):
        from bdfl.learning.flower_trainer import open_flower

        with open_flower(scenario, data, workers=workers) as flower:
            yield flower
        return
    require("training", "torch")
    from bdfl.learning.bench import Bench, gather_material
    from bdfl.learning.trainers import LoopTrainer, VmapTrainer

    material = gather_material(scenario, data, partition.indices)
    bench = Bench(scenario, material)

    def map_here(function: Callable[[Bench, Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        return (function(bench, task) for task in tasks)

    if scenario.learning.engine is Engine.VMAP:
        yield VmapTrainer(bench, map_here)
    elif workers == 1:
        yield LoopTrainer(bench, map_here)
    else:
        with open_benches(_make_bench, (scenario, material.pack()), workers) as map_there:
            yield LoopTrainer(bench, map_there)


@contextmanager
def open_benches(make: Callable[..., object], parts: tuple[object, ...], workers: int) -> Iterator[MapBenches]:
    """Start processes with a trainer each, made of `parts`; they end with this block, at once on an exception.

    `make` must be a function or class of a module.
    """
    with open_process_pool(workers, initializer=_keep, initargs=(make, parts)) as executor:

        def map_there(function: Callable[[Any, Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
            try:
                yield from executor.map(_work, repeat(function), tasks)
            except BrokenProcessPool:
                raise TrainingFailed(
                    "a training process ended by itself (killed, or out of memory); fewer workers may help"
                ) from None

        for _ in range(workers):
            executor.submit(_get_ready)  # all build their trainers now
        yield map_there


def _make_bench(scenario: Scenario, material: tuple[object, ...]) -> "Bench":
    from bdfl.learning.bench import Bench, unpack_material

    return Bench(scenario, unpack_material(material))


_given: list[tuple[Callable[..., object], tuple[object, ...]]] = []  # in a worker, set once


def _keep(make: Callable[..., object], parts: tuple[object, ...]) -> None:
    _given.append((make, parts))


@cache
def _worker_bench() -> object:
    """Return this worker's trainer, made at the first task so that its errors are reported there."""
    make, parts = _given[0]
    try:
        return make(*parts)
    except OSError as error:
        raise TrainingFailed(f"the data cannot be opened in a training process: {show_exception(error)}") from error


def _get_ready() -> None:
    _worker_bench()


def _work(function: Callable[[Any, Task], Result], task: Task) -> Result:
    return function(_worker_bench(), task)
