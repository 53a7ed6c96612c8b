"""What the paper prints and what is true: one test for each correction that no other test shows."""

from itertools import chain, combinations
from math import log

import numpy as np
import pytest

from bdfl.compute import mining_energy, mining_scale, mining_time, mining_work, training_energy
from bdfl.experiment import simulate
from bdfl.reproduce.results import PAPER_TIME_S
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.drc import fastest_prefix, mining_root
from bdfl.scheduling.queues import convergence_bound, drift_bound, lyapunov_drift, next_queue

WORK_CYCLES = mining_work(3e7, 1e-10)
OTHERS_HZ = np.array([7 * 1.5e9])
CYCLES, CAPACITANCE, LEFT_J = np.array([3e8]), np.array([5.4e-28]), 0.3  # of the budget, after the upload


def subsets(num_clients, least=1):
    sizes = range(least, num_clients + 1)
    return chain.from_iterable(combinations(range(num_clients), size) for size in sizes)


def test_m_of_equation_31_with_cubed_frequency_is_no_energy_at_all():
    """(7) charges (chi/2) c f^2 joules; the printed f^3 charges 81 million joules at 1 GHz, so nobody could mine."""
    cpu_hz = 1e9
    printed_j = LEFT_J - 0.5 * CAPACITANCE * CYCLES * cpu_hz**3
    assert printed_j < -8e7
    assert mining_root(mining_scale(printed_j, CAPACITANCE, WORK_CYCLES), OTHERS_HZ) == 0.0


def test_m_of_equation_31_with_cubed_gigahertz_breaks_the_budget():
    """Counted in GHz the printed f^3 is too small below 1 GHz, and mining spends energy that training has spent."""
    cpu_ghz = 0.8
    training_j = training_energy(CAPACITANCE, CYCLES, np.array([cpu_ghz * 1e9]))
    for charged_j, overdraws in ((training_j, False), (training_j * cpu_ghz, True)):
        mining_hz = mining_root(mining_scale(LEFT_J - charged_j, CAPACITANCE, WORK_CYCLES), OTHERS_HZ)
        mining_s = mining_time(WORK_CYCLES, np.concatenate([mining_hz, OTHERS_HZ]))
        spent_j = training_j + mining_energy(CAPACITANCE, mining_s, mining_hz)
        assert (spent_j > LEFT_J * (1 + 1e-9)).all() == overdraws


def test_equation_27_counts_the_mean_mining_time_where_equation_11_counts_the_quantile():
    mining_hz = np.full(8, 1.5e9)
    printed_s = 3e7 / mining_hz.sum()
    assert mining_time(WORK_CYCLES, mining_hz) / printed_s == pytest.approx(log(1e10))  # 23 times longer


def test_p0_as_printed_mines_in_a_quarter_of_a_picosecond():
    misprinted_cycles = -3e7 * np.log1p(-1e-10)
    assert mining_time(float(misprinted_cycles), np.full(8, 1.5e9)) == pytest.approx(2.5e-13)
    assert mining_time(WORK_CYCLES, np.full(8, 1.5e9)) == pytest.approx(0.0576, abs=1e-4)


@pytest.mark.parametrize(("queue", "size"), [(0.0, 3), (1.0, 8)])
def test_each_of_the_groups_of_p6_can_be_the_best_so_u_minus_m_of_them_miss_one(queue, size):
    latency_s = np.linspace(0.8, 0.9, 8)
    chosen = fastest_prefix(latency_s, np.full(8, queue), tradeoff=10.0, min_clients=3)
    assert len(chosen) == size  # the first group and the last of sizes 3, 4, ..., 8: these are 6, not 8 - 3


def test_the_queue_enforces_the_opposite_of_c4_as_printed():
    """Printed: participation at most beta. A client that never trains keeps that, and its queue grows without end."""
    rate = np.array([0.4])
    never = always = np.zeros(1)
    for _ in range(1000):
        never = next_queue(never, rate, np.array([False]))
        always = next_queue(always, rate, np.array([True]))
    assert never == pytest.approx(400.0)
    assert always == 0.0


