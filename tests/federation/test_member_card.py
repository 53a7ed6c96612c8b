"""Cards: what an operator says of itself, signed; whatever is changed in one is found out."""

import msgspec
import pytest

from bdfl.encoding import BadEncoding, decode, encode
from bdfl.errors import BdflError
from bdfl.federation.member_card import BadCard, MemberProfile, SignedCard, make_card, read_card, validate_card
from bdfl.identity import Meaning, Place
from bdfl.storage import BadSetUpFile, write_record
from campaigns.fuzz.mutations import Mutator
from tests.federation.founders import agreed, card, signer


def resign(signed, **changes):
    """The card with other content, signed by its own key again."""
    changed = msgspec.structs.replace(signed.card, **changes)
    place = Place(changed.scenario, 0, bytes(32))
    return SignedCard(signed.form, changed, signer(0).sign(Meaning.CARD, place, changed))


def test_a_card_comes_back_as_it_was_written(tmp_path):
    made = card(0)
    write_record(tmp_path / "a.card", made)
    assert read_card(tmp_path / "a.card") == made
    assert (tmp_path / "a.card").stat().st_size < 1000
    with pytest.raises(BadSetUpFile, match="exists already"):
        write_record(tmp_path / "a.card", card(1))


def test_a_card_says_what_becomes_public_and_no_more():
    found = card(0).card
    assert found.__struct_fields__ == (
        "scenario",
        "client",
        "name",
        "public_key",
        "authority",
        "label_counts",
        "limits",
        "conditions",
    )
    assert found.label_counts == (5, 0, 1)
    assert found.limits.samples == 6
    assert found.limits.rate_nano == 0


def test_a_card_that_was_changed_is_refused():
    signed = card(0)
    limits = msgspec.structs.replace(signed.card.limits, samples=7)
    for changes in ({"name": "other"}, {"client": 1}, {"scenario": bytes(32)}, {"limits": limits}):
        changed = msgspec.structs.replace(signed, card=msgspec.structs.replace(signed.card, **changes))
        with pytest.raises(BadCard, match="not signed by the key"):
            validate_card(changed)


@pytest.mark.parametrize("key", [b"\x01" + bytes(31), bytes(32), (2**255 - 18).to_bytes(32, "little")])
def test_a_key_of_small_order_or_in_another_form_is_refused(key):
    with pytest.raises(BadCard, match="not of small order expected"):
        validate_card(resign(card(0), public_key=key))


@pytest.mark.parametrize("name", ["", "  ", "x" * 61, "a\nb", "\x1b[31mred", "tab\t"])
def test_names_that_cannot_be_printed_are_refused(name):
    with pytest.raises(BadCard, match="name"):
        validate_card(resign(card(0), name=name))


def test_what_makes_no_sense_is_refused_even_if_it_is_signed():
    signed = card(0)
    with pytest.raises(BadCard, match="6 in all"):
        validate_card(resign(signed, label_counts=(5, 0, 2)))
    with pytest.raises(BadCard, match="it follows from labels"):
        validate_card(resign(signed, limits=msgspec.structs.replace(signed.card.limits, rate_nano=1)))
    with pytest.raises(BdflError, match="another key"):
        validate_card(resign(signed, authority=card(1).card.authority))


def test_a_card_that_makes_no_sense_is_not_even_made():
    one = card(0).card
    with pytest.raises(BadCard):
        make_card(signer(0), agreed(), "north", 0, MemberProfile((1,), one.limits, one.conditions))


def test_mutated_cards_are_never_accepted():
    original = encode(card(0))
    mutator = Mutator([original], 5)
    num_decoded = 0
    for _ in range(3000):
        _, mutated = mutator.mutate()
        if mutated == original:
            continue
        try:
            signed = decode(mutated, SignedCard, 10_000)
        except BadEncoding:
            continue
        num_decoded += 1
        with pytest.raises(BdflError):
            validate_card(signed)
    assert num_decoded > 100
