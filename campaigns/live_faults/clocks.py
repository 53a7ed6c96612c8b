"""Wrong wall clocks: set back an hour at run time, or an hour ahead from the start.

Only Python's view of the wall clock is shifted, not that of TLS. The second fault covers TLS: the node's certificate
starts an hour in the future of its peers, as if their clocks had been set back.
"""

import time
from collections.abc import Sequence
from datetime import datetime

from campaigns.live_faults.harness import Arena
from campaigns.live_faults.results import Figures, LiveBreach
from campaigns.live_faults.wall_clock import CLOCK_VARIABLE, ClockShift

HOUR_S = 3600.0
BACK = ClockShift(-HOUR_S, after_s=8.0)  # after the start of the process
AHEAD = ClockShift(HOUR_S)
_TOLERANCE_S = 60.0


def play_clocks(arena: Arena, num_blocks: int = 5, shifts: Sequence[ClockShift] = (BACK, AHEAD)) -> Figures:
    """Shift the clocks of different nodes in turn; then all make so many blocks."""
    chosen = arena.random.sample(list(arena.numbers), len(shifts))
    for number, shift in zip(chosen, shifts, strict=True):
        arena.end(number)
        arena.restart(number, {CLOCK_VARIABLE: f"{shift.by_s}@{shift.after_s}"})
        arena.wait_for_return(number)
    is_set_s = time.monotonic() + max(shift.after_s for shift in shifts)
    arena.wait_for(lambda: time.monotonic() > is_set_s, "the clock to be set")
    arena.wait_for_blocks(num_blocks)
    breaches = [
        breach
        for number, shift in zip(chosen, shifts, strict=True)
        for breach in _judge_clock(arena, number, shift.by_s)
    ]
    return Figures(num_trials=len(shifts), breaches=tuple(breaches))


def _judge_clock(arena: Arena, number: int, by_s: float) -> list[LiveBreach]:
    """Check in its log that the node had the shifted clock: otherwise nothing was tested."""
    clock_s, wall = arena.diary(number).times[-1]
    found_s = (datetime.fromisoformat(wall).timestamp() - clock_s) - (time.time() - time.monotonic())
    arena.tell(f"the wall clock of node {number} is {found_s:.0f} s off")
    if abs(found_s - by_s) < _TOLERANCE_S:
        return []
    what = f"the wall clock of node {number} is {found_s:.0f} s off, {by_s:.0f} expected"
    return [LiveBreach(law="tried", what=what, moment_s=arena.moment_s)]
