"""A general solver beside `exact`: SCIP, a global branch-and-bound solver, on the same rounds.

Two ways to write the round down, both in s, GHz and shares of a budget so that no coefficient is extreme.

`equations` is what a modeller would write first: Eqs. 6 to 13 with f, F and one binary per client, whose products of
mining time and F^3 are not convex.

`convex` gives SCIP what `exact` knows: mining roots instead of frequencies, so that the round is a convex problem but
for the binaries, and training times that stand at their upper limit for clients who do not train, so that relaxing a
binary gives the convex hull. Both get the published algorithm's objective as a bound on the exchange time, never the
optimum.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from bdfl.compute import training_energy
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.drc import drc
from bdfl.scheduling.exact import exact
from bdfl.scheduling.mining_curves import fixed_power_curves, idle_roots, training_inertia
from bdfl.scheduling.problem import Decision, RoundProblem
from benchmarks.clock import best_time_s
from benchmarks.results import Result, make_result
from benchmarks.rounds import Family, draw_round

if TYPE_CHECKING:
    from pyscipopt import Model, Variable

SIZES = (6, 8, 10)
RELATIVE_GAP = 1e-6
FEASIBILITY = 1e-8  # with SCIP's default of 1e-6 no faster, and budgets overdrawn by up to a percent
_LEAST_MINING = 1e-3  # of the roots with everybody idle; less would take 30,000 times as long to mine


class Formulation(StrEnum):
    """How the round is put to SCIP."""

    EQUATIONS = "equations"
    CONVEX = "convex"


@dataclass(frozen=True)
class ScipRow:
    """One round solved by both."""

    rounds: str
    formulation: str
    scip_status: str
    clients: int
    exact_objective: float
    scip_objective: float | None
    scip_bound: float
    difference: float | None
    same_set: str
    violation: float | None
    scip_s: float
    exact_ms: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Answer:
    """What SCIP says: its status, time, objective, bound and decision, the last None if it found nothing."""

    status: str
    seconds: float
    objective: float | None
    bound: float
    decision: Decision | None


def measure_scip(
    sizes: Sequence[int], num_rounds: int, time_limit_s: float, seed: int, report: Callable[[str], None]
) -> list[Result]:
    """Both optima, their difference and the times, for rounds that both can schedule."""
    rows = []
    for family in (Family.PAPER, Family.CELL, Family.WIDE):
        for num_clients in sizes:
            for number in range(num_rounds):
                problem = draw_round(family, num_clients, number, seed)
                if not drc(problem).is_feasible:
                    continue
                report(f"scip: {family} round {number} of {num_clients} clients")
                rows += [compare_with_scip(problem, str(family), form, time_limit_s) for form in Formulation]
    notes = [
        f"SCIP {_scip_version()} stops at a relative gap of {RELATIVE_GAP:g} or after {time_limit_s:g} s. "
        f"Its tolerance is {FEASIBILITY:g}, so it may undercut the optimum by a little more than that; "
        "`exact` is proven to 1e-9 and overdraws nothing.",
        "`difference` is (SCIP - exact) / max(|J|, V delay); `same set` tells whether both select the same clients.",
        "`violation` is how far the checker finds SCIP's decision beyond a budget, relative to it.",
        *_summaries(rows),
    ]
    return [make_result("scip", "A general solver beside exact", rows, notes)]


def compare_with_scip(problem: RoundProblem, family: str, formulation: Formulation, time_limit_s: float) -> ScipRow:
    """One row, with how far the checker finds SCIP's decision beyond a limit, relative to it."""
    decision = exact(problem)
    outcome = evaluate(problem, decision)
    exact_s = best_time_s(lambda: exact(problem), 5)
    build = _model_convex if formulation is Formulation.CONVEX else _model_equations
    answer = solve_with_scip(problem, build, time_limit_s)
    difference, violation, same = None, None, "-"
    if answer.decision is not None and answer.objective is not None:
        broken = find_violations(problem, answer.decision)
        violation = max((item.found / item.allowed - 1.0 for item in broken), default=0.0)
        scale = max(abs(outcome.objective), problem.tradeoff * outcome.delay_s)
        difference = (answer.objective - outcome.objective) / scale
        same = "yes" if np.array_equal(answer.decision.selected, decision.selected) else "no"
    return ScipRow(
        rounds=family,
        formulation=str(formulation),
        scip_status=answer.status,
        clients=problem.num_clients,
        exact_objective=outcome.objective,
        scip_objective=answer.objective,
        scip_bound=answer.bound,
        difference=difference,
        same_set=same,
        violation=violation,
        scip_s=answer.seconds,
        exact_ms=1e3 * exact_s,
        ratio=answer.seconds / exact_s,
    )


