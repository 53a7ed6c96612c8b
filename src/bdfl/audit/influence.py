"""Influence of a client on a model: leave-one-out loss, and the model estimated without its updates.

Every block with an update of the client is aggregated again without it, by the chain's own rule: model R_t instead of
W_t. The differences are summed: W'_N = W_N + sum over these blocks of (R_t - W_t). With `since` = N only the last block
is aggregated again, and the result is R_N itself.

This is not the model that would have been learned without the client. The other updates are taken as they were sent;
after the first such block they were trained on models that contain the client. Only training again shows that model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bdfl.audit.lineage import (
    aggregate_without,
    iter_blocks,
    read_model,
    read_updates,
    validate_client,
    validate_range,
)
from bdfl.learning.weights import Vector
from bdfl.ledger.member_set import read_member_set
from bdfl.ledger.store import Store

# Leave-one-out influence: the effect of a client's update on the test loss of each block's model.

LossOf = Callable[[Vector], float]  # test loss of a model


@dataclass(frozen=True)
class Effect:
    """Effect of one update on one block's model."""

    block: int
    client: int
    loss: float  # of the block's model
    loss_without: float  # of the same block's model without this update
    effect: float  # the latter minus the former: above 0 it helped, below 0 it harmed


@dataclass(frozen=True)
class Verdict:
    """Influence of a client's updates over all blocks of the range."""

    client: int
    num_blocks: int  # with an update of this client
    num_harmed: int  # of these, with an effect below 0
    mean_effect: float | None  # none: no update in these blocks
    worst_effect: float | None
    worst_block: int | None


@dataclass(frozen=True)
class Blame:
    """Effects of all updates of some blocks."""

    first: int
    last: int
    effects: tuple[Effect, ...]  # by block, then client
    verdicts: tuple[Verdict, ...]  # the worst first; clients without updates last


def blame_clients(
    chain: Store,
    loss_of: LossOf,
    *,
    first: int = 1,
    last: int | None = None,
    own_functions: frozenset[str] = frozenset(),
    on_judged: Callable[[int, int], None] | None = None,
) -> Blame:
    """Return every update's marginal effect in the blocks `first` to `last` (default: the tip).

    The effect is the loss of the block's model aggregated without the update, minus the loss of the model as it is.
    The other updates of that block do not depend on this one and stay the same. `on_judged` is called with the number
    of models evaluated and their total.
    """
    last = chain.height if last is None else last
    validate_range(chain, first, last)
    blocks = [block for block in iter_blocks(chain, first, last) if not block.body.is_empty]
    num_models = sum(1 + len(block.body.aggregated) for block in blocks)
    num_judged = 0

    def judge(model: Vector) -> float:
        nonlocal num_judged
        loss = loss_of(model)
        num_judged += 1
        if on_judged is not None:
            on_judged(num_judged, num_models)
        return loss

    effects: list[Effect] = []
    for block in blocks:
        updates = read_updates(chain, block)
        height = block.header.height
        loss = judge(read_model(chain, height))
        for update in updates:
            loss_without = judge(aggregate_without(chain, block, updates, update.client, own_functions))
            effects.append(Effect(height, update.client, loss, loss_without, loss_without - loss))
    members = read_member_set(chain.genesis, iter_blocks(chain, 1, last)).members
    verdicts = [_judge_client(client, effects) for client in range(len(members))]
    verdicts.sort(key=lambda verdict: np.inf if verdict.mean_effect is None else verdict.mean_effect)
    return Blame(first, last, tuple(effects), tuple(verdicts))


def _judge_client(client: int, effects: Sequence[Effect]) -> Verdict:
    own = [effect for effect in effects if effect.client == client]
    if not own:
        return Verdict(client, 0, 0, None, None, None)
    worst = min(own, key=lambda effect: effect.effect)
    return Verdict(
        client=client,
        num_blocks=len(own),
        num_harmed=sum(effect.effect < 0 for effect in own),
        mean_effect=float(np.mean([effect.effect for effect in own])),
        worst_effect=worst.effect,
        worst_block=worst.block,
    )


@dataclass(frozen=True, eq=False)
class Without:
    """A model without a client's updates."""

    client: int
    block: int
    since: int
    weights: Vector
    changed_in: tuple[int, ...]  # blocks that were aggregated again: those the client's update was in
    distance: float  # Euclidean distance from the chain's model
    relative_distance: float  # the same over the norm of the chain's model


def leave_out(
    chain: Store,
    client: int,
    *,
    block: int | None = None,
    since: int = 1,
    own_functions: frozenset[str] = frozenset(),
    on_block: Callable[[int, int], None] | None = None,
) -> Without:
    """Return the model of `block` (default: the tip) without the client's updates in the blocks `since` to `block`.

    `on_block` is called with the number of blocks done and their total.
    """
    last = chain.height if block is None else block
    validate_client(chain, client)
    validate_range(chain, since, last)
    original = read_model(chain, last)
    model, deviation = original, np.zeros(original.size)
    changed_in = []
    for one in iter_blocks(chain, since, last):
        if on_block is not None:
            on_block(one.header.height - since + 1, last - since + 1)
        if client not in {update.client for update in one.body.aggregated}:
            continue
        height = one.header.height
        again = aggregate_without(chain, one, read_updates(chain, one), client, own_functions)
        if height == last:
            model = again  # exact, without rounding
        else:
            deviation += again.astype(np.float64) - read_model(chain, height)
        changed_in.append(height)
    weights = (model + deviation).astype(np.float32)
    distance = float(np.linalg.norm(weights - original.astype(np.float64)))
    norm = float(np.linalg.norm(original.astype(np.float64)))
    return Without(client, last, since, weights, tuple(changed_in), distance, distance / norm if norm > 0 else 0.0)
