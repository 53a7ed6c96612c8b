"""A trainer over local processes or a Ray cluster, with the same bits as in one process.

Training is a pure function, so a task lost with its node is trained again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bdfl.errors import BdflError, require
from bdfl.learning.data import DataSet
from bdfl.learning.partition import Partition
from bdfl.learning.training import InvalidTraining, Result, Task, TaskMap, Trainer, TrainingFailed, map_here
from bdfl.learning.weights import Vector
from bdfl.plugins import show_exception
from bdfl.processes import open_process_pool
from bdfl.ray_cluster import OtherSoftware, count_cpus, describe_trouble, find_difference, list_software, open_ray
from bdfl.scenario import Device, Engine, Scenario

if TYPE_CHECKING:
    from bdfl.learning.flower_trainer import FlowerClients
    from bdfl.learning.trainer import BlockTask, ClientTask, LocalTrainer, TrainingArrays


_ENDED = "a training process ended by itself (killed, or out of memory); fewer workers may help"

# Trainers of a scenario, in this process or spread over several: the same bits either way.


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
    from bdfl.learning.trainer import LocalTrainer, LoopTrainer, VmapTrainer, gather_material

    material = gather_material(scenario, data, partition.indices)
    bench = LocalTrainer(scenario, material)

    if scenario.learning.engine is Engine.VMAP:
        yield VmapTrainer(bench, map_here(bench))
    elif workers == 1:
        yield LoopTrainer(bench, map_here(bench))
    else:
        with open_trainer_processes(_make_trainer, (scenario, material.pack()), workers) as map_there:
            yield LoopTrainer(bench, map_there)


@contextmanager
def open_trainer_processes(make: Callable[..., object], parts: tuple[object, ...], workers: int) -> Iterator[TaskMap]:
    """Start processes with a trainer each, made of `parts`; they end with this block, at once on an exception.

    A single worker is this process. `make` must be a function or class of a module.
    """
    if workers == 1:
        yield map_here(make(*parts))
        return
    with open_process_pool(workers, initializer=_keep, initargs=(make, parts)) as executor:

        def map_there(function: Callable[[Any, Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
            try:
                yield from executor.map(_work, repeat(function), tasks)
            except BrokenProcessPool:
                raise TrainingFailed(_ENDED) from None

        for _ in range(workers):
            executor.submit(_get_ready)  # all build their trainers now
        yield map_there


def _make_trainer(scenario: Scenario, material: tuple[object, ...]) -> "LocalTrainer":
    from bdfl.learning.trainer import LocalTrainer, unpack_material

    return LocalTrainer(scenario, unpack_material(material))


_given: list[tuple[Callable[..., object], tuple[object, ...]]] = []  # in a worker, set once


def _keep(make: Callable[..., object], parts: tuple[object, ...]) -> None:
    _given.append((make, parts))


@cache
def _worker_trainer() -> object:
    """Return this worker's trainer, made at the first task so that its errors are reported there."""
    make, parts = _given[0]
    try:
        return make(*parts)
    except OSError as error:
        raise TrainingFailed(f"the data cannot be opened in a training process: {show_exception(error)}") from error


def _get_ready() -> None:
    _worker_trainer()


def _work(function: Callable[[Any, Task], Result], task: Task) -> Result:
    return function(_worker_trainer(), task)


_AHEAD = 2  # tasks per actor: one running, one queued
_ATTEMPTS = 3  # of a task whose actors die
_PATIENCE_S = 120.0  # timeout for an actor if there is none
_NO_WEIGHTS = np.zeros(0, np.float32)  # placeholder: weights are sent separately


