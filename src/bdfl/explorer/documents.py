"""JSON documents of the explorer's pages. Names contain the units, unknown values are `null`, arrays are columns."""

from typing import Literal, TypeAlias

import msgspec

from bdfl import __version__
from bdfl.audit.export import Plain
from bdfl.audit.lineage import Contribution

Kind: TypeAlias = Literal["run", "chain", "node", "network", "record"]
Column: TypeAlias = list[float | None]
Counts: TypeAlias = list[int]

FLAG_EVIDENCE = 1
FLAG_CHANGE = 2  # of membership
FLAG_INFEASIBLE = 4
FLAG_PROBLEM = 8


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all documents."""


class RunName(Document, frozen=True):
    """An open run."""

    run: int
    name: str
    kind: Kind


class ClientRow(Document, frozen=True, kw_only=True):
    """Constant facts of a client."""

    client: int
    name: str
    samples: int | None
    rate: float  # beta_i
    public_key: str | None = None
    since: int = 1  # first height as a member
    until: int | None = None  # last height as a member; none: no removal is agreed on


class AccessPointRow(Document, frozen=True):
    name: str


class Problem(Document, frozen=True):
    """A problem of a chain; height 0: not about a block."""

    height: int
    what: str


class Summary(Document, frozen=True):
    """A run in a few numbers."""

    accuracy: float | None  # of the newest evaluated model
    best_accuracy: float | None
    best_round: int | None
    total_s: float
    mean_delay_s: float | None  # of the rounds that took place
    worst_shortfall: float | None  # max_i (beta_i - share_i), at least 0
    energy_use: float | None  # mean share of the budgets spent in rounds that took place


class NodeStatus(Document, frozen=True, kw_only=True):
    """A live node at one moment."""

    number: int
    name: str
    is_online: bool
    height: int | None = None
    phase: str | None = None
    attempt: int | None = None
    is_training: bool = False
    is_mining: bool = False
    age_s: float | None = None  # of its newest block
    state: str | None  # as in bdfl node status; none: unknown
    reason: str


class AccessPointStatus(Document, frozen=True):
    name: str
    is_online: bool


class Status(Document, frozen=True):
    """A live network at one moment."""

    nodes: list[NodeStatus]
    access_points: list[AccessPointStatus]
    phase: str | None  # of the node with the greatest height
    round: int  # in progress


class Overview(Document, frozen=True, kw_only=True):
    """`/index.json`: constant facts of a run, and its state."""

    kind: Kind
    name: str
    run: int = 0
    runs: list[RunName] = []
    version: str = __version__
    is_live: bool
    is_exported: bool = False
    chain: str | None = None
    height: int
    planned_rounds: int | None
    scheduler: str
    aggregation: str | None = None
    quorum_rule: str | None = None
    work: str | None = None
    model_bytes: int | None = None
    num_parameters: int | None = None
    tradeoff: float | None
    min_clients: int | None
    bandwidth_hz: float | None
    clients: list[ClientRow]
    access_points: list[AccessPointRow]
    problems: list[Problem]
    label_names: list[str] | None = None
    summary: Summary
    status: Status | None = None


class ClientColumns(Document, frozen=True):
    """Row-major: one list per row, one value per client; encoded as JSON, since objects would need too much memory."""

    energy_share: msgspec.Raw  # list[Column]: energy over budget, mean of the bucket; null without a budget
    queue: msgspec.Raw  # list[Column]: after the row
    count: msgspec.Raw  # list[Counts]: rounds up to the row's end with an update that counts
    state: list[str] | None  # a character per client, see `columns`; none: buckets


class SeriesDocument(Document, frozen=True, kw_only=True):
    """`/rounds.json`: rounds `first` to `last` in rows of `bucket` rounds each; the last row may have fewer."""

    first: int
    last: int
    num_rounds: int  # of the whole run
    bucket: int
    round: Counts  # the last of each row
    time_s: Column  # from the run's beginning to the end of the row
    is_measured: bool  # most times are measured or sampled, not modelled
    delay_s: Column  # mean of the row's rounds
    delay_min_s: Column | None  # none: rows are single rounds
    delay_max_s: Column | None
    training_s: Column  # of the slowest client; these four sum to the delay
    upload_s: Column
    mining_s: Column
    rest_s: Column
    accuracy: Column  # last known in the row
    loss: Column
    num_updates: Column  # that count
    num_selected: Column
    proposer: list[int | None]
    attempt: Counts  # the highest
    is_empty: Counts  # number of empty blocks
    flags: Counts
    digest: list[str | None] | None
    mean_queue: Column
    objective: Column
    clients: ClientColumns


class BlockRow(Document, frozen=True, kw_only=True):
    """A row in the list of blocks, a `BlockSummary`; of an invalid block, only the readable fields."""

    height: int
    digest: str | None = None
    time_ms: int | None = None  # UTC since 1970, by its proposer's clock
    proposer: int | None = None
    attempt: int | None = None
    trained: list[int] = []
    declined: list[int] = []
    missing: list[int] = []
    num_reports: int = 0
    num_votes: int = 0  # in its certificate
    is_empty: bool = False
    offenders: list[int] = []
    change: str = ""
    delay_s: float | None = None
    mean_queue: float | None = None
    accuracy: float | None = None
    reason: str = ""
    problem: str | None = None


MAX_LISTED = 50  # blocks


class BlockList(Document, frozen=True):
    """`/blocks.json`"""

    first: int
    last: int
    height: int
    blocks: list[BlockRow]


class ScheduleDocument(Document, frozen=True):
    """A round's schedule; lists have one entry per client, 0 where idle."""

    round: int
    selected: list[int]
    cpu_hz: list[float]
    power_w: list[float]
    mining_hz: list[float]
    objective: float | None
    reason: str  # why no client trains; empty if one does


