"""The paper's algorithm: each formula against an independent one, the safe start, and the stall."""

from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import combinations, islice, pairwise
from math import log2, sqrt

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import brentq

from bdfl.compute import mining_energy, mining_scale, mining_time, training_energy
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.drc import (
    cpu_for_energy,
    drc,
    fastest_prefix,
    iterate_drc,
    mining_root,
    start_mining,
    start_round,
)
from bdfl.scheduling.problem import make_problem

WORK_CYCLES = 3e7 * np.log(1e10)  # the paper's A


def paper_problem(num_clients=8, **changes):
    """The paper's round: equal clients, channels that differ."""
    rng = np.random.default_rng(0)

    def same(value):
        return np.full(num_clients, value)

    values = {
        "min_clients": 3,
        "tradeoff": 100.0,
        "work_cycles": WORK_CYCLES,
        "bandwidth_hz": 180e3,
        "noise_w_per_hz": 1e-16,
        "queue": rng.uniform(0.0, 3.0, num_clients),
        "cycles": same(3e8),
        "capacitance": same(5.4e-28),
        "energy_budget_j": same(0.4),
        "gain": 2.5e-8 * rng.gamma(20.0, 1 / 20, num_clients),
        "power_w": same(0.2),
        "model_bits": same(1e6),
    }
    return make_problem(**(values | changes))


def feasible_problem(seed, **choices):
    """A random round in which at least one client can train."""
    rng = np.random.default_rng(seed)
    while True:
        problem = draw_problem(rng, 8, min_clients=1, **choices)
        if start_round(problem).reason is None:
            return problem


def root_by_decimal(scale, others):
    """Positive root of F^3 = M (F + N) to 45 digits, by Newton's method from above."""
    with localcontext() as context:
        context.prec = 60
        m, n = Decimal(scale), Decimal(others)
        root = m.sqrt() + (m * n) ** (Decimal(1) / 3)  # above: (a + b)^3 >= a^2 (a + b) + b^3 for a = sqrt M
        for _ in range(200):
            root -= (root**3 - m * (root + n)) / (3 * root**2 - m)
        assert abs(root**3 - m * (root + n)) < root**3 * Decimal("1e-45")
        return root


@given(st.floats(1e-3, 1e24), st.floats(0.0, 1e16))
def test_mining_root_agrees_with_sixty_digit_arithmetic(scale, others_hz):
    root = mining_root(np.array([scale]), np.array([others_hz]))[0]
    assert float(abs(Decimal(root) / root_by_decimal(scale, others_hz) - 1)) < 2e-15


@pytest.mark.parametrize("others_hz", [0.0, 0.38, 0.3849, 0.38490017945975052, 0.3850, 0.39, 1.0])
def test_mining_root_is_smooth_where_the_discriminant_changes_sign(others_hz):
    # With M = 1 the sign changes at N = 2 / sqrt(27) = 0.3849.
    roots = np.roots([1.0, 0.0, -1.0, -others_hz])
    assert mining_root(np.array([1.0]), np.array([others_hz]))[0] == pytest.approx(roots.real.max(), rel=1e-7)
    assert mining_root(np.array([1.0]), np.array([others_hz]))[0] == pytest.approx(
        float(root_by_decimal(1.0, others_hz)), rel=4e-16
    )


def test_mining_root_of_a_client_without_energy_is_zero():
    np.testing.assert_array_equal(mining_root(np.array([0.0, -1.0, 0.0]), np.array([1e9, 1e9, 0.0])), 0.0)


def test_a_lone_miner_spends_all_its_energy():
    scale = mining_scale(np.array([0.4]), np.array([5.4e-28]), WORK_CYCLES)
    mining_hz = mining_root(scale, np.array([0.0]))
    energy_j = mining_energy(np.array([5.4e-28]), mining_time(WORK_CYCLES, mining_hz), mining_hz)
    assert energy_j[0] == pytest.approx(0.4, rel=1e-14)


def test_equation_31_as_printed_is_wrong():
    energy_j, capacitance, others_hz = 0.05, 5.4e-28, 7 * 1.5e9
    scale = 2 * energy_j / (capacitance * WORK_CYCLES)
    inside = scale * others_hz / 2 - (scale / 3) ** 3  # printed without the square: far below zero here
    assert inside < 0
    corrected_hz = mining_root(np.array([scale]), np.array([others_hz]))[0]
    printed_hz = 2 * (complex(scale * others_hz / 2, (-inside) ** 0.5) ** (1 / 3)).real
    assert abs(printed_hz / corrected_hz - 1) > 0.1
    assert corrected_hz**3 == pytest.approx(scale * (corrected_hz + others_hz), rel=1e-14)


