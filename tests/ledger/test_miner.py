"""The miner finds what a search finds, obeys, and leaves no process behind. How fast, `benchmarks/ledger` says."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bdfl.ledger import miner
from bdfl.ledger.miner import Miner
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.processes import Channel
from bdfl.scenario.schema_learning import WorkKind

SEAL = bytes(range(32))
NEVER = 2**62
PATIENCE_S = 240.0


def is_alive(process_id: int) -> bool:
    """Whether it runs; one that ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(process_id: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(process_id):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refuse(nonce: bytes) -> None:
    raise AssertionError(f"found {nonce.hex()} for a search that was stopped")


def find(miner: Miner, kind: WorkKind, seal: bytes, difficulty: int) -> bytes:
    found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    miner.start(kind, seal, difficulty, found.put)
    return found.get(timeout=PATIENCE_S)


@pytest.mark.parametrize(("kind", "difficulty"), [(WorkKind.SHA256, 5000), (WorkKind.ARGON2ID, 20)])
def test_what_is_mined_is_what_a_search_finds(kind: WorkKind, difficulty: int) -> None:
    with Miner() as miner:
        for number in range(3):
            seal = bytes([number]) * 32
            assert find(miner, kind, seal, difficulty) == search_nonce(kind, seal, difficulty)
        assert miner.wait_idle(PATIENCE_S)


@pytest.mark.parametrize("kind", list(WorkKind))
def test_a_stopped_search_ends_and_finds_nothing(kind: WorkKind) -> None:
    with Miner() as miner:
        miner.start(kind, SEAL, NEVER, refuse)
        assert not miner.wait_idle(0.05)
        told_ns = time.monotonic_ns()
        miner.stop()
        assert miner.wait_idle(PATIENCE_S)
        assert miner.idle_since_ns > told_ns


def test_after_stop_nothing_is_reported_even_if_it_was_found_before() -> None:
    with Miner() as miner:
        reported: list[bytes] = []
        for number in range(200):
            miner.start(WorkKind.SHA256, number.to_bytes(32, "big"), 1 + number, reported.append)
            miner.stop()
            count = len(reported)
            time.sleep(0.001)
            assert len(reported) == count


def test_a_new_search_takes_the_place_of_the_one_before() -> None:
    with Miner() as miner:
        miner.start(WorkKind.SHA256, SEAL, NEVER, refuse)
        miner.start(WorkKind.ARGON2ID, SEAL, NEVER, refuse)
        assert find(miner, WorkKind.SHA256, SEAL, 100) == search_nonce(WorkKind.SHA256, SEAL, 100)


def test_nothing_is_reported_to_another_search_than_its_own() -> None:
    """Searches end about when the next one begins, so that some answers come too late."""
    difficulty = 300
    found: list[tuple[bytes, bytes]] = []
    with Miner() as miner:
        find(miner, WorkKind.SHA256, SEAL, 1)
        for number in range(400):
            seal = number.to_bytes(32, "big")
            miner.start(WorkKind.SHA256, seal, difficulty, lambda nonce, seal=seal: found.append((seal, nonce)))
            time.sleep(1e-4 * (number % 5))
        assert miner.wait_idle(PATIENCE_S)
    assert found
    assert found == [(seal, search_nonce(WorkKind.SHA256, seal, difficulty)) for seal, _ in found]
    assert len({seal for seal, _ in found}) == len(found)


def test_the_next_search_may_be_started_where_the_last_is_reported() -> None:
    with Miner() as miner:
        found: list[bytes] = []
        done = threading.Event()

        def go_on(nonce: bytes) -> None:
            found.append(nonce)
            if len(found) < 5:
                miner.start(WorkKind.SHA256, bytes([len(found)]) * 32, 50, go_on)
            else:
                done.set()

        miner.start(WorkKind.SHA256, bytes(32), 50, go_on)
        assert done.wait(PATIENCE_S)
        assert found == [search_nonce(WorkKind.SHA256, bytes([number]) * 32, 50) for number in range(5)]


def test_stopping_when_nothing_is_searched_is_fine() -> None:
    with Miner() as miner:
        assert 0 < miner.idle_since_ns < time.monotonic_ns()
        assert miner.wait_idle(0.0)
        miner.stop()
        miner.stop()
        assert miner.wait_idle(PATIENCE_S)


def test_closing_ends_the_process_also_in_the_middle_of_a_search() -> None:
    miner = Miner()
    miner.start(WorkKind.ARGON2ID, SEAL, NEVER, refuse)
    process_id = miner.process_id
    miner.close()
    miner.close()
    assert not is_alive(process_id)


def test_a_process_that_somebody_ended_is_replaced() -> None:
    with Miner() as miner:
        miner.start(WorkKind.SHA256, SEAL, NEVER, refuse)
        process_id = miner.process_id
        os.kill(process_id, signal.SIGKILL)
        assert miner.wait_idle(PATIENCE_S)
        wait_until_gone(process_id)
        assert find(miner, WorkKind.SHA256, SEAL, 100) == search_nonce(WorkKind.SHA256, SEAL, 100)


_OWNER = """
import sys, time
from bdfl.ledger.miner import Miner
from bdfl.scenario.schema_learning import WorkKind
miner = Miner()
miner.start(WorkKind(sys.argv[1]), bytes(32), 2**62, print)
print(miner.process_id, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", list(WorkKind))
def test_the_process_ends_with_its_owner_however_that_ends(kind: WorkKind) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER, kind], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        process_id = int(owner.stdout.readline())
        assert is_alive(process_id)
        owner.kill()
    wait_until_gone(process_id)


def test_an_interrupt_is_left_to_the_owner() -> None:
    with Miner() as miner:
        assert find(miner, WorkKind.SHA256, SEAL, 10)  # so the process is up
        os.kill(miner.process_id, signal.SIGINT)
        assert find(miner, WorkKind.SHA256, SEAL, 100) == search_nonce(WorkKind.SHA256, SEAL, 100)


class Pipes:
    """What a miner's process reads and writes, so that it can be played here, where a test sees it."""

    def __init__(self) -> None:
        orders, self.give = os.pipe()
        take, answers = os.pipe()
        self._ends = [orders, self.give, take, answers]
        self.channel, self.owner = Channel(orders, answers), Channel(take, self.give)

    def order(self, number: int, kind: WorkKind | None, difficulty: int = 1) -> None:
        self.owner.send(miner._Search(number, kind, SEAL, difficulty))

    def answers(self) -> list[tuple[int, bytes | None]]:
        """What the process answers to the orders so far, and then no more."""
        before_ns = time.monotonic_ns()
        os.close(self.give)
        miner._serve(self.channel)
        found = []
        while self.owner.has_message():
            result = self.owner.receive(miner._RESULTS)
            assert before_ns <= result.ended_ns <= time.monotonic_ns()
            found.append((result.number, result.nonce))
        self._ends.remove(self.give)
        for end in self._ends:
            os.close(end)
        return found


def test_the_process_answers_the_newest_of_the_orders_it_reads_and_ends_with_them() -> None:
    pipes = Pipes()
    pipes.order(1, WorkKind.SHA256, NEVER)
    pipes.order(2, WorkKind.SHA256)
    assert pipes.answers() == [(2, bytes(8))]


def test_an_order_to_search_nothing_is_answered_without_a_nonce() -> None:
    pipes = Pipes()
    pipes.order(7, None)
    assert pipes.answers() == [(7, None)]


def test_a_search_ends_without_a_nonce_once_nobody_is_left_to_give_orders() -> None:
    pipes = Pipes()
    pipes.order(3, WorkKind.SHA256, NEVER)
    assert pipes.answers() == [(3, None)]


def test_a_process_that_does_not_end_by_itself_is_killed(monkeypatch) -> None:
    monkeypatch.setattr(miner, "_CLOSE_WAIT_S", 0.01)
    stubborn = Miner()
    os.kill(stubborn.process_id, signal.SIGSTOP)
    stubborn.close()
    assert not is_alive(stubborn.process_id)
    assert stubborn._child._process.returncode == -signal.SIGKILL
