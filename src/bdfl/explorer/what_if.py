"""Analysis of a round with changed settings, in the worker: its problem, the recorded decision, and new decisions."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from bdfl.errors import BdflError
from bdfl.experiment.simulation import answer, decide, prove_bound
from bdfl.explorer import BadRequest
from bdfl.explorer.block_page import to_db
from bdfl.explorer.documents import (
    FrontierPoint,
    Optimality,
    ProblemClient,
    ProblemDocument,
    Setting,
    SolvedDecision,
    WhatIfDocument,
    WhatIfSettings,
)
from bdfl.explorer.worker_client import SolveAgain
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.problem import OPTIMAL_GAP, Decision, RoundProblem, validate_problem

SCHEDULERS = ("drc", "exact", "exact-power", "random", "round-robin", "channel-best", "all")
_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # of V, for the frontier
_MANY = 24  # clients above which the frontier takes fewer steps
_FEW_STEPS = (0.01, 0.1, 1.0, 10.0, 100.0)


def solve_again(request: SolveAgain) -> WhatIfDocument:
    """Return the what-if page of a round; raise `BadRequest` for settings outside their limits."""
    recorded = request.recorded
    problem = change_problem(request.problem, request.settings)
    validate_problem(request.problem)
    decisions = {name: _decide(name, problem, partial(decide, problem, name)) for name in SCHEDULERS}
    steps = _STEPS if problem.num_clients <= _MANY else _FEW_STEPS
    return WhatIfDocument(
        height=request.height,
        is_next=request.is_next,
        settings=request.settings,
        limits=limits_of(request.problem),
        problem=_show_problem(problem),
        recorded=None
        if recorded is None
        else _decide("recorded", request.problem, partial(prove_bound, request.problem, recorded))[0],
        choices=[shown for shown, _ in decisions.values()],
        certificate=_certify(*decisions["exact"]),
        frontier=[
            _frontier_point(replace(problem, tradeoff=problem.tradeoff * step), name)
            for step in steps
            for name in ("drc", "exact")
        ],
    )


def limits_of(problem: RoundProblem) -> list[Setting]:
    """Return the range and the recorded value of every setting."""
    reachable = problem.reachable
    budget_j = float(np.mean(problem.energy_budget_j[reachable])) if reachable.any() else 0.0
    return [
        Setting(name="tradeoff", least=1e-3, most=1e6, value=problem.tradeoff, unit=""),
        Setting(name="budget_scale", least=0.01, most=100.0, value=1.0, unit=""),
        Setting(name="energy_budget_j", least=1e-9, most=1e6, value=budget_j, unit="J"),
        Setting(name="bandwidth_hz", least=1e3, most=1e10, value=problem.bandwidth_hz, unit="Hz"),
        Setting(name="work_scale", least=0.01, most=100.0, value=1.0, unit=""),
        Setting(name="client", least=0, most=problem.num_clients - 1, value=0, unit=""),
        Setting(name="gain_db", least=-300.0, most=0.0, value=-100.0, unit="dB"),
    ]


def change_problem(problem: RoundProblem, settings: WhatIfSettings) -> RoundProblem:
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


def _decide(name: str, problem: RoundProblem, make: Callable[[], Decision]) -> tuple[SolvedDecision, Decision]:
    """Return a decision, with its costs and the time it took."""
    begun_s = time.perf_counter()
    decision = make()
    seconds = time.perf_counter() - begun_s
    found, outcome = answer(problem, decision), evaluate(problem, decision)
    slowest = int(np.argmax(outcome.training_s + outcome.upload_s))
    return SolvedDecision(
        scheduler=name,
        training_s=float(outcome.training_s[slowest]),
        upload_s=float(outcome.upload_s[slowest]),
        seconds=seconds,
        **msgspec.structs.asdict(found),
    ), decision


def _frontier_point(problem: RoundProblem, scheduler: str) -> FrontierPoint:
    shown, decision = _decide(scheduler, problem, partial(decide, problem, scheduler))
    is_feasible = shown.objective is not None
    return FrontierPoint(
        scheduler=scheduler,
        tradeoff=problem.tradeoff,
        delay_s=shown.delay_s if is_feasible else None,
        served_queue=float(np.sum(problem.queue[decision.selected])) if is_feasible else None,
        num_selected=len(shown.selected),
    )


def _certify(exact: SolvedDecision, decision: Decision) -> Optimality:
    """Return the proven bound and gap of the exact decision at the recorded transmit powers."""
    if exact.objective is None:
        why = exact.reason or "nobody can be scheduled"
        return Optimality(bound=None, gap=None, text=f"There is nothing to prove: {why}.")
    if not np.isfinite(decision.bound) or exact.gap is None:
        return Optimality(bound=None, gap=None, text="No bound was proven.")
    end = "it is optimal" if exact.gap <= OPTIMAL_GAP else f"a gap of at most {100 * exact.gap:.2g} %"
    text = (
        f"With these transmit powers no decision has an objective below {decision.bound:.6g}, as the exact scheduler"
        f" proves; the best one found has {exact.objective:.6g}: {end}."
    )
    return Optimality(bound=float(decision.bound), gap=exact.gap, text=text)


def _show_problem(problem: RoundProblem) -> ProblemDocument:
    clients = [
        ProblemClient(
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
    ]
    return msgspec.structs.replace(msgspec.convert(problem, ProblemDocument, from_attributes=True), clients=clients)
