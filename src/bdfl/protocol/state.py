"""The state of a node between two events, as a frozen value, and the table of its phase transitions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from bdfl.identity import Signer
from bdfl.ledger.block import (
    Block,
    Body,
    Certificate,
    Evidence,
    Header,
    Kind,
    MembershipChange,
    SignedReport,
    SignedUpdate,
    SignedVote,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.protocol.events import KeptProgress
from bdfl.protocol.messages import Message


class Phase(StrEnum):
    """The phase of a node at the height it works on."""

    COLLECTING = "collecting"  # updates and reports arrive; training, if scheduled
    MINING = "mining"  # collecting is over: mining, or waiting for another member's block
    VOTING = "voting"  # a prevote of this attempt is cast
    DONE = "done"  # the last height is decided, or the last at which this node is a member


# Allowed transitions from phase to phase, and their causes: any other is a bug.
MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.COLLECTING: {
        Phase.MINING: "all updates and reports are in, or the deadline is over",
        Phase.VOTING: "a votable block is here",
        Phase.COLLECTING: "somebody's decided block arrived: next height",
        Phase.DONE: "the last block is decided",
    },
    Phase.MINING: {
        Phase.VOTING: "a votable block is found or arrived, or the locked one is at hand",
        Phase.COLLECTING: "the block is decided: next height",
        Phase.DONE: "the last block is decided",
    },
    Phase.VOTING: {
        Phase.MINING: "next attempt",
        Phase.COLLECTING: "the block is decided: next height",
        Phase.DONE: "the last block is decided",
    },
    Phase.DONE: {},
}


@dataclass(frozen=True)
class Timing:
    """Timeouts of a node."""

    grace_ns: int  # for updates and reports, beyond twice the modelled exchange
    attempt_ns: int  # attempt a lasts this times 1 + a / 2, from when a block is known
    resend_ns: int  # between two re-broadcasts
    time_scale: float = 1.0  # actual over modelled durations in a live network


@dataclass(frozen=True, eq=False)
class Context:
    """The constants of a node: its identity, settings and cache."""

    number: int
    signer: Signer
    timing: Timing
    cache: VerificationCache
    last_height: int | None = None  # the node is done after this block; none: never
    is_alone: bool = False  # only one thread steps from this node's states, so that they may share maps
    keep_blocks: int = 0  # newest blocks whose updates every member keeps; 0: all


def find_end(context: Context, chain: ChainState) -> str:
    """The reason that a node is done with this chain; empty: it is not."""
    if chain.is_over(context.number):
        return f"member {context.number} was removed: block {chain.last_height(context.number)} was its last"
    if context.last_height is not None and chain.height >= context.last_height:
        return f"block {context.last_height}, the last, is decided"
    return ""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A block of the height worked on that keeps every rule that could be checked so far."""

    block: Block
    digest: bytes
    is_valid: bool  # its model was recomputed
    complaint: str | None  # why its schedule is not votable; none: it is


@dataclass(frozen=True, eq=False)
class Mined:
    """A node's own block being mined: only its nonce is missing."""

    header: Header
    body: Body


@dataclass(frozen=True)
class Lock:
    """The block a node is locked on, and the attempt and prevotes of that lock."""

    attempt: int
    block: bytes
    prevotes: Certificate


@dataclass(frozen=True)
class Decision:
    """A block that other nodes decided; its blobs may be missing here."""

    block: bytes
    certificate: Certificate
    teller: int  # sender, which may have later blocks


@dataclass(frozen=True, eq=False)
class Followed:
    """A block with a valid certificate that keeps every rule that can be checked without models."""

    block: Block
    certificate: Certificate
    teller: int  # sender
    chain: ChainState  # after it


@dataclass(frozen=True, eq=False)
class Recovered:
    """The stored data of a node for the height it works on."""

    certificate: Certificate = ()  # of the tip
    update: SignedUpdate | None = None
    report: SignedReport | None = None
    blocks: tuple[Block, ...] = ()
    votes: tuple[SignedVote, ...] = ()
    progress: KeptProgress | None = None
    blobs: Mapping[bytes, bytes] = field(default_factory=dict)
    lacks_model: bool = False
    model: bytes = b""  # as in `NodeState`


