"""Model and data poisoning by adversarial members.

`W` is the global model at the start of a round and `w` the model after honest training. Data and results of honest
members pass through as the same objects.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bdfl.environment import Purpose, stream
from bdfl.learning.dataset import DataSet
from bdfl.learning.partition import Partition
from bdfl.learning.training import NAN, LocalResult, Outcome
from bdfl.learning.weights import Vector
from bdfl.scenario import Behaviour, Scenario

_LARGEST = float(np.finfo(np.float32).max)


def poison_labels(scenario: Scenario, data: DataSet, partition: Partition) -> DataSet:
    """Return the training data with label k of every sample held by a label-flipping member changed to K - 1 - k.

    The test set and the partition stay: a member declares the labels it was assigned.
    """
    adversaries = scenario.adversaries
    if adversaries.kind is not Behaviour.LABEL_FLIP or not adversaries.members:
        return data
    held = np.concatenate([partition.indices[member] for member in adversaries.members])
    labels = data.train_labels.copy()
    labels[held] = data.num_labels - 1 - data.train_labels[held]
    labels.setflags(write=False)
    return replace(data, train_labels=labels)


def poison_results(scenario: Scenario, parent: Vector, round: int, results: Sequence[LocalResult]) -> list[LocalResult]:
    """Results that the clients of a round send, in the order of `results`; `parent` is the model they started from.

    A member without data sends its result unchanged. So does one whose training diverged, unless it is lazy.
    """
    kind, members = scenario.adversaries.kind, frozenset(scenario.adversaries.members)
    match kind:
        case Behaviour.LAZY:
            trained = [result for result in results if result.client not in members and result.weights is not None]
            copied = min(trained, key=lambda result: result.client, default=None)
            return [_copy_result(result, copied, parent) if result.client in members else result for result in results]
        case Behaviour.SIGN_FLIP | Behaviour.SCALING | Behaviour.GAUSSIAN:
            return [
                replace(result, weights=_bend(scenario, parent, round, result.client, result.weights))
                if result.client in members and result.weights is not None
                else result
                for result in results
            ]
        case _:
            return list(results)


def _bend(scenario: Scenario, parent: Vector, round: int, client: int, weights: Vector) -> Vector:
    """Poisoned model that the member sends, (parameters,); s is the strength.

    sign-flip: W - s (w - W). scaling: W + s (w - W). gaussian: W + s r z with r the root mean square of w - W and z
    standard normal, drawn for each round and client. Values beyond float32 are clipped to its range.
    """
    start = parent.astype(np.float64)
    learned = weights - start
    strength = scenario.adversaries.strength
    match scenario.adversaries.kind:
        case Behaviour.SIGN_FLIP:
            sent = start - strength * learned
        case Behaviour.SCALING:
            sent = start + strength * learned
        case _:
            rng = stream(scenario.seed, Purpose.ATTACK, round, client)
            spread = np.sqrt(np.mean(np.square(learned)))
            sent = start + strength * spread * rng.standard_normal(len(start))
    # Receivers reject infinities, which would be another behaviour.
    return np.clip(sent, -_LARGEST, _LARGEST).astype(np.float32)


def _copy_result(own: LocalResult, copied: LocalResult | None, parent: Vector) -> LocalResult:
    """Result of a lazy member: a copy of another client's, or the global model if there is none to copy."""
    if own.outcome is Outcome.NO_SAMPLES:
        return own
    if copied is None:
        return LocalResult(own.client, Outcome.TRAINED, parent.copy(), NAN, NAN, 0)
    return replace(copied, client=own.client)
