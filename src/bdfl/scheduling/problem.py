"""The scheduling problem of a round and a scheduler's decision: plain values, no solver.

[Li24, Eq. 24] (P3): choose the training set S, training frequencies f and mining frequencies F to minimise V d(t) -
sum_{i in S} Z_i subject to C1 (reachable clients only), C2 (at least m of them) and C3 (energy budgets). With prices
y_i on energy the objective has sum_i y_i e_i in addition.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import InvalidProblem
from bdfl.types import PerClient, PerClientMask

PAPER_INITIAL_CPU_HZ = 1e9
PAPER_INITIAL_MINING_HZ = 1.5e9


@dataclass(frozen=True, eq=False, kw_only=True)
class Battery:
    """Batteries of the clients in a run; arrays are (clients,).

    Charged before every round, never overdrawn: if empty at first, the energy spent by any round is at most that
    received, so a mean income E_i bounds the mean energy at every time of the run.
    """

    charge_j: PerClient
    capacity_j: PerClient  # a charge above it is lost; infinity: none is
    income_j: PerClient  # received last

    def receive(self, income_j: PerClient) -> "Battery":
        """Return the batteries charged for a round."""
        return replace(self, charge_j=np.minimum(self.charge_j + income_j, self.capacity_j), income_j=income_j)

    def spend(self, energy_j: PerClient) -> "Battery":
        """Return the batteries after a round; a sampled mining time may cost more than planned, and empties them."""
        return replace(self, charge_j=np.maximum(self.charge_j - energy_j, 0.0))


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundProblem:
    """All data available to a scheduler in one round; arrays are float64, read-only and in client order."""

    min_clients: int  # m of C2
    tradeoff: float  # V
    work_cycles: float  # A = -alpha ln(1 - p0)
    bandwidth_hz: float
    noise_w_per_hz: float
    queue: PerClient  # Z_i
    cycles: PerClient  # c_i = phi_i H |D_i|
    capacitance: PerClient  # chi_i
    energy_budget_j: PerClient  # E_i^max
    gain: PerClient  # h_i
    power_w: PerClient  # P_i; used by every scheduler but exact-power
    power_max_w: PerClient  # only exact-power may choose another power, up to this
    model_bits: PerClient  # m_i
    cpu_max_hz: PerClient  # infinity: no cap
    mining_max_hz: PerClient  # infinity: no cap
    reachable: PerClientMask  # in the component that may be scheduled (C1); the others neither train nor mine
    initial_cpu_hz: PerClient  # start of the published algorithm and the baselines
    initial_mining_hz: PerClient
    participation_rate: PerClient  # beta_i, for schedulers that look ahead; zero if unknown or away
    overhead_s: float = 0.0  # downlink, verification and voting, independent of the decision
    round: int = 1
    rounds: int = 0  # of the whole run; 0: unknown
    seed: int = 0  # for schedulers that draw: derive every stream from (seed, purpose, round)
    samples: PerClient | None = None  # |D_i|; None: unknown, all count as equal
    last_loss: PerClient | None = None  # mean loss of each client's last training, NaN before; None: unknown
    energy_price: PerClient | None = None  # y_i: objective per joule; None: energy has no price
    battery: Battery | None = None  # the source of this round's budget; None: every round has its own
    memory: object | None = None  # memory of the same scheduler's last decision in this run
    access_point: NDArray[np.int64] | None = None  # whose uploaders share `bandwidth_hz`; None: each has it

    @property
    def num_clients(self) -> int:
        return len(self.queue)


_ABOVE_ZERO = frozenset(["capacitance", "model_bits", "initial_cpu_hz", "initial_mining_hz"])  # others: at least 0
_UNLIMITED = frozenset(["cpu_max_hz", "mining_max_hz"])  # may be infinite


def make_problem(
    *,
    min_clients: int,
    tradeoff: float,
    work_cycles: float,
    bandwidth_hz: float,
    noise_w_per_hz: float,
    queue: PerClient,
    cycles: PerClient,
    capacitance: PerClient,
    energy_budget_j: PerClient,
    gain: PerClient,
    power_w: PerClient,
    model_bits: PerClient,
    power_max_w: PerClient | None = None,
    cpu_max_hz: PerClient | None = None,
    mining_max_hz: PerClient | None = None,
    reachable: PerClientMask | None = None,
    initial_cpu_hz: PerClient | None = None,
    initial_mining_hz: PerClient | None = None,
    participation_rate: PerClient | None = None,
    samples: PerClient | None = None,
    access_point: NDArray[np.int64] | None = None,
    energy_price: PerClient | None = None,
    overhead_s: float = 0.0,
    round: int = 1,
    rounds: int = 0,
    seed: int = 0,
) -> RoundProblem:
    """Return a validated, read-only problem; defaults are unlimited, reachable, or as in the paper.

    Raises `InvalidProblem` with the first field (and client) that is invalid.
    """
    num = len(queue)

    def column(values: PerClient | None, default: float) -> PerClient:
        filled = np.full(num, default) if values is None else np.array(values, dtype=np.float64)
        filled.setflags(write=False)
        return filled

    mask = np.ones(num, dtype=np.bool_) if reachable is None else np.array(reachable, dtype=np.bool_)
    mask.setflags(write=False)
    power = column(power_w, 0.0)
    served_by = None if access_point is None else np.array(access_point, dtype=np.int64)
    if served_by is not None:
        served_by.setflags(write=False)
    problem = RoundProblem(
        min_clients=min_clients,
        tradeoff=tradeoff,
        work_cycles=work_cycles,
        bandwidth_hz=bandwidth_hz,
        noise_w_per_hz=noise_w_per_hz,
        queue=column(queue, 0.0),
        cycles=column(cycles, 0.0),
        capacitance=column(capacitance, 0.0),
        energy_budget_j=column(energy_budget_j, 0.0),
        gain=column(gain, 0.0),
        power_w=power,
        power_max_w=power if power_max_w is None else column(power_max_w, 0.0),
        model_bits=column(model_bits, 0.0),
        cpu_max_hz=column(cpu_max_hz, np.inf),
        mining_max_hz=column(mining_max_hz, np.inf),
        reachable=mask,
        initial_cpu_hz=column(initial_cpu_hz, PAPER_INITIAL_CPU_HZ),
        initial_mining_hz=column(initial_mining_hz, PAPER_INITIAL_MINING_HZ),
        participation_rate=column(participation_rate, 0.0),
        samples=None if samples is None else column(samples, 0.0),
        access_point=served_by,
        energy_price=None if energy_price is None else column(energy_price, 0.0),
        overhead_s=overhead_s,
        round=round,
        rounds=rounds,
        seed=seed,
    )
    validate_problem(problem)
    return problem


def validate_problem(problem: RoundProblem) -> None:
    """Raise `InvalidProblem` for the first value that is invalid."""
    num = problem.num_clients
    if num == 0:
        raise InvalidProblem("clients: at least one is needed, none given")
    if not 1 <= problem.min_clients <= num:
        raise InvalidProblem(f"min_clients: {problem.min_clients} given, allowed 1 to the {num} clients there are")
    for name in ("tradeoff", "work_cycles", "bandwidth_hz", "noise_w_per_hz"):
        value = getattr(problem, name)
        if not (np.isfinite(value) and value > 0):
            raise InvalidProblem(f"{name}: {value!r} given, must be a finite number above 0")
    if not (np.isfinite(problem.overhead_s) and problem.overhead_s >= 0):
        raise InvalidProblem(f"overhead_s: {problem.overhead_s!r} given, must be a finite number of at least 0")
    for name, values in problem_columns(problem).items():
        if values.shape != (num,):
            raise InvalidProblem(f"{name}: shape {values.shape} given, ({num},) expected")
        if name in ("reachable", "last_loss"):  # any value is allowed
            continue
        good = values > 0.0 if name in _ABOVE_ZERO else values >= 0.0  # False for NaN
        if name not in _UNLIMITED:
            good &= np.isfinite(values)
        if not good.all():
            where = int(np.argmin(good))
            sign = "above" if name in _ABOVE_ZERO else "at least"
            raise InvalidProblem(f"{name} of client {where}: {values[where]!r} given, must be {sign} 0")


def problem_columns(problem: RoundProblem) -> dict[str, NDArray[Any]]:
    """Arrays of the problem by field name, (clients,) each; those that are unknown are left out."""
    return {name: value for name, value in vars(problem).items() if isinstance(value, np.ndarray)}


def restrict_problem(problem: RoundProblem, keep: PerClientMask | NDArray[np.intp]) -> RoundProblem:
    """Return the problem with only the clients in `keep`; `min_clients` is unchanged, the battery is left out."""
    columns = {name: column[keep] for name, column in problem_columns(problem).items()}
    return replace(problem, battery=None, **columns)  # type: ignore[arg-type]  # the columns are all arrays


# Shared spectrum. A client's rate then depends on the set that trains, but not once the number k of uploaders at its
# access point is given: m bits at bandwidth W / k and gain h take and cost what k m bits do at W and gain k h. So such
# a round is an ordinary one. Fewer uploaders than k only make uploads faster and cheaper.


def share_spectrum(problem: RoundProblem, num_uploaders: NDArray[np.int64]) -> RoundProblem:
    """Return the ordinary round in which so many upload at each client's access point, (clients,); at least one."""
    count = np.maximum(num_uploaders, 1)
    return replace(problem, access_point=None, model_bits=count * problem.model_bits, gain=count * problem.gain)


