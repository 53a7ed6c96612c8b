"""A chain as JSON lines: the genesis, then every block, with field names."""

from collections.abc import Iterator

import msgspec

from bdfl.audit.plain import Plain, to_plain
from bdfl.ledger.block import Block, Certificate, chain_id
from bdfl.ledger.keeping import Store


def export_lines(chain: Store) -> Iterator[bytes]:
    """Yield JSON documents without line ends: `{"type": "genesis", ...}`, then `{"type": "block", ...}` per block.

    A block has its stored certificate, which may contain other voters than the certificate in the next block.
    """
    genesis: dict[str, Plain] = {"type": "genesis", "chain": chain_id(chain.genesis).hex()}
    yield msgspec.json.encode(genesis | {"genesis": to_plain(chain.genesis)})
    for block in chain.blocks():
        yield msgspec.json.encode({"type": "block", **plain_block(block, chain.certificate(block.header.height))})


def plain_block(block: Block, certificate: Certificate) -> dict[str, Plain]:
    """Return a block with its digest and its certificate."""
    return {
        "height": block.header.height,
        "digest": block.digest.hex(),
        "block": to_plain(block),
        "certificate": to_plain(certificate),
    }
