"""Solve one round's problem given in JSON by any scheduler; answer in JSON."""

from collections.abc import Mapping
from operator import attrgetter

import msgspec
import numpy as np

from bdfl.errors import InvalidProblem
from bdfl.experiment.simulation import prove_bound
from bdfl.scheduling.checker import decision_status, evaluate, optimality_gap
from bdfl.scheduling.problem import Decision, RoundProblem, Status, make_problem
from bdfl.scheduling.registry import ParameterValue, get_scheduler
from bdfl.types import PerClient


class ClientProblem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A client of a problem, in SI units; a cap that is `null` or missing means no cap."""

    queue: float
    cycles: float
    capacitance: float
    energy_budget_j: float
    gain: float
    power_w: float
    model_bits: float
    power_max_w: float | None = None  # None: power_w
    cpu_max_hz: float | None = None
    mining_max_hz: float | None = None


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A round's problem in JSON."""

    min_clients: int
    tradeoff: float
    work_cycles: float
    bandwidth_hz: float
    noise_w_per_hz: float
    clients: list[ClientProblem]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision in JSON: lists have one entry per client, 0 if idle; `gap` is proven.

    An infeasible answer has a reason, and `null` as objective and gap.
    """

    status: Status
    selected: list[int]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    energy_j: list[float]
    delay_s: float
    mining_s: float
    objective: float | None
    gap: float | None
    reason: str | None = None


def decode_problem(text: bytes) -> RoundProblem:
    """Decode a `ProblemDocument`; raise `InvalidProblem` with the location and the fault."""
    try:
        document = msgspec.json.decode(text, type=ProblemDocument)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        where = place.rstrip("`").lstrip(".")
        raise InvalidProblem(f"{where or 'problem'}: {message[:1].lower()}{message[1:]}") from error
    clients = document.clients
    power_w = _column(clients, "power_w")
    power_max_w = _column(clients, "power_max_w")
    return make_problem(
        min_clients=document.min_clients,
        tradeoff=document.tradeoff,
        work_cycles=document.work_cycles,
        bandwidth_hz=document.bandwidth_hz,
        noise_w_per_hz=document.noise_w_per_hz,
        queue=_column(clients, "queue"),
        cycles=_column(clients, "cycles"),
        capacitance=_column(clients, "capacitance"),
        energy_budget_j=_column(clients, "energy_budget_j"),
        gain=_column(clients, "gain"),
        power_w=power_w,
        power_max_w=np.where(np.isnan(power_max_w), power_w, power_max_w),
        model_bits=_column(clients, "model_bits"),
        cpu_max_hz=np.nan_to_num(_column(clients, "cpu_max_hz"), nan=np.inf),
        mining_max_hz=np.nan_to_num(_column(clients, "mining_max_hz"), nan=np.inf),
    )


def solve(problem: RoundProblem, scheduler: str, parameters: Mapping[str, ParameterValue] | None = None) -> Answer:
    """Return the scheduler's decision with its cost and its proven gap.

    A scheduler without a bound is compared with the bound that `exact` proves.
    """
    return answer(problem, decide(problem, scheduler, parameters))


def decide(problem: RoundProblem, scheduler: str, parameters: Mapping[str, ParameterValue] | None = None) -> Decision:
    """Return the scheduler's decision with a proven bound, see `prove_bound`."""
    return prove_bound(problem, get_scheduler(scheduler, parameters)(problem))


def answer(problem: RoundProblem, decision: Decision) -> Answer:
    """Return a decision with its cost, and the gap to its bound."""
    outcome = evaluate(problem, decision)
    feasible = decision.is_feasible
    return Answer(
        status=decision_status(problem, decision, outcome),
        selected=np.flatnonzero(decision.selected).tolist(),
        cpu_hz=decision.cpu_hz.tolist(),
        mining_hz=decision.mining_hz.tolist(),
        power_w=decision.power_w.tolist(),
        energy_j=outcome.energy_j.tolist(),
        delay_s=outcome.delay_s,
        mining_s=outcome.mining_s,
        objective=outcome.objective if feasible else None,
        gap=optimality_gap(problem, outcome, decision.bound) if feasible else None,
        reason=decision.reason,
    )


def _column(clients: list[ClientProblem], name: str) -> PerClient:
    """One value per client; NaN, which JSON cannot carry, if not given."""
    return np.array(list(map(attrgetter(name), clients)), dtype=np.float64)
