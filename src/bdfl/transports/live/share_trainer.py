"""Local training of one client on its own data, in the training process; needs PyTorch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from bdfl.learning.attacks import poison_labels, poison_results
from bdfl.learning.data import load_data
from bdfl.learning.dataset import BadData
from bdfl.learning.partition import draw_partition
from bdfl.learning.personal import PersonalFolder
from bdfl.learning.privacy_accounting import spent_micro
from bdfl.learning.sgd import Samples
from bdfl.learning.trainer import BlockTask, LocalTrainer, LoopTrainer, TrainingArrays, gather_material
from bdfl.learning.training import NO_PERSONAL, LocalResult
from bdfl.learning.weights import Vector, decode_weights, encode_weights
from bdfl.scenario import Engine, Scenario
from bdfl.transports.live.training_process import DEALT, Judged, JudgeOrder, Ready, Trained, TrainOrder

Task = TypeVar("Task")
Result = TypeVar("Result")

_TRAININGS_KEPT = 2  # of personal layers: a round that is trained again starts from the training before


class ShareTrainer:
    """Trains one client on its own data, bit-identical to a run that holds all clients' data."""

    def __init__(self, scenario: Scenario, client: int, data: str, model: bytes = b"", personal: str = "") -> None:
        """Try the agreed `model` on a batch; raises a `BdflError` if the data do not fit it.

        `personal` is the folder of the client's personal layers, if they are kept; a damaged one is an error now.
        """
        # not worth vectorising for one client; engines agree up to rounding
        learning = msgspec.structs.replace(scenario.learning, engine=Engine.LOOP)
        self._scenario = msgspec.structs.replace(scenario, learning=learning)
        self._client = client
        self._data = data
        self._is_dealt = data == DEALT
        self._material = _dealt_share(scenario, client) if self._is_dealt else _own_share(scenario, client, data)
        self._bench = LocalTrainer(self._scenario, self._material, is_secret=True)
        self._trainer = LoopTrainer(self._bench, self._map)
        self._personal: PersonalFolder | None = None
        if personal and scenario.learning.personal:
            self._personal = PersonalFolder(Path(personal), self._trainer.personal_layout, num_kept=_TRAININGS_KEPT)
            self._personal.find([client])
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
        kept = self._personal if order.model else None
        own = NO_PERSONAL if kept is None else kept.find([self._client], before=order.round)
        begun_ns = time.monotonic_ns()
        result = self._trainer.train(start, order.round, [self._client], own)[0]
        duration_ns = time.monotonic_ns() - begun_ns
        if kept is not None:
            kept.forget_after(order.round, [self._client])  # of a chain that was lost since
            kept.keep(order.round, [result])
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
        own = NO_PERSONAL if self._personal is None else self._personal.find([self._client])
        found = self._trainer.evaluate(decode_weights(order.model, self._trainer.layout), own)
        return Judged(order.number, found.accuracy, found.loss)

    def _bend(self, start: Vector, round: int, result: LocalResult) -> LocalResult:
        """Return the update to send; with dealt data, the scenario may have this client poison it."""
        return poison_results(self._scenario, start, round, [result])[0] if self._is_dealt else result

    def _map(self, function: Callable[[LocalTrainer, Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        return (function(self._bench, task) for task in tasks)


def _dealt_share(scenario: Scenario, client: int) -> TrainingArrays:
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


def _own_share(scenario: Scenario, client: int, source: str) -> TrainingArrays:
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
