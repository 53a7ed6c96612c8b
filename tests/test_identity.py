"""Signatures hold for one key, one statement, one place and one meaning."""

import hashlib
from itertools import product

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, strategies as st

from bdfl.encoding import Record, encode
from bdfl.identity import (
    MAC_SIZE,
    Meaning,
    Place,
    Signer,
    _montgomery,
    is_mac,
    is_signed,
    make_mac,
    statement_digest,
)


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


def test_two_members_agree_on_a_key_that_is_theirs_alone():
    signers = [Signer(bytes([number]) * 32) for number in range(4)]
    keys = {(i, j): signers[i].agree(signers[j].public_key, b"salt", "test") for i in range(4) for j in range(4)}
    assert all(keys[i, j] == keys[j, i] for i, j in keys)
    assert len(set(keys.values())) == 10
    assert keys[0, 1] != signers[0].agree(signers[1].public_key, b"pepper", "test")
    assert keys[0, 1] != signers[0].agree(signers[1].public_key, b"salt", "another")


@given(st.binary(min_size=32, max_size=32))
def test_a_signing_key_is_mapped_to_the_one_its_secret_agrees_with(secret):
    # two ways to the same point: the secret's scalar times the base point there, or the public key brought over
    scalar = hashlib.sha512(secret).digest()[:32]
    there = X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()
    assert _montgomery(Signer(secret).public_key) == there


# Points of edwards25519 of order 1, 2, 4 and 8, by their y, with and without the sign of x.
@pytest.mark.parametrize(
    "y",
    [
        1,
        2**255 - 20,
        0,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    ],
)
@pytest.mark.parametrize("sign", [0, 2**255])
def test_nobody_agrees_on_a_key_with_a_point_of_small_order(y, sign):
    assert Signer(bytes(32)).agree((y + sign).to_bytes(32, "little"), b"salt", "test") is None


def test_macs_are_of_their_key_and_statement():
    mac = make_mac(bytes(32), b"statement")
    assert len(mac) == MAC_SIZE
    assert is_mac(bytes(32), mac, b"statement")
    assert not is_mac(bytes(31) + b"1", mac, b"statement")
    assert not is_mac(bytes(32), mac, b"statements")
    assert not is_mac(bytes(32), mac[:-1], b"statement")
