"""A wall clock that is off, from the start or from a moment on."""

import time

import pytest

from campaigns.live_faults.wall_clock import BadClock, ClockShift, read_shift, shift_wall_clock, shifted


def test_a_clock_is_set_at_its_moment():
    now = [100.0]
    clock = shifted(ClockShift(-3600.0, after_s=5.0), lambda: 5000.0 + now[0], lambda: now[0])
    assert clock() == 5100.0
    now[0] += 5.0
    assert clock() == 1505.0


def test_the_whole_process_sees_it(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    shift_wall_clock({"BDFL_WALL_CLOCK": "-3600"})
    assert time.time() == 6400.0


def test_without_a_shift_the_clock_stays():
    before = time.time
    shift_wall_clock({})
    assert time.time is before


@pytest.mark.parametrize(("text", "shift"), [("-3600", ClockShift(-3600.0)), ("3600@5", ClockShift(3600.0, 5.0))])
def test_a_shift_is_read_as_it_is_written(text, shift):
    assert read_shift(text) == shift


@pytest.mark.parametrize("text", ["", "an hour", "1@x", "nan", "inf", "3@nan"])
def test_no_other_shift_is_taken(text):
    with pytest.raises(BadClock, match="expected"):
        read_shift(text)
