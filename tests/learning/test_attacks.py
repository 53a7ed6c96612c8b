"""Poisoning: only adversaries are touched, and what they send depends on seed, round and client alone."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.learning.attacks import poison_labels, poison_results
from bdfl.learning.training import LocalResult, Outcome, no_samples
from bdfl.scenario import Behaviour

BENDING = ["sign-flip", "scaling", "gaussian", "lazy"]
PARENT = np.linspace(-1, 1, 500, dtype=np.float32)
ROUND = 3


def attack(settings, kind, *members, strength=4.0, seed=0):
    return settings(
        f"adversaries.kind={kind}",
        f"adversaries.members={list(members)}",
        f"adversaries.strength={strength}",
        f"seed={seed}",
    )


def trained(client, *, scale=0.1):
    learned = scale * np.random.default_rng(client).standard_normal(PARENT.size)
    return LocalResult(client, Outcome.TRAINED, PARENT + learned.astype(np.float32), 0.5, 1.5, 7)


def sent(scenario, results, *, round=ROUND):
    return poison_results(scenario, PARENT, round, results)


def learned(result):
    return result.weights.astype(np.float64) - PARENT


@pytest.mark.parametrize("kind", list(Behaviour))
def test_results_of_honest_members_are_the_very_same_objects(settings, kind):
    results = [trained(client) for client in range(5)]
    found = sent(attack(settings, kind, 1, 3), results)
    assert [result.client for result in found] == [0, 1, 2, 3, 4]
    assert all(found[client] is results[client] for client in (0, 2, 4))


@pytest.mark.parametrize("kind", [kind for kind in Behaviour if kind.value not in BENDING])
def test_members_that_attack_otherwise_send_what_they_learned(settings, kind):
    results = [trained(client) for client in range(3)]
    found = sent(attack(settings, kind, 0, 1), results)
    assert all(given is result for given, result in zip(found, results, strict=True))


@pytest.mark.parametrize("kind", BENDING)
def test_what_was_learned_is_left_as_it_is(settings, kind):
    result = trained(0)
    before = result.weights.copy()
    sent(attack(settings, kind, 0), [result, trained(1)])
    assert np.array_equal(result.weights, before)


@pytest.mark.parametrize("kind", BENDING)
def test_an_attack_is_the_same_every_time_and_whoever_else_takes_part(settings, kind):
    scenario = attack(settings, kind, 1, 2)
    whole = sent(scenario, [trained(client) for client in range(4)])
    again = sent(scenario, [trained(client) for client in (3, 1, 0)])
    assert np.array_equal(whole[1].weights, again[1].weights)


@pytest.mark.parametrize(("kind", "factor"), [("sign-flip", -4.0), ("scaling", 4.0)])
def test_a_bent_update_is_a_multiple_of_the_honest_one(settings, kind, factor):
    (found,) = sent(attack(settings, kind, 0), [trained(0)])
    np.testing.assert_allclose(learned(found), factor * learned(trained(0)), atol=1e-6)


def test_scaling_by_one_is_honest(settings):
    (found,) = sent(attack(settings, "scaling", 0, strength=1.0), [trained(0)])
    assert np.array_equal(found.weights, trained(0).weights)


def test_noise_is_as_large_as_the_strength_says_and_knows_nothing_of_what_was_learned(settings):
    (found,) = sent(attack(settings, "gaussian", 0), [trained(0)])
    noise, honest = learned(found), learned(trained(0))
    assert np.std(noise) == pytest.approx(4.0 * np.sqrt(np.mean(honest**2)), rel=0.15)
    assert abs(np.corrcoef(noise, honest)[0, 1]) < 0.15
    (other,) = sent(attack(settings, "gaussian", 0), [trained(0, scale=0.2)])
    np.testing.assert_allclose(learned(other), 2 * noise, rtol=1e-3, atol=1e-5)


def test_noise_differs_between_seeds_rounds_and_clients(settings):
    draws = {
        sent(attack(settings, "gaussian", 0, 1, seed=seed), [replace(trained(0), client=client)], round=round)[0]
        .weights.tobytes()
        for seed in (0, 1)
        for round in (1, 2)
        for client in (0, 1)
    }  # fmt: skip
    assert len(draws) == 8


def test_a_lazy_member_copies_the_first_honest_one_that_trained(settings):
    diverged = LocalResult(2, Outcome.DIVERGED, None, float("nan"), float("nan"), 3)
    found = sent(attack(settings, "lazy", 0, 1, 5), [trained(0), trained(1), diverged, trained(3), trained(5)])
    for place in (0, 1, 4):
        assert np.array_equal(found[place].weights, trained(3).weights)
        assert found[place].outcome is Outcome.TRAINED
    assert found[2] is diverged


def test_a_lazy_member_without_anybody_to_copy_sends_the_model_back(settings):
    found = sent(attack(settings, "lazy", 0, 1), [trained(0), trained(1)])
    assert all(np.array_equal(result.weights, PARENT) for result in found)
    assert all(result.weights is not PARENT for result in found)


@pytest.mark.parametrize("kind", BENDING)
def test_a_member_without_data_has_nothing_to_send(settings, kind):
    nothing = no_samples(0)
    assert sent(attack(settings, kind, 0), [nothing, trained(1)])[0] is nothing


@pytest.mark.parametrize("kind", ["sign-flip", "scaling", "gaussian"])
def test_whatever_the_strength_what_is_sent_is_finite(settings, kind):
    (found,) = sent(attack(settings, kind, 0, strength=1e300), [trained(0)])
    assert found.weights.dtype == np.float32
    assert np.isfinite(found.weights).all()


def test_a_round_without_clients_has_no_results(settings):
    assert sent(attack(settings, "gaussian", 0), []) == []


def test_labels_are_flipped_where_adversaries_hold_them_and_nowhere_else(settings, small_data, deal):
    data = small_data()
    partition = deal(data, [30, 40, 0, 50])
    found = poison_labels(attack(settings, "label-flip", 1, 2, 3), data, partition)
    flipped = np.zeros(len(data.train_labels), dtype=bool)
    flipped[30:120] = True
    assert np.array_equal(found.train_labels[~flipped], data.train_labels[~flipped])
    assert np.array_equal(found.train_labels[flipped], 3 - data.train_labels[flipped])
    assert found.train_inputs is data.train_inputs
    assert found.test_labels is data.test_labels
    assert found.digest != data.digest


def test_labels_flipped_twice_are_the_labels(settings, small_data, deal):
    data = small_data()
    scenario, partition = attack(settings, "label-flip", 0), deal(data, [100])
    twice = poison_labels(scenario, poison_labels(scenario, data, partition), partition)
    assert twice.digest == data.digest


@pytest.mark.parametrize("kind", [kind for kind in Behaviour if kind is not Behaviour.LABEL_FLIP])
def test_data_of_members_that_flip_no_labels_are_the_very_same_object(settings, small_data, deal, kind):
    data = small_data()
    assert poison_labels(attack(settings, kind, 0), data, deal(data, [100])) is data
    assert poison_labels(attack(settings, "label-flip"), data, deal(data, [100])) is data
