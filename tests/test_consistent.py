"""`consistent-cifar10`: its numbers follow from the model that is trained and from the sources it names."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from bdfl.compute import mining_time, training_energy, training_time
from bdfl.experiment.simulation import draw_run, round_problems, simulate
from bdfl.learning.models import build_model
from bdfl.ledger.costs import ATTO, CAPACITANCE, NOISE
from bdfl.ledger.genesis import conditions_of, limits_of, physics_of
from bdfl.radio import channel_gain, uplink_rate
from bdfl.scenario import load_scenario, override_scenario
from bdfl.scheduling.exact import earliest_exchange

CONSISTENT = load_scenario("consistent-cifar10")
RADIO, COMPUTE = CONSISTENT.radio, CONSISTENT.compute
TRUE_SIZE = f"radio.model_bits={RADIO.model_bits}"
TRUE_PATH_LOSS = [
    f"radio.reference_gain={RADIO.reference_gain}",
    f"radio.path_loss_exponent={RADIO.path_loss_exponent}",
    "radio.shadowing_db=0",
]


def network():
    return build_model(CONSISTENT.learning, (3, 32, 32), 10)


def test_the_model_sent_is_the_model_trained():
    assert RADIO.model_bits == 32 * sum(parameter.numel() for parameter in network().parameters())


def test_a_sample_costs_the_multiply_adds_of_the_model_at_four_a_cycle():
    products = []

    def count(layer, inputs, output):
        each = layer.weight[0].numel()  # products for one value of the output
        products.append(each * output[0].numel())

    model = network()
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    model(torch.zeros(1, 3, 32, 32))
    assert COMPUTE.cycles_per_sample == pytest.approx(3 * sum(products) / 4, rel=0.01)  # backwards takes two of three


def test_noise_is_thermal_with_a_noise_figure():
    assert 10 * math.log10(RADIO.noise_w_per_hz / 1e-3) == pytest.approx(-174 + 5, abs=0.01)


@pytest.mark.parametrize("distance_m", [20.0, 200.0, 2000.0])
def test_path_loss_is_that_of_the_street_canyon(distance_m):
    gain = channel_gain(
        RADIO.reference_gain,
        np.ones(1),
        np.array([distance_m]),
        RADIO.reference_distance_m,
        RADIO.path_loss_exponent,
    )
    loss_db = 22.4 + 35.3 * math.log10(distance_m) + 21.3 * math.log10(1.95)
    assert -10 * math.log10(gain[0]) == pytest.approx(loss_db, abs=0.02)


def test_every_client_can_upload_at_once_within_the_carrier():
    assert CONSISTENT.clients.count * RADIO.bandwidth_hz <= 51 * 12 * 30e3


def test_a_processor_at_its_clock_draws_what_was_measured():
    cycles, clock_hz = np.array([1e10]), np.array([COMPUTE.max_hz])
    power_w = training_energy(np.array([COMPUTE.capacitance]), cycles, clock_hz) / training_time(cycles, clock_hz)
    assert power_w[0] == pytest.approx(6.4 - 2.7, rel=0.01)


def test_a_block_takes_a_second_at_initial_frequencies():
    mining = CONSISTENT.mining
    assert mining_time(mining.difficulty, np.full(CONSISTENT.clients.count, mining.initial_hz)) == pytest.approx(1.0)


def test_table_one_with_the_true_size_or_path_loss_lets_nobody_take_part():
    paper = load_scenario("paper-cifar10", ["rounds=20"])
    assert simulate(paper).num_infeasible == 0
    for changes in ([TRUE_SIZE], TRUE_PATH_LOSS):
        assert simulate(override_scenario(paper, changes)).num_infeasible == 20


def test_every_client_can_take_part_in_every_consistent_round():
    draws = draw_run(CONSISTENT)
    problems = round_problems(CONSISTENT, draws)
    able = np.array([np.isfinite(earliest_exchange(problem)) for problem in problems])
    assert able.all()
    assert simulate(CONSISTENT).num_infeasible == 0
    rate = np.array([uplink_rate(one.bandwidth_hz, one.power_w, one.gain, one.noise_w_per_hz) for one in problems])
    assert 1.0 < np.median(RADIO.model_bits / rate) < 10.0  # s: what fading is averaged over


def test_its_numbers_fit_the_integers_of_a_chain():
    draws = draw_run(CONSISTENT)
    assert physics_of(CONSISTENT).noise / NOISE == pytest.approx(RADIO.noise_w_per_hz, rel=1e-9)
    for client in range(CONSISTENT.clients.count):
        limits, found = limits_of(draws.federation, 0.4, client), conditions_of(draws.states[0], client)
        assert limits.capacitance / CAPACITANCE == pytest.approx(COMPUTE.capacitance, rel=1e-6)
        assert found.gain_atto / ATTO == pytest.approx(draws.states[0].gain[client], rel=1e-3)
