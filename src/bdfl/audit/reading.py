"""Models and updates of a stored chain, as vectors."""

from collections.abc import Iterator

from bdfl.aggregation import Aggregator, Update, aggregate, get_aggregator
from bdfl.audit.block_summary import aggregated_updates
from bdfl.errors import BdflError
from bdfl.learning.weights import Layout, Vector, decode_weights
from bdfl.ledger.block import Block, Genesis
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import Roll, read_roll
from bdfl.scenario import Aggregation
from bdfl.scenario.learning import is_function


class NotOnChain(BdflError):
    """A requested block, client or blob that is not on the chain."""


def get_block(chain: Store, height: int) -> Block:
    """Return the block at a height from 1 on; raise `NotOnChain` if there is none."""
    if not 1 <= height <= chain.height:
        raise NotOnChain(f"block {height}: not on the chain, {_expected_heights(chain.height)} expected")
    return chain.block(height)


def roll_of(chain: Store) -> Roll:
    """Return all members ever admitted to the chain, by number."""
    return read_roll(chain.genesis, chain.blocks())


def validate_client(chain: Store, client: int) -> None:
    """Raise `NotOnChain` unless the client is, or was, a member."""
    if 0 <= client < len(chain.genesis.members):
        return  # a member of the genesis: no need to read all blocks for admissions
    num_members = len(roll_of(chain).members)
    if not 0 <= client < num_members:
        raise NotOnChain(f"client {client}: no member of the chain, 0 to {num_members - 1} expected")


def iter_blocks(chain: Store, first: int, last: int) -> Iterator[Block]:
    """Return the blocks of these heights, both included."""
    return (get_block(chain, height) for height in range(first, last + 1))


def layout_of(genesis: Genesis) -> Layout:
    """Return the position of each tensor in the vector of the chain's models."""
    tensors = genesis.model.tensors
    return Layout(tuple(tensor.name for tensor in tensors), tuple(tensor.shape for tensor in tensors))


def rule_of(genesis: Genesis) -> Aggregation:
    """Return the aggregation rule of the chain."""
    return Aggregation(rule=genesis.law.aggregation, faulty=genesis.law.faulty)


def model_digest(chain: Store, height: int) -> bytes:
    """Return the digest of the model after a block; 0: the untrained one."""
    return chain.genesis.model.initial if height == 0 else get_block(chain, height).body.model


def read_model(chain: Store, height: int) -> Vector:
    """Return the model after a block, (parameters,); 0: the untrained one."""
    name = model_digest(chain, height)
    return _read_vector(chain, name, f"the model after block {height}")


def read_updates(chain: Store, block: Block) -> list[Update]:
    """Read the updates aggregated into the model of a block, in client order; raise `NotOnChain` if one was pruned."""
    height = block.header.height
    return [
        Update(update.client, _read_vector(chain, update.model, _update_name(update.client, height)), update.samples)
        for update in aggregated_updates(block)
    ]


def aggregate_without(
    chain: Store, block: Block, updates: list[Update], client: int, own_functions: frozenset[str] = frozenset()
) -> Vector:
    """Return the model that the block would have without the client's update, (parameters,).

    If fewer than `min_updates` are left, the block would have been empty: the result is the model before it.
    """
    others = [update for update in updates if update.client != client]
    if len(others) < chain.genesis.law.min_updates:
        return read_model(chain, block.header.height - 1)
    return aggregate(aggregator_of(chain.genesis, own_functions), others)


def aggregator_of(genesis: Genesis, own_functions: frozenset[str] = frozenset()) -> Aggregator:
    """Return the chain's rule as a function; a custom function must be in `own_functions`."""
    rule = rule_of(genesis)
    if is_function(rule.rule) and rule.rule not in own_functions:
        raise NotOnChain(f"aggregation {rule.rule!r}: somebody's own function, which runs only if it is allowed to")
    return get_aggregator(rule)


def _read_vector(chain: Store, digest: bytes, what: str) -> Vector:
    data = chain.get_blob(digest)
    if data is None:
        kept = f"pruned, blocks {chain.checkpoint + 1} to {chain.height} have theirs" if chain.checkpoint else "missing"
        raise NotOnChain(f"{what}: its bytes ({digest.hex()[:16]}) are not stored: {kept}")
    return decode_weights(data, layout_of(chain.genesis))


def _update_name(client: int, height: int) -> str:
    return f"the update of client {client} in block {height}"


def _expected_heights(height: int) -> str:
    return f"1 to {height}" if height else "none is there yet: a chain with blocks"
