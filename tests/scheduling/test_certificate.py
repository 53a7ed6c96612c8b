"""Cells of the certificate: no set, at no exchange time inside a cell, has an objective below the cell's bound."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.scheduling.allocation import make_supply, sets_delay
from bdfl.scheduling.certificate import bound_cell, final_losses
from bdfl.scheduling.mining_curves import fixed_power_curves, free_power_curves
from bdfl.scheduling.set_search import (
    Point,
    Prices,
    earliest_exchange,
    idle_terms,
    point_at,
    relaxed_objective,
    settle_prices,
)
from tests.oracles.markets import draw_able_problem, market_of

SIZE = 9
CASES = pytest.mark.parametrize(
    ("curves_of", "with_caps"),
    [(fixed_power_curves, False), (fixed_power_curves, True), (free_power_curves, False), (free_power_curves, True)],
)


def draw_case(rng, curves_of, with_caps):
    """A market, its supply, and how losses are counted over all levels of mining that can occur."""
    problem = draw_able_problem(
        rng, SIZE, with_caps=with_caps, curves_of=curves_of, min_clients=int(rng.integers(1, SIZE + 1))
    )
    market = market_of(problem, curves_of)
    supply = make_supply(market.idle, market.caps, market.tradeoff * market.work_cycles)
    supply = supply.within(supply.level(0.0), np.inf)
    return market, supply, idle_terms(market, supply.least_level)


def random_sets(rng, market, exchange_s, num):
    """Sets of at least m clients that can all be done by `exchange_s`; none if there are not enough of them."""
    able = np.flatnonzero(market.curves.least_s <= exchange_s)
    if len(able) < market.min_clients:
        return np.zeros((0, SIZE), dtype=bool)
    sizes = rng.integers(market.min_clients, len(able) + 1, num)
    sets = np.zeros((num, SIZE), dtype=bool)
    for row, size in enumerate(sizes):
        sets[row, rng.permutation(able)[:size]] = True
    return sets


def objectives(market, sets, exchange_s):
    delay_s, _ = sets_delay(market, sets, np.full((len(sets), 1), exchange_s))
    return market.tradeoff * delay_s[:, 0] - sets @ market.queue


def draw_prices(rng, market, supply, point):
    """Settled prices, or those off by a random factor: a bound must hold for any."""
    settled = settle_prices(market, supply, point.loss, supply.price(0.0))
    factor, bonus = np.exp(rng.uniform(-2.0, 2.0, 2))
    return settled if rng.uniform() < 0.5 else Prices(settled.root * factor, settled.head * bonus)


@CASES
def test_no_set_has_an_objective_below_the_relaxed_one_at_any_prices(curves_of, with_caps):
    rng = np.random.default_rng(40)
    for _ in range(30):
        market, supply, terms = draw_case(rng, curves_of, with_caps)
        for factor in (1.0, 1.2, 3.0):
            exchange_s = earliest_exchange(market) * factor
            point = point_at(market, terms, exchange_s)
            bound = relaxed_objective(market, supply, point, draw_prices(rng, market, supply, point))
            values = objectives(market, random_sets(rng, market, exchange_s, 20), exchange_s)
            assert np.all(values >= bound - 1e-12 * (abs(bound) + np.abs(values)))


@CASES
def test_a_cells_bound_is_below_everything_inside_it(curves_of, with_caps):
    rng = np.random.default_rng(41)
    num_compared = 0
    for _ in range(40):
        market, supply, terms = draw_case(rng, curves_of, with_caps)
        start_s = earliest_exchange(market) * np.exp(rng.uniform(0.0, 1.0))
        end_s = start_s * (1.0 + 10.0 ** rng.uniform(-6.0, 0.5))
        start, end = point_at(market, terms, start_s), point_at(market, terms, end_s)
        prices = draw_prices(rng, market, supply, start)
        bound, _, _ = bound_cell(market, supply, prices, start, end)
        for exchange_s in np.linspace(start_s, end_s, 12):
            relaxed = relaxed_objective(market, supply, point_at(market, terms, float(exchange_s)), prices)
            values = objectives(market, random_sets(rng, market, exchange_s, 8), exchange_s)
            slack = 1e-12 * (abs(bound) + abs(relaxed) + market.tradeoff * end_s)
            assert bound <= relaxed + slack
            assert np.all(values >= bound - slack)
            num_compared += len(values)
    assert num_compared >= 2_000


@CASES
def test_a_cells_bound_closes_in_on_the_relaxed_objective_as_the_cell_shrinks(curves_of, with_caps):
    rng = np.random.default_rng(42)
    for _ in range(10):
        market, supply, terms = draw_case(rng, curves_of, with_caps)
        start = point_at(market, terms, 1.3 * earliest_exchange(market))
        prices = settle_prices(market, supply, start.loss, supply.price(0.0))
        relaxed = relaxed_objective(market, supply, start, prices)
        missing = []
        for width in (1e-2, 1e-4, 1e-6):
            end = point_at(market, terms, start.exchange_s * (1.0 + width))
            lowest = min(relaxed, relaxed_objective(market, supply, end, prices))
            bound, *at_ends = bound_cell(market, supply, prices, start, end)
            assert min(at_ends) == pytest.approx(lowest, rel=1e-9, abs=1e-9)
            missing.append(lowest - bound)
        size = abs(relaxed) + market.tradeoff * start.exchange_s
        assert missing[2] <= missing[1] + 1e-12 * size
        assert missing[2] <= 1e-4 * size


@CASES
def test_beyond_the_last_cell_nothing_is_better_than_with_all_the_time_in_the_world(curves_of, with_caps):
    rng = np.random.default_rng(43)
    for _ in range(20):
        market, supply, terms = draw_case(rng, curves_of, with_caps)
        last_s = 2.0 * earliest_exchange(market)
        final = final_losses(market, terms)
        prices = draw_prices(rng, market, supply, point_at(market, terms, last_s))
        bound = relaxed_objective(market, supply, Point(last_s, final, final), prices)
        for factor in (1.0, 1.5, 10.0, 1000.0):
            values = objectives(market, random_sets(rng, market, factor * last_s, 10), factor * last_s)
            assert np.all(values >= bound - 1e-12 * (abs(bound) + np.abs(values)))


def test_the_supply_without_caps_that_bind_is_the_uncapped_one():
    rng = np.random.default_rng(44)
    problem = draw_able_problem(rng, SIZE)
    free = market_of(problem)
    wide = replace(free, caps=np.full(SIZE, 1e15))
    scale = problem.tradeoff * problem.work_cycles
    uncapped, capped = make_supply(free.idle, None, scale), make_supply(wide.idle, wide.caps, scale)
    for demand in np.array([0.0, 0.3, 0.9]) * free.idle.sum():
        assert capped.level(demand) == pytest.approx(uncapped.level(demand), rel=1e-12)
        price = uncapped.price(demand)
        assert capped.price(demand) == pytest.approx(price, rel=1e-12)
        assert capped.worth(price) == pytest.approx(uncapped.worth(price), rel=1e-12)


@pytest.mark.parametrize("with_caps", [False, True])
def test_what_mining_is_worth_at_a_price_is_the_minimum_over_all_levels(with_caps):
    rng = np.random.default_rng(45)
    for _ in range(30):
        problem = draw_able_problem(rng, SIZE, with_caps=with_caps)
        market = market_of(problem)
        supply = make_supply(market.idle, market.caps, market.tradeoff * market.work_cycles)
        least = supply.level(0.0)
        most = least * np.exp(rng.uniform(0.1, 2.0))
        supply = supply.within(least, most)
        price = supply.price(rng.uniform(0.0, 0.9) * supply.total)
        levels = np.geomspace(least, most, 4001)
        offered = [supply.offered(float(level))[0] for level in levels]
        values = supply.scale * levels**3 + price * (levels**-2 - np.array(offered))
        size = np.abs(values).max()
        assert supply.worth(price) <= values.min() + 1e-13 * size
        assert supply.worth(price) >= values.min() - 1e-5 * size
