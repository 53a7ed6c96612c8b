"""Calibration: figures that are timed or read, each with where it comes from."""

import pytest

from bdfl.learning.training import TrainingFailed
from bdfl.scenario.schema_learning import WorkKind
from bdfl.transports.live.calibration import (
    ASSUMED_CPU_HZ,
    ASSUMED_UPLINK,
    Figure,
    Source,
    calibrate,
    read_cpu_hz,
    read_uplink,
    time_hashing,
)
from tests.live.fake_machine import FakeMachine
from tests.live.idle_training import IdleTraining


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


def test_a_calibration_times_real_rounds_after_one_to_warm_up(machine):
    machine.write("proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 2000.000")
    training = IdleTraining(duration_ns=320_000_000)
    found = calibrate(training, WorkKind.SHA256, root=machine.root)
    assert training.asked == [(b"", 1), (b"", 2), (b"", 3), (b"", 4)]
    assert found.training_cycles == pytest.approx(0.32 * 2e9)
    assert found.cycles_per_sample == pytest.approx(1e6)  # 640 samples
    assert found.cpu_hz == Figure(2e9, Source.CPUINFO)
    assert found.uplink.source is Source.ASSUMED
    assert found.hashes_per_s > 0


def test_what_cannot_train_cannot_be_calibrated(machine):
    with pytest.raises(TrainingFailed, match="no data"):
        calibrate(IdleTraining(failure="no data"), WorkKind.SHA256, root=machine.root)
    with pytest.raises(TrainingFailed, match="did not end"):
        calibrate(IdleTraining(answers_at_once=False), WorkKind.SHA256, root=machine.root, patience_s=0.01)


def test_the_frequency_is_the_kernels_then_the_listed_then_assumed(machine):
    assert read_cpu_hz(machine.root) == Figure(ASSUMED_CPU_HZ, Source.ASSUMED)
    machine.write("proc/cpuinfo", "cpu MHz : unknown\nmodel name : slow")
    assert read_cpu_hz(machine.root).source is Source.ASSUMED
    machine.write("proc/cpuinfo", "cpu MHz : 800.5\n\ncpu MHz : 1200.25")
    assert read_cpu_hz(machine.root) == Figure(1200.25e6, Source.CPUINFO)
    machine.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 1_500_000)
    machine.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", 3_000_000)
    assert read_cpu_hz(machine.root) == Figure(3e9, Source.CPUFREQ)


def test_the_uplink_is_the_cards_then_assumed(machine):
    assert read_uplink(machine.root) == Figure(ASSUMED_UPLINK, Source.ASSUMED)
    machine.write("sys/class/net/lo/speed", "")
    machine.write("sys/class/net/eth0/speed", "-1")
    machine.write("sys/class/net/eth0/operstate", "up")
    machine.write("sys/class/net/eth1/speed", "10000")
    machine.write("sys/class/net/eth1/operstate", "down")
    assert read_uplink(machine.root).source is Source.ASSUMED
    machine.write("sys/class/net/eth0/speed", "1000")
    assert read_uplink(machine.root) == Figure(1.25e8, Source.NETWORK_CARD)


@pytest.mark.parametrize("kind", list(WorkKind))
def test_hashing_is_timed_for_the_chains_kind_of_work(kind):
    assert time_hashing(kind, duration_s=0.01) > 10
