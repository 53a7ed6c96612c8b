"""What a machine can do: how fast it trains, hashes and sends, each figure with where it comes from."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue

from bdfl.learning.training import TrainingFailed
from bdfl.ledger.block import NONCE_SIZE
from bdfl.ledger.units import NANO
from bdfl.ledger.work import search_nonce
from bdfl.operation.energy import ROOT, Battery, EnergyMeter, EnergySource, read_battery
from bdfl.scenario.ledger import WorkKind
from bdfl.transports.live.training_process import Failed, Trained, TrainingProcess

ASSUMED_CPU_HZ = 2e9
ASSUMED_UPLINK = 1.25e6  # bytes/s: ten megabit a second
_CPUFREQ = "sys/devices/system/cpu"
_CPUINFO = Path("proc/cpuinfo")
_NETWORK = Path("sys/class/net")
_TRAININGS = 3  # timed, after one to warm up; the fastest counts
_PATIENCE_S = 600.0
_HASHING_S = 0.2
_NEVER = 2**62  # a difficulty that nothing meets by chance

_BITS = 8
_MEGA = 1e6

Transfer = Callable[[], int]


class Source(StrEnum):
    """How a figure of a machine is known."""

    TIMED = "timed"
    CPUFREQ = "cpufreq"  # the kernel's frequency of the processor, under load
    CPUINFO = "cpuinfo"
    NETWORK_CARD = "network card"  # the speed of the fastest card that is up: a limit, not what gets through
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Figure:
    """A value and how it is known."""

    value: float
    source: Source


@dataclass(frozen=True)
class Calibration:
    """What a machine can do."""

    cpu_hz: Figure
    training_s: float  # one round of the client's local training
    samples_seen: int  # in it, one by one
    threads: int  # that trained
    work: WorkKind
    hashes_per_s: float
    uplink: Figure  # bytes/s

    @property
    def training_cycles(self) -> float:
        """c_i: cycles of one round of local training."""
        return self.training_s * self.cpu_hz.value * self.threads

    @property
    def cycles_per_sample(self) -> float:
        """Cycles for each sample that a step really saw."""
        return self.training_cycles / self.samples_seen if self.samples_seen else 0.0

    @property
    def cycles_per_hash(self) -> float:
        return self.cpu_hz.value / self.hashes_per_s

    def charged_cycles_per_sample(self, local_updates: int, samples: int) -> float:
        """phi_i: what the cost model, which lets each of H updates see every sample, must charge for this training."""
        seen = local_updates * samples
        return self.training_cycles / seen if seen else 0.0


def calibrate(
    training: TrainingProcess,
    work: WorkKind,
    *,
    threads: int = 1,
    transfer: Transfer | None = None,
    root: Path = ROOT,
    patience_s: float = _PATIENCE_S,
) -> Calibration:
    """Times real training, hashing and, where `transfer` sends something and says how many bytes, the uplink.

    Takes as long as four rounds of training and a second. Raises `TrainingFailed` where training does not work.
    """
    training.wait_ready(patience_s)
    runs = [_train(training, round, patience_s) for round in range(1, _TRAININGS + 2)][1:]
    cpu_hz = read_cpu_hz(root)  # right after load
    fastest = min(runs, key=lambda run: run.duration_ns)
    return Calibration(
        cpu_hz=cpu_hz,
        training_s=fastest.duration_ns / NANO,
        samples_seen=fastest.num_samples,
        threads=threads,
        work=work,
        hashes_per_s=time_hashing(work),
        uplink=measure_uplink(transfer, root),
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
    """Hashes a second of one miner, from a search that takes at least `duration_s`."""
    count = 1
    while True:
        begun_s = time.perf_counter()
        search_nonce(work, bytes(32), _NEVER, first=256**NONCE_SIZE - count)  # the last so many nonces
        took_s = time.perf_counter() - begun_s
        if took_s >= duration_s:
            return count / took_s
        count *= 2


def read_cpu_hz(root: Path = ROOT) -> Figure:
    """The greatest frequency (Hz) at which a processor of this machine runs now, as far as it says."""
    frequencies = [
        _number(path) * 1e3 for path in (root / _CPUFREQ).glob("cpu[0-9]*/cpufreq/scaling_cur_freq") if _number(path)
    ]
    if frequencies:
        return Figure(max(frequencies), Source.CPUFREQ)
    listed = [float(text) for text in _cpuinfo_mhz(root / _CPUINFO)]
    if listed:
        return Figure(max(listed) * _MEGA, Source.CPUINFO)
    return Figure(ASSUMED_CPU_HZ, Source.ASSUMED)


def measure_uplink(transfer: Transfer | None, root: Path = ROOT) -> Figure:
    """Bytes a second that `transfer` sends; without one, what the network card says, or an assumption."""
    if transfer is not None:
        begun_s = time.perf_counter()
        num_bytes = transfer()
        took_s = time.perf_counter() - begun_s
        if num_bytes > 0 and took_s > 0:
            return Figure(num_bytes / took_s, Source.TIMED)
    speeds = [
        _number(card / "speed")
        for card in (root / _NETWORK).glob("*")
        if _text(card / "operstate") == "up" and _number(card / "speed") > 0
    ]
    if speeds:
        return Figure(max(speeds) * _MEGA / _BITS, Source.NETWORK_CARD)
    return Figure(ASSUMED_UPLINK, Source.ASSUMED)


@dataclass(frozen=True)
class MachineReport:
    """All that is known of a machine, for people."""

    calibration: Calibration
    energy: EnergySource
    battery: Battery | None

    def rows(self) -> list[tuple[str, str, str]]:
        """What, how much, and how that is known."""
        found = self.calibration
        rows = [
            ("processor", f"{found.cpu_hz.value / 1e9:.2f} GHz", found.cpu_hz.source.value),
            ("training", f"{found.training_s:.3g} s a round, {found.samples_seen:,} samples", Source.TIMED.value),
            ("cycles", f"{found.cycles_per_sample:,.0f} a sample, {found.training_cycles:.3g} a round", "both above"),
            ("hashing", f"{found.hashes_per_s:,.0f} {found.work.value} hashes a second", Source.TIMED.value),
            ("uplink", f"{found.uplink.value * _BITS / _MEGA:,.1f} Mbit/s", found.uplink.source.value),
            ("energy", "of a round's work" if self.energy is EnergySource.ESTIMATED else "metered", self.energy.value),
        ]
        if self.battery is not None:
            state = "discharging" if self.battery.is_discharging else "not discharging"
            rows.append(("battery", f"{self.battery.remaining_j / 1e3:,.0f} kJ left", state))
        return rows


def report_machine(calibration: Calibration, root: Path = ROOT) -> MachineReport:
    """The calibration with what the machine says about its energy."""
    return MachineReport(calibration, EnergyMeter(lambda: 0.0, root=root).source, read_battery(root))


def _cpuinfo_mhz(path: Path) -> list[str]:
    lines = _text(path).splitlines()
    values = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("cpu mhz")]
    return [value for value in values if value.replace(".", "", 1).isdigit() and float(value) > 0]


def _number(path: Path) -> float:
    """The number in a file; 0 where there is none."""
    text = _text(path)
    return float(text) if text.isdigit() else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
