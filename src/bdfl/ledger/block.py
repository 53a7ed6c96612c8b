"""Records of the chain: genesis, blocks and their parts. Integers, bytes and strings only; units are in the names.

`_micro` counts 1e-6 of a unit, `_nano` 1e-9, `_atto` 1e-18, `_pj` picojoules, `_ns` nanoseconds, `_ms` milliseconds,
`_uw` microwatts. A client's number is its index among all members, present and past, and its number in the scenario.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from bdfl.encoding import INT_LIMIT, Digest, Positive, Record, Signature, Whole, encode, record_digest
from bdfl.identity import Place
from bdfl.ledger.merkle import merkle_root
from bdfl.scenario.schema_learning import ATTO, Accountant, LocalUnit, QuorumRule, WorkKind

FORMAT = 3  # 1: without privacy, 2: without time
MAX_MEMBERS = 4096
MAX_ATTEMPT = 10_000
MAX_TEXT = 200
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999, the last that calendars can write
# Clocks of honest members differ by seconds, a clock that was never set by hours. A minute is more than NTP leaves, and
# short beside a round, so that an auditor can date a block.
TIME_TOLERANCE_MS = 60_000
MAX_BUDGET_PJ = 10**18  # a megajoule a round: a larger claim could make the costs of a schedule exceed an integer
NONCE_SIZE = 8
MAX_BLOCK_SIZE = 64 * 2**20

MemberNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)]
Attempt: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_ATTEMPT)]
TimeMs: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TIME_MS)]  # UTC, milliseconds since 1970
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
MemberNumbers: TypeAlias = Annotated[tuple[MemberNumber, ...], Meta(max_length=MAX_MEMBERS)]
PerMember: TypeAlias = Annotated[tuple[Whole, ...], Meta(max_length=MAX_MEMBERS)]


class Kind(StrEnum):
    """The two votes of an attempt."""

    PREVOTE = "prevote"
    PRECOMMIT = "precommit"


class Conditions(Record, frozen=True):
    """A client's conditions in a round: its channel gain, energy budget and reachability."""

    gain_atto: Whole  # h_i in 1e-18
    energy_budget_pj: Annotated[int, Meta(ge=0, le=MAX_BUDGET_PJ)]  # E_i^max
    is_reachable: bool  # in the component that may be scheduled (C1)


class Receipt(Record, frozen=True):
    """The actual cost of a round for a client: measured, or sampled in a simulation."""

    round: Positive
    energy_pj: Whole
    training_ns: Whole
    upload_ns: Whole
    mining_ns: Whole


class Report(Record, frozen=True):
    """A client's conditions in the round after the block that carries it, and its receipt of the round before it."""

    client: MemberNumber
    round: Positive  # the round that the conditions are for: the block's height plus one
    conditions: Conditions
    receipt: Receipt | None


class SignedReport(Record, frozen=True):
    """Signed as REPORT for the height of the block that carries it."""

    report: Report
    signature: Signature


class ModelUpdate(Record, frozen=True):
    """A client's trained model, by the digest of its safetensors bytes; no digest: declined, as training diverged.

    A client without data gives the parent's model with 0 samples: it participates and changes nothing.
    """

    client: MemberNumber
    samples: Whole
    size: Whole  # bytes
    model: Annotated[bytes, Meta(max_length=32)]  # 32 bytes or none
    epsilon_micro: Whole  # spent so far, this round included; 0: not private, or no data

    @property
    def is_declined(self) -> bool:
        return not self.model

    @property
    def is_aggregated(self) -> bool:
        """True if the update enters the global model: not declined, and trained on at least one sample."""
        return not self.is_declined and self.samples > 0


class SignedUpdate(Record, frozen=True):
    """Signed as UPDATE for the round's height and parent."""

    update: ModelUpdate
    signature: Signature


class Vote(Record, frozen=True):
    """A member's vote for a block in an attempt, with the updates and reports that the voter holds."""

    kind: Kind
    attempt: Attempt
    block: Digest
    voter: MemberNumber
    updates: MemberNumbers  # members whose updates the voter holds, ascending
    reports: MemberNumbers  # members whose reports the voter holds, ascending
    mining_ms: Whole  # the voter's wait for a block, at least 1; 0: unknown; in precommits only, 0 in prevotes


class SignedVote(Record, frozen=True):
    """Signed as VOTE for the height and parent of the block voted for."""

    vote: Vote
    signature: Signature


Certificate: TypeAlias = Annotated[tuple[SignedVote, ...], Meta(max_length=MAX_MEMBERS)]