def solve_with_scip(
    problem: RoundProblem, build: Callable[["Model", RoundProblem, float], "Unknowns"], time_limit_s: float
) -> Answer:
    """SCIP's answer to a round that `drc` can schedule."""
    from pyscipopt import Model

    start = evaluate(problem, drc(problem))
    fastest_mining_s = problem.work_cycles * float(idle_roots(problem).sum()) ** -1.5
    horizon_s = (start.objective + float(problem.queue.sum())) / problem.tradeoff - fastest_mining_s
    model = Model()
    model.hideOutput()
    model.setParam("limits/time", time_limit_s)
    model.setParam("limits/gap", RELATIVE_GAP)
    model.setParam("numerics/feastol", FEASIBILITY)
    unknowns = build(model, problem, horizon_s)
    begin = time.perf_counter()
    model.optimize()
    seconds = time.perf_counter() - begin
    if model.getNSols() == 0:
        return Answer(model.getStatus(), seconds, None, model.getDualbound(), None)
    return Answer(
        model.getStatus(), seconds, model.getObjVal(), model.getDualbound(), _decide(model, problem, unknowns)
    )


@dataclass(frozen=True, eq=False)
class Unknowns:
    """SCIP's variables that make a decision; lists have one entry per client."""

    selected: "list[Variable]"
    exchange_s: "Variable"
    mining: "list[Variable]"
    mining_unit_hz: Callable[[float], float]  # Hz per unit of `mining`, from the sum of all of them


def _decide(model: "Model", problem: RoundProblem, unknowns: Unknowns) -> Decision:
    """The decision that SCIP's values mean; training as slowly as the exchange time lets it."""
    chosen = np.array([model.getVal(variable) > 0.5 for variable in unknowns.selected])
    mining = np.maximum([model.getVal(variable) for variable in unknowns.mining], 0.0)
    cpu_hz, power_w = fixed_power_curves(problem).settle(model.getVal(unknowns.exchange_s))
    return Decision(
        selected=chosen,
        cpu_hz=np.where(chosen, cpu_hz, 0.0),
        mining_hz=mining * unknowns.mining_unit_hz(float(mining.sum())),
        power_w=np.where(chosen, power_w, 0.0),
    )


def _model_convex(model: "Model", problem: RoundProblem, horizon_s: float) -> Unknowns:
    """Mining roots as shares of their sum with everybody idle; all constraints convex."""
    from pyscipopt import quicksum

    curves, idle = fixed_power_curves(problem), idle_roots(problem)
    inertia = training_inertia(problem) / problem.energy_budget_j  # (share of the budget) s^2
    shares = idle / idle.sum()
    fastest_s = problem.work_cycles * float(idle.sum()) ** -1.5
    exchange_s = model.addVar("exchange_s", lb=0.0, ub=horizon_s)
    mining_s = model.addVar("mining_s", lb=fastest_s, ub=fastest_s * _LEAST_MINING**-1.5)
    total = model.addVar("total", lb=_LEAST_MINING, ub=1.0)
    selected, mining = [], []
    for client in range(problem.num_clients):
        able = bool(curves.least_s[client] <= horizon_s)
        trains = model.addVar(f"trains_{client}", vtype="B", ub=float(able))
        root = model.addVar(f"root_{client}", lb=0.0, ub=float(shares[client]))
        selected.append(trains)
        mining.append(root)
        if not able:
            continue
        upload_s = float(curves.upload_s[client])
        least_s, most_s = float(curves.least_s[client]) - upload_s, horizon_s - upload_s
        afterwards = float(curves.ceiling[client] / idle[client] ** 3)  # share of the budget that upload leaves
        k = float(inertia[client])
        # Standing at `most_s` if idle, the time and its cost k / time^2 are linear in the binary there.
        training_s = model.addVar(f"training_s_{client}", lb=least_s, ub=most_s)
        training = model.addVar(f"training_{client}", lb=0.0, ub=1.0)
        left = model.addVar(f"left_{client}", lb=0.0, ub=1.0)
        model.addCons(training_s >= most_s - (most_s - least_s) * trains)
        model.addCons(training_s - most_s * (1 - trains) + upload_s * trains <= exchange_s)
        model.addCons(k * training_s**-2 - k / most_s**2 * (1 - trains) <= training)
        model.addCons(training <= afterwards * trains)
        model.addCons(left + training + (1.0 - afterwards) * trains <= 1.0)
        scaled_root = model.addVar(f"scaled_root_{client}", lb=0.0, ub=1.0)
        model.addCons(root == float(shares[client]) * scaled_root)
        model.addCons(scaled_root**3 <= left)
    model.addCons(quicksum(selected) >= problem.min_clients)
    model.addCons(total <= quicksum(mining))
    model.addCons(fastest_s * total**-1.5 <= mining_s)
    _set_objective(model, problem, exchange_s, mining_s, selected)
    # F_i = s^(1/3) b_i with s^(2/3) the sum of all b.
    return Unknowns(selected, exchange_s, mining, lambda sum_: float(idle.sum()) ** 1.5 * sum_**0.5)


