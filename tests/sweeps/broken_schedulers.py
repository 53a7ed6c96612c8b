"""Schedulers that fail in their ways on the points with seed 1, and are `random` on all others."""

import os
import time
from pathlib import Path

from bdfl.scheduling.baselines import random_scheduler


def raising(problem):
    if problem.seed == 1:
        raise ValueError("seed 1\nis not for me")
    return random_scheduler(problem)


def raising_at_first(problem):
    """Fails once: the file that says so is named by the environment."""
    marker = Path(os.environ["BDFL_TEST_MARKER"])
    if problem.seed == 1 and not marker.exists():
        marker.touch()
        raise ValueError("not yet")
    return random_scheduler(problem)


def ending(problem):
    """Takes its process with it."""
    if problem.seed == 1:
        os._exit(3)
    return random_scheduler(problem)


def holding(problem, *, place, node):
    """Never comes back on that node of a Ray cluster; says so with a file `held`, for which other nodes wait."""
    import ray

    if ray.get_runtime_context().get_node_id() == node:
        (place / "held").touch()
        time.sleep(1000)
    while not (place / "held").exists():
        time.sleep(0.01)
    return random_scheduler(problem)
