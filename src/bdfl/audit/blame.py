"""Leave-one-out influence: the effect of a client's update on the test loss of each block's model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bdfl.audit.block_summary import aggregated_updates
from bdfl.audit.reading import NotOnChain, aggregate_without, get_block, iter_blocks, read_model, read_updates
from bdfl.learning.weights import Vector
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import read_roll

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
    for height in (first, last):
        get_block(chain, height)
    if first > last:
        raise NotOnChain(f"blocks {first} to {last}: none, the first is after the last")
    blocks = [block for block in iter_blocks(chain, first, last) if not block.body.is_empty]
    num_models = sum(1 + len(aggregated_updates(block)) for block in blocks)
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
    members = read_roll(chain.genesis, iter_blocks(chain, 1, last)).members
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
