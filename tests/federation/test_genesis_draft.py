"""Founding: drafts collect cards, a finished one is a genesis, and a local network is founded in one call."""

import dataclasses

import msgspec
import numpy as np
import pytest

from bdfl.errors import BdflError
from bdfl.experiment.network_run import member_keys
from bdfl.experiment.training_run import found_chain, prepare_run
from bdfl.federation.genesis_draft import (
    BadDraft,
    add_access_point,
    add_card,
    assign_cards,
    create_federation,
    draft_federation,
    find_profiles,
    finish_draft,
    read_draft,
)
from bdfl.federation.genesis_file import (
    BadAgreement,
    load_live_scenario,
    read_scenario,
    validate_genesis_file,
    write_scenario,
)
from bdfl.federation.member_card import (
    BadProfile,
    MemberProfile,
    emulated_profile,
    emulated_profile_of,
    make_card,
    measured_profile,
    samples_seen,
)
from bdfl.identity import Signer
from bdfl.learning.participation import participation_of
from bdfl.learning.trainer_pool import open_trainer
from bdfl.ledger.costs import MICROWATT, NANO, PICOJOULE
from bdfl.ledger.genesis import physics_of
from bdfl.radio import uplink_rate
from bdfl.scenario import LiveMode, QuorumRule, WorkKind, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.storage import write_record
from bdfl.transports.live.calibration import Calibration, Figure, Source
from tests.federation.founders import LABELS, access_point, agreed, card, empty_draft, full_draft, signer, unsigned

MACHINE = Calibration(
    cpu_hz=Figure(2e9, Source.CPUINFO),
    training_s=0.05,
    samples_seen=640,
    threads=1,
    work=WorkKind.ARGON2ID,
    hashes_per_s=1500.0,
    uplink=Figure(1.25e6, Source.ASSUMED),
)


@pytest.fixture(scope="module")
def federated():
    return prepare_run(load_scenario(find_scenario("quickstart"), ["clients.count=4", "rounds=2"]))


def test_a_live_network_begins_as_the_simulated_run_of_its_scenario_does(federated):
    """The same limits, rates, first conditions, model and first schedule; with the same keys and time, the same id."""
    scenario = federated.scenario
    file = create_federation(scenario, member_keys(scenario), federated=federated)
    with open_trainer(scenario, federated.data, federated.partition) as trainer:
        genesis, initial = found_chain(federated, trainer)
    assert msgspec.structs.replace(file.genesis, time_ms=genesis.time_ms) == genesis
    assert file.genesis.time_ms > genesis.time_ms  # when it was founded
    assert file.initial_model == initial
    assert file.missing_signatures == []
    assert file.genesis.law.target_ms == 0
    validate_genesis_file(file)


def test_every_card_of_a_founded_federation_says_what_its_client_holds(federated):
    scenario = federated.scenario
    signers = [Signer(bytes([number + 9]) * 32) for number in range(4)]
    file = create_federation(scenario, signers, names=list("abcd"), access_points=[access_point()], federated=federated)
    assert file.names == ("a", "b", "c", "d")
    assert file.public_keys == tuple(one.public_key for one in signers)
    counts = np.array([signed.card.label_counts for signed in file.cards])
    assert np.array_equal(counts, federated.partition.label_counts)
    rates = [member.limits.rate_nano / NANO for member in file.genesis.members]
    assert rates == pytest.approx(list(participation_of(scenario, counts)), abs=1e-9)
    assert [point.name for point in file.genesis.access_points] == ["ap-0"]
    with pytest.raises(BadDraft, match="3 keys given, 4 expected"):
        create_federation(scenario, signers[:3], federated=federated)


