"""Lineage of a model: its contributing clients, their weights and first blocks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.aggregation import Update, closest_group, krum_scores
from bdfl.audit.block_summary import aggregated_updates, sample_weights
from bdfl.audit.reading import get_block, iter_blocks, read_updates, rule_of
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import read_roll
from bdfl.scenario import Aggregation

_BLOCK_ENTRIES = 2**20  # numbers sorted at a time


@dataclass(frozen=True)
class Contribution:
    """Contribution of a client to a model."""

    client: int
    samples: int | None  # of its update in the block that made the model; none: no update there that counts
    weight: float | None  # of its update in that model, see `update_weights`; none: not in it, or the rule is unknown
    update: str | None  # SHA-256 of it
    since: int | None  # first block whose model it entered; none: it is in no part of this model
    last: int | None  # latest such block
    num_blocks: int  # number of such blocks


@dataclass(frozen=True)
class Trace:
    """The lineage of a model."""

    block: int  # the requested height
    made_in: int  # block that made its model: an earlier one if blocks since were empty; 0: the untrained model
    model: str  # SHA-256
    rule: str
    contributions: tuple[Contribution, ...]  # by client, of all members admitted by then


def trace_model(chain: Store, height: int, *, with_weights: bool = True) -> Trace:
    """Return the contributors to the model of a block, by its own aggregate and by the models before it.

    Weights under rules other than the mean need the updates' bytes; raises `NotOnChain` if they were pruned.
    """
    model = get_block(chain, height).body.model
    first: dict[int, int] = {}
    latest: dict[int, int] = {}
    counts: Counter[int] = Counter()
    made_in = 0
    for block in iter_blocks(chain, 1, height):
        for update in aggregated_updates(block):
            first.setdefault(update.client, block.header.height)
            latest[update.client] = block.header.height
            counts[update.client] += 1
        made_in = made_in if block.body.is_empty else block.header.height
    last = [] if made_in == 0 else aggregated_updates(get_block(chain, made_in))
    weights: dict[int, float | None] = dict.fromkeys((update.client for update in last), None)
    if with_weights:
        weights |= weights_in(chain, made_in)
    samples = {update.client: update.samples for update in last}
    digests = {update.client: update.model.hex() for update in last}
    contributions = []
    members = read_roll(chain.genesis, iter_blocks(chain, 1, height)).members
    for client in range(len(members)):
        contributions.append(
            Contribution(
                client=client,
                samples=samples.get(client),
                weight=weights.get(client),
                update=digests.get(client),
                since=first.get(client),
                last=latest.get(client),
                num_blocks=counts[client],
            )
        )
    return Trace(height, made_in, model.hex(), chain.genesis.law.aggregation, tuple(contributions))


def weights_in(chain: Store, height: int) -> dict[int, float]:
    """Return the weight of every client's update in the model that a block made; empty if none or for a custom rule."""
    if height == 0:
        return {}
    block = get_block(chain, height)
    rule = rule_of(chain.genesis)
    if rule.rule == "mean":  # sample counts suffice, so a pruned chain works too
        return sample_weights(block)
    updates = read_updates(chain, block)
    weights = update_weights(rule, updates)
    if weights is None:
        return {}
    return {update.client: float(weight) for update, weight in zip(updates, weights, strict=True)}


def update_weights(rule: Aggregation, updates: Sequence[Update]) -> NDArray[np.float64] | None:
    """Return the weight of every update in the aggregate, (updates,), with sum 1; None for a custom rule.

    Every rule here is a weighted mean of the updates in each coordinate. Its weights may differ between coordinates, as
    with the median: the result is their mean over all coordinates.
    """
    vectors = [update.weights for update in updates]
    count, faulty = len(updates), rule.faulty
    if count == 0:
        return np.zeros(0)
    match rule.rule:
        case "mean":
            samples = np.array([update.samples for update in updates], dtype=np.float64)
            return np.asarray(samples / samples.sum())
        case "median":
            return _weights_of_ranks(vectors, np.arange((count - 1) // 2, count // 2 + 1))
        case "trimmed-mean":
            return _weights_of_ranks(vectors, np.arange(faulty, count - faulty))
        case "krum" | "multi-krum":
            num_chosen = 1 if rule.rule == "krum" else count - faulty
            weights = np.zeros(count)
            weights[np.argsort(krum_scores(vectors, faulty), kind="stable")[:num_chosen]] = 1.0 / num_chosen
            return weights
        case "minimum-diameter":
            group = list(closest_group(vectors, faulty))
            weights = np.zeros(count)
            weights[group] = 1.0 / len(group)
            return weights
        case _:
            return None


def _weights_of_ranks(vectors: Sequence[NDArray[np.float32]], ranks: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the share of each update among the values with these ranks, over all coordinates, (updates,)."""
    counts = np.zeros(len(vectors), dtype=np.int64)
    step = max(1, _BLOCK_ENTRIES // len(vectors))
    for start in range(0, vectors[0].size, step):
        values = np.stack([vector[start : start + step] for vector in vectors])
        order = np.argsort(values, axis=0, kind="stable")
        counts += np.bincount(order[ranks].ravel(), minlength=len(vectors))
    shares: NDArray[np.float64] = counts / counts.sum()
    return shares