VoteKey: TypeAlias = tuple[int, Kind, int, bytes]  # attempt, kind, voter, block: a voter may equivocate


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeState:
    """The whole state of a node, beside its store."""

    chain: ChainState
    precommits: Mapping[int, SignedVote]  # for the tip, by voter: its certificate, and later ones
    since_ms: int = 0  # this node's wall clock at the start of the height
    since_ns: int = 0  # its monotonic clock then
    clock_offsets_ms: Mapping[int, int] = field(default_factory=dict)  # least offset to each other member's clock
    phase: Phase
    attempt: int
    is_deadline_over: bool = False
    is_back_off_over: bool = False
    attempt_end_ns: int | None = None  # when the attempt times out; none: no block to vote on is known
    leader_until_ns: int | None = None  # until when the leader's prevote is awaited
    lock: Lock | None
    updates: Mapping[int, SignedUpdate]  # valid statements; their blobs may be missing
    reports: Mapping[int, SignedReport]
    blobs: Mapping[bytes, bytes]  # checked models of this height's updates
    model: bytes = b""  # the parent's model, where a server's optimizer goes on from it; empty: `lacks_model`
    in_time_updates: frozenset[int] = frozenset()  # held, with their blobs, while collecting
    in_time_reports: Collection[int] = frozenset()
    announced: frozenset[int] = frozenset()  # members whose updates were announced, not only seen in a block
    heard_ns: Mapping[int, int] = field(default_factory=dict)  # when all statements due from a member had arrived
    waiting_since_ns: int | None = None  # since when at most f members are missing
    review_ns: int = 0  # when the review timer is due
    absent_until: Mapping[int, int] = field(default_factory=dict)  # height, of members that missed a prevote
    patience_ns: Mapping[int, int] = field(default_factory=dict)  # lateness still allowed, if less than all of it
    candidates: Mapping[bytes, Candidate] = field(default_factory=dict)  # in order of arrival
    refused: frozenset[bytes] = frozenset()  # digests of invalid blocks and blobs
    banned: frozenset[int] = frozenset()  # members that signed an invalid block of this height
    votes: Mapping[VoteKey, SignedVote]
    own_votes: Mapping[tuple[int, Kind], SignedVote]  # by attempt and kind
    evidence: Mapping[int, Evidence] = field(default_factory=dict)  # by offender
    changes: tuple[MembershipChange, ...] = ()  # assented by a quorum, in no block yet
    held_since: Mapping[int | MembershipChange, int] = field(default_factory=dict)  # height, of offenders and changes
    mined: Mined | None = None
    decision: Decision | None = None
    ahead: tuple[Followed, ...] = ()  # decided blocks from the height worked on, while its blobs are missing
    asked: frozenset[int] = frozenset()  # members asked for the block after these
    lacks_model: bool  # of the tip, which was committed on trust: until it arrives, the node only follows
    wanted_blobs: Mapping[bytes, int] = field(default_factory=dict)  # digest, and the member of its update
    asked_blobs: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)  # at this height, by member
    asked_holders: Mapping[bytes, frozenset[int]] = field(default_factory=dict)  # at this height, by blob
    wanted_blocks: frozenset[bytes] = frozenset()
    early: tuple[Message, ...] = ()  # messages for the next height
    turn: int = 0  # number of re-broadcasts, for round-robin requests
    num_resends: int = 0  # re-broadcasts in this attempt, for their back-off
    resend_at_ns: int = 0  # when the next one is due
    greeting_from_ns: int = 0  # from when another one may be due to newcomers
    mining_since_ns: int = 0
    mining_ms: int = 0  # time of mining until this node's first vote
    end: str  # why it is done


def clock_offset_ms(offsets_ms: Mapping[int, int], members: Collection[int]) -> int:
    """Median over the members of the least offset (ms) of a node's wall clock to theirs; negative: behind.

    The node itself and members not heard count as 0, so that less than half of the members cannot move it. Of an even
    number the one of the middle two further from 0 counts, which takes half of them.
    """
    ordered = sorted(offsets_ms.get(member, 0) for member in members)
    return max(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1], key=abs)


# The pace of requests and re-broadcasts.
_PACE = frozenset({"turn", "num_resends", "resend_at_ns", "greeting_from_ns", "asked_holders"})


def is_same(before: NodeState, after: NodeState) -> bool:
    """Return whether two states are equal but for the pace of requests: the event between them brought nothing new."""
    held = vars(before)
    return all(value is held[name] or value == held[name] for name, value in vars(after).items() if name not in _PACE)


def make_state(fields: Mapping[str, object]) -> NodeState:
    """The state `NodeState(**fields)`, made in a third of the time; every field must be given."""
    state = object.__new__(NodeState)
    vars(state).update(fields)
    return state
