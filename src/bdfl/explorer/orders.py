"""Messages between the explorer's server and its worker process: MessagePack after four bytes of length.

The worker imports heavy modules that the server must not: solvers, the environment, Parquet, models.
"""

from dataclasses import replace
from typing import TypeAlias

import msgspec
import numpy as np

from bdfl.arrays import PerClient
from bdfl.explorer.documents import VerifyFailure
from bdfl.scheduling.problem import RoundProblem

LENGTH_SIZE = 4
MAX_FRAME = 2**28  # bytes
MAX_DRAWN = 10_000  # rounds of a scenario that are drawn again to find the problem of the last one


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the worker."""


class Positions(Order, frozen=True, tag=True):
    """Request for the positions of clients and access points in a round, and the links between them."""

    scenario: str  # the file's path
    round: int


class Places(msgspec.Struct, frozen=True, kw_only=True):
    position_m: list[tuple[float, float]]
    access_point_m: list[tuple[float, float]]
    access_point: list[int]  # that serves each client
    links: list[tuple[int, int]]  # clients first, then access points


class ProblemOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A `RoundProblem`, field by field."""

    min_clients: int
    tradeoff: float
    work_cycles: float
    bandwidth_hz: float
    noise_w_per_hz: float
    overhead_s: float
    round: int
    seed: int
    queue: list[float]
    cycles: list[float]
    capacitance: list[float]
    energy_budget_j: list[float]
    gain: list[float]
    power_w: list[float]
    power_max_w: list[float]
    model_bits: list[float]
    cpu_max_hz: list[float]
    mining_max_hz: list[float]
    initial_cpu_hz: list[float]
    initial_mining_hz: list[float]
    participation_rate: list[float]
    reachable: list[bool]

    @classmethod
    def of(cls, problem: RoundProblem) -> "ProblemOrder":
        """Convert a problem for encoding."""
        values = {name: getattr(problem, name) for name in cls.__struct_fields__}
        return cls(
            **{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        )

    def to_problem(self, queue: PerClient | None = None) -> RoundProblem:
        """Return the problem, with other queues if given."""
        values: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, list):
                value = np.array(value, dtype=np.bool_ if name == "reachable" else np.float64)
                value.setflags(write=False)
            values[name] = value
        problem = RoundProblem(**values)  # type: ignore[arg-type]
        return problem if queue is None else replace(problem, queue=queue)


class DrawProblem(Order, frozen=True, tag=True):
    """Request for the problem drawn for a round of a scenario; its queues are empty."""

    scenario: str
    round: int


class DecisionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded `Decision`."""

    selected: list[bool]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    reason: str | None


class Solve(Order, frozen=True, tag=True):
    """Request for these schedulers' decisions for a problem, and their decisions over V."""

    problem: ProblemOrder
    recorded_problem: ProblemOrder
    recorded: DecisionOrder | None
    schedulers: list[str]
    tradeoffs: list[float]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: str
    status: str
    selected: list[int]
    delay_s: float
    training_s: float
    upload_s: float
    mining_s: float
    objective: float | None
    gap: float | None
    energy_j: list[float]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    seconds: float
    reason: str | None
    served_queue: float
    tradeoff: float
    bound: float | None


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    recorded: Choice | None
    choices: list[Choice]
    frontier: list[Choice]


class Lineage(Order, frozen=True, tag=True):
    """Request for a model's contributors, lineage, and distances to another model and to itself without a client."""

    chain: str  # the folder's path
    height: int
    without: int | None
    other: int | None


class Contributor(msgspec.Struct, frozen=True, kw_only=True):
    client: int
    samples: int | None
    weight: float | None
    update: str | None
    since: int | None
    last: int | None
    num_blocks: int


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    height: int
    digest: str
    clients: list[int]
    is_stored: bool
    distance: float | None


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    shape: list[int]
    norm: float
    other_norm: float
    distance: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    distance: float | None
    relative: float | None
    tensors: list[Tensor]
    why: str | None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    distance: float | None
    relative: float | None
    changed_in: list[int]
    why: str | None


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    made_in: int
    model: str
    rule: str
    is_stored: bool
    is_trusted: bool  # the node that stored the chain never recomputed it
    contributors: list[Contributor]
    parents: list[Parent]
    compared: Compared | None
    left_out: LeftOut | None


class Verify(Order, frozen=True, tag=True):
    """Request to verify a chain; started unless running or done, and again if the chain has grown since."""

    chain: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    is_done: bool
    height: int  # blocks verified so far
    is_valid: bool | None
    num_signatures: int
    failure: VerifyFailure | None
    why: str | None  # why it could not be verified
    seconds: float


class Sweep(Order, frozen=True, tag=True):
    """Request for delay against shortfall of whole runs over V; started unless running or done."""

    scenario: str


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: str
    tradeoff: float
    delay_s: float
    delay_half_width_s: float
    shortfall: float
    shortfall_half_width: float


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    is_done: bool
    rounds: int
    points: list[SweepPoint]
    why: str | None


class Pair(Order, frozen=True, tag=True):
    """Request for means of lists of differences, with half their 95 % intervals."""

    differences: list[list[float]]


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    means: list[float]
    half_widths: list[float]


class MinedIn(Order, frozen=True, tag=True):
    """Request for the mining time of a round in a run with sampled mining."""

    scenario: str
    round: int
    mining_hz: list[float]
    attempt: int
    proposer: int


class Mined(msgspec.Struct, frozen=True, kw_only=True):
    mining_s: float


class ReadRecord(Order, frozen=True, tag=True):
    """Request to write the columns of a record folder into `into`, one file each."""

    folder: str
    into: str


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    scheduler: str
    tradeoff: float
    num_rounds: int
    rates: list[float]
    samples: list[int]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error instead of an answer."""

    what: str
    is_missing: bool  # the requested thing does not exist; else the request failed


AnyOrder: TypeAlias = Positions | Solve | DrawProblem | Lineage | Verify | Sweep | Pair | MinedIn | ReadRecord


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer or a refusal."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    refusal: Refusal | None = None
