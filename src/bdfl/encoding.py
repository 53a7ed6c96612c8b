"""Canonical bytes and digests: the only place where values become bytes that are hashed or signed.

Values are MessagePack arrays of integers, bytes, strings, booleans, nil and arrays of these. MessagePack allows several
encodings of one value; only the one that `encode` writes is accepted.
"""

import hashlib
from functools import cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from bdfl.errors import BdflError, one_line

DIGEST_SIZE = 32
SIGNATURE_SIZE = 64
INT_LIMIT = 2**63 - 1

Digest: TypeAlias = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=SIGNATURE_SIZE, max_length=SIGNATURE_SIZE)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=INT_LIMIT)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=INT_LIMIT)]


class BadEncoding(BdflError):
    """Bytes that are too long or not the canonical encoding of the expected record."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A value with exactly one encoding: the array of all its fields in the order of the class."""


_Record = TypeVar("_Record", bound=Record)


@cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder()


@cache
def _decoder(kind: type[_Record]) -> msgspec.msgpack.Decoder[_Record]:
    return msgspec.msgpack.Decoder(kind)


def prepared(kind: type[_Record]) -> type[_Record]:
    """Build the decoder of a kind that several threads decode, and return the kind; a class decorator.

    Two threads that build decoders of the same kinds at once crash the interpreter (msgspec 0.22).
    """
    _decoder(kind)
    return kind


def encode(record: Record) -> bytes:
    """The canonical bytes of a record."""
    return _encoder().encode(record)


def decode(data: bytes, kind: type[_Record], max_size: int) -> _Record:
    """Decode untrusted bytes as a record of that kind; raise `BadEncoding` unless they are its canonical encoding."""
    if len(data) > max_size:
        raise BadEncoding(f"{kind.__name__}: {len(data)} bytes given, at most {max_size} expected")
    try:
        record: _Record = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEncoding(f"{kind.__name__}: {one_line(error)}") from None
    if encode(record) != data:
        raise BadEncoding(f"{kind.__name__}: not the canonical encoding of its value")
    return record


def digest(data: bytes) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()


def record_digest(record: Record) -> bytes:
    """SHA-256 of the canonical bytes of a record, 32 bytes."""
    return digest(encode(record))