def test_where_machines_are_measured_cards_say_what_they_can_do_and_blocks_have_a_target(federated):
    scenario = msgspec.structs.replace(
        federated.scenario, live=msgspec.structs.replace(federated.scenario.live, mode=LiveMode.MEASURED, block_s=1.5)
    )
    counts = federated.partition.label_counts
    shares = [measured_profile(scenario, client, counts[client], MACHINE, 20_000) for client in range(4)]
    file = create_federation(scenario, [signer(n) for n in range(4)], profiles=shares, federated=federated)
    assert file.genesis.law.target_ms == 1500
    limits = file.genesis.members[2].limits
    assert limits.cpu_max_hz == 2_000_000_000
    assert limits.mining_max_hz == 1500 * scenario.ledger.cycles_per_hash
    assert limits.model_bits == 8 * 20_000
    assert limits.cycles == round(0.05 * 2e9 / 640 * samples_seen(scenario, int(counts[2].sum())))
    assert file.genesis.schedule.is_feasible
    measured = dataclasses.replace(federated, scenario=scenario)
    assert find_profiles(measured, 20_000, MACHINE) == shares
    assert find_profiles(federated, 20_000) == [emulated_profile(federated, client) for client in range(4)]


def test_a_measured_uplink_is_the_models(federated):
    scenario = load_live_scenario(find_scenario("minimal"), ["live.mode=measured"])
    share = measured_profile(scenario, 0, np.array([3, 4]), MACHINE, 1000)
    physics = physics_of(scenario)
    rate = uplink_rate(
        physics.bandwidth_hz,
        np.array(share.limits.power_uw / MICROWATT),
        np.array(share.conditions.gain_atto / 1e18),
        scenario.radio.noise_w_per_hz,
    )
    assert rate == pytest.approx(8 * 1.25e6, rel=1e-6)


def test_a_round_costs_what_its_operator_says_or_a_share_of_the_battery_or_plenty(tmp_path):
    scenario = agreed("live.mode=measured")
    counts = np.array([3, 4])
    given = measured_profile(scenario, 0, counts, MACHINE, 1000, energy_budget_j=1.25, root=tmp_path)
    assert given.conditions.energy_budget_pj == round(1.25 * PICOJOULE)
    plenty = measured_profile(scenario, 0, counts, MACHINE, 1000, root=tmp_path)
    capacitance = 5.4e-28
    alone_j = capacitance / 2 * physics_of(scenario).work_cycles * plenty.limits.initial_mining_hz**2
    assert plenty.conditions.energy_budget_pj / PICOJOULE > alone_j
    supply = tmp_path / "sys/class/power_supply/BAT0"
    supply.mkdir(parents=True)
    for name, text in {"type": "Battery", "status": "Discharging", "energy_now": "10000000"}.items():  # 10 Wh
        (supply / name).write_text(text + "\n")
    battery = measured_profile(scenario, 0, counts, MACHINE, 1000, root=tmp_path)
    assert battery.conditions.energy_budget_pj == pytest.approx(36_000 / scenario.rounds * PICOJOULE)


def test_data_of_ones_own_change_only_what_depends_on_their_size(federated):
    scenario = federated.scenario
    dealt = emulated_profile(federated, 1)
    own = emulated_profile_of(scenario, 1, federated.partition.label_counts[1])
    assert own == dealt
    more = emulated_profile_of(scenario, 1, 2 * federated.partition.label_counts[1])
    assert more.limits.samples == 2 * dealt.limits.samples
    assert more.limits.cycles == 2 * dealt.limits.cycles
    assert more.conditions == dealt.conditions
    with pytest.raises(BadProfile, match="client 4: 0 to 3 expected"):
        emulated_profile_of(scenario, 4, federated.partition.label_counts[1])


def test_the_untrained_model_needs_only_the_form_of_the_data(federated):
    draft = draft_federation(federated.scenario, federated.data)
    with open_trainer(federated.scenario, federated.data, federated.partition) as trainer:
        assert draft.layout == trainer.layout
    assert draft.num_labels == 10


def test_cards_may_come_in_any_order_and_a_newer_one_replaces_the_older():
    draft = full_draft()
    assert [seat.card.name for seat in assign_cards(draft, agreed())] == ["north", "östlich", "south", "west"]
    grown = add_card(draft, agreed(), card(1, labels=(0, 4, 3)))
    assert len(grown.cards) == 4
    seat = assign_cards(grown, agreed())[1]
    assert seat is not None
    assert seat.card.label_counts == (0, 4, 3)


def test_a_draft_comes_back_as_it_was_written(tmp_path):
    write_record(tmp_path / "our.draft", full_draft())
    assert read_draft(tmp_path / "our.draft") == (full_draft(), agreed())
    made, before = finish_draft(full_draft(), agreed()), unsigned()
    genesis = msgspec.structs.replace(made.genesis, time_ms=before.genesis.time_ms)
    assert msgspec.structs.replace(made, genesis=genesis) == before


