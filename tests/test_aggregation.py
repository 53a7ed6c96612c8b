"""Updates into a model: the paper's mean exactly, and robust rules against brute force."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.aggregation import (
    SAMPLES_LIMIT,
    FlushesToZero,
    InvalidAggregation,
    Update,
    aggregate,
    get_aggregator,
    krum_scores,
    min_updates,
    squared_distances,
    validate_arithmetic,
)
from bdfl.ledger.chain import start_chain
from bdfl.scenario import Aggregation
from bdfl.server_optimizer import take_step
from tests.vectors.independent_models import distance_of

RULES = ("mean", "median", "trimmed-mean", "krum", "multi-krum", "minimum-diameter")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rule(name, faulty=0):
    return get_aggregator(Aggregation(rule=name, faulty=faulty))


def vectors(*rows):
    return [np.array(row, np.float32) for row in rows]


def draw(count, length, seed=0):
    return list(np.random.default_rng(seed).standard_normal((count, length)).astype(np.float32))


@pytest.mark.parametrize(
    "begin",
    [
        lambda: start_chain(None, None),
        lambda: rule("mean")(vectors([1.0]), [1]),
        lambda: take_step(None, np.zeros((2, 1), np.float32), np.zeros(1, np.float32)),
    ],
)
def test_flushing_to_zero_is_noticed_at_start_and_at_every_aggregate(begin):
    torch = pytest.importorskip("torch")

    def flushing() -> str:  # in a thread of its own: the mode stays with it
        if not torch.set_flush_denormal(True):
            return "this processor cannot"
        with pytest.raises(FlushesToZero, match="set_flush_denormal"):
            begin()
        return "noticed"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(flushing).result() in ("noticed", "this processor cannot")
    validate_arithmetic()


def test_the_mean_weighs_by_samples():
    assert rule("mean")(vectors([1, 10], [4, 40]), [1, 2]).tolist() == [3, 30]


@given(
    updates=st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=8),
    samples=st.lists(st.integers(1, SAMPLES_LIMIT - 1), min_size=8, max_size=8),
)
def test_the_mean_is_the_exact_sum_but_for_rounding(updates, samples):
    samples = samples[: len(updates)]
    result = rule("mean")(vectors(*updates), samples)
    for column, found in zip(zip(*vectors(*updates), strict=True), result, strict=True):
        terms = [Fraction(float(value)) * count for value, count in zip(column, samples, strict=True)]
        exact = float(sum(terms) / sum(samples))
        size = float(sum(map(abs, terms)) / sum(samples))  # what errors of the sum are relative to
        assert abs(float(found) - exact) <= 2**-24 * abs(exact) + 2**-149 + 8 * 2**-53 * size


def test_the_mean_accumulates_in_double_precision_in_client_order():
    updates, samples = draw(9, 100), list(range(1, 10))
    total = np.zeros(100)
    for update, count in zip(updates, samples, strict=True):
        total += float(count) * update.astype(np.float64)
    assert rule("mean")(updates, samples).tobytes() == (total / 45.0).astype(np.float32).tobytes()
    assert np.allclose(total, [math.fsum(column) for column in (np.array(updates) * np.arange(1.0, 10)[:, None]).T])


def test_products_of_samples_and_weights_are_exact_below_the_limit():
    largest = np.nextafter(np.float32(2), np.float32(0))  # 24 ones in a row
    assert Fraction(float(largest)) * (SAMPLES_LIMIT - 1) == Fraction(float(largest) * (SAMPLES_LIMIT - 1))
    with pytest.raises(InvalidAggregation, match=r"^samples 1: 536870912 given, expected 0 to 536870911$"):
        rule("mean")(vectors([1], [1]), [1, SAMPLES_LIMIT])


def test_a_rule_sees_the_updates_in_client_order_whenever_they_arrived():
    def first_minus_rest(updates, samples):
        assert samples == [1, 2, 3]
        return updates[0] - updates[1] - updates[2]

    arrived = [Update(client, weights, client) for client, weights in zip((1, 2, 3), draw(3, 8), strict=True)]
    for order in itertools.permutations(arrived):
        assert aggregate(first_minus_rest, order).tobytes() == aggregate(first_minus_rest, arrived).tobytes()


@pytest.mark.parametrize("length", [1, 2**14 - 1, 2**14, 2**14 + 1, 2 * 2**14 + 5])
def test_distances_are_summed_as_trees_of_16384_coordinates_one_after_the_other(length):
    updates = draw(3, length)
    found = squared_distances(updates)
    plain = [update.astype(np.float64).tolist() for update in updates]
    for one, other in itertools.combinations(range(3), 2):
        assert found[one, other] == found[other, one] == distance_of(plain, one, other)
    assert not found.diagonal().any()


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_arrival_does_not_change_a_byte(name):
    arrived = [Update(client, weights, 10 + client) for client, weights in enumerate(draw(5, 50))]
    results = {aggregate(rule(name), order).tobytes() for order in itertools.permutations(arrived)}
    assert len(results) == 1


def test_two_updates_of_one_client_are_refused():
    updates = [Update(3, np.zeros(2, np.float32), 1)] * 2
    with pytest.raises(InvalidAggregation, match=r"^client 3: two updates given, expected one from each client$"):
        aggregate(rule("mean"), updates)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([[5, 1], [1, 9], [3, 2]], [3, 2]), ([[4, 0], [1, 0], [2, 8], [100, 8]], [3, 4]), ([[3e38], [3.2e38]], [3.1e38])],
)
def test_the_median_of_every_coordinate_by_hand(rows, expected):
    assert rule("median")(vectors(*rows), [1] * len(rows)).tolist() == vectors(expected)[0].tolist()


def test_the_trimmed_mean_by_hand():
    rows = vectors([1, 50], [2, 20], [3, 30], [-900, 40], [900, 10])
    assert rule("trimmed-mean", faulty=1)(rows, [1] * 5).tolist() == [2, 30]
    assert rule("trimmed-mean", faulty=2)(rows, [1] * 5).tolist() == [2, 30]


@pytest.mark.parametrize("count", [1, 2, 7, 8, 30])
def test_median_and_trimmed_mean_agree_with_numpy_across_blocks(count, monkeypatch):
    monkeypatch.setattr("bdfl.aggregation._BLOCK_ENTRIES", 64)
    updates = draw(count, 1000)
    assert np.allclose(rule("median")(updates, [1] * count), np.median(np.array(updates), axis=0), rtol=1e-6)
    faulty = (count - 1) // 2
    inner = np.sort(np.array(updates, np.float64), axis=0)[faulty : count - faulty]
    assert np.allclose(rule("trimmed-mean", faulty)(updates, [1] * count), inner.mean(axis=0), rtol=1e-6)


@given(
    updates=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=5, max_size=9),
    faulty=st.integers(0, 1),
)
def test_krum_agrees_with_brute_force(updates, faulty):
    def score(index):  # smallest sum of squared distances to any n - f - 2 others
        others = [np.array(row) for place, row in enumerate(updates) if place != index]
        neighbours = itertools.combinations(others, len(updates) - faulty - 2)
        return min(sum(int(((np.array(updates[index]) - one) ** 2).sum()) for one in group) for group in neighbours)

    scores = [score(index) for index in range(len(updates))]
    assert krum_scores(vectors(*updates), faulty).tolist() == scores
    best = sorted(range(len(updates)), key=lambda index: (scores[index], index))
    assert rule("krum", faulty)(vectors(*updates), [1] * len(updates)).tolist() == updates[best[0]]
    kept = [updates[index] for index in best[: len(updates) - faulty]]
    averaged = rule("multi-krum", faulty)(vectors(*updates), [1] * len(updates))
    assert averaged == pytest.approx(np.mean(kept, axis=0), abs=1e-6)


@given(
    updates=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=5, max_size=7),
    faulty=st.integers(0, 2),
)
def test_minimum_diameter_agrees_with_brute_force(updates, faulty):
    def diameter(group):
        pairs = itertools.combinations(group, 2)
        return max((int(((np.array(updates[a]) - updates[b]) ** 2).sum()) for a, b in pairs), default=0)

    groups = list(itertools.combinations(range(len(updates)), len(updates) - faulty))
    best = min(groups, key=diameter)
    found = rule("minimum-diameter", faulty)(vectors(*updates), [1] * len(updates))
    assert found == pytest.approx(np.mean([updates[index] for index in best], axis=0), abs=1e-6)


def test_minimum_diameter_refuses_what_would_take_for_ever():
    with pytest.raises(InvalidAggregation, match="groups of 21 among 40 updates, at most 200000 expected"):
        rule("minimum-diameter", 19)(draw(40, 2), [1] * 40)


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 2**14, 2**14 + 1, 40_000])
def test_distances_do_not_depend_on_who_comes_first(length):
    updates = draw(4, length)
    distances = squared_distances(updates)
    assert (distances == distances.T).all()
    assert (squared_distances(updates[::-1]) == distances[::-1, ::-1]).all()
    for one, other in itertools.combinations(range(4), 2):
        exact = math.fsum((updates[one].astype(float) - updates[other]) ** 2)
        assert distances[one, other] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum", "minimum-diameter"])
@pytest.mark.parametrize("size", [1e3, 1e30])
def test_robust_rules_bear_as_many_outliers_as_they_promise(name, size):
    faulty = 3
    choice = Aggregation(rule=name, faulty=faulty)
    honest = draw(max(min_updates(choice), 2 * faulty + 3) - faulty, 20)
    attack = [np.full(20, size, np.float32)] * faulty
    result = get_aggregator(choice)(honest + attack, [1] * len(honest) + [10**6] * faulty)
    assert (result >= np.min(honest, axis=0)).all()
    assert (result <= np.max(honest, axis=0)).all()
    assert np.abs(rule("mean")(honest + attack, [1] * (len(honest) + faulty))).max() > size / 10


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_updates_that_are_not_finite_are_refused(name, wrong):
    updates = draw(4, 3)
    updates[2][1] = wrong
    with pytest.raises(InvalidAggregation, match=r"^update 2: not finite, expected finite numbers only$"):
        rule(name)(updates, [1] * 4)


@pytest.mark.parametrize(
    ("updates", "samples", "message"),
    [
        ([], [], "updates: 0 given, expected at least 1"),
        (vectors([1], [2]), [1], "samples: 1 given, expected one for each of 2 updates"),
        (vectors([1], [2, 3]), [1, 1], r"update 1: float32 of shape \(2,\) given, expected float32 of shape \(1,\)"),
        ([np.zeros(1)], [1], "update 0: float64 of shape"),
        (vectors([1]), [-1], "samples 0: -1 given, expected 0 to"),
        (vectors([1], [2]), [0, 0], "samples: all 0 given, expected at least one above 0"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_in_one_line(updates, samples, message):
    with pytest.raises(InvalidAggregation, match=message) as caught:
        rule("mean")(updates, samples)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "faulty", "fewest"),
    [
        ("mean", 0, 1),
        ("median", 2, 5),
        ("trimmed-mean", 2, 5),
        ("krum", 0, 3),
        ("krum", 2, 7),
        ("multi-krum", 1, 5),
        ("minimum-diameter", 2, 5),
    ],
)
def test_fewer_updates_than_the_rule_needs_are_refused(name, faulty, fewest):
    assert min_updates(Aggregation(rule=name, faulty=faulty)) == fewest
    assert rule(name, faulty)(draw(fewest, 2), [1] * fewest).shape == (2,)
    with pytest.raises(InvalidAggregation, match=f"expected at least {fewest} for this rule"):
        rule(name, faulty)(draw(fewest - 1, 2), [1] * (fewest - 1))


def test_the_mean_does_not_claim_to_bear_faults():
    with pytest.raises(InvalidAggregation, match=r"^learning.aggregation.faulty: 1 given, expected 0"):
        rule("mean", faulty=1)


def test_an_unknown_rule_is_refused_with_what_there_is():
    with pytest.raises(InvalidAggregation, match=r"'average' given, expected mean, median, .* or module:function"):
        rule("average")


def test_an_own_rule_is_used_like_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_rules.py").write_text(
        "import numpy as np\n"
        "def largest(updates, samples):\n    return np.max(updates, axis=0)\n"
        "def short(updates, samples):\n    return updates[0][:1]\n"
        "def broken(updates, samples):\n    raise KeyError('no\\nidea')\n"
    )
    assert rule("own_rules:largest")(vectors([1, 5], [4, 2]), [1, 1]).tolist() == [4, 5]
    with pytest.raises(InvalidAggregation, match=r"rule 'own_rules:short': gave shape \(1,\), expected finite"):
        rule("own_rules:short")(vectors([1, 5]), [1])
    with pytest.raises(InvalidAggregation, match=r"rule 'own_rules:broken' failed: KeyError: 'no\\nidea'$"):
        rule("own_rules:broken")(vectors([1, 5]), [1])


def test_a_median_of_zeros_has_the_same_bits_whatever_their_signs_and_order():
    zeros = [np.array([0.0, 0.0, -0.0], np.float32), np.array([-0.0, 0.0, -0.0], np.float32)]
    choice = Aggregation(rule="median", faulty=0)
    for updates in ([zeros[0], zeros[1], zeros[1]], [zeros[1], zeros[0], zeros[0]], [zeros[1], zeros[0]]):
        assert get_aggregator(choice)(updates, [1] * len(updates)).tobytes() == bytes(12)


@pytest.mark.parametrize("samples", [[1, 2, 3], [0, 2, 3], [2**29 - 1] * 3])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_no_mean_hides_a_number_that_is_not_finite(samples, wrong):
    updates = [np.full(70_000, np.finfo(np.float32).max, np.float32) for _ in samples]
    mean = get_aggregator(Aggregation())
    assert np.isfinite(mean(updates, samples)).all()
    updates[0][-1] = wrong
    updates[2][-1] = -wrong
    with pytest.raises(InvalidAggregation, match=r"^update 0: not finite"):
        mean(updates, samples)
