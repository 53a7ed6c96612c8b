"""How fast nonces are searched beside bare loops over the same hashes, and how soon a miner stops."""

import hashlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles

from argon2.low_level import Type, hash_secret_raw

from bdfl.ledger.miner import Miner
from bdfl.ledger.proof_of_work import highest_hash, search_nonce
from bdfl.scenario.schema_learning import WorkKind
from benchmarks.results import Result, make_result

Report = Callable[[str], None]
ASKED_RATIO = {WorkKind.SHA256: 0.8, WorkKind.ARGON2ID: 0.95}
ASKED_STOP_MS = 10.0
_WAIT_S = 600.0
_BARE = "bare loop"
_ENDLESS = 2**62


@dataclass(frozen=True)
class Plan:
    """Hashes of one search by kind, turns in which every side searches once, and how often a search is stopped."""

    num_hashes: dict[WorkKind, int]
    turns: int
    stops: int
    search_s: float = 0.01  # how long before it is stopped


FULL = Plan({WorkKind.SHA256: 1_000_000, WorkKind.ARGON2ID: 1_000}, turns=9, stops=300)
QUICK = Plan({WorkKind.SHA256: 200_000, WorkKind.ARGON2ID: 200}, turns=3, stops=30)


@dataclass(frozen=True)
class Job:
    """A search with one answer, so that all sides hash the same."""

    kind: WorkKind
    seal: bytes
    difficulty: int
    nonce: bytes

    @property
    def num_hashes(self) -> int:
        return int.from_bytes(self.nonce, "big") + 1


@dataclass(frozen=True)
class RateRow:
    """Median over turns; `of_bare` is the median of each turn's ratio, `asked` what the project asks of it."""

    work: str
    side: str
    hashes_per_s: float
    of_bare: float
    asked: float | None


@dataclass(frozen=True)
class StopRow:
    """From being told until the last hash (ms), and how long the miner's processor worked in that time (ms)."""

    work: str
    meanwhile: str
    stops: int
    median_ms: float
    percent_99_ms: float
    most_ms: float
    most_worked_ms: float
    asked_ms: float


def measure_mining(plan: Plan, report: Report) -> list[Result]:
    """Rates of all sides and times to stop, for both kinds of work."""
    rates = [row for kind in WorkKind for row in _measure_rates(kind, plan, report)]
    stops = [row for kind in WorkKind for row in _measure_stops(kind, plan, report)]
    rate_notes = [
        "`bare loop`: a copy of hashlib's mid-state for every nonce, or argon2-cffi's hash_secret_raw, and comparing.",
        "`search`: bdfl's, in the same process. `miner`: that of a live node, in a process of its own.",
        "`busy`: the owner computes in Python meanwhile; `thread` is how a miner without a process would fare.",
    ]
    stop_notes = [
        "From the order to stop until the last hash. `owner busy`: the process that orders computes in Python.",
        "`all cores busy`: one process for each core computes besides. A miner that waits for a core does not hash: "
        "`most worked` is the most that its core worked from the order to the answer.",
    ]
    return [
        make_result("mining", "Mining: the same searches, taking turns", rates, rate_notes),
        make_result("mining-stop", "Mining: how soon a miner stops", stops, stop_notes),
    ]


def find_job(kind: WorkKind, num_hashes: int) -> Job:
    """A search of about `num_hashes`: at least half and at most twice as many."""
    for number in range(1000):
        seal = hashlib.sha256(f"{kind} {number}".encode()).digest()
        nonce = search_nonce(kind, seal, num_hashes)
        if nonce is not None and num_hashes <= 2 * int.from_bytes(nonce, "big") <= 4 * num_hashes:
            return Job(kind, seal, num_hashes, nonce)
    raise AssertionError(f"no search of about {num_hashes} hashes among a thousand")


def search_bare(job: Job) -> bytes | None:
    """The least a loop in Python can do."""
    highest = highest_hash(job.difficulty)
    if job.kind is WorkKind.SHA256:
        state = hashlib.sha256(job.seal)
        for number in range(job.num_hashes):
            copy = state.copy()
            nonce = number.to_bytes(8, "big")
            copy.update(nonce)
            if copy.digest() <= highest:
                return nonce
        return None
    for number in range(job.num_hashes):
        nonce = number.to_bytes(8, "big")
        if hash_secret_raw(job.seal + nonce, b"bdfl/1 proofwork", 1, 1024, 1, 32, Type.ID) <= highest:
            return nonce
    return None


