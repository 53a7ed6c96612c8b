"""Partitioners of flwr-datasets as our rules: each of them, by name, from the seed."""

import sys

import numpy as np
import pytest

pytest.importorskip("flwr_datasets")

from bdfl.errors import BdflError, MissingExtra
from bdfl.learning.partition import BadPartitioner, draw_partition, list_partitioners
from bdfl.scenario import Scenario, ScenarioError, dump_scenario, override_scenario, parse_scenario

NUM_LABELS, EACH = 5, 24
LABELS = np.repeat(np.arange(NUM_LABELS), EACH)  # sorted: whoever does not shuffle deals out labels
EVERY = {
    "ContinuousPartitioner": "{strictness = 0.5}",
    "DirichletPartitioner": "{alpha = 0.5, min_partition_size = 1}",
    "DistributionPartitioner": "{distribution_array = [[1, 3], [2, 2], [3, 1], [1, 1], [2.5, 0.5]],"
    " num_unique_labels_per_partition = 2, preassigned_num_samples_per_label = 2}",
    "ExponentialPartitioner": "{}",
    "GroupedNaturalIdPartitioner": "{group_size = 1}",
    "IidPartitioner": "{}",
    "InnerDirichletPartitioner": "{partition_sizes = [30, 20, 20, 10, 40], alpha = 0.5}",
    "LinearPartitioner": "{}",
    "NaturalIdPartitioner": "{}",
    "PathologicalPartitioner": "{num_classes_per_partition = 2}",
    "ShardPartitioner": "{num_shards_per_partition = 2}",
    "SizePartitioner": "{partition_sizes = [10, 20, 30, 40, 20]}",
    "SquarePartitioner": "{}",
}


def deal(name, parameters="{}", seed=0, count=5, labels=LABELS):
    changes = [f"clients.count={count}", f"seed={seed}", f"partition.method=flwr:{name}"]
    scenario = override_scenario(Scenario(), [*changes, f"partition.parameters={parameters}"])
    return draw_partition(scenario, labels, NUM_LABELS)


def test_every_partitioner_that_deals_out_samples_is_tried_here():
    assert list_partitioners() == sorted(EVERY)


@pytest.mark.parametrize(("name", "parameters"), EVERY.items())
def test_each_of_them_deals_out_samples_once_and_from_the_seed(name, parameters):
    first, again, other = (deal(name, parameters, seed) for seed in (1, 1, 2))
    used = np.concatenate(first.indices)
    assert len(np.unique(used)) == len(used) == first.samples.sum() > 0
    for own, counts in zip(first.indices, first.label_counts, strict=True):
        assert (np.diff(own) > 0).all()
        assert (np.bincount(LABELS[own], minlength=NUM_LABELS) == counts).all()
    assert all((a == b).all() for a, b in zip(first.indices, again.indices, strict=True))
    if name != "NaturalIdPartitioner":  # which leaves nothing to chance
        assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first.indices, other.indices, strict=True))


def test_sizes_are_the_partitioners_own():
    assert deal("SizePartitioner", EVERY["SizePartitioner"]).samples.tolist() == [10, 20, 30, 40, 20]
    assert deal("LinearPartitioner").samples.tolist() == [8, 16, 24, 32, 40]
    iid = deal("IidPartitioner", labels=np.repeat(np.arange(NUM_LABELS), 2000))
    assert (iid.samples == 2000).all()
    assert np.abs(iid.label_counts - 400).max() < 5 * np.sqrt(400)  # although they were sorted


def test_labels_are_dealt_out_as_the_partitioner_says():
    assert (np.count_nonzero(deal("NaturalIdPartitioner").label_counts, axis=1) == 1).all()
    pathological = deal("PathologicalPartitioner", "{num_classes_per_partition = 3, partition_by = 'label'}")
    assert (np.count_nonzero(pathological.label_counts, axis=1) == 3).all()


def test_a_scenario_with_one_is_written_and_read():
    text = "{alpha = [0.1, 0.2, 0.3, 0.4, 0.5], self_balancing = true, partition_by = 'label'}"
    changes = ["clients.count=5", "partition.method=flwr:DirichletPartitioner", f"partition.parameters={text}"]
    scenario = override_scenario(Scenario(), changes)
    import tomllib

    assert parse_scenario(tomllib.loads(dump_scenario(scenario))) == scenario
    assert override_scenario(scenario, ["partition.parameters.alpha=2"]).partition.parameters["alpha"] == 2


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("FairPartitioner", "{}", "'flwr:FairPartitioner' given, flwr: expects ContinuousPartitioner, Dirichlet"),
        ("VerticalEvenPartitioner", "{}", "'flwr:VerticalEvenPartitioner' given, flwr: expects"),
        ("DirichletPartitioner", "{}", "missing 1 required positional argument: 'alpha'"),
        ("DirichletPartitioner", "{alpha = -1}", "strictly greater than zero"),
        ("DirichletPartitioner", "{alpha = 0.01, min_partition_size = 20}", "max number of attempts"),
        ("DirichletPartitioner", "{alpha = 1, beta = 2}", "parameters.beta: no parameter of DirichletPartitioner, whi"),
        ("IidPartitioner", "{num_partitions = 3}", "num_partitions: 3 given, expected clients.count, which is 5"),
        ("NaturalIdPartitioner", "{partition_by = 'writer'}", "'writer' given, expected 'label', all that is known"),
        ("SizePartitioner", "{partition_sizes = [1, 2]}", "makes 2 partitions, expected clients.count, which is 5"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_was_expected(name, parameters, message):
    with pytest.raises(BadPartitioner) as caught:
        deal(name, parameters)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("partition.method=fair", '"fair" given, allowed is one of dirichlet, iid, shards, quantity, or flwr:'),
        ("partition.method='flwr:'", 'partition.method: "flwr:" given'),
        ("partition.parameters={alpha = 1}", "allowed is none with dirichlet: they are for partitioners, such as"),
        ("partition.parameters={alpha = ['a']}", 'partition.parameters.alpha: ["a"] given, allowed is a number, a'),
    ],
)
def test_a_scenario_says_what_it_does_not_take(change, message):
    with pytest.raises(ScenarioError) as caught:
        override_scenario(Scenario(), [change])
    assert message in str(caught.value)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[flower\]") as caught:
        deal("IidPartitioner")
    assert isinstance(caught.value, BdflError)
