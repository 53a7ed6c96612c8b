"""Lemma 2: what it says by hand, Monte Carlo over random problems, and what happens where its assumptions fail."""

from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given, strategies
from numpy.typing import NDArray

from bdfl.errors import InvalidProblem
from bdfl.scheduling.queues import aggregation_bound, convergence_bound

Floats = NDArray[np.float64]


def bound(**changes):
    values = {
        "initial_gap": 2.0,
        "learning_rate": 0.01,
        "smoothness": 4.0,
        "gradient_norm": 3.0,
        "local_updates": 20,
        "rounds": 100,
        "weight": np.full(8, 1 / 8),
        "samples": np.full(8, 3000.0),
    }
    return aggregation_bound(**(values | changes))


# By hand.


def test_terms_equal_lemma_2_worked_by_hand():
    terms = bound(weight=np.array([0.2, 0.3, 0.25, 0.25]), samples=np.array([1.0, 2.0, 3.0, 4.0]))
    step, shift = 0.01 * 4.0 * 20, 0.1 + 0.1 + 0.05 + 0.15  # x and delta
    assert terms.initial_loss == pytest.approx(2 * 2.0 / (0.01 * 20 * 100))
    assert terms.local_drift == pytest.approx(9 * step)
    assert terms.mixed_drift == pytest.approx(9 * step * shift)
    assert terms.absence == pytest.approx(9 * shift**2)


def test_fair_weights_leave_a_neighbourhood_that_vanishes_with_the_step():
    assert bound(learning_rate=1e-9).neighbourhood < 1e-5
    assert bound(learning_rate=1e-9, weight=np.full(8, 0.4 / 8)).neighbourhood == pytest.approx(9 * 0.6**2, rel=1e-5)


@pytest.mark.parametrize("weight", [[0.7, 0.7], [-0.1, 0.5]])
def test_weights_are_shares(weight):
    with pytest.raises(InvalidProblem, match="weight"):
        bound(weight=np.array(weight), samples=np.ones(2))


def test_clients_without_data_do_not_learn():
    with pytest.raises(InvalidProblem, match="samples"):
        bound(samples=np.zeros(8))


shares = strategies.lists(strategies.floats(1e-3, 1.0), min_size=1, max_size=8).map(np.array)


@given(shares, strategies.randoms(use_true_random=False), strategies.floats(1e-3, 1e3), strategies.floats(1e-3, 1e3))
def test_lemma_1_printed_or_corrected_is_never_below_lemma_2_for_its_weights(
    samples, random, smoothness, learning_rate
):
    """So both are true of (38), the printed one too, once its left side has the gradient."""
    rate = np.array([random.random() for _ in samples])
    share, local_updates = samples / samples.sum(), random.randint(1, 9)
    given = {"learning_rate": learning_rate, "smoothness": smoothness, "local_updates": local_updates}
    least = bound(weight=rate * share, samples=samples, **given).total
    corrected = convergence_bound(initial_gap=2.0, gradient_norm=3.0, rounds=100, rate=rate, samples=samples, **given)
    assert least <= corrected.total * (1 + 1e-12)
    assert least <= (corrected.total - corrected.local_drift + printed_third(rate, share, **given)) * (1 + 1e-12)


def printed_third(rate, share, *, learning_rate, smoothness, local_updates, squared_gradient=9.0):
    """Third term of (36) as printed."""
    length = learning_rate * local_updates
    return squared_gradient * length * len(share) * smoothness * (length + 1) * np.sum((rate * share) ** 2)


# Monte Carlo. A problem's clients hold samples, and a mini-batch is one of them. L, G and a lower bound of F are known.


class Losses(Protocol):
    """Losses f_ik of sample k of client i."""

    def gradient(self, points: Floats) -> Floats:
        """Gradients (replicas, clients, samples, dimensions) at points (replicas, clients, dimensions)."""

    def value(self, point: Floats) -> Floats:
        """Losses (clients, samples) at a point (dimensions,)."""


@dataclass
class Quadratics:
    """Sums of `curvature / 2 (w - centre)^2`: steps of at most 1 / curvature stay in the box of start and centres."""

    curvature: Floats  # (clients, samples, dimensions)
    centre: Floats

    def gradient(self, points):
        return self.curvature * (points[:, :, None] - self.centre)

    def value(self, point):
        return np.sum(0.5 * self.curvature * (point - self.centre) ** 2, axis=2)

    def squared_gradient(self, start):
        low, high = (edge(np.vstack([start, self.centre.reshape(-1, len(start))]), axis=0) for edge in (np.min, np.max))
        farthest = np.maximum(np.abs(self.centre - low), np.abs(high - self.centre))
        return float(np.max(np.mean(np.sum((self.curvature * farthest) ** 2, axis=2), axis=1)))

    def lowest(self, share):
        weight = share[:, None, None] * self.curvature / self.curvature.shape[1]
        best = np.sum(weight * self.centre, axis=(0, 1)) / np.sum(weight, axis=(0, 1))
        return float(share @ self.value(best).mean(axis=1))


