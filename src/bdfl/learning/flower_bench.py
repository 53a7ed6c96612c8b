"""Where a Flower client works: one process's own, every answer a pure function of seed, round, client and arrays."""

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
_SEEDS = 2**32  # what numpy's global generator takes
_YOUNG = 1  # generation: models and optimisers of a client refer to themselves, and whoever asks collects seldom
_NO_ROUND = 0  # whose draws everything uses that is not training

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class FlowerTask:
    """A client to ask, and the model to ask it about."""

    form: ArrayForm
    weights: Vector
    round: int
    client: int


@dataclass(frozen=True, eq=False)
class FlowerResult:
    """What a client's training in a round gave, and on how many examples it says it trained."""

    result: LocalResult
    num_examples: int


@dataclass(frozen=True, eq=False)
class Beginning:
    """The model that a client begins with."""

    form: ArrayForm
    weights: Vector


class FlowerBench:
    """Asks a Flower client; what it raises, or answers that nobody can use, becomes one line."""

    def __init__(self, scenario: Scenario) -> None:
        name = scenario.learning.flower
        assert name is not None, "only where the scenario names a Flower client"
        self._scenario = scenario
        self._name = name
        with self._working(Purpose.MODEL, _NO_ROUND, None):
            self._client = find_client(name)

    def begin(self, client: int) -> Beginning:
        """The model that `learning.flower_model` makes, else that the client itself gives."""
        arrays = self._ask("begin", client, Purpose.MODEL, _NO_ROUND, lambda: self._find_arrays(client))
        form = self._check("begin", client, lambda: form_of(arrays))
        weights = form.join(arrays)
        if not is_finite(weights):
            raise TrainingFailed(
                f"{_KEY}: {self._name!r} begins with numbers that are not finite, finite ones expected"
            )
        return Beginning(form, weights)

    def train(self, task: FlowerTask) -> FlowerResult:
        """The client's training in a round; weights that are not finite mean that it diverged."""

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
        """How the model does on the client's own test data; none where it has no such thing."""

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
        """What the client answers; asked again if it was then that it imported PyTorch, which nobody had seeded."""
        whose = None if purpose is Purpose.MODEL else client  # the first model is everybody's

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
        except (Exception, SystemExit) as error:  # somebody else's code: any error is theirs to read
            shown = show_exception(error)
            raise TrainingFailed(f"{_KEY}: {self._name!r} cannot {what} as client {client}: {shown}") from error

    @contextmanager
    def _working(self, purpose: Purpose, round: int, client: int | None) -> Iterator[None]:
        """The client's surroundings: steady, seeded, with modules of the working folder; prints go where logs go."""
        with (
            importing_from_here(),
            redirect_stdout(sys.stderr),
            _steady_torch(self._scenario.learning.threads),
            _seeded(self._scenario.seed, purpose, round, client),
        ):
            yield


def _has_torch() -> bool:
    """Whether PyTorch is in use: a Flower client may do without, and then it need not be loaded."""
    return "torch" in sys.modules


def _steady_torch(threads: int) -> AbstractContextManager[None]:
    """One thread of a processor has one order in which it can add; only where there is more, being strict pays."""
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
    """Inside, the global generators of Python, numpy and PyTorch draw what belongs to this purpose, round and client.

    PyTorch's is put back by whoever holds it steady.
    """
    rng = stream(seed, purpose, round, client)
    for_torch = int(rng.integers(2**63))  # first, as everywhere
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
