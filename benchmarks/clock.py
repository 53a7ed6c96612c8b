"""Time, memory and growth, and what to compare them with."""

import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np


def best_time_s(action: Callable[[], object], repeats: int) -> float:
    """Shortest of `repeats` wall times (s): what the machine's other work disturbs least."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def pass_time_s(num_clients: int, repeats: int) -> float:
    """Time (s) of one pass over the data: a cube root of every client with the arithmetic around it.

    The least that one look at all clients costs on this machine, so that times can be told as passes.
    """
    ceiling, loss, spare_s = (np.random.default_rng(0).uniform(1.0, 2.0, num_clients) for _ in range(3))
    return best_time_s(lambda: float(np.cbrt(np.maximum(ceiling - loss / (spare_s * spare_s), 0.0)).sum()), repeats)


def peak_bytes(action: Callable[[], object]) -> int:
    """Most memory (bytes) that Python and numpy held for `action` at any one time, beyond what was held before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Exponent p of value ~ size^p: least squares in logarithms. NaN for fewer than two sizes."""
    if len(set(sizes)) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
