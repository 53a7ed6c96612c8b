"""A chain as JSON lines; needs no pyarrow."""

from collections.abc import Iterator
from enum import Enum, StrEnum
from typing import TypeAlias

import msgspec

from bdfl.encoding import Record
from bdfl.ledger.block import Block, Certificate, chain_id
from bdfl.ledger.store import Store

# Records of a chain as plain JSON values with field names.

Plain: TypeAlias = "bool | int | str | list[Plain] | dict[str, Plain] | None"


def to_plain(value: object) -> Plain:
    """Return a record as a dictionary of its fields, bytes as hexadecimal text; a tagged record has a `kind`."""
    if isinstance(value, Record):
        tag = value.__struct_config__.tag
        kind: dict[str, Plain] = {} if tag is None else {"kind": str(tag)}
        return kind | {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return str(value.value)
    assert value is None or isinstance(value, bool | int | str), type(value)
    return value


# A chain as JSON lines: the genesis, then every block, with field names.


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


# File formats of exported tables.


class Format(StrEnum):
    """A file format; its value is also the file extension."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"
