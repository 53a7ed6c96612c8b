"""Analysis of a round with changed settings: its problem, the recorded decision, and new decisions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bdfl.errors import BdflError
from bdfl.explorer.block_page import to_db
from bdfl.explorer.documents import (
    DeskCertificate,
    DeskChoice,
    DeskClient,
    DeskDocument,
    DeskProblem,
    DeskSettings,
    FrontierPoint,
    Limit,
)
from bdfl.explorer.errors import BadRequest
from bdfl.explorer.worker_client import Choice, DecisionOrder, ProblemOrder, Solve, Solved
from bdfl.scheduling.problem import OPTIMAL_GAP, Decision, RoundProblem, validate_problem

SCHEDULERS = ("drc", "exact", "exact-power", "random", "round-robin", "channel-best", "all")
_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # of V, for the frontier
_MANY = 24  # clients above which the frontier takes fewer steps
_FEW_STEPS = (0.01, 0.1, 1.0, 10.0, 100.0)


def limits_of(problem: RoundProblem) -> list[Limit]:
    """Return the range and the recorded value of every setting."""
    reachable = problem.reachable
    budget_j = float(np.mean(problem.energy_budget_j[reachable])) if reachable.any() else 0.0
    return [
        Limit(name="tradeoff", least=1e-3, most=1e6, value=problem.tradeoff, unit=""),
        Limit(name="budget_scale", least=0.01, most=100.0, value=1.0, unit=""),
        Limit(name="energy_budget_j", least=1e-9, most=1e6, value=budget_j, unit="J"),
        Limit(name="bandwidth_hz", least=1e3, most=1e10, value=problem.bandwidth_hz, unit="Hz"),
        Limit(name="work_scale", least=0.01, most=100.0, value=1.0, unit=""),
        Limit(name="client", least=0, most=problem.num_clients - 1, value=0, unit=""),
        Limit(name="gain_db", least=-300.0, most=0.0, value=-100.0, unit="dB"),
    ]


def change_problem(problem: RoundProblem, settings: DeskSettings) -> RoundProblem:
    """Return the problem with these settings; raise `BadRequest` if one is outside its limits."""
    for limit in limits_of(problem):
        value = getattr(settings, limit.name)
        if value is not None and not limit.least <= value <= limit.most:
            raise BadRequest(f"{limit.name}: {value:g} given, {limit.least:g} to {limit.most:g} expected")
    if (settings.client is None) != (settings.gain_db is None):
        raise BadRequest("client and gain_db: both or neither expected")
    budget_j, gain = problem.energy_budget_j.copy(), problem.gain.copy()
    if settings.energy_budget_j is not None:
        budget_j[problem.reachable] = settings.energy_budget_j
    if settings.budget_scale is not None:
        budget_j *= settings.budget_scale
    if settings.client is not None and settings.gain_db is not None:
        gain[settings.client] = 10.0 ** (settings.gain_db / 10.0)
    changed = replace(
        problem,
        energy_budget_j=budget_j,
        gain=gain,
        tradeoff=problem.tradeoff if settings.tradeoff is None else settings.tradeoff,
        bandwidth_hz=problem.bandwidth_hz if settings.bandwidth_hz is None else settings.bandwidth_hz,
        work_cycles=problem.work_cycles * (1.0 if settings.work_scale is None else settings.work_scale),
    )
    try:
        validate_problem(changed)
    except BdflError as error:
        raise BadRequest(str(error)) from None
    return changed


def open_desk(
    height: int,
    problem: RoundProblem,
    recorded: Decision | None,
    settings: DeskSettings,
    *,
    is_next: bool,
    solve: Callable[[Solve], Solved],
) -> DeskDocument:
    """Return the what-if page of a round; `solve` runs in the worker process."""
    changed = change_problem(problem, settings)
    steps = _STEPS if problem.num_clients <= _MANY else _FEW_STEPS
    order = Solve(
        problem=ProblemOrder.of(changed),
        recorded_problem=ProblemOrder.of(problem),
        recorded=None if recorded is None else _decision_of(recorded),
        schedulers=list(SCHEDULERS),
        tradeoffs=[changed.tradeoff * step for step in steps],
    )
    solved = solve(order)
    return DeskDocument(
        height=height,
        is_next=is_next,
        settings=settings,
        limits=limits_of(problem),
        problem=_show_problem(changed),
        recorded=None if solved.recorded is None else _show_choice(solved.recorded),
        choices=[_show_choice(one) for one in solved.choices],
        certificate=certify(solved),
        frontier=[
            FrontierPoint(
                scheduler=one.scheduler,
                tradeoff=one.tradeoff,
                delay_s=one.delay_s if one.objective is not None else None,
                served_queue=one.served_queue if one.objective is not None else None,
                num_selected=len(one.selected),
            )
            for one in solved.frontier
        ],
    )


def certify(solved: Solved) -> DeskCertificate:
    """Return the proven bound and gap of the exact choice at the recorded transmit powers."""
    exact = next((one for one in solved.choices if one.scheduler == "exact"), None)
    if exact is None or exact.objective is None:
        why = "nobody can be scheduled" if exact is None or exact.reason is None else exact.reason
        return DeskCertificate(bound=None, gap=None, text=f"There is nothing to prove: {why}.")
    if exact.bound is None or exact.gap is None:
        return DeskCertificate(bound=None, gap=None, text="No bound was proven.")
    end = "it is optimal" if exact.gap <= OPTIMAL_GAP else f"a gap of at most {100 * exact.gap:.2g} %"
    text = (
        f"With these transmit powers no decision has an objective below {exact.bound:.6g}, as the exact scheduler"
        f" proves; the best one found has {exact.objective:.6g}: {end}."
    )
    return DeskCertificate(bound=exact.bound, gap=exact.gap, text=text)


def _decision_of(decision: Decision) -> DecisionOrder:
    return DecisionOrder(
        selected=decision.selected.tolist(),
        cpu_hz=decision.cpu_hz.tolist(),
        mining_hz=decision.mining_hz.tolist(),
        power_w=decision.power_w.tolist(),
        reason=decision.reason,
    )


def _show_choice(choice: Choice) -> DeskChoice:
    return DeskChoice(**{name: getattr(choice, name) for name in DeskChoice.__struct_fields__})


def _show_problem(problem: RoundProblem) -> DeskProblem:
    return DeskProblem(
        round=problem.round,
        min_clients=problem.min_clients,
        tradeoff=problem.tradeoff,
        work_cycles=problem.work_cycles,
        bandwidth_hz=problem.bandwidth_hz,
        noise_w_per_hz=problem.noise_w_per_hz,
        overhead_s=problem.overhead_s,
        clients=[
            DeskClient(
                client=client,
                queue=float(problem.queue[client]),
                cycles=float(problem.cycles[client]),
                capacitance=float(problem.capacitance[client]),
                energy_budget_j=float(problem.energy_budget_j[client]),
                gain_db=to_db(float(problem.gain[client])),
                power_w=float(problem.power_w[client]),
                model_bits=float(problem.model_bits[client]),
                is_reachable=bool(problem.reachable[client]),
                rate=float(problem.participation_rate[client]),
            )
            for client in range(problem.num_clients)
        ],
    )
