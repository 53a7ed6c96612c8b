"""What an attacker's processor time was over time, and processes that burn the same."""

import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, strategies as st

from campaigns.hostile.cpu_profile import Effort, effort_of
from campaigns.hostile.processes import burning

COURSE = Effort(((1.0, 0.5), (3.0, 2.5), (10.0, 2.5)))
lengths = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10)), min_size=1, max_size=8)


def course_of(steps):
    """From pieces of time, and what was burned in each."""
    passed, burned = (accumulate(column) for column in zip(*steps, strict=True))
    return effort_of(list(zip(passed, burned, strict=True)))


def test_between_what_was_said_it_is_straight():
    assert [COURSE.till(at) for at in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)] == [0.0, 0.25, 0.5, 1.5, 2.5, 2.5]


def test_after_its_end_it_goes_on_as_it_was_on_average():
    assert COURSE.till(10.0) == pytest.approx(2.5)
    assert COURSE.till(20.0) == pytest.approx(5.0)


def test_of_nothing_there_is_nothing():
    assert Effort().till(0.0) == Effort().till(7.0) == 0.0


def test_the_last_word_of_a_time_counts_and_what_was_before_the_beginning_does_not():
    assert effort_of([(0.0, 3.0), (2.0, 1.0), (1.0, 0.5), (2.0, 1.5)]) == Effort(((1.0, 0.5), (2.0, 1.5)))


@given(lengths, st.floats(0.1, 3), st.floats(0.05, 1), st.floats(0, 1))
def test_in_another_time_it_takes_as_many_cores_at_corresponding_times(steps, factor, share, place):
    effort = course_of(steps)
    other, at_s = effort.scaled(factor, share), place * effort.points[-1][0]
    assert other.till(at_s * factor) == pytest.approx(effort.till(at_s) * factor * share, abs=1e-9)


@given(lengths)
def test_it_only_grows(steps):
    effort = course_of(steps)
    seen = [effort.till(0.5 * k) for k in range(40)]
    assert all(before <= after + 1e-9 for before, after in pairwise(seen))


def test_processes_burn_it_together_from_when_they_are_told(tmp_path):
    with (tmp_path / "errors").open("wb") as errors, burning(Effort(((1.0, 0.3), (100.0, 0.4))), errors) as burner:
        assert burner.seconds == 0.0
        time.sleep(0.3)  # nothing yet
        burner.begin()
        while burner.seconds < 1.5:
            time.sleep(0.01)
        assert burner.end() == pytest.approx(0.3, abs=0.25)
    assert (tmp_path / "errors").read_bytes() == b""


def test_they_end_with_whoever_started_them(tmp_path):
    with (tmp_path / "errors").open("wb") as errors, burning(Effort(((1.0, 0.1),)), errors) as burner:
        processes = burner._processes
        burner.begin()
    assert [process.returncode for process in processes] == [0] * len(processes)
