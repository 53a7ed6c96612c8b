"""Pulling over lines that are slower than what is asked of them, in a time of its own."""

import math
import random
from dataclasses import dataclass, field

import pytest

from bdfl.encoding import digest
from bdfl.transports.live.blob_transfer import Absent, Answer, DownloadRequest, Downloads, NotYet, Piece, Silence
from bdfl.transports.live.timeouts import FetchTimeouts

S = 1_000_000_000
SIZE = 20_000
HOLDERS = tuple(range(1, 8))
STEP_NS = S // 50


def blobs_of(count: int) -> dict[bytes, bytes]:
    contents = [random.Random(seed).randbytes(SIZE) for seed in range(count)]
    return {digest(data): data for data in contents}


@dataclass
class Line:
    """What comes to the node comes one after the other, at so many bytes a second."""

    bytes_per_s: float
    delay_ns: int = S // 5
    free_ns: int = 0
    room: float = math.inf  # bytes that may wait; what is more is dropped
    num_bytes: int = 0
    num_dropped: int = 0
    under_way: list[tuple[int, DownloadRequest, Answer]] = field(default_factory=list)

    def occupy(self, num_bytes: int, now_ns: int) -> int:
        """When so many more bytes are through."""
        self.free_ns = max(self.free_ns, now_ns) + round(num_bytes / self.bytes_per_s * S)
        self.num_bytes += num_bytes
        return self.free_ns

    def give(self, errand: DownloadRequest, answer: Answer, now_ns: int) -> None:
        size = len(answer.data) if isinstance(answer, Piece) else 100
        if (self.free_ns - now_ns) / S * self.bytes_per_s + size > self.room:
            self.num_dropped += 1
            self.under_way.append((now_ns + self.delay_ns, errand, Silence()))
            return
        self.under_way.append((self.occupy(size, now_ns + self.delay_ns), errand, answer))

    def arrived(self, now_ns: int) -> list[tuple[DownloadRequest, Answer]]:
        there = [(errand, answer) for at_ns, errand, answer in self.under_way if at_ns <= now_ns]
        self.under_way = [one for one in self.under_way if one[0] > now_ns]
        return there


def pull_over(line: Line, contents: dict[bytes, bytes], *, limit_s: float, silent: frozenset[int] = frozenset()):
    """Wants all blobs at once; gives how long that took (s) and what else was seen."""
    pulls = Downloads(2 * S, SIZE)
    pulls.set_present(frozenset(HOLDERS))
    for number, blob in enumerate(contents):
        pulls.want(blob, SIZE, [HOLDERS[number % len(HOLDERS)]], 0)
    num_late = num_expired = 0
    for now_ns in range(0, round(limit_s * S), STEP_NS):
        for errand, answer in line.arrived(now_ns):
            num_late += pulls.answer(errand, answer, now_ns)
        while (whole := pulls.find_whole()) is not None:
            assert whole.whole() == contents[whole.blob]
            pulls.remove(whole)
        if not pulls:
            return now_ns / S, num_late, num_expired
        num_expired += pulls.expire(now_ns)
        for errand in pulls.plan(now_ns):
            if errand.holder not in silent:
                line.give(errand, Piece(contents[errand.request.blob]), now_ns)
    pytest.fail(f"{len(pulls)} of {len(contents)} blobs did not come in {limit_s:g} s")


def test_a_line_that_is_too_slow_for_all_at_once_brings_everything_and_little_twice():
    """40 kB/s: 32 pieces at a time take 16 s, and are waited for 2 s at first."""
    contents = blobs_of(60)
    line = Line(40_000)
    took_s, num_late, num_expired = pull_over(line, contents, limit_s=120)
    assert num_late > 0
    assert line.num_bytes < 2 * 60 * SIZE
    assert took_s < 1.2 * 60 * SIZE / 40_000
    assert num_expired < 120


def test_a_line_that_is_full_of_other_things_brings_everything_once_it_is_free():
    line = Line(40_000)
    line.occupy(1_000_000, 0)  # 25 s, longer than any piece is waited for
    took_s, *_ = pull_over(line, blobs_of(6), limit_s=120)
    assert took_s < 25 + 2 * 6 * SIZE / 40_000 + 2.5


