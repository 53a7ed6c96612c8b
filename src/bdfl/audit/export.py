"""A chain as JSON lines: genesis first, then block after block, everything by name."""

from collections.abc import Iterator

import msgspec

from bdfl.audit.plain import Plain, to_plain
from bdfl.ledger.block import Block, Certificate, chain_id
from bdfl.ledger.keeping import Store


def export_lines(chain: Store) -> Iterator[bytes]:
    """JSON documents without line ends: `{"type": "genesis", ...}`, then `{"type": "block", ...}` for every block.

    A block comes with the certificate it was stored with, which may name other voters than the one its child carries.
    """
    genesis: dict[str, Plain] = {"type": "genesis", "chain": chain_id(chain.genesis).hex()}
    yield msgspec.json.encode(genesis | {"genesis": to_plain(chain.genesis)})
    for block in chain.blocks():
        yield msgspec.json.encode({"type": "block", **plain_block(block, chain.certificate(block.header.height))})


def plain_block(block: Block, certificate: Certificate) -> dict[str, Plain]:
    """A block with its digest and its certificate."""
    return {
        "height": block.header.height,
        "digest": block.digest.hex(),
        "block": to_plain(block),
        "certificate": to_plain(certificate),
    }