def test_difference_of_cube_roots_loses_digits_that_the_quotient_keeps():
    worst_printed = worst_ours = 0.0
    for scale, others_hz in [(1e17, 1e10), (1e17, 1e12), (1e18, 1e14), (1e16, 1e15)]:
        half = scale * others_hz / 2
        root = np.sqrt(half**2 - (scale / 3) ** 3)
        printed_hz = np.cbrt(half + root) + np.cbrt(half - root)
        truth = root_by_decimal(scale, others_hz)
        ours_hz = mining_root(np.array([scale]), np.array([others_hz]))[0]
        worst_printed = max(worst_printed, float(abs(Decimal(float(printed_hz)) / truth - 1)))
        worst_ours = max(worst_ours, float(abs(Decimal(float(ours_hz)) / truth - 1)))
    assert worst_printed > 1e-8
    assert worst_ours < 1e-15


@given(st.floats(1e-6, 10.0), st.floats(1e-28, 2e-27), st.floats(1e6, 1e10))
def test_equation_29_spends_exactly_what_is_left(energy_j, capacitance, cycles):
    arguments = np.array([capacitance]), np.array([cycles])
    spent_j = training_energy(*arguments, cpu_for_energy(np.array([energy_j]), *arguments))
    assert spent_j[0] == pytest.approx(energy_j, rel=1e-14)


def test_equation_29_gives_no_frequency_without_energy_and_no_limit_without_cycles():
    cpu_hz = cpu_for_energy(np.array([0.0, -1.0, 0.1]), np.full(3, 5e-28), np.array([1e8, 1e8, 0.0]))
    np.testing.assert_array_equal(cpu_hz, [0.0, 0.0, np.inf])


@pytest.mark.parametrize("seed", range(60))
def test_fastest_prefix_beats_every_subset(seed):
    rng = np.random.default_rng(seed)
    num, tradeoff = int(rng.integers(1, 10)), float(np.exp(rng.uniform(np.log(0.01), np.log(1000))))
    latency_s = rng.choice(rng.uniform(0.1, 3.0, num), num)  # some equal
    queue = rng.uniform(0.0, 3.0, num) * (rng.uniform(size=num) < 0.7)
    min_clients = int(rng.integers(1, num + 1))

    def objective(subset):
        return tradeoff * latency_s[list(subset)].max() - queue[list(subset)].sum()

    best = min(objective(subset) for size in range(min_clients, num + 1) for subset in combinations(range(num), size))
    chosen = fastest_prefix(latency_s, queue, tradeoff, min_clients)
    assert len(chosen) >= min_clients
    assert objective(chosen) == pytest.approx(best, rel=1e-12, abs=1e-12)


def test_fastest_prefix_breaks_ties_by_index_and_takes_no_one_in_vain():
    np.testing.assert_array_equal(fastest_prefix(np.full(4, 2.0), np.zeros(4), 10.0, 2), [0, 1])


@pytest.mark.parametrize("seed", range(50))
def test_start_is_the_largest_mining_within_budgets_caps_and_initial_frequencies(seed):
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng, int(rng.integers(1, 30)), with_caps=seed % 2 == 0, unreachable_share=0.2)
    # Costlier hashing, so that budgets bind.
    problem = replace(problem, work_cycles=problem.work_cycles * float(rng.choice([1.0, 10.0, 1e3, 1e6])))
    mining_hz = start_mining(problem)
    mining_s = mining_time(problem.work_cycles, mining_hz)
    energy_j = mining_energy(problem.capacitance, mining_s, mining_hz)
    wanted_hz = np.where(problem.reachable, np.minimum(problem.initial_mining_hz, problem.mining_max_hz), 0.0)
    assert (mining_hz <= wanted_hz).all()
    assert (energy_j <= problem.energy_budget_j * (1 + 1e-13)).all()
    short = mining_hz < wanted_hz
    np.testing.assert_allclose(energy_j[short], problem.energy_budget_j[short], rtol=1e-12)