def count_uploaders(problem: RoundProblem, members: PerClientMask) -> NDArray[np.int64]:
    """Number of `members` at each client's access point, (clients,)."""
    assert problem.access_point is not None
    return np.bincount(problem.access_point, members).astype(np.int64)[problem.access_point]


def share_among(problem: RoundProblem, members: PerClientMask) -> RoundProblem:
    """Return the ordinary round in which exactly `members` upload; the round itself if spectrum is not shared."""
    return problem if problem.access_point is None else share_spectrum(problem, count_uploaders(problem, members))


def share_at_most(problem: RoundProblem, limit: int) -> RoundProblem:
    """Return the ordinary round in which all reachable clients upload, but at most `limit` at any access point."""
    if problem.access_point is None:
        return problem
    return share_spectrum(problem, np.minimum(count_uploaders(problem, problem.reachable), limit))


def keep_longest(problem: RoundProblem, members: PerClientMask, limit: int) -> PerClientMask:
    """Return at most `limit` of the members at every access point: those with the longest queues, ties by index."""
    assert problem.access_point is not None
    kept = np.zeros_like(members)
    for access_point in np.unique(problem.access_point[members]):
        here = np.flatnonzero(members & (problem.access_point == access_point))
        kept[here[np.argsort(-problem.queue[here], kind="stable")[:limit]]] = True
    return kept


