"""Genesis files: their parts belong together, signatures are of this genesis, nothing changed is believed."""

import msgspec
import pytest

from bdfl.encoding import BadEncoding, decode, encode
from bdfl.errors import BdflError
from bdfl.federation.genesis_file import (
    BadGenesisFile,
    GenesisFile,
    add_signature,
    describe_access_points,
    merge_signatures,
    read_genesis,
    read_signature,
    sign_genesis,
    take_signature,
    validate_genesis_file,
)
from bdfl.identity import Signer
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import start_chain
from bdfl.scenario import dump_scenario
from bdfl.storage import BadSetUpFile, write_record
from bdfl.transports.live.certificates import make_ap_certificate
from campaigns.fuzz.mutations import Mutator
from tests.federation.founders import NAMES, access_point, agreed, card, signed, signer, unsigned

replace = msgspec.structs.replace


def refused(file, reason):
    with pytest.raises(BdflError, match=reason) as error:
        validate_genesis_file(file)
    assert "\n" not in str(error.value)


def test_a_genesis_file_comes_back_as_it_was_written_and_begins_a_chain(tmp_path):
    path = tmp_path / "our.genesis"
    write_record(path, signed())
    found = read_genesis(path)
    assert found == signed()
    assert found.missing_signatures == []
    assert found.names == NAMES
    assert start_chain(found.genesis, VerificationCache()).chain == found.chain
    with pytest.raises(BadSetUpFile, match="exists already"):
        write_record(path, unsigned())
    write_record(path, unsigned(), replaces=True)
    assert read_genesis(path).missing_signatures == [0, 1, 2, 3]


def test_rates_follow_from_all_labels_and_the_first_round_is_planned():
    genesis = unsigned().genesis
    rates = [member.limits.rate_nano for member in genesis.members]
    assert sum(rates) == pytest.approx(4 * 4e8, abs=1e7)  # participation.mean
    assert len(set(rates)) > 1
    assert genesis.schedule.selected
    assert genesis.schedule.is_feasible


def test_signatures_come_one_by_one_in_any_order():
    file = unsigned()
    for number in (2, 0, 3, 1):
        assert number in file.missing_signatures
        file = sign_genesis(file, signer(number))
        validate_genesis_file(file)
    assert file == signed()


def test_signed_copies_and_single_signatures_are_merged(tmp_path):
    copies = [sign_genesis(unsigned(), signer(number)) for number in (0, 3)]
    file = merge_signatures(merge_signatures(unsigned(), copies[0]), copies[1])
    assert file.missing_signatures == [1, 2]
    for number in (1, 2):
        path = tmp_path / f"{number}.signature"
        write_record(path, take_signature(unsigned(), signer(number)))
        assert path.stat().st_size < 200
        file = add_signature(file, read_signature(path))
    assert file == signed()


def test_nobody_but_a_member_can_sign():
    with pytest.raises(BadGenesisFile, match="not among the members"):
        sign_genesis(unsigned(), Signer(bytes([77]) * 32))
    one = take_signature(unsigned(), signer(0))
    with pytest.raises(BadGenesisFile, match="another genesis"):
        add_signature(unsigned(), replace(one, chain=bytes(32)))
    with pytest.raises(BadGenesisFile, match="not by a member"):
        add_signature(unsigned(), replace(one, public_key=signer(1).public_key))


def test_signatures_of_others_are_refused():
    first, *rest = signed().signatures
    refused(replace(signed(), signatures=(first, first, *rest[1:])), "signature of member 1")
    refused(replace(signed(), signatures=(first[:-1], *rest)), "signature of member 0")
    refused(replace(signed(), signatures=tuple(rest)), "one of each for the 4 members")


def test_every_part_must_be_the_one_that_the_genesis_names():
    file = unsigned()
    model = file.initial_model[:-1] + bytes([file.initial_model[-1] ^ 1])
    refused(replace(file, initial_model=model), "initial-model")
    refused(replace(file, scenario=file.scenario.replace("rounds = 5", "rounds = 6")), "another scenario")
    refused(replace(file, scenario="# hello\n" + file.scenario), "not in the form")
    refused(replace(file, access_points=()), "the genesis lists ap-0")
    other = make_ap_certificate("ap-0", ["127.0.0.1"])[2]
    refused(replace(file, access_points=(other,)), "the genesis lists ap-0")
    refused(replace(file, cards=(file.cards[1], file.cards[0], *file.cards[2:])), "its card is that of client")


