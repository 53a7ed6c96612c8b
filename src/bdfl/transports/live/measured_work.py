"""Work in measured mode: no emulated waits, and receipts with measured or explicitly estimated figures."""

from pathlib import Path

import numpy as np

from bdfl.encoding import INT_LIMIT
from bdfl.ledger.block import MAX_BUDGET_PJ, Block, Conditions, Limits, Physics, Receipt
from bdfl.ledger.chain import ChainState
from bdfl.ledger.costs import ATTO, CAPACITANCE, MICROWATT, NANO, NOISE, PICOJOULE
from bdfl.radio import BITS_PER_BYTE, gain_for_rate
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


class MeasuredWork(WorkProcesses):
    """A `Work` with the machine's real durations, conditions and receipts."""

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        training: TrainingProcess,
        calibration: Calibration,
        *,
        on_failure: OnFailure | None = None,
        root: Path = ROOT,
    ) -> None:
        self._uplink = calibration.uplink.value  # bytes/s
        self._calibration = calibration
        self._rounds = scenario.rounds
        self._root = root
        super().__init__(number, ScenarioTimes(scenario, lambda round, client: None), training, on_failure)
        self._capacitance = 0.0  # set with the first chain
        self._meter = EnergyMeter(self._estimate_j, root=root)
        self._height: int | None = None  # of the chain at the last lap

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        limits = chain.members[self._number].limits
        self._capacitance = limits.capacitance / CAPACITANCE
        conditions = Conditions(
            gain_atto=measured_gain(chain.genesis.physics, limits, self._uplink),
            energy_budget_pj=self._budget_pj(chain),
            is_reachable=self._uplink > 0,
        )
        energy, before = self._meter.lap(), self._height
        self._height = chain.height
        if tip is None or before != chain.height - 1:
            return conditions, None  # the start of the round was not observed
        return conditions, self._receipt(chain, tip, limits, energy)

    def upload(self, chain: ChainState) -> int:
        """Return 0: the real network determines the duration."""
        return 0

    def _receipt(self, chain: ChainState, tip: Block, limits: Limits, energy: Energy) -> Receipt:
        spent = self.spent(chain.height)
        has_sent = any(signed.update.client == self._number and signed.update.model for signed in tip.body.updates)
        upload_s = chain.genesis.model.size / self._uplink if has_sent and self._uplink else 0.0
        if energy.source is EnergySource.ESTIMATED:
            energy = Energy(energy.energy_j + limits.power_uw / MICROWATT * upload_s, energy.source)
        return Receipt(
            round=chain.height,
            energy_pj=_count(energy.energy_j, PICOJOULE, INT_LIMIT),
            training_ns=spent.training_ns,
            upload_ns=_count(upload_s, NANO, INT_LIMIT),
            mining_ns=spent.hashing_ns,
        )

    def _budget_pj(self, chain: ChainState) -> int:
        """Return the energy budget (pJ) for the round after the next.

        A discharging battery is divided over the remaining rounds; without one the member keeps the budget it joined
        with.
        """
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
