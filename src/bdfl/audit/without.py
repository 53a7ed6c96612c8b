"""The model of a block without a client's updates, estimated from the stored updates.

Every block with an update of the client is aggregated again without it, by the chain's own rule: model R_t instead of
W_t. The differences are summed: W'_N = W_N + sum over these blocks of (R_t - W_t). With `since` = N only the last block
is aggregated again, and the result is R_N itself.

This is not the model that would have been learned without the client. The other updates are taken as they were sent;
after the first such block they were trained on models that contain the client. Only training again shows that model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bdfl.audit.block_summary import aggregated_updates
from bdfl.audit.reading import (
    NotOnChain,
    aggregate_without,
    get_block,
    iter_blocks,
    read_model,
    read_updates,
    validate_client,
)
from bdfl.learning.weights import Vector
from bdfl.ledger.keeping import Store


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
    for height in (since, last):
        get_block(chain, height)
    if since > last:
        raise NotOnChain(f"blocks {since} to {last}: none, the first is after the last")
    original = read_model(chain, last)
    model, deviation = original, np.zeros(original.size)
    changed_in = []
    for one in iter_blocks(chain, since, last):
        if on_block is not None:
            on_block(one.header.height - since + 1, last - since + 1)
        if client not in {update.client for update in aggregated_updates(one)}:
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