@contextmanager
def open_ray_trainer(
    scenario: Scenario,
    data: "DataSet | FlowerClients",
    partition: Partition,
    *,
    address: str | None,
    workers: int | None = None,
) -> Iterator[Trainer]:
    """Open a trainer that spreads clients over the cluster at `address`, or over processes of this machine.

    `workers` limits the number of clients trained at once (default: one per CPU, or per `learning.threads` of them).
    """
    if not isinstance(data, DataSet):
        raise InvalidTraining("learning.flower: Flower clients are trained on this machine, --engine local expected")
    if scenario.learning.engine is Engine.VMAP:
        raise InvalidTraining("learning.engine: vmap trains all clients in one call here, loop expected with Ray")
    require("training", "torch")
    from bdfl.learning.trainer import LocalTrainer, LoopTrainer, gather_material

    material = gather_material(scenario, data, partition.indices)
    bench = LocalTrainer(scenario, material)
    threads = scenario.learning.threads
    with open_ray(address, num_cpus=None if workers is None else workers * threads) as ray:
        most = max(1, count_cpus(ray) // threads)
        num_actors = min(most if workers is None else min(workers, most), scenario.clients.count)
        actors = _Actors(ray, scenario, material, num_actors)
        try:
            yield LoopTrainer(bench, actors.map)
        finally:
            actors.close()


class TrainingActor:
    """Actor with a trainer, built at the first task so that its errors are reported there."""

    def __init__(self, scenario: Scenario, parts: tuple[Any, ...], software: tuple[tuple[str, str], ...]) -> None:
        self._scenario = scenario
        self._parts = parts
        self._software = software
        self._bench: LocalTrainer | None = None

    def get_ready(self) -> str | None:
        """Return None, or the reason why this node must not train."""
        return find_difference(self._software)

    def work(
        self, function: "Callable[[LocalTrainer, Any], object]", task: "ClientTask | BlockTask", weights: Vector
    ) -> object:
        """Apply `function` to the task with these weights."""
        if self._bench is None:
            from bdfl.learning.trainer import LocalTrainer, TrainingArrays

            self._bench = LocalTrainer(self._scenario, TrainingArrays(*self._parts))
        return function(self._bench, replace(task, weights=weights))


class _Actors:
    """Owns the actors; one that dies is replaced as soon as the cluster has room."""

    def __init__(self, ray: Any, scenario: Scenario, material: "TrainingArrays", number: int) -> None:
        self._ray = ray
        share = {"num_cpus": scenario.learning.threads, "num_gpus": _share_gpus(ray, scenario.learning.device, number)}
        self._class = ray.remote(**share, max_restarts=0)(TrainingActor)
        whole = [getattr(material, field.name) for field in fields(material)]
        # Memory-mapped arrays are copied to memory: they are sent to machines without their file.
        parts = tuple(np.array(part) if isinstance(part, np.memmap) else part for part in whole)
        self._parts = ray.put(parts)  # one copy per node
        self._given = scenario, list_software(with_torch=True)
        self._all: list[Any] = []
        self._starting: dict[Any, Any] = {}  # readiness: actor
        self._ready: list[Any] = []
        for _ in range(number):
            self._open()

    def map(self, function: "Callable[[LocalTrainer, Task], Result]", tasks: Sequence[Task], /) -> Iterator[Result]:
        """Apply `function` to all tasks; results come in order."""
        sent: dict[int, Any] = {}  # weights by identity: sent once, shared by all tasks
        waiting = deque(enumerate(tasks))
        under_way: dict[Any, tuple[int, Any]] = {}  # reference: number of the task, actor
        attempts = [0] * len(tasks)
        found: dict[int, Result] = {}

        for number in range(len(tasks)):
            while number not in found:
                while waiting and (actor := self._find_free(under_way)) is not None:
                    place, task = waiting.popleft()
                    under_way[self._send(actor, function, task, sent)] = place, actor
                for reference in self._wait(under_way):
                    if reference in self._starting:
                        self._welcome(reference)
                        continue
                    place, actor = under_way.pop(reference)
                    try:
                        found[place] = cast(Result, self._fetch(reference))
                    except self._ray.exceptions.RayActorError:
                        self._replace(actor)
                        attempts[place] += 1
                        if attempts[place] >= _ATTEMPTS:
                            raise TrainingFailed(_ENDED) from None
                        waiting.appendleft((place, tasks[place]))
            yield found.pop(number)

    def close(self) -> None:
        """Kill all actors."""
        for actor in self._all:
            self._ray.kill(actor)
        self._all.clear()

    def _open(self) -> None:
        scenario, software = self._given
        actor = self._class.remote(scenario, self._parts, software)
        self._all.append(actor)
        self._starting[actor.get_ready.remote()] = actor

    def _welcome(self, reference: Any) -> None:
        """Accept an actor that has started; replace it if it has died."""
        actor = self._starting.pop(reference)
        try:
            difference: str | None = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            if error.actor_init_failed:
                raise TrainingFailed(f"ray: {describe_trouble(error)}; is bdfl installed on every node?") from error
            self._replace(actor)
            return
        if difference is not None:
            raise OtherSoftware(difference)
        self._ready.append(actor)

    def _replace(self, actor: Any) -> None:
        if actor in self._all:
            self._all.remove(actor)
            self._ready = [other for other in self._ready if other is not actor]
            self._open()

    def _find_free(self, under_way: dict[Any, tuple[int, Any]]) -> Any | None:
        """Return the actor with the least load, unless all are full."""
        loads = [(sum(actor is other for _, other in under_way.values()), actor) for actor in self._ready]
        load, actor = min(loads, key=lambda pair: pair[0], default=(_AHEAD, None))
        return actor if load < _AHEAD else None

    def _wait(self, under_way: dict[Any, tuple[int, Any]]) -> list[Any]:
        ready: list[Any]
        timeout = None if self._ready else _PATIENCE_S
        ready, _ = self._ray.wait([*under_way, *self._starting], num_returns=1, timeout=timeout)
        if not ready:
            raise TrainingFailed(f"ray: no CPU for training became free in {_PATIENCE_S:.0f} s")
        return ready

    def _send(self, actor: Any, function: object, task: Any, sent: dict[int, Any]) -> Any:
        weights = task.weights
        if id(weights) not in sent:
            sent[id(weights)] = self._ray.put(weights)
        return actor.work.remote(function, replace(task, weights=_NO_WEIGHTS), sent[id(weights)])

    def _fetch(self, reference: Any) -> object:
        try:
            found: object = self._ray.get(reference)
            return found
        except self._ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, BdflError):
                raise cause from None
            raise TrainingFailed(f"ray: {describe_trouble(error)}") from error


def _share_gpus(ray: Any, device: Device, num_actors: int) -> float:
    """Share of a GPU that each actor reserves, so that all fit; an actor without one would not see any."""
    if device not in (Device.CUDA, Device.AUTO):
        return 0.0
    num_gpus = float(ray.cluster_resources().get("GPU", 0.0))
    return num_gpus / num_actors if num_gpus < num_actors else 1.0
