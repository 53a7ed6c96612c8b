"""The paper's algorithm, DRC-BDFL [Li24, Algorithm 1], with its formulas corrected and made safe.

Repeat until the training set is unchanged: training frequencies spend the energy left by upload and mining (P4); mining
frequencies spend the energy left by upload and training (P5); of all clients in order of latency, the best prefix of at
least m trains (P6). Made safe: every round starts from mining frequencies that all clients can pay for. Clients whose
upload and mining alone exhaust the budget are no candidates and keep that frequency. No frequency ever falls: a client
that mines less lengthens mining, and with it the mining energy, for all others.

P5 has two readings. M of (31) takes the energy of training and upload off every budget, as printed: a client that does
not train keeps it in reserve. For the given S of P5 it spends none of it, and C3 lets it mine with its whole budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.compute import mining_energy, mining_scale, mining_time, training_energy, training_time
from bdfl.radio import uplink_rate, upload_energy, upload_time
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.mining_curves import idle_roots
from bdfl.scheduling.problem import (
    Decision,
    RoundProblem,
    Scheduler,
    infeasible_decision,
    keep_longest,
    limits_of_uploads,
    share_at_most,
)
from bdfl.types import PerClient, PerClientMask

MAX_ITERATIONS = 100  # 2 without CPU caps; at most 4 seen with them
_ROOT_TOLERANCE = 1e-15  # relative
_ROOT_STEPS = 100  # at most 10 seen, with work up to 40 orders of magnitude beyond the paper's


@dataclass(frozen=True, eq=False, kw_only=True)
class Start:
    """Start of a round for the published algorithm and the baselines; independent of the queues."""

    mining_hz: PerClient  # frequencies that all clients can pay for, zero if unreachable
    upload_s: PerClient
    upload_j: PerClient
    cpu_hz: PerClient  # Eq. 29 within the cap, zero for clients that are no candidates
    cpu_limit_hz: PerClient
    candidates: NDArray[np.intp]  # (candidates,) indices of the clients that can train this round
    reason: str | None  # cause of infeasibility; None if a decision exists


@dataclass(frozen=True, eq=False, kw_only=True)
class Iterate:
    """One pass of the inner loop: f, F and S after P4, P5 and P6."""

    cpu_hz: PerClient  # of every candidate, selected or not
    mining_hz: PerClient
    selected: PerClientMask


def drc(
    problem: RoundProblem,
    *,
    max_iterations: Annotated[int, Meta(ge=1)] = MAX_ITERATIONS,
    idle_mining: Literal["reserved", "full"] = "reserved",
) -> Decision:
    """Decision of [Li24, Algorithm 1] for one round; `iterations` is its K, at least one.

    Stops when the set repeats, so K is 2 whenever the alternation stalls (see `iterate_drc`). The paper carries f and F
    over to the next round. Here they are solved again: the same if budgets stay and no CPU cap binds, and safe
    otherwise. `idle_mining` is the reading of P5: idle clients keep the energy of training and upload `reserved`, or
    mine with their `full` budget.
    """

    def decide(problem: RoundProblem) -> Decision:
        start = start_round(problem)
        decision = decide_from(problem, start, max_iterations)
        return _mine_in_full(problem, start, decision) if idle_mining == "full" and decision.is_feasible else decision

    return _decide_shared(problem, decide)


def _decide_shared(problem: RoundProblem, decide: Scheduler) -> Decision:
    """Best decision of `decide` for any limit on the uploads at an access point, if spectrum is shared.

    Each limit gives everybody the bandwidth that it leaves. Of more members at an access point those with the longest
    queues stay; what they planned for this bandwidth, they can pay for with more.
    """
    if problem.access_point is None:
        return decide(problem)
    decisions = [
        _limit_uploads(problem, decide(share_at_most(problem, limit)), limit) for limit in limits_of_uploads(problem)
    ]
    return min(reversed(decisions), key=lambda decision: evaluate(problem, decision).objective)


def _limit_uploads(problem: RoundProblem, decision: Decision, limit: int) -> Decision:
    """Return the decision with only the `limit` members of longest queue at every access point."""
    selected = keep_longest(problem, decision.selected, limit)
    if np.count_nonzero(selected) < problem.min_clients:
        reason = decision.reason or f"{limit} uploads at an access point, {problem.min_clients} clients needed"
        return infeasible_decision(problem, reason)
    return decide_at(problem, selected, decision.cpu_hz, decision.mining_hz, iterations=decision.iterations)


def decide_from(problem: RoundProblem, start: Start, max_iterations: int = MAX_ITERATIONS) -> Decision:
    """Decision of `drc` from a given start, which schedulers of the same round can share."""
    if start.reason is not None:
        return infeasible_decision(problem, start.reason)
    iterate, iterations = settle_iterate(problem, start, max_iterations)
    return decide_at(problem, iterate.selected, iterate.cpu_hz, iterate.mining_hz, iterations=iterations)


def decide_at(
    problem: RoundProblem,
    selected: PerClientMask,
    cpu_hz: PerClient,
    mining_hz: PerClient,
    *,
    iterations: int,
    memory: object | None = None,
) -> Decision:
    """Decision in which the selected clients train at these frequencies, and transmit with their given powers."""
    return Decision(
        selected=selected,
        cpu_hz=np.where(selected, cpu_hz, 0.0),
        mining_hz=mining_hz,
        power_w=np.where(selected, problem.power_w, 0.0),
        iterations=iterations,
        memory=memory,
    )


def settle_iterate(problem: RoundProblem, start: Start, max_iterations: int = MAX_ITERATIONS) -> tuple[Iterate, int]:
    """Return the iterate of a feasible start at which the set repeats, and its number K.

    Its frequencies hold for all candidates: any of them may train at them, selected by P6 or not.
    """
    iterates = _iterate_from(problem, start)
    iterate = next(iterates)
    iterations = 1
    while iterations < max_iterations:
        previous, iterate = iterate, next(iterates)
        iterations += 1
        if np.array_equal(previous.selected, iterate.selected):
            break
    return iterate, iterations


def iterate_drc(problem: RoundProblem) -> Iterator[Iterate]:
    """Yield the iterates of the inner loop, without end; none if the round is infeasible.

    They show that the alternation of P4 [Li24, Eq. 25] and P5 [Li24, Eq. 30] stalls. Eq. 29 spends all energy left by
    mining, so Eq. 31 finds exactly the mining energy of the given F_i and returns that F_i. Only a client at its CPU
    cap has energy left to raise F_i.
    """
    start = start_round(problem)
    return iter(()) if start.reason is not None else _iterate_from(problem, start)


def start_round(problem: RoundProblem) -> Start:
    """Return mining frequencies that all clients can pay for, and the clients that can train beside them.

    Candidates are reachable and have a CPU and energy left after upload and mining, so that [Li24, Eq. 29] is real,
    whoever uploads beside them.
    """
    problem = share_at_most(problem, problem.num_clients)
    mining_hz = start_mining(problem)
    mining_s = mining_time(problem.work_cycles, mining_hz)
    rate = uplink_rate(problem.bandwidth_hz, problem.power_w, problem.gain, problem.noise_w_per_hz)
    upload_s = upload_time(problem.model_bits, rate)
    upload_j = upload_energy(problem.power_w, upload_s)
    left_j = problem.energy_budget_j - upload_j - mining_energy(problem.capacitance, mining_s, mining_hz)
    can_train = problem.reachable & (left_j > 0) & (problem.cpu_max_hz > 0)
    # Without cycles any frequency is fast enough and free: take the initial one.
    cpu_limit_hz = np.where(
        problem.cycles > 0, problem.cpu_max_hz, np.minimum(problem.cpu_max_hz, problem.initial_cpu_hz)
    )
    spend_all_hz = cpu_for_energy(np.where(can_train, left_j, 0.0), problem.capacitance, problem.cycles)
    candidates = np.flatnonzero(can_train)
    return Start(
        mining_hz=mining_hz,
        upload_s=upload_s,
        upload_j=upload_j,
        cpu_hz=np.where(can_train, np.minimum(spend_all_hz, cpu_limit_hz), 0.0),
        cpu_limit_hz=cpu_limit_hz,
        candidates=candidates,
        reason=_why_infeasible(problem, mining_s, len(candidates)),
    )


def exchange_time(problem: RoundProblem, start: Start, cpu_hz: PerClient) -> PerClient:
    """Time (s) at which each candidate has trained at `cpu_hz` and uploaded, (clients,); infinity for the others."""
    time_s: PerClient = np.full(problem.num_clients, np.inf)
    who = start.candidates
    time_s[who] = start.upload_s[who] + training_time(problem.cycles[who], cpu_hz[who])
    return time_s


def start_mining(problem: RoundProblem) -> PerClient:
    """Highest mining frequencies (Hz) up to the initial ones that all budgets can pay, (clients,).

    F_i = min(initial, cap, (2 s E_i / (chi_i A))^(1/3)) with s their sum: [Li24, Eq. 12] within E_i at time A / s. The
    sum is a concave function of s that starts at 0, so Newton's method converges to its one positive fixed point from
    above without overshooting. Unreachable clients and those without a budget get zero.
    """
    wanted_hz = np.where(problem.reachable, np.minimum(problem.initial_mining_hz, problem.mining_max_hz), 0.0)
    payable = idle_roots(problem)
    mining_hz = wanted_hz
    total_hz = float(np.sum(wanted_hz))
    for _ in range(_ROOT_STEPS):
        payable_hz = payable * np.cbrt(total_hz)
        mining_hz = np.minimum(wanted_hz, payable_hz)
        paid_hz = float(np.sum(mining_hz))
        if total_hz - paid_hz <= _ROOT_TOLERANCE * total_hz:
            break
        limited_hz = float(np.sum(payable_hz, where=payable_hz < wanted_hz))
        total_hz -= (total_hz - paid_hz) / (1.0 - limited_hz / (3.0 * total_hz))
    return mining_hz


def cpu_for_energy(energy_j: PerClient, capacitance: PerClient, cycles: PerClient) -> PerClient:
    """Training frequency (Hz) that spends exactly `energy_j`, (clients,).

    [Li24, Eq. 29] sqrt(2 e_i / (chi_i c_i)) with e_i the budget left by upload and mining. No energy gives zero. No
    cycles give infinity: they cost nothing at any frequency.
    """
    free = np.full_like(energy_j, np.inf)
    return np.sqrt(np.divide(2.0 * np.maximum(energy_j, 0.0), capacitance * cycles, out=free, where=cycles > 0))


def mining_root(scale: PerClient, others_hz: PerClient) -> PerClient:
    """Mining frequency (Hz): the positive root F of F^3 = M (F + N), (clients,).

    [Li24, Eq. 31] corrected, with M = `scale` (Hz^2) and N = `others_hz`: Cardano's formula has the square of M N / 2
    under its root, and its second cube root is M / (3 u), which the printed difference computes by cancellation. If the
    discriminant is negative the root is trigonometric. M at most zero gives zero.
    """
    positive = np.maximum(scale, 0.0)
    half = 0.5 * positive * others_hz
    third = positive / 3.0
    discriminant = half**2 - third**3
    larger = np.cbrt(half + np.sqrt(np.maximum(discriminant, 0.0)))
    root = larger + np.divide(third, larger, out=np.zeros_like(third), where=larger > 0)
    oscillating = discriminant < 0
    if oscillating.any():
        scale_hz = np.sqrt(third[oscillating])
        angle = np.arccos(np.minimum(1.5 * others_hz[oscillating] / scale_hz, 1.0))
        root[oscillating] = 2.0 * scale_hz * np.cos(angle / 3.0)
    return root


def fastest_prefix(latency_s: PerClient, queue: PerClient, tradeoff: float, min_clients: int) -> NDArray[np.intp]:
    """Indices of the best set of at least m clients for given frequencies, in order of latency.

    [Li24, Eq. 32] (P6): since no queue is negative, adding a client that is faster than the slowest never hurts. So one
    of the U - m + 1 prefixes of the latency order is optimal. Equal latencies go by index; of equal objectives the
    smallest set wins.
    """
    order = np.argsort(latency_s, kind="stable")
    objective = tradeoff * latency_s[order] - np.cumsum(queue[order])
    best = int(np.argmin(objective[min_clients - 1 :]))
    return order[: min_clients + best]


def _iterate_from(problem: RoundProblem, start: Start) -> Iterator[Iterate]:
    """Yield P4, P5 and P6 in turn, without end, for the candidates of a feasible start; O(U log U) each pass.

    P4 of the first pass is part of the start.
    """
    who = start.candidates
    capacitance, cycles = problem.capacitance[who], problem.cycles[who]
    queue, mining_max_hz = problem.queue[who], problem.mining_max_hz[who]
    upload_s, cpu_limit_hz = start.upload_s[who], start.cpu_limit_hz[who]
    after_upload_j = problem.energy_budget_j[who] - start.upload_j[who]
    mining_hz, candidate_cpu_hz, candidate_mining_hz = start.mining_hz, start.cpu_hz[who], start.mining_hz[who]
    # In exact arithmetic neither f nor F can fall: the maxima below only undo rounding.
    while True:
        # P5, Eq. 31, for all candidates at once: additional mining of others only shortens mining.
        left_j = after_upload_j - training_energy(capacitance, cycles, candidate_cpu_hz)
        others_hz = np.sum(mining_hz) - candidate_mining_hz
        spend_all_hz = mining_root(mining_scale(left_j, capacitance, problem.work_cycles), others_hz)
        candidate_mining_hz = np.maximum(candidate_mining_hz, np.minimum(spend_all_hz, mining_max_hz))
        mining_hz = _with_entries(start.mining_hz, who, candidate_mining_hz)
        # P6, Eq. 32.
        latency_s = upload_s + training_time(cycles, candidate_cpu_hz)
        selected = np.zeros(problem.num_clients, dtype=np.bool_)
        selected[who[fastest_prefix(latency_s, queue, problem.tradeoff, problem.min_clients)]] = True
        yield Iterate(cpu_hz=_with_entries(start.cpu_hz, who, candidate_cpu_hz), mining_hz=mining_hz, selected=selected)
        # P4, Eq. 29, of the next pass.
        mining_s = mining_time(problem.work_cycles, mining_hz)
        left_j = after_upload_j - mining_energy(capacitance, mining_s, candidate_mining_hz)
        spend_all_hz = np.minimum(cpu_for_energy(left_j, capacitance, cycles), cpu_limit_hz)
        candidate_cpu_hz = np.maximum(candidate_cpu_hz, spend_all_hz)


def _mine_in_full(problem: RoundProblem, start: Start, decision: Decision) -> Decision:
    """Return the decision at which P5 and P4 settle for its set if idle clients mine with their whole budget.

    [Li24, Eq. 31] for all clients: F_i = (M_i sum F)^(1/3), but never below what it was, so the sum rises to its least
    fixed point. Of those that train, only a client at its CPU cap has more to spend on mining (see `iterate_drc`). Then
    Eq. 29: faster mining leaves them more for training.
    """
    most_j = start.upload_j + training_energy(problem.capacitance, problem.cycles, start.cpu_limit_hz)
    left_j = np.maximum(problem.energy_budget_j - np.where(decision.selected, most_j, 0.0), 0.0)
    roots = np.cbrt(mining_scale(np.where(problem.reachable, left_j, 0.0), problem.capacitance, problem.work_cycles))
    mining_hz, total_hz = decision.mining_hz, 0.0
    while (paid_hz := float(np.sum(mining_hz))) > total_hz * (1.0 + _ROOT_TOLERANCE):
        total_hz = paid_hz
        mining_hz = np.maximum(decision.mining_hz, np.minimum(roots * np.cbrt(total_hz), problem.mining_max_hz))
    mining_s = mining_time(problem.work_cycles, mining_hz)
    left_j = problem.energy_budget_j - start.upload_j - mining_energy(problem.capacitance, mining_s, mining_hz)
    cpu_hz = np.minimum(cpu_for_energy(left_j, problem.capacitance, problem.cycles), start.cpu_limit_hz)
    cpu_hz = np.where(decision.selected, np.maximum(cpu_hz, decision.cpu_hz), 0.0)
    return replace(decision, cpu_hz=cpu_hz, mining_hz=mining_hz)


def _with_entries(values: PerClient, indices: NDArray[np.intp], entries: PerClient) -> PerClient:
    changed = values.copy()
    changed[indices] = entries
    return changed


def _why_infeasible(problem: RoundProblem, mining_s: float, num_candidates: int) -> str | None:
    if num_candidates < problem.min_clients:
        return (
            f"{num_candidates} of {problem.num_clients} clients can train within their energy budget, "
            f"{problem.min_clients} needed"
        )
    return None if np.isfinite(mining_s) else "no client can pay for mining"
