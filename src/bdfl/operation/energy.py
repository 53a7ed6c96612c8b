"""Energy meter: RAPL counters or the battery if the machine has them, else an estimate.

Counters and batteries cover the whole machine; an estimate covers this node's own work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from bdfl.compute import training_energy

ROOT = Path("/")
_ZONES = Path("sys/class/powercap")
_SUPPLIES = Path("sys/class/power_supply")
_COUNTED = ("package", "dram")  # zones that do not overlap
_MICRO = 1e-6
_HOUR_S = 3600.0


class EnergySource(StrEnum):
    """Source of an energy figure."""

    RAPL = "rapl"  # the processor's own counters
    BATTERY = "battery"
    ESTIMATED = "estimated"  # by the cost model, from computing time


@dataclass(frozen=True)
class Energy:
    """Energy spent, and the source of the figure."""

    energy_j: float
    source: EnergySource


@dataclass(frozen=True)
class Battery:
    """Charge and state of a battery."""

    remaining_j: float
    is_discharging: bool


class EnergyMeter:
    """Measures the energy spent between laps."""

    def __init__(self, estimate_j: Callable[[], float], *, root: Path = ROOT) -> None:
        """`estimate_j` returns this node's total energy by the cost model, used if nothing is measured."""
        self._estimate_j = estimate_j
        self._root = root
        self._zones = _find_zones(root)
        self._last = self._look()

    @property
    def source(self) -> EnergySource:
        """The best source available now."""
        last = self._look()
        if last.counters_j is not None:
            return EnergySource.RAPL
        return EnergySource.ESTIMATED if last.battery is None else EnergySource.BATTERY

    def lap(self) -> Energy:
        """Return the energy since the last lap, from the best source available at both ends of it."""
        before, self._last = self._last, self._look()
        now = self._last
        if before.counters_j is not None and now.counters_j is not None:
            spent_j = sum(
                _difference(zone, old, new)
                for zone, old, new in zip(self._zones, before.counters_j, now.counters_j, strict=True)
            )
            return Energy(spent_j, EnergySource.RAPL)
        if before.battery is not None and now.battery is not None and now.battery <= before.battery:
            return Energy(before.battery - now.battery, EnergySource.BATTERY)
        return Energy(max(0.0, now.estimated_j - before.estimated_j), EnergySource.ESTIMATED)

    def _look(self) -> "_Look":
        battery = read_battery(self._root)
        return _Look(
            counters_j=_read_counters(self._zones),
            battery=battery.remaining_j if battery is not None and battery.is_discharging else None,
            estimated_j=self._estimate_j(),
        )


def estimate_energy(capacitance: float, cpu_hz: float, busy_s: float) -> float:
    """Energy (J) of a processor that computes for `busy_s` at `cpu_hz`: half of chi f^3 t, as for training."""
    return float(training_energy(np.array(capacitance), np.array(cpu_hz * busy_s), np.array(cpu_hz)))


def read_battery(root: Path = ROOT) -> Battery | None:
    """Sum up all batteries of the machine; None if no battery reports its charge."""
    found = [battery for battery in map(_read_supply, _folders(root / _SUPPLIES)) if battery is not None]
    if not found:
        return None
    return Battery(sum(one.remaining_j for one in found), any(one.is_discharging for one in found))


@dataclass(frozen=True)
class _Look:
    """Readings of all sources at one moment; None: that source is unavailable."""

    counters_j: tuple[float, ...] | None  # by zone
    battery: float | None
    estimated_j: float


@dataclass(frozen=True)
class _Zone:
    """An energy counter that wraps around after `range_j`."""

    path: Path
    range_j: float


def _find_zones(root: Path) -> tuple[_Zone, ...]:
    zones = []
    for folder in _folders(root / _ZONES):
        range_uj = _read_number(folder / "max_energy_range_uj")
        if range_uj and (_read_text(folder / "name") or "").startswith(_COUNTED):
            zones.append(_Zone(folder / "energy_uj", range_uj * _MICRO))
    return tuple(zones)


def _read_counters(zones: tuple[_Zone, ...]) -> tuple[float, ...] | None:
    """Read all counters (J); None if there are none or one is unreadable, often because only root may read it."""
    found = [_read_number(zone.path) for zone in zones]
    values = tuple(value * _MICRO for value in found if value is not None)
    return values if zones and len(values) == len(zones) else None


def _difference(zone: _Zone, old_j: float, new_j: float) -> float:
    return new_j - old_j if new_j >= old_j else new_j - old_j + zone.range_j


def _read_supply(folder: Path) -> Battery | None:
    if _read_text(folder / "type") != "Battery" or _read_text(folder / "scope") == "Device":  # like a mouse
        return None
    energy_uwh = _read_number(folder / "energy_now")
    if energy_uwh is None:
        charge_uah, voltage_uv = _read_number(folder / "charge_now"), _read_number(folder / "voltage_now")
        if charge_uah is None or voltage_uv is None:
            return None
        energy_uwh = charge_uah * voltage_uv * _MICRO
    return Battery(energy_uwh * _MICRO * _HOUR_S, _read_text(folder / "status") == "Discharging")


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(parent.iterdir())
    except OSError:
        return []


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _read_number(path: Path) -> float | None:
    text = _read_text(path)
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < float("inf") else None
