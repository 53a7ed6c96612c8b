"""Measured work: nothing waits, and the chain hears what the machine says of itself."""

import queue
from dataclasses import replace

import numpy as np
import pytest

from bdfl.encoding import INT_LIMIT
from bdfl.ledger.block import MAX_BUDGET_PJ, header_seal
from bdfl.ledger.chain import apply_block
from bdfl.ledger.costs import ATTO, MICROWATT, NOISE, PICOJOULE
from bdfl.ledger.proof_of_work import is_worked
from bdfl.ledger.rules import make_header
from bdfl.radio import uplink_rate
from bdfl.scenario.schema_learning import WorkKind
from bdfl.transports.live.calibration import Calibration, Figure, Source, estimate_energy
from bdfl.transports.live.measured_work import MeasuredWork, measured_gain
from tests.ledger.small_federation import found_federation, small_scenario
from tests.live.fake_machine import FakeMachine
from tests.live.idle_training import IdleTraining

PATIENCE_S = 240.0
CPU_HZ = 2e9
UPLINK = 50_000.0  # bytes/s
SCENARIO = small_scenario()
CALIBRATION = Calibration(
    Figure(CPU_HZ, Source.CPUINFO), 0.1, 640, 1, WorkKind.SHA256, 1e6, Figure(UPLINK, Source.TIMED)
)


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


@pytest.fixture(scope="module")
def small():
    return found_federation(SCENARIO)


@pytest.fixture
def open_work(small, machine):
    works = []

    def open(training=None, **options):
        training = IdleTraining() if training is None else training
        works.append(MeasuredWork(client_of(small), SCENARIO, training, CALIBRATION, root=machine.root, **options))
        return works[-1]

    yield open
    for work in works:
        work.close()


def client_of(small):
    return small.genesis.schedule.selected[0]


def next_block(small, chain):
    block = small.block(chain, small.body(chain))
    return block, apply_block(chain, block, small.cache)


def test_results_are_told_as_they_come(small, open_work):
    work, chain, told = open_work(), small.start(), []
    work.train(chain, b"given", told.append)
    assert told == [b"trained"]
    assert work.upload(chain) == 0
    header = make_header(chain, 1, client_of(small), small.body(chain), 0)
    nonces = queue.SimpleQueue()
    work.mine(chain, header, nonces.put)
    nonce = nonces.get(timeout=PATIENCE_S)
    assert is_worked(small.genesis.law.work, header_seal(header), nonce, header.difficulty)
    work.stop_mining()
    work.stop_training()


def test_the_models_uplink_is_as_fast_as_the_real_one(small, open_work):
    conditions, receipt = open_work().measure(small.start(), None)
    physics, limits = small.genesis.physics, small.genesis.members[client_of(small)].limits
    rate = uplink_rate(
        float(physics.bandwidth_hz),
        np.array([limits.power_uw / MICROWATT]),
        np.array([conditions.gain_atto / ATTO]),
        physics.noise / NOISE,
    )
    assert rate == pytest.approx([8 * UPLINK], rel=1e-4)
    assert conditions.is_reachable
    assert receipt is None


def test_a_network_too_fast_for_the_models_bandwidth_has_the_greatest_gain(small):
    physics, limits = small.genesis.physics, small.genesis.members[0].limits
    assert measured_gain(physics, limits, 1e9) == INT_LIMIT
    assert measured_gain(physics, limits, 0.0) == 0


def test_who_sends_nothing_is_out_of_reach(small, machine):
    calibration = replace(CALIBRATION, uplink=Figure(0.0, Source.ASSUMED))
    work = MeasuredWork(client_of(small), SCENARIO, IdleTraining(), calibration, root=machine.root)
    try:
        assert not work.measure(small.start(), None)[0].is_reachable
    finally:
        work.close()


def test_the_budget_is_the_batterys_then_the_one_joined_with(small, machine, open_work):
    chain = small.start()

    def budget_pj():
        return open_work().measure(chain, None)[0].energy_budget_pj

    assert budget_pj() == small.genesis.members[client_of(small)].conditions.energy_budget_pj
    machine.battery(energy_now=1_000_000)
    assert budget_pj() == pytest.approx(3600 / (SCENARIO.rounds - 1) * PICOJOULE)
    machine.battery(energy_now=10**15)
    assert budget_pj() == MAX_BUDGET_PJ


def test_a_receipt_has_the_measured_times_and_the_metered_energy(small, machine, open_work):
    machine.zone("0", "package-0", 1_000_000)
    work, chain = open_work(IdleTraining(duration_ns=777)), small.start()
    work.measure(chain, None)
    work.train(chain, b"", lambda model: None)
    machine.zone("0", "package-0", 4_000_000)
    block, after = next_block(small, chain)
    receipt = work.measure(after, block)[1]
    assert (receipt.round, receipt.training_ns, receipt.energy_pj) == (1, 777, 3 * PICOJOULE)
    assert receipt.upload_ns == pytest.approx(small.genesis.model.size / UPLINK * 1e9, abs=1)


def test_without_a_meter_energy_is_estimated_from_what_was_computed_and_sent(small, open_work):
    work, chain = open_work(IdleTraining(duration_ns=2 * 10**9)), small.start()
    limits = small.genesis.members[client_of(small)].limits
    work.measure(chain, None)
    work.train(chain, b"", lambda model: None)
    block, after = next_block(small, chain)
    receipt = work.measure(after, block)[1]
    sent_j = limits.power_uw / MICROWATT * small.genesis.model.size / UPLINK
    computed_j = estimate_energy(limits.capacitance / 1e36, CPU_HZ, 2.0)
    assert receipt.energy_pj / PICOJOULE == pytest.approx(computed_j + sent_j, rel=1e-6)


def test_a_round_whose_beginning_was_not_seen_has_no_receipt(small, open_work):
    work, chain = open_work(), small.start()
    block, after = next_block(small, chain)
    assert work.measure(after, block)[1] is None  # begun after block 1
    later_block = small.block(after, small.body(after, small.certificate(chain, block.digest)))
    later = apply_block(after, later_block, small.cache)
    assert work.measure(later, later_block)[1].round == 2