class Schedule(Record, frozen=True):
    """The clients that train in a round, with their frequencies and powers, and all members' mining frequencies."""

    round: Positive
    selected: MemberNumbers  # ascending
    cpu_hz: PerMember  # one for each selected
    power_uw: PerMember  # one for each selected
    mining_hz: PerMember  # one for each member
    objective_nano: Annotated[
        int, Meta(ge=-INT_LIMIT, le=INT_LIMIT)
    ]  # V d - sum of the selected queues, rounded half to even
    reason: Text  # why no client trains; empty if any does

    @property
    def is_feasible(self) -> bool:
        return not self.reason


class Modelled(Record, frozen=True):
    """Delays and energies of a round played as scheduled, by the cost model."""

    exchange_ns: Whole  # until the slowest selected client has uploaded
    mining_ns: Whole
    delay_ns: Whole
    energy_pj: PerMember  # one for each member


class Limits(Record, frozen=True):
    """The constants of a client: processor, radio and data."""

    samples: Whole  # |D_i|
    rate_nano: Whole  # beta_i
    cycles: Whole  # c_i = phi_i H |D_i|
    capacitance: Positive  # chi_i in 1e-36 W s^3
    power_uw: Whole
    power_max_uw: Whole
    model_bits: Positive
    cpu_max_hz: Whole | None  # none: no cap
    mining_max_hz: Whole | None
    initial_cpu_hz: Positive
    initial_mining_hz: Positive


class Member(Record, frozen=True):
    """A member of the federation, from genesis or since a block admitted it."""

    public_key: Digest
    limits: Limits
    conditions: Conditions  # of round 1; ignored for a member admitted later, which reports its own


class Admission(Record, frozen=True, tag="admission"):
    """A change: a new member joins, under the next number that was never assigned."""

    number: MemberNumber
    member: Member


class Removal(Record, frozen=True, tag="removal"):
    """A change: a member leaves. Its number and key are never assigned again."""

    number: MemberNumber


Change: TypeAlias = Admission | Removal


class Assent(Record, frozen=True):
    """A member's agreement to a change: signed as MEMBERSHIP for the height it expires at, on a parent of zeros."""

    member: MemberNumber
    signature: Signature


class MembershipChange(Record, frozen=True, tag="membership"):
    """A change with the assents of a quorum. In block h it binds from height h + 2 on."""

    change: Change
    expires: Positive  # the last height whose block may carry it
    assents: Annotated[tuple[Assent, ...], Meta(max_length=MAX_MEMBERS)]  # by member


class TwoVotes(Record, frozen=True, tag="two-votes"):
    """Evidence of equivocation: votes of one kind by one member in one attempt for different blocks."""

    place: Place
    first: SignedVote
    second: SignedVote


class SignedHeader(Record, frozen=True):
    """A block without its body: enough to check its proof of work and its signature."""

    header: "Header"
    nonce: Nonce
    signature: Signature


class TwoBlocks(Record, frozen=True, tag="two-blocks"):
    """Evidence of equivocation: different blocks by one member for one attempt."""

    first: SignedHeader
    second: SignedHeader


class TwoUpdates(Record, frozen=True, tag="two-updates"):
    """Evidence of equivocation: different updates by one member for one round."""

    place: Place
    first: SignedUpdate
    second: SignedUpdate


class FalseWork(Record, frozen=True, tag="false-work"):
    """Evidence of a false proof of work: a signed block whose hash is above its target."""

    block: SignedHeader


Evidence: TypeAlias = TwoVotes | TwoBlocks | TwoUpdates | FalseWork
Entry: TypeAlias = Evidence | MembershipChange
Entries: TypeAlias = Annotated[tuple[Entry, ...], Meta(max_length=MAX_MEMBERS)]


class Header(Record, frozen=True):
    """The header of a block; the proof of work is over it."""

    format: Whole
    chain: Digest
    height: Positive
    attempt: Attempt
    parent: Digest
    proposer: MemberNumber
    body: Digest  # Merkle root, see `body_root`
    difficulty: Positive  # expected number of hashes
    time_ms: TimeMs  # the proposer's wall clock when it began to mine

    @property
    def place(self) -> Place:
        return Place(self.chain, self.height, self.parent)


class Body(Record, frozen=True):
    """A block's content."""

    parent_certificate: Certificate  # the precommits that made the parent final; none for the first block
    schedule: Schedule  # of this round, as the parent has it
    is_empty: bool  # too few updates: the model stays
    model: Digest  # of the global model after this round
    queue_nano: PerMember  # Z_i after this round, one for each member of the next
    modelled: Modelled  # receipts of this round by the cost model
    reports: Annotated[tuple[SignedReport, ...], Meta(max_length=MAX_MEMBERS)]  # by client, for the next round
    next_schedule: Schedule  # computed from them
    entries: Entries  # evidence by offender, then at most one change of membership
    updates: Annotated[tuple[SignedUpdate, ...], Meta(max_length=MAX_MEMBERS)]  # by client

    @property
    def aggregated(self) -> list[ModelUpdate]:
        """The updates that the model was aggregated from, in client order; none if the block is empty."""
        return [] if self.is_empty else [signed.update for signed in self.updates if signed.update.is_aggregated]