class UpdateRow(Document, frozen=True):
    client: int
    samples: int
    size: int
    model: str | None  # none: declined
    epsilon: float  # spent so far; 0: not private
    signature: str
    outcome: str | None  # trained, no-samples, diverged or declined
    weight: float | None  # in the block's model; none: not in it, or known to the worker process only


class ReceiptDocument(Document, frozen=True):
    round: int
    energy_j: float
    training_s: float
    upload_s: float
    mining_s: float


class ReportRow(Document, frozen=True):
    client: int
    gain: float
    gain_db: float | None
    energy_budget_j: float
    is_reachable: bool
    receipt: ReceiptDocument | None
    signature: str


class VoteRow(Document, frozen=True):
    voter: int
    mining_ms: int
    signature: str
    attempt: int
    block: str
    updates: list[int]
    reports: list[int]


class QueueRow(Document, frozen=True):
    client: int
    before: float
    after: float


class ModelledDocument(Document, frozen=True):
    exchange_s: float
    mining_s: float
    delay_s: float
    energy_j: list[float]


class EntryRow(Document, frozen=True):
    """Evidence or a change of membership."""

    kind: str
    offender: int | None
    what: str  # in words
    plain: Plain


class MemberRow(Document, frozen=True):
    number: int
    public_key: str


class BlockDocument(Document, frozen=True):
    """`/block/<h>.json`; of an invalid block, only `height`, `problem` and the readable fields."""

    height: int
    has_previous: bool
    has_next: bool
    problem: str | None
    sentences: list[str]
    size_bytes: int | None
    is_verifiable: bool  # `/raw/<h>` has bytes for the browser to check
    digest: str | None = None
    parent: str | None = None
    time_ms: int | None = None  # UTC since 1970, by its proposer's clock
    proposer: int | None = None
    attempt: int | None = None
    difficulty: int | None = None
    work: str | None = None
    work_hash: str | None = None
    target: str | None = None  # upper limit of the hash
    nonce: str | None = None
    signature: str | None = None
    body: str | None = None  # Merkle root
    model: str | None = None
    model_bytes: int | None = None
    is_empty: bool | None = None
    reason: str | None = None
    schedule: ScheduleDocument | None = None
    next_schedule: ScheduleDocument | None = None
    updates: list[UpdateRow] = []
    reports: list[ReportRow] = []
    votes: list[VoteRow] = []
    queue: list[QueueRow] = []
    modelled: ModelledDocument | None = None
    entries: list[EntryRow] = []
    accuracy: float | None = None
    loss: float | None = None
    members: list[MemberRow] = []  # active at this height
    quorum: int | None = None


class AccessPointPlace(Document, frozen=True):
    name: str
    x_m: float | None
    y_m: float | None
    is_online: bool | None


