"""How data fall to clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdfl.environment import Purpose, stream
from bdfl.learning.partition import draw_label_counts


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
