"""Signatures hold for one key, one statement, one place and one meaning."""

from itertools import product

import pytest

from bdfl.encoding import Record, encode
from bdfl.identity import Meaning, Place, Signer, is_signed, statement_digest


class Note(Record, frozen=True):
    number: int


ALICE, BOB = Signer(bytes(range(32))), Signer(bytes(range(1, 33)))
CHAIN, PARENT = b"c" * 32, b"p" * 32
HERE = Place(CHAIN, 3, PARENT)
NOTE = Note(1)


def statement(meaning=Meaning.UPDATE, place=HERE, note=NOTE):
    return statement_digest(meaning, place, encode(note))


def test_a_signature_holds_for_what_was_signed():
    signature = ALICE.sign(Meaning.UPDATE, HERE, Note(1))
    assert is_signed(ALICE.public_key, signature, statement())
    assert ALICE.sign(Meaning.UPDATE, HERE, Note(1)) == signature


@pytest.mark.parametrize(
    "other",
    [
        statement(meaning=Meaning.REPORT),
        statement(place=Place(b"d" * 32, 3, PARENT)),
        statement(place=Place(CHAIN, 4, PARENT)),
        statement(place=Place(CHAIN, 3, b"q" * 32)),
        statement(note=Note(2)),
    ],
    ids=["meaning", "chain", "height", "parent", "content"],
)
def test_a_signature_holds_nowhere_else(other):
    assert not is_signed(ALICE.public_key, ALICE.sign(Meaning.UPDATE, HERE, Note(1)), other)


def test_nobody_signs_for_another():
    assert not is_signed(BOB.public_key, ALICE.sign(Meaning.UPDATE, HERE, Note(1)), statement())


def test_bytes_that_are_no_key_or_signature_sign_nothing():
    signature = ALICE.sign(Meaning.UPDATE, HERE, Note(1))
    for key, sign in product([b"", b"\xff" * 32, ALICE.public_key], [b"", b"\x00" * 64, signature[:-1], signature]):
        assert is_signed(key, sign, statement()) == (key == ALICE.public_key and sign == signature)


def test_a_signer_does_not_show_its_secret():
    assert bytes(range(32)).hex() not in repr(vars(ALICE)) + repr(ALICE)
