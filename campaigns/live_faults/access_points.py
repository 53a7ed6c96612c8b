"""Killed access points: nodes behind one fail over to another, or reconnect when it is back."""

import os
import signal
import time
from contextlib import suppress

from campaigns.live_faults.harness import Arena
from campaigns.live_faults.results import Figures

NUM_ACCESS_POINTS = 2
_NONE_S = 3.0  # without any access point


def play_access_points(arena: Arena) -> Figures:
    """Kill both in turn; blocks go on without the first, and again once one is back."""
    first, second = arena.random.sample(range(NUM_ACCESS_POINTS), NUM_ACCESS_POINTS)
    began_s = time.monotonic()
    _kill(arena, first)
    arena.wait_for_blocks(2)
    moved_s = time.monotonic() - began_s
    _kill(arena, second)
    time.sleep(_NONE_S)
    began_s = time.monotonic()
    arena.tell(f"start of access point {first}")
    arena.network.access_points[first].restart()
    arena.wait_for_blocks(2)
    back_s = time.monotonic() - began_s
    arena.tell(f"start of access point {second}")
    arena.network.access_points[second].restart()
    arena.wait_for_blocks(2)
    note = f"2 blocks at all nodes {moved_s:.1f} s after the first was killed, {back_s:.1f} s after one was back"
    return Figures(num_trials=NUM_ACCESS_POINTS, note=note)


def _kill(arena: Arena, number: int) -> None:
    arena.tell(f"kill -9 of access point {number}")
    child = arena.network.access_points[number]
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    child.process.wait()
