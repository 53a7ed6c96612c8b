"""The processor's laws against numbers worked out by hand."""

import numpy as np
import pytest

from bdfl.compute import mining_energy, mining_time, mining_work, training_cycles, training_energy, training_time


def test_the_papers_client_trains_three_hundred_million_cycles_in_0_3_seconds():
    cycles = training_cycles(np.array([5e3]), 20, np.array([3000.0]))
    assert cycles.tolist() == [3e8]
    assert training_time(cycles, np.array([1e9])) == pytest.approx([0.3])
    # 5.4e-28 / 2 * 3e8 * 1e18
    assert training_energy(np.array([5.4e-28]), cycles, np.array([1e9])) == pytest.approx([0.081])


def test_training_at_frequency_zero_never_ends_unless_there_is_nothing_to_do():
    assert training_time(np.array([1.0, 0.0]), np.array([0.0, 0.0])).tolist() == [np.inf, 0.0]


def test_eight_clients_at_one_and_a_half_gigahertz_mine_in_0_058_seconds():
    # 3e7 * ln(1e10) = 6.9078e8 cycles over 1.2e10 Hz
    work = mining_work(3e7, 1e-10)
    assert work == pytest.approx(690775527.9, rel=1e-9)
    time_s = mining_time(work, np.full(8, 1.5e9))
    assert time_s == pytest.approx(0.0575646, rel=1e-6)
    # 2.7e-28 * 0.0575646 * 3.375e27
    assert mining_energy(np.full(1, 5.4e-28), time_s, np.array([1.5e9])) == pytest.approx([0.0524557], rel=1e-5)


def test_the_misprinted_p0_would_mine_in_no_time():
    """Table I prints p0 = 1e-10; taken literally, A = -alpha ln(1 - 1e-10) is worth 0.003 cycles."""
    assert mining_time(mining_work(3e7, 1 - 1e-10), np.full(8, 1.5e9)) < 1e-12


def test_nobody_mining_never_finds_a_block_and_costs_nothing():
    nobody = np.zeros(3)
    assert mining_time(1e8, nobody) == np.inf
    assert mining_energy(np.full(3, 5e-28), np.inf, nobody).tolist() == [0.0, 0.0, 0.0]
