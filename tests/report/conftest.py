"""Runs that learned, made up: real schedules with synthetic learning beside them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from bdfl.experiment import simulate
from bdfl.records import LearningRecord, RunRecord
from bdfl.scenario import Scenario, override_scenario


@dataclass(frozen=True)
class Learned:
    """A run, what it learned, and the scenario of both."""

    run: RunRecord
    learning: LearningRecord
    scenario: Scenario


def make_learned(*changes, names=None, evaluate_every=1, gradient_every=1, diverged=(), num_labels=10, seed=3):
    """A run of the scenario so changed; `diverged` lists (round, client) whose updates fail, where they trained."""
    scenario = override_scenario(Scenario(name="made up", rounds=30), list(changes))
    run = simulate(scenario)
    failed = np.zeros_like(run.selected)
    for round, client in diverged:
        failed[round - 1, client] = run.selected[round - 1, client]
    run = replace(run, delivered=run.selected & ~failed)
    rng = np.random.default_rng(seed)
    rounds, clients = run.selected.shape
    time = np.arange(1, rounds + 1)
    gone = 1.0 - np.exp(-time / 8.0)
    is_evaluated = (time % evaluate_every == 0) | (time == rounds) if evaluate_every else np.zeros(rounds, dtype=bool)
    is_measured = (time - 1) % gradient_every == 0 if gradient_every else np.zeros(rounds, dtype=bool)
    recall = np.clip(0.1 + 0.85 * gone[:, None] + 0.08 * rng.standard_normal((rounds, num_labels)), 0.0, 1.0)
    outcome = np.where(run.selected, np.where(failed, "diverged", "trained"), "")
    trained = outcome == "trained"
    local = 2.3 - 2.0 * gone[:, None] + 0.1 * rng.random((rounds, clients))
    counts = rng.multinomial(300, np.full(num_labels, 1.0 / num_labels), size=clients)
    learning = LearningRecord(
        label_names=tuple(names or (str(label) for label in range(num_labels))),
        samples=counts.sum(axis=1).astype(float),
        label_counts=counts,
        num_parameters=2410,
        initial_accuracy=0.1,
        initial_loss=2.35,
        outcome=outcome,
        local_loss=np.where(trained, local, np.nan),
        local_gradient_norm=np.where(trained, 4.0 - 3.0 * gone[:, None], np.nan),
        epsilon=np.full((rounds, clients), np.nan),
        update_norm=np.where(trained.any(axis=1), 1.0 - 0.8 * gone, 0.0),
        accuracy=np.where(is_evaluated, recall.mean(axis=1), np.nan),
        loss=np.where(is_evaluated, 2.35 - 2.1 * gone, np.nan),
        recall=np.where(is_evaluated[:, None], recall, np.nan),
        gradient_norm=np.where(is_measured, 1.5 - 1.3 * gone, np.nan),
        global_loss=np.where(is_measured, 2.34 - 2.1 * gone, np.nan),
        smoothness=np.where(is_measured & (time > 1), 0.5 + 0.3 * rng.random(rounds), np.nan),
    )
    return Learned(run, learning, scenario)


@pytest.fixture(scope="session")
def learned():
    """The maker of such runs."""
    return make_learned
