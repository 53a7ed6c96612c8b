import pytest
from hypothesis import given, strategies as st

from bdfl.encoding import BadEncoding, digest, encode
from bdfl.identity import MAC_SIZE, Signer
from bdfl.ledger.block import MAX_MEMBERS
from bdfl.transports.live.envelope import (
    CounterWindow,
    Envelope,
    EnvelopeWriter,
    Keyring,
    Purpose,
    is_authentic,
    overhead,
    read_envelope,
)

CHAIN = digest(b"chain")
NUM_MEMBERS = 6
SIGNERS = [Signer(bytes([number]) * 32) for number in range(NUM_MEMBERS)]
PUBLIC_KEYS = [signer.public_key for signer in SIGNERS]
SENDER, RECEIVER = 2, 4


def writer(incarnation=1, public_keys=PUBLIC_KEYS):
    one = EnvelopeWriter(Keyring(SIGNERS[SENDER], CHAIN), SENDER, incarnation, public_keys)
    one.session = "0123456789abcdef" * 2
    return one


def written(payload=b"payload", receiver: int | None = RECEIVER, purpose=Purpose.MESSAGE, incarnation=1):
    return writer(incarnation).write(purpose, receiver, payload)


def read(data, max_payload=100):
    return read_envelope(data, max_payload, NUM_MEMBERS)


def is_believed(envelope, by=RECEIVER, purpose=Purpose.MESSAGE, chain=CHAIN, sender=SENDER):
    """Whether a member takes the envelope for what it says."""
    key = Keyring(SIGNERS[by], chain).key_with(PUBLIC_KEYS[sender])
    assert key is not None
    return is_authentic(envelope, purpose, key, by)


def test_what_is_authentic_can_be_read_and_is_its_senders():
    envelope = read(written())
    said = (envelope.sender, envelope.receiver, envelope.counter, envelope.payload)
    assert said == (SENDER, RECEIVER, (1 << 32) + 1, b"payload")
    assert is_believed(envelope)


def test_what_is_to_one_is_believed_by_nobody_else_and_what_is_to_all_by_everybody():
    to_one, to_all = read(written()), read(written(receiver=None))
    others = set(range(NUM_MEMBERS)) - {SENDER}
    assert {by for by in others if is_believed(to_one, by)} == {RECEIVER}
    assert {by for by in others if is_believed(to_all, by)} == others


def test_who_has_a_mac_cannot_make_it_another_members():
    envelope = read(written(receiver=None))
    own = envelope.macs[MAC_SIZE * RECEIVER : MAC_SIZE * (RECEIVER + 1)]
    moved = Envelope(envelope.sender, None, envelope.counter, envelope.session, envelope.payload, own * NUM_MEMBERS)
    assert is_believed(moved, RECEIVER)
    assert not any(is_believed(moved, by) for by in (0, 1, 3, 5))
    back = Envelope(
        RECEIVER, SENDER, envelope.counter, envelope.session, envelope.payload, own
    )  # as if it came from the receiver
    assert not is_believed(back, SENDER, sender=RECEIVER)


def test_nobody_is_left_out_or_taken_in_when_members_change():
    changed = writer(public_keys=[*PUBLIC_KEYS[:3], None, *PUBLIC_KEYS[4:]])
    envelope = read(changed.write(Purpose.MESSAGE, None, b"payload"))
    assert {by for by in range(NUM_MEMBERS) if by != SENDER and is_believed(envelope, by)} == {0, 1, 4, 5}
    changed.set_members(PUBLIC_KEYS)
    assert is_believed(read(changed.write(Purpose.MESSAGE, None, b"payload")), 3)
    assert not is_believed(read(writer(public_keys=PUBLIC_KEYS[:3]).write(Purpose.MESSAGE, 4, b"payload")))


@pytest.mark.parametrize("receiver", [None, 0, MAX_MEMBERS - 1])
@pytest.mark.parametrize("size", [0, 1, 300, 70_000])
def test_an_envelope_adds_less_than_its_overhead(receiver, size):
    num_macs = NUM_MEMBERS if receiver is None else 1
    assert len(written(bytes(size), receiver, incarnation=2**31 - 1)) <= size + overhead(num_macs)


def test_an_envelope_to_as_many_as_there_may_be_adds_less_than_its_overhead():
    data = writer(public_keys=PUBLIC_KEYS * (MAX_MEMBERS // NUM_MEMBERS)).write(Purpose.MESSAGE, None, bytes(70_000))
    assert len(data) <= 70_000 + overhead(MAX_MEMBERS)


def test_nothing_of_an_envelope_can_be_changed():
    whole = read(written())
    changed = [
        Envelope(3, whole.receiver, whole.counter, whole.session, whole.payload, whole.macs),
        Envelope(whole.sender, None, whole.counter, whole.session, whole.payload, whole.macs * NUM_MEMBERS),
        Envelope(whole.sender, 5, whole.counter, whole.session, whole.payload, whole.macs),
        Envelope(whole.sender, whole.receiver, whole.counter + 1, whole.session, whole.payload, whole.macs),
        Envelope(whole.sender, whole.receiver, whole.counter, whole.session, b"another", whole.macs),
        Envelope(whole.sender, whole.receiver, whole.counter, "another", whole.payload, whole.macs),
        *(
            Envelope(whole.sender, whole.receiver, whole.counter, whole.session, whole.payload, macs)
            for macs in (bytes(MAC_SIZE), b"", whole.macs[:-1], whole.macs + b"\0", whole.macs * NUM_MEMBERS)
        ),
    ]
    assert not any(is_believed(envelope) for envelope in changed)
    assert not is_believed(whole, purpose=Purpose.REQUEST)
    assert not is_believed(whole, chain=digest(b"another chain"))
    assert not is_believed(whole, sender=3)


def test_only_the_canonical_encoding_of_the_right_size_is_read():
    data = written()
    for bad in (data[:-1], data + b"\0", b"", b"\xc1", encode(read(data))[1:]):
        with pytest.raises(BadEncoding):
            read(bad)
    with pytest.raises(BadEncoding, match="at most"):
        read(written(bytes(1000)))


def test_counters_go_up_by_one_and_a_later_incarnation_is_beyond_all_of_an_earlier():
    one = writer(7)
    counters = [read(one.write(Purpose.MESSAGE, None, b"")).counter for _ in range(3)]
    assert counters == [(7 << 32) + 1, (7 << 32) + 2, (7 << 32) + 3]
    with pytest.raises(ValueError, match="incarnation"):
        writer(2**31)


@given(st.lists(st.integers(0, 200), max_size=60))
def test_each_counter_counts_once_in_any_order(counters):
    window = CounterWindow()
    assert [window.note(counter) for counter in counters] == [
        counter not in counters[:i] for i, counter in enumerate(counters)
    ]


def test_what_is_far_behind_or_of_an_earlier_incarnation_counts_as_come():
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