@pytest.mark.parametrize("loses_first", [False, True], ids=["calm", "after a silence"])
def test_holders_that_are_gone_slow_nobody_else_down(loses_first):
    quick_s, *_ = pull_over(Line(10_000_000), blobs_of(70), limit_s=60)
    free_ns = 3 * S if loses_first else 0  # longer than anything is waited for
    took_s, *_ = pull_over(Line(10_000_000, free_ns=free_ns), blobs_of(70), limit_s=60, silent=frozenset({3, 5}))
    assert took_s < quick_s + free_ns / S + 2 * 2.0 + 1.0


def test_what_a_full_line_drops_comes_in_the_end():
    """As zenoh does where a queue is full: the request ends, and nobody has said anything."""
    line = Line(100_000, room=40_000)
    contents = blobs_of(40)
    took_s, *_ = pull_over(line, contents, limit_s=60)
    assert took_s < 3 * 40 * SIZE / 100_000
    assert line.num_dropped < 80


def test_who_takes_long_is_waited_for_longer():
    patience = FetchTimeouts(2 * S, 32)
    assert patience.wait_ns(1, 0) == 2 * S
    for number in range(20):
        patience.note_piece(1, number * S, (number + 5) * S)
    assert 5 * S < patience.wait_ns(1, 25 * S) < 6 * S
    patience.reset()
    assert patience.wait_ns(1, 25 * S) == 2 * S


def test_who_takes_long_where_others_do_not_is_not_waited_for_much_longer_and_asked_after_them():
    """Or else a member could hold up whatever it is asked for, again and again."""
    pulls = Downloads(2 * S, SIZE)
    contents = blobs_of(20)
    now_ns = 0
    for blob, data in contents.items():
        pulls.want(blob, SIZE, [1], now_ns)
        (errand,) = pulls.plan(now_ns)
        now_ns += 15 * S
        pulls.expire(now_ns)
        pulls.answer(errand, Piece(data), now_ns)
        pulls.clear()
    quick, blob = list(contents)[:2]
    pulls.want(quick, SIZE, [2], now_ns)
    (errand,) = pulls.plan(now_ns)
    pulls.answer(errand, Piece(contents[quick]), now_ns)
    pulls.clear()
    pulls.want(blob, SIZE, [1], now_ns)
    (errand,) = pulls.plan(now_ns)
    assert pulls.expire(now_ns + 4 * S - 1) == 0
    assert pulls.expire(now_ns + 4 * S) == 1
    pulls.clear()
    pulls.want(blob, SIZE, [1, 2], now_ns)
    assert [errand.holder for errand in pulls.plan(now_ns)] == [2]


def test_one_that_is_quick_or_was_so_long_ago_makes_nobody_impatient_with_all_others():
    patience = FetchTimeouts(2 * S, 32)
    patience.note_piece(9, 0, 1)
    for number in range(10):
        for holder in (1, 2, 3):
            patience.note_piece(holder, number * S, (number + 8) * S)
    assert patience.wait_ns(1, 18 * S) > 8 * S
    assert patience.wait_ns(9, 18 * S) == 2 * S
    alone = FetchTimeouts(2 * S, 32)
    alone.note_piece(9, 0, 1)
    for number in range(10):
        alone.note_piece(1, (60 + number) * S, (68 + number) * S)
    assert alone.wait_ns(1, 64 * S) == 4 * S
    assert alone.wait_ns(1, 78 * S) > 8 * S


