"""Measures of a point: numbers of a whole run, by name."""

import math
from enum import StrEnum

import numpy as np

from bdfl.records import LearningRecord, RunRecord, RunSummary, summarise_run


class Mode(StrEnum):
    """Computation at a point."""

    SIMULATE = "simulate"  # rounds are scheduled and their costs recorded, without learning
    RUN = "run"  # a whole run, with data, training and a chain


_PLAYED = {
    "total_delay_s": "time of all rounds (s)",
    "mean_delay_s": "mean delay of a round (s)",
    "worst_shortfall": "worst client's shortfall (share of rounds)",
    "mean_energy_use": "mean share of the energy budgets spent",
    "total_energy_j": "energy of all clients in all rounds (J)",
    "mean_selected": "clients that train in a round",
    "final_queue_mean": "mean queue at the end",
    "infeasible_rounds": "infeasible rounds",
    "mean_iterations": "iterations of the scheduler, K",
    "mean_gap": "proven gap",
}
_LEARNED = {
    "final_accuracy": "accuracy of the last model",
    "best_accuracy": "accuracy of the best round",
    "final_loss": "loss of the last model",
}
MEASURES = {Mode.SIMULATE: _PLAYED, Mode.RUN: _LEARNED | _PLAYED}  # by mode: name and description
_SUMMARISED = frozenset(RunSummary.__struct_fields__)


def measure_run(run: RunRecord, names: tuple[str, ...]) -> dict[str, float | None]:
    """Return the named measures that need no learning; None if not known."""
    summary = summarise_run(run)
    found = {name: float(getattr(summary, name)) for name in names if name in _SUMMARISED}
    if "total_energy_j" in names:
        found["total_energy_j"] = float(np.sum(run.energy_j))
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def measure_learning(learning: LearningRecord, names: tuple[str, ...]) -> dict[str, float | None]:
    """Return the named measures that need learning."""
    best, known = learning.best_round, learning.loss[np.isfinite(learning.loss)]
    found = {
        "final_accuracy": learning.final_accuracy,
        "best_accuracy": math.nan if best is None else float(learning.accuracy[best - 1]),
        "final_loss": float(known[-1]) if known.size else math.nan,
    }
    return {name: value if math.isfinite(value) else None for name, value in found.items() if name in names}
