import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdfl.encoding import BadEncoding, digest, encode
from bdfl.identity import Signer
from bdfl.transports.live.envelope import (
    OVERHEAD,
    CounterWindow,
    Envelope,
    Purpose,
    Sealer,
    is_sealed,
    read_envelope,
)

CHAIN = digest(b"chain")
SIGNER = Signer(bytes(range(32)))


def sealed(payload=b"payload", receiver=4, purpose=Purpose.MESSAGE, life=1):
    return Sealer(SIGNER, CHAIN, 2, life).seal(purpose, receiver, payload)


def test_what_is_sealed_can_be_read_and_is_its_senders():
    envelope = read_envelope(sealed(), 100)
    assert (envelope.sender, envelope.receiver, envelope.counter, envelope.payload) == (2, 4, (1 << 32) + 1, b"payload")
    assert is_sealed(envelope, Purpose.MESSAGE, CHAIN, SIGNER.public_key)


@pytest.mark.parametrize("receiver", [None, 0, 4095])
@pytest.mark.parametrize("size", [0, 1, 300, 70_000])
def test_an_envelope_adds_less_than_its_overhead(receiver, size):
    assert len(sealed(bytes(size), receiver, life=2**31 - 1)) <= size + OVERHEAD


def test_nothing_of_an_envelope_can_be_changed():
    whole = read_envelope(sealed(), 100)
    changed = [
        Envelope(3, whole.receiver, whole.counter, whole.payload, whole.signature),
        Envelope(whole.sender, None, whole.counter, whole.payload, whole.signature),
        Envelope(whole.sender, 5, whole.counter, whole.payload, whole.signature),
        Envelope(whole.sender, whole.receiver, whole.counter + 1, whole.payload, whole.signature),
        Envelope(whole.sender, whole.receiver, whole.counter, b"another", whole.signature),
        Envelope(whole.sender, whole.receiver, whole.counter, whole.payload, bytes(64)),
    ]
    assert not any(is_sealed(envelope, Purpose.MESSAGE, CHAIN, SIGNER.public_key) for envelope in changed)
    assert not is_sealed(whole, Purpose.REQUEST, CHAIN, SIGNER.public_key)
    assert not is_sealed(whole, Purpose.MESSAGE, digest(b"another chain"), SIGNER.public_key)
    assert not is_sealed(whole, Purpose.MESSAGE, CHAIN, Signer(bytes(32)).public_key)


def test_only_the_canonical_encoding_of_the_right_size_is_read():
    data = sealed()
    for bad in (data[:-1], data + b"\0", b"", b"\xc1", encode(read_envelope(data, 100))[1:]):
        with pytest.raises(BadEncoding):
            read_envelope(bad, 100)
    with pytest.raises(BadEncoding, match="at most"):
        read_envelope(sealed(bytes(1000)), 100)


def test_counters_go_up_by_one_and_a_later_life_is_beyond_all_of_an_earlier():
    sealer = Sealer(SIGNER, CHAIN, 2, 7)
    counters = [read_envelope(sealer.seal(Purpose.MESSAGE, None, b""), 10).counter for _ in range(3)]
    assert counters == [(7 << 32) + 1, (7 << 32) + 2, (7 << 32) + 3]
    with pytest.raises(ValueError, match="life"):
        Sealer(SIGNER, CHAIN, 2, 2**31)


@given(st.lists(st.integers(0, 200), max_size=60))
def test_each_counter_counts_once_in_any_order(counters):
    window = CounterWindow()
    assert [window.note(counter) for counter in counters] == [
        counter not in counters[:i] for i, counter in enumerate(counters)
    ]


def test_what_is_far_behind_or_of_an_earlier_life_counts_as_come():
    window = CounterWindow()
    assert window.note(10_000)
    assert not window.is_new(10_000 - 4096)
    assert window.is_new(10_000 - 4095)
    assert window.note((1 << 32) + 5)
    assert not window.is_new(10_001)
    assert window.note((1 << 32) + 3)
    assert not window.note((1 << 32) + 3)
    assert window.note((1 << 32) + 1_000_000)
    assert not window.is_new((1 << 32) + 6)
