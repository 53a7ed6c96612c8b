"""Failing disks: a node ends with a one-line error, its store is intact, and it continues after a restart."""

import time
from collections.abc import Sequence

from bdfl.localnet.network import OUTPUT_FILE
from bdfl.localnet.processes import node_folder
from campaigns.live_faults.failing_store import FAULT_VARIABLE, FaultKind
from campaigns.live_faults.harness import Arena
from campaigns.live_faults.kills import judge_left
from campaigns.live_faults.results import Figures, LiveBreach, judge_gap

FAILED_EXIT = 1
REASONS = {FaultKind.FULL: "No space left on device", FaultKind.READ_ONLY: "Read-only file system"}
_LATEST_WRITE = 12


def play_disks(arena: Arena, faults: Sequence[FaultKind] = tuple(REASONS)) -> Figures:
    """Fill up a node's disk, then make one read-only, each from one of the node's first writes."""
    breaches: list[LiveBreach] = []
    gap_s = calm_gap_s = 0.0
    for fault in faults:
        victim = arena.random.choice(arena.numbers)
        rest = arena.others(victim)
        calm_s = time.monotonic()
        arena.wait_for_blocks(2)
        began_s = time.monotonic()
        calm_gap_s = max(calm_gap_s, arena.worst_gap_s(rest, calm_s, began_s))
        arena.end(victim)
        point = f"batch:{arena.random.randint(1, _LATEST_WRITE)}:{fault.value}"
        arena.restart(victim, {FAULT_VARIABLE: point}, may_end=True)
        arena.wait_for_end(victim)
        breaches += _judge_end(arena, victim, REASONS[fault]) + judge_left(arena, victim)
        arena.restart(victim)
        arena.wait_for_return(victim)
        gap_s = max(gap_s, arena.worst_gap_s(rest, began_s, time.monotonic()))
    deadline_s = arena.deadline_s()
    return Figures(
        num_trials=len(faults),
        gap_s=gap_s,
        calm_gap_s=calm_gap_s,
        deadline_s=deadline_s,
        breaches=(*breaches, *judge_gap(gap_s, calm_gap_s, deadline_s)),
    )


def _judge_end(arena: Arena, number: int, reason: str) -> list[LiveBreach]:
    child, words = arena.node(number), arena.node(number).last_words()
    arena.tell(f"node {number} ended with exit code {child.exit_code}: {words}")
    breaches = []
    if child.exit_code != FAILED_EXIT:
        what = f"node {number} ended with exit code {child.exit_code}, {FAILED_EXIT} expected"
        breaches.append(LiveBreach(law="clear stop", what=what, moment_s=arena.moment_s))
    output = (node_folder(arena.folder, number) / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace")
    if not words.startswith("error: ") or reason not in words or "Traceback" in output:
        what = f"node {number} said {words!r}, one line with {reason!r} expected"
        breaches.append(LiveBreach(law="clear stop", what=what, moment_s=arena.moment_s))
    return breaches
