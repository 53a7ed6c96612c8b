import random
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from bdfl.encoding import digest
from bdfl.transports.live import blob_transfer
from bdfl.transports.live.blob_client import BlobClient
from bdfl.transports.live.blob_transfer import Absent, Answer, Download, NotYet, Piece, Silence
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.timeouts import FetchTimeouts
from tests.live.network_of_links import wait_until

S = 1_000_000_000
DATA = random.Random(7).randbytes(1_050)
BLOB = digest(DATA)
EVERYBODY = frozenset(range(5))


def new_pull(*holders, data=DATA):
    pull = Download(digest(data), len(data), 100, FetchTimeouts(4 * S, 32), 0)
    pull.name(holders)
    return pull


def piece_of(request: PieceRequest, data: bytes = DATA) -> Piece:
    return Piece(data[request.offset : request.offset + request.length])


def requests_of(pull, now_ns, present=EVERYBODY):
    requests = []
    while (found := pull.next_request(present, now_ns)) is not None:
        requests.append(found)
    return requests


def give_all(pull, now_ns, give=piece_of, present=EVERYBODY):
    """Answers until nothing is asked; gives how many times each holder was asked."""
    asked: dict[int, int] = {}
    while requests := requests_of(pull, now_ns, present):
        for holder, request in requests:
            asked[holder] = asked.get(holder, 0) + 1
            pull.answer(holder, request.offset, give(request), now_ns)
    return asked


def test_a_blob_comes_piece_by_piece_from_all_who_are_named():
    pull = new_pull(1, 2, 3)
    asked = give_all(pull, 0)
    assert pull.is_whole
    assert pull.whole() == DATA
    assert set(asked) == {1, 2, 3}
    assert sum(asked.values()) == 11


def test_no_piece_is_asked_twice_at_a_time():
    pull = new_pull(1, 2)
    offsets = [request.offset for _ in range(3) for _, request in requests_of(pull, 0)]
    assert len(offsets) == len(set(offsets))


def test_an_empty_blob_is_whole_at_once():
    pull = new_pull(1, data=b"")
    assert pull.is_whole
    assert pull.whole() == b""


def test_what_is_here_is_kept_when_a_holder_falls_silent_and_another_gives_the_rest():
    pull = new_pull(1)
    for _ in range(2):
        for holder, request in requests_of(pull, 0):
            pull.answer(holder, request.offset, piece_of(request), 0)
    assert len(pull.givers) == 3
    num_asked = len(requests_of(pull, 0))
    assert pull.expire(3 * S) == 0
    assert pull.expire(4 * S) == num_asked > 0
    asked = give_all(pull, 4 * S)
    assert 1 not in asked
    assert sum(asked.values()) == 8
    assert pull.whole() == DATA


def test_a_holder_that_is_not_ready_is_not_put_aside_but_asked_when_it_is():
    pull = new_pull(1)
    ((holder, request),) = requests_of(pull, 0)
    pull.answer(holder, request.offset, NotYet(2 * S), 0)
    assert requests_of(pull, S) == []
    assert pull.next_time_ns(S) == 2 * S
    assert requests_of(pull, 2 * S) == [(1, request)]


def test_a_slow_holder_is_asked_about_as_often_as_it_has_pieces():
    pull, now_ns, num_asked = new_pull(1), 0, 0
    while not pull.is_whole:
        for holder, request in requests_of(pull, now_ns, frozenset({1})):
            num_asked += 1
            ready_ns = (request.offset + request.length) * S // 100
            answer = piece_of(request) if ready_ns <= now_ns else NotYet(ready_ns - now_ns)
            pull.answer(holder, request.offset, answer, now_ns)
        if not pull.is_whole:
            now_ns = max(now_ns + 1, min(pull.next_time_ns(now_ns), now_ns + S))
    assert now_ns <= 10.6 * S
    assert num_asked <= 44


