"""Client of the training process, and its messages."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from bdfl.errors import one_line
from bdfl.learning.training import TrainingFailed
from bdfl.processes import BrokenMessage, ChildProcess
from bdfl.scenario import Scenario, dump_scenario

# IPC messages between a node and its training process.

DEALT = "dealt"  # instead of a path: the client's partition of the scenario's data
MAX_BYTES = 2**34  # of a message: a model


# Orders


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """Configuration of the process; sent once, first."""

    scenario: str  # TOML
    client: int
    data: str  # `DEALT`, or a file or folder with the client's data only
    model: bytes = b""  # safetensors: the agreed initial model, which data must fit; empty: unknown
    label_counts: tuple[int, ...] = ()  # of the member's card; empty: no card yet
    personal: str = ""  # the folder of its personal layers; empty: they are not kept


class TrainOrder(msgspec.Struct, frozen=True, array_like=True, tag="train"):
    """Order to train the client in a round, from this model."""

    number: int
    round: int
    model: bytes  # safetensors; empty: the initial model, and a trial: what it learns is not kept
    rounds_before: int = 0  # in which the client may have spent epsilon


class JudgeOrder(msgspec.Struct, frozen=True, array_like=True, tag="judge"):
    """Order to evaluate a model on the test data."""

    number: int
    model: bytes


class StopOrder(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Order to stop this training and all before it."""

    number: int


Order: TypeAlias = Setup | TrainOrder | JudgeOrder | StopOrder


# Answers


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The process has loaded its data and model, of these sizes."""

    samples: int
    label_counts: tuple[int, ...]
    test_samples: int
    num_parameters: int
    model_size: int  # bytes


class Unready(msgspec.Struct, frozen=True, array_like=True, tag="unready"):
    """The process can never train."""

    reason: str


class Trained(msgspec.Struct, frozen=True, array_like=True, tag="trained"):
    """Result of a finished training; no model if it diverged or there are no samples."""

    number: int
    model: bytes | None
    loss: float  # mean over the local steps; NaN if none
    num_samples: int  # seen in all mini-batches
    duration_ns: int  # of training alone
    epsilon_micro: int = 0  # spent so far; 0: not private


class Judged(msgspec.Struct, frozen=True, array_like=True, tag="judged"):
    """Accuracy and loss of a model on the test data."""

    number: int
    accuracy: float
    loss: float


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """A training was stopped."""

    number: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An order failed."""

    number: int
    reason: str


Answer: TypeAlias = Ready | Unready | Trained | Judged | Stopped | Failed

# Module-level: creating decoders concurrently in threads crashes the interpreter (msgspec 0.22).
ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


# Client and supervisor of the training process: it starts early, stops on demand and is restarted if it dies.

OnTrained: TypeAlias = Callable[[Trained | Failed], None]
OnJudged: TypeAlias = Callable[[Judged | Failed], None]

_WORKER: tuple[str, ...] = ("bdfl.transports.live.training_worker",)
_MAX_TRIES = 2  # of an order during which the process dies
_CLOSE_WAIT_S = 2.0
_RETRY_WAIT_S = 5.0  # after a failed spawn


@dataclass(eq=False)
class _Task:
    """An unanswered order."""

    order: TrainOrder | JudgeOrder
    answer: Callable[[Trained | Judged | Failed], None]
    num_tries: int = 0


