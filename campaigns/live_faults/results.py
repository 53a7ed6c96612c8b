"""What comes out of trouble: figures, and every law that was broken."""

from enum import StrEnum

import msgspec

from bdfl.scenario import QuorumRule


class TroubleKind(StrEnum):
    """What is done to a network of real processes."""

    KILL = "kill"
    DEAD = "dead"
    STOP = "stop"
    ACCESS_POINT = "access-point"
    DISK = "disk"
    CLOCK = "clock"
    SLOW = "slow"


DESCRIPTIONS = {
    TroubleKind.KILL: "kill -9 of any node at any moment, also while it writes, and a new start",
    TroubleKind.DEAD: "as many nodes as a quorum can do without are killed for good",
    TroubleKind.STOP: "a node stands still (SIGSTOP) and goes on",
    TroubleKind.ACCESS_POINT: "access points are killed, one and then all, and one comes back",
    TroubleKind.DISK: "a disk is full, then one is read-only; a new start",
    TroubleKind.CLOCK: "a wall clock is set back an hour, another is an hour ahead",
    TroubleKind.SLOW: "100 ms and 2 % loss each way between two halves of the nodes",
}


class LiveBreach(msgspec.Struct, frozen=True, kw_only=True):
    """A law that was broken."""

    law: str
    what: str
    moment_s: float | None = None  # since the network began

    def __str__(self) -> str:
        when = "" if self.moment_s is None else f" (at {self.moment_s:.1f} s)"
        return f"{self.law}: {self.what}{when}"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured while a network was in trouble."""

    num_trials: int  # kills, stops and so on
    num_during_writes: int = 0  # of them
    gap_s: float | None = None  # the longest that a node that nothing was done to had no new block
    calm_gap_s: float | None = None  # the same before
    deadline_s: float | None = None  # by how much the one may exceed the other
    block_s: float | None = None  # mean time from block to block meanwhile
    note: str = ""
    breaches: tuple[LiveBreach, ...] = ()


class LiveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One network, what was done to it and what became of it."""

    kind: TroubleKind
    seed: int
    num_nodes: int
    quorum: QuorumRule
    seconds: float
    height: int  # of the highest block
    figures: Figures
    num_returns: int  # starts after the first that could be judged
    return_rounds: int | None  # the most it took a node to vote again, after the round under way
    return_s: float | None  # likewise, in seconds from when it began to listen
    folder: str
    breaches: tuple[LiveBreach, ...]

    @property
    def is_good(self) -> bool:
        return not self.breaches


def judge_gap(figures_gap_s: float, calm_gap_s: float, deadline_s: float) -> tuple[LiveBreach, ...]:
    """Nobody waits longer for a silent node than the deadline of a round, beyond what a round takes anyway."""
    if figures_gap_s <= calm_gap_s + deadline_s:
        return ()
    what = f"{figures_gap_s:.1f} s without a block, at most {calm_gap_s:.1f} + {deadline_s:.1f} s expected"
    return (LiveBreach(law="deadline", what=what),)
