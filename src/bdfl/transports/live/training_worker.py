"""The training process: holds a member's data and model and carries out orders one at a time.

A thread reads the orders, so that work can be interrupted: an exception is raised in the main thread.
"""

import _thread
import math
import os
import queue
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from types import FrameType
from typing import TypeVar

import msgspec
import numpy as np

from bdfl.errors import BdflError, one_line, require
from bdfl.learning.attacks import poison_labels, poison_results
from bdfl.learning.data import load_data
from bdfl.learning.dataset import BadData
from bdfl.learning.flower_trainer import Beginning, FlowerLocalTrainer, FlowerTask, rehearse, validate_examples
from bdfl.learning.partition import draw_partition
from bdfl.learning.privacy_accounting import spent_micro
from bdfl.learning.sgd import Samples
from bdfl.learning.trainer import BlockTask, LocalTrainer, LoopTrainer, Material, gather_material
from bdfl.learning.training import NAN, InvalidTraining, LocalResult, Outcome
from bdfl.learning.weights import InvalidWeights, Vector, decode_weights, encode_weights
from bdfl.processes import Channel, open_parent_channel
from bdfl.scenario import Engine, Scenario, parse_scenario
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


# Local training of one client on its own partition.

Task = TypeVar("Task")
Result = TypeVar("Result")


class ShareTrainer:
    """Trains one client on its own data, bit-identical to a run that holds all clients' data."""

    def __init__(self, scenario: Scenario, client: int, data: str, model: bytes = b"") -> None:
        """Try the agreed `model` on a batch; raises a `BdflError` if the data do not fit it."""
        # not worth vectorising for one client; engines agree up to rounding
        learning = msgspec.structs.replace(scenario.learning, engine=Engine.LOOP)
        self._scenario = msgspec.structs.replace(scenario, learning=learning)
        self._client = client
        self._data = data
        self._is_dealt = data == DEALT
        self._material = _dealt_share(scenario, client) if self._is_dealt else _own_share(scenario, client, data)
        self._bench = LocalTrainer(self._scenario, self._material, is_secret=True)
        self._trainer = LoopTrainer(self._bench, self._map)
        if model:
            self._rehearse(decode_weights(model, self._trainer.layout))

    @property
    def ready(self) -> Ready:
        material, layout = self._material, self._trainer.layout
        counts = np.bincount(material.train_labels, minlength=material.num_labels)
        return Ready(
            samples=len(material.train_labels),
            label_counts=tuple(int(count) for count in counts),
            test_samples=len(material.test_labels),
            num_parameters=layout.num_parameters,
            model_size=len(encode_weights(self._trainer.initial_weights(), layout)),
        )

    def train(self, order: TrainOrder) -> Trained:
        layout = self._trainer.layout
        start = decode_weights(order.model, layout) if order.model else self._trainer.initial_weights()
        begun_ns = time.monotonic_ns()
        result = self._trainer.train(start, order.round, [self._client])[0]
        duration_ns = time.monotonic_ns() - begun_ns
        sent = self._bend(start, order.round, result).weights
        return Trained(
            number=order.number,
            model=None if sent is None else encode_weights(sent, layout),
            loss=result.loss,
            num_samples=self._count_samples(order.round, result.num_steps),
            duration_ns=duration_ns,
            epsilon_micro=self._spent_micro(order.rounds_before + 1),
        )

    def _rehearse(self, weights: Vector) -> None:
        """Raise `BadData` unless the first batch has a finite loss and gradient with these weights."""
        num_samples = min(self._scenario.learning.batch, len(self._material.train_labels))
        if not num_samples:  # a client's partition may be empty
            return
        found = self._bench.differentiate(BlockTask(weights, range(num_samples)))
        if not (math.isfinite(found.loss_sum) and np.isfinite(found.gradient_sum).all()):
            loss = f"loss {found.loss_sum / num_samples:g} in the first batch"
            raise BadData(self._data, loss, "a finite loss and gradient with the agreed model: scale the inputs")

    def _count_samples(self, round: int, num_steps: int) -> int:
        """Return the samples seen in `num_steps` steps; the expected number under DP-SGD, whose draws are secret."""
        if self._scenario.privacy.is_on:
            mechanism = self._bench.mechanism(self._client)
            return num_steps * min(mechanism.batch, mechanism.samples)
        return sum(map(len, self._bench.batches(round, self._client)[:num_steps]))

    def _spent_micro(self, num_rounds: int) -> int:
        """Return the epsilon after `num_rounds` of private training, in 1e-6; 0 if training is not private."""
        return spent_micro(self._bench.mechanism(self._client), num_rounds) if self._scenario.privacy.is_on else 0

    def judge(self, order: JudgeOrder) -> Judged:
        found = self._trainer.evaluate(decode_weights(order.model, self._trainer.layout))
        return Judged(order.number, found.accuracy, found.loss)

    def _bend(self, start: Vector, round: int, result: LocalResult) -> LocalResult:
        """Return the update to send; with dealt data, the scenario may have this client poison it."""
        return poison_results(self._scenario, start, round, [result])[0] if self._is_dealt else result

    def _map(self, function: Callable[[LocalTrainer, Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        return (function(self._bench, task) for task in tasks)


def _dealt_share(scenario: Scenario, client: int) -> Material:
    """Load the client's partition of the scenario's data; inputs are normalised over all clients."""
    if client >= scenario.clients.count:
        found = f"client {client} of {scenario.clients.count}"
        raise BadData(scenario.data.source, found, "a client that the scenario deals data to; else give your own")
    data = load_data(scenario.data)
    partition = draw_partition(scenario, data.train_labels, data.num_labels)
    data = poison_labels(scenario, data, partition)
    held = partition.indices[client]
    whole = gather_material(scenario, data, partition.indices)
    return replace(
        whole,
        train_inputs=whole.train_inputs[held],
        train_labels=whole.train_labels[held],
        indices=_only(client, len(held)),
    )


def _own_share(scenario: Scenario, client: int, source: str) -> Material:
    """Load all of a member's own data; it has `partition.num_labels` labels, some perhaps without samples."""
    data = load_data(msgspec.structs.replace(scenario.data, source=source))
    num_labels = scenario.partition.num_labels
    if data.num_labels > num_labels:
        expected = f"at most {num_labels}, as partition.num_labels says: 0 to {num_labels - 1}"
        raise BadData(source, f"{data.num_labels} labels", expected)
    material = gather_material(scenario, data, _only(client, len(data.train_labels)))
    return replace(material, num_labels=num_labels)


def _only(client: int, num_samples: int) -> tuple[Samples, ...]:
    """Return the sample indices by client, where only `client` holds any."""
    nothing = np.zeros(0, np.int64)
    return (*(nothing for _ in range(client)), np.arange(num_samples))


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
            self._beginning = Beginning(form, decode_weights(model, form.layout))
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
