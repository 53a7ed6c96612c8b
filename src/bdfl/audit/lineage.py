"""Lineage of a model: the updates in it, block by block, and Merkle proofs of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from bdfl.aggregation import Aggregator, Update, aggregate, closest_group, get_aggregator, krum_scores
from bdfl.audit.export import Plain, to_plain
from bdfl.encoding import encode
from bdfl.errors import BdflError
from bdfl.learning.weights import Layout, Vector, decode_weights
from bdfl.ledger.block import (
    Admission,
    Block,
    Certificate,
    Evidence,
    FalseWork,
    Genesis,
    ModelUpdate,
    SignedHeader,
    SignedUpdate,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
)
from bdfl.ledger.chain_params import weights_file
from bdfl.ledger.costs import NANO
from bdfl.ledger.member_set import BINDS_AFTER, MemberSet, find_change, find_evidence, offender_of, read_member_set
from bdfl.ledger.merkle import MerkleProof, proven_root
from bdfl.ledger.store import Store
from bdfl.scenario import Aggregation
from bdfl.scenario.schema_learning import is_function
from bdfl.server_optimizer import decode_state, read_rule, take_step

# A block in one line, from its own contents.


@dataclass(frozen=True)
class BlockSummary:
    """A block in one line."""

    height: int
    digest: str
    time: str  # in UTC, by its proposer's clock
    proposer: int
    attempt: int
    trained: tuple[int, ...]  # clients whose updates count
    declined: tuple[int, ...]  # clients that trained and declined to give an update
    missing: tuple[int, ...]  # scheduled clients without an update
    num_reports: int
    num_votes: int  # of its certificate
    is_empty: bool  # the model is unchanged
    offenders: tuple[int, ...]  # members that its evidence convicts
    change: str  # of membership, in words; empty: none
    delay_s: float  # of the round by the cost model
    mean_queue: float  # after the round
    reason: str  # why no client was scheduled; empty if one was
    model: str


def show_utc(time_ms: int) -> str:
    """Format milliseconds since 1970, as in 2026-01-01 00:00:05.250 UTC."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03} UTC"


def describe_change(block: Block) -> str:
    """Describe the change of membership in a block; empty if there is none."""
    found = find_change(block.body.entries)
    if found is None:
        return ""
    height = block.header.height + BINDS_AFTER
    if isinstance(found.change, Admission):
        return f"member {found.change.number} joins from height {height} on"
    return f"member {found.change.number} is removed from height {height} on"


def describe_offence(evidence: Evidence) -> str:
    """Describe the offence that evidence proves, in a sentence."""
    who = f"client {offender_of(evidence)}"
    match evidence:
        case TwoVotes():
            vote, other = evidence.first.vote, evidence.second.vote
            return (
                f"{who} cast two {vote.kind.value}s in attempt {vote.attempt} at height {evidence.place.height}: for"
                f" block {vote.block.hex()[:12]} and for block {other.block.hex()[:12]}"
            )
        case TwoBlocks():
            header = evidence.first.header
            return f"{who} proposed two different blocks in attempt {header.attempt} at height {header.height}"
        case TwoUpdates():
            return f"{who} sent two different updates for round {evidence.place.height}"
        case FalseWork():
            return f"{who} signed a block for height {evidence.block.header.height} whose proof of work is false"


def summarise_block(block: Block, certificate: Certificate) -> BlockSummary:
    """Summarise a block in one line."""
    body = block.body
    heard = {signed.update.client for signed in body.updates}
    queue = body.queue_nano
    return BlockSummary(
        height=block.header.height,
        digest=block.digest.hex(),
        time=show_utc(block.header.time_ms),
        proposer=block.header.proposer,
        attempt=block.header.attempt,
        trained=tuple(signed.update.client for signed in body.updates if not signed.update.is_declined),
        declined=tuple(signed.update.client for signed in body.updates if signed.update.is_declined),
        missing=tuple(client for client in body.schedule.selected if client not in heard),
        num_reports=len(body.reports),
        num_votes=len(certificate),
        is_empty=body.is_empty,
        offenders=tuple(map(offender_of, find_evidence(body.entries))),
        change=describe_change(block),
        delay_s=body.modelled.delay_ns / NANO,
        mean_queue=sum(queue) / NANO / len(queue) if queue else 0.0,
        reason=body.schedule.reason,
        model=body.model.hex(),
    )


