"""This machine's processor speed, hash rate, uplink and energy.

Energy is that of RAPL counters or the battery, which cover the whole machine; without them an estimate of the node's
own work.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from bdfl.compute import training_energy
from bdfl.learning.training import TrainingFailed
from bdfl.ledger.block import NONCE_SIZE
from bdfl.ledger.costs import NANO
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.radio import BITS_PER_BYTE
from bdfl.scenario.schema_learning import WorkKind
from bdfl.transports.live.training_process import Failed, Trained, TrainingProcess

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
    return _to_number(_read_text(path) or "")


def _to_number(text: str) -> float | None:
    """The finite number of at least 0 that the text is; none: it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


# Calibration of a machine: training, hashing and uplink speed, each figure with its source.

ASSUMED_CPU_HZ = 2e9
ASSUMED_UPLINK = 1.25e6  # bytes/s: 10 Mbit/s
_CPUFREQ = "sys/devices/system/cpu"
_CPUINFO = Path("proc/cpuinfo")
_NETWORK = Path("sys/class/net")
_TRAININGS = 3  # timed, after one warm-up; the fastest counts
_PATIENCE_S = 600.0
_HASHING_S = 0.2
_NEVER = 2**62  # a difficulty that no hash meets by chance

_MEGA = 1e6


class Source(StrEnum):
    """Source of a machine's figure."""

    TIMED = "timed"
    CPUFREQ = "cpufreq"  # the kernel's reading under load
    CPUINFO = "cpuinfo"
    NETWORK_CARD = "network card"  # nominal speed of the fastest card that is up: an upper bound on throughput
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Figure:
    """A value and its source."""

    value: float
    source: Source


@dataclass(frozen=True)
class Calibration:
    """Measured speeds of a machine."""

    cpu_hz: Figure
    training_s: float  # one round of the client's local training
    samples_seen: int  # in that round, counted once per step that saw them
    threads: int  # used for training
    work: WorkKind
    hashes_per_s: float
    uplink: Figure  # bytes/s

    @property
    def training_cycles(self) -> float:
        """c_i: cycles of one round of local training."""
        return self.training_s * self.cpu_hz.value * self.threads

    @property
    def cycles_per_sample(self) -> float:
        """Cycles per sample that a step actually saw."""
        return self.training_cycles / self.samples_seen if self.samples_seen else 0.0


def calibrate(
    training: TrainingProcess,
    work: WorkKind,
    *,
    threads: int = 1,
    root: Path = ROOT,
    patience_s: float = _PATIENCE_S,
) -> Calibration:
    """Time real training and hashing, and read the speeds of processor and network card.

    Takes four rounds of training and about a second. Raises `TrainingFailed` if training fails.
    """
    training.wait_ready(patience_s)
    runs = [_train(training, round, patience_s) for round in range(1, _TRAININGS + 2)][1:]
    cpu_hz = read_cpu_hz(root)  # read while still under load
    fastest = min(runs, key=lambda run: run.duration_ns)
    return Calibration(
        cpu_hz=cpu_hz,
        training_s=fastest.duration_ns / NANO,
        samples_seen=fastest.num_samples,
        threads=threads,
        work=work,
        hashes_per_s=time_hashing(work),
        uplink=read_uplink(root),
    )


def _train(training: TrainingProcess, round: int, patience_s: float) -> Trained:
    answers: SimpleQueue[Trained | Failed] = SimpleQueue()
    training.train(b"", round, answers.put)
    try:
        answer = answers.get(timeout=patience_s)
    except Empty:
        training.stop()
        raise TrainingFailed(f"training did not end within {patience_s:g} s") from None
    if isinstance(answer, Failed):
        raise TrainingFailed(answer.reason)
    return answer


def time_hashing(work: WorkKind, *, duration_s: float = _HASHING_S) -> float:
    """Measure one miner's hashes per second in a search of at least `duration_s`."""
    count = 1
    while True:
        begun_s = time.perf_counter()
        search_nonce(work, bytes(32), _NEVER, first=256**NONCE_SIZE - count)  # the last `count` nonces
        took_s = time.perf_counter() - begun_s
        if took_s >= duration_s:
            return count / took_s
        count *= 2


def read_cpu_hz(root: Path = ROOT) -> Figure:
    """Return the highest current frequency (Hz) of the processors, or an assumed one if none is reported."""
    readings = (root / _CPUFREQ).glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    fastest = max((_read_number(path) or 0.0 for path in readings), default=0.0)
    if fastest:
        return Figure(fastest * 1e3, Source.CPUFREQ)
    lines = (_read_text(root / _CPUINFO) or "").splitlines()
    listed = (_to_number(line.partition(":")[2]) or 0.0 for line in lines if line.lower().startswith("cpu mhz"))
    fastest = max(listed, default=0.0)
    if fastest:
        return Figure(fastest * _MEGA, Source.CPUINFO)
    return Figure(ASSUMED_CPU_HZ, Source.ASSUMED)


def read_uplink(root: Path = ROOT) -> Figure:
    """Return the nominal speed (bytes/s) of the fastest network card that is up, or an assumed one."""
    cards = [card for card in _folders(root / _NETWORK) if _read_text(card / "operstate") == "up"]
    fastest = max((_read_number(card / "speed") or 0.0 for card in cards), default=0.0)
    if fastest:
        return Figure(fastest * _MEGA / BITS_PER_BYTE, Source.NETWORK_CARD)
    return Figure(ASSUMED_UPLINK, Source.ASSUMED)


@dataclass(frozen=True)
class MachineReport:
    """Calibration, energy source and battery of a machine, for display."""

    calibration: Calibration
    energy: EnergySource
    battery: Battery | None

    def rows(self) -> list[tuple[str, str, str]]:
        """Return rows of quantity, value and source."""
        found = self.calibration
        rows = [
            ("processor", f"{found.cpu_hz.value / 1e9:.2f} GHz", found.cpu_hz.source.value),
            ("training", f"{found.training_s:.3g} s a round, {found.samples_seen:,} samples", Source.TIMED.value),
            ("cycles", f"{found.cycles_per_sample:,.0f} a sample, {found.training_cycles:.3g} a round", "both above"),
            ("hashing", f"{found.hashes_per_s:,.0f} {found.work.value} hashes a second", Source.TIMED.value),
            ("uplink", f"{found.uplink.value * BITS_PER_BYTE / _MEGA:,.1f} Mbit/s", found.uplink.source.value),
            ("energy", "of a round's work" if self.energy is EnergySource.ESTIMATED else "metered", self.energy.value),
        ]
        if self.battery is not None:
            state = "discharging" if self.battery.is_discharging else "not discharging"
            rows.append(("battery", f"{self.battery.remaining_j / 1e3:,.0f} kJ left", state))
        return rows


def report_machine(calibration: Calibration) -> MachineReport:
    """Combine a calibration with the machine's energy source and battery."""
    return MachineReport(calibration, EnergyMeter(lambda: 0.0).source, read_battery())