class ClientPlace(Document, frozen=True):
    client: int
    name: str
    x_m: float | None
    y_m: float | None
    access_point: int | None
    gain_db: float | None
    snr_db: float | None
    rate_bps: float | None
    is_reachable: bool
    is_selected: bool
    is_delivered: bool
    is_winner: bool
    is_online: bool | None
    cpu_hz: float
    mining_hz: float
    power_w: float


class Link(Document, frozen=True):
    """Between two places: `c3` is client 3, `a0` access point 0."""

    a: str
    b: str


class NetworkDocument(Document, frozen=True):
    """`/network.json?round=t`"""

    round: int
    has_positions: bool
    access_points: list[AccessPointPlace]
    clients: list[ClientPlace]
    links: list[Link]
    why: str | None = None  # no positions


class ClientSeries(Document, frozen=True):
    """One client's rounds, in rows of `bucket` rounds; means in buckets."""

    bucket: int
    round: Counts
    time_s: Column
    state: str | None  # a character per row; none: buckets
    training_j: Column
    upload_j: Column
    mining_j: Column
    energy_j: Column
    budget_j: Column
    queue: Column
    training_s: Column
    upload_s: Column
    count: Counts


class ContributionRow(Document, frozen=True):
    height: int
    weight: float | None
    update_norm: float | None


class OffenceRow(Document, frozen=True):
    height: int
    kind: str
    sentence: str
    evidence: Plain


class ClientDocument(ClientRow, frozen=True, kw_only=True):
    """`/client/<n>.json`"""

    share: float | None  # of its rounds as a member with an update that counts
    epsilon: float | None = None  # spent so far, by its newest update; none: not private, or no chain
    cycles: float | None = None
    capacitance: float | None = None
    power_w: float | None = None
    power_max_w: float | None = None
    model_bits: float | None = None
    cpu_max_hz: float | None = None
    mining_max_hz: float | None = None
    mined: list[int]  # heights
    contributions: list[ContributionRow] = []  # the newest first, at most 100
    num_contributions: int
    num_declined: int = 0
    num_missed: int = 0
    num_votes: int = 0  # blocks with its vote in the certificate or the next block
    num_reports: int = 0
    offences: list[OffenceRow] = []
    rounds: ClientSeries


class Ancestor(Document, frozen=True, kw_only=True):
    """An earlier model in the lineage of a model."""

    height: int  # of the block that made it; 0: the untrained model
    digest: str
    clients: list[int]  # clients whose updates were aggregated
    is_stored: bool
    accuracy: float | None = None
    distance: float | None = None  # to the model before it


class TensorDistance(Document, frozen=True):
    name: str
    shape: list[int]
    norm: float
    other_norm: float
    distance: float


class ModelComparison(Document, frozen=True, kw_only=True):
    other: int
    digest: str
    distance: float | None = None
    relative: float | None = None
    accuracy: float | None = None
    tensors: list[TensorDistance] = []
    why: str | None = None  # not comparable


class LeftOut(Document, frozen=True, kw_only=True):
    """A model without a client's updates."""

    client: int
    distance: float | None = None
    relative: float | None = None
    changed_in: list[int] = []
    why: str | None = None  # no answer


class ModelDocument(Document, frozen=True, kw_only=True):
    """`/model/<h>.json?without=<client>&other=<height>`"""

    height: int
    made_in: int  # block that made the model; 0: the untrained model
    model: str
    rule: str
    is_stored: bool
    pruned_to: int  # updates up to this block are pruned
    is_trusted: bool  # the node that stored the chain never recomputed it; a quorum voted for it
    accuracy: float | None = None
    contributions: list[Contribution]
    parents: list[Ancestor]  # the newest first, at most 200
    compare: ModelComparison | None
    without: LeftOut | None
    why: str | None = None  # something is missing


class Setting(Document, frozen=True):
    """Range of a setting, and its value on the chain."""

    name: str
    least: int | float
    most: int | float
    value: int | float
    unit: str


class WhatIfSettings(Document, frozen=True):
    """Changed settings of a round's problem; none: as recorded."""

    tradeoff: float | None = None
    budget_scale: float | None = None
    energy_budget_j: float | None = None  # of all clients
    bandwidth_hz: float | None = None
    work_scale: float | None = None
    client: int | None = None  # with the changed channel
    gain_db: float | None = None


