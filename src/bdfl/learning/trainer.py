"""The trainer of one process: training, evaluation, and the gradient of the global loss over all clients' data.

Data are evaluated in fixed chunks and blocks, summed in order and in float64. So the sums have the same bits, whichever
process computes a block.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bdfl.environment import Purpose
from bdfl.errors import BdflError
from bdfl.learning.dataset import DataSet, pack, unpack
from bdfl.learning.models import draw_model, suits_channels_last
from bdfl.learning.optimizers import OptimizerSettings, make_settings
from bdfl.learning.personal import deal_test
from bdfl.learning.privacy_accounting import Mechanism, mechanism_of, noise_micro_of, validate_opacus
from bdfl.learning.sgd import Samples, VectorisedModel, draw_batches, train_client
from bdfl.learning.torch_model import (
    Augmenter,
    Changes,
    FlatModel,
    Inputs,
    Scaling,
    choose_device,
    find_scaling,
    input_shape,
    make_inputs,
    seed_torch,
    steady_torch,
)
from bdfl.learning.training import (
    NAN,
    NO_PERSONAL,
    Evaluation,
    FullGradient,
    InvalidTraining,
    LocalResult,
    Personal,
    TaskMap,
    TrainingFailed,
    num_local_steps,
    validate_clients,
)
from bdfl.learning.weights import Layout, Vector, validate_weights
from bdfl.plugins import importing_from_here, show_exception
from bdfl.scenario import Engine, Scenario
from bdfl.scenario.schema_learning import MICRO, is_function

if TYPE_CHECKING:
    from bdfl.learning.dp_sgd import PrivateModel


_CHUNK = 250  # samples passed through the model together
_BLOCK = 8 * _CHUNK  # samples of one task
_NO_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory")  # mps, and the CPU


@dataclass(frozen=True, eq=False)
class EvaluationPart:
    """Sums over a block of the test set."""

    loss_sum: float
    num_right: NDArray[np.int64]  # (labels,)
    num_samples: NDArray[np.int64]  # (labels,)


@dataclass(frozen=True, eq=False)
class GradientPart:
    """Loss and gradient summed over a block of samples."""

    loss_sum: float
    gradient_sum: NDArray[np.float64]  # (parameters,)
    num_samples: int


def blocks_of(num_samples: int) -> list[range]:
    """Return 0 to `num_samples` - 1 in the blocks that are evaluated one by one."""
    return _pieces(range(num_samples), _BLOCK)


def evaluate_block(model: FlatModel, inputs: Inputs, samples: torch.Tensor, num_labels: int) -> EvaluationPart:
    """Evaluate the loaded model on these samples."""
    losses: list[float] = []
    all_labels = inputs.take_labels(samples).cpu()
    is_right: list[torch.Tensor] = []
    model.module.eval()
    with torch.no_grad():
        for chunk in torch.split(samples, _CHUNK):
            labels = inputs.take_labels(chunk)
            scores = model.scores(inputs.take(chunk))
            losses += cross_entropy(scores, labels, reduction="none").tolist()
            is_right.append((scores.argmax(dim=1) == labels).cpu())
    return EvaluationPart(
        math.fsum(losses),
        np.bincount(all_labels[torch.cat(is_right)].numpy(), minlength=num_labels),
        np.bincount(all_labels.numpy(), minlength=num_labels),
    )


def combine_evaluation(parts: Iterable[EvaluationPart], num_labels: int) -> Evaluation:
    """Accuracy, mean loss and recall of every label over all parts."""
    known = [part for part in parts if part.num_samples.any()]
    if not known:
        return Evaluation(NAN, NAN, np.full(num_labels, NAN))
    num_right = sum((part.num_right for part in known[1:]), start=known[0].num_right)
    num_samples = sum((part.num_samples for part in known[1:]), start=known[0].num_samples)
    total = int(num_samples.sum())
    recall = np.full(len(num_samples), np.nan)
    np.divide(num_right, num_samples, out=recall, where=num_samples > 0)
    return Evaluation(int(num_right.sum()) / total, math.fsum(part.loss_sum for part in known) / total, recall)


def differentiate_block(model: FlatModel, inputs: Inputs, samples: torch.Tensor) -> GradientPart:
    """Loss and gradient of the loaded model in evaluation mode (no dropout), summed over these samples."""
    losses: list[float] = []
    gradient_sum = np.zeros(model.layout.num_parameters)
    model.module.eval()
    for chunk in torch.split(samples, _CHUNK):
        loss = cross_entropy(model.scores(inputs.take(chunk)), inputs.take_labels(chunk), reduction="sum")
        model.forget_gradient()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradient_sum += model.read_gradient()
    return GradientPart(math.fsum(losses), gradient_sum, len(samples))


def combine_gradient(parts: Iterable[GradientPart]) -> FullGradient:
    """Mean loss and gradient over all parts, summed in the order given: parts must come in block order."""
    losses: list[float] = []
    num_samples = 0
    gradient: NDArray[np.float64] | None = None
    for part in parts:
        losses.append(part.loss_sum)
        num_samples += part.num_samples
        gradient = part.gradient_sum.copy() if gradient is None else np.add(gradient, part.gradient_sum, out=gradient)
    assert gradient is not None, "at least one part"
    return FullGradient(math.fsum(losses) / num_samples, gradient / num_samples)


def _pieces(whole: range, size: int) -> list[range]:
    return [whole[start : start + size] for start in range(0, len(whole), size)]


# The local trainer of one process: its model, its data and its tasks.


@dataclass(frozen=True, eq=False)
class TrainingArrays:
    """Arrays of the data needed for training."""

    train_inputs: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_labels: NDArray[np.int64]
    indices: tuple[Samples, ...]  # of each client
    scaling: Scaling | None
    input_shape: tuple[int, ...]
    num_labels: int

    def pack(self) -> tuple[object, ...]:
        """Return the parts in the form sent to another process: memory-mapped arrays as references to files."""
        return tuple(pack(getattr(self, field.name)) for field in fields(self))


def unpack_material(parts: tuple[object, ...]) -> TrainingArrays:
    """Restore the material from its packed parts."""
    return TrainingArrays(*map(unpack, parts))


@dataclass(frozen=True, eq=False)
class ClientTask:
    """Training of one client in a round."""

    weights: Vector
    round: int
    client: int
    personal: Vector | None = None  # none: the initial ones


@dataclass(frozen=True, eq=False)
class BlockTask:
    """Evaluation of a model on a block of samples."""

    weights: Vector
    block: range | Samples
    personal: Vector | None = None

    @property
    def samples(self) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.block, np.int64))


def gather_material(scenario: Scenario, data: DataSet, indices: tuple[Samples, ...]) -> TrainingArrays:
    """Collect the arrays for training from the data set; means and deviations are computed once."""
    return TrainingArrays(
        data.train_inputs,
        data.train_labels,
        data.test_inputs,
        data.test_labels,
        indices,
        find_scaling(data.train_inputs, scenario.data.normalise),
        input_shape(data),
        data.num_labels,
    )


class LocalTrainer:
    """Local trainer: owns a model and the tensors of the data; every task is a pure function of its arguments."""

    def __init__(self, scenario: Scenario, material: TrainingArrays, *, is_secret: bool = False) -> None:
        """`is_secret` draws the randomness of private training from the operating system, as in a live node."""
        learning = scenario.learning
        self.scenario = scenario
        self.material = material
        self.num_steps = num_local_steps(scenario)
        self.device = choose_device(learning.device)
        self.optimizer_settings(1)  # checked now
        with self._working("built"):
            module = draw_model(learning, material.input_shape, material.num_labels, scenario.seed)
            channels_last = suits_channels_last(module, material.input_shape)
            self.model = FlatModel(
                module,
                channels_last=channels_last,
                device=self.device,
                precision=learning.precision,
                personal=learning.personal,
            )
            self.train_inputs, self.test_inputs = (
                make_inputs(inputs, labels, material.scaling, keeps_channels_last=channels_last, device=self.device)
                for inputs, labels in (
                    (material.train_inputs, material.train_labels),
                    (material.test_inputs, material.test_labels),
                )
            )
        self._augmenter = self._make_augmenter() if learning.augment else None
        self.initial_weights = self.model.read()
        self.vectorised = self._vectorise() if learning.engine is Engine.VMAP else None
        self._is_secret = is_secret
        self._noise_micro = 0
        self._private = self._make_private() if scenario.privacy.is_on else None
        self.held = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *material.indices]))

    def batches(self, round: int, client: int) -> list[Samples]:
        """Mini-batches of the client in that round."""
        return draw_batches(
            self.scenario.seed,
            round,
            client,
            self.material.indices[client],
            unit=self.scenario.learning.unit,
            steps=self.num_steps,
            batch=self.scenario.learning.batch,
        )

    def optimizer_settings(self, round: int) -> OptimizerSettings:
        """Parameters of the local steps in that round."""
        return make_settings(self.scenario.learning, round, self.scenario.rounds)

    def changes(self, round: int, client: int, batches: Sequence[Samples]) -> Changes | None:
        """Augmentation of the samples of these batches; None if there is none."""
        if self._augmenter is None:
            return None
        return self._augmenter.draw(round, client, sum(len(batch) for batch in batches))

    def train(self, task: ClientTask) -> LocalResult:
        """Train the client in a round; all randomness is determined by this client and round."""
        if self._private is not None:
            return self._train_privately(self._private, task)
        batches = self.batches(task.round, task.client)
        settings, changes = self.optimizer_settings(task.round), self.changes(task.round, task.client, batches)
        with self._working("trained"):
            seed_torch(self.scenario.seed, Purpose.TRAINING, task.round, task.client)
            return train_client(
                self.model, self.train_inputs, task.weights, task.client, batches, settings, changes, task.personal
            )

    def mechanism(self, client: int) -> Mechanism:
        """Mechanism of the client's private training; only in a private scenario."""
        return mechanism_of(self.scenario, len(self.material.indices[client]), self._noise_micro)

    def _train_privately(self, private: "PrivateModel", task: ClientTask) -> LocalResult:
        seed, round, client = self.scenario.seed, task.round, task.client
        from bdfl.learning.dp_sgd import SecretNoise, SeededNoise  # needs Opacus

        noise = SecretNoise() if self._is_secret else SeededNoise(seed, round, client)
        with self._working("trained"):
            seed_torch(seed, Purpose.TRAINING, round, client)
            samples, settings = self.material.indices[client], self.optimizer_settings(round)
            return private.train(task.weights, client, samples, self.mechanism(client), noise, settings)

    def train_together(
        self, weights: Vector, round: int, clients: Sequence[int], personal: Personal
    ) -> list[LocalResult]:
        """Train these clients in a round in one call; only with the engine vmap."""
        assert self.vectorised is not None, "only with the engine vmap"
        batches = [self.batches(round, client) for client in clients]
        changes = [self.changes(round, client, own) for client, own in zip(clients, batches, strict=True)]
        drawn = [one for one in changes if one is not None]
        with self._working("trained"):
            settings = self.optimizer_settings(round)
            return self.vectorised.train(weights, clients, batches, settings, drawn or None, personal)

    def evaluate(self, task: BlockTask) -> EvaluationPart:
        """Evaluate the model on a block of the test set."""
        with self._working("evaluated"):
            self.model.load(task.weights, task.personal)
            return evaluate_block(self.model, self.test_inputs, task.samples, self.material.num_labels)

    def differentiate(self, task: BlockTask) -> GradientPart:
        """Loss and gradient over a block of all clients' data, concatenated in client order."""
        with self._working("differentiated"):
            self.model.load(task.weights)
            return differentiate_block(self.model, self.train_inputs, self.held[task.samples])

    def _make_private(self) -> "PrivateModel":
        validate_opacus()
        from bdfl.learning.dp_sgd import Clipping, PrivateModel

        learning, privacy = self.scenario.learning, self.scenario.privacy
        self._noise_micro = noise_micro_of(self.scenario, [len(held) for held in self.material.indices])
        clipping = Clipping(self._noise_micro / MICRO, privacy.clip_micro / MICRO)
        with self._working("trained privately"):
            return PrivateModel(self.model, self.train_inputs, clipping, name=learning.model)

    def _make_augmenter(self) -> Augmenter:
        inputs, shape = self.train_inputs, self.material.train_inputs.shape[1:]
        return Augmenter(self.scenario.learning.augment, shape, is_image=inputs.is_image, seed=self.scenario.seed)

    def _vectorise(self) -> VectorisedModel:
        learning = self.scenario.learning
        with self._working("vectorised"):
            return VectorisedModel(
                self.model, self.train_inputs, self.material.num_labels, batch=learning.batch, name=learning.model
            )

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        """Configure PyTorch as the scenario asks; a model's exceptions become one-line errors."""
        try:
            learning = self.scenario.learning
            is_own = is_function(learning.model)
            steady = steady_torch(learning.threads, strict=is_own, device=self.device)
            with steady, importing_from_here() if is_own else nullcontext():
                yield
        except BdflError:
            raise
        except Exception as error:  # user code may raise anything
            if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _NO_MEMORY.search(str(error)):
                raise TrainingFailed(
                    f"learning.device: {self.device} has too little memory; a smaller learning.batch or model may help"
                ) from error
            name = self.scenario.learning.model
            raise TrainingFailed(f"learning.model: {name!r} cannot be {what}: {show_exception(error)}") from error


