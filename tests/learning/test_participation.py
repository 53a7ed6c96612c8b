"""Participation rates from label counts."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.environment import draw_federation
from bdfl.learning import participation, partition
from bdfl.learning.participation import draw_participation, label_divergence, participation_of, participation_rates
from bdfl.scenario import Participation, Preference, Scenario, override_scenario

SETTINGS = {"mean": 0.4, "spread": 0.05, "floor": 0.2}
GOLDEN = [
    0.386566359106719,
    0.490748898318424,
    0.36992657124233,
    0.428786373342744,
    0.421178956515241,
    0.305275019774754,
    0.384153130203735,
    0.413364691496053,
]
COUNTS = np.array([[5, 5], [9, 1], [1, 9], [10, 10]])


def test_divergence_by_hand():
    # global shares 25/50 and 25/50; client 1 expects 5 and 5 but has 9 and 1: (4 + 4) / 10
    assert label_divergence(COUNTS) == pytest.approx([0.0, 0.8, 0.8, 0.0])


def test_rates_by_hand():
    # divergences 0, 0.8, 0.8, 0 have mean 0.4 and population deviation 0.4: z = -1, 1, 1, -1
    rates = participation_rates(COUNTS, Participation(**SETTINGS, preference=Preference.LITERAL))
    assert rates == pytest.approx([0.35, 0.45, 0.45, 0.35])
    similar = participation_rates(COUNTS, Participation(**SETTINGS, preference=Preference.SIMILAR))
    assert similar == pytest.approx(0.8 - rates)


def test_equal_clients_all_get_the_mean():
    counts = np.tile([3, 1, 7], (8, 1))
    assert participation_rates(counts, Participation(**SETTINGS, preference=Preference.LITERAL)).tolist() == [0.4] * 8


def test_a_client_without_data_differs_from_nobody():
    assert label_divergence(np.array([[0, 0], [1, 1]])).tolist() == [0.0, 0.0]


@given(
    counts=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=12),
    mean=st.floats(0, 1),
    spread=st.floats(0, 2),
    floor=st.floats(0, 1),
    preference=st.sampled_from(Preference),
)
def test_rates_lie_between_floor_and_one(counts, mean, spread, floor, preference):
    rates = participation_rates(
        np.array(counts), Participation(mean=mean, spread=spread, floor=floor, preference=preference)
    )
    assert (rates >= floor).all()
    assert (rates <= 1).all()


def test_the_scenario_draws_labels_once_from_its_seed():
    scenario = Scenario()
    federation = draw_federation(scenario)
    rates = draw_participation(scenario, federation)
    assert (rates == draw_participation(scenario, federation)).all()
    assert rates.mean() == pytest.approx(0.4)
    assert rates.std() == pytest.approx(0.05)
    other = override_scenario(scenario, ["seed=1"])
    assert (rates != draw_participation(other, draw_federation(other))).any()


def test_given_rates_are_taken_as_they_are():
    scenario = override_scenario(Scenario(), ["participation.rates=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]"])
    rates = draw_participation(scenario, draw_federation(scenario))
    assert rates.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def test_rates_follow_the_counts_of_real_data():
    rates = participation_of(override_scenario(Scenario(), ["clients.count=4"]), COUNTS)
    assert rates == pytest.approx([0.35, 0.45, 0.45, 0.35])


def test_given_rates_do_not_ask_for_counts():
    scenario = override_scenario(Scenario(), ["participation.rates={distribution='uniform', low=0.2, high=0.6}"])
    drawn = draw_participation(scenario, draw_federation(scenario))
    assert (participation_of(scenario, np.ones((8, 3), dtype=np.int64)) == drawn).all()


def test_rates_without_data_are_what_they_always_were():
    # golden: simulations without data must not change when learning does
    rates = draw_participation(Scenario(), draw_federation(Scenario()))
    assert rates == pytest.approx(GOLDEN, abs=1e-12)


@pytest.mark.parametrize("dirichlet", [0.05, 0.3, 5.0])
def test_many_clients_drawn_a_few_at_a_time_are_the_same(monkeypatch, dirichlet):
    scenario = override_scenario(Scenario(), ["clients.count=1000", f"partition.dirichlet={dirichlet}"])
    federation = draw_federation(scenario)
    at_once = draw_participation(scenario, federation)
    for module in (partition, participation):
        monkeypatch.setattr(module, "_ROWS_AT_A_TIME", 7)
    assert (draw_participation(scenario, federation) == at_once).all()