def test_cards_that_do_not_fit_a_draft_are_refused():
    draft, scenario = empty_draft(), agreed()
    with pytest.raises(BadDraft, match="another draft or scenario"):
        add_card(draft, scenario, card(0, "rounds=6"))
    with pytest.raises(BadDraft, match="2 labels, data with 3 labels"):
        add_card(draft, scenario, card(0, labels=(1, 2)))
    draft = add_card(draft, scenario, card(0))
    double = make_card(signer(7), scenario, "late", 0, emulated_profile_of(scenario, 0, np.array(LABELS[0])))
    with pytest.raises(BadDraft, match="client 0: both 'north' and 'late'"):
        add_card(draft, scenario, double)
    anybody = make_card(signer(7), scenario, "late", None, emulated_profile_of(scenario, 0, np.array(LABELS[0])))
    with pytest.raises(BadDraft, match="--client expected"):
        add_card(draft, scenario, anybody)
    with pytest.raises(BadDraft, match="1 of 4 members: cards of members 1, 2, 3"):
        finish_draft(draft, scenario)


def test_members_that_play_no_certain_client_get_the_places_left():
    scenario = agreed("live.mode=measured")
    draft = msgspec.structs.replace(empty_draft(), scenario=write_scenario(scenario))

    def measured(number: int, client: int | None):
        share: MemberProfile = measured_profile(scenario, client or 0, np.array(LABELS[number]), MACHINE, 1000)
        return make_card(signer(number), scenario, f"m{number}", client, share)

    for number, client in ((0, None), (1, 0), (2, None), (3, 3)):
        draft = add_card(draft, scenario, measured(number, client))
    assert [seat.card.name for seat in assign_cards(draft, scenario)] == ["m1", "m0", "m2", "m3"]
    with pytest.raises(BadDraft, match="5 members, at most 4"):
        add_card(draft, scenario, measured_extra(scenario))
    assert finish_draft(draft, scenario).genesis.law.target_ms == 2000


def measured_extra(scenario):
    share = measured_profile(scenario, 0, np.array(LABELS[0]), MACHINE, 1000)
    return make_card(signer(8), scenario, "late", None, share)


def test_an_access_point_is_listed_once():
    with pytest.raises(BdflError, match="twice"):
        add_access_point(full_draft(), access_point())


def test_what_a_scenario_leaves_open_is_safe_among_machines(tmp_path):
    assert agreed().ledger.quorum is QuorumRule.BFT
    assert agreed().ledger.work is WorkKind.ARGON2ID
    file = tmp_path / "mine.toml"
    file.write_text('[ledger]\nquorum = "majority"\n[radio]\nbandwidth_hz = 5e6\n')
    mine = load_live_scenario(file, ["live.mode=measured"])
    assert mine.ledger.quorum is QuorumRule.MAJORITY
    assert mine.ledger.work is WorkKind.ARGON2ID
    assert mine.radio.bandwidth_hz == 5e6
    assert agreed("live.mode=measured").radio.bandwidth_hz == 1e9
    assert agreed().radio.bandwidth_hz == load_scenario(find_scenario("minimal")).radio.bandwidth_hz


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rounds = ", "not TOML"),
        ("rounds = 5\n", "not in the form"),
        ("x = " + "[" * 5000, "nested|TOML"),
    ],
)
def test_somebodys_text_that_is_no_agreed_scenario_is_refused_in_one_line(text, reason):
    with pytest.raises(BdflError, match=reason) as error:
        read_scenario(text)
    assert "\n" not in str(error.value)


def test_a_recorded_trace_and_names_that_cannot_be_printed_are_no_agreement(tmp_path):
    for table in ("radio", "availability"):
        section = msgspec.structs.replace(getattr(agreed(), table), trace=str(tmp_path / "trace.csv"))
        with pytest.raises(BadAgreement, match=rf"{table}\.trace"):
            write_scenario(msgspec.structs.replace(agreed(), **{table: section}))
    with pytest.raises(BadAgreement, match="printed"):
        read_scenario(write_scenario(msgspec.structs.replace(agreed(), name="\x1b[31m")))
