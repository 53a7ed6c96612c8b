"""Client of the worker process: its requests, replies and supervision.

Messages between the explorer's server and its worker process: MessagePack after four bytes of length.

The worker imports heavy modules that the server must not: solvers, the environment, Parquet, models.
"""

import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from bdfl.explorer.documents import VerifyFailure
from bdfl.explorer.errors import Busy, NotHere
from bdfl.processes import THREAD_VARIABLES
from bdfl.scheduling.problem import RoundProblem
from bdfl.types import PerClient

LENGTH_SIZE = 4
MAX_FRAME = 2**28  # bytes
MAX_DRAWN = 10_000  # rounds of a scenario that are drawn again to find the problem of the last one


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the worker."""


class Positions(Order, frozen=True, tag=True):
    """Request for the positions of clients and access points in a round, and the links between them."""

    scenario: str  # the file's path
    round: int


class Places(msgspec.Struct, frozen=True, kw_only=True):
    position_m: list[tuple[float, float]]
    access_point_m: list[tuple[float, float]]
    access_point: list[int]  # that serves each client
    links: list[tuple[int, int]]  # clients first, then access points


class ProblemOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A `RoundProblem`, field by field."""

    min_clients: int
    tradeoff: float
    work_cycles: float
    bandwidth_hz: float
    noise_w_per_hz: float
    overhead_s: float
    round: int
    seed: int
    queue: list[float]
    cycles: list[float]
    capacitance: list[float]
    energy_budget_j: list[float]
    gain: list[float]
    power_w: list[float]
    power_max_w: list[float]
    model_bits: list[float]
    cpu_max_hz: list[float]
    mining_max_hz: list[float]
    initial_cpu_hz: list[float]
    initial_mining_hz: list[float]
    participation_rate: list[float]
    reachable: list[bool]

    @classmethod
    def of(cls, problem: RoundProblem) -> "ProblemOrder":
        """Convert a problem for encoding."""
        values = {name: getattr(problem, name) for name in cls.__struct_fields__}
        return cls(
            **{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        )

    def to_problem(self, queue: PerClient | None = None) -> RoundProblem:
        """Return the problem, with other queues if given."""
        values: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, list):
                value = np.array(value, dtype=np.bool_ if name == "reachable" else np.float64)
                value.setflags(write=False)
            values[name] = value
        problem = RoundProblem(**values)  # type: ignore[arg-type]
        return problem if queue is None else replace(problem, queue=queue)


class DrawProblem(Order, frozen=True, tag=True):
    """Request for the problem drawn for a round of a scenario; its queues are empty."""

    scenario: str
    round: int


class DecisionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded `Decision`."""

    selected: list[bool]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    reason: str | None


class Solve(Order, frozen=True, tag=True):
    """Request for these schedulers' decisions for a problem, and their decisions over V."""

    problem: ProblemOrder
    recorded_problem: ProblemOrder
    recorded: DecisionOrder | None
    schedulers: list[str]
    tradeoffs: list[float]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: str
    status: str
    selected: list[int]
    delay_s: float
    training_s: float
    upload_s: float
    mining_s: float
    objective: float | None
    gap: float | None
    energy_j: list[float]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    seconds: float
    reason: str | None
    served_queue: float
    tradeoff: float
    bound: float | None


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    recorded: Choice | None
    choices: list[Choice]
    frontier: list[Choice]


class Lineage(Order, frozen=True, tag=True):
    """Request for a model's contributors, lineage, and distances to another model and to itself without a client."""

    chain: str  # the folder's path
    height: int
    without: int | None
    other: int | None


class Contributor(msgspec.Struct, frozen=True, kw_only=True):
    client: int
    samples: int | None
    weight: float | None
    update: str | None
    since: int | None
    last: int | None
    num_blocks: int


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    height: int
    digest: str
    clients: list[int]
    is_stored: bool
    distance: float | None


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    shape: list[int]
    norm: float
    other_norm: float
    distance: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    distance: float | None
    relative: float | None
    tensors: list[Tensor]
    why: str | None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    distance: float | None
    relative: float | None
    changed_in: list[int]
    why: str | None


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    made_in: int
    model: str
    rule: str
    is_stored: bool
    is_trusted: bool  # the node that stored the chain never recomputed it
    contributors: list[Contributor]
    parents: list[Parent]
    compared: Compared | None
    left_out: LeftOut | None


