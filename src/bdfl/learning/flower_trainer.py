"""A trainer of Flower clients."""

import gc
import hashlib
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

import numpy as np

from bdfl.environment import Purpose, stream
from bdfl.errors import BdflError, MissingExtra
from bdfl.learning.flower_clients import (
    ArrayForm,
    Arrays,
    FitResult,
    Judged,
    Place,
    find_client,
    find_first_arrays,
    form_of,
)
from bdfl.learning.partition import Partition
from bdfl.learning.trainer_pool import open_trainer_processes
from bdfl.learning.training import (
    NAN,
    NO_PERSONAL,
    Evaluation,
    FullGradient,
    InvalidTraining,
    LocalResult,
    Outcome,
    Personal,
    TaskMap,
    TrainingFailed,
    no_samples,
    validate_clients,
)
from bdfl.learning.weights import Layout, Vector, is_finite, validate_weights
from bdfl.plugins import BadFunction, importing_from_here, show_exception
from bdfl.scenario import Scenario

# The local trainer of Flower clients in one process: answers are pure functions of seed, round, client and arrays.

_KEY = "learning.flower"
_SEEDS = 2**32  # range of seeds of numpy's global generator
_YOUNG = 1  # generation: a client's models and optimisers form reference cycles, and automatic collection is rare here
_NO_ROUND = 0  # whose stream serves everything but training

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class FlowerTask:
    """A request to a client about a model."""

    form: ArrayForm
    weights: Vector
    round: int
    client: int


@dataclass(frozen=True, eq=False)
class FlowerResult:
    """Result of a client's training in a round, and the number of examples it reports."""

    result: LocalResult
    num_examples: int


@dataclass(frozen=True, eq=False)
class InitialModel:
    """The initial model of a client."""

    form: ArrayForm
    weights: Vector


class FlowerLocalTrainer:
    """Calls a Flower client; its exceptions and invalid answers become one-line errors."""

    def __init__(self, scenario: Scenario) -> None:
        name = scenario.learning.flower
        assert name is not None, "only where the scenario names a Flower client"
        self._scenario = scenario
        self._name = name
        with self._working(Purpose.MODEL, _NO_ROUND, None):
            self._client = find_client(name)

    def begin(self, client: int) -> InitialModel:
        """Return the initial model from `learning.flower_model`, or else from the client."""
        arrays = self._ask("begin", client, Purpose.MODEL, _NO_ROUND, lambda: self._find_arrays(client))
        form = self._check("begin", client, lambda: form_of(arrays))
        weights = form.join(arrays)
        if not is_finite(weights):
            raise TrainingFailed(
                f"{_KEY}: {self._name!r} begins with numbers that are not finite, finite ones expected"
            )
        return InitialModel(form, weights)

    def train(self, task: FlowerTask) -> FlowerResult:
        """Train the client in a round; weights that are not finite count as divergence."""

        def fit() -> FitResult:
            return self._client.fit(self._place(task.client), task.round, task.form.split(task.weights))

        found = self._ask("train", task.client, Purpose.TRAINING, task.round, fit)
        weights = self._check("train", task.client, lambda: task.form.join(found.arrays))
        if is_finite(weights):
            result = LocalResult(task.client, Outcome.TRAINED, weights, found.loss, NAN, 0)
        else:
            result = LocalResult(task.client, Outcome.DIVERGED, None, NAN, NAN, 0)
        return FlowerResult(result, found.num_examples)

    def evaluate(self, task: FlowerTask) -> Judged | None:
        """Evaluate the model on the client's own test data; None if the client does not evaluate."""

        def judge() -> Judged | None:
            return self._client.evaluate(self._place(task.client), task.round, task.form.split(task.weights))

        return self._ask("evaluate", task.client, Purpose.TRAINING, _NO_ROUND, judge)

    def _find_arrays(self, client: int) -> Arrays:
        model = self._scenario.learning.flower_model
        if model is not None:
            return find_first_arrays(model)
        arrays = self._client.initial(self._place(client))
        if arrays is None:
            expected = "get_parameters in the client, or what makes its model: --flower-model module:Net"
            raise BadFunction(self._name, "says nothing of its first arrays", expected)
        return arrays

    def _place(self, client: int) -> Place:
        return Place(client, self._scenario.clients.count, self._scenario.learning.flower_config)

    def _ask(self, what: str, client: int, purpose: Purpose, round: int, question: Callable[[], Answer]) -> Answer:
        """Call the client; call it again if the first call imported PyTorch, which was then not seeded."""
        whose = None if purpose is Purpose.MODEL else client  # the initial model is common to all clients

        def ask() -> Answer:
            with self._working(purpose, round, whose):
                return question()

        had_torch = _has_torch()
        answer = self._check(what, client, ask)
        if not had_torch and _has_torch():
            answer = self._check(what, client, ask)
        gc.collect(_YOUNG)
        return answer

    def _check(self, what: str, client: int, action: Callable[[], Answer]) -> Answer:
        try:
            return action()
        except (BadFunction, MissingExtra):
            raise
        except BdflError as error:
            raise TrainingFailed(f"{_KEY}: {self._name!r} cannot {what} as client {client}: {error}") from error
        except (Exception, SystemExit) as error:  # user code may raise anything
            shown = show_exception(error)
            raise TrainingFailed(f"{_KEY}: {self._name!r} cannot {what} as client {client}: {shown}") from error

    @contextmanager
    def _working(self, purpose: Purpose, round: int, client: int | None) -> Iterator[None]:
        """Set up the client's environment: deterministic, seeded, the working folder importable, stdout to stderr."""
        with (
            importing_from_here(),
            redirect_stdout(sys.stderr),
            _steady_torch(self._scenario.learning.threads),
            _seeded(self._scenario.seed, purpose, round, client),
        ):
            yield


