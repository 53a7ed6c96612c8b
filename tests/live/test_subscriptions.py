import threading
import time

from bdfl.transports.live.admission import Bucket
from bdfl.transports.live.subscriptions import SubscriptionRate


def taken(pace, costs):
    """Seconds that it takes to wait for these, one after the other."""
    began_s = time.monotonic()
    for cost in costs:
        pace.wait(cost, threading.Event())
    return time.monotonic() - began_s


def test_a_pace_lets_a_burst_through_and_then_no_more_than_its_rate():
    waits = []
    pace = SubscriptionRate(Bucket(100, 5), float, lambda: waits.append(1))
    began_s = time.monotonic()
    for _ in range(5):
        pace.wait(1, threading.Event())
    assert not waits or time.monotonic() - began_s > 0.01
    assert taken(pace, [1] * 20) >= 0.14
    assert 3 <= len(waits) <= 8  # several are taken at once: to wake up for each would cost more than to refuse it


def test_what_costs_more_than_ever_comes_together_still_passes_and_the_next_waits_for_all_of_it():
    pace = SubscriptionRate(Bucket(1000, 10), float, lambda: None)
    pace.wait(50, threading.Event())
    assert taken(pace, [10]) >= 0.049


def test_nobody_waits_at_an_ear_that_is_closed():
    over = threading.Event()
    pace = SubscriptionRate(Bucket(0.001, 1), float, over.set)
    pace.wait(1, over)
    pace.wait(1, over)  # would take a quarter of an hour