def sample_weights(block: Block) -> dict[int, float]:
    """Return the weight of each client's update in the weighted mean of a block's updates."""
    samples = {update.client: update.samples for update in block.body.aggregated}
    return {client: count / sum(samples.values()) for client, count in samples.items()}


# Models and updates of a stored chain, as vectors.


class NotOnChain(BdflError):
    """A requested block, client or blob that is not on the chain."""


def get_block(chain: Store, height: int) -> Block:
    """Return the block at a height from 1 on; raise `NotOnChain` if there is none."""
    if not 1 <= height <= chain.height:
        allowed = f"1 to {chain.height}" if chain.height else "none is there yet: a chain with blocks"
        raise NotOnChain(f"block {height}: not on the chain, {allowed} expected")
    return chain.block(height)


def member_set_of(chain: Store) -> MemberSet:
    """Return all members ever admitted to the chain, by number."""
    return read_member_set(chain.genesis, chain.blocks())


def validate_client(chain: Store, client: int) -> None:
    """Raise `NotOnChain` unless the client is, or was, a member."""
    if 0 <= client < len(chain.genesis.members):
        return  # a member of the genesis: no need to read all blocks for admissions
    num_members = len(member_set_of(chain).members)
    if not 0 <= client < num_members:
        raise NotOnChain(f"client {client}: no member of the chain, 0 to {num_members - 1} expected")


def iter_blocks(chain: Store, first: int, last: int) -> Iterator[Block]:
    """Return the blocks of these heights, both included."""
    return (get_block(chain, height) for height in range(first, last + 1))


def validate_range(chain: Store, first: int, last: int) -> None:
    """Raise `NotOnChain` unless the chain has the blocks `first` to `last`, which are at least one."""
    for height in (first, last):
        get_block(chain, height)
    if first > last:
        raise NotOnChain(f"blocks {first} to {last}: none, the first is after the last")


def layout_of(genesis: Genesis) -> Layout:
    """Return the position of each tensor in the vector of the chain's models."""
    tensors = genesis.model.tensors
    return Layout(tuple(tensor.name for tensor in tensors), tuple(tensor.shape for tensor in tensors))


def rule_of(genesis: Genesis) -> Aggregation:
    """Return the aggregation rule of the chain, without the server's optimizer."""
    return Aggregation(rule=genesis.law.rule, faulty=genesis.law.faulty)


def model_digest(chain: Store, height: int) -> bytes:
    """Return the digest of the model after a block; 0: the untrained one."""
    return chain.genesis.model.initial if height == 0 else get_block(chain, height).body.model


def read_model(chain: Store, height: int) -> Vector:
    """Return the model after a block, (parameters,), without a server's moments; 0: the untrained one."""
    return decode_weights(weights_file(chain.genesis, _read_global(chain, height)), layout_of(chain.genesis))


def _read_global(chain: Store, height: int) -> bytes:
    return _read_blob(chain, model_digest(chain, height), f"the model after block {height}")


def read_updates(chain: Store, block: Block) -> list[Update]:
    """Read the updates aggregated into the model of a block, in client order; raise `NotOnChain` if one was pruned."""
    height, layout = block.header.height, layout_of(chain.genesis)

    def read(update: ModelUpdate) -> Vector:
        what = f"the update of client {update.client} in block {height}"
        return decode_weights(_read_blob(chain, update.model, what), layout)

    return [Update(update.client, read(update), update.samples) for update in block.body.aggregated]


