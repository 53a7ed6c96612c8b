"""The local trainer of Flower clients in one process: answers are pure functions of seed, round, client and arrays."""

import gc
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from bdfl.environment import Purpose, stream
from bdfl.errors import BdflError, MissingExtra
from bdfl.learning.flower_answers import Fitted, Judged, Place
from bdfl.learning.flower_arrays import ArrayForm, Arrays, form_of
from bdfl.learning.flower_client import find_client, find_first_arrays
from bdfl.learning.own_function import BadFunction, importing_from_here, show_exception
from bdfl.learning.training import NAN, LocalResult, Outcome, TrainingFailed
from bdfl.learning.weights import Vector, is_finite
from bdfl.scenario import Scenario

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
class Beginning:
    """The initial model of a client."""

    form: ArrayForm
    weights: Vector


class FlowerBench:
    """Calls a Flower client; its exceptions and invalid answers become one-line errors."""

    def __init__(self, scenario: Scenario) -> None:
        name = scenario.learning.flower
        assert name is not None, "only where the scenario names a Flower client"
        self._scenario = scenario
        self._name = name
        with self._working(Purpose.MODEL, _NO_ROUND, None):
            self._client = find_client(name)

    def begin(self, client: int) -> Beginning:
        """Return the initial model from `learning.flower_model`, or else from the client."""
        arrays = self._ask("begin", client, Purpose.MODEL, _NO_ROUND, lambda: self._find_arrays(client))
        form = self._check("begin", client, lambda: form_of(arrays))
        weights = form.join(arrays)
        if not is_finite(weights):
            raise TrainingFailed(
                f"{_KEY}: {self._name!r} begins with numbers that are not finite, finite ones expected"
            )
        return Beginning(form, weights)

    def train(self, task: FlowerTask) -> FlowerResult:
        """Train the client in a round; weights that are not finite count as divergence."""

        def fit() -> Fitted:
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
    from bdfl.learning.steady import steady_torch

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