def test_others_are_asked_when_those_named_do_not_have_it_or_take_too_long():
    pull = new_pull(1)
    ((holder, request),) = requests_of(pull, 0)
    pull.answer(holder, request.offset, Absent(), 0)
    assert {holder for holder, _ in requests_of(pull, 0)} == EVERYBODY - {1}
    pull = new_pull(1)
    ((holder, request),) = requests_of(pull, 0)
    pull.answer(holder, request.offset, NotYet(50 * S), 0)
    assert requests_of(pull, 3 * S) == []
    assert {holder for holder, _ in requests_of(pull, 4 * S)} == EVERYBODY - {1}


def test_a_holder_named_again_is_asked_again_at_once():
    pull = new_pull(1)
    ((holder, request),) = requests_of(pull, 0)
    pull.answer(holder, request.offset, Silence(), 0)
    assert requests_of(pull, 0, frozenset()) == []
    pull.name([1])
    assert requests_of(pull, 0, frozenset()) == [(1, request)]


def test_who_is_silent_again_and_again_is_asked_less_and_less():
    pull, times, now_ns = new_pull(1), [], 0
    while len(times) < 6:
        for holder, request in requests_of(pull, now_ns, frozenset()):
            times.append(now_ns)
            pull.answer(holder, request.offset, Silence(), now_ns)
        now_ns += S // 10
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 4 * gaps[0]


def test_who_gave_a_wrong_whole_is_not_asked_again():
    pull = new_pull(1, 2)
    pull.name([1, 2])
    wrong = bytes(len(DATA))
    asked = {1: 0, 2: 0}
    for _ in range(3):  # the mixture, then each alone
        while requests := requests_of(pull, 0, frozenset({1, 2})):
            for holder, request in requests:
                asked[holder] += 1
                pull.answer(holder, request.offset, piece_of(request, wrong if holder == 1 else DATA), 0)
        if pull.whole() == DATA:
            break
        pull.blame()
    assert pull.whole() == DATA
    assert set(pull.givers.values()) == {2}


def test_a_piece_of_the_wrong_length_bars_its_giver():
    pull = new_pull(1)
    ((holder, request),) = requests_of(pull, 0)
    pull.answer(holder, request.offset, Piece(b""), 0)
    assert requests_of(pull, 0, frozenset({1})) == []


def test_answers_that_were_not_asked_for_change_nothing():
    pull = new_pull(1)
    requests_of(pull, 0)
    pull.answer(2, 0, Piece(bytes(100)), 0)
    pull.answer(1, 500, Piece(bytes(100)), 0)
    assert not pull.givers


@given(st.data())
def test_whatever_holders_answer_the_blob_comes_if_one_honest_member_stays(data):
    pull, now_ns = new_pull(0, 1), 0
    for _ in range(500):
        for holder, request in requests_of(pull, now_ns):
            honest = piece_of(request)
            if holder == 4:
                answer: Answer = honest
            else:
                answer = data.draw(
                    st.sampled_from([honest, Piece(bytes(request.length)), Piece(b"x"), NotYet(S), Absent(), Silence()])
                )
            pull.answer(holder, request.offset, answer, now_ns)
        if pull.is_whole:
            if pull.whole() == DATA:
                return
            pull.blame()
        now_ns += S // 2
    pytest.fail("never whole")


class Fleet:
    """Holders that answer in threads of their own."""

    def __init__(self, blobs: dict[int, dict[bytes, bytes]], silent: frozenset[int] = frozenset()) -> None:
        self.blobs, self.silent = blobs, silent
        self.num_asked = 0

    def __call__(self, holder: int, request: PieceRequest, on_answer: Callable[[Answer], None]) -> None:
        self.num_asked += 1
        data = self.blobs.get(holder, {}).get(request.blob)
        if holder not in self.silent:
            answer = Absent() if data is None else piece_of(request, data)
            threading.Thread(target=on_answer, args=(answer,)).start()