def _model_equations(model: "Model", problem: RoundProblem, horizon_s: float) -> Unknowns:
    """Eqs. 6 to 13 as they stand, frequencies in GHz."""
    from pyscipopt import quicksum

    curves = fixed_power_curves(problem)
    work, cycles = problem.work_cycles / 1e9, problem.cycles / 1e9
    per_cube = 0.5e27 * problem.capacitance / problem.energy_budget_j  # share of the budget per second and GHz^3
    per_square = training_energy(problem.capacitance, problem.cycles, np.full(problem.num_clients, 1e9))
    exchange_s = model.addVar("exchange_s", lb=0.0, ub=horizon_s)
    mining_s = model.addVar("mining_s", lb=0.0, ub=horizon_s)
    fastest_s = problem.work_cycles * float(idle_roots(problem).sum()) ** -1.5
    selected, mining = [], []
    for client in range(problem.num_clients):
        able = bool(curves.least_s[client] <= horizon_s)
        trains = model.addVar(f"trains_{client}", vtype="B", ub=float(able))
        most_ghz = float(np.cbrt(1.0 / (per_cube[client] * fastest_s)))
        mining_ghz = model.addVar(f"mining_ghz_{client}", lb=0.0, ub=most_ghz)
        selected.append(trains)
        mining.append(mining_ghz)
        spent = float(per_cube[client]) * mining_s * mining_ghz**3
        if able:
            upload_s = float(curves.upload_s[client])
            budget_j = float(problem.energy_budget_j[client])
            fastest_ghz = float(cycles[client] / (curves.least_s[client] - upload_s))
            cpu_ghz = model.addVar(f"cpu_ghz_{client}", lb=0.0, ub=fastest_ghz)
            model.addCons(float(cycles[client]) * trains <= (exchange_s - upload_s * trains) * cpu_ghz)
            spent += float(per_square[client]) / budget_j * cpu_ghz**2
            spent += float(problem.power_w[client]) * upload_s / budget_j * trains
        model.addCons(spent <= 1.0)
    model.addCons(quicksum(selected) >= problem.min_clients)
    model.addCons(work <= mining_s * quicksum(mining))
    _set_objective(model, problem, exchange_s, mining_s, selected)
    return Unknowns(selected, exchange_s, mining, lambda _sum: 1e9)


def _set_objective(
    model: "Model", problem: RoundProblem, exchange_s: "Variable", mining_s: "Variable", selected: "list[Variable]"
) -> None:
    from pyscipopt import quicksum

    queues = quicksum(float(queue) * trains for queue, trains in zip(problem.queue, selected, strict=True))
    model.setObjective(problem.tradeoff * (exchange_s + mining_s) - queues)


def _scip_version() -> str:
    from pyscipopt import Model

    return str(Model().version())


def _summaries(rows: Sequence[ScipRow]) -> list[str]:
    lines = []
    for form in Formulation:
        ratios = [row.ratio for row in rows if row.formulation == form]
        differences = [row.difference for row in rows if row.formulation == form and row.difference is not None]
        lines.append(
            f"{form}: SCIP takes {np.median(ratios):,.0f} times as long (median; {min(ratios):,.0f} to "
            f"{max(ratios):,.0f}); differences from {min(differences):.1e} to {max(differences):.1e}."
        )
    return lines
