"""How data fall to clients."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from bdfl.environment import Purpose, draw_samples, stream
from bdfl.learning.data import load_data
from bdfl.learning.partition import BadPartition, draw_label_counts, draw_partition
from bdfl.scenario import DataChoice, PartitionMethod, PartitionSizes, Scenario, override_scenario

LABELS = np.repeat(np.arange(10), 2400)  # as many of each as the paper's clients need in all
EVERY_RULE = [(method, sizes) for method in PartitionMethod for sizes in PartitionSizes]


def deal(labels=LABELS, num_labels=10, **changes):
    named = {"clients.min_selected": 1, **{key.replace("__", "."): value for key, value in changes.items()}}
    scenario = override_scenario(Scenario(), [f"{key}={value}" for key, value in named.items()])
    return draw_partition(scenario, labels, num_labels)


@given(
    samples=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    num_labels=st.integers(1, 20),
    dirichlet=st.sampled_from([0.001, 0.05, 0.3, 0.5, 1.0, 100.0]),
    seed=st.integers(0, 100),
)
def test_every_sample_has_one_label(samples, num_labels, dirichlet, seed):
    counts = draw_label_counts(stream(seed, Purpose.LABELS), np.array(samples, dtype=float), num_labels, dirichlet)
    assert counts.shape == (len(samples), num_labels)
    assert (counts >= 0).all()
    assert counts.sum(axis=1).tolist() == samples


@pytest.mark.parametrize("dirichlet", [0.05, 0.3])
def test_a_clients_labels_do_not_change_when_clients_are_added(dirichlet):
    few, many = (draw_label_counts(stream(1, Purpose.LABELS), np.full(n, 3000.0), 10, dirichlet) for n in (5, 50))
    assert (few == many[:5]).all()


def test_shares_have_the_mean_and_variance_of_the_dirichlet_law():
    num_labels, dirichlet = 10, 0.3
    counts = draw_label_counts(stream(2, Purpose.LABELS), np.full(20_000, 3000.0), num_labels, dirichlet)
    shares = counts / 3000.0
    mean = 1 / num_labels
    assert shares.mean(axis=0) == pytest.approx(np.full(num_labels, mean), rel=0.05)
    assert shares.var() == pytest.approx(mean * (1 - mean) / (num_labels * dirichlet + 1), rel=0.05)


@given(
    rule=st.sampled_from(EVERY_RULE),
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120),
    num_clients=st.integers(1, 30),
    share=st.floats(0, 1),
    dirichlet=st.sampled_from([0.01, 0.3, 10.0]),
    shards=st.integers(1, 4),
    seed=st.integers(0, 50),
)
def test_every_sample_is_used_at_most_once_and_sizes_are_kept(
    rule, labels, num_clients, share, dirichlet, shards, seed
):
    method, sizes = rule
    labels = np.array(labels)
    num_clients = min(num_clients, len(labels))
    each = max(int(share * len(labels) / num_clients), 1)
    partition = deal(
        labels,
        6,  # of which one never occurs
        seed=seed,
        clients__count=num_clients,
        clients__samples=each,
        partition__method=method.value,
        partition__sizes=sizes.value,
        partition__dirichlet=dirichlet,
        partition__size_dirichlet=dirichlet,
        partition__shards_per_client=shards,
    )
    used = np.concatenate(partition.indices)
    assert len(partition.indices) == num_clients
    assert len(np.unique(used)) == len(used)
    assert ((used >= 0) & (used < len(labels))).all()
    for own, counts in zip(partition.indices, partition.label_counts, strict=True):
        assert (np.diff(own) > 0).all()
        assert (np.bincount(labels[own], minlength=6) == counts).all()
    assert partition.samples.tolist() == [len(own) for own in partition.indices]
    if sizes is PartitionSizes.NATURAL:
        assert len(used) == len(labels)
    elif method is PartitionMethod.QUANTITY:
        assert len(used) == num_clients * each
    else:
        assert partition.samples.tolist() == [each] * num_clients


@pytest.mark.parametrize(("method", "sizes"), EVERY_RULE)
def test_a_partition_depends_on_scenario_and_seed_alone(method, sizes):
    rule = {"partition__method": method.value, "partition__sizes": sizes.value}
    first, again, other = (deal(seed=seed, **rule) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first.indices, again.indices, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first.indices, other.indices, strict=True))
    with pytest.raises(ValueError, match="read-only"):
        first.indices[0][0] = 0


def test_clients_may_want_different_amounts():
    partition = deal(clients__count=3, clients__samples="[10, 500, 7000]")
    assert partition.samples.tolist() == [10, 500, 7000]
    drawn = "{distribution = 'uniform', low = 5, high = 50}"
    scenario = override_scenario(Scenario(), [f"clients.samples={drawn}"])
    assert (draw_partition(scenario, LABELS, 10).samples == draw_samples(scenario)).all()


# Dirichlet


def test_where_labels_are_plenty_real_data_are_what_a_simulation_without_data_draws():
    scenario = override_scenario(Scenario(), ["clients.samples=100", "seed=4"])
    wishes = draw_label_counts(stream(4, Purpose.LABELS), draw_samples(scenario), 10, scenario.partition.dirichlet)
    assert (draw_partition(scenario, LABELS, 10).label_counts == wishes).all()


def test_the_papers_clients_use_up_every_image():
    partition = deal()
    assert partition.samples.tolist() == [3000] * 8
    assert partition.label_counts.sum(axis=0).tolist() == [2400] * 10
    assert partition.label_counts.max() > 1000  # and are still skewed


def test_which_samples_of_a_label_a_client_gets_is_drawn_at_random():
    counts = np.zeros(2400)
    for seed in range(20):
        own = deal(seed=seed, clients__samples=600).indices[0]
        counts[own[own < 2400]] += 1
    early, late = counts[:1200].sum(), counts[1200:].sum()
    assert abs(early - late) < 0.1 * (early + late)


def test_with_natural_sizes_each_label_is_shared_by_a_dirichlet_law():
    num_clients, dirichlet = 5, 0.7
    shares = np.concatenate([
        deal(seed=seed, clients__count=num_clients, partition__sizes="natural", partition__dirichlet=dirichlet)
        .label_counts.T / 2400
        for seed in range(40)
    ])  # fmt: skip
    assert shares.sum(axis=1) == pytest.approx(np.ones(400))
    law = stats.beta(dirichlet, dirichlet * (num_clients - 1))  # of one share
    assert stats.kstest(shares[:, 0], law.cdf).pvalue > 0.01


# the other rules


def test_iid_clients_have_labels_as_all_have():
    partition = deal(partition__method="iid")
    assert np.abs(partition.label_counts - 300).max() < 5 * np.sqrt(300)
    natural = deal(LABELS[:-5], partition__method="iid", partition__sizes="natural", clients__count=7).samples
    assert np.ptp(natural) <= 1


@pytest.mark.parametrize("sizes", ["fixed", "natural"])
def test_a_client_with_two_shards_has_few_labels(sizes):
    partition = deal(partition__method="shards", partition__sizes=sizes)
    assert np.count_nonzero(partition.label_counts, axis=1).max() <= 4  # a shard of 1,500 touches two labels of 2,400
    assert (partition.samples == 3000).all()
    one = deal(partition__method="shards", partition__sizes=sizes, clients__count=10, clients__samples=2400,
               partition__shards_per_client=1)  # fmt: skip
    assert (np.count_nonzero(one.label_counts, axis=1) == 1).all()


def test_shards_of_few_samples_come_from_all_labels():
    partition = deal(partition__method="shards", clients__samples=100)
    assert (partition.label_counts.sum(axis=0) > 0).all()


def test_quantity_skews_sizes_and_not_labels():
    partition = deal(partition__method="quantity", partition__size_dirichlet=1.0)
    samples = partition.samples
    assert samples.max() > 2 * samples.min()
    large = samples > 1000
    assert np.abs(partition.label_counts[large] / samples[large, None] - 0.1).max() < 0.05


def test_sizes_of_quantity_follow_a_dirichlet_law():
    draws = [
        deal(seed=seed, partition__method="quantity", partition__size_dirichlet=2.0, partition__sizes="natural").samples
        for seed in range(200)
    ]
    shares = np.stack(draws)[:, 0] / len(LABELS)
    assert stats.kstest(shares, stats.beta(2.0, 14.0).cdf).pvalue > 0.01


# extremes


@pytest.mark.parametrize(("method", "sizes"), EVERY_RULE)
def test_a_thousand_clients_share_the_digits(method, sizes):
    labels = load_data(DataChoice()).train_labels
    rule = {"partition__method": method.value, "partition__sizes": sizes.value}
    partition = deal(labels, clients__count=1000, clients__samples=1, **rule)
    assert len(partition.indices) == 1000
    assert partition.samples.sum() == (len(labels) if sizes is PartitionSizes.NATURAL else 1000)


def test_wanting_more_than_there_is_says_what_would_fit():
    with pytest.raises(BadPartition) as caught:
        deal(LABELS[:1437])
    assert str(caught.value) == (
        "clients.samples: 8 clients want 24000 samples together, the training set has 1437, "
        'expected at most 179 each, or partition.sizes = "natural"'
    )
    with pytest.raises(BadPartition, match="expected at most 5 clients, or"):
        deal(LABELS[:5], clients__samples=1)
