"""What a node says of itself at one moment: the same for metrics, health, status pages and terminal views."""

from collections.abc import Mapping

import msgspec


class LastBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The newest block that a node has."""

    height: int
    digest: str
    proposer: int
    attempt: int
    age_s: float | None  # since it was committed here; none: before this start
    round_s: float | None  # from the block before it; none: not known
    is_empty: bool
    num_updates: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment."""

    number: int
    name: str
    chain: str  # its id
    version: str
    pid: int
    up_s: float
    life: int  # the number of this start, above those of all before it
    height: int
    last_height: int | None  # after which all is done
    phase: str
    attempt: int
    is_training: bool
    is_mining: bool
    present: tuple[int, ...]  # other members that are there
    num_members: int
    queues: Mapping[str, int]  # lengths
    counters: Mapping[str, int]  # of the link and the node, by name
    refused: Mapping[str, int]  # what was dropped, by reason
    last_block: LastBlock | None
    accuracy: float | None  # of the newest model, where somebody evaluates
    deadline_s: float  # a block should take no longer than this
    memory_bytes: int
    num_threads: int
    store_bytes: int
    training_s: float  # in this life
    mining_s: float

    @property
    def is_done(self) -> bool:
        return self.last_height is not None and self.height >= self.last_height


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node does what it should, and if not, why."""

    is_healthy: bool
    height: int
    phase: str
    peers: int
    last_block_age_s: float | None
    why: str | None


MAX_DEADLINES = 10.0  # without a block, after which something is wrong


def judge_health(snapshot: Snapshot) -> Health:
    """A node is healthy while blocks come, or while all is done."""
    last = snapshot.last_block
    age_s = snapshot.up_s if last is None or last.age_s is None else last.age_s
    limit_s = MAX_DEADLINES * snapshot.deadline_s
    why = None
    if not snapshot.is_done and age_s > limit_s:
        others = f"{len(snapshot.present)} of {snapshot.num_members - 1} others are there"
        why = f"no block for {age_s:.0f} s, at most {limit_s:.0f} s expected; {others}"
    return Health(
        is_healthy=why is None,
        height=snapshot.height,
        phase=snapshot.phase,
        peers=len(snapshot.present),
        last_block_age_s=None if last is None else last.age_s,
        why=why,
    )