def test_equation_23_with_the_delay_inside_the_sum_would_ignore_delay():
    """Summed over all clients the delays are the same for every S: the best set is everybody, at any V."""
    latency_s, queue = np.array([0.5, 0.6, 5.0]), np.array([0.1, 0.2, 0.3])
    mining_s, tradeoff = 0.1, 1000.0

    def printed(subset):
        return -queue[list(subset)].sum() + float(np.sum(tradeoff * (latency_s + mining_s)))

    def correct(subset):
        return -queue[list(subset)].sum() + tradeoff * (latency_s[list(subset)].max() + mining_s)

    assert min(subsets(3), key=printed) == (0, 1, 2)
    assert min(subsets(3), key=correct) == (0,)


def test_equation_19_summed_over_clients_again_breaks_equation_21():
    queue, rate, nobody = np.full(4, 10.0), np.full(4, 0.4), np.zeros(4, dtype=np.bool_)
    drift = lyapunov_drift(queue, next_queue(queue, rate, nobody))
    bound = drift_bound(queue, rate, nobody)
    assert drift <= bound
    assert 4 * drift > bound


def test_a_mean_rate_stable_queue_has_a_mean_backlog_above_zero():
    """P2 prints C4 as mean backlog zero: even a client that trains in every second round at beta = 0.4 breaks that."""
    queue, backlog = np.zeros(1), []
    for number in range(10_000):
        queue = next_queue(queue, np.array([0.4]), np.array([number % 2 == 1]))
        backlog.append(float(queue[0]))
    assert np.mean(backlog) == pytest.approx(0.2)
    assert backlog[-1] / len(backlog) < 1e-4


def test_backlogs_that_start_at_zero_do_not_decrease():
    """VI-B says that backlogs decrease and settle; Algorithm 1 starts them at zero, below every later value."""
    scenario = load_scenario(find_scenario("paper-cifar10"), ["rounds=20"])
    backlog = simulate(scenario).next_queue.mean(axis=1)
    assert (backlog > 0).all()
    assert backlog[-1] > backlog[0]


def test_local_models_that_never_restart_from_the_global_one_do_not_learn_together():
    """(2) and (37) start from the local model: aggregation (3) would then change nothing that anybody trains."""
    optima, rate = np.array([-1.0, 1.0]), 0.1
    printed = corrected = np.zeros(2)
    for _ in range(500):
        printed = printed - rate * (printed - optima)
        corrected = np.full(2, np.mean(corrected - rate * (corrected - optima)))
    assert printed == pytest.approx(optima)
    assert corrected == pytest.approx([0.0, 0.0])


def test_equation_38_gives_the_scheduled_clients_less_than_the_whole_weight():
    samples, scheduled = np.array([3000.0, 1000.0, 2000.0]), np.array([True, True, False])
    printed = np.where(scheduled, samples, 0.0) / samples.sum()
    weights = np.where(scheduled, samples, 0.0) / samples[scheduled].sum()  # (3)
    assert weights.sum() == pytest.approx(1.0)
    assert printed.sum() == pytest.approx(2 / 3)


def test_lemma_1_bounds_the_gradient_and_not_the_loss():
    """One client, F(w) = 100 + w^2 / 2 from w = 1: the bound holds for the gradient and is far below any loss."""
    learning_rate, rounds = 0.01, 10_000
    weights = (1.0 - learning_rate) ** np.arange(rounds)
    bound = convergence_bound(
        initial_gap=0.5,
        learning_rate=learning_rate,
        smoothness=1.0,
        gradient_norm=1.0,
        local_updates=1,
        rounds=rounds,
        rate=np.ones(1),
        samples=np.ones(1),
    ).total
    assert np.mean(weights**2) <= bound
    assert np.mean((100.0 + weights**2 / 2) ** 2) > 1e5 * bound


def test_participation_is_not_beta_as_lemma_1_presumes():
    record = simulate(load_scenario(find_scenario("paper-svhn")))
    achieved = record.selected.mean(axis=0)
    assert np.abs(achieved - record.participation_rate).max() > 0.02


def test_table_4_has_the_times_of_whole_runs_and_svhn_those_of_200_rounds():
    """VI-C calls them times per round and says 100 rounds for both; only this reading gives both the same radio."""
    svhn_s, cifar_s = PAPER_TIME_S["svhn"], PAPER_TIME_S["cifar10"]
    assert svhn_s["channel-best"] / 200 == pytest.approx(cifar_s["channel-best"] / 100, rel=1e-3)
    for name, time_s in svhn_s.items():
        assert time_s / 200 == pytest.approx(cifar_s[name] / 100, rel=0.04)
    record = simulate(load_scenario(find_scenario("paper-cifar10"), ["rounds=20"]))
    assert 0.5 < record.delay_s.mean() < 1.5