class Verify(Order, frozen=True, tag=True):
    """Request to verify a chain; started unless running or done, and again if the chain has grown since."""

    chain: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    is_done: bool
    height: int  # blocks verified so far
    is_valid: bool | None
    num_signatures: int
    failure: VerifyFailure | None
    why: str | None  # why it could not be verified
    seconds: float


class Sweep(Order, frozen=True, tag=True):
    """Request for delay against shortfall of whole runs over V; started unless running or done."""

    scenario: str


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: str
    tradeoff: float
    delay_s: float
    delay_half_width_s: float
    shortfall: float
    shortfall_half_width: float


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    is_done: bool
    rounds: int
    points: list[SweepPoint]
    why: str | None


class Pair(Order, frozen=True, tag=True):
    """Request for means of lists of differences, with half their 95 % intervals."""

    differences: list[list[float]]


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    means: list[float]
    half_widths: list[float]


class MinedIn(Order, frozen=True, tag=True):
    """Request for the mining time of a round in a run with sampled mining."""

    scenario: str
    round: int
    mining_hz: list[float]
    attempt: int
    proposer: int


class Mined(msgspec.Struct, frozen=True, kw_only=True):
    mining_s: float


class ReadRecord(Order, frozen=True, tag=True):
    """Request to write the columns of a record folder into `into`, one file each."""

    folder: str
    into: str


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    scheduler: str
    tradeoff: float
    num_rounds: int
    rates: list[float]
    samples: list[int]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error instead of an answer."""

    what: str
    is_missing: bool  # the requested thing does not exist; else the request failed


AnyOrder: TypeAlias = Positions | Solve | DrawProblem | Lineage | Verify | Sweep | Pair | MinedIn | ReadRecord


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer or a refusal."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    refusal: Refusal | None = None


# Client of the worker process, which is started on first use and killed after a timeout.

PATIENCE_S = 10.0  # for an answer
_START_S = 60.0  # to import everything
_MAX_WAITING = 4
_END_S = 2.0

_Answer = TypeVar("_Answer")
_ENCODER = msgspec.msgpack.Encoder()
_REPLY = msgspec.msgpack.Decoder(Reply)


class Helper:
    """Client of the worker process: one request at a time, few may wait."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(_MAX_WAITING)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None before its first use."""
        return None if self._process is None else self._process.pid

    def ask(self, order: AnyOrder, answer: type[_Answer], patience_s: float | None = None) -> _Answer:
        """Return the worker's answer; raise `NotHere` if something is missing, `Busy` if it fails or is late."""
        patience_s = self._patience_s if patience_s is None else patience_s
        if not self._places.acquire(blocking=False):
            raise Busy("too many questions wait for an answer; try again in a moment")
        try:
            if not self._turn.acquire(timeout=patience_s):
                raise Busy("the answers to others take too long; try again in a moment")
            try:
                reply = self._exchange(_ENCODER.encode(order), patience_s)
            finally:
                self._turn.release()
        finally:
            self._places.release()
        if reply.refusal is not None:
            raise (NotHere if reply.refusal.is_missing else Busy)(reply.refusal.what)
        return msgspec.msgpack.decode(reply.answer, type=answer)

    def close(self) -> None:
        """Kill the worker; waiting callers get `Busy`."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._end()

    def _exchange(self, order: bytes, patience_s: float) -> Reply:
        try:
            process = self._start()
            assert process.stdin is not None
            process.stdin.write(len(order).to_bytes(LENGTH_SIZE, "big") + order)
            process.stdin.flush()
            return _REPLY.decode(self._read(process, patience_s))
        except TimeoutError:  # a subclass of OSError
            self._end()
            raise Busy(f"no answer within {patience_s:g} s") from None
        except (OSError, EOFError):
            self._end()
            raise Busy("the process that works this out ended; it is started again with the next question") from None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if self._is_closed:
            raise EOFError
        environment = dict.fromkeys(THREAD_VARIABLES, "1") | os.environ  # more threads gain nothing on small problems
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bdfl.explorer.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._read(self._process, _START_S)  # an empty frame: the worker is ready
        return self._process

    def _read(self, process: subprocess.Popen[bytes], patience_s: float) -> bytes:
        until_s = time.monotonic() + patience_s
        size = int.from_bytes(_read_bytes(process, LENGTH_SIZE, until_s), "big")
        if size > MAX_FRAME:
            raise EOFError
        return _read_bytes(process, size, until_s)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # unsent bytes are lost
        process.wait(_END_S)


def _read_bytes(process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    parts: list[bytes] = []
    while size:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(descriptor, min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
