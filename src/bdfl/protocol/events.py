"""Events, the inputs of a node, and effects, its outputs, as plain values.

A driver supplies events and carries out effects, on a real clock or a virtual one. Effects are carried out in order;
those after a `Store` or a `Commit` wait until that is durable.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bdfl.encoding import Record, Whole
from bdfl.ledger.block import (
    Block,
    Certificate,
    Conditions,
    Header,
    MembershipChange,
    Nonce,
    OwnStatement,
    Receipt,
)
from bdfl.protocol.messages import Message


class Timer(StrEnum):
    """The timers of a node."""

    DEADLINE = "deadline"  # the end of a round's collecting
    BACK_OFF = "back-off"  # from then on a round may end with an idle block
    ATTEMPT = "attempt"  # the end of a consensus attempt
    LEADER = "leader"  # the end of waiting for the prevote of an attempt's leader
    RESEND = "resend"  # the next re-broadcast
    REVIEW = "review"  # the end of waiting for a late member, or for its block


# Events; those with a tag are written into a node's log as they are.


class Started(Record, frozen=True, tag="started"):
    """The node starts, or restarts, from the state it recovered."""


class MessageArrived(Record, frozen=True, tag="message"):
    message: Message


class BlobArrived(Record, frozen=True):
    """A blob was fetched, from `holder`; unless it is still wanted, it is ignored."""

    holder: int
    data: bytes


class PeersAppeared(Record, frozen=True, tag="peers"):
    """Members became reachable, which may have missed earlier messages."""


class TimerFired(Record, frozen=True, tag="timer"):
    """A timer fired; if its `height` or `attempt` has passed, it is ignored."""

    timer: Timer
    height: Whole
    attempt: Whole


class TrainingFinished(Record, frozen=True):
    """Local training of round `height` on `parent` has ended; no model if it diverged."""

    height: int
    parent: bytes
    model: bytes | None  # safetensors
    epsilon_micro: int = 0  # spent in all rounds so far; 0: training is not private


class Measured(Record, frozen=True, tag="measured"):
    """The node's conditions in round `round`, and its cost of the round before the current one, if known."""

    round: Whole
    conditions: Conditions
    receipt: Receipt | None


class NonceFound(Record, frozen=True, tag="nonce"):
    """The miner found a nonce for a header."""

    header: Header
    nonce: Nonce


class ChangeOffered(Record, frozen=True, tag="change"):
    """The node's operator submits a change of membership that a quorum signed, to be gossiped and put into a block.

    It is held until a block includes it or it expires, but not stored: submit it again after a restart if need be.
    """

    change: MembershipChange


Event: TypeAlias = (
    Started
    | MessageArrived
    | BlobArrived
    | PeersAppeared
    | TimerFired
    | TrainingFinished
    | Measured
    | NonceFound
    | ChangeOffered
)


# Stored values


@dataclass(frozen=True)
class KeptBlob:
    digest: bytes
    data: bytes


@dataclass(frozen=True)
class KeptStatement:
    """The node's own vote, update or report of a height; or a candidate block that it made or may vote for.

    It never signs another update.
    """

    height: int
    statement: OwnStatement


@dataclass(frozen=True)
class KeptProgress:
    """The node's attempt at a height, and the prevotes behind its lock (all for one block)."""

    height: int
    attempt: int
    lock: Certificate  # empty: not locked


Kept: TypeAlias = KeptBlob | KeptStatement | KeptProgress


# Effects


@dataclass(frozen=True)
class Send:
    """Send a message to one member, or broadcast it to all others."""

    to: int | None
    message: Message


@dataclass(frozen=True)
class FetchBlob:
    """Fetch the blob of this digest from a member; answer with `BlobArrived`, unless it fails or the height ends."""

    blob: bytes
    holder: int


@dataclass(frozen=True)
class ServeDecided:
    """Answer `to` with the `Decided` block of this height."""

    to: int
    height: int


@dataclass(frozen=True)
class Train:
    """Train round `height` from the model of that digest; answer with `TrainingFinished`."""

    height: int
    parent: bytes
    model: bytes


@dataclass(frozen=True)
class Measure:
    """Measure the conditions of round `round`; answer with `Measured`, unless they are unknown."""

    round: int


@dataclass(frozen=True)
class Mine:
    """Search a nonce for this header, replacing any earlier search; answer with `NonceFound`."""

    header: Header


@dataclass(frozen=True)
class StopMining:
    """Stop searching a nonce."""


@dataclass(frozen=True)
class SetTimer:
    """Set a timer, replacing an earlier one of the same kind."""

    timer: Timer
    height: int
    attempt: int
    delay_ns: int


@dataclass(frozen=True)
class Store:
    kept: Kept


@dataclass(frozen=True)
class Commit:
    """Append the block durably, with its certificate; its model and the blobs it references were stored before."""

    block: Block
    certificate: Certificate
    is_trusted: bool = False  # its model was not recomputed, as the updates are pruned: its certificate is trusted


@dataclass(frozen=True)
class Refused:
    """Report a message that was rejected and changed nothing."""

    sender: int | None
    reason: str


Effect: TypeAlias = (
    Send | FetchBlob | ServeDecided | Train | Measure | Mine | StopMining | SetTimer | Store | Commit | Refused
)