class TrainingProcess(AbstractContextManager["TrainingProcess"]):
    """Trains one client in a child process, which also ends with its parent. Close it after use.

    Only `wait_ready` and `close` block. Callbacks run in another thread and must return quickly.
    """

    def __init__(
        self,
        scenario: Scenario,
        client: int,
        data: str = DEALT,
        *,
        model: bytes = b"",
        label_counts: tuple[int, ...] = (),
        personal: Path | None = None,
    ) -> None:
        """`data` is the client's partition of the scenario's data (`DEALT`), or a file or folder of its own.

        The data must fit the agreed `model` and the `label_counts` of the member's card, if given. `personal` is the
        folder of its personal layers.
        """
        self._setup = Setup(dump_scenario(scenario), client, data, model, label_counts, str(personal or ""))
        self._state = threading.Condition()
        self._tasks: dict[int, _Task] = {}
        self._number = 0
        self._ready: Ready | None = None
        self._failure: str | None = None  # permanent error
        self._trouble: str | None = None  # error of the last spawn
        self._is_closed = False
        self._child: ChildProcess | None = None
        self.num_restarts = 0
        self._keeper = threading.Thread(target=self._keep, name="training", daemon=True)
        self._keeper.start()

    def train(self, model: bytes, round: int, on_done: OnTrained, rounds_before: Sequence[int] = ()) -> None:
        """Train the client in a round from a model (empty: the initial one); replaces any training in progress.

        `on_done` is called once, unless the training is stopped. `rounds_before` counts each client's earlier scheduled
        rounds, which have spent epsilon if training is private.
        """
        self.stop()
        client = self._setup.client
        before = rounds_before[client] if client < len(rounds_before) else 0
        self._order(lambda number: TrainOrder(number, round, model, before), on_done)

    def evaluate(self, model: bytes, on_done: OnJudged) -> None:
        """Evaluate a model on the test data after pending trainings."""
        self._order(lambda number: JudgeOrder(number, model), on_done)

    def stop(self) -> None:
        """Interrupt the training in progress; the process stays usable.

        A result already on its way may still arrive.
        """
        with self._state:
            for number in [number for number, task in self._tasks.items() if isinstance(task.order, TrainOrder)]:
                del self._tasks[number]
                self._post(StopOrder(number))

    def wait_ready(self, timeout_s: float) -> Ready:
        """Wait for the process and return its data sizes; raises `TrainingFailed` on failure or timeout."""
        with self._state:
            self._state.wait_for(lambda: self._ready or self._failure or self._is_closed, timeout_s)
            if self._ready is None:
                why = self._failure or self._trouble
                raise TrainingFailed(why or f"the training process is not ready after {timeout_s:g} s")
            return self._ready

    @property
    def failure(self) -> str | None:
        """The permanent error, if any."""
        return self._failure

    @property
    def process_id(self) -> int | None:
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """Terminate the process, even during a training; no callback is called from now on."""
        with self._state:
            self._is_closed = True
            self._tasks.clear()
            if self._child is not None:
                self._child.end_input()
            self._state.notify_all()
        if self._keeper is threading.current_thread():
            return
        self._keeper.join(_CLOSE_WAIT_S)
        while self._keeper.is_alive():  # it hangs
            if self._child is not None:
                self._child.kill()
            self._keeper.join(_CLOSE_WAIT_S)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, make: Callable[[int], TrainOrder | JudgeOrder], answer: Callable[..., None]) -> None:
        with self._state:
            self._number += 1
            task = _Task(make(self._number), answer)
            if self._failure is None and not self._is_closed:
                self._tasks[self._number] = task
                task.num_tries += 1
                self._post(task.order)
                self._state.notify_all()
                return
        answer(Failed(task.order.number, self._failure or "the training process is closed"))

    def _post(self, order: Order) -> None:
        """Send an order; without a process, the next one gets all that are unanswered."""
        if self._child is not None:
            self._child.post(order)

    # Supervision of the process

    def _keep(self) -> None:
        """Supervise the process until closed; restart it if it dies: at once if it was ready, else with the next order.

        If it cannot be spawned, for lack of memory or files, orders fail until a retry succeeds.
        """
        while True:
            try:
                with self._state:
                    if self._is_closed:
                        return
                    child = self._begin()
            except OSError as error:
                self._trouble = f"no training process: {error.strerror or one_line(error)}"
                self._fail_all(self._trouble)
                with self._state:
                    self._state.wait_for(lambda: self._is_closed, _RETRY_WAIT_S)
                continue
            self._trouble = None
            was_ready = self._listen(child)
            child.end(_CLOSE_WAIT_S)
            for task in self._take_back():
                task.answer(Failed(task.order.number, "the training process died over it, twice"))
            if not was_ready:
                with self._state:
                    self._state.wait_for(lambda: self._tasks or self._is_closed)

    def _begin(self) -> ChildProcess:
        child = ChildProcess(*_WORKER, max_bytes=MAX_BYTES)
        self.num_restarts += self._child is not None
        self._child = child
        child.post(self._setup)
        for task in self._tasks.values():
            child.post(task.order)
        return child

    def _listen(self, child: ChildProcess) -> bool:
        """Dispatch answers until the process ends; return whether it was ever ready."""
        was_ready = False
        with suppress(BrokenMessage):
            for said in child.listen(ANSWERS):
                match said:
                    case Ready():
                        was_ready = True
                        with self._state:
                            self._ready = said
                            self._state.notify_all()
                    case Unready(reason):
                        self._give_up(reason)
                    case Trained() | Judged() | Failed():
                        with self._state:
                            task = self._tasks.pop(said.number, None)
                        if task is not None:
                            task.answer(said)
                    case Stopped():
                        pass
        return was_ready

    def _give_up(self, reason: str) -> None:
        with self._state:
            self._failure = reason
            self._state.notify_all()
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        """Fail all pending orders."""
        with self._state:
            tasks = list(self._tasks.values())
            self._tasks.clear()
        for task in tasks:
            task.answer(Failed(task.order.number, reason))

    def _take_back(self) -> list[_Task]:
        """Count a retry of each pending order; remove and return those out of tries."""
        with self._state:
            given_up = [task for task in self._tasks.values() if task.num_tries >= _MAX_TRIES]
            for task in given_up:
                del self._tasks[task.order.number]
            for task in self._tasks.values():
                task.num_tries += 1
            return given_up
