"""SIGKILL of any node at any moment, including during writes, followed by a restart.

Half of the restarts are armed: the node kills itself shortly after one of its first writes of some kind begins. Its
store is then compared with the blocks it had logged.
"""

import time

from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import StoreError
from bdfl.localnet.processes import node_folder
from bdfl.node.settings import CHAIN_FOLDER
from campaigns.live_faults.failing_store import FAULT_VARIABLE
from campaigns.live_faults.harness import Arena, Left
from campaigns.live_faults.results import Figures, LiveBreach

# Writes of every node in every round, whether it trains or not.
WRITES = ("append", "batch", "put_blob", "put_candidate", "put_progress", "put_report", "put_vote")
_LATEST_WRITE = 3  # counted from a start; for writes made once a round, that many rounds
_LONGEST_WAIT_S = 3.0  # before the next kill
_LONGEST_ABSENCE_S = 3.0  # before the next restart


def play_kills(arena: Arena, num_kills: int) -> Figures:
    """Kill so many times in sequence: each node is back, or armed, before the next kill."""
    draw, breaches, num_armed = arena.random, list[LiveBreach](), 0
    armed: int | None = None
    for count in range(num_kills):
        if armed is None:
            victim = draw.choice(arena.numbers)
            time.sleep(draw.uniform(0.0, _LONGEST_WAIT_S))
            arena.kill(victim)
        else:
            victim, num_armed = armed, num_armed + 1
            arena.wait_for_end(victim)
            arena.tell(f"node {victim} was killed while it wrote")
        breaches += judge_left(arena, victim)
        time.sleep(draw.uniform(0.0, _LONGEST_ABSENCE_S))
        fault = f"{draw.choice(WRITES)}:{draw.randint(1, _LATEST_WRITE)}"
        if draw.random() < 0.5 and count + 1 < num_kills:
            armed = victim
            arena.restart(victim, {FAULT_VARIABLE: fault}, may_end=True)
        else:
            armed = None
            arena.restart(victim)
            arena.wait_for_return(victim)
    return Figures(num_trials=num_kills, num_during_writes=num_armed, breaches=tuple(breaches))


def judge_left(arena: Arena, number: int) -> list[LiveBreach]:
    """Check that the store of an ended node opens and has every block it had logged."""
    moment_s, seen = arena.moment_s, arena.diary(number).blocks
    try:
        with ChainStore.open(node_folder(arena.folder, number) / CHAIN_FOLDER, read_only=True) as store:
            height = store.height
            arena.left.append(Left(number, height, store.block(height).digest if height else b"", moment_s))
            is_there = not seen or (
                height >= seen[-1].height and store.block(seen[-1].height).digest.hex().startswith(seen[-1].digest)
            )
    except StoreError as error:
        return [LiveBreach(law="store", what=f"node {number}: {error}", moment_s=moment_s)]
    if is_there:
        return []
    what = f"node {number} has {height} blocks, and had said to have block {seen[-1].height} ({seen[-1].digest})"
    return [LiveBreach(law="memory", what=what, moment_s=moment_s)]