def test_start_is_the_initial_frequency_where_everybody_can_pay_for_it():
    np.testing.assert_array_equal(start_mining(paper_problem()), 1.5e9)


def test_alternation_stalls_mining_never_leaves_its_initial_frequency():
    for iterate in islice(iterate_drc(paper_problem()), 50):
        np.testing.assert_allclose(iterate.mining_hz, 1.5e9, rtol=1e-13)


@pytest.mark.parametrize("seed", range(30))
def test_alternation_stalls_for_unequal_clients_too_and_takes_two_passes(seed):
    problem = feasible_problem(seed)
    decision = drc(problem)
    assert decision.iterations == 2
    np.testing.assert_allclose(decision.mining_hz, start_mining(problem), rtol=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_starting_anew_equals_carrying_frequencies_over_where_no_cap_binds(seed):
    problem = feasible_problem(seed)
    first = drc(problem)
    second = drc(replace(problem, initial_mining_hz=first.mining_hz))
    np.testing.assert_array_equal(second.selected, first.selected)
    np.testing.assert_allclose(second.mining_hz, first.mining_hz, rtol=1e-9)
    np.testing.assert_allclose(second.cpu_hz, first.cpu_hz, rtol=1e-7)


def test_a_cpu_cap_that_binds_lets_mining_rise_within_the_budget():
    problem = paper_problem(cpu_max_hz=np.full(8, 0.8e9))
    decision = drc(problem)
    assert (decision.mining_hz > 1.5e9 * 1.1).all()
    assert find_violations(problem, decision) == []
    capped = paper_problem(cpu_max_hz=np.full(8, 0.8e9), mining_max_hz=np.full(8, 1.6e9))
    np.testing.assert_array_equal(drc(capped).mining_hz, 1.6e9)


@pytest.mark.parametrize("seed", range(40))
def test_frequencies_never_fall_from_one_pass_to_the_next(seed):
    problem = feasible_problem(seed, with_caps=True)
    passes = list(islice(iterate_drc(problem), 6))
    for before, after in pairwise(passes):
        assert (after.mining_hz >= before.mining_hz).all()
        assert (after.cpu_hz >= before.cpu_hz).all()


def test_selected_clients_spend_their_whole_budget():
    problem = paper_problem()
    decision = drc(problem)
    energy_j = evaluate(problem, decision).energy_j
    np.testing.assert_allclose(energy_j[decision.selected], 0.4, rtol=1e-12)


def test_a_client_in_a_deep_fade_is_no_candidate_and_goes_on_mining():
    gain = np.full(8, 2.5e-8)
    gain[3] = 1e-13
    problem = paper_problem(gain=gain, queue=np.where(np.arange(8) == 3, 1e6, 0.1))
    decision = drc(problem)
    assert 3 not in start_round(problem).candidates
    assert not decision.selected[3]
    assert decision.mining_hz[3] == 1.5e9
    assert find_violations(problem, decision) == []


def literal_algorithm(problem):
    """S, f and F of Algorithm 1, client by client, if P5 spends no energy of training on clients outside the given S.

    S begins as everybody; once it repeats, (29) and (31) go on for it until no frequency changes.
    """
    clients, work = range(problem.num_clients), problem.work_cycles
    chi, cycles, budget_j = problem.capacitance, problem.cycles, problem.energy_budget_j
    noise_w = problem.bandwidth_hz * problem.noise_w_per_hz
    rate = [problem.bandwidth_hz * log2(1 + problem.power_w[i] * problem.gain[i] / noise_w) for i in clients]
    upload_s = [problem.model_bits[i] / rate[i] for i in clients]
    upload_j = [problem.power_w[i] * upload_s[i] for i in clients]
    mining, cpu = start_mining(problem).tolist(), [0.0] * problem.num_clients

    def left_for_training(i):
        return budget_j[i] - upload_j[i] - chi[i] / 2 * work / sum(mining) * mining[i] ** 3

    able = [i for i in clients if left_for_training(i) > 0]
    chosen, repeats = set(clients), False
    for _ in range(300):
        before = [*cpu, *mining]
        for i in chosen & set(able):
            cpu[i] = sqrt(2 * left_for_training(i) / (chi[i] * cycles[i]))
        following = list(mining)
        for i in set(able) if len(chosen) == problem.num_clients else clients:
            spent_j = upload_j[i] + chi[i] / 2 * cycles[i] * cpu[i] ** 2 if i in chosen else 0.0
            scale, others = 2 * (budget_j[i] - spent_j) / (chi[i] * work), sum(mining) - mining[i]
            most = sqrt(scale) + (scale * others) ** (1 / 3)
            following[i] = brentq(lambda hz, m=scale, n=others: hz**3 - m * (hz + n), 0.5 * mining[i], most, xtol=1e-6)
        mining = following
        if not repeats:
            order = sorted(able, key=lambda i: upload_s[i] + cycles[i] / cpu[i])
            groups = [order[:size] for size in range(problem.min_clients, len(order) + 1)]
            delay_s = [upload_s[group[-1]] + cycles[group[-1]] / cpu[group[-1]] for group in groups]
            objective = [
                problem.tradeoff * time - sum(problem.queue[i] for i in group)
                for group, time in zip(groups, delay_s, strict=True)
            ]
            group = set(groups[int(np.argmin(objective))])
            chosen, repeats = group, group == chosen
        elif np.allclose([*cpu, *mining], before, rtol=1e-12, atol=0):
            return sorted(chosen), [cpu[i] if i in chosen else 0.0 for i in clients], mining
    raise AssertionError("frequencies do not settle")


@pytest.mark.parametrize("seed", range(40))
def test_full_mining_of_idle_clients_is_algorithm_1_with_p5_for_the_given_set(seed):
    problem = feasible_problem(seed)
    decision = drc(problem, idle_mining="full")
    selected, cpu_hz, mining_hz = literal_algorithm(problem)
    np.testing.assert_array_equal(np.flatnonzero(decision.selected), selected)
    np.testing.assert_allclose(decision.cpu_hz, cpu_hz, rtol=1e-9)
    np.testing.assert_allclose(decision.mining_hz, mining_hz, rtol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_with_full_mining_every_budget_is_spent_unless_caps_forbid_it(seed):
    problem = feasible_problem(seed, with_caps=seed % 2 == 0, unreachable_share=0.2)
    decision = drc(problem, idle_mining="full")
    assert find_violations(problem, decision) == []
    spends_all = evaluate(problem, decision).energy_j > problem.energy_budget_j * (1 - 1e-9)
    trains_at_cap = ~decision.selected | (decision.cpu_hz >= problem.cpu_max_hz)
    at_caps = trains_at_cap & (decision.mining_hz >= problem.mining_max_hz)
    assert (spends_all | at_caps | ~problem.reachable).all()


@pytest.mark.parametrize("seed", range(40))
def test_full_mining_changes_no_set_and_lengthens_no_round(seed):
    problem = feasible_problem(seed, with_caps=seed % 2 == 0, unreachable_share=0.2)
    reserved, full = drc(problem), drc(problem, idle_mining="full")
    np.testing.assert_array_equal(full.selected, reserved.selected)
    assert evaluate(problem, full).delay_s <= evaluate(problem, reserved).delay_s


def test_too_few_candidates_are_an_infeasible_round_that_says_how_many():
    gain = np.where(np.arange(8) < 2, 2.5e-8, 0.0)
    decision = drc(paper_problem(gain=gain))
    assert not decision.is_feasible
    assert "2 of 8" in decision.reason
    assert "3 needed" in decision.reason
    assert list(iterate_drc(paper_problem(gain=gain))) == []


def test_nobody_allowed_to_mine_is_an_infeasible_round():
    decision = drc(paper_problem(mining_max_hz=np.zeros(8)))
    assert not decision.is_feasible
    assert "mining" in decision.reason


def test_one_pass_is_enough_to_decide():
    decision = drc(paper_problem(), max_iterations=1)
    assert decision.iterations == 1
    assert find_violations(paper_problem(), decision) == []


def test_idle_clients_have_no_training_frequency_and_no_power():
    problem = paper_problem(queue=np.zeros(8))
    decision = drc(problem)
    assert decision.selected.sum() == 3
    assert (decision.cpu_hz[~decision.selected] == 0).all()
    assert (decision.power_w == np.where(decision.selected, 0.2, 0.0)).all()


def test_a_hundred_thousand_clients_are_decided_within_constraints():
    problem = draw_problem(np.random.default_rng(1), 100_000, min_clients=3, with_caps=True)
    assert find_violations(problem, drc(problem)) == []
