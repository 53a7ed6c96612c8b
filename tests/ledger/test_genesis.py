"""A genesis holds the scenario in whole units, and one that means nothing is refused before any block."""

import msgspec
import numpy as np
import pytest

from bdfl import __version__
from bdfl.encoding import decode, digest, encode
from bdfl.environment import draw_federation, draw_rounds
from bdfl.identity import Signer
from bdfl.learning.participation import draw_participation
from bdfl.learning.weights import Layout, encode_weights
from bdfl.ledger import genesis as genesis_module
from bdfl.ledger.block import FORMAT, MAX_BLOCK_SIZE, Genesis, Tensor, chain_id
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import start_chain
from bdfl.ledger.costs import DoesNotFit, slowest_exchange_ns
from bdfl.ledger.errors import InvalidGenesis
from bdfl.ledger.genesis import conditions_of, make_genesis, make_toolbox, validate_initial_model
from bdfl.ledger.schedule import idle_schedule
from bdfl.scenario import (
    Clients,
    Compute,
    Energy,
    Ledger,
    Mining,
    Participation,
    Protocol,
    Radio,
    ScenarioError,
    SchedulerChoice,
    Sharing,
)
from bdfl.scenario.schema_learning import Aggregation, Learning
from tests.ledger.small_federation import LAYOUT, found_federation, replace, small_scenario

SMALL = found_federation()
GENESIS = SMALL.genesis
OWN_RULE = "bdfl.aggregation:coordinate_median"


def make(scenario, layout=LAYOUT, model=None, num_keys=None):
    federation = draw_federation(scenario)
    num_keys = scenario.clients.count if num_keys is None else num_keys
    keys = [Signer(bytes([number + 1]) * 32).public_key for number in range(num_keys)]
    zeros = encode_weights(np.zeros(layout.num_parameters, np.float32), layout)
    first = next(iter(draw_rounds(scenario, federation)))
    rates = draw_participation(scenario, federation)
    return make_genesis(scenario, federation, rates, first, keys, layout, zeros if model is None else model)


def test_a_genesis_can_be_read_by_others_and_begins_a_chain():
    genesis = decode(encode(GENESIS), Genesis, MAX_BLOCK_SIZE)
    assert genesis == GENESIS
    assert start_chain(genesis, VerificationCache()).chain == chain_id(GENESIS)
    assert make(small_scenario()) == GENESIS


def test_the_scenario_stands_in_whole_units():
    scenario = small_scenario(
        3,
        scheduler=SchedulerChoice(name="exact", tradeoff=12.5, parameters={"target_gap": 0.01, "max_evaluations": 7}),
        participation=Participation(rates=0.25),
        radio=Radio(power_w=0.2, model_bits=1e6, noise_w_per_hz=1e-16, bandwidth_hz=2e5),
        compute=Compute(capacitance=5.4e-28, cycles_per_sample=5e3, local_updates=20, initial_hz=1e9, max_hz=2e9),
        mining=Mining(difficulty=3e7, initial_hz=1.5e9),
        energy=Energy(budget_j=0.4),
        protocol=Protocol(downlink_s=0.1, voting_s=0.025),
    )
    genesis = make(scenario)
    limits = genesis.members[0].limits
    assert (limits.samples, limits.rate_nano, limits.cycles) == (300, 250_000_000, 30_000_000)
    assert (limits.capacitance, limits.power_uw, limits.model_bits) == (540_000_000, 200_000, 1_000_000)
    assert (limits.cpu_max_hz, limits.mining_max_hz) == (2_000_000_000, None)
    assert (limits.initial_cpu_hz, limits.initial_mining_hz) == (1_000_000_000, 1_500_000_000)
    assert genesis.members[0].conditions.energy_budget_pj == 400_000_000_000
    physics = genesis.physics
    assert (physics.tradeoff_nano, physics.bandwidth_hz) == (12_500_000_000, 200_000)
    assert (physics.noise, physics.overhead_ns) == (10**14, 125_000_000)
    assert physics.work_cycles == round(-3e7 * np.log(1e-10))
    assert genesis.scheduler.parameters == (("max_evaluations", "7"), ("target_gap", "0.01"))
    assert (genesis.scheduler.name, genesis.scheduler.version) == ("exact", __version__)
    assert (genesis.law.difficulty, genesis.law.min_updates, genesis.law.target_ms) == (30, 1, 0)


