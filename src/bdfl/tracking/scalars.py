"""Metrics and parameters of a run for trackers."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bdfl.experiment.round_book import delivered_by
from bdfl.ledger.block import Block
from bdfl.ledger.units import NANO, PICOJOULE
from bdfl.records import LearningRound, RoundRecord
from bdfl.scenario import Scenario, describe_scenario, dump_scenario, scenario_digest
from bdfl.scenario.privacy import MICRO
from bdfl.tracking.tracker import Parameter, TrackedRun

DELAY = "time/delay_s"  # every round has one
_ALWAYS = ("seed", "rounds", "scheduler.name")  # parameters, even if default
_NEVER = ("name", "description")


def tracked_run(scenario: Scenario, name: str = "", *, is_continued: bool = False) -> TrackedRun:
    """Describe a run of the scenario; by default it is named after scenario, scheduler and seed."""
    return TrackedRun(
        name=name or f"{scenario.name}-{scenario.scheduler.name}-{scenario.seed}",
        experiment=scenario.name,
        identity=scenario_digest(scenario),
        parameters=parameters_of(scenario),
        description=scenario.description,
        document=dump_scenario(scenario),
        is_continued=is_continued,
    )


def parameters_of(scenario: Scenario) -> dict[str, Parameter]:
    """Parameters of the run: non-default keys, and always scheduler, rounds and seed; lists and tables as TOML."""
    return {
        row.key: row.value if isinstance(row.value, Parameter) else row.value_text
        for row in describe_scenario(scenario)
        if row.key not in _NEVER and (row.key in _ALWAYS or not row.is_default)
    }


class RoundScalars:
    """Computes the metrics of consecutive rounds; some are over all rounds so far."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self._num_rounds = 0
        self._num_delivered: NDArray[np.int64] | int = 0  # (clients,)
        self._epsilon = 0.0  # greatest of any client

    def of_round(self, record: RoundRecord, learning: LearningRound | None) -> dict[str, float]:
        """Metrics of the next round from its record; `learning` is None for a run without learning and chain."""
        self._time_s += record.delay_s
        self._num_rounds += 1
        self._num_delivered = self._num_delivered + record.delivered
        energy_j, budget_j = record.energy_j, record.energy_budget_j
        share = np.divide(energy_j, budget_j, out=np.zeros_like(energy_j), where=budget_j > 0)
        return _finite(
            {
                DELAY: record.delay_s,
                "time/training_s": record.training_s,
                "time/upload_s": record.upload_s,
                "time/mining_s": record.mining_s,
                "time/total_s": self._time_s,
                "energy/total_j": np.sum(energy_j),
                "energy/highest_share": np.max(share),
                "queue/mean": np.mean(record.next_queue),
                "queue/longest": np.max(record.next_queue),
                "participation/selected": np.count_nonzero(record.selected),
                "participation/delivered": np.count_nonzero(record.delivered),
                "participation/least_share": np.min(self._num_delivered) / self._num_rounds,
                "schedule/objective": record.objective,
                "schedule/gap": record.gap,
                "schedule/iterations": record.iterations,
            }
        ) | ({} if learning is None else {"chain/height": float(record.round)} | self._learned(learning))

    def of_block(self, block: Block, learning: LearningRound | None) -> dict[str, float]:
        """Metrics of the next round from its block, which contains fewer than a record."""
        body = block.body
        delay_s = body.modelled.delay_ns / NANO
        self._time_s += delay_s
        return _finite(
            {
                DELAY: delay_s,
                "time/mining_s": body.modelled.mining_ns / NANO,
                "time/total_s": self._time_s,
                "energy/total_j": sum(body.modelled.energy_pj) / PICOJOULE,
                "queue/mean": sum(body.queue_nano) / NANO / max(len(body.queue_nano), 1),
                "queue/longest": max(body.queue_nano, default=0) / NANO,
                "participation/selected": len(body.schedule.selected),
                "participation/delivered": np.count_nonzero(delivered_by(block)),
                "schedule/objective": body.schedule.objective_nano / NANO if body.schedule.is_feasible else None,
                "chain/height": block.header.height,
            }
        ) | (self._spent(_stated(block)) if learning is None else self._learned(learning))

    def _learned(self, row: LearningRound) -> dict[str, float]:
        local_losses = _known(row.local_loss)
        return _finite(
            {
                "learning/accuracy": row.accuracy,
                "learning/loss": row.loss,
                "learning/local_loss": np.mean(local_losses) if local_losses else None,
                "learning/update_norm": row.update_norm,
            }
        ) | self._spent(_known(row.epsilon))

    def _spent(self, epsilon: Sequence[float]) -> dict[str, float]:
        self._epsilon = max(self._epsilon, *epsilon, 0.0)
        return {"privacy/epsilon": self._epsilon} if self._epsilon else {}


def _stated(block: Block) -> list[float]:
    return [signed.update.epsilon_micro / MICRO for signed in block.body.updates]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _finite(values: Mapping[str, float | np.floating | np.integer | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and np.isfinite(value)}