def limits_of_uploads(problem: RoundProblem) -> Iterator[int]:
    """Yield limits on the uploads at an access point that are worth trying: each up to 10, then ever fewer."""
    limit, most = 1, int(np.count_nonzero(problem.reachable))
    while limit < most:
        yield limit
        limit = max(limit + 1, int(1.2 * limit))
    yield most


class Status(StrEnum):
    """Known quality of a decision."""

    OPTIMAL = "optimal"  # proven gap at most OPTIMAL_GAP
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"  # fewer than m clients can take part, or no client can pay for mining


OPTIMAL_GAP = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class Decision:
    """A scheduler's decision: clients that train, frequencies of training and mining, and transmit powers.

    Arrays have one entry per client, zero if idle. An infeasible decision has no client selected, all zeros and a
    reason. `bound` is a proven lower bound on the objective of any decision for the same problem (-inf: none known).
    """

    selected: PerClientMask
    cpu_hz: PerClient
    mining_hz: PerClient
    power_w: PerClient
    reason: str | None = None  # cause of infeasibility; None if feasible
    bound: float = -np.inf
    iterations: int = 0  # K: inner iterations, as counted by the scheduler
    memory: object | None = field(default=None, repr=False)  # returned to the scheduler with the next problem

    @property
    def is_feasible(self) -> bool:
        return self.reason is None


def infeasible_decision(problem: RoundProblem, reason: str, memory: object | None = None) -> Decision:
    """Decision in which no client trains or mines, because of `reason`."""
    nothing = np.zeros(problem.num_clients)
    return Decision(
        selected=np.zeros(problem.num_clients, dtype=np.bool_),
        cpu_hz=nothing,
        mining_hz=nothing,
        power_w=nothing,
        reason=reason,
        memory=memory,
    )


class Scheduler(Protocol):
    """Any callable from a round's problem to a decision; found by name through entry points.

    State is explicit: a scheduler's state goes into `Decision.memory` and comes back as `RoundProblem.memory`.
    Randomness comes from `RoundProblem.seed` and `.round` alone.
    """

    def __call__(self, problem: RoundProblem) -> Decision: ...
