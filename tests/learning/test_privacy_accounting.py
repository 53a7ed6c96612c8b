"""What private training spends: Opacus's accountant against the published formula, and a pure function of integers."""

import logging
import math
import sys

import pytest

from bdfl.encoding import INT_LIMIT
from bdfl.errors import MissingExtra
from bdfl.learning.privacy_accounting import Mechanism, mechanism_of, noise_micro_of, spent_micro, validate_opacus
from bdfl.learning.training import InvalidTraining
from bdfl.scenario import Accountant, Scenario, ScenarioError, override_scenario

CASES = [(1.1, 32, 180, 20, 1e-5), (0.8, 16, 1000, 7, 1e-5), (2.0, 64, 60_000, 500, 1e-6), (3.0, 50, 40, 5, 1e-4)]


def mechanism(noise=1.1, batch=32, samples=180, steps=20, delta=1e-5, accountant=Accountant.RDP):
    return Mechanism(round(noise * 10**6), batch, samples, steps, round(delta * 10**18), accountant)


def epsilon_by_hand(noise, rate, num_steps, delta):
    """[Mironov19, Section 3.3] for whole orders, turned into epsilon by [Balle20, Theorem 21]; in logarithms."""
    found = math.inf
    for order in (*range(2, 11), *range(12, 64)):  # the whole ones among the orders that the accountant looks at
        terms = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + (k * math.log(rate) + ((order - k) * math.log1p(-rate) if rate < 1 else 0.0 if k == order else -math.inf))
            + (k * k - k) / (2 * noise**2)
            for k in range(order + 1)
        ]  # fmt: skip
        top = max(terms)
        divergence = (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / (order - 1)
        spent = num_steps * divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        found = min(found, spent)
    return found


@pytest.mark.parametrize(("noise", "batch", "samples", "steps", "delta"), CASES)
@pytest.mark.parametrize("rounds", [1, 5, 20])
def test_epsilon_is_that_of_the_subsampled_gaussian_mechanism(noise, batch, samples, steps, delta, rounds):
    by_hand = epsilon_by_hand(noise, min(1.0, batch / samples), rounds * steps, delta)
    found = spent_micro(mechanism(noise, batch, samples, steps, delta), rounds) / 10**6
    assert 0.8 * by_hand < found <= by_hand + 1e-6  # orders between whole ones can only help, and that a little


def test_whole_orders_have_the_published_divergence():
    from opacus.accountants.analysis import rdp

    for noise, rate in ((1.5, 0.2), (1.2, 0.01), (4.0, 0.9)):
        for order in (2, 5, 17, 40):
            terms = [
                math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * noise**2))
                for k in range(order + 1)
            ]
            expected = math.log(math.fsum(terms)) / (order - 1)
            [found] = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=[order])
            assert found == pytest.approx(expected, rel=1e-9)


def test_epsilon_grows_with_every_round_and_falls_with_noise():
    by_rounds = [spent_micro(mechanism(), rounds) for rounds in range(1, 40)]
    assert by_rounds == sorted(set(by_rounds))
    assert spent_micro(mechanism(noise=2.0), 5) < spent_micro(mechanism(noise=1.0), 5)
    assert spent_micro(mechanism(batch=8), 5) < spent_micro(mechanism(batch=32), 5)


def test_nothing_is_spent_without_data_or_rounds_and_no_noise_worth_the_name_spends_all():
    assert spent_micro(mechanism(), 0) == 0
    assert spent_micro(mechanism(samples=0, steps=0), 3) == 0
    assert 10**12 < spent_micro(mechanism(noise=1e-6), 1) <= INT_LIMIT


def test_the_distribution_of_the_loss_itself_gives_less_than_its_moments():
    tight = spent_micro(mechanism(accountant=Accountant.PRV), 10)
    assert 0.6 * spent_micro(mechanism(), 10) < tight < spent_micro(mechanism(), 10)


def private(*changes):
    return override_scenario(Scenario(), ["learning.batch=32", "compute.local_updates=20", "rounds=30", *changes])


def test_the_noise_for_an_epsilon_keeps_it_in_all_rounds_and_hardly_more():
    scenario = private("privacy.epsilon=4.0")
    sizes = [180, 90, 0, 400]
    noise_micro = noise_micro_of(scenario, sizes)
    spent = [spent_micro(mechanism_of(scenario, size, noise_micro), 30) / 10**6 for size in sizes]
    assert 3.9 < max(spent) <= 4.0
    assert spent.index(max(spent)) == 1  # who holds least is sampled most
    assert noise_micro_of(private("privacy.noise_multiplier=1.25"), sizes) == 1_250_000


def test_an_epsilon_that_no_noise_gives_is_refused():
    with pytest.raises(InvalidTraining, match=r"^privacy\.epsilon: 1e-07 given"):
        noise_micro_of(private("privacy.epsilon=1e-7", "privacy.delta=1e-15"), [32])


def test_an_epoch_is_as_many_steps_as_would_see_every_sample_once():
    scenario = private("privacy.noise_multiplier=1.0", "learning.unit=epochs", "learning.local_steps=3")
    assert mechanism_of(scenario, 100, 10**6).steps == 3 * 4
    assert mechanism_of(scenario, 0, 10**6).steps == 0
    assert mechanism_of(scenario, 20, 10**6).rate == 1.0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("privacy.noise_multiplier=0", "privacy.noise_multiplier: 0 given"),
        ("privacy.epsilon=0.0", "privacy.epsilon: 0.0 given"),
        ("privacy.delta=0.7", "privacy.delta: 0.7 given"),
        ("privacy.accountant=gdp", 'privacy.accountant: "gdp" given'),
        ("learning.engine=vmap", 'learning.engine: "vmap" given, allowed is loop where training is private'),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(change, line):
    with pytest.raises(ScenarioError) as refusal:
        private("privacy.noise_multiplier=1.0", change)
    assert str(refusal.value).startswith(line)


def test_noise_and_epsilon_are_not_given_both():
    with pytest.raises(ScenarioError, match=r"one of privacy\.noise_multiplier and privacy\.epsilon"):
        private("privacy.noise_multiplier=1.0", "privacy.epsilon=2.0")


def test_who_lacks_opacus_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(MissingExtra, match=r"^private training needs Opacus: .*privacy"):
        validate_opacus()


def test_asking_opacus_leaves_the_root_logger_as_it_was():
    before = list(logging.root.handlers)
    validate_opacus()
    assert logging.root.handlers == before
