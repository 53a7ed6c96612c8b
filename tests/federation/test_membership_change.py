"""Changing members by a file: proposed, signed by a quorum, handed to a node, and what the chain's rules accept."""

import dataclasses

import msgspec
import numpy as np
import pytest

from bdfl.encoding import BadEncoding, decode, encode
from bdfl.errors import BdflError
from bdfl.federation.member_card import emulated_profile_of, make_card
from bdfl.federation.membership_change import (
    BadMemberChange,
    ChangeFile,
    merge_changes,
    propose_admission,
    propose_removal,
    read_change,
    read_members,
    sign_change_file,
    submit_change,
    taking_changes,
    validate_change_file,
    validate_timely,
)
from bdfl.ledger.block import Admission, Removal
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import start_chain
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.statements import validate_change
from bdfl.storage import write_record
from campaigns.fuzz.mutations import Mutator
from tests.federation.founders import INITIAL, agreed, card, signed, signer

replace = msgspec.structs.replace


@pytest.fixture
def folder(tmp_path):
    """A node's folder whose chain has no block yet."""
    ChainStore.create(tmp_path / "node" / "chain", signed().genesis, INITIAL, durable=False).close()
    return tmp_path / "node"


@pytest.fixture
def standing(folder):
    return read_members(folder)


def newcomer_card(labels=(1, 2, 3)):
    return make_card(signer(9), agreed(), "late", None, emulated_profile_of(agreed(), 0, np.array(labels)))


def admission(standing, expires=50):
    return propose_admission(standing, signed(), agreed(), newcomer_card(), expires)


def agree(file, standing, *numbers):
    for number in numbers:
        file = sign_change_file(file, standing, signer(number))
    return file


def test_a_nodes_folder_says_who_its_members_are(folder, standing):
    assert standing == read_members(folder / "chain")
    assert standing.chain == signed().chain
    assert (standing.height, standing.quorum) == (0, 3)
    assert standing.number_of(signer(2).public_key) == 2
    assert standing.number_of(signer(9).public_key) is None


@pytest.mark.parametrize("kind", [Admission, Removal])
def test_a_change_that_a_quorum_signed_is_valid_on_the_chain(standing, kind):
    file = admission(standing) if kind is Admission else propose_removal(standing, 1, 50)
    file = agree(file, standing, 3, 0, 2)
    assert isinstance(file.change, kind)
    assert [assent.member for assent in file.assents] == [0, 2, 3]
    cache = VerificationCache()
    validate_change(start_chain(signed().genesis, cache), file.membership_change, cache)


def test_a_newcomer_has_the_next_number_and_a_rate_that_follows_from_labels(standing):
    file = admission(standing)
    assert file.change.number == 4
    assert file.change.member.limits.samples == 6
    assert 0 < file.change.member.limits.rate_nano <= 10**9
    assert file.card.card.label_counts == (1, 2, 3)


def test_copies_that_were_signed_apart_are_merged(standing):
    begun = admission(standing)
    merged = merge_changes(agree(begun, standing, 3), agree(begun, standing, 0, 1))
    assert [assent.member for assent in merged.assents] == [0, 1, 3]
    with pytest.raises(BadMemberChange, match="another one"):
        merge_changes(begun, propose_removal(standing, 1, 50))


def test_a_node_gets_only_what_enough_have_signed(folder, standing):
    file = agree(admission(standing), standing, 0, 1)
    with pytest.raises(BadMemberChange, match="2 assents, 3 expected: 1 more"):
        submit_change(folder, file, standing)
    file = agree(file, standing, 2)
    path = submit_change(folder, file, standing)
    assert path.parent == folder / "inbox"
    (folder / "inbox" / "odd.change").write_bytes(b"odd")
    with taking_changes(folder) as found:
        assert found == [file]
    with taking_changes(folder) as found:
        assert found == []
    assert [one.name for one in (folder / "inbox").iterdir()] == ["odd.refused"]


def test_a_change_that_a_node_failed_to_take_stays(folder, standing):
    file = agree(propose_removal(standing, 3, 9), standing, 0, 1, 2)
    submit_change(folder, file, standing)
    with pytest.raises(RuntimeError), taking_changes(folder):
        raise RuntimeError
    with taking_changes(folder) as found:
        assert found == [file]


def test_who_is_no_member_cannot_agree_and_who_is_one_cannot_be_admitted(standing):
    with pytest.raises(BadMemberChange, match="not that of a member"):
        sign_change_file(admission(standing), standing, signer(9))
    with pytest.raises(BadMemberChange, match="is or was a member's"):
        propose_admission(standing, signed(), agreed(), card(2), 50)
    with pytest.raises(BadMemberChange, match="not one of the members 0, 1, 2, 3"):
        propose_removal(standing, 4, 50)
    with pytest.raises(BadMemberChange, match="another scenario"):
        propose_admission(standing, signed(), agreed(), card(0, "rounds=7"), 50)


def test_changes_that_can_no_longer_be_made_are_refused(standing):
    file = admission(standing, expires=5)
    with pytest.raises(BadMemberChange, match="void after block 5"):
        validate_timely(file, dataclasses.replace(standing, height=5))
    with pytest.raises(BadMemberChange, match="of chain"):
        validate_timely(replace(file, chain=bytes(32)), standing)
    with pytest.raises(BadMemberChange, match="4 is the next number"):
        validate_timely(replace(file, change=replace(file.change, number=5)), standing)
    with pytest.raises(BadMemberChange, match="assent of member 0"):
        validate_timely(replace(agree(file, standing, 0), expires=6), standing)


def test_a_change_comes_back_as_it_was_written_and_its_card_must_be_the_newcomers(tmp_path, standing):
    file = agree(admission(standing), standing, 1)
    write_record(tmp_path / "a.change", file)
    assert read_change(tmp_path / "a.change") == file
    with pytest.raises(BadMemberChange, match="without the newcomer's card"):
        validate_change_file(replace(file, card=None))
    with pytest.raises(BadMemberChange, match="other than it"):
        validate_change_file(replace(file, card=card(0)))
    with pytest.raises(BadMemberChange, match="none expected"):
        validate_change_file(replace(propose_removal(standing, 0, 5), card=card(0)))


def test_mutated_changes_are_never_accepted(standing):
    original = agree(admission(standing), standing, 0, 1, 2)
    mutator = Mutator([encode(original)], 3)
    num_decoded = 0
    for _ in range(2000):
        _, mutated = mutator.mutate()
        try:
            file = decode(mutated, ChangeFile, 1_000_000)
        except BadEncoding:
            continue
        num_decoded += 1
        try:
            validate_change_file(file)
            validate_timely(file, standing)
        except BdflError:
            continue
        assert replace(file, assents=()) == replace(original, assents=()) or not file.assents
        assert set(file.assents) <= set(original.assents)
    assert num_decoded > 50
