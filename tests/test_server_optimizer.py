"""Server-side optimizers: the same bits as exact arithmetic, finite whatever is sent, and one text for each."""

import itertools
import math
import struct
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.aggregation import Update, aggregate, get_aggregator
from bdfl.learning.weights import InvalidWeights, Layout, encode_weights
from bdfl.scenario import (
    Aggregation,
    Learning,
    Scenario,
    ScenarioError,
    ServerOptimizer,
    override_scenario,
    scenario_digest,
)
from bdfl.server_optimizer import (
    ServerSettings,
    decode_state,
    encode_state,
    first_state,
    read_rule,
    settings_of,
    take_step,
    write_rule,
)
from tests.vectors import independent_models

MOMENTUM = settings_of(Aggregation(server=ServerOptimizer.MOMENTUM))
ADAM = settings_of(Aggregation(server=ServerOptimizer.ADAM))
BOTH = [MOMENTUM, ADAM]
LARGEST = float(np.finfo(np.float32).max)
EXTREMES = [LARGEST, -LARGEST, 0.0, -0.0, 1e-45]
LAYOUT = Layout(("w", "b"), ((2, 2), (1,)))

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
RATES, BETAS = st.integers(1, 10**9), st.integers(0, 999_999)
SETTINGS = st.one_of(
    st.builds(lambda *micro: ServerSettings(ServerOptimizer.MOMENTUM, micro), RATES, BETAS),
    st.builds(lambda *micro: ServerSettings(ServerOptimizer.ADAM, micro), RATES, BETAS, BETAS, RATES),
)


# An independent step on one number: every operation is exact, then rounded to float64 by Python.


def rounded(exact):
    return Fraction(float(exact))


def root(square):
    """The square root rounded to float64: of two neighbouring numbers the one nearer to the exact root."""
    near = math.sqrt(float(square))
    candidates = [near, math.nextafter(near, 0.0), math.nextafter(near, math.inf)]
    digits = 2**400  # the root is compared at far more digits than float64 has
    exact = Fraction(math.isqrt(int(square * digits**2)), digits)
    return min(map(Fraction, candidates), key=lambda one: abs(one - exact))


def single(exact):
    limited = max(min(exact, Fraction(LARGEST)), -Fraction(LARGEST))
    return struct.unpack("<f", struct.pack("<f", float(limited)))[0]


def exact_step(server, aggregated, weight, *moments):
    values = [rounded(Fraction(one, 10**6)) for one in server.micro]
    others = [rounded(Fraction(10**6 - one, 10**6)) for one in server.micro]
    if server.kind is ServerOptimizer.MOMENTUM:
        rate, beta = values
        moment = rounded(rounded(beta * moments[0]) + rounded(weight - aggregated))
        return rounded(weight - rounded(rate * moment)), moment
    rate, first, second, epsilon = values
    gap = rounded(aggregated - weight)
    mean = rounded(rounded(first * moments[0]) + rounded(others[1] * gap))
    square = rounded(rounded(second * moments[1]) + rounded(others[2] * rounded(gap * gap)))
    step = rounded(rounded(rate * mean) / rounded(root(square) + epsilon))
    return rounded(weight + step), mean, square


@given(server=SETTINGS, numbers=st.lists(FLOATS, min_size=4, max_size=4))
def test_a_step_has_the_bits_of_exact_arithmetic_rounded_after_every_operation(server, numbers):
    aggregated, weight, *moments = map(Fraction, numbers)
    moments[1] = abs(moments[1])
    moments = moments[: server.num_moments]
    state = np.array([[float(one)] for one in (weight, *moments)], np.float32)
    found = take_step(server, state, np.array([float(aggregated)], np.float32))
    assert found[:, 0].tolist() == [single(one) for one in exact_step(server, aggregated, weight, *moments)]


@pytest.mark.parametrize("server", BOTH)
def test_a_step_on_several_blocks_of_numbers_is_that_of_each_number(server):
    rng = np.random.default_rng(0)
    state = rng.standard_normal((1 + server.num_moments, 2**16 + 5)).astype(np.float32)
    state[-1] = np.abs(state[-1])
    aggregated = rng.standard_normal(state.shape[1]).astype(np.float32)
    found = take_step(server, state, aggregated)
    plain = server.kind.value, list(server.micro)
    independent = independent_models.take_step(plain, state.tolist(), aggregated.tolist())
    assert found.tobytes() == np.array(independent, np.float64).astype(np.float32).tobytes()


