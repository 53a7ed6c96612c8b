"""What waits for a node is bounded, fair and in order."""

import threading

from bdfl.protocol.events import SetTimer, Timer, TimerFired
from bdfl.transports.live.queues import FairQueue, Timers


def take_all(inbox):
    taken = []
    while len(inbox):
        taken.append(inbox.take(0))
    return taken


def test_what_is_ones_own_is_never_refused_and_comes_first():
    inbox = FairQueue(2)
    assert [inbox.put(1, item) for item in "abc"] == [True, True, False]
    assert all(inbox.put(None, number) for number in range(1000))
    assert take_all(inbox) == [*range(1000), "a", "b"]


def test_a_member_that_floods_takes_its_own_share_only():
    inbox = FairQueue(10)
    assert sum(inbox.put(1, f"flood {number}") for number in range(1000)) == 10
    assert inbox.put(2, "word")
    assert inbox.put(3, "word")
    first = [inbox.take(0) for _ in range(3)]
    assert first == ["flood 0", "word", "word"]
    assert inbox.put(1, "again")


def test_heavy_items_take_more_of_a_share():
    inbox = FairQueue(10)
    assert inbox.put(1, "block", 8)
    assert not inbox.put(1, "block", 8)
    assert inbox.put(1, "vote", 2)
    assert take_all(inbox) == ["block", "vote"]
    assert inbox.put(1, "block", 8)


def test_the_order_of_one_member_is_kept():
    inbox = FairQueue(100)
    for number in range(50):
        inbox.put(number % 3, number)
    taken = take_all(inbox)
    assert sorted(taken) == list(range(50))
    assert [item for item in taken if item % 3 == 1] == list(range(1, 50, 3))


def test_a_closed_inbox_takes_nothing_and_keeps_nobody_waiting():
    inbox = FairQueue(1)
    found = []
    waiting = threading.Thread(target=lambda: found.append(inbox.take(None)))
    waiting.start()
    inbox.close()
    waiting.join(240)
    assert found == [None]
    assert not inbox.put(None, "late")


def test_a_timer_set_again_forgets_the_one_before():
    timers = Timers()
    timers.set(SetTimer(Timer.RESEND, 1, 1, 100), 0)
    timers.set(SetTimer(Timer.DEADLINE, 1, 1, 50), 0)
    timers.set(SetTimer(Timer.RESEND, 2, 3, 40), 5)
    assert timers.next_ns == 45
    assert timers.pop_due(44) == []
    assert timers.pop_due(50) == [TimerFired(Timer.RESEND, 2, 3), TimerFired(Timer.DEADLINE, 1, 1)]
    assert timers.next_ns is None
