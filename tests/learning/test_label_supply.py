"""Wishes made to fit: conserved, alike for all, nearest, and whole."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import minimize

from bdfl.environment import Purpose, stream
from bdfl.learning.partition import draw_label_counts, fit_to_supply, project_wishes, round_to_supply

FLOOR = 1e-3


@st.composite
def markets(draw):
    """Wishes with a supply that suffices in all, but not of every label: often with nothing to spare."""
    num_clients, num_labels = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    sizes = np.array(draw(st.lists(st.integers(1, 200), min_size=num_clients, max_size=num_clients)), dtype=float)
    dirichlet = draw(st.sampled_from([0.001, 0.05, 0.3, 1.0, 100.0]))
    rng = stream(draw(st.integers(0, 1000)), Purpose.LABELS)
    wishes = draw_label_counts(rng, sizes, num_labels, dirichlet)
    total = int(sizes.sum()) + draw(st.sampled_from([0, 0, 1, 17]))
    supply = rng.multinomial(total, rng.dirichlet(np.full(num_labels, draw(st.sampled_from([0.2, 1.0, 50.0])))))
    return wishes, supply


@given(markets())
def test_row_sums_are_kept_and_supplies_are_never_exceeded(market):
    wishes, supply = market
    counts = fit_to_supply(wishes, supply)
    assert (counts >= 0).all()
    assert (counts.sum(axis=1) == wishes.sum(axis=1)).all()
    assert (counts.sum(axis=0) <= supply).all()


@given(markets())
def test_wishes_that_can_be_met_are_met(market):
    wishes, _ = market
    assert (fit_to_supply(wishes, wishes.sum(axis=0)) == wishes).all()
    assert (fit_to_supply(wishes, wishes.sum(axis=0) + 3) == wishes).all()


@given(markets())
def test_the_projection_satisfies_the_conditions_of_optimality(market):
    # x = a_i w_ik b_k with b <= 1, and b = 1 where something is left: necessary and sufficient, the problem is convex
    wishes, supply = market
    held = project_wishes(wishes, supply)
    scale = 1e-6 * supply.max()
    assert held.sum(axis=1) == pytest.approx(wishes.sum(axis=1))
    assert (held.sum(axis=0) <= supply + scale).all()
    there = supply > 0
    log_ratio = np.log(held[:, there]) - np.log(np.maximum(wishes[:, there], FLOOR))
    shift = log_ratio - log_ratio.max(axis=1, keepdims=True)
    assert np.ptp(shift, axis=0).max() == pytest.approx(0.0, abs=1e-6)  # the same factors for every client
    is_left = held[:, there].sum(axis=0) < supply[there] - scale
    assert shift[:, is_left] == pytest.approx(0.0, abs=1e-6)  # nobody is cut where something is left


def test_the_projection_is_what_a_general_solver_finds():
    wishes = np.array([[60, 5, 1], [50, 20, 10], [40, 2, 38]])
    supply = np.array([70, 80, 90])
    held = project_wishes(wishes, supply)

    def distance(flat):
        return float(np.sum(flat * np.log(flat / wishes.ravel())))

    rows, columns = np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))
    found = minimize(
        distance,
        np.full(9, 20.0),
        bounds=[(1e-6, None)] * 9,
        constraints=[
            {"type": "eq", "fun": lambda flat: rows @ flat - wishes.sum(axis=1)},
            {"type": "ineq", "fun": lambda flat: supply - columns @ flat},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert found.success
    assert distance(held.ravel()) <= found.fun + 1e-6
    assert held.ravel() == pytest.approx(found.x, abs=1e-2)


def test_clients_with_equal_wishes_are_treated_alike():
    wishes = np.tile([90, 10, 0], (4, 1))
    held = project_wishes(wishes, np.array([200, 150, 150]))
    assert np.ptp(held, axis=0).max() < 1e-9
    counts = fit_to_supply(wishes, np.array([200, 150, 150]))
    assert np.ptp(counts, axis=0).max() <= 1


@given(markets())
def test_rounding_moves_no_entry_by_a_whole_sample(market):
    wishes, supply = market
    held = project_wishes(wishes, supply)
    assert np.abs(round_to_supply(held, supply) - held).max() < 1 + 1e-5


def test_rounding_is_the_nearest_of_all():
    held = np.array([[1.4, 0.6], [0.7, 1.3], [0.9, 1.1]])
    supply = np.array([3, 3])
    counts = round_to_supply(held, supply)
    steps = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T.reshape(-1, 3, 2)
    options = np.floor(held).astype(int) + steps
    fits = (options.sum(axis=2) == 2).all(axis=1) & (options.sum(axis=1) <= supply).all(axis=1)
    assert ((counts - held) ** 2).sum() == pytest.approx(((options[fits] - held) ** 2).sum(axis=(1, 2)).min())


@pytest.mark.parametrize("dirichlet", [0.001, 0.3, 0.5, 100.0])
@pytest.mark.parametrize(("clients", "samples"), [(8, 3000), (1000, 24)])
def test_all_of_the_papers_data_can_be_dealt_out(dirichlet, clients, samples):
    wishes = draw_label_counts(stream(3, Purpose.LABELS), np.full(clients, float(samples)), 10, dirichlet)
    counts = fit_to_supply(wishes, np.full(10, 2400))
    assert (counts.sum(axis=1) == samples).all()
    assert (counts.sum(axis=0) == 2400).all()