# Trainers: split requests into tasks, map them, and combine the results in order.


class LoopTrainer:
    """Trains clients one by one, or in parallel if `map` does."""

    def __init__(self, bench: LocalTrainer, map: TaskMap) -> None:
        self.layout: Layout = bench.model.layout
        self.personal_layout: Layout = bench.model.personal_layout
        self._bench = bench
        self._map = map

    def initial_weights(self) -> Vector:
        return self._bench.initial_weights.copy()

    def train(
        self, weights: Vector, round: int, clients: Sequence[int], personal: Personal = NO_PERSONAL
    ) -> list[LocalResult]:
        self._validate(weights, clients)
        tasks = [ClientTask(weights, round, client, personal.get(client)) for client in clients]
        return list(self._map(LocalTrainer.train, tasks))

    def evaluate(self, weights: Vector, personal: Personal = NO_PERSONAL) -> Evaluation:
        self._validate(weights)
        if self.personal_layout.names:
            tasks = [
                BlockTask(weights, own[block.start : block.stop], personal.get(client))
                for client, own in enumerate(self._dealt)
                for block in blocks_of(len(own))
            ]
        else:
            tasks = [BlockTask(weights, block) for block in blocks_of(len(self._bench.test_inputs))]
        return combine_evaluation(self._map(LocalTrainer.evaluate, tasks), self._bench.material.num_labels)

    def full_gradient(self, weights: Vector) -> FullGradient:
        self._validate(weights)
        blocks = blocks_of(len(self._bench.held))
        if not blocks:
            raise InvalidTraining("partition: no client holds data, expected some for the gradient of their loss")
        return combine_gradient(self._map(LocalTrainer.differentiate, [BlockTask(weights, block) for block in blocks]))

    @cached_property
    def _dealt(self) -> list[Samples]:
        """Test samples that each client judges by its personal layers."""
        material = self._bench.material
        held = [np.bincount(material.train_labels[own], minlength=material.num_labels) for own in material.indices]
        return deal_test(material.test_labels, np.array(held))

    def _validate(self, weights: Vector, clients: Sequence[int] = ()) -> None:
        validate_weights(weights, self.layout)
        validate_clients(clients, len(self._bench.material.indices))


class VmapTrainer(LoopTrainer):
    """Trains all clients of a round in one call."""

    def train(
        self, weights: Vector, round: int, clients: Sequence[int], personal: Personal = NO_PERSONAL
    ) -> list[LocalResult]:
        self._validate(weights, clients)
        return self._bench.train_together(weights, round, clients, personal)