@pytest.fixture
def pulling():
    pullers = []

    def make(fleet, patience_s=0.3):
        delivered: list[bytes] = []
        counts: list[str] = []
        puller = BlobClient(fleet, lambda _, data: delivered.append(data), counts.append, patience_s, piece_size=100)
        pullers.append(puller)
        return puller, delivered, counts

    yield make
    for puller in pullers:
        puller.close(5.0)


def test_many_blobs_are_pulled_at_once(pulling):
    blobs = [random.Random(seed).randbytes(950) for seed in range(40)]
    fleet = Fleet({holder: {digest(data): data for data in blobs} for holder in range(3)})
    puller, delivered, counts = pulling(fleet)
    for data in blobs:
        puller.fetch(digest(data), len(data), [0, 1, 2])
    wait_until(lambda: len(delivered) == len(blobs), "all blobs")
    assert sorted(delivered) == sorted(blobs)
    assert puller.num_pulls == 0
    assert counts.count("fetches_done") == len(blobs)


def test_a_present_member_helps_where_the_named_one_is_silent(pulling):
    puller, delivered, counts = pulling(Fleet({2: {BLOB: DATA}}, silent=frozenset({1})))
    puller.set_present(frozenset({1, 2, 3}))
    puller.fetch(BLOB, len(DATA), [1])
    wait_until(lambda: delivered == [DATA], "the blob")
    assert "fetch_timeouts" in counts


def test_a_holder_named_later_helps(pulling):
    puller, delivered, _ = pulling(Fleet({2: {BLOB: DATA}}))
    puller.fetch(BLOB, len(DATA), [1])
    puller.fetch(BLOB, len(DATA), [2])
    wait_until(lambda: delivered == [DATA], "the blob")


def test_blobs_that_nobody_has_keep_no_others_from_coming(pulling, monkeypatch):
    """There is room for two; what came of a blob before it lost its turn is kept."""
    monkeypatch.setattr(blob_transfer, "_MAX_ACTIVE_BYTES", 2 * len(DATA))
    missing = [random.Random(seed).randbytes(len(DATA)) for seed in (1, 2)]
    others = [random.Random(seed).randbytes(len(DATA)) for seed in (3, 4, 5)]
    fleet = Fleet({1: {digest(data): data for data in others}})
    puller, delivered, _ = pulling(fleet, patience_s=0.1)
    puller.set_present(frozenset({1, 2}))
    for data in (*missing, *others):
        puller.fetch(digest(data), len(data), [1])
    wait_until(lambda: len(delivered) == len(others), "the blobs that somebody has")
    assert sorted(delivered) == sorted(others)
    fleet.blobs[2] = {digest(data): data for data in missing}  # and they are still wanted
    wait_until(lambda: puller.num_pulls == 0, "the others")
    assert sorted(delivered) == sorted(missing + others)


def test_a_turn_lasts_while_pieces_come():
    pull = new_pull(1)
    assert not pull.is_idle(100 * S)  # it waits
    pull.turn_ns = 100 * S
    assert not pull.is_idle(103 * S)
    ((holder, request),) = requests_of(pull, 103 * S, frozenset({1}))
    pull.answer(holder, request.offset, piece_of(request), 103 * S)
    assert not pull.is_idle(106 * S)
    assert pull.is_idle(107 * S)


def test_what_is_forgotten_is_not_delivered(pulling):
    fleet = Fleet({1: {BLOB: DATA}}, silent=frozenset({1}))
    puller, delivered, _ = pulling(fleet)
    puller.fetch(BLOB, len(DATA), [1])
    wait_until(lambda: fleet.num_asked > 0, "a request")
    puller.forget()
    fleet.silent = frozenset()
    other = bytes(500)
    fleet.blobs[1][digest(other)] = other
    puller.fetch(digest(other), len(other), [1])
    wait_until(lambda: delivered == [other], "the other blob")