class ProblemClient(Document, frozen=True):
    client: int
    queue: float
    cycles: float
    capacitance: float
    energy_budget_j: float
    gain_db: float | None
    power_w: float
    model_bits: float
    is_reachable: bool
    rate: float  # beta_i


class ProblemDocument(Document, frozen=True):
    """A `RoundProblem`."""

    round: int
    min_clients: int
    tradeoff: float
    work_cycles: float
    bandwidth_hz: float
    noise_w_per_hz: float
    overhead_s: float
    clients: list[ProblemClient] = []


class SolvedDecision(Document, frozen=True):
    """A scheduler's decision and its costs; lists have one entry per client."""

    scheduler: str
    status: str
    selected: list[int]
    delay_s: float
    training_s: float  # of the slowest client
    upload_s: float
    mining_s: float
    objective: float | None
    gap: float | None  # proven
    energy_j: list[float]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    seconds: float  # to solve
    reason: str | None


class Optimality(Document, frozen=True):
    bound: float | None  # no decision has a lower objective
    gap: float | None  # of the best choice, relative
    text: str


class FrontierPoint(Document, frozen=True):
    """Delay of a round against the queues it serves, at one V."""

    scheduler: str
    tradeoff: float
    delay_s: float | None
    served_queue: float | None
    num_selected: int


class WhatIfDocument(Document, frozen=True):
    """`/what-if/<h>.json`: the problem of round h."""

    height: int
    is_next: bool  # a round that is planned and has no block yet
    settings: WhatIfSettings
    limits: list[Setting]
    problem: ProblemDocument
    recorded: SolvedDecision | None  # on the chain, for the recorded problem
    choices: list[SolvedDecision]
    certificate: Optimality
    frontier: list[FrontierPoint]


class RunFrontierPoint(Document, frozen=True):
    scheduler: str
    tradeoff: float
    delay_s: float | None
    delay_half_width_s: float | None
    shortfall: float | None
    shortfall_half_width: float | None


class FrontierDocument(Document, frozen=True):
    """`/frontier.json`: mean delay against worst shortfall of whole runs, over V."""

    state: Literal["computing", "done", "failed"]
    rounds: int | None = None
    points: list[RunFrontierPoint] = []
    why: str | None = None


class ComparedRun(Document, frozen=True):
    run: int
    name: str
    kind: Kind
    scheduler: str
    tradeoff: float | None
    num_rounds: int
    num_clients: int
    summary: Summary


class Curve(Document, frozen=True):
    """One run's curve over rounds and time, at most 500 rows."""

    run: int
    round: Counts
    time_s: Column
    accuracy: Column
    delay_s: Column
    mean_queue: Column


class PairedDifference(Document, frozen=True):
    """Mean of a minus b over the rounds that both have, with half its 95 % interval."""

    a: int
    b: int
    metric: str
    mean: float | None
    half_width: float | None
    unit: str
    n: int


class CompareDocument(Document, frozen=True):
    """`/compare.json`"""

    runs: list[ComparedRun]
    curves: list[Curve]
    paired: list[PairedDifference]


class VerifyFailure(Document, frozen=True):
    height: int
    rule: str
    what: str  # `expected` and `found` in one line
    expected: str  # by the rules
    found: str  # in the block or file


class VerifyDocument(Document, frozen=True):
    """`/verify.json`: the verdict of `bdfl chain verify`."""

    state: Literal["computing", "done", "failed"]
    is_valid: bool | None = None
    height: int | None = None  # blocks verified so far
    num_signatures: int | None = None
    failure: VerifyFailure | None = None
    seconds: float | None = None
    why: str | None = None


class Growth(Document, frozen=True):
    """Fields of the overview that a new block changes."""

    height: int
    summary: Summary
    problems: list[Problem]


class BlockEvent(Document, frozen=True, tag_field="event", tag="block"):
    """`event: block`"""

    rounds: SeriesDocument  # of one row
    overview: Growth


class StatusEvent(Document, frozen=True, tag_field="event", tag="status"):
    """`event: status`"""

    status: Status


class GoneEvent(Document, frozen=True, tag_field="event", tag="gone"):
    """`event: gone`: the run cannot be read any more."""

    why: str


class BackEvent(Document, frozen=True, tag_field="event", tag="back"):
    """`event: back`: the run can be read again."""


RunEvent: TypeAlias = BlockEvent | StatusEvent | GoneEvent | BackEvent