def test_a_genesis_that_says_other_than_a_card_is_refused():
    file = unsigned()
    first, *rest = file.genesis.members
    limits = replace(first.limits, cycles=first.limits.cycles + 1)
    refused(replace(file, genesis=replace(file.genesis, members=(replace(first, limits=limits), *rest))), "north")
    conditions = replace(first.conditions, gain_atto=first.conditions.gain_atto + 1)
    refused(
        replace(file, genesis=replace(file.genesis, members=(replace(first, conditions=conditions), *rest))), "north"
    )
    limits = replace(first.limits, rate_nano=first.limits.rate_nano + 1000)
    changed = replace(file.genesis, members=(replace(first, limits=limits), *rest))
    refused(replace(file, genesis=changed), "participation rate")


def test_an_older_card_of_a_member_is_refused():
    file = unsigned()
    refused(replace(file, cards=(card(0, labels=(6, 0, 1)), *file.cards[1:])), "participation rate|other than its card")


def test_rules_that_do_not_follow_from_the_scenario_are_refused():
    file = unsigned()
    law = file.genesis.law
    for changed in (replace(law, difficulty=1), replace(law, min_updates=2), replace(law, target_ms=5)):
        refused(replace(file, genesis=replace(file.genesis, law=changed)), "law")
    physics = replace(file.genesis.physics, overhead_ns=1)
    refused(replace(file, genesis=replace(file.genesis, physics=physics)), "physics")
    schedule = replace(file.genesis.schedule, cpu_hz=tuple(3 * hz for hz in file.genesis.schedule.cpu_hz))
    refused(replace(file, genesis=replace(file.genesis, schedule=schedule)), "first-")


def test_functions_of_others_run_only_if_they_are_allowed(tmp_path):
    scenario = replace(agreed(), learning=replace(agreed().learning, model="os:abort"))
    text = dump_scenario(scenario)
    refused(replace(unsigned(), scenario=text), "--allow os:abort")
    with pytest.raises(BdflError, match="another scenario"):
        validate_genesis_file(replace(unsigned(), scenario=text), allowed=frozenset({"os:abort"}))


def test_a_file_of_another_kind_or_no_kind_is_named(tmp_path):
    path = tmp_path / "file"
    write_record(path, card(0))
    with pytest.raises(BadSetUpFile, match="a card, a genesis file expected"):
        read_genesis(path)
    path.write_bytes(b"hello")
    with pytest.raises(BadSetUpFile, match="no file of a set-up"):
        read_genesis(path)
    with pytest.raises(BadSetUpFile, match="readable"):
        read_genesis(tmp_path / "nothing")
    with pytest.raises(BadSetUpFile, match="readable"):
        read_genesis(tmp_path)
    data = encode(signed())
    for changed in (data[:-1], data + b"\x00", data[:100]):
        path.write_bytes(changed)
        with pytest.raises(BadSetUpFile, match="damaged or changed"):
            read_genesis(path)


def test_a_certificate_of_a_member_or_twice_the_same_is_no_access_point():
    assert [point.name for point in describe_access_points([access_point(), access_point("ap-1")])] == ["ap-0", "ap-1"]
    with pytest.raises(BdflError, match="no member's name"):
        describe_access_points([access_point("member-1")])
    with pytest.raises(BdflError, match="twice"):
        describe_access_points([access_point(), access_point()])
    with pytest.raises(BdflError, match="CA certificate"):
        describe_access_points([card(0).card.authority])


def test_mutated_genesis_files_are_never_accepted():
    """What is accepted is the original, or lacks signatures: that is said, and no node starts with it."""
    original = signed()
    mutator = Mutator([encode(original)], 11)
    num_decoded = 0
    for _ in range(4000):
        _, mutated = mutator.mutate()
        try:
            file = decode(mutated, GenesisFile, 1_000_000)
        except BadEncoding:
            continue
        num_decoded += 1
        try:
            validate_genesis_file(file)
        except BdflError:
            continue
        assert replace(file, signatures=original.signatures) == original
        assert all(not one or one == other for one, other in zip(file.signatures, original.signatures, strict=True))
    assert num_decoded > 100
