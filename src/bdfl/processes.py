"""A process pool whose workers start together, ignore SIGINT and exit when the parent dies."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

# Number of threads of numeric libraries, read once when they are imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def count_cores() -> int:
    """CPUs this process may use: its CPU affinity, limited by the quota of its control group (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota_us, period_us = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, -(-int(quota_us) // int(period_us))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one, so that idle connections do not use them up."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses an infinite one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def open_process_pool(
    workers: int,
    *,
    threads: int | None = None,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[object, ...] = (),
) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of `workers` spawned processes; they end with the block, at once if it is left by an exception.

    Numeric libraries use `threads` threads in each, unless the environment already sets the number. `initializer` is
    called in each before its first task. Functions, tasks and results are pickled, so functions must be top-level.
    """
    executor = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(initializer, initargs)
    )
    others = active_children()
    try:
        with _interrupts_held(), _environment(threads):
            for _ in range(workers):
                executor.submit(_get_ready)  # a first task for each, so that all start now
        yield executor
    except BaseException:
        for child in active_children():
            if child not in others:
                child.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT inside the context; processes started there inherit the mask and never receive it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def _environment(threads: int | None) -> Iterator[None]:
    """Set the thread variables for processes started inside: libraries read them once, when imported."""
    added = {} if threads is None else {name: str(threads) for name in THREAD_VARIABLES if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[object, ...]) -> None:
    """Set up a worker: it ignores SIGINT, which its parent handles, and exits when its parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # at once: no process waits for the result


def _get_ready() -> None:
    """Do nothing: a first task makes the executor start the worker."""
