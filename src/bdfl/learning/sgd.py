"""Mini-batch training of one client, and of all clients of a round in one call: the same steps, equal up to rounding.

In one call, every client has a row of weights. A step for one client is written with `torch.func` and turned into a
step for all rows by `vmap`. It is traced once per shape into plain tensor operations, which saves most of the time of
small models. Rows of clients with less data are padded with samples of weight 0. A row that has made all its steps is
masked.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy, log_softmax

from bdfl.environment import Purpose, stream
from bdfl.learning.optimizers import LocalOptimizer, OptimizerSettings, norm_of
from bdfl.learning.torch_model import Changes, FlatModel, Inputs
from bdfl.learning.training import NAN, NO_PERSONAL, InvalidTraining, LocalResult, Outcome, Personal, no_samples
from bdfl.learning.weights import Layout, Vector, is_finite
from bdfl.plugins import show_exception
from bdfl.scenario import LocalUnit

# Mini-batches of a client, drawn from (seed, round, client), and Poisson sampling from given chances.

Samples = NDArray[np.int64]  # numbers of samples in the training set


def draw_batches(
    seed: int, round: int, client: int, samples: Samples, *, unit: LocalUnit, steps: int, batch: int
) -> list[Samples]:
    """Mini-batches of a client in a round, in order: passes without replacement, reshuffled each time.

    Updates: `steps` batches of equal size; a remainder that does not fill a batch is left out of its pass. Epochs:
    `steps` passes over all samples; the last batch of each may be smaller. A client with less than a batch uses all its
    samples in each.
    """
    if len(samples) == 0:
        return []
    rng = stream(seed, Purpose.BATCHES, round, client)
    size = min(batch, len(samples))
    if unit is LocalUnit.EPOCHS:
        num_used, num_passes = len(samples), steps
    else:
        per_pass = len(samples) // size
        num_used, num_passes = per_pass * size, -(-steps // per_pass)  # enough passes for all steps
    batches: list[Samples] = []
    for _ in range(num_passes):
        order = rng.permutation(samples)[:num_used]
        batches += [order[start : start + size] for start in range(0, num_used, size)]
    return batches if unit is LocalUnit.EPOCHS else batches[:steps]


def take_samples(samples: Samples, rate: float, chances: NDArray[np.float64]) -> Samples:
    """Samples of a private step: those whose chance (uniform, one for each) is below the rate; there may be none."""
    return samples[chances < rate]


# Training of clients one after the other: H mini-batch updates.

_GATHERED_BYTES = 2**20  # of inputs prepared at a time: several small batches, or one large one


def train_client(
    model: FlatModel,
    inputs: Inputs,
    weights: Vector,
    client: int,
    batches: Sequence[Samples],
    settings: OptimizerSettings,
    changes: Changes | None = None,
    personal: Vector | None = None,
) -> LocalResult:
    """Result of the client after a step on each of `batches`, starting from `weights`: [Li24, Eq. 2].

    `changes` of the samples of all batches augment them. A loss, gradient norm or weight that is not finite ends the
    client's training.
    """
    if not batches:
        return no_samples(client)
    model.load(weights, personal)
    model.module.train()
    optimizer = LocalOptimizer(settings, model.tensors, is_shared=model.is_shared)
    losses: list[float] = []
    largest_norm = 0.0
    for batch, labels in gather_batches(inputs, batches, changes):
        loss = cross_entropy(model.scores(batch), labels, label_smoothing=settings.label_smoothing)
        model.forget_gradient()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = model.gradients()
        value, norm = loss.item(), norm_of(gradients).item()
        if not (math.isfinite(value) and math.isfinite(norm)):
            return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, len(losses))
        losses.append(value)
        largest_norm = max(largest_norm, norm)
        optimizer.step(gradients)
    trained, own = model.read(), model.read_personal()
    if not (is_finite(trained) and is_finite(own)):
        return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, len(losses))
    mean = math.fsum(losses) / len(losses)
    return LocalResult(client, Outcome.TRAINED, trained, mean, largest_norm, len(losses), own)


def gather_batches(
    inputs: Inputs, batches: Sequence[Samples], changes: Changes | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and labels of every batch; small batches are prepared together to save calls."""
    together = max(1, _GATHERED_BYTES // (inputs.bytes_per_sample * len(batches[0])))
    done = 0
    for start in range(0, len(batches), together):
        group = batches[start : start + together]
        sizes = [len(batch) for batch in group]
        samples = torch.from_numpy(np.concatenate(group))
        own = None if changes is None else torch.from_numpy(changes[done : done + len(samples)])
        done += len(samples)
        taken, labels = inputs.take(samples, own), inputs.take_labels(samples)
        yield from zip(torch.split(taken, sizes), torch.split(labels, sizes), strict=True)


_MAX_ROWS = 256  # clients in one call
_MAX_ENTRIES = 2**23  # weights in one call: 32 MiB, and several times that for temporaries
_VMAP_BYTES = 2**23  # of inputs prepared at a time

PerStep = NDArray[np.float64]  # (steps,)
Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Plan:
    """Mini-batches of several clients side by side: a row for each client, all of the same width."""

    samples: Samples  # (steps, rows, width)
    shares: NDArray[np.float32]  # (steps, rows, width): 1 / size of the batch, 0 for padding
    num_steps: NDArray[np.int64]  # (rows,)
    changes: NDArray[np.int64] | None  # (steps, rows, width, 3): augmentation


def plan_batches(batches: Sequence[Sequence[Samples]], batch: int, changes: Sequence[Changes] | None = None) -> Plan:
    """Arrange the batches of each client, at most `batch` samples in each, padded to few different shapes."""
    num_steps = np.zeros(_power_of_two_from(len(batches)), np.int64)
    num_steps[: len(batches)] = [len(own) for own in batches]
    largest = max(len(one) for own in batches for one in own)
    shape = (int(num_steps.max()), len(num_steps), min(batch, _power_of_two_from(largest)))
    samples, shares = np.full(shape, batches[0][0][0]), np.zeros(shape, np.float32)
    changed = None if changes is None else np.zeros((*shape, 3), np.int64)
    for row, own in enumerate(batches):
        done = 0
        for step, one in enumerate(own):
            samples[step, row, : len(one)] = one
            shares[step, row, : len(one)] = 1.0 / len(one)
            if changes is not None and changed is not None:
                changed[step, row, : len(one)] = changes[row][done : done + len(one)]
            done += len(one)
    return Plan(samples, shares, num_steps, changed)


class VectorisedModel:
    """Trains many clients of one model at once; caches the traced steps."""

    def __init__(self, model: FlatModel, inputs: Inputs, num_labels: int, *, batch: int, name: str) -> None:
        self._model = model
        self._inputs = replace(inputs, keeps_channels_last=False)
        self._num_labels = num_labels
        self._batch = batch
        self._parameters = {key: item for key, item in model.module.named_parameters() if item.requires_grad}
        ends = np.cumsum([item.numel() for item in self._parameters.values()]).tolist()
        self._columns = {
            key: slice(end - item.numel(), end) for (key, item), end in zip(self._parameters.items(), ends, strict=True)
        }
        self._num_columns: int = ends[-1]
        self._is_shared = [torch.ones(self._num_columns, device=model.device)]
        for _, columns in self._places(model.personal_layout):
            self._is_shared[0][columns] = 0.0
        self._max_rows = _power_of_two_to(min(_MAX_ROWS, _MAX_ENTRIES // self._num_columns))
        self._traced: dict[tuple[int, int], Step] = {}
        self._validate(name)

    def train(
        self,
        weights: Vector,
        clients: Sequence[int],
        batches: Sequence[Sequence[Samples]],
        settings: OptimizerSettings,
        changes: Sequence[Changes] | None = None,
        personal: Personal = NO_PERSONAL,
    ) -> list[LocalResult]:
        """Train these clients, each with a step on each of its batches, starting from `weights`; results in order."""
        self._model.load(weights)  # entries that are not trained are read from the module
        self._model.module.train()
        results = {client: no_samples(client) for client in clients}
        busy = [place for place, own in enumerate(batches) if own]
        for start in range(0, len(busy), self._max_rows):
            group = busy[start : start + self._max_rows]
            own_changes = None if changes is None else [changes[place] for place in group]
            plan = plan_batches([batches[place] for place in group], self._batch, own_changes)
            own = [personal.get(clients[place], self._model.initial_personal) for place in group]
            rows, losses, norms = self._descend(self._row_of(weights), np.stack(own), plan, settings)
            for row, place in enumerate(group):
                client, steps = clients[place], len(batches[place])
                trained = self._replace(weights, self._model.layout, rows[row])
                kept = self._replace(own[row], self._model.personal_layout, rows[row])
                results[client] = _judge(client, trained, kept, losses[:steps, row], norms[:steps, row])
        return [results[client] for client in clients]

    def _descend(
        self, row: Vector, personal: NDArray[np.float32], plan: Plan, settings: OptimizerSettings
    ) -> tuple[Vector, PerStep, PerStep]:
        """Return the rows after their steps, (rows, columns); losses and gradient norms, both (steps, rows).

        All start from `row`, with the columns of `personal`, which has a row for each client.
        """
        rows = torch.from_numpy(row).to(self._model.device).repeat(len(plan.num_steps), 1)
        for place, columns in self._places(self._model.personal_layout):
            rows[: len(personal), columns] = torch.from_numpy(personal[:, place]).to(rows.device)
        optimizer = LocalOptimizer(settings, [rows], by_row=True, is_shared=self._is_shared)
        first_to_end = int(plan.num_steps.min())
        num_steps = torch.from_numpy(plan.num_steps).to(rows.device)[:, None]
        losses: list[torch.Tensor] = []
        norms: list[torch.Tensor] = []
        with torch.no_grad():
            for step, (inputs, targets) in enumerate(self._gather(plan, settings.label_smoothing)):
                gradient, loss, norm = self._step(inputs.shape[:2])(rows, inputs, targets)
                losses.append(loss)
                norms.append(norm)
                optimizer.step([gradient], num_steps <= step if step >= first_to_end else None)
        found_losses, found_norms = (torch.stack(found).cpu().double().numpy() for found in (losses, norms))
        return rows.cpu().numpy(), found_losses, found_norms

    def _gather(self, plan: Plan, smoothing: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield inputs (rows, width, ...) and targets (rows, width, labels) of every step, prepared in groups.

        A target is minus the sample's share at its label, less what smoothing spreads over all labels: its product with
        the log-probabilities is the loss.
        """
        _, rows, width = plan.samples.shape
        together = max(1, _VMAP_BYTES // (rows * width * self._inputs.bytes_per_sample))
        spread = smoothing / self._num_labels
        for start in range(0, len(plan.samples), together):
            samples = torch.from_numpy(plan.samples[start : start + together].reshape(-1))
            shares = torch.from_numpy(plan.shares[start : start + together].reshape(-1, 1)).to(self._model.device)
            own = None if plan.changes is None else plan.changes[start : start + together].reshape(-1, 3)
            labels = self._inputs.take_labels(samples)[:, None]
            targets = (
                (-spread * shares).repeat(1, self._num_labels).scatter_(1, labels, -(1 - smoothing + spread) * shares)
            )
            inputs = self._inputs.take(samples, None if own is None else torch.from_numpy(own))
            shape = (-1, rows, width)
            yield from zip(inputs.view(*shape, *inputs.shape[1:]), targets.view(*shape, self._num_labels), strict=True)

    def _step(self, shape: torch.Size) -> Step:
        """Return the traced step: gradients (rows, columns), losses and gradient norms (rows,) for that input shape."""
        rows, width = shape
        if (rows, width) not in self._traced:
            self._traced[rows, width] = make_fx(self._vectorised())(*self._example(rows, width))
        return self._traced[rows, width]

    def _vectorised(self) -> Step:
        def loss_of(parts: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            with self._model.reduced():
                scores = functional_call(self._model.module, parts, (inputs,))
            return (log_softmax(scores.float(), dim=-1) * targets).sum()

        def step(
            row: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            parts = {key: row[self._columns[key]].view(item.shape) for key, item in self._parameters.items()}
            gradients, loss = grad_and_value(loss_of)(parts, inputs, targets)
            gradient = torch.cat([gradients[key].reshape(-1) for key in parts])
            return gradient, loss, torch.linalg.vector_norm(gradient)

        vectorised: Step = vmap(step, randomness="error")
        return vectorised

    def _example(self, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inputs = self._inputs.take(torch.zeros(rows * width, dtype=torch.int64))
        device = self._model.device
        return (
            torch.zeros(rows, self._num_columns, device=device),
            inputs.view(rows, width, *inputs.shape[1:]),
            torch.zeros(rows, width, self._num_labels, device=device),
        )

    def _row_of(self, weights: Vector) -> Vector:
        """Return the trained part of the weights; 0 where it is personal."""
        row = np.zeros(self._num_columns, np.float32)
        for place, columns in self._places(self._model.layout):
            row[columns] = weights[place]
        return row

    def _replace(self, values: Vector, layout: Layout, row: Vector) -> Vector:
        """Return values of that layout with their trained part from `row`."""
        trained = values.copy()
        for place, columns in self._places(layout):
            trained[place] = row[columns]
        return trained

    def _places(self, layout: Layout) -> Iterator[tuple[slice, slice]]:
        """Positions of each trained tensor in the layout and in a row; a tensor with two names occurs twice."""
        key_of = {id(item): key for key, item in self._parameters.items()}
        named = dict(self._model.module.named_parameters(remove_duplicate=False))
        start = 0
        for name, size in zip(layout.names, layout.sizes, strict=True):
            key = key_of.get(id(named.get(name)))
            if key is not None:
                yield slice(start, start + size), self._columns[key]
            start += size

    def _validate(self, name: str) -> None:
        """Raise `InvalidTraining` if rows would not be independent or the model cannot be vectorised."""
        advice = "use the engine loop"
        rows, inputs, targets = self._example(2, 2)
        module = self._model.module.train()
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
            raise InvalidTraining(f"learning.engine: vmap cannot train {name!r}, which normalises batches; {advice}")
        before = {key: buffer.clone() for key, buffer in module.named_buffers()}
        with torch.no_grad():
            module(inputs[0])
        if any(not torch.equal(buffer, before[key]) for key, buffer in module.named_buffers()):
            raise InvalidTraining(f"learning.engine: vmap cannot train {name!r}, which changes buffers; {advice}")
        try:
            self._vectorised()(rows, inputs, targets)
        except Exception as error:  # user code may raise anything
            reason = show_exception(error)
            raise InvalidTraining(f"learning.engine: vmap cannot train {name!r}: {reason}; {advice}") from error


def _judge(client: int, trained: Vector, own: Vector, losses: PerStep, norms: PerStep) -> LocalResult:
    """Make a client's result of its weights, personal values, losses and gradient norms."""
    is_good = np.isfinite(losses) & np.isfinite(norms)
    if not is_good.all():
        return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, int(np.argmin(is_good)))
    if not (is_finite(trained) and is_finite(own)):
        return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, len(losses))
    loss = math.fsum(losses.tolist()) / len(losses)
    return LocalResult(client, Outcome.TRAINED, trained, loss, float(norms.max()), len(losses), own)


def _power_of_two_from(number: int) -> int:
    return int(2 ** math.ceil(math.log2(number)))


def _power_of_two_to(number: int) -> int:
    return int(2 ** math.floor(math.log2(max(1, number))))
