"""Hostile peers get nothing accepted and nobody accused; their attacks are what they are meant to be."""

import os
import random
import signal
from contextlib import suppress
from io import StringIO

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bdfl.encoding import digest
from bdfl.ledger.block import ModelUpdate, SignedUpdate
from bdfl.localnet.processes import node_folder
from bdfl.node.run_file import read_run
from bdfl.protocol.messages import Gossip, Message, encode_message
from bdfl.transports.live.admission import AdmissionControl, Limits, Refused
from bdfl.transports.live.envelope import Keyring, Purpose
from bdfl.transports.live.zenoh_config import chain_keys, line_of
from campaigns.hostile.__main__ import app
from campaigns.hostile.attacks import ATTACKS, IMPERSONATED, Who
from campaigns.hostile.campaign import (
    MAX_GROWTH,
    AttackResult,
    HostileResult,
    fall_of,
    hostile_scenario,
    run_hostile_campaign,
    select_attacks,
)
from campaigns.hostile.orders import Said
from campaigns.hostile.payloads import Arsenal
from campaigns.hostile.sampling import Phase
from campaigns.hostile.tables import hostile_markdown, summarise_hostile, tabulate_hostile
from tests.live.network_of_links import CHAIN, signer_of, writer_of
from tests.localnet.small_network import BY_FORMULA

MEMBER = 3  # the hostile one
KEYS = [signer_of(number).public_key for number in range(MEMBER + 1)]
FREE = Limits(
    checks_burst=10**6, messages_burst=10**6, bytes_burst=10**12, requests_burst=10**6, max_message_size=2**16
)
TRIED = ("garbage", "impersonated", "false-statements", "unlisted")
COUNT = 200
RATE = 400  # a second: nobody is muted, so that what is sent is looked into


def genuine(sender):
    """An envelope such as honest members send."""
    update = SignedUpdate(ModelUpdate(sender, 10, 1000, digest(b"a model"), 0), bytes(64))
    message = Message(CHAIN, sender, 5, Gossip(1, updates=(update,)))
    return writer_of(sender, num_members=len(KEYS)).write(Purpose.MESSAGE, None, encode_message(message))


def arsenal():
    return Arsenal(
        keys=chain_keys(CHAIN),
        chain=CHAIN,
        member=MEMBER,
        signer=signer_of(MEMBER),
        public_keys=KEYS,
        victims=range(MEMBER),
        heard=[genuine(0), genuine(1)],
        find_height=lambda: 5,
        incarnation=2,
        max_message_size=FREE.max_message_size,
        dice=random.Random(1),
    )


def come_in(gate, shot):
    """What of a shot at node 0 gets through the gate; raises `Refused`. Who it is from says the key."""
    line = line_of(shot.key)
    if shot.is_query:
        sender = gate.admit_request(line, len(shot.data), 0).member
        return gate.read_request(sender, shot.data, 0)
    sender = gate.admit(line, len(shot.data), 0).member
    return gate.read_message(sender, 0 if "/to/" in shot.key else None, shot.data, 0)


