"""Work in measured mode: no emulated waits, and receipts with measured or explicitly estimated figures."""

import threading
from pathlib import Path

import numpy as np

from bdfl.encoding import INT_LIMIT
from bdfl.ledger.block import MAX_BUDGET_PJ, Block, Conditions, Limits, Physics, Receipt
from bdfl.ledger.chain import ChainState
from bdfl.ledger.costs import ATTO, CAPACITANCE, MICROWATT, NANO, NOISE, PICOJOULE
from bdfl.ledger.miner import Miner
from bdfl.radio import BITS_PER_BYTE, gain_for_rate
from bdfl.records.files import ModelledRound
from bdfl.scenario import Scenario
from bdfl.transports.cost_model import ScenarioTimes
from bdfl.transports.live.calibration import (
    ROOT,
    Calibration,
    Energy,
    EnergyMeter,
    EnergySource,
    estimate_energy,
    read_battery,
)
from bdfl.transports.live.training_process import TrainingProcess
from bdfl.transports.live.work import OnFailure, WorkProcesses

_WEIGHT = 0.25  # of the newest transfer in the moving average


class UplinkGauge:
    """Exponential moving average of the uplink's speed. Thread-safe."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()

    @property
    def bytes_per_s(self) -> float:
        return self._bytes_per_s

    def note(self, num_bytes: int, duration_s: float) -> None:
        """Record a transfer that was limited by the uplink."""
        if num_bytes > 0 and duration_s > 0:
            with self._lock:
                self._bytes_per_s += _WEIGHT * (num_bytes / duration_s - self._bytes_per_s)


class MeasuredWork(WorkProcesses):
    """A `Work` with the machine's real durations, conditions and receipts."""

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        training: TrainingProcess,
        calibration: Calibration,
        *,
        uplink: UplinkGauge | None = None,
        energy_budget_j: float | None = None,
        miner: Miner | None = None,
        on_failure: OnFailure | None = None,
        root: Path = ROOT,
    ) -> None:
        """`energy_budget_j` is per round. By default a discharging battery is divided over the remaining rounds.

        Without either, the member keeps the budget it joined with.
        """
        self.uplink = UplinkGauge(calibration.uplink.value) if uplink is None else uplink
        self.last_energy: Energy | None = None  # of the last round observed from start to end
        self._number = number
        self._calibration = calibration
        self._rounds = scenario.rounds
        self._energy_budget_j = energy_budget_j
        self._root = root
        super().__init__(training, miner, on_failure=on_failure)
        self._times = ScenarioTimes(scenario, lambda round, client: None)
        self._capacitance = 0.0  # set with the first chain
        self._meter = EnergyMeter(self._estimate_j, root=root)
        self._height: int | None = None  # of the chain at the last lap

    @property
    def time_scale(self) -> float:
        return 1.0

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        limits = chain.members[self._number].limits
        self._capacitance = limits.capacitance / CAPACITANCE
        conditions = Conditions(
            gain_atto=measured_gain(chain.genesis.physics, limits, self.uplink.bytes_per_s),
            energy_budget_pj=self._budget_pj(chain),
            is_reachable=self.uplink.bytes_per_s > 0,
        )
        energy, before = self._meter.lap(), self._height
        self._height = chain.height
        if tip is None or before != chain.height - 1:
            return conditions, None  # the start of the round was not observed
        return conditions, self._receipt(chain, tip, limits, energy)

    def upload(self, chain: ChainState) -> int:
        """Return 0: the real network determines the duration."""
        return 0

    def modelled(self, chain: ChainState) -> ModelledRound:
        """Model the round after `chain` from all members' measurements."""
        return self._times.modelled(self._number, chain)

    def _receipt(self, chain: ChainState, tip: Block, limits: Limits, energy: Energy) -> Receipt:
        spent = self.spent(chain.height)
        has_sent = any(signed.update.client == self._number and signed.update.model for signed in tip.body.updates)
        upload_s = chain.genesis.model.size / self.uplink.bytes_per_s if has_sent and self.uplink.bytes_per_s else 0.0
        if energy.source is EnergySource.ESTIMATED:
            energy = Energy(energy.energy_j + limits.power_uw / MICROWATT * upload_s, energy.source)
        self.last_energy = energy
        return Receipt(
            round=chain.height,
            energy_pj=_count(energy.energy_j, PICOJOULE, INT_LIMIT),
            training_ns=spent.training_ns,
            upload_ns=_count(upload_s, NANO, INT_LIMIT),
            mining_ns=spent.hashing_ns,
        )

    def _budget_pj(self, chain: ChainState) -> int:
        """Return the energy budget (pJ) for the round after the next."""
        if self._energy_budget_j is not None:
            return _count(self._energy_budget_j, PICOJOULE, MAX_BUDGET_PJ)
        battery = read_battery(self._root)
        if battery is not None and battery.is_discharging:
            rounds_left = max(1, self._rounds - chain.height - 1)
            return _count(battery.remaining_j / rounds_left, PICOJOULE, MAX_BUDGET_PJ)
        return chain.members[self._number].conditions.energy_budget_pj

    def _estimate_j(self) -> float:
        """Estimate the energy (J) of training and hashing so far, by the cost model at the measured frequency."""
        total = self.total()
        cpu_hz = self._calibration.cpu_hz.value
        busy_s = (total.training_ns * self._calibration.threads + total.hashing_ns) / NANO
        return estimate_energy(self._capacitance, cpu_hz, busy_s)


def measured_gain(physics: Physics, limits: Limits, bytes_per_s: float) -> int:
    """Return the channel gain (1e-18) at which the modelled uplink is as fast as the real one.

    Clipped to the chain's largest number: with little bandwidth no gain is enough for a fast network.
    """
    gain = gain_for_rate(
        float(physics.bandwidth_hz),
        np.array(limits.power_uw / MICROWATT),
        np.array(BITS_PER_BYTE * bytes_per_s),
        physics.noise / NOISE,
    )
    return _count(float(gain), ATTO, INT_LIMIT)


def _count(value: float, per_one: int, most: int) -> int:
    """Convert to whole units, clipped to 0 and `most`."""
    return most if value * per_one >= most else max(0, round(value * per_one))