def _has_torch() -> bool:
    """Return whether PyTorch is imported: a Flower client may not need it, and then it is not loaded."""
    return "torch" in sys.modules


def _steady_torch(threads: int) -> AbstractContextManager[None]:
    """Make PyTorch deterministic; strict mode is only needed with several threads or an accelerator."""
    if not _has_torch():
        return nullcontext()
    from bdfl.learning.torch_model import steady_torch

    return steady_torch(threads, strict=threads > 1 or _has_accelerator())


@cache
def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()


@contextmanager
def _seeded(seed: int, purpose: Purpose, round: int, client: int | None) -> Iterator[None]:
    """Seed the global generators of Python, numpy and PyTorch for this purpose, round and client; restore them later.

    PyTorch's generator is restored by `steady_torch`.
    """
    rng = stream(seed, purpose, round, client)
    for_torch = int(rng.integers(2**63))  # first, as in `seed_torch`
    for_python, for_numpy = map(int, rng.integers(_SEEDS, size=2))
    former_python, former_numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(for_python)
        np.random.seed(for_numpy)
        if _has_torch():
            import torch

            torch.manual_seed(for_torch)
        yield
    finally:
        random.setstate(former_python)
        np.random.set_state(former_numpy)


# A federation of Flower clients: sizes are measured once, then clients train and evaluate each round.

OnRehearsed: TypeAlias = Callable[[int, int], None]  # clients done so far, of how many
_REHEARSED_ROUND = 1
_WORTH_PROCESSES_S = 60.0  # of training: shorter runs end before more processes have started


@dataclass(frozen=True, eq=False)
class FlowerClients:
    """Known facts about the clients of a federation: sizes and the initial model, but not their data."""

    name: str  # module:name
    beginning: InitialModel
    samples: tuple[int, ...]  # |D_i|, as reported; empty if clients were not asked
    digest: str  # SHA-256 (hex) of all answers: changes with the code or the data
    training_s: float  # mean duration of a client's training

    @property
    def label_names(self) -> tuple[str, ...]:
        """A single label: the labels are known to the client only."""
        return ("all",)

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def partition(self) -> Partition:
        """Sizes of the clients' data sets; the indices are empty, since samples are known to the client only."""
        counts = np.array(self.samples, dtype=np.int64).reshape(-1, 1)
        counts.setflags(write=False)
        return Partition(tuple(np.zeros(0, np.int64) for _ in self.samples), counts)


def meet_clients(scenario: Scenario) -> FlowerClients:
    """Read the first client's initial model only; sizes stay unknown."""
    beginning = FlowerLocalTrainer(scenario).begin(0)
    return FlowerClients(str(scenario.learning.flower), beginning, (), _digest(beginning, []), NAN)


def rehearse_clients(scenario: Scenario, on_rehearsed: OnRehearsed | None = None) -> FlowerClients:
    """Train every client once to learn its number of examples: Flower has no other request for it.

    It is the training of round 1 from the initial model, so answers are reproducible. A different digest means that
    code or data have changed.
    """
    bench = FlowerLocalTrainer(scenario)
    beginning = bench.begin(0)
    num_clients = scenario.clients.count
    found: list[FlowerResult] = []
    begun_s = time.perf_counter()
    for client in range(num_clients):
        found.append(rehearse(bench, beginning, client))
        if on_rehearsed is not None:
            on_rehearsed(client + 1, num_clients)
    training_s = (time.perf_counter() - begun_s) / num_clients
    samples = tuple(one.num_examples for one in found)
    if not any(samples):
        raise InvalidTraining(f"learning.flower: {scenario.learning.flower!r} has no examples, expected some")
    return FlowerClients(str(scenario.learning.flower), beginning, samples, _digest(beginning, found), training_s)


