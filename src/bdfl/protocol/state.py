"""A node between two events: a frozen value. What it may move through is data, and the diagram is drawn from it."""

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
from bdfl.ledger.chain import ChainState
from bdfl.ledger.toolbox import Toolbox
from bdfl.protocol.events import KeptProgress
from bdfl.protocol.messages import Message


class Phase(StrEnum):
    """What a node is doing for the height it works on."""

    COLLECTING = "collecting"  # updates and reports come in; training, if scheduled
    MINING = "mining"  # collecting is over: a block is searched, or somebody's awaited
    VOTING = "voting"  # a prevote of this attempt is cast
    DONE = "done"  # the last height is decided, or the last at which this node is a member


# From phase to phase, and why: everything else is a mistake.
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
    """How long a node waits."""

    grace_ns: int  # beyond twice the modelled exchange, for updates and reports
    attempt_ns: int  # attempt a lasts this times 1 + a / 2, from when a block is known
    resend_ns: int  # between two times that everything is said again
    time_scale: float = 1.0  # how many times as long as modelled a live network lets things last


@dataclass(frozen=True, eq=False)
class Context:
    """What stays the same for a node: who it is and what it works with."""

    number: int
    signer: Signer
    timing: Timing
    toolbox: Toolbox
    last_height: int | None = None  # after this block all is done; none: goes on for ever
    is_alone: bool = False  # no other thread takes steps from this node's states: they may share what they hold
    keep_blocks: int = 0  # newest blocks whose updates every member keeps; 0: of all


def find_end(context: Context, chain: ChainState) -> str:
    """Why a node has nothing left to do on this chain; empty: it has."""
    if chain.is_over(context.number):
        return f"member {context.number} was removed: block {chain.last_height(context.number)} was its last"
    if context.last_height is not None and chain.height >= context.last_height:
        return f"block {context.last_height}, the last, is decided"
    return ""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A block of the height worked on that breaks no rule as far as it could be checked."""

    block: Block
    digest: bytes
    is_valid: bool  # its model was recomputed
    complaint: str | None  # why its schedule is not votable


@dataclass(frozen=True, eq=False)
class Mined:
    """A node's own block on its way: only its nonce is missing."""

    header: Header
    body: Body


@dataclass(frozen=True)
class Lock:
    """The block a node holds on to, and the attempt whose prevotes made it do so."""

    attempt: int
    block: bytes
    prevotes: Certificate


@dataclass(frozen=True)
class Decision:
    """A block that others decided on; it may still lack its blobs here."""

    block: bytes
    certificate: Certificate
    teller: int  # who may know of more


@dataclass(frozen=True, eq=False)
class Followed:
    """A block with a valid certificate that keeps all rules that can be judged without models."""

    block: Block
    certificate: Certificate
    teller: int
    chain: ChainState  # after it


@dataclass(frozen=True, eq=False)
class Recovered:
    """What a node finds in its store for the height it works on."""

    certificate: Certificate = ()  # of the tip
    update: SignedUpdate | None = None
    report: SignedReport | None = None
    blocks: tuple[Block, ...] = ()
    votes: tuple[SignedVote, ...] = ()
    progress: KeptProgress | None = None
    blobs: Mapping[bytes, bytes] = field(default_factory=dict)
    lacks_model: bool = False


VoteKey: TypeAlias = tuple[int, Kind, int, bytes]  # attempt, kind, voter, block: a liar may have voted for several


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeState:
    """All that a node knows beside its store."""

    chain: ChainState
    precommits: Mapping[int, SignedVote]  # for the tip, by voter: what made it final, and what came later
    since_ms: int = 0  # this node's wall clock when it began with the height
    since_ns: int = 0  # its monotonic clock then
    clock_offsets_ms: Mapping[int, int] = field(default_factory=dict)  # at least, to each other member's
    phase: Phase
    attempt: int
    is_deadline_over: bool = False
    is_back_off_over: bool = False
    is_attempt_timed: bool = False
    lock: Lock | None
    updates: Mapping[int, SignedUpdate]  # valid statements; their blobs may be missing
    reports: Mapping[int, SignedReport]
    blobs: Mapping[bytes, bytes]  # checked models of this height's updates
    in_time_updates: frozenset[int] = frozenset()  # held, with their blobs, while collecting
    in_time_reports: Collection[int] = frozenset()
    announced: frozenset[int] = frozenset()  # whose updates were said, not only seen inside of a block
    heard_ns: Mapping[int, int] = field(default_factory=dict)  # when all that is due from a member was here
    waiting_since_ns: int | None = None  # from when on no more are waited for than may lie
    review_ns: int = 0  # when the review timer is due
    absent_until: Mapping[int, int] = field(default_factory=dict)  # height, of members whose prevotes did not come
    patience_ns: Mapping[int, int] = field(default_factory=dict)  # lateness still allowed, where it is not all of it
    candidates: Mapping[bytes, Candidate] = field(default_factory=dict)  # in the order of their arrival
    refused: frozenset[bytes] = frozenset()  # digests of blocks and blobs found wrong
    banned: frozenset[int] = frozenset()  # signed a block of this height that breaks a rule
    votes: Mapping[VoteKey, SignedVote]
    own_votes: Mapping[tuple[int, Kind], SignedVote]  # by attempt and kind
    evidence: Mapping[int, Evidence] = field(default_factory=dict)  # by offender
    changes: tuple[MembershipChange, ...] = ()  # agreed to, and in no block yet
    held_since: Mapping[int | MembershipChange, int] = field(default_factory=dict)  # height, of offenders and changes
    mined: Mined | None = None
    decision: Decision | None = None
    ahead: tuple[Followed, ...] = ()  # decided blocks from the height worked on, while that one lacks its blobs
    asked: frozenset[int] = frozenset()  # who was asked for the block after these
    lacks_model: bool  # of the tip, which was committed on trust: until it is here, the node only follows
    wanted_blobs: Mapping[bytes, int] = field(default_factory=dict)  # digest and whose update it is
    asked_blobs: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)  # at this height, by whose update it is
    wanted_blocks: frozenset[bytes] = frozenset()
    early: tuple[Message, ...] = ()  # of the next height
    turn: int = 0  # of asking others for what is missing
    mining_since_ns: int = 0
    mining_ms: int = 0  # until the first block was known
    end: str  # why it is done


def clock_offset_ms(offsets_ms: Mapping[int, int], members: Collection[int]) -> int:
    """Median over the members of how far a node's wall clock is ahead of theirs, at least; negative: behind.

    Its own, and who was not heard, count as 0, so that less than half of the members cannot move it, whoever was heard
    so far; of an even number the further from 0 of the middle two counts, which takes half of them.
    """
    ordered = sorted(offsets_ms.get(member, 0) for member in members)
    return max(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1], key=abs)


def is_same(before: NodeState, after: NodeState) -> bool:
    """Tells if two states hold the same but for whose turn it is to be asked: what happened between was no news."""
    held = vars(before)
    return all(value is held[name] or value == held[name] for name, value in vars(after).items() if name != "turn")


def make_state(fields: Mapping[str, object]) -> NodeState:
    """The state with these values, one for each field: as `NodeState(**fields)`, in a third of the time."""
    state = object.__new__(NodeState)
    vars(state).update(fields)
    return state
