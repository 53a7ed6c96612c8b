"""Lemma 1: the four terms, what vanishes and what stays."""

import numpy as np
import pytest

from bdfl.errors import InvalidProblem
from bdfl.scheduling.queues import convergence_bound


def bound(**changes):
    values = {
        "initial_gap": 2.0,
        "learning_rate": 0.01,
        "smoothness": 4.0,
        "gradient_norm": 3.0,
        "local_updates": 20,
        "rounds": 100,
        "rate": np.full(8, 0.4),
        "samples": np.full(8, 3000.0),
    }
    return convergence_bound(**(values | changes))


def test_terms_equal_equation_36_worked_by_hand():
    terms = bound()
    step = 0.01 * 4.0 * 20  # eta L H
    assert terms.initial_loss == pytest.approx(2 * 2.0 / (0.01 * 20 * 100))
    assert terms.mixed_drift == pytest.approx(2 * step * 9 * 0.4 * 0.6)
    assert terms.local_drift == pytest.approx(8 * step * 9 * (step * 0.4**2 + 0.4) / 8)
    assert terms.absence == pytest.approx(8 * 9 * 0.6**2 / 8)
    assert terms.total == pytest.approx(terms.initial_loss + terms.mixed_drift + terms.local_drift + terms.absence)


def test_only_the_first_term_vanishes_with_the_rounds():
    few, many = bound(rounds=100), bound(rounds=10**9)
    assert many.initial_loss == pytest.approx(few.initial_loss * 1e-7)
    assert many.neighbourhood == few.neighbourhood > 0
    assert many.total == pytest.approx(many.neighbourhood)


def test_nothing_is_lost_by_absence_where_everybody_takes_part():
    terms = bound(rate=np.ones(8))
    assert terms.absence == 0
    assert terms.mixed_drift == 0
    assert terms.local_drift > 0


def test_printed_third_term_falls_below_the_one_its_proof_derives():
    # As printed: eta U L H G^2 (eta H + 1) sum beta^2 share^2. Its proof has eta L H, and E[Gamma^2] = beta.
    printed = 0.01 * 8 * 4.0 * 20 * 9 * (0.01 * 20 + 1) * 8 * (0.4 / 8) ** 2
    assert printed < bound().local_drift


def test_clients_without_data_do_not_learn():
    with pytest.raises(InvalidProblem, match="samples"):
        bound(samples=np.zeros(8))