def test_conditions_are_those_of_the_round():
    found = conditions_of(SMALL.rounds[2], 1)
    assert found.gain_atto == round(float(SMALL.rounds[2].gain[1]) * 10**18)
    assert found.energy_budget_pj == round(float(SMALL.rounds[2].energy_budget_j[1]) * 10**12)
    assert found.is_reachable


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"radio": Radio(bandwidth_hz=1e30)}, "radio.bandwidth_hz"),
        ({"radio": Radio(noise_w_per_hz=1e-40)}, "radio.noise_w_per_hz"),
        ({"radio": Radio(model_bits=0.0)}, "model_bits of client 0"),
        ({"compute": Compute(capacitance=1e-40)}, "capacitance of client 0"),
        ({"compute": Compute(initial_hz=0.1)}, "compute.initial_hz of client 0"),
        ({"compute": Compute(max_hz=1e20)}, "compute.max_hz of client 0"),
        ({"energy": Energy(budget_j=1e9)}, "energy budget of client 0"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_what_the_chain_has_no_number_for_is_named(sections, name):
    with pytest.raises(DoesNotFit) as refusal:
        make(small_scenario(**sections))
    assert refusal.value.name == name
    assert "the chain holds" in str(refusal.value)


def test_seeds_are_kept_to_the_last_digit():
    assert make(small_scenario(seed=2**62 + 1)).scheduler.seed == 2**62 + 1


def test_what_others_could_not_read_is_refused_at_once():
    scheduler = SchedulerChoice(name="exact", parameters={"target_gap": "x" * 300})
    with pytest.raises(InvalidGenesis, match="scheduler"):
        make(small_scenario(scheduler=scheduler))
    with pytest.raises(InvalidGenesis, match="encoding"):
        make(small_scenario(), layout=Layout(("w" * 201,), ((4,),)))
    with pytest.raises(InvalidGenesis, match="encoding"):
        make(small_scenario(), layout=Layout(("w",), ((1,) * 17,)))


def test_parts_must_belong_together():
    with pytest.raises(InvalidGenesis, match="members"):
        make(small_scenario(), num_keys=3)
    with pytest.raises(InvalidGenesis, match="initial-model"):
        make(small_scenario(), model=b"no model")


def changed(part: str, **changes: object) -> Genesis:
    return replace(GENESIS, **{part: replace(getattr(GENESIS, part), **changes)})


def with_limits(**changes: object) -> Genesis:
    first = GENESIS.members[0]
    return replace(GENESIS, members=(replace(first, limits=replace(first.limits, **changes)), *GENESIS.members[1:]))


REFUSED = {
    "another format": (replace(GENESIS, format=FORMAT + 1), "format"),
    "two members with one key": (replace(GENESIS, members=(GENESIS.members[0],) * 4), "public-keys"),
    "more samples than can be weighed": (with_limits(samples=2**29), "samples"),
    "a rate above one": (with_limits(rate_nano=10**9 + 1), "rates"),
    "more clients needed than there are": (changed("physics", min_clients=5), "physics"),
    "an unknown scheduler": (changed("scheduler", name="nobody"), "scheduler"),
    "an unknown parameter": (changed("scheduler", parameters=(("speed", "1"),)), "scheduler"),
    "a parameter that is no JSON": (changed("scheduler", parameters=(("max_iterations", "{"),)), "scheduler"),
    "a parameter of another type": (changed("scheduler", parameters=(("max_iterations", "[1]"),)), "scheduler"),
    "a parameter twice": (changed("scheduler", parameters=(("max_iterations", "1"),) * 2), "scheduler"),
    "an unknown rule": (changed("law", aggregation="vote"), "aggregation"),
    "somebody's own function": (changed("law", aggregation="os:system"), "aggregation"),
    "an optimizer without its parameters": (changed("law", aggregation="mean adam"), "aggregation"),
    "an optimizer with a number in another form": (
        changed("law", aggregation="mean momentum rate=01e-6 beta=0e-6"),
        "aggregation",
    ),
    "an optimizer with a decay of one": (
        changed("law", aggregation="mean momentum rate=1e-6 beta=1000000e-6"),
        "aggregation",
    ),
    "an optimizer after an unknown rule": (
        changed("law", aggregation="vote momentum rate=1e-6 beta=0e-6"),
        "aggregation",
    ),
    "an optimizer after somebody's own function": (
        changed("law", aggregation="os:system momentum rate=1e-6 beta=0e-6"),
        "aggregation",
    ),
    "a mean that bears faults and an optimizer": (
        changed("law", aggregation="mean momentum rate=1e-6 beta=0e-6", faulty=1),
        "aggregation",
    ),
    "a mean that bears faults": (changed("law", faulty=1), "aggregation"),
    "fewer updates than the rule needs": (changed("law", aggregation="median", faulty=1), "min-updates"),
    "another size": (changed("model", size=GENESIS.model.size + 8), "model-size"),
    "a size without its weights": (changed("model", size=16), "model-size"),
    "a model larger than any": (changed("model", tensors=(Tensor("w", (2**40, 2**20)),)), "model-size"),
    "a tensor of nothing": (
        changed("model", tensors=(Tensor("w", (4,)), Tensor("v", (2**40, 2**40, 0)))),
        "model-tensors",
    ),
    "a tensor with a name of safetensors": (changed("model", tensors=(Tensor("__metadata__", (4,)),)), "model-tensors"),
    "tensors of one name": (changed("model", tensors=(Tensor("w", (2,)),) * 2), "model-tensors"),
    "a first schedule for another round": (changed("schedule", round=2), "first-schedule-round"),
    "a first schedule that overdraws": (
        changed("schedule", cpu_hz=tuple(3 * hz for hz in GENESIS.schedule.cpu_hz)),
        "first-schedule-C3",
    ),
    "a first schedule that misstates its objective": (
        changed("schedule", objective_nano=0),
        "first-schedule-objective",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_genesis_that_means_nothing_is_refused(what):
    genesis, rule = REFUSED[what]
    with pytest.raises(InvalidGenesis) as refusal:
        start_chain(genesis, VerificationCache())
    assert refusal.value.rule == rule


def test_a_chain_may_begin_with_an_idle_round():
    genesis = replace(GENESIS, schedule=idle_schedule(1, 4, "nobody is awake"))
    assert start_chain(genesis, VerificationCache()).schedule.selected == ()


def test_an_own_rule_runs_only_where_it_is_allowed():
    scenario = small_scenario(learning=Learning(aggregation=Aggregation(rule=OWN_RULE)))
    genesis = make(scenario)
    assert genesis.law.aggregation == OWN_RULE
    start_chain(genesis, make_toolbox(scenario))
    with pytest.raises(InvalidGenesis, match="aggregation"):
        start_chain(genesis, VerificationCache())


def test_the_initial_model_is_the_one_the_genesis_names():
    validate_initial_model(GENESIS, SMALL.initial_model, VerificationCache())
    for data in (b"", SMALL.initial_model[:-1], SMALL.model(0, 1)):
        with pytest.raises(InvalidGenesis, match="initial-model"):
            validate_initial_model(GENESIS, data, VerificationCache())
    broken = SMALL.initial_model[:-16] + b"\x00\x00\xc0\x7f" * 4
    with pytest.raises(InvalidGenesis, match="initial-model"):
        validate_initial_model(changed("model", initial=digest(broken)), broken, VerificationCache())


def test_every_value_of_a_genesis_names_another_chain():
    chains = {chain_id(GENESIS), chain_id(replace(GENESIS, name="other")), chain_id(with_limits(samples=1))}
    assert len(chains) == 3
    assert msgspec.structs.asdict(GENESIS)["name"] == "scenario"


def test_a_federation_of_one_is_a_chain():
    scenario = small_scenario(1, clients=Clients(count=1, min_selected=1, samples=10))
    state = start_chain(make(scenario), VerificationCache())
    assert (state.quorum, state.num_members) == (1, 1)


def test_no_member_trains_and_uploads_longer_than_the_scenario_says_or_twice_what_the_slowest_needs():
    assert make(small_scenario(ledger=Ledger(max_exchange_s=2.5))).law.max_exchange_ns == 2_500_000_000
    assert make(small_scenario(ledger=Ledger(max_exchange_s=1e-9))).law.max_exchange_ns == 1
    with pytest.raises(DoesNotFit, match=r"ledger\.max_exchange_s"):
        make(small_scenario(ledger=Ledger(max_exchange_s=1e-12)))
    slowest_ns = slowest_exchange_ns(GENESIS.physics, GENESIS.members)
    assert GENESIS.law.max_exchange_ns == 2 * slowest_ns > 0


def test_where_nobody_can_be_reached_at_first_an_exchange_may_take_an_hour():
    nobody = tuple(replace(one, conditions=replace(one.conditions, is_reachable=False)) for one in GENESIS.members)
    assert slowest_exchange_ns(GENESIS.physics, nobody) == 0
    assert genesis_module._max_exchange_ns(small_scenario(), nobody) == 3600 * 10**9


def test_a_budget_that_would_hide_all_others_is_refused_and_the_largest_that_may_be_is_not():
    def with_budget(budget_pj):
        first = GENESIS.members[0]
        conditions = replace(first.conditions, energy_budget_pj=budget_pj)
        return replace(GENESIS, members=(replace(first, conditions=conditions), *GENESIS.members[1:]))

    with pytest.raises(InvalidGenesis) as refusal:
        start_chain(with_budget(10**18 + 1), VerificationCache())
    assert refusal.value.rule == "budgets"
    start_chain(with_budget(10**18), VerificationCache())


def test_shared_spectrum_is_refused_since_the_chains_costs_know_none():
    radio = replace(small_scenario().radio, sharing=Sharing.EQUAL)
    with pytest.raises(ScenarioError, match=r'radio.sharing: "equal" given, allowed is dedicated on a chain'):
        make(replace(small_scenario(), radio=radio))