def rehearse(bench: FlowerLocalTrainer, beginning: InitialModel, client: int) -> FlowerResult:
    """Train one client on the initial model to learn its number of examples."""
    return bench.train(FlowerTask(beginning.form, beginning.weights, _REHEARSED_ROUND, client))


def validate_examples(found: FlowerResult, expected: int) -> None:
    """Raise `TrainingFailed` unless a client trained on the number of examples it reported, which is its weight."""
    if found.num_examples != expected:
        raise TrainingFailed(
            f"learning.flower: client {found.result.client} trained on {found.num_examples} examples, {expected}"
            " expected, as many as at the start"
        )


def suggest_workers(clients: FlowerClients, scenario: Scenario, num_cores: int) -> int:
    """Number of training processes for a fast run: one per core, or one if starting more would cost more."""
    trainings = scenario.rounds * scenario.clients.min_selected
    if trainings * clients.training_s < _WORTH_PROCESSES_S:
        return 1
    return max(1, min(num_cores // scenario.learning.threads, scenario.clients.count))


@contextmanager
def open_flower(scenario: Scenario, clients: FlowerClients, *, workers: int = 1) -> Iterator["FlowerTrainer"]:
    """Open a trainer of these clients, in this process or spread over several: the same bits either way."""
    with open_trainer_processes(FlowerLocalTrainer, (scenario,), workers) as map_there:
        yield FlowerTrainer(clients, map_there)


class FlowerTrainer:
    """Trains Flower clients; all of them evaluate the global model, each on its own test data."""

    def __init__(self, clients: FlowerClients, map: TaskMap) -> None:
        self.layout: Layout = clients.beginning.form.layout
        self.personal_layout = Layout((), ())
        self._form = clients.beginning.form
        self._initial = clients.beginning.weights
        self._samples = clients.samples
        self._map = map

    def initial_weights(self) -> Vector:
        return self._initial.copy()

    def train(
        self, weights: Vector, round: int, clients: Sequence[int], personal: Personal = NO_PERSONAL
    ) -> list[LocalResult]:
        validate_weights(weights, self.layout)
        validate_clients(clients, len(self._samples))
        holders = [client for client in clients if self._samples[client]]
        found = self._map(
            FlowerLocalTrainer.train, [FlowerTask(self._form, weights, round, client) for client in holders]
        )
        results: dict[int, LocalResult] = {}
        for one in found:
            validate_examples(one, self._samples[one.result.client])
            results[one.result.client] = one.result
        return [results.get(client, no_samples(client)) for client in clients]

    def evaluate(self, weights: Vector, personal: Personal = NO_PERSONAL) -> Evaluation:
        """Means over all clients, weighted by the examples each evaluated on; NaN if no client evaluates."""
        validate_weights(weights, self.layout)
        everybody = range(len(self._samples))
        tasks = [FlowerTask(self._form, weights, 0, client) for client in everybody]
        found = [one for one in self._map(FlowerLocalTrainer.evaluate, tasks) if one is not None and one.num_examples]
        sizes = [one.num_examples for one in found]
        return Evaluation(
            _weighted_mean([one.accuracy for one in found], sizes),
            _weighted_mean([one.loss for one in found], sizes),
            np.full(1, np.nan),
        )

    def full_gradient(self, weights: Vector) -> FullGradient:
        raise InvalidTraining("learning.gradient_every: a Flower client gives no gradients, expected 0")


def _weighted_mean(values: Sequence[float], sizes: Sequence[int]) -> float:
    total = sum(sizes)
    return math.fsum(value * size for value, size in zip(values, sizes, strict=True)) / total if total else NAN


def _digest(beginning: InitialModel, found: Sequence[FlowerResult]) -> str:
    whole = hashlib.sha256(repr(beginning.form).encode())
    whole.update(beginning.weights.data)
    for one in found:
        whole.update(f"{one.result.client} {one.num_examples} {one.result.outcome};".encode())
        if one.result.weights is not None:
            whole.update(one.result.weights.data)
    return whole.hexdigest()
