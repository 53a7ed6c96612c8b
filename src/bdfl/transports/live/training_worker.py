"""The training process: holds a member's data and model and carries out orders one at a time.

A thread reads the orders, so that work can be interrupted: an exception is raised in the main thread.
"""

import _thread
import os
import queue
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from types import FrameType
from typing import TYPE_CHECKING

from bdfl.errors import BdflError, one_line, require
from bdfl.learning.attacks import poison_results
from bdfl.learning.dataset import BadData
from bdfl.learning.flower_trainer import FlowerLocalTrainer, FlowerTask, InitialModel, rehearse, validate_examples
from bdfl.learning.training import NAN, InvalidTraining, Outcome
from bdfl.learning.weights import InvalidWeights, decode_weights, encode_weights
from bdfl.processes import Channel, open_parent_channel
from bdfl.scenario import Scenario, parse_scenario
from bdfl.transports.live.training_process import (
    DEALT,
    MAX_BYTES,
    ORDERS,
    Answer,
    Failed,
    Judged,
    JudgeOrder,
    Order,
    Ready,
    Setup,
    StopOrder,
    Stopped,
    Trained,
    TrainOrder,
    Unready,
)

if TYPE_CHECKING:
    from bdfl.transports.live.share_trainer import ShareTrainer


class _Interrupted(BaseException):
    """Interrupts the work in progress; a BaseException, so that no `except Exception` catches it."""


class _OrderQueue:
    """Priority queue of orders. Training preempts evaluation, which then restarts later."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
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
        except _Interrupted:
            return None

    def _read(self) -> None:
        with suppress(OSError, BdflError):
            while (order := self._channel.receive(ORDERS)) is not None:
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
        """Signal handler, in the main thread: raise `_Interrupted` if the current order is to be interrupted."""
        if self._current and self._is_to_be_left():
            self._current = 0  # interrupt once
            raise _Interrupted


def _serve(channel: Channel) -> None:
    """Run the process until its orders end."""
    orders = _OrderQueue(channel)
    setup = orders.next_order()
    if not isinstance(setup, Setup):
        raise RuntimeError(f"an order before the setup: {type(setup).__name__}")
    try:
        trainer = open_share(setup)
        channel.send(trainer.ready)
    except (BdflError, OSError, MemoryError) as error:
        channel.send(Unready(_reason(error)))
        return
    while True:
        answer = _obey(orders, trainer, orders.next_order())
        if answer is not None:
            channel.send(answer)


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
        return FlowerShare(scenario, setup.client, setup.data, setup.model)
    require("training", "torch")
    from bdfl.transports.live.share_trainer import ShareTrainer

    return ShareTrainer(scenario, setup.client, setup.data, setup.model, setup.personal)


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


def _obey(orders: _OrderQueue, trainer: "ShareTrainer | FlowerShare", order: Order) -> Answer | None:
    number = 0
    try:
        match order:
            case TrainOrder(number):
                return orders.train(number, lambda: trainer.train(order))
            case JudgeOrder(number):
                return orders.judge(order, lambda: trainer.judge(order))
    except (BdflError, OSError) as error:
        return Failed(number, _reason(error))
    raise RuntimeError(f"an order for nobody: {type(order).__name__}")


def _reason(error: BaseException) -> str:
    return one_line(error) or type(error).__name__


def _main() -> None:
    with suppress(BrokenPipeError):  # the parent is gone
        _serve(open_parent_channel(MAX_BYTES))
    sys.stderr.flush()
    os._exit(0)  # the reading thread never ends


# Local training of one member by its own Flower client.


class FlowerShare:
    """A member's Flower client, bit-identical to a simulation of all clients.

    It trains once at the start, the only way to learn its number of examples.
    """

    def __init__(self, scenario: Scenario, client: int, data: str, model: bytes = b"") -> None:
        """Try the agreed `model` on the client; raises a `BdflError` if it does not fit."""
        if data != DEALT:
            raise InvalidTraining(f"data: {data} given, none expected: a Flower client has its own")
        self._scenario = scenario
        self._client = client
        self._bench = FlowerLocalTrainer(scenario)
        self._beginning = self._bench.begin(client)
        if model:
            form = self._beginning.form
            self._beginning = InitialModel(form, decode_weights(model, form.layout))
        found = rehearse(self._bench, self._beginning, client)
        if model and found.result.outcome is Outcome.DIVERGED:
            raise InvalidTraining(f"learning.flower: {scenario.learning.flower} diverges with the agreed model")
        self._samples = found.num_examples

    @property
    def ready(self) -> Ready:
        layout = self._beginning.form.layout
        return Ready(
            samples=self._samples,
            label_counts=(self._samples,),
            test_samples=0,  # unknown before it evaluates
            num_parameters=layout.num_parameters,
            model_size=len(encode_weights(self._beginning.weights, layout)),
        )

    def train(self, order: TrainOrder) -> Trained:
        form = self._beginning.form
        start = decode_weights(order.model, form.layout) if order.model else self._beginning.weights
        if not self._samples:
            return Trained(number=order.number, model=None, loss=NAN, num_samples=0, duration_ns=0)
        begun_ns = time.monotonic_ns()
        found = self._bench.train(FlowerTask(form, start, order.round, self._client))
        duration_ns = time.monotonic_ns() - begun_ns
        validate_examples(found, self._samples)
        sent = poison_results(self._scenario, start, order.round, [found.result])[0].weights
        return Trained(
            number=order.number,
            model=None if sent is None else encode_weights(sent, form.layout),
            loss=found.result.loss,
            num_samples=self._samples,
            duration_ns=duration_ns,
        )

    def judge(self, order: JudgeOrder) -> Judged:
        """Evaluate a model on this client's own test data."""
        form = self._beginning.form
        found = self._bench.evaluate(FlowerTask(form, decode_weights(order.model, form.layout), 0, self._client))
        return Judged(order.number, NAN, NAN) if found is None else Judged(order.number, found.accuracy, found.loss)


if __name__ == "__main__":
    _main()
