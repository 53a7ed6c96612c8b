"""Nodes of a simulated network, at genesis."""

from collections.abc import Sequence

from bdfl.identity import Signer
from bdfl.ledger.block import Genesis
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.store import MemoryStore
from bdfl.protocol.state import Context, Timing
from bdfl.transports.interfaces import recover
from bdfl.transports.simulated import SimulatedNode


def make_nodes(
    genesis: Genesis,
    initial_model: bytes,
    signers: Sequence[Signer],
    timing: Timing,
    *,
    cache: VerificationCache | None = None,
    last_height: int | None = None,
    keep_blocks: int = 0,
) -> list[SimulatedNode]:
    """Make a node for every key, at genesis; all share a cache, each has a store in memory.

    Nodes beyond the members of genesis are future members: they follow the chain once it admits them.
    """
    shared = VerificationCache() if cache is None else cache
    contexts = [
        Context(number, signer, timing, shared, last_height, is_alone=True, keep_blocks=keep_blocks)
        for number, signer in enumerate(signers)
    ]
    stores = [MemoryStore(genesis, initial_model) for _ in contexts]
    return [SimulatedNode(*pair, recover(*pair)) for pair in zip(contexts, stores, strict=True)]
