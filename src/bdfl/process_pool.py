"""Processes for pure work: started together, deaf to Ctrl-C (it is for their starter), gone when the starter is."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

# How many threads numeric libraries use, read once when they are imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def count_cores() -> int:
    """CPUs this process may use: those it may run on, and no more than its control group's quota (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota_us, period_us = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, -(-int(quota_us) // int(period_us))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


@contextmanager
def open_process_pool(
    workers: int,
    *,
    threads: int | None = None,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[object, ...] = (),
) -> Iterator[ProcessPoolExecutor]:
    """As many spawned processes as `workers` says; they end with this block, at once if it is left by an exception.

    Numeric libraries use `threads` threads in each, unless the environment already says how many. `initializer` is
    called in each before its first task. Functions, tasks and results travel between processes: a function must be
    one of a module.
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
    """Ctrl-C waits until the end of the block; processes started inside never see it: it is for this one to handle."""
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
    """What processes started inside find in their environment: libraries read it once, when they are imported."""
    added = {} if threads is None else {name: str(threads) for name in THREAD_VARIABLES if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[object, ...]) -> None:
    """First thing in a worker: Ctrl-C is for its parent alone, and without its parent it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # in the middle of whatever is being computed: nobody waits for it any more


def _get_ready() -> None:
    """Nothing: by then the worker has started."""