def aggregate_without(
    chain: Store, block: Block, updates: list[Update], client: int, own_functions: frozenset[str] = frozenset()
) -> Vector:
    """Return the model that the block would have without the client's update, (parameters,).

    If fewer than `min_updates` are left, the block would have been empty: the result is the model before it. A server's
    optimizer takes its step from the same model and moments before the block, towards the other aggregate.
    """
    others = [update for update in updates if update.client != client]
    if len(others) < chain.genesis.law.min_updates:
        return read_model(chain, block.header.height - 1)
    aggregated = aggregate(aggregator_of(chain.genesis, own_functions), others)
    server = read_rule(chain.genesis.law.aggregation)[1]
    if server is None:
        return aggregated
    before = decode_state(server, _read_global(chain, block.header.height - 1), layout_of(chain.genesis))
    weights: Vector = take_step(server, before, aggregated)[0]
    return weights


def aggregator_of(genesis: Genesis, own_functions: frozenset[str] = frozenset()) -> Aggregator:
    """Return the chain's rule as a function; a custom function must be in `own_functions`."""
    rule = rule_of(genesis)
    if is_function(rule.rule) and rule.rule not in own_functions:
        raise NotOnChain(f"aggregation {rule.rule!r}: somebody's own function, which runs only if it is allowed to")
    return get_aggregator(rule)


def _read_blob(chain: Store, digest: bytes, what: str) -> bytes:
    data = chain.get_blob(digest)
    if data is None:
        kept = f"pruned, blocks {chain.checkpoint + 1} to {chain.height} have theirs" if chain.checkpoint else "missing"
        raise NotOnChain(f"{what}: its bytes ({digest.hex()[:16]}) are not stored: {kept}")
    return data


# Lineage of a model: its contributing clients, their weights and first blocks.

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
        for update in block.body.aggregated:
            first.setdefault(update.client, block.header.height)
            latest[update.client] = block.header.height
            counts[update.client] += 1
        made_in = made_in if block.body.is_empty else block.header.height
    last = [] if made_in == 0 else get_block(chain, made_in).body.aggregated
    weights = weights_in(chain, made_in) if with_weights else {}
    samples = {update.client: update.samples for update in last}
    digests = {update.client: update.model.hex() for update in last}
    members = read_member_set(chain.genesis, iter_blocks(chain, 1, height)).members
    contributions = tuple(
        Contribution(
            client=client,
            samples=samples.get(client),
            weight=weights.get(client),
            update=digests.get(client),
            since=first.get(client),
            last=latest.get(client),
            num_blocks=counts[client],
        )
        for client in range(len(members))
    )
    return Trace(height, made_in, model.hex(), chain.genesis.law.aggregation, contributions)


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
            chosen = np.argsort(krum_scores(vectors, faulty), kind="stable")[:num_chosen]
        case "minimum-diameter":
            chosen = np.array(closest_group(vectors, faulty))
        case _:
            return None
    weights = np.zeros(count)
    weights[chosen] = 1.0 / len(chosen)
    return weights


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


# Proof that a client's update is in a block; a verifier needs only the chain's genesis.


@dataclass(frozen=True)
class UpdateProof:
    """An update, its Merkle path to the header of its block, and the block's certificate."""

    update: SignedUpdate
    proof: MerkleProof
    block: SignedHeader
    certificate: Certificate

    def to_plain(self) -> dict[str, Plain]:
        """Return all fields by name, with the exact bytes that are hashed."""
        return {
            "update": to_plain(self.update),
            "leaf": encode(self.update).hex(),
            "proof": to_plain(self.proof),
            "header": to_plain(self.block.header),
            "header_bytes": encode(self.block.header).hex(),
            "nonce": self.block.nonce.hex(),
            "signature": self.block.signature.hex(),
            "certificate": to_plain(self.certificate),
        }


def prove_update(chain: Store, height: int, client: int) -> UpdateProof:
    """Prove that the client's update is in the block at a height; raise `NotOnChain` if it is not."""
    block = get_block(chain, height)
    validate_client(chain, client)
    found = next((signed for signed in block.body.updates if signed.update.client == client), None)
    proof = chain.proof(height, client)
    if found is None or proof is None:
        clients = [signed.update.client for signed in block.body.updates]
        raise NotOnChain(f"block {height}: no update of client {client} in it, only of clients {clients}")
    if proven_root(encode(found), proof) != block.header.body:
        raise NotOnChain(f"block {height}: the stored proof of client {client} does not lead to it")
    return UpdateProof(found, proof, block.signed_header, chain.certificate(height))