class Block(Record, frozen=True):
    """A proposed or committed block; signed as BLOCK by its proposer."""

    header: Header
    nonce: Nonce
    signature: Signature
    body: Body

    @property
    def digest(self) -> bytes:
        """The block's id, 32 bytes."""
        return block_digest(self.header, self.nonce)

    @property
    def signed_header(self) -> SignedHeader:
        return SignedHeader(self.header, self.nonce, self.signature)


# What a node keeps of a height: its own statements, and candidate blocks.
OwnStatement: TypeAlias = SignedVote | SignedUpdate | SignedReport | Block


class Seal(Record, frozen=True):
    """The header with its nonce, which the proposer signs; its digest is the block's id."""

    header: Header
    nonce: Nonce


class Physics(Record, frozen=True):
    """Constants of the cost model and the objective, the same for all members."""

    min_clients: Positive  # m of C2
    tradeoff_nano: Positive  # V
    work_cycles: Positive  # A = -alpha ln(1 - p0)
    bandwidth_hz: Positive
    noise: Positive  # N0 in 1e-30 W/Hz
    overhead_ns: Whole


class SchedulerName(Record, frozen=True):
    """The chain's scheduler by name, with its parameters as JSON text, sorted by name."""

    name: Text
    version: Text  # of bdfl
    parameters: Annotated[tuple[tuple[Text, Text], ...], Meta(max_length=64)]
    seed: Whole


class Tensor(Record, frozen=True):
    """One tensor of the model."""

    name: Text
    shape: Annotated[tuple[Whole, ...], Meta(max_length=16)]


class ModelForm(Record, frozen=True):
    """The untrained model, and the tensors and size of every model."""

    initial: Digest
    size: Positive  # bytes of the safetensors file
    tensors: Annotated[tuple[Tensor, ...], Meta(max_length=4096)]


class Law(Record, frozen=True):
    """Consensus, proof-of-work and aggregation parameters of the chain."""

    quorum: QuorumRule
    work: WorkKind
    difficulty: Positive  # of the first block: expected number of hashes
    target_ms: Whole  # target time to mine a block; 0: no retargeting
    aggregation: Text
    faulty: Whole  # wrong updates that the aggregation must tolerate
    min_updates: Positive
    max_exchange_ns: Positive  # most modelled time of training and upload that a schedule gives one client

    @property
    def rule(self) -> str:
        """The aggregation rule, without the server's optimizer."""
        return self.aggregation.partition(" ")[0]


class Privacy(Record, frozen=True):
    """The parameters of DP-SGD, the same for all members: all that epsilon depends on.

    A member of n samples makes `steps` noisy steps in a round, or `steps` times n / `batch`, rounded up, where these
    are epochs; each step takes each sample with probability `batch` / n, at most 1.
    """

    noise_micro: Positive  # noise multiplier: standard deviation of the noise over the clipping norm
    clip_micro: Positive  # clipping norm of the gradients
    delta_atto: Annotated[int, Meta(ge=1, lt=ATTO)]
    accountant: Accountant
    batch: Positive
    steps: Positive
    unit: LocalUnit


class AccessPoint(Record, frozen=True):
    """A router between the members of a live network; it signs nothing on the chain."""

    name: Text
    certificate: Digest  # SHA-256 of its X.509 certificate in DER


class Genesis(Record, frozen=True):
    """The genesis of a chain; its digest is the chain's id and the parent of block 1."""

    format: Whole
    name: Text
    time_ms: TimeMs  # creation time of the network
    scenario: Digest
    members: Annotated[tuple[Member, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    physics: Physics
    scheduler: SchedulerName
    law: Law
    model: ModelForm
    schedule: Schedule  # of round 1
    access_points: Annotated[tuple[AccessPoint, ...], Meta(max_length=MAX_MEMBERS)]  # none in a simulation
    privacy: Privacy | None  # none: training is not private


def chain_id(genesis: Genesis) -> bytes:
    """The chain's id, 32 bytes; also the parent of block 1."""
    return record_digest(genesis)


def header_seal(header: Header) -> bytes:
    """Digest of a header, 32 bytes: the input of the proof of work, without the nonce."""
    return record_digest(header)


def block_digest(header: Header, nonce: bytes) -> bytes:
    """A block's id, 32 bytes."""
    return record_digest(Seal(header, nonce))


def body_leaves(body: Body) -> list[bytes]:
    """Leaves of the body's Merkle tree: the body without its updates, then every update."""
    rest = msgspec.structs.replace(body, updates=())
    return [encode(rest), *map(encode, body.updates)]


def body_root(body: Body) -> bytes:
    """Merkle root of a body, 32 bytes."""
    return merkle_root(body_leaves(body))
