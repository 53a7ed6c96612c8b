"""Requests to the worker process, which imports the heavy modules that the server must not.

These are solvers, the environment, Parquet and models. The worker answers with the pages' documents.
"""

import threading
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np

from bdfl.explorer import BadRequest, Busy, NotHere
from bdfl.explorer.documents import WhatIfSettings
from bdfl.processes import BrokenMessage, ChildEnded, ChildProcess
from bdfl.scheduling.problem import Decision, RoundProblem

MAX_DRAWN = 10_000  # rounds of a scenario that are drawn again to find the problem of the last one
PATIENCE_S = 10.0  # for an answer
_START_S = 60.0  # to import everything
_MAX_WAITING = 4


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the worker; scenarios are paths of files, chains those of folders."""


class FindPositions(Request, frozen=True, tag=True):
    """Request for the positions of a round, as `Positions`."""

    scenario: str
    round: int


class Positions(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of clients and access points in a round, and the links between them."""

    position_m: list[tuple[float, float]]
    access_point_m: list[tuple[float, float]]
    access_point: list[int]  # that serves each client
    links: list[tuple[int, int]]  # clients first, then access points


class DrawProblem(Request, frozen=True, tag=True):
    """Request for the `RoundProblem` drawn for a round of a scenario; its queues are empty."""

    scenario: str
    round: int


class SolveAgain(Request, frozen=True, tag=True):
    """Request for the `WhatIfDocument` of a round's recorded problem and decision."""

    height: int
    is_next: bool
    problem: RoundProblem
    recorded: Decision | None
    settings: WhatIfSettings


class TraceModel(Request, frozen=True, tag=True):
    """Request for the `ModelDocument` of a height, without the accuracies."""

    chain: str
    height: int
    without: int | None
    other: int | None


class VerifyChain(Request, frozen=True, tag=True):
    """Request for a `VerifyDocument`; verification starts unless running or done, and again if the chain has grown."""

    chain: str


class FindFrontier(Request, frozen=True, tag=True):
    """Request for the `FrontierDocument` of whole runs of a scenario; they start unless running or done."""

    scenario: str


class FindIntervals(Request, frozen=True, tag=True):
    """Request for means of lists of differences, each with half its 95 % interval: `list[tuple[float, float]]`."""

    differences: list[list[float]]


class FindMining(Request, frozen=True, tag=True):
    """Request for the mining time (s) of a round in a run with sampled mining."""

    scenario: str
    round: int
    mining_hz: list[float]
    attempt: int
    proposer: int


class SplitRecord(Request, frozen=True, tag=True):
    """Request to write the columns of a record folder into `into`, one file each; answered by `RecordFacts`."""

    folder: str
    into: str


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a record that are no columns."""

    scenario: str
    scheduler: str
    tradeoff: float
    rates: list[float]
    samples: list[int]


AnyRequest: TypeAlias = (
    FindPositions
    | DrawProblem
    | SolveAgain
    | TraceModel
    | VerifyChain
    | FindFrontier
    | FindIntervals
    | FindMining
    | SplitRecord
)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request, or an error."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    error: Literal["NotHere", "BadRequest", "Busy"] | None = None
    reason: str = ""


def _encode_array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(type(value))


def decode_array(kind: Any, value: object) -> object:
    """Return an array of the annotated type, such as `NDArray[np.float64]`, from a list."""
    array = np.array(value, dtype=get_args(get_args(kind)[1])[0])
    array.setflags(write=False)
    return array


ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_ERRORS = {"NotHere": NotHere, "BadRequest": BadRequest, "Busy": Busy}
_Answer = TypeVar("_Answer")


class WorkerClient:
    """Client of the worker process, which starts on first use: one request at a time, few may wait."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(_MAX_WAITING)
        self._child: ChildProcess | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None before its first use."""
        return None if self._child is None else self._child.pid

    def ask(self, request: AnyRequest, answer: type[_Answer], patience_s: float = PATIENCE_S) -> _Answer:
        """Return the worker's answer; raise `NotHere`, `BadRequest`, or `Busy` if it fails or is late."""
        if not self._places.acquire(blocking=False):
            raise Busy("too many questions wait for an answer; try again in a moment")
        try:
            if not self._turn.acquire(timeout=patience_s):
                raise Busy("the answers to others take too long; try again in a moment")
            try:
                reply = self._exchange(msgspec.Raw(ENCODER.encode(request)), patience_s)
            finally:
                self._turn.release()
        finally:
            self._places.release()
        if reply.error is not None:
            raise _ERRORS[reply.error](reply.reason)
        return msgspec.msgpack.decode(reply.answer, type=answer, dec_hook=decode_array)

    def close(self) -> None:
        """Kill the worker; waiting callers get `Busy`."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._turn:
            self._end()

    def _exchange(self, request: msgspec.Raw, patience_s: float) -> Reply:
        try:
            return self._running().request(request, _REPLIES, patience_s)
        except TimeoutError:  # a subclass of OSError
            self._end()
            raise Busy(f"no answer within {patience_s:g} s") from None
        except (OSError, ChildEnded, BrokenMessage):
            self._end()
            raise Busy("the process that works this out ended; it is started again with the next question") from None

    def _running(self) -> ChildProcess:
        """Return the process, started again if it has ended."""
        if self._is_closed:
            raise ChildEnded("the explorer is closed")
        if self._child is None or not self._child.is_up:
            self._end()
            # more threads gain nothing on small problems
            self._child = ChildProcess("bdfl.explorer.worker", threads=1, is_quiet=True)
            self._child.wait_ready(_START_S)
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()
