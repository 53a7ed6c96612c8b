"""Waits that a scenario does not give are derived; those it gives are taken."""

import pytest

from bdfl.scenario import Clients, Learning, Scenario, override_scenario
from bdfl.scenario.distributions import Choice, Lognormal, Normal, Uniform
from bdfl.scenario.schema_learning import LocalUnit
from bdfl.transports.live.timeouts import live_waits

SECOND = 1_000_000_000


def test_given_waits_are_taken():
    changes = ["grace_s=7", "attempt_s=3", "resend_s=0.5", "fetch_s=4", "lease_s=9", "time_scale=2.5"]
    scenario = override_scenario(Scenario(), [f"live.{change}" for change in changes])
    waits = live_waits(scenario, 10**6)
    assert (waits.timing.grace_ns, waits.timing.attempt_ns, waits.timing.resend_ns) == (
        7 * SECOND,
        3 * SECOND,
        SECOND // 2,
    )
    assert (waits.fetch_s, waits.lease_s, waits.timing.time_scale) == (4.0, 9.0, 2.5)


def test_small_models_are_waited_for_a_few_seconds():
    waits = live_waits(Scenario(), 5_000)
    assert SECOND <= waits.timing.resend_ns <= 2 * SECOND
    assert waits.timing.attempt_ns >= 2 * waits.timing.resend_ns
    assert waits.timing.grace_ns <= 10 * SECOND


def test_larger_models_and_more_members_are_waited_for_longer():
    small, large = live_waits(Scenario(), 10**4), live_waits(Scenario(), 10**7)
    assert large.timing.grace_ns > small.timing.grace_ns
    assert large.timing.attempt_ns > small.timing.attempt_ns
    assert large.fetch_s > small.fetch_s
    many = live_waits(Scenario(clients=Clients(count=64)), 10**4)
    assert many.timing.resend_ns > small.timing.resend_ns


def test_real_training_that_nobody_models_is_covered():
    """Eight nodes that share two cores train the paper's network at about a hundred samples a second each."""
    waits = live_waits(Scenario(learning=Learning(batch=64, local_steps=20)), 4_300_000)
    assert waits.timing.grace_ns > 20 * 64 / 100 * SECOND


@pytest.mark.parametrize(
    "samples",
    [
        300,
        (100, 300),
        Uniform(low=1, high=300),
        Normal(mean=200, std=10, low=1, high=300),
        Choice(values=(10.0, 300.0)),
        Lognormal(median=300, sigma=0.0),
    ],
)
def test_passes_over_the_data_count_by_the_largest_data_set(samples):
    scenario = Scenario(
        clients=Clients(count=2, min_selected=1, samples=samples),
        learning=Learning(unit=LocalUnit.EPOCHS, local_steps=2),
    )
    plain = live_waits(
        Scenario(clients=Clients(count=2, min_selected=1), learning=Learning(batch=300, local_steps=2)), 10**6
    )
    assert live_waits(scenario, 10**6) == plain


def test_measured_rounds_last_as_long_as_they_last():
    scenario = override_scenario(Scenario(), ["live.mode=measured", "live.time_scale=20"])
    assert live_waits(scenario, 1000).timing.time_scale == 1.0
