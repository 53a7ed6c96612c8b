from contextlib import suppress

import pytest

from bdfl.encoding import digest, encode
from bdfl.protocol.messages import DecidedWanted, Message, encode_message
from bdfl.transports.live.admission import AdmissionControl, Bucket, Limits, Refusal, Refused, message_limit
from bdfl.transports.live.envelope import Envelope, Keyring, PieceAnswer, PieceRequest, Purpose
from bdfl.transports.live.zenoh_config import Line
from tests.live.network_of_links import CHAIN, message_of, signer_of, writer_of

S = 1_000_000_000
LIMITS = Limits(
    checks_per_s=20,
    checks_burst=40,
    messages_per_s=10,
    messages_burst=20,
    bytes_per_s=10_000,
    bytes_burst=20_000,
    max_message_size=5_000,
)
KEYS = [signer_of(number).public_key for number in range(3)]
KEYRING = Keyring(signer_of(0), CHAIN)


@pytest.fixture
def gate():
    gate = AdmissionControl(KEYRING, 0, LIMITS)
    gate.set_members(KEYS)
    return gate


def written(message, sender=1, receiver=None, incarnation=1):
    return writer_of(sender, incarnation, num_members=3).write(Purpose.MESSAGE, receiver, encode_message(message))


def read(gate, sender, receiver, data, now_ns):
    """What the link does with what it hears."""
    return gate.read_message(sender, receiver, data, now_ns)


def refusal(function, *arguments, is_proven=False):
    with pytest.raises(Refused) as caught:
        function(*arguments)
    assert caught.value.is_proven == is_proven
    return caught.value.reason


def count_heard(gate, sender, num_said=100):
    """How much of what a member says at once is let in."""
    writer = writer_of(sender, 9, num_members=3)
    num_heard = 0
    for height in range(num_said):
        data = writer.write(Purpose.MESSAGE, None, encode_message(message_of(sender, height)))
        with suppress(Refused):
            read(gate, sender, None, data, 0)
            num_heard += 1
    return num_heard


def test_tokens_owed_come_back_before_any_can_be_taken():
    bucket = Bucket(10, 20)
    bucket.owe(50, 0)
    assert not bucket.take(1, 3 * S)
    assert bucket.wait_ns(20, 3 * S) == 2 * S
    assert bucket.take(20, 5 * S)


def test_a_message_may_be_several_times_as_large_as_a_block_of_so_many_members():
    assert message_limit(24) > 8 * 50_000  # seen in a network of 24
    assert message_limit(200) > 2.5 * 50_000 * (200 / 24) ** 2  # votes of all on what all have said


