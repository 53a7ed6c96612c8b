"""Energy: from counters where there are any, from a battery that is used, else estimated, and always said which."""

import pytest

from bdfl.compute import training_energy
from bdfl.transports.live.calibration import Battery, Energy, EnergyMeter, EnergySource, estimate_energy, read_battery
from tests.live.fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


class Estimate:
    """What a node's own work costs by the model."""

    def __init__(self):
        self.energy_j = 0.0

    def __call__(self):
        return self.energy_j


def make_meter(machine):
    estimate = Estimate()
    return EnergyMeter(estimate, root=machine.root), estimate


def test_packages_and_memory_are_counted_and_nothing_twice(machine):
    machine.zone("0", "package-0", 5_000_000)
    machine.zone("0:0", "core", 1)
    machine.zone("0:1", "dram", 1_000_000)
    machine.zone("1", "psys", 2)
    meter, _ = make_meter(machine)
    assert meter.source is EnergySource.RAPL
    machine.zone("0", "package-0", 8_000_000)
    machine.zone("0:0", "core", 900_000_000)
    machine.zone("0:1", "dram", 1_500_000)
    machine.zone("1", "psys", 900_000_000)
    assert meter.lap() == Energy(3.5, EnergySource.RAPL)
    assert meter.lap() == Energy(0.0, EnergySource.RAPL)


def test_a_counter_that_began_again_goes_on(machine):
    machine.zone("0", "package-0", 999_000_000)
    meter, _ = make_meter(machine)
    machine.zone("0", "package-0", 2_000_000)
    assert meter.lap().energy_j == pytest.approx(3.0)


def test_counters_that_may_not_be_read_are_as_if_they_were_not_there(machine):
    machine.zone("0", "package-0", "")
    meter, estimate = make_meter(machine)
    estimate.energy_j = 2.0
    assert meter.lap() == Energy(2.0, EnergySource.ESTIMATED)


def test_a_counter_that_comes_or_goes_leaves_an_estimate_for_that_lap(machine):
    machine.zone("0", "package-0", 1_000_000)
    meter, estimate = make_meter(machine)
    (machine.root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    estimate.energy_j = 1.5
    assert meter.lap() == Energy(1.5, EnergySource.ESTIMATED)
    machine.zone("0", "package-0", 4_000_000)
    assert meter.lap().source is EnergySource.ESTIMATED
    machine.zone("0", "package-0", 5_000_000)
    assert meter.lap() == Energy(1.0, EnergySource.RAPL)


def test_a_battery_counts_while_it_is_used(machine):
    machine.battery(energy_now=1_000_000)  # 1 Wh
    meter, estimate = make_meter(machine)
    assert meter.source is EnergySource.BATTERY
    machine.battery(energy_now=900_000)
    assert meter.lap() == Energy(pytest.approx(360.0), EnergySource.BATTERY)
    machine.battery(energy_now=950_000, status="Charging")
    estimate.energy_j = 7.0
    assert meter.lap() == Energy(7.0, EnergySource.ESTIMATED)


@pytest.mark.parametrize(
    ("files", "remaining_j"),
    [({"energy_now": 2_000_000}, 7200.0), ({"charge_now": 1_000_000, "voltage_now": 4_000_000}, 14400.0)],
)
def test_a_battery_says_what_it_holds_as_energy_or_as_charge(machine, files, remaining_j):
    machine.battery(**files)
    assert read_battery(machine.root) == Battery(pytest.approx(remaining_j), is_discharging=True)


def test_batteries_are_added_up_and_those_of_other_devices_are_not(machine):
    machine.battery(energy_now=1_000_000)
    machine.battery(name="BAT1", energy_now=1_000_000, status="Full")
    machine.battery(name="mouse", energy_now=9_000_000, scope="Device")
    machine.write("sys/class/power_supply/AC/type", "Mains")
    assert read_battery(machine.root) == Battery(pytest.approx(7200.0), is_discharging=True)


@pytest.mark.parametrize("value", ["", "a lot", "-5", "inf", "nan"])
def test_a_battery_that_says_nothing_sensible_is_none(machine, value):
    machine.battery(energy_now=value)
    assert read_battery(machine.root) is None


def test_a_machine_that_says_nothing_is_estimated(machine):
    meter, estimate = make_meter(machine)
    assert meter.source is EnergySource.ESTIMATED
    estimate.energy_j = 0.25
    assert meter.lap() == Energy(0.25, EnergySource.ESTIMATED)
    assert meter.lap() == Energy(0.0, EnergySource.ESTIMATED)


def test_an_estimate_is_what_the_model_says_of_so_many_cycles():
    assert estimate_energy(1e-28, 2e9, 3.0) == pytest.approx(0.5 * 1e-28 * 8e27 * 3.0)
    assert estimate_energy(1e-28, 2e9, 3.0) == pytest.approx(float(training_energy(1e-28, 6e9, 2e9)))
