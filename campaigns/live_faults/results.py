"""Results of fault injection: measurements and violated invariants."""

from enum import StrEnum

import msgspec

from bdfl.scenario import QuorumRule


class TroubleKind(StrEnum):
    """Fault injected into a network of real processes."""

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
    """A violated invariant."""

    law: str
    what: str
    moment_s: float | None = None  # since the start of the network

    def __str__(self) -> str:
        when = "" if self.moment_s is None else f" (at {self.moment_s:.1f} s)"
        return f"{self.law}: {self.what}{when}"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements under faults."""

    num_trials: int  # kills, stops and so on
    num_during_writes: int = 0  # during a write
    gap_s: float | None = None  # longest time without a new block of an untouched node
    calm_gap_s: float | None = None  # the same before the fault
    deadline_s: float | None = None  # allowed difference between the two
    block_s: float | None = None  # mean time between blocks under the fault
    note: str = ""
    breaches: tuple[LiveBreach, ...] = ()


class LiveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One network, its fault and its results."""

    kind: TroubleKind
    seed: int
    num_nodes: int
    quorum: QuorumRule
    seconds: float
    height: int  # the greatest
    figures: Figures
    num_returns: int  # restarts that could be judged
    return_rounds: int | None  # most rounds until a restarted node voted, not counting the one in progress
    return_s: float | None  # likewise, in seconds from the start of its participation
    folder: str
    breaches: tuple[LiveBreach, ...]

    @property
    def is_good(self) -> bool:
        return not self.breaches


def judge_gap(figures_gap_s: float, calm_gap_s: float, deadline_s: float) -> tuple[LiveBreach, ...]:
    """Check that silent nodes delay a block by at most the deadline of a round."""
    if figures_gap_s <= calm_gap_s + deadline_s:
        return ()
    what = f"{figures_gap_s:.1f} s without a block, at most {calm_gap_s:.1f} + {deadline_s:.1f} s expected"
    return (LiveBreach(law="deadline", what=what),)
