"""Independent check of any decision: delay, energy, objective, and every violated constraint.

Uses the cost equations alone, never a solver.
"""

from dataclasses import dataclass

import numpy as np

from bdfl.compute import mining_energy, mining_time, round_delay, training_energy, training_time
from bdfl.errors import InvalidDecision
from bdfl.radio import uplink_rate, upload_energy, upload_time
from bdfl.scheduling.problem import OPTIMAL_GAP, Decision, RoundProblem, Status, share_among
from bdfl.types import PerClient

TOLERANCE = 1e-9  # relative: allows for rounding in float64


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """Costs of a decision. Per-client arrays are zero for idle clients."""

    training_s: PerClient
    upload_s: PerClient
    training_j: PerClient
    upload_j: PerClient
    mining_j: PerClient
    exchange_s: float  # time when the last selected client has uploaded: the max of Eq. 13
    mining_s: float
    delay_s: float
    objective: float  # V d - sum of the selected queues + priced energy; infinity if infeasible

    @property
    def energy_j(self) -> PerClient:
        """Energy of every client (J), (clients,): [Li24, Eq. 14], training + upload + mining."""
        return self.training_j + self.upload_j + self.mining_j


@dataclass(frozen=True)
class Violation:
    """One violated constraint: its name, the client, the value found and the value allowed."""

    constraint: str  # "C1", "C2", "C3", "cap" or "form"
    client: int | None
    found: float
    allowed: float

    def __str__(self) -> str:
        whose = "" if self.client is None else f" client {self.client}:"
        return f"{self.constraint}:{whose} found {self.found:.12g}, allowed {self.allowed:.12g}"


def evaluate(problem: RoundProblem, decision: Decision) -> Outcome:
    """Recompute delay, energies and objective of `decision` from Eqs. 6 to 14 and 23.

    An infeasible decision takes no time, costs nothing and has an infinite objective.
    """
    _validate_form(problem, decision)
    if not decision.is_feasible:
        columns = ("training_s", "upload_s", "training_j", "upload_j", "mining_j")
        nothing = dict.fromkeys(columns, np.zeros(problem.num_clients))
        return Outcome(**nothing, exchange_s=0.0, mining_s=0.0, delay_s=0.0, objective=np.inf)
    chosen = decision.selected
    problem = share_among(problem, chosen)
    radiated_w = np.maximum(decision.power_w, 0.0)  # a negative power is a violation: no error here
    rate = uplink_rate(problem.bandwidth_hz, radiated_w, problem.gain, problem.noise_w_per_hz)
    airtime_s = upload_time(problem.model_bits, rate)
    upload_s = np.where(chosen, airtime_s, 0.0)
    upload_j = np.where(chosen, upload_energy(decision.power_w, airtime_s), 0.0)
    training_s = np.where(chosen, training_time(problem.cycles, decision.cpu_hz), 0.0)
    training_j = np.where(chosen, training_energy(problem.capacitance, problem.cycles, decision.cpu_hz), 0.0)
    mining_s = mining_time(problem.work_cycles, decision.mining_hz)
    exchange_s = float(np.max(upload_s + training_s, initial=0.0))
    delay_s = round_delay(exchange_s, mining_s, problem.overhead_s)
    mining_j = mining_energy(problem.capacitance, mining_s, decision.mining_hz)
    objective = drift_plus_penalty(problem.tradeoff, delay_s, float(np.sum(problem.queue[chosen])))
    if problem.energy_price is not None:
        objective += float(np.sum(problem.energy_price * (training_j + upload_j + mining_j)))
    return Outcome(
        training_s=training_s,
        upload_s=upload_s,
        training_j=training_j,
        upload_j=upload_j,
        mining_j=mining_j,
        exchange_s=exchange_s,
        mining_s=mining_s,
        delay_s=delay_s,
        objective=objective,
    )


def drift_plus_penalty(tradeoff: float, delay_s: float, selected_queue: float) -> float:
    """Objective of a round: [Li24, Eq. 23] with the delay counted once and constant terms dropped."""
    return tradeoff * delay_s - selected_queue


def find_violations(problem: RoundProblem, decision: Decision, tolerance: float = TOLERANCE) -> list[Violation]:
    """Return every constraint that `decision` violates by more than `tolerance` relative.

    [Li24, Eq. 24] C1: only reachable clients train or mine. C2: at least m train. C3: no budget is overdrawn. Caps:
    frequencies and powers within the client's limits, none negative or NaN. An infeasible decision violates nothing.
    """
    outcome = evaluate(problem, decision)
    if not decision.is_feasible:
        return []
    found: list[Violation] = []

    def judge(constraint: str, values: PerClient, allowed: PerClient) -> None:
        bad = ~(values <= allowed * (1 + tolerance))  # True for NaN
        found.extend(Violation(constraint, int(i), float(values[i]), float(allowed[i])) for i in np.flatnonzero(bad))

    active = decision.selected | (decision.mining_hz > 0)
    found.extend(Violation("C1", int(i), 1.0, 0.0) for i in np.flatnonzero(active & ~problem.reachable))
    num_selected = int(np.count_nonzero(decision.selected))
    if num_selected < problem.min_clients:
        found.append(Violation("C2", None, num_selected, problem.min_clients))
    judge("C3", outcome.energy_j, problem.energy_budget_j)
    judge("cap", decision.cpu_hz, problem.cpu_max_hz)
    judge("cap", decision.mining_hz, problem.mining_max_hz)
    judge("cap", decision.power_w, np.maximum(problem.power_w, problem.power_max_w))
    for values in (decision.cpu_hz, decision.mining_hz, decision.power_w):
        judge("form", -values, np.zeros_like(values))
    if not np.isfinite(outcome.delay_s):
        found.append(Violation("form", None, outcome.delay_s, np.finfo(float).max))
    return found


def optimality_gap(problem: RoundProblem, outcome: Outcome, bound: float) -> float:
    """Proven relative gap: (J - bound) / max(|J|, V delay), at least 0; infinity without a bound.

    Relative to |J| alone it would be meaningless near J = 0.
    """
    if not np.isfinite(outcome.objective):
        return np.inf
    scale = gap_scale(problem, outcome)
    return max(outcome.objective - bound, 0.0) / scale if scale > 0 else 0.0


def gap_scale(problem: RoundProblem, outcome: Outcome) -> float:
    """Reference of relative gaps: max(|J|, V delay)."""
    return max(abs(outcome.objective), problem.tradeoff * outcome.delay_s)


def decision_status(problem: RoundProblem, decision: Decision, outcome: Outcome) -> Status:
    """Return the proven quality of the decision."""
    if not decision.is_feasible:
        return Status.INFEASIBLE
    gap = optimality_gap(problem, outcome, decision.bound)
    return Status.OPTIMAL if gap <= OPTIMAL_GAP else Status.FEASIBLE


def _validate_form(problem: RoundProblem, decision: Decision) -> None:
    for name in ("selected", "cpu_hz", "mining_hz", "power_w"):
        shape = getattr(decision, name).shape
        if shape != (problem.num_clients,):
            raise InvalidDecision(f"{name}: shape {shape} given, ({problem.num_clients},) expected")
