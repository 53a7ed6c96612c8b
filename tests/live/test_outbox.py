"""What waits to be sent is bounded, and no asker can keep what all should hear from going out."""

import threading

import pytest

from bdfl.transports.live.admission import Limits
from bdfl.transports.live.queues import Outbox

LIMITS = Limits(outgoing=3, outgoing_bytes=1_000, answers=4, answers_bytes=400)


@pytest.fixture
def stalled():
    """An outbox whose first item is being sent until `go` is set; gives it, what was sent, and `go`."""
    sent, begun, go = [], threading.Event(), threading.Event()

    def send(to, payload):
        begun.set()
        go.wait(240)
        sent.append((to, payload))

    outbox = Outbox(send, LIMITS)
    assert outbox.put(9, b"at hand")
    begun.wait(240)
    yield outbox, sent, go
    go.set()
    outbox.close(30)


def wait_for_all(outbox, go, sent, count):
    go.set()
    while len(sent) < count:
        threading.Event().wait(0.001)
    assert len(outbox) == 0


def test_what_is_to_all_goes_before_all_answers_and_askers_take_turns(stalled):
    outbox, sent, go = stalled
    assert [outbox.put(1, b"%d" % number) for number in range(6)] == [True] * 4 + [False] * 2
    assert outbox.put(2, b"answer")
    assert outbox.put(None, b"vote")
    assert len(outbox) == 6
    wait_for_all(outbox, go, sent, 7)
    assert sent[1:] == [(None, b"vote"), (1, b"0"), (2, b"answer"), (1, b"1"), (1, b"2"), (1, b"3")]
    assert outbox.put(1, b"again")


def test_bytes_count_too(stalled):
    outbox, sent, go = stalled
    assert outbox.put(1, bytes(300))
    assert not outbox.put(1, bytes(101))
    assert outbox.put(2, bytes(400))
    assert outbox.put(None, bytes(600))
    assert not outbox.put(None, bytes(401))
    assert outbox.put(None, bytes(400))
    wait_for_all(outbox, go, sent, 5)
    assert outbox.put(None, bytes(1_000))


def test_what_is_to_all_is_bounded_in_number(stalled):
    outbox, sent, go = stalled
    assert [outbox.put(None, b"") for _ in range(5)] == [True] * 3 + [False] * 2
    wait_for_all(outbox, go, sent, 4)
    assert outbox.put(None, b"")


def test_a_closed_outbox_sends_nothing_more(stalled):
    outbox, sent, go = stalled
    outbox.put(None, b"never")
    threading.Timer(0.05, go.set).start()
    outbox.close(30)
    assert sent == [(9, b"at hand")]
    assert not outbox.put(1, b"late")
