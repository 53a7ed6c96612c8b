"""The benchmark beside Flower: everybody gets the same task, and ratios are to the Flower that they say they are."""

import numpy as np
import pytest

from bdfl.learning.data import load_data
from bdfl.learning.partition import draw_partition
from benchmarks.flower import speed
from benchmarks.flower.task import judge, load_task, save_task
from benchmarks.learning.sides import Round
from benchmarks.learning.speed import Found


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return speed.plan_cases(tmp_path_factory.mktemp("cases"), quick=True, seed=0)[0]


def test_the_task_has_the_scenarios_shares_and_first_model(digits, tmp_path):
    task = speed.make_task(digits.scenario)
    save_task(task, tmp_path / "task.npz")
    found = load_task(str(tmp_path / "task.npz"))
    data = load_data(digits.scenario.data)
    partition = draw_partition(digits.scenario, data.train_labels, data.num_labels)
    for client, held in enumerate(partition.indices):
        assert np.array_equal(found.labels[found.owners == client], data.train_labels[held])
    assert (found.num_clients, found.epochs, found.batch, len(found.initial)) == (8, 4, 32, 64 * 64 + 64 + 64 * 10 + 10)
    accuracy, loss = judge(found, [found.initial])
    assert 0 <= accuracy < 0.4
    assert loss == pytest.approx(np.log(10), rel=0.2)


def test_ratios_are_to_the_fastest_usual_flower_unless_they_say_otherwise(digits):
    own, client, usual, eager = digits.sides
    found = [
        Found(side, peak_bytes=peak, turns=[[Round(seconds, {})] * 3 for seconds in turns])
        for side, peak, turns in (
            (own, 400, [0.5, 1.0]), (client, 300, [1.0, 2.0]), (usual, 2000, [4.0, 2.0]), (eager, 1600, [2.0, 2.0])
        )
    ]  # fmt: skip
    rows = speed.speed_rows(found, digits.asked)
    assert [row.speed for row in rows] == [5.0, 2.5, 1.0, 1.5]
    assert [row.least_speed for row in rows] == [2.0, 1.0, 1.0, 1.0]
    assert [row.against_eager for row in rows] == [3.0, 1.5, 0.75, 1.0]
    assert [row.memory for row in rows] == [0.2, 0.15, 1.0, 0.8]
    assert [row.of_least_memory for row in rows] == [0.25, 0.1875, 1.25, 1.0]
    assert [row.asked_speed for row in rows] == [4.0, 1.5, None, None]
