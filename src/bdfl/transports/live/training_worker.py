"""The training process: holds a member's data and model and carries out orders one at a time.

A thread reads the orders, so that work can be interrupted: an exception is raised in the main thread.
"""

import _thread
import os
import queue
import signal
import sys
import threading
import tomllib
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

from bdfl.errors import BdflError, one_line, require
from bdfl.learning.data_set import BadData
from bdfl.learning.weights import InvalidWeights
from bdfl.scenario import parse_scenario
from bdfl.transports.live.training_orders import (
    DEALT,
    ORDERS,
    Answer,
    Failed,
    JudgeOrder,
    Order,
    Ready,
    Setup,
    StopOrder,
    Stopped,
    TrainOrder,
    Unready,
    read_piece,
    write_piece,
)

if TYPE_CHECKING:
    from bdfl.transports.live.flower_share import FlowerShare
    from bdfl.transports.live.share_trainer import ShareTrainer


class _Left(BaseException):
    """Interrupts the work in progress; a BaseException, so that no `except Exception` catches it."""


class _Desk:
    """Priority queue of orders. Training preempts evaluation, which then restarts later."""

    def __init__(self, orders: BinaryIO) -> None:
        self._orders = orders
        self._waiting: queue.PriorityQueue[tuple[int, int, Order]] = queue.PriorityQueue()
        self._current = 0  # the interruptible order, 0: none
        self._is_judging = False
        self._stopped = 0  # this order and all before are stopped
        self._wanted = 0  # the last training ordered
        self._begun = 0  # the last training begun
        signal.signal(signal.SIGINT, self._leave)  # Ctrl-C is handled by the parent, which closes this process
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def next_order(self) -> Order:
        return self._waiting.get()[-1]

    def train(self, number: int, do: Callable[[], Answer]) -> Answer:
        """Return the result of `do`, or `Stopped` if it was interrupted."""
        self._begun = number
        return self._work(number, do) or Stopped(number)

    def judge(self, order: JudgeOrder, do: Callable[[], Answer]) -> Answer | None:
        """Return the result of `do`; None if a training preempted it and the order was queued again."""
        self._is_judging = True
        try:
            answer = self._work(order.number, do)
        finally:
            self._is_judging = False
        if answer is None:
            self._put(order)
        return answer

    def _work(self, number: int, do: Callable[[], Answer]) -> Answer | None:
        try:
            try:
                self._current = number
                return None if self._is_to_be_left() else do()
            finally:
                self._current = 0
        except _Left:
            return None

    def _read(self) -> None:
        with suppress(OSError, BdflError):
            while (order := read_piece(self._orders, ORDERS)) is not None:
                if isinstance(order, StopOrder):
                    self._stopped = max(self._stopped, order.number)
                else:
                    self._put(order)
                if isinstance(order, TrainOrder):
                    self._wanted = order.number
                if self._current:
                    _thread.interrupt_main(signal.SIGINT)
        os._exit(0)  # end of orders: abandon any computation

    def _put(self, order: Order) -> None:
        match order:
            case Setup():
                self._waiting.put((0, 0, order))
            case TrainOrder(number):
                self._waiting.put((1, number, order))
            case JudgeOrder(number) | StopOrder(number):
                self._waiting.put((2, number, order))

    def _is_to_be_left(self) -> bool:
        return self._begun < self._wanted if self._is_judging else self._current <= self._stopped

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Signal handler, in the main thread: raise `_Left` if the current order is to be interrupted."""
        if self._current and self._is_to_be_left():
            self._current = 0  # interrupt once
            raise _Left


def _serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Run the process until its orders end."""
    desk = _Desk(orders)
    setup = desk.next_order()
    if not isinstance(setup, Setup):
        raise RuntimeError(f"an order before the setup: {type(setup).__name__}")
    try:
        trainer = open_share(setup)
        write_piece(answers, trainer.ready)
    except (BdflError, OSError, MemoryError) as error:
        write_piece(answers, Unready(_reason(error)))
        return
    while True:
        answer = _obey(desk, trainer, desk.next_order())
        if answer is not None:
            write_piece(answers, answer)


def open_share(setup: Setup) -> "ShareTrainer | FlowerShare":
    """Open a member's data and try the agreed model on a batch. Cards, the doctor and nodes all use this check.

    Raises a `BdflError` if the data do not fit model, scenario or card.
    """
    try:
        share = _open(setup)
    except InvalidWeights as error:
        expected = "the agreed one: inputs of its shape, and the same code of the model"
        raise BadData(setup.data, f"another model: {error}", expected) from None
    _validate_counts(share.ready, setup)
    return share


def _open(setup: Setup) -> "ShareTrainer | FlowerShare":
    scenario = parse_scenario(tomllib.loads(setup.scenario))
    if scenario.learning.flower is not None:
        from bdfl.transports.live.flower_share import FlowerShare

        return FlowerShare(scenario, setup.client, setup.data, setup.model)
    require("training", "torch")
    from bdfl.transports.live.share_trainer import ShareTrainer

    return ShareTrainer(scenario, setup.client, setup.data, setup.model)


def _validate_counts(ready: Ready, setup: Setup) -> None:
    """Raise unless the data match the member's card: other members weight its updates by it."""
    counts = setup.label_counts
    if not counts:
        return
    if ready.samples != sum(counts):
        raise BadData(setup.data, f"{ready.samples} samples", f"{sum(counts)}, as this member's card says")
    if setup.data == DEALT or ready.label_counts == counts:  # a scenario may poison dealt labels
        return
    pairs = enumerate(zip_longest(ready.label_counts, counts, fillvalue=0))
    label, (found, said) = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
    raise BadData(setup.data, f"{found} samples of label {label}", f"{said}, as this member's card says")


def _obey(desk: _Desk, trainer: "ShareTrainer | FlowerShare", order: Order) -> Answer | None:
    number = 0
    try:
        match order:
            case TrainOrder(number):
                return desk.train(number, lambda: trainer.train(order))
            case JudgeOrder(number):
                return desk.judge(order, lambda: trainer.judge(order))
    except (BdflError, OSError) as error:
        return Failed(number, _reason(error))
    raise RuntimeError(f"an order for nobody: {type(order).__name__}")


def _reason(error: BaseException) -> str:
    return one_line(error) or type(error).__name__


def _main() -> None:
    # Output printed by user code must not mix with the answers.
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with suppress(BrokenPipeError):  # the parent is gone
        _serve(orders, answers)
    sys.stderr.flush()
    os._exit(0)  # the reading thread never ends


if __name__ == "__main__":
    _main()
