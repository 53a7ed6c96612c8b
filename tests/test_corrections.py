"""What the paper prints and what is true: one test for each correction that no other test shows."""

from dataclasses import replace
from itertools import chain, combinations
from math import log, log10, sqrt

import numpy as np
import pytest
import torch
from torch import nn

from bdfl.compute import mining_energy, mining_scale, mining_time, mining_work, training_energy
from bdfl.experiment import simulate
from bdfl.experiment.simulation import draw_run, round_problems
from bdfl.learning.models import build_model
from bdfl.radio import uplink_rate, upload_energy, upload_time
from bdfl.reproduce.results import PAPER_TIME_S
from bdfl.scenario import Learning, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.drc import (
    cpu_for_energy,
    drc,
    exchange_time,
    fastest_prefix,
    iterate_drc,
    mining_root,
    start_round,
)
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


def paper_round():
    """First round of the paper's CIFAR-10 scenario, calibrated where the paper is silent."""
    scenario = load_scenario(find_scenario("paper-cifar10"), ["rounds=1"])
    return round_problems(scenario, draw_run(scenario))[0]


def upload_budget_share(problem, model_bits, bandwidth_hz):
    """Energy of an upload over this bandwidth, as a share of the whole budget, (clients,)."""
    rate = uplink_rate(bandwidth_hz, problem.power_w, problem.gain, problem.noise_w_per_hz)
    upload_s = upload_time(np.full(problem.num_clients, float(model_bits)), rate)
    return upload_energy(problem.power_w, upload_s) / problem.energy_budget_j


def test_the_network_of_section_vi_has_34_times_the_bits_of_table_1_and_no_round_could_carry_it():
    """(9) with Table IV's times would need 170 bit/s from every hertz, a signal 10^51 times the noise."""
    network = build_model(Learning(model="paper-cnn"), (3, 32, 32), 10)
    model_bits = 32 * sum(values.numel() for values in network.parameters())
    assert model_bits == 34_318_656
    longest_round_s = max(time_s / 100 for time_s in PAPER_TIME_S["cifar10"].values())
    assert model_bits / (180e3 * longest_round_s) > 170
    problem = paper_round()
    assert (upload_budget_share(problem, model_bits, problem.bandwidth_hz) > 8).all()
    assert (upload_budget_share(problem, 1e6, problem.bandwidth_hz) < 0.5).all()