@pytest.mark.parametrize("attack", [attack.name for attack in ATTACKS if attack.who is Who.MEMBER])
def test_what_a_member_sends_is_refused_at_the_gate_unless_it_is_in_good_form(attack):
    gate = AdmissionControl(Keyring(signer_of(0), CHAIN), 0, FREE)
    gate.set_members(KEYS)
    for sender in (0, 1):  # what was heard came before
        with suppress(Refused):
            gate.read_message(sender, None, genuine(sender), 0)
    make = arsenal().load(attack)
    shots = [shot for shot in map(make, range(60)) if "/to/" not in shot.key or "/to/0/" in shot.key]
    shots = [shot for shot in shots if not shot.is_query or "/blob/0/" in shot.key]
    taken = []
    for shot in shots:
        with suppress(Refused):
            taken.append(come_in(gate, shot))
    expected = {"wrong-round": 60, "false-statements": 60, "begging": 60, "no-such-blob": 20, "repeated": 1}
    if attack == "bad-offset":  # those that are no negative numbers are for the one who has the blob to judge
        assert 0 < len(taken) < len(shots)
        assert all(request.offset >= 2**62 for request in taken)
    else:
        assert len(taken) == expected.get(attack, 0)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Some attacks on a small network, each a little."""
    folder = tmp_path_factory.mktemp("hostile") / "network"
    scenario = hostile_scenario(3, [BY_FORMULA])
    return run_hostile_campaign(folder, scenario, select_attacks(None, TRIED), count=COUNT, rounds=1, rate=RATE)


@pytest.mark.campaign
def test_nothing_hostile_is_accepted_and_nobody_is_accused(result):
    assert [one.attack for one in result.attacks] == list(TRIED)
    assert result.failures == ()
    assert result.traces == ()
    assert result.accused == ()
    assert result.height >= 3 * len(TRIED)
    for one in result.attacks:
        assert one.said.sent >= COUNT
        assert min(one.quiet.rounds, one.attacked.rounds, one.control.rounds) >= 1


@pytest.mark.campaign
def test_what_a_member_sends_is_dropped_and_counted(result):
    reasons = {one.attack: set(one.attacked.refused) for one in result.attacks if one.who == Who.MEMBER}
    assert "encoding" in reasons["garbage"]
    assert "vote-signature" in reasons["false-statements"]


@pytest.mark.campaign
def test_what_comes_over_connections_in_others_names_is_refused_unauthenticated(result):
    impersonated = next(one for one in result.attacks if one.attack == IMPERSONATED)
    assert {"encoding", "mac"} <= set(impersonated.attacked.refused) <= {"encoding", "mac", "replay", "rate"}


@pytest.mark.campaign
def test_a_stranger_gets_nothing(result):
    assert result.stranger_transports == 0
    assert result.stranger_heard == 0
    assert all(one.said.received_bytes == 0 for one in result.attacks if one.who == Who.STRANGER)


@pytest.mark.campaign
def test_an_attack_that_ends_a_node_is_told_with_what_was_found_before(tmp_path):
    folder = tmp_path / "network"

    def lose_a_node(one):
        os.kill(read_run(node_folder(folder, 1)).pid, signal.SIGKILL)

    attacks = select_attacks(None, ["garbage", "repeated"])
    found = run_hostile_campaign(
        folder, hostile_scenario(3, [BY_FORMULA]), attacks, count=1, rounds=1, rate=RATE, on_attack=lose_a_node
    )
    assert [one.attack for one in found.attacks] == ["garbage"]
    assert len(found.failures) == 1
    assert found.failures[0].startswith("repeated: node 1")
    assert not found.is_good
    assert found.height > 0


@pytest.mark.campaign
def test_the_control_burns_what_the_attacker_did(result):
    """As far as a machine with other tests on it lets it; never much more."""
    for one in result.attacks:
        assert one.wanted_s > 0
        assert 0.5 * one.wanted_s - 0.1 <= one.burned_s <= one.wanted_s + 0.5


@pytest.mark.campaign
def test_memory_stays_bounded(result):
    assert result.memory_growth <= MAX_GROWTH


def phase(rounds, seconds=60.0, memory=100 * 2**20):
    return Phase(
        rounds=rounds, seconds=seconds, node_cpu_s=2.0, memory_before=memory, memory_peak=memory,
        memory_after=memory, heard=1000, refused={"rate": 12_345},
    )  # fmt: skip


def outcome(attack="forged-mac", attacked=90, control=100, memory=100 * 2**20, received=0):
    who = next(one.who for one in ATTACKS if one.name == attack)
    return AttackResult(
        attack=attack,
        who=who.value,
        quiet=phase(110),
        attacked=phase(attacked, memory=memory),
        control=phase(control),
        said=Said(sent=12_345_678, received_bytes=received, cpu_s=10.0, seconds=60.0),
        wanted_s=10.0,
        burned_s=10.0,
    )


def verdict(*attacks, **changes):
    good = HostileResult(
        num_nodes=8, count=100_000, rounds=20, attacks=attacks, height=500, traces=(), accused=(), failures=(),
        stranger_transports=0, stranger_heard=0,
    )  # fmt: skip
    return msgspec.structs.replace(good, **changes)


def test_a_fall_is_that_of_rounds_per_minute_against_the_control_over_all_the_time():
    assert outcome().fall == pytest.approx(0.1)
    assert fall_of([outcome(attacked=50), outcome(attacked=100)]) == pytest.approx(0.25)
    assert fall_of([]) == 0.0


def test_attacks_that_last_longer_than_their_controls_are_each_compared_with_their_own():
    """Twice as slow where it takes a minute, no slower in ten minutes of a network that is quicker then."""
    short, long = outcome(attacked=50), outcome(attacked=100)
    lasting = msgspec.structs.replace(
        long.attacked, rounds=10 * long.attacked.rounds, seconds=10 * long.attacked.seconds
    )
    long = msgspec.structs.replace(long, attacked=lasting)
    assert fall_of([long]) == pytest.approx(0.0)
    assert fall_of([short, long]) == pytest.approx(0.5 / 11)
    quicker = msgspec.structs.replace(
        long,
        attacked=msgspec.structs.replace(lasting, rounds=3 * lasting.rounds),
        control=msgspec.structs.replace(long.control, rounds=3 * long.control.rounds),
    )
    assert fall_of([short, quicker]) == pytest.approx(0.5 / 31)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (verdict(outcome(attacked=79)), "member: 21 % of honest rounds lost"),
        (verdict(outcome(memory=2**30)), "memory grew by"),
        (verdict(outcome("noise", received=5)), "a stranger got 5 bytes"),
        (verdict(outcome(), stranger_heard=1), "a stranger got"),
        (verdict(outcome(), accused=(2,)), "honest member 2 is accused"),
        (verdict(outcome(), traces=("block 7: vote of member 8",)), "block 7: vote of member 8"),
        (verdict(outcome(), failures=("node 1: broken",)), "node 1: broken"),
    ],
)
def test_whatever_may_not_be_is_named(found, expected):
    assert not found.is_good
    assert any(expected in fault for fault in found.faults)
    assert summarise_hostile(found)[0].startswith("NOT GOOD")
    assert verdict(outcome()).is_good


def test_the_table_fits_a_terminal_and_the_page_names_every_attack():
    found = verdict(*(outcome(attack.name) for attack in ATTACKS))
    console = Console(width=80, file=StringIO(), color_system=None)
    console.print(tabulate_hostile(found))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    page = hostile_markdown(found, "python -m campaigns hostile", "a machine")
    for attack in ATTACKS:
        assert f"| `{attack.name}` | {attack.who} |" in page
        assert f"- `{attack.name}`: {attack.what}" in page
    assert max(len(line) for line in page.splitlines() if not line.startswith(("|", "-"))) <= 120
    assert msgspec.json.decode(msgspec.json.encode(found), type=HostileResult) == found


def test_an_attack_that_is_not_there_is_said_in_one_line():
    shown = CliRunner().invoke(app, ["--only", "nothing"])
    assert shown.exit_code == 2
    assert "no attack 'nothing'; there are: garbage" in shown.stderr.splitlines()[-1]
