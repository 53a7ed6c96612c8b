"""Canonical bytes: one encoding for each value, nothing else is accepted."""

import hashlib
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, strategies as st

from bdfl.encoding import INT_LIMIT, BadEncoding, Record, Whole, decode, digest, encode, record_digest


class Pair(Record, frozen=True):
    number: Whole
    text: str


class Longer(Record, frozen=True):
    first: Pair
    others: tuple[Pair, ...] = ()


pairs = st.builds(Pair, st.integers(0, INT_LIMIT), st.text(max_size=20))
longer = st.builds(Longer, pairs, st.lists(pairs, max_size=5).map(tuple))


@given(longer)
def test_what_was_encoded_decodes_to_the_same_value(record):
    assert decode(encode(record), Longer, 10_000) == record


@given(longer, longer)
def test_different_values_have_different_bytes(one, other):
    assert (one == other) == (encode(one) == encode(other))


@given(st.binary(max_size=60))
def test_bytes_are_refused_or_are_the_encoding_of_their_value(data):
    try:
        record = decode(data, Longer, 60)
    except BadEncoding:
        return
    assert encode(record) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x92\xcc\x05\xa1a",  # 5 in two bytes
        b"\x92\x05\xd9\x01a",  # a short text with a long header
        b"\xdc\x00\x02\x05\xa1a",  # a short array with a long header
        b"\x92\x05\xa1a\x00",  # something after the end
        b"\x93\x05\xa1a\x00",  # a field too many
        b"\x91\x05",  # a field too few
        b"\x92\xff\xa1a",  # a negative number
        b"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa1a",  # too large a number
        b"\x92\xcb@\x14\x00\x00\x00\x00\x00\x00\xa1a",  # a float
        b"\x82\xa1a\x05\xa1b\xa1a",  # a map
        b"",
    ],
)
def test_other_encodings_of_a_value_are_refused(data):
    assert decode(b"\x92\x05\xa1a", Pair, 100) == Pair(5, "a")
    with pytest.raises(BadEncoding, match="Pair"):
        decode(data, Pair, 100)


def test_a_default_left_out_is_refused():
    short = msgspec.msgpack.encode([[5, "a"]])
    with pytest.raises(BadEncoding, match="canonical"):
        decode(short, Longer, 100)


def test_size_is_checked_before_anything_is_parsed():
    with pytest.raises(BadEncoding, match="101 bytes given, at most 100 expected"):
        decode(b"\xff" * 101, Pair, 100)


def test_deep_nesting_is_refused():
    with pytest.raises(BadEncoding):
        decode(b"\x91" * 100_000, Longer, 100_000)


def test_digests_are_sha256_of_the_encoding():
    record = Pair(5, "a")
    assert record_digest(record) == digest(encode(record)) == hashlib.sha256(b"\x92\x05\xa1a").digest()


_COLD_START = """
import sys, threading
from bdfl.ledger.block import Kind, SignedVote, Vote
from bdfl.protocol.messages import Gossip, Message, decode_message, encode_message
vote = SignedVote(Vote(Kind.PREVOTE, 1, bytes(32), 0, (), (), 0), bytes(64))
data = encode_message(Message(bytes(32), 0, 1, Gossip(1, votes=(vote,))))
sys.setswitchinterval(1e-6)
begin = threading.Barrier(8)

def work():
    begin.wait()
    for _ in range(20):
        decode_message(data)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_all_begin_with_the_same_kind_of_message():
    subprocess.run([sys.executable, "-c", _COLD_START], check=True, timeout=120)
