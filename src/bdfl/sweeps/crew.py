"""Executors of a sweep's batches: this process, or processes of this machine. Ray's executor is in `ray_crew`.

An executor takes batches and returns their results in any order. The choice of executor never changes a result.
"""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from typing import Protocol

from bdfl.experiment.sweep import InvalidSweep
from bdfl.process_pool import count_cores, open_process_pool
from bdfl.sweeps.computing import Batch, PointResult, compute_batch

AHEAD = 2  # batches per worker: one running, one queued


class Lost:
    """In place of results: the worker of the batch died."""


Answer = tuple[Batch, list[PointResult] | Lost]


class Crew(Protocol):
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
def open_local_crew(workers: int | None) -> Iterator[Crew]:
    """Start `workers` processes (default: one per core) of one thread each; a single worker is this process."""
    if workers is not None and workers < 1:
        raise InvalidSweep(f"workers: {workers} given, at least 1 is needed")
    num_workers = workers or count_cores()
    if num_workers == 1:
        yield _Here()
        return
    with ExitStack() as stack:
        crew = _Pool(num_workers)
        stack.push(crew.leave)
        yield crew


class _Here:
    """Executor in this process, one batch after the other."""

    name = "local"
    num_workers = 1
    capacity = 1
    is_lost_together = True

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def submit(self, batch: Batch) -> None:
        self._batches.append(batch)

    def wait(self) -> list[Answer]:
        batch = self._batches.pop(0)
        return [(batch, compute_batch(batch))]


class _Pool:
    """Owns a process pool; if one process dies, the pool is restarted."""

    name = "local"
    is_lost_together = True

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.capacity = AHEAD * num_workers
        self._under_way: dict[Future[list[PointResult]], Batch] = {}
        self._open()

    def _open(self) -> None:
        self._stack = ExitStack()
        self._executor: ProcessPoolExecutor = self._stack.enter_context(open_process_pool(self.num_workers, threads=1))

    def leave(self, *exception: object) -> None:
        """End the processes; at once on an exception."""
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def submit(self, batch: Batch) -> None:
        try:
            future = self._executor.submit(compute_batch, batch)
        except BrokenProcessPool as error:  # detected early; reported by `wait`
            future = Future()
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