def test_tokens_come_back_at_their_rate_up_to_the_burst():
    bucket = Bucket(10, 20)
    assert bucket.take(20, 0)
    assert not bucket.take(1, 0)
    assert bucket.wait_ns(5, 0) == S // 2
    assert bucket.take(5, S // 2)
    assert not bucket.take(21, 100 * S)
    assert bucket.take(20, 100 * S)


def test_a_clock_that_seems_to_go_back_gives_no_tokens():
    bucket = Bucket(10, 20)
    assert bucket.take(20, 5 * S)
    assert not bucket.take(1, 4 * S)
    assert not bucket.take(1, 5 * S)


def test_strangers_and_oneself_are_refused(gate):
    for sender in (None, 0, 3, 99):
        assert refusal(gate.admit, None if sender is None else Line(sender), 100, 0) is Refusal.STRANGER


def test_what_is_too_large_is_refused_whoever_sends_it(gate):
    assert refusal(gate.admit, Line(99), 10**6, 0) is Refusal.SIZE


def test_each_member_has_its_own_budget(gate):
    assert count_heard(gate, 1) == LIMITS.messages_burst
    late = written(message_of(1, 5), incarnation=10)
    assert refusal(read, gate, 1, None, late, 0, is_proven=True) is Refusal.RATE
    assert count_heard(gate, 2) == LIMITS.messages_burst
    read(gate, 1, None, written(message_of(1, 6), incarnation=11), S)


def test_only_so_much_is_looked_into_in_one_members_name(gate):
    for _ in range(LIMITS.checks_burst):
        gate.admit(Line(1), 10, 0)
    assert refusal(gate.admit, Line(1), 10, 0) is Refusal.RATE
    gate.admit(Line(2), 10, 0)
    gate.admit(Line(1), 10, S)


def test_what_others_say_in_a_members_name_leaves_its_own_budget_as_it_was(gate):
    genuine = written(message_of(1, 5))
    read(gate, 1, None, genuine, 0)
    forged = encode(Envelope(1, None, 2**62, "", encode_message(message_of(1, 5)), bytes(48)))
    for data in (b"garbage", forged, genuine, written(message_of(2, 5), sender=2)):
        for _ in range(100):
            refusal(read, gate, 1, None, data, 0)
    assert count_heard(gate, 1) == LIMITS.messages_burst - 1


def test_bytes_are_limited_too(gate):
    for _ in range(4):
        gate.admit(Line(1), 5_000, 0)
    assert refusal(gate.admit, Line(1), 5_000, 0) is Refusal.RATE


def test_nothing_is_believed_of_a_member_whose_key_anybody_could_agree_on(gate):
    small = (1).to_bytes(32, "little")  # the neutral element
    gate.set_members([KEYS[0], small, KEYS[2]])
    gate.admit(Line(1), 10, 0)
    assert refusal(read, gate, 1, None, written(message_of(1, 5)), 0) is Refusal.MAC
    assert read(gate, 2, None, written(message_of(2, 5), sender=2), 0).height == 5


def test_an_honest_message_comes_in_once(gate):
    data = written(message_of(1, 5))
    assert read(gate, 1, None, data, 0) == message_of(1, 5)
    assert refusal(read, gate, 1, None, data, 0) is Refusal.REPLAY


def test_who_starts_again_is_heard_and_its_former_incarnation_no_more(gate):
    read(gate, 1, None, written(message_of(1, 5), incarnation=3), 0)
    assert read(gate, 1, None, written(message_of(1, 6), incarnation=4), 0).height == 6
    assert refusal(read, gate, 1, None, written(message_of(1, 7), incarnation=3), 0) is Refusal.REPLAY


def test_a_message_counts_only_as_what_it_came_as(gate):
    assert refusal(read, gate, 2, None, written(message_of(1, 5)), 0) is Refusal.ADDRESS
    assert refusal(read, gate, 1, 0, written(message_of(1, 5)), 0) is Refusal.ADDRESS
    assert refusal(read, gate, 1, 0, written(message_of(1, 5), receiver=2), 0) is Refusal.ADDRESS
    assert refusal(read, gate, 1, None, written(message_of(2, 5)), 0, is_proven=True) is Refusal.ADDRESS
    other = Message(bytes(32), 1, 5, DecidedWanted())
    assert refusal(read, gate, 1, None, written(other, incarnation=2), 0, is_proven=True) is Refusal.ADDRESS


def test_garbage_in_a_good_envelope_is_refused(gate):
    data = writer_of(1).write(Purpose.MESSAGE, None, b"garbage")
    assert refusal(read, gate, 1, None, data, 0, is_proven=True) is Refusal.ENCODING
    assert refusal(read, gate, 1, None, b"garbage", 0) is Refusal.ENCODING


def test_what_a_member_signed_and_was_refused_uses_up_its_budget_and_nobody_elses(gate):
    for number in (1, 99, None):
        gate.charge(number, 0)
    assert count_heard(gate, 1) == LIMITS.messages_burst - LIMITS.refused_cost
    assert count_heard(gate, 2) == LIMITS.messages_burst


def test_what_makes_work_beside_the_round_uses_up_its_senders_budget_and_nobody_elses(gate):
    for number in (1, 99):
        gate.charge_aside(number, 2, 0)
    assert count_heard(gate, 1) == LIMITS.messages_burst - 2 * LIMITS.aside_cost
    assert count_heard(gate, 2) == LIMITS.messages_burst


def test_requests_for_pieces_are_for_members_for_this_node_and_count_once(gate):
    request = PieceRequest(bytes(32), 0, 100)
    writer = writer_of(1)
    data = writer.write(Purpose.REQUEST, 0, encode(request))
    gate.admit_request(Line(1), len(data), 0)
    assert refusal(gate.read_request, 2, data, 0) is Refusal.ADDRESS
    assert gate.read_request(1, data, 0) == request
    assert refusal(gate.read_request, 1, data, 0) is Refusal.REPLAY
    elsewhere = writer.write(Purpose.REQUEST, 2, encode(request))
    assert refusal(gate.read_request, 1, elsewhere, 0) is Refusal.ADDRESS
    as_message = writer.write(Purpose.MESSAGE, 0, encode(request))
    assert refusal(gate.read_request, 1, as_message, 0) is Refusal.MAC
    assert refusal(gate.read_request, 1, bytes(200), 0) is Refusal.ENCODING
    assert refusal(gate.admit_request, Line(9), 100, 0) is Refusal.STRANGER
    assert refusal(gate.admit_request, Line(1), 10_000, 0) is Refusal.SIZE


def test_requests_are_limited_in_number_and_only_a_members_own_cost_it():
    gate = AdmissionControl(KEYRING, 0, Limits(requests_per_s=10, requests_burst=20))
    gate.set_members(KEYS)
    writer = writer_of(1)

    def ask():
        data = writer.write(Purpose.REQUEST, 0, encode(PieceRequest(bytes(32), 0, 100)))
        return gate.read_request(1, data, 0)

    for _ in range(20):
        gate.admit_request(Line(1), 100, 0)
        refusal(gate.read_request, 1, b"garbage", 0)
    assert refusal(gate.admit_request, Line(1), 100, 0) is Refusal.RATE
    gate.admit_request(Line(2), 100, 0)
    for _ in range(20):
        ask()
    assert refusal(ask, is_proven=True) is Refusal.RATE


def test_an_answer_is_its_holders_and_to_one_request_only(gate):
    request, other = digest(b"a request"), digest(b"another")
    said = PieceAnswer(request, digest(b"piece"), None)
    writer = writer_of(1)
    data = writer.write(Purpose.ANSWER, 0, encode(said))
    assert gate.read_answer(1, request, data) == said
    assert refusal(gate.read_answer, 1, other, data) is Refusal.ADDRESS
    assert refusal(gate.read_answer, 2, request, data) is Refusal.ADDRESS
    assert refusal(gate.read_answer, 1, request, writer.write(Purpose.ANSWER, 2, encode(said))) is Refusal.ADDRESS
    assert refusal(gate.read_answer, 1, request, writer.write(Purpose.MESSAGE, 0, encode(said))) is Refusal.MAC
    forged = writer_of(1, signer=2).write(Purpose.ANSWER, 0, encode(said))
    assert refusal(gate.read_answer, 1, request, forged) is Refusal.MAC
    for garbage in (b"", bytes(10_000), writer.write(Purpose.ANSWER, 0, b"garbage")):
        assert refusal(gate.read_answer, 1, request, garbage) is Refusal.ENCODING
    longest = PieceAnswer(request, digest(b"piece"), 2**62)
    assert gate.read_answer(1, request, writer.write(Purpose.ANSWER, 0, encode(longest))) == longest


def test_who_was_served_a_lot_waits():
    gate = AdmissionControl(KEYRING, 0, Limits(served_per_s=1_000, served_burst=2_000))
    gate.set_members(KEYS)
    assert gate.serving_wait_ns(1, 2_000, 0) == 0
    assert gate.serving_wait_ns(1, 500, 0) == S // 2
    assert gate.serving_wait_ns(2, 500, 0) == 0
    assert gate.serving_wait_ns(1, 500, S // 2) == 0


def test_members_come_and_go_and_those_who_stay_keep_their_budgets(gate):
    data = written(message_of(1, 5))
    read(gate, 1, None, data, 0)
    gate.set_members([*KEYS[:2], None, signer_of(3).public_key])
    assert refusal(gate.admit, Line(2), 10, 0) is Refusal.STRANGER
    gate.admit(Line(3), 10, 0)
    assert refusal(read, gate, 1, None, data, 0) is Refusal.REPLAY
