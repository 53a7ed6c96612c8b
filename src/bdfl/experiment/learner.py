"""Learning in a simulated run: training of the clients, and evaluation of each block's model."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bdfl.learning.attacks import poison_results
from bdfl.learning.personal import PersonalFolder
from bdfl.learning.training import NO_PERSONAL, Evaluation, FullGradient, LocalResult, Trainer
from bdfl.learning.weights import Vector, decode_weights, encode_weights
from bdfl.ledger.block import Block
from bdfl.ledger.chain import ChainState
from bdfl.records.learning import LearningRound, or_none
from bdfl.scenario import Scenario
from bdfl.scenario.schema_learning import MICRO

_ROUNDS_REMEMBERED = 2  # a late member may still request their results


class Learner:
    """Trains for all members of a simulated network, and evaluates the global model."""

    def __init__(
        self,
        scenario: Scenario,
        trainer: Trainer,
        model: bytes,
        weights: Vector,
        personal: PersonalFolder | None = None,
    ) -> None:
        """`model` is the digest of the global model that the next round starts from, `weights` are its values.

        `personal` keeps the clients' personal layers; none: there are none.
        """
        self._scenario = scenario
        self._settings = scenario.learning
        self._trainer = trainer
        self._model = model
        self._weights = weights
        self._personal = personal
        self._measured: tuple[Vector, NDArray[np.float64]] | None = None  # a model, and the full gradient there
        self._evaluated: tuple[bytes, Evaluation] | None = None  # digest of a model, and its evaluation
        self._results: OrderedDict[bytes, list[LocalResult]] = OrderedDict()  # by the tip they were trained on

    def train(self, client: int, chain: ChainState, model: bytes) -> bytes | None:
        """Model that the client sends for the round after `chain`, starting from `model`; None if training diverged.

        All scheduled clients are trained at the first request.
        """
        start = self._weights if chain.model == self._model else decode_weights(model, self._trainer.layout)
        weights = self._train_all(chain, start)[chain.schedule.selected.index(client)].weights
        return None if weights is None else encode_weights(weights, self._trainer.layout)

    def learn(self, chain: ChainState, block: Block, model: bytes) -> LearningRound:
        """Record the next round, which began at `chain` and ended in `block` with `model`."""
        round = block.header.height
        measured, smoothness = self._measure(round)
        results = self._train_all(chain, self._weights)
        weights = self._weights if block.body.is_empty else decode_weights(model, self._trainer.layout)
        is_evaluated = round % self._settings.evaluate_every == 0 or round == self._scenario.rounds
        found = self._evaluate(round, weights, block.body.model) if is_evaluated else None
        spent_micro = {signed.update.client: signed.update.epsilon_micro for signed in block.body.updates}
        row = LearningRound(
            round=round,
            selected=list(chain.schedule.selected),
            outcome=[result.outcome.value for result in results],
            local_loss=[or_none(result.loss) for result in results],
            local_gradient_norm=[or_none(result.gradient_norm) for result in results],
            epsilon=[
                spent_micro[client] / MICRO if spent_micro.get(client) else None for client in chain.schedule.selected
            ],
            update_norm=_norm(weights.astype(np.float64) - self._weights),
            accuracy=None if found is None else or_none(found.accuracy),
            loss=None if found is None else or_none(found.loss),
            recall=None if found is None else [or_none(share) for share in found.recall.tolist()],
            gradient_norm=None if measured is None else or_none(_norm(measured.gradient)),
            global_loss=None if measured is None else or_none(measured.loss),
            smoothness=smoothness,
            model=block.body.model.hex(),
        )
        self._model, self._weights = block.body.model, weights
        return row

    def measure_again(self, weights: Vector) -> None:
        """Restore the last measurement of an interrupted run by computing it again, with the same bits."""
        self._measured = weights, self._trainer.full_gradient(weights).gradient

    def _train_all(self, chain: ChainState, weights: Vector) -> Sequence[LocalResult]:
        known = self._results.get(chain.tip)
        if known is not None:
            return known
        round, clients = chain.height + 1, list(chain.schedule.selected)
        own = NO_PERSONAL if self._personal is None else self._personal.find(clients, before=round)
        results = self._trainer.train(weights, round, clients, own) if clients else []
        if self._personal is not None:
            self._personal.keep(round, results)
        self._results[chain.tip] = poison_results(self._scenario, weights, round, results)
        if len(self._results) > _ROUNDS_REMEMBERED:
            self._results.popitem(last=False)
        return self._results[chain.tip]

    def _evaluate(self, round: int, weights: Vector, model: bytes) -> Evaluation:
        if self._personal is not None:
            own = self._personal.find(range(self._scenario.clients.count), before=round + 1)
            return self._trainer.evaluate(weights, own)
        if self._evaluated is None or self._evaluated[0] != model:
            self._evaluated = model, self._trainer.evaluate(weights)
        return self._evaluated[1]

    def _measure(self, round: int) -> tuple[FullGradient | None, float | None]:
        """Full gradient at the model before this round, if due, and its change relative to the last one."""
        every = self._settings.gradient_every
        if every == 0 or (round - 1) % every != 0:
            return None, None
        found = self._trainer.full_gradient(self._weights)
        last, self._measured = self._measured, (self._weights, found.gradient)
        if last is None:
            return found, None
        distance = _norm(self._weights.astype(np.float64) - last[0])
        if not distance > 0:
            return found, None
        return found, or_none(_norm(found.gradient - last[1]) / distance)


def _norm(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.sum(np.square(values))))
