"""What happens to a node (events) and what it wants done (effects). Plain values; a driver gives the one and does the
other, on a real clock or a virtual one.

Effects are carried out in their order. What follows a `Store` or a `Commit` waits until that is durable.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bdfl.ledger.block import (
    Block,
    Certificate,
    Conditions,
    Header,
    MembershipChange,
    Receipt,
    SignedReport,
    SignedUpdate,
    SignedVote,
)
from bdfl.protocol.messages import Message


class Timer(StrEnum):
    """What a node waits for."""

    DEADLINE = "deadline"  # the end of a round's collecting
    BACK_OFF = "back-off"  # from when on a round may end with an idle block
    ATTEMPT = "attempt"  # the end of an attempt to agree
    RESEND = "resend"  # the next time everything is said again
    REVIEW = "review"  # the end of waiting for a late member, or for its block


# Events


@dataclass(frozen=True)
class Started:
    """The node begins, or begins again after a stop, from the state it recovered."""


@dataclass(frozen=True)
class MessageArrived:
    message: Message


@dataclass(frozen=True)
class TimerFired:
    """A timer that was set; `height` and `attempt` say for when, and a timer of the past is ignored."""

    timer: Timer
    height: int
    attempt: int


@dataclass(frozen=True)
class TrainingFinished:
    """Local training of round `height` on `parent` is over; no model where it diverged."""

    height: int
    parent: bytes
    model: bytes | None  # safetensors
    epsilon_micro: int = 0  # what the node has then spent in all rounds; 0: training is not private


@dataclass(frozen=True)
class Measured:
    """The node's conditions in round `round`, and what the round before the current one cost it, where known."""

    round: int
    conditions: Conditions
    receipt: Receipt | None


@dataclass(frozen=True)
class NonceFound:
    """A nonce for a header that was to be mined."""

    header: Header
    nonce: bytes


@dataclass(frozen=True)
class ChangeOffered:
    """The node's operator gives a change of membership that a quorum signed, to be told to all and put into a block.

    It is held until a block has it or it expires, but not kept: after a restart it may have to be offered again.
    """

    change: MembershipChange


Event: TypeAlias = Started | MessageArrived | TimerFired | TrainingFinished | Measured | NonceFound | ChangeOffered


# What a node keeps


@dataclass(frozen=True)
class KeptBlob:
    digest: bytes
    data: bytes


@dataclass(frozen=True)
class KeptUpdate:
    """The node's own update of a height: it never signs another."""

    height: int
    update: SignedUpdate


@dataclass(frozen=True)
class KeptReport:
    """The node's own report of a height."""

    height: int
    report: SignedReport


@dataclass(frozen=True)
class KeptBlock:
    """A candidate block of a height that the node made or may vote for."""

    block: Block


@dataclass(frozen=True)
class KeptVote:
    """The node's own vote."""

    height: int
    vote: SignedVote


@dataclass(frozen=True)
class KeptProgress:
    """How far the node is in agreeing on a height, and the prevotes behind its lock (all for one block)."""

    height: int
    attempt: int
    lock: Certificate  # empty: not locked


Kept: TypeAlias = KeptBlob | KeptUpdate | KeptReport | KeptBlock | KeptVote | KeptProgress


# Effects


@dataclass(frozen=True)
class Send:
    """A message to one member, or to all others."""

    to: int | None
    message: Message


@dataclass(frozen=True)
class ServeBlob:
    """Answer `to` with a `Blob` of this digest, if it is kept."""

    to: int
    blob: bytes


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
    """Find the conditions of round `round`; answer with `Measured`, or not if nothing is known of that round."""

    round: int


@dataclass(frozen=True)
class Mine:
    """Search a nonce for this header, instead of any before; answer with `NonceFound`."""

    header: Header


@dataclass(frozen=True)
class StopMining:
    """Search no more."""


@dataclass(frozen=True)
class SetTimer:
    """Fire after so long; one of the same kind set before is forgotten."""

    timer: Timer
    height: int
    attempt: int
    delay_ns: int


@dataclass(frozen=True)
class Store:
    kept: Kept


@dataclass(frozen=True)
class Commit:
    """Append the block for good, with its certificate; the blobs it rests on and its model were stored before."""

    block: Block
    certificate: Certificate
    is_trusted: bool = False  # its model was not recomputed: the updates are gone, and its certificate has to do


@dataclass(frozen=True)
class Refused:
    """Something that arrived was not what it should be, and changed nothing."""

    sender: int | None
    reason: str


Effect: TypeAlias = (
    Send | ServeBlob | ServeDecided | Train | Measure | Mine | StopMining | SetTimer | Store | Commit | Refused
)
