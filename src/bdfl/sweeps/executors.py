"""Executors of a sweep's batches: this process, local processes, or a Ray cluster.

An executor takes batches and returns their results in any order. The choice of executor never changes a result.
"""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import msgspec

from bdfl.experiment.parallel import SweepFailed, validate_workers
from bdfl.processes import count_cores, open_process_pool
from bdfl.ray_cluster import OtherSoftware, count_cpus, describe_trouble, find_difference, list_software, open_ray
from bdfl.sweeps.points import Batch, PointResult, compute_batch

AHEAD = 2  # batches per worker: one running, one queued


class Lost:
    """In place of results: the worker of the batch died."""


Answer = tuple[Batch, list[PointResult] | Lost]


class Executor(Protocol):
    """Executor of batches; at most `capacity` are submitted at once."""

    name: str  # of the engine
    num_workers: int
    is_lost_together: bool  # whether one lost batch loses all other submitted ones

    @property
    def capacity(self) -> int: ...

    def submit(self, batch: Batch) -> None: ...

    def wait(self) -> list[Answer]:
        """Return finished batches, at least one; all submitted ones if they are lost together."""
        ...


@contextmanager
def open_local_executor(workers: int | None) -> Iterator[Executor]:
    """Start `workers` processes (default: one per core) of one thread each; a single worker is this process."""
    validate_workers(workers)
    with ExitStack() as stack:
        executor = _Pool(workers or count_cores())
        stack.push(executor.leave)
        yield executor


class _Pool:
    """Owns a process pool, restarted if one process dies; a single worker computes in this process instead."""

    name = "local"
    is_lost_together = True

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.capacity = AHEAD * num_workers if num_workers > 1 else 1
        self._under_way: dict[Future[list[PointResult]], Batch] = {}
        self._open()

    def _open(self) -> None:
        self._stack = ExitStack()
        self._executor: ProcessPoolExecutor | None = None
        if self.num_workers > 1:
            self._executor = self._stack.enter_context(open_process_pool(self.num_workers, threads=1))

    def leave(self, *exception: object) -> None:
        """End the processes; at once on an exception."""
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def submit(self, batch: Batch) -> None:
        future: Future[list[PointResult]] = Future()
        if self._executor is None:
            future.set_result(compute_batch(batch))
        else:
            try:
                future = self._executor.submit(compute_batch, batch)
            except BrokenProcessPool as error:  # detected early; reported by `wait`
                future.set_exception(error)
        self._under_way[future] = batch

    def wait(self) -> list[Answer]:
        done, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
        if not any(isinstance(future.exception(), BrokenProcessPool) for future in done):
            return [(self._under_way.pop(future), future.result()) for future in done]
        answers = [(batch, _result_or_lost(future)) for future, batch in self._under_way.items()]
        self._under_way.clear()
        self.leave(None, None, None)
        self._open()
        return answers


def _result_or_lost(future: Future[list[PointResult]]) -> list[PointResult] | Lost:
    """Return the result of a future of a broken pool, or `Lost` if it is not finished."""
    try:
        return future.result()
    except BrokenProcessPool:
        return Lost()


# Executor on a Ray cluster: tasks are pure, so those of a lost node are computed again.

_LOOK_AGAIN_S = 5.0  # interval of counting the cluster's CPUs: nodes come and go


@contextmanager
def open_ray_executor(address: str | None, workers: int | None, *, with_torch: bool) -> Iterator[Executor]:
    """Run tasks of one CPU each on the cluster at `address`, or on a local one; at most `workers` at once."""
    validate_workers(workers)
    with open_ray(address, num_cpus=workers) as ray:
        executor = _RayExecutor(ray, workers, with_torch=with_torch)
        try:
            yield executor
        finally:
            executor.cancel()


def compute_on_node(batch: Batch, software: tuple[tuple[str, str], ...]) -> list[PointResult]:
    """Compute a batch; raise `OtherSoftware` unless the node has the same software as the sender."""
    import ray

    difference = find_difference(software)
    if difference is not None:
        raise OtherSoftware(difference)
    node = ray.get_runtime_context().get_node_id()[:8]  # a machine may host several nodes
    return [msgspec.structs.replace(result, host=f"{result.host}/{node}") for result in compute_batch(batch)]


class _RayExecutor:
    """Owns the submitted tasks."""

    name = "ray"
    is_lost_together = False

    def __init__(self, ray: Any, workers: int | None, *, with_torch: bool) -> None:
        self._ray = ray
        self._most = workers
        self._software = list_software(with_torch)
        self._task = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(compute_on_node)
        self._under_way: dict[Any, Batch] = {}
        self._counted_s = time.monotonic()
        self.num_workers = self._count()

    @property
    def capacity(self) -> int:
        if time.monotonic() - self._counted_s > _LOOK_AGAIN_S:
            self._counted_s, self.num_workers = time.monotonic(), self._count()
        return AHEAD * self.num_workers

    def submit(self, batch: Batch) -> None:
        self._under_way[self._task.remote(batch, self._software)] = batch

    def wait(self) -> list[Answer]:
        ready, _ = self._ray.wait(list(self._under_way), num_returns=1)
        return [(self._under_way.pop(task), self._fetch(task)) for task in ready]

    def cancel(self) -> None:
        """Cancel the tasks still running."""
        for task in self._under_way:
            self._ray.cancel(task, force=True)
        self._under_way.clear()

    def _count(self) -> int:
        cpus = count_cpus(self._ray)
        return cpus if self._most is None else min(cpus, self._most)

    def _fetch(self, task: Any) -> list[PointResult] | Lost:
        errors = self._ray.exceptions
        try:
            found: list[PointResult] = self._ray.get(task)
        except errors.RayTaskError as error:
            if isinstance(cause := getattr(error, "cause", None), OtherSoftware):
                raise cause from None
            raise SweepFailed(f"ray: {describe_trouble(error)}; is bdfl installed on every node?") from error
        except errors.RayError:  # worker, node or object lost
            return Lost()
        return found