def _measure_rates(kind: WorkKind, plan: Plan, report: Report) -> list[RateRow]:
    job = find_job(kind, plan.num_hashes[kind])
    rates: dict[str, list[float]] = {}
    with Miner() as miner:
        sides: dict[str, Callable[[Job], bytes | None]] = {
            _BARE: search_bare,
            "search": lambda job: search_nonce(job.kind, job.seal, job.difficulty),
            "miner": lambda job: _mine(miner, job),
            "miner, busy": lambda job: _while_busy(lambda: _mine(miner, job)),
            "thread, busy": lambda job: _while_busy(lambda: _search_in_thread(job)),
        }
        for turn in range(plan.turns + 1):
            report(f"mining: {kind}, turn {turn} of {plan.turns}")
            for name, side in sides.items():
                start = time.perf_counter()
                found = side(job)
                rate = job.num_hashes / (time.perf_counter() - start)
                assert found == job.nonce
                if turn > 0:  # the first is to warm up
                    rates.setdefault(name, []).append(rate)
    asked = {"search": ASKED_RATIO[kind], "miner": ASKED_RATIO[kind]}
    return [
        RateRow(
            work=str(kind),
            side=name,
            hashes_per_s=median(found),
            of_bare=median(rate / bare for rate, bare in zip(found, rates[_BARE], strict=True)),
            asked=asked.get(name),
        )
        for name, found in rates.items()
    ]


def _measure_stops(kind: WorkKind, plan: Plan, report: Report) -> list[StopRow]:
    rows = []
    surroundings = {"nothing": _idle, "owner busy": _busy_thread, "all cores busy": _busy_cores}
    with Miner() as miner:
        _stop(miner, kind, 0, plan.search_s)  # until its process is up
        for name, surrounding in surroundings.items():
            report(f"mining: {kind}, {plan.stops} stops, {name}")
            with surrounding():
                stops = [_stop(miner, kind, number, plan.search_s) for number in range(plan.stops)]
            times_ms = [stop.time_ms for stop in stops]
            rows.append(
                StopRow(
                    work=str(kind),
                    meanwhile=name,
                    stops=plan.stops,
                    median_ms=median(times_ms),
                    percent_99_ms=quantiles(times_ms, n=100, method="inclusive")[-1],
                    most_ms=max(times_ms),
                    most_worked_ms=max(stop.worked_ms for stop in stops),
                    asked_ms=ASKED_STOP_MS,
                )
            )
    return rows


@dataclass(frozen=True)
class _Stop:
    time_ms: float
    worked_ms: float


def _stop(miner: Miner, kind: WorkKind, number: int, search_s: float) -> _Stop:
    miner.start(kind, number.to_bytes(32, "big"), _ENDLESS, print)
    time.sleep(search_s)
    worked_before_ns = _worked_ns(miner.process_id)
    told_ns = time.monotonic_ns()
    miner.stop()
    assert miner.wait_idle(_WAIT_S)
    worked_ns = _worked_ns(miner.process_id) - worked_before_ns
    return _Stop((miner.idle_since_ns - told_ns) / 1e6, worked_ns / 1e6)


def _worked_ns(process_id: int) -> int:
    """How long the cores have worked for another process (ns); Linux only."""
    return time.clock_gettime_ns(~process_id << 3 | 2)  # the process's clock, as clock_getcpuclockid(3) makes it


def _mine(miner: Miner, job: Job) -> bytes:
    found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    miner.start(job.kind, job.seal, job.difficulty, found.put)
    return found.get(timeout=_WAIT_S)


def _search_in_thread(job: Job) -> bytes | None:
    found: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(search_nonce(job.kind, job.seal, job.difficulty))).start()
    return found.get(timeout=_WAIT_S)


def _while_busy(action: Callable[[], bytes | None]) -> bytes | None:
    with _busy_thread():
        return action()


@contextmanager
def _idle() -> Iterator[None]:
    yield


@contextmanager
def _busy_thread() -> Iterator[None]:
    """A thread of this process computes in Python."""
    is_over = False

    def compute() -> None:
        number = 0
        while not is_over:
            number += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        is_over = True
        thread.join()


@contextmanager
def _busy_cores() -> Iterator[None]:
    """As many processes as there are cores compute."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