def test_silence_is_waited_for_twice_as_long_each_time_up_to_a_limit():
    patience = FetchTimeouts(2 * S, 32)
    waits = []
    for number in range(6):
        waits.append(patience.wait_ns(1, 10 * number * S) // S)
        patience.note_silence(1, 10 * number * S, (10 * number + 2) * S)
    assert waits == [2, 4, 8, 16, 16, 16]
    assert patience.most_ns == 16 * S
    patience.welcome(1)
    assert patience.wait_ns(1, 60 * S) == 2 * S
    patience.note_silence(1, 60 * S, 62 * S)
    patience.note_silence(1, 61 * S, 63 * S)  # was under way
    assert patience.wait_ns(1, 63 * S) == 4 * S
    patience.note_piece(1, 62 * S, 62 * S + 1)
    assert patience.wait_ns(1, 63 * S) == 2 * S


def test_less_is_asked_for_only_if_nothing_that_was_asked_since_came():
    patience = FetchTimeouts(2 * S, 32)
    patience.note_piece(1, 1 * S, 1 * S + 1)
    patience.note_silence(1, 1 * S, 3 * S)
    assert patience.in_flight == 32  # the line brought what was asked at the same time
    patience.note_silence(1, 2 * S, 4 * S)
    assert patience.in_flight == 2
    patience.note_silence(2, 3 * S, 5 * S)  # was under way then
    for number in range(20):
        patience.note_silence(2, (5 + number) * S, (5 + number) * S)
    assert patience.in_flight == 2
    for number in range(14):
        patience.note_piece(1, (30 + number) * S, (30 + number) * S + 1)
    assert patience.in_flight == 16  # quickly up to half of what it was when something came for the last time
    for number in range(14):
        patience.note_piece(1, (50 + number) * S, (50 + number) * S + 1)
    assert patience.in_flight == 16
    for number in range(500):
        patience.note_piece(1, (70 + number) * S, (70 + number) * S + 1)
    assert patience.in_flight == 32


def test_who_comes_and_goes_changes_nothing_for_others_and_an_own_line_that_is_new_everything():
    pulls = Downloads(2 * S, SIZE)
    pulls.set_present(frozenset({1, 2}))
    patience = pulls._patience
    patience.note_silence(1, 1, 2 * S)
    assert patience.in_flight == 2
    for _ in range(3):
        pulls.set_present(frozenset({1}))
        pulls.set_present(frozenset({1, 2}))
    assert patience.in_flight == 2
    assert patience.wait_ns(1, 3 * S) == 4 * S
    pulls.set_present(frozenset())
    pulls.set_present(frozenset({2}))
    assert patience.in_flight == 32
    assert patience.wait_ns(1, 3 * S) == 2 * S


@pytest.mark.parametrize(
    ("answer", "is_present", "in_flight"),
    [(Absent(), True, 32), (NotYet(S), True, 32), (Silence(), True, 2), (Silence(), False, 32)],
)
def test_only_the_silence_of_one_who_is_there_is_the_lines(answer, is_present, in_flight):
    (blob,) = blobs_of(1)
    pulls = Downloads(2 * S, SIZE)
    pulls.set_present(frozenset({1} if is_present else {2}))
    pulls.want(blob, SIZE, [1], 1)
    (errand,) = pulls.plan(1)
    pulls.answer(errand, answer, 2)
    assert pulls._patience.in_flight == in_flight


def test_the_end_of_a_former_request_says_nothing_about_the_present_one():
    (blob,) = blobs_of(1)
    pulls = Downloads(2 * S, SIZE)
    pulls.want(blob, SIZE, [1], 0)
    (first,) = pulls.plan(0)
    assert pulls.expire(2 * S) == 1
    (second,) = pulls.plan(10 * S)
    pulls.answer(first, Silence(), 11 * S)
    assert pulls.plan(11 * S) == []
    pulls.answer(second, Silence(), 12 * S)
    assert pulls.plan(20 * S)


def test_a_piece_that_comes_late_counts_unless_it_is_here_already():
    contents = blobs_of(1)
    (blob,) = contents
    pulls = Downloads(2 * S, SIZE)
    pulls.want(blob, SIZE, [1, 2], 0)
    (first,) = pulls.plan(0)
    assert pulls.expire(2 * S) == 1
    (second,) = pulls.plan(2 * S)
    assert {first.holder, second.holder} == {1, 2}
    assert pulls.answer(first, Piece(contents[blob]), 3 * S)
    whole = pulls.find_whole()
    assert whole is not None
    assert whole.whole() == contents[blob]
    assert not pulls.answer(second, Piece(contents[blob]), 3 * S)
    pulls.remove(whole)
    assert not pulls.answer(second, Piece(contents[blob]), 4 * S)
    assert not pulls.plan(5 * S)


def test_who_gave_two_wrong_models_in_a_round_is_asked_for_nothing_more_in_it():
    """Whoever is named first for every blob could otherwise make a node fetch each of them twice."""
    contents, liar = blobs_of(6), 1

    def count_wrong(pulls):
        num_wrong = now_ns = 0
        for blob in contents:
            pulls.want(blob, SIZE, [liar], now_ns)
            while pulls:
                now_ns += STEP_NS
                for errand in pulls.plan(now_ns):
                    data = bytes(SIZE) if errand.holder == liar else contents[blob]
                    pulls.answer(errand, Piece(data), now_ns)
                whole = pulls.find_whole()
                if whole is not None and whole.whole() is None:
                    num_wrong += 1
                    pulls.blame(whole)
                elif whole is not None:
                    pulls.remove(whole)
        return num_wrong

    pulls = Downloads(2 * S, SIZE)
    pulls.set_present(frozenset(HOLDERS))
    assert [count_wrong(pulls), count_wrong(pulls)] == [2, 0]
    pulls.clear()
    assert count_wrong(pulls) == 2