@dataclass
class Waves:
    """Sums of `-amplitude / frequency cos(frequency w + phase)`: not convex, with amplitude x frequency at most 1."""

    amplitude: Floats
    frequency: Floats
    phase: Floats

    def gradient(self, points):
        return self.amplitude * np.sin(self.frequency * points[:, :, None] + self.phase)

    def value(self, point):
        return -np.sum(self.amplitude / self.frequency * np.cos(self.frequency * point + self.phase), axis=2)

    def squared_gradient(self, start):
        return float(np.max(np.mean(np.sum(self.amplitude**2, axis=2), axis=1)))

    def lowest(self, share):
        return float(-share @ np.sum(self.amplitude / self.frequency, axis=2).mean(axis=1))


def draw_losses(kind, rng, num_clients) -> tuple[Losses, Floats]:
    """Losses with L = 1, and where training starts."""
    shape = (num_clients, int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    start = rng.normal(size=shape[2]) * rng.uniform(0.0, 4.0)
    if kind == "quadratics":
        return Quadratics(rng.uniform(0.1, 1.0, shape), rng.normal(size=shape) * rng.uniform(0.0, 3.0)), start
    frequency = rng.uniform(0.3, 1.5, shape)
    return Waves(rng.uniform(0.2, 1.0, shape) / frequency, frequency, rng.uniform(0, 2 * np.pi, shape)), start


def play(losses, share, weights, learning_rate, local_updates, start, rng) -> float:
    """Mean of |grad F|^2 over rounds and replicas, of `weights` (rounds, replicas, clients) from `start`.

    Batches are drawn with replacement, or without in passes, by a toss.
    """
    _, replicas, clients = weights.shape
    num_samples = losses.gradient(start[None, None]).shape[2]
    point, total = np.tile(start, (replicas, 1)), 0.0
    rows, columns = np.arange(replicas)[:, None], np.arange(clients)
    passes = np.tile(np.arange(num_samples), (replicas, clients, local_updates, 1))
    in_passes = rng.random() < 0.5
    for weight in weights:
        everywhere = np.broadcast_to(point[:, None], (replicas, clients, len(start)))
        total += np.mean(np.sum(np.einsum("i,rikd->rd", share / num_samples, losses.gradient(everywhere)) ** 2, axis=1))
        local = everywhere.copy()
        batches = rng.permuted(passes, axis=3) if in_passes else rng.integers(num_samples, size=passes.shape)
        for batch in np.moveaxis(batches.reshape(replicas, clients, -1)[:, :, :local_updates], 2, 0):
            local -= learning_rate * losses.gradient(local)[rows, columns, batch]
        point = point + np.einsum("ri,rid->rd", weight, local - everywhere)
    return total / len(weights)


def basic_bound(terms, drift, shift, squared_total, squared_gradient, step):
    """Largest A^2 that the basic inequality of docs/theory.md allows: A^2 <= R + A c, all in squared gradients."""
    rest = terms.initial_loss / 2 + squared_gradient * step * squared_total / 2
    slope = np.sqrt(squared_gradient) * (shift + drift / 2)
    return (slope / 2 + np.sqrt(slope**2 / 4 + rest)) ** 2


@pytest.mark.parametrize("kind", ["quadratics", "waves"])
@pytest.mark.parametrize("aggregation", ["(3)", "(38)"])
def test_no_random_problem_exceeds_any_form_of_lemma_2(kind, aggregation):
    """Who takes part is drawn from any law over sets; the basic inequality implies all the others."""
    for seed in range(40):
        rng = np.random.default_rng([seed, kind == "waves", aggregation == "(3)"])
        num_clients, local_updates, rounds = int(rng.integers(2, 6)), int(rng.integers(1, 6)), 200
        (losses, start), share = draw_losses(kind, rng, num_clients), rng.dirichlet(np.full(num_clients, 2.0))
        learning_rate = 10 ** rng.uniform(-2.5, 0.0)
        sets = np.array([
            [client in members for client in range(num_clients)]
            for size in range(aggregation == "(3)", num_clients + 1)
            for members in combinations(range(num_clients), size)
        ])  # fmt: skip
        law = rng.dirichlet(np.full(len(sets), 10 ** rng.uniform(-1.5, 1.0)))
        of_set = sets * share / (np.sum(sets * share, axis=1, keepdims=True) if aggregation == "(3)" else 1.0)
        weights = of_set[rng.choice(len(sets), size=(rounds, 6), p=law)]
        measured = play(losses, share, weights, learning_rate, local_updates, start, rng)

        expected, squared_gradient = law @ of_set, losses.squared_gradient(start)
        terms = bound(
            initial_gap=float(share @ losses.value(start).mean(axis=1)) - losses.lowest(share),
            learning_rate=learning_rate, smoothness=1.0, gradient_norm=squared_gradient**0.5,
            local_updates=local_updates, rounds=rounds, weight=expected, samples=share,
        )  # fmt: skip
        step, total, shift = learning_rate * local_updates, expected.sum(), np.abs(share - expected).sum()
        squared_total = law @ of_set.sum(axis=1) ** 2
        basic = basic_bound(terms, step * total, shift, squared_total, squared_gradient, step)
        squared = terms.initial_loss + squared_gradient * (step * squared_total + (shift + step * total / 2) ** 2)
        assert measured <= basic
        assert min(basic, squared_gradient) <= min(squared, terms.total) * (1 + 1e-9)


# How sharp it is, and where its assumption about the weights fails.


@pytest.mark.parametrize("shift", [0.01, 0.1, 0.5])
def test_nothing_much_smaller_than_delta_squared_would_be_true(shift):
    """Two clients at -1 and 1 of the same curvature, weighed (1 + delta) / 2 and (1 - delta) / 2, stay at -delta."""
    weight, centre = np.array([1 + shift, 1 - shift]) / 2, np.array([-1.0, 1.0])
    point = weight @ centre  # training with these weights ends here
    gradient, largest = np.mean(point - centre), np.max(np.abs(point - centre))
    terms = bound(rounds=10**9, learning_rate=1e-6, gradient_norm=largest, weight=weight, samples=np.ones(2))
    assert gradient**2 <= terms.total
    assert terms.total <= gradient**2 * (1 + shift) ** 2 + 1e-2


def pull(choose, learning_rate, rounds, replicas):
    """Mean squared gradient and mean weights where each round only one of two clients, at -1 and 1, makes one step."""
    point, squares, seconds = np.zeros(replicas), 0.0, 0.0
    for number in range(rounds):
        squares += np.mean(point**2)  # F = (w^2 + 1) / 2
        second = choose(number, point)
        seconds += np.mean(second)
        point = point + learning_rate * (np.where(second, 1.0, -1.0) - point)
    share = seconds / rounds
    return squares / rounds, np.array([1.0 - share, share])


def pull_bound(weight, learning_rate, rounds):
    return bound(
        initial_gap=0.0, learning_rate=learning_rate, smoothness=1.0, gradient_norm=2.0, local_updates=1,
        rounds=rounds, weight=weight, samples=np.ones(2),
    ).total  # fmt: skip


def test_lemma_2_fails_where_the_model_decides_who_takes_part():
    """Whoever is nearer trains in 95 % of the rounds: half of all for each, and nothing of that at any given model."""
    rng, learning_rate, rounds = np.random.default_rng(0), 0.01, 3_000
    measured, weight = pull(
        lambda _, point: (rng.random(400) < 0.95) == (point + 1e-9 * rng.normal(size=400) > 0),
        learning_rate,
        rounds,
        400,
    )
    assert weight == pytest.approx([0.5, 0.5], abs=0.06)
    assert measured > 5 * pull_bound(weight, learning_rate, rounds)
    assert measured <= pull_bound(np.array([0.05, 0.95]), learning_rate, rounds)  # delta of what is known beforehand


@pytest.mark.parametrize("block", [1, 10, 500])
def test_over_windows_lemma_2_holds_for_turns_of_any_length_and_fails_without_if_they_are_long(block):
    learning_rate, rounds = 0.01, 4_000
    measured, weight = pull(lambda number, _: np.array([number // block % 2 == 1]), learning_rate, rounds, 1)
    assert weight == pytest.approx([0.5, 0.5])
    squared_gradient, window = 4.0, 2 * block  # in which both have trained equally often
    assert measured <= squared_gradient * (window * learning_rate + (window - 1) / rounds)
    assert (measured > pull_bound(weight, learning_rate, rounds)) == (block == 500)


@pytest.mark.parametrize("kind", ["quadratics", "waves"])
def test_no_random_schedule_exceeds_lemma_2_over_windows(kind):
    """Nothing is random but the mini-batches: cyclic turns, or sets whose sizes and orders follow no law."""
    for seed in range(20):
        rng = np.random.default_rng([seed, kind == "waves", 7])
        num_clients, local_updates, rounds = int(rng.integers(2, 6)), int(rng.integers(1, 4)), 300
        (losses, start), share = draw_losses(kind, rng, num_clients), rng.dirichlet(np.full(num_clients, 2.0))
        learning_rate, window = 10 ** rng.uniform(-3.5, -1.0), int(rng.integers(1, 3 * num_clients))
        cycle = rng.random((int(rng.integers(1, 2 * num_clients)), num_clients)) < 0.5
        cycle[np.arange(len(cycle)), rng.integers(num_clients, size=len(cycle))] = True
        sets = np.resize(cycle, (rounds + window - 1, num_clients))
        weights = sets * share / np.sum(sets * share, axis=1, keepdims=True)
        in_window = np.lib.stride_tricks.sliding_window_view(weights, window, axis=0).mean(axis=2)
        shift = np.abs(share - in_window).sum(axis=1).max()
        repeated = np.repeat(weights[:rounds, None], 6, axis=1)
        measured = play(losses, share, repeated, learning_rate, local_updates, start, rng)

        squared_gradient, step = losses.squared_gradient(start), learning_rate * local_updates * window
        gap = float(share @ losses.value(start).mean(axis=1)) - losses.lowest(share)
        neighbourhood = squared_gradient * (step * (1 + shift) + shift**2 + (window - 1) / rounds)
        assert measured <= 2 * gap / (learning_rate * local_updates * rounds) + neighbourhood