@given(server=SETTINGS, numbers=st.lists(st.sampled_from(EXTREMES), min_size=8, max_size=8))
def test_finite_updates_always_give_a_finite_model(server, numbers):
    state = first_state(server, np.array(numbers[:1], np.float32))
    for number in numbers[1:]:
        state = take_step(server, state, np.array([number], np.float32))
        assert np.isfinite(state).all()
        assert server.kind is ServerOptimizer.MOMENTUM or state[2] >= 0


@pytest.mark.parametrize("rule", ["mean", "median", "krum"])
@pytest.mark.parametrize("server", BOTH)
def test_the_order_of_arrival_does_not_change_a_byte(server, rule):
    rng = np.random.default_rng(1)
    arrived = [Update(client, rng.standard_normal(50).astype(np.float32), 10 + client) for client in range(4)]
    state = first_state(server, rng.standard_normal(50).astype(np.float32))
    chosen = get_aggregator(Aggregation(rule=rule, faulty=0))
    found = {take_step(server, state, aggregate(chosen, order)).tobytes() for order in itertools.permutations(arrived)}
    assert len(found) == 1


def test_momentum_is_pytorchs_sgd_on_the_pseudo_gradient():
    torch = pytest.importorskip("torch")
    server = settings_of(Aggregation(server=ServerOptimizer.MOMENTUM, server_rate=0.5, server_betas=(0.8, 0.0)))
    rng = np.random.default_rng(2)
    state = first_state(server, rng.standard_normal(20).astype(np.float32))
    theirs = torch.nn.Parameter(torch.from_numpy(state[0].astype(np.float64)))
    sgd = torch.optim.SGD([theirs], lr=0.5, momentum=0.8)
    for _ in range(5):
        aggregated = rng.standard_normal(20).astype(np.float32)
        theirs.grad = theirs.detach() - torch.from_numpy(aggregated.astype(np.float64))
        sgd.step()
        state = take_step(server, state, aggregated)
        np.testing.assert_allclose(state[0], theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_without_momentum_and_at_rate_one_the_aggregate_is_the_model():
    server = settings_of(Aggregation(server=ServerOptimizer.MOMENTUM, server_betas=(0.0, 0.0)))
    rng = np.random.default_rng(3)
    aggregated = rng.standard_normal(100).astype(np.float32)
    state = first_state(server, rng.standard_normal(100).astype(np.float32))
    assert take_step(server, state, aggregated)[0].tobytes() == aggregated.tobytes()


def test_the_second_moment_of_adam_begins_at_the_square_of_epsilon():
    state = first_state(ADAM, np.ones(3, np.float32))
    assert state.tolist() == [[1.0] * 3, [0.0] * 3, [float(np.float32(1e-6))] * 3]


# Bytes of a model with its moments


@pytest.mark.parametrize("server", BOTH)
def test_a_model_and_its_moments_are_read_as_they_were_written(server):
    rng = np.random.default_rng(4)
    state = rng.standard_normal((1 + server.num_moments, LAYOUT.num_parameters)).astype(np.float32)
    state[-1] = np.abs(state[-1])
    data = encode_state(state, LAYOUT)
    weights = encode_weights(state[0], LAYOUT)
    assert data.startswith(weights)
    assert len(data) == len(weights) * (1 + server.num_moments)
    assert decode_state(server, data, LAYOUT).tobytes() == state.tobytes()
    assert decode_state(server, weights, LAYOUT).tobytes() == first_state(server, state[0]).tobytes()


@pytest.mark.parametrize("server", BOTH)
def test_bytes_that_are_no_model_with_its_moments_are_refused(server):
    good = encode_state(first_state(server, np.ones(LAYOUT.num_parameters, np.float32)), LAYOUT)
    size = len(good) // (1 + server.num_moments)
    for bad in (b"", good[:-1], good + good[:size], good[:size] + bytes(len(good) - size), good[1:] + good[:1]):
        with pytest.raises(InvalidWeights):
            decode_state(server, bad, LAYOUT)
    for end in (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff"):  # not a number, minus infinity
        with pytest.raises(InvalidWeights, match="not finite"):
            decode_state(server, good[:-4] + end, LAYOUT)
    if server is ADAM:
        with pytest.raises(InvalidWeights, match="second moment below 0"):
            decode_state(server, good[:-4] + struct.pack("<f", -1e-30), LAYOUT)


# The text of a genesis, and the keys of a scenario


@given(rule=st.sampled_from(["mean", "krum", "my_rules:first"]), server=SETTINGS)
def test_the_text_of_a_genesis_says_rule_and_optimizer(rule, server):
    values = [micro / 10**6 for micro in server.micro]
    betas = (values[1], values[2] if len(values) > 2 else 0.5)
    choice = Aggregation(rule=rule, server=server.kind, server_rate=values[0], server_betas=betas)
    if server.kind is ServerOptimizer.ADAM:
        choice = msgspec.structs.replace(choice, server_epsilon=values[3])
    text = write_rule(choice)
    assert read_rule(text) == (rule, server)
    assert independent_models.read_rule(text) == (rule, (server.kind.value, list(server.micro)))


def test_without_an_optimizer_the_text_is_the_rule_alone():
    for rule in ("mean", "median", "my_rules:first"):
        assert write_rule(Aggregation(rule=rule, server_rate=0.5)) == rule
        assert read_rule(rule) == (rule, None)


BAD_TEXTS = (
    "mean ",
    "mean adam",
    "mean none rate=1e-6",
    "mean momentum rate=1000000e-6",
    "mean momentum rate=1000000e-6 beta=900000e-6 ",
    "mean  momentum rate=1000000e-6 beta=900000e-6",
    "mean momentum  rate=1000000e-6 beta=900000e-6",
    "mean momentum rate=01000000e-6 beta=900000e-6",
    "mean momentum rate=0e-6 beta=900000e-6",
    "mean momentum rate=1000000001e-6 beta=900000e-6",
    "mean momentum rate=99999999999e-6 beta=900000e-6",
    "mean momentum rate=1000000e-6 beta=1000000e-6",
    "mean momentum rate=-1e-6 beta=900000e-6",
    "mean momentum rate=1e-6 beta=\N{ARABIC-INDIC DIGIT ONE}e-6",
    "mean momentum beta=900000e-6 rate=1000000e-6",
    "mean momentum rate=1.0 beta=0.9",
    "mean momentum rate=1000000e-6 beta=900000e-6 beta2=1e-6",
    "mean adam rate=1000000e-6 beta=900000e-6",
    "mean adam rate=10000e-6 beta1=900000e-6 beta2=990000e-6 epsilon=0e-6",
)


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_another_text_names_a_rule_that_does_not_exist(text):
    assert read_rule(text) == (text, None)
    assert independent_models.read_rule(text) == (text, None)


def test_an_optimizer_changes_the_digest_of_a_scenario_and_its_absence_none():
    plain = Scenario()
    assert scenario_digest(override_scenario(plain, ["learning.aggregation.server=none"])) == scenario_digest(plain)
    changes = ("server=momentum", "server=adam", "server_rate=0.5", "server_betas=[0.9, 0.5]", "server_epsilon=0.01")
    found = {scenario_digest(override_scenario(plain, [f"learning.aggregation.{change}"])) for change in changes}
    assert len(found | {scenario_digest(plain)}) == 1 + len(changes)


@pytest.mark.parametrize(
    "change",
    [
        "server=sgd",
        "server_rate=0",
        "server_rate=1001",
        "server_betas=[0.9]",
        "server_betas=[1, 0]",
        "server_epsilon=0",
    ],
)
def test_a_value_without_meaning_is_refused_by_its_key(change):
    with pytest.raises(ScenarioError, match=f"^learning.aggregation.{change.partition('=')[0]}"):
        override_scenario(Scenario(), [f"learning.aggregation.{change}"])


def test_rates_differ_where_none_is_given():
    assert Learning().aggregation.server is ServerOptimizer.NONE
    assert settings_of(Aggregation()) is None
    assert (MOMENTUM.micro[0], ADAM.micro[0]) == (10**6, 10**4)
