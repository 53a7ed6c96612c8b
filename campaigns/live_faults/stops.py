"""Silent nodes: killed for good, or frozen for a while. The others must go on."""

import time

from campaigns.live_faults.harness import Arena
from campaigns.live_faults.results import Figures, judge_gap

_DEAD_BLOCKS = 10
_CALM_BLOCKS = 3


def play_dead(arena: Arena, num_blocks: int = _DEAD_BLOCKS) -> Figures:
    """Kill as many nodes at once as the quorum tolerates; the rest make so many blocks."""
    num_dead = arena.setting.num_spare
    dead = arena.random.sample(list(arena.numbers), num_dead)
    rest = arena.others(*dead)
    calm_gap_s = _wait_calmly(arena, rest)
    began_s, before = time.monotonic(), arena.height_of(rest)
    for number in dead:
        arena.kill(number)
    arena.wait_for_blocks(num_blocks, rest)
    return _judge_rest(arena, rest, calm_gap_s, began_s, before, num_dead, f"{num_dead} of {len(arena.numbers)}")


def play_stop(arena: Arena, seconds: float) -> Figures:
    """Freeze one node for so many seconds; it resumes afterwards."""
    victim = arena.random.choice(arena.numbers)
    rest = arena.others(victim)
    calm_gap_s = _wait_calmly(arena, rest)
    began_s, before = time.monotonic(), arena.height_of(rest)
    with arena.frozen(victim):
        time.sleep(seconds)
        figures = _judge_rest(arena, rest, calm_gap_s, began_s, before, 1, f"{seconds:g} s")
    arena.wait_for_blocks(2)
    return figures


def _wait_calmly(arena: Arena, numbers: list[int]) -> float:
    """Return the longest time without a block of these nodes over a few undisturbed blocks."""
    began_s = time.monotonic()
    arena.wait_for_blocks(_CALM_BLOCKS)
    return arena.worst_gap_s(numbers, began_s, time.monotonic())


def _judge_rest(
    arena: Arena, rest: list[int], calm_gap_s: float, began_s: float, before: int, num_trials: int, note: str
) -> Figures:
    """Compare the longest time without a block of the untouched nodes with that before the fault."""
    now_s = time.monotonic()
    num_blocks = arena.height_of(rest) - before
    gap_s = arena.worst_gap_s(rest, began_s, now_s)
    deadline_s = arena.deadline_s()
    return Figures(
        num_trials=num_trials,
        gap_s=gap_s,
        calm_gap_s=calm_gap_s,
        deadline_s=deadline_s,
        block_s=(now_s - began_s) / num_blocks if num_blocks else None,
        note=note,
        breaches=judge_gap(gap_s, calm_gap_s, deadline_s),
    )