def test_a_sample_takes_hundreds_of_times_the_cycles_of_table_1():
    """60 million multiply-adds; 5,000 cycles would do 160,000 with two vector units of 512 bits."""
    network = build_model(Learning(model="paper-cnn"), (3, 32, 32), 10)
    forward, values = [], torch.zeros(1, 3, 32, 32)
    for layer in network:
        values = layer(values)
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            positions = values[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
            forward.append(layer.weight.numel() * positions)
    backward = 2 * sum(forward) - forward[0]  # nobody needs the gradient of the pixels
    assert sum(forward) + backward == pytest.approx(60e6, rel=0.01)
    assert (sum(forward) + backward) / (2 * 16 * 5e3) > 370


def test_four_clients_that_share_the_system_bandwidth_cannot_pay_for_their_uploads():
    """(8) gives all of B to each at once, and no signal disturbs another."""
    problem = paper_round()
    assert (upload_budget_share(problem, 1e6, problem.bandwidth_hz) < 0.5).all()
    assert np.median(upload_budget_share(problem, 1e6, problem.bandwidth_hz / 4)) > 1


def test_the_noise_of_table_1_is_44_decibels_above_thermal_noise():
    thermal_w_per_hz = 1.380649e-23 * 290.0
    assert 10 * log10(1e-16 / thermal_w_per_hz) == pytest.approx(44.0, abs=0.1)


def test_equation_27_makes_clients_that_are_not_last_burn_energy_for_nothing():
    """By (13) only the last client delays a round; (29), which follows from (27), has all train at full budget."""
    problem = paper_round()
    decision = drc(problem)
    outcome, who = evaluate(problem, decision), np.flatnonzero(decision.selected)
    start = start_round(problem)
    last_s = exchange_time(problem, start, np.where(decision.selected, decision.cpu_hz, 1.0))[who].max()
    slower_hz = decision.cpu_hz.copy()
    slower_hz[who] = problem.cycles[who] / (last_s - start.upload_s[who])
    slower = evaluate(problem, replace(decision, cpu_hz=slower_hz))
    assert slower.delay_s == pytest.approx(outcome.delay_s)
    saved_j = (outcome.energy_j - slower.energy_j)[who]
    assert outcome.energy_j[who] == pytest.approx(problem.energy_budget_j[who])
    assert np.count_nonzero(saved_j > 1e-3) == len(who) - 1


def test_p5_for_a_given_set_lets_idle_clients_mine_with_what_the_printed_m_withholds():
    """Printed M charges everybody for training and upload; (14) charges only who does it, and then F does not stay."""
    problem = paper_round()
    iterate = next(iterate_drc(problem))
    idle = ~iterate.selected
    others_hz = iterate.mining_hz.sum() - iterate.mining_hz
    charged_j = start_round(problem).upload_j + training_energy(problem.capacitance, problem.cycles, iterate.cpu_hz)
    literal_hz, whole_hz = (
        mining_root(mining_scale(energy_j, problem.capacitance, problem.work_cycles), others_hz)
        for energy_j in (problem.energy_budget_j - charged_j, problem.energy_budget_j)
    )
    assert literal_hz == pytest.approx(problem.initial_mining_hz)
    assert (whole_hz[idle] > 1.2 * problem.initial_mining_hz[idle]).all()
    mining_hz = np.where(idle, whole_hz, iterate.mining_hz)
    mining_j = mining_energy(problem.capacitance, mining_time(problem.work_cycles, mining_hz), mining_hz)
    left_j = problem.energy_budget_j - start_round(problem).upload_j - mining_j
    cpu_hz = cpu_for_energy(left_j, problem.capacitance, problem.cycles)
    assert (cpu_hz[iterate.selected] > 1.01 * iterate.cpu_hz[iterate.selected]).all()  # the next pass moves on


def test_drc_chooses_the_sets_of_channel_best_so_that_its_gain_is_that_of_frequencies():
    drc_run, channel_best = (
        simulate(load_scenario(find_scenario("paper-cifar10"), [f'scheduler.name="{name}"']))
        for name in ("drc", "channel-best")
    )
    assert np.array_equal(drc_run.selected, channel_best.selected)
    assert drc_run.mean_delay_s < 0.9 * channel_best.mean_delay_s


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


def test_smoothness_of_the_global_loss_alone_does_not_carry_lemma_1():
    """(33) asks it of F, (45) uses it of every F_i: kinks that cancel in F hold training where F still falls."""
    slope, kink, learning_rate, local_updates, rounds = 0.2, 5.0, 0.0025, 4, 20_000

    def train(weight, sign):
        for _ in range(local_updates):
            kinked = sign * min(max((weight - kink) * 1e4, -1.0), 1.0)
            weight -= learning_rate * (kinked + slope * weight / sqrt(1.0 + weight**2))
        return weight

    weight, squares = kink + 0.01, 0.0
    for _ in range(rounds):
        squares += (slope * weight) ** 2 / (1.0 + weight**2) / rounds
        weight = (train(weight, 1.0) + train(weight, -1.0)) / 2
    bound = convergence_bound(
        initial_gap=slope * sqrt(1.0 + (kink + 0.01) ** 2) - slope,
        learning_rate=learning_rate,
        smoothness=slope,  # of F = slope sqrt(1 + w^2); of F_1 and F_2 it is 10,000
        gradient_norm=1.0 + slope,
        local_updates=local_updates,
        rounds=rounds,
        rate=np.ones(2),
        samples=np.ones(2),
    )
    assert squares > 2 * bound.total


def test_the_mixed_drift_of_54_needs_the_sum_over_rounds_that_53_lost():
    step_size, smoothness, local_updates = 0.01, 4.0, 20
    pairs = sum(range(local_updates))  # j < h < H
    of_54 = 2 * step_size * smoothness * local_updates
    for rounds in (10, 1000):
        of_53 = 2 * step_size * smoothness / (local_updates * rounds) * pairs  # at gradients of norm 1
        assert of_53 <= of_54 / rounds
        assert of_54 / 3 < of_53 * rounds <= of_54


def test_one_index_for_two_sums_would_lose_the_drift_between_different_clients():
    """(49) to (53) write both sums over i; with beta of 1 and 0 no client meets itself, and the drift is real."""
    rate, share = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert np.sum(rate * share * (1 - rate) * share) == 0
    assert np.sum(np.outer(rate * share, (1 - rate) * share)) == 0.25


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
