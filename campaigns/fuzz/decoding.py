"""Decoding of mutated encodings: the tests try thousands of each kind, `python -m campaigns fuzz` millions."""

import time
from dataclasses import dataclass
from random import Random
from zlib import crc32

from bdfl.encoding import BadEncoding, Record, decode, encode
from campaigns.fuzz.mutations import Mutator
from campaigns.fuzz.records import draw_record

MAX_SIZE = 200_000  # bytes; some mutations are longer
_EXAMPLES = 8
_MUTATIONS_OF_AN_EXAMPLE = 2000  # then others are drawn


@dataclass(frozen=True)
class Tally:
    """Outcomes of the mutations of one kind."""

    kind: str
    tried: int
    decoded: int  # well-formed: other values, or by chance the same
    unchanged: int
    seconds: float


class AcceptedWrongly(AssertionError):
    """Bytes that were decoded although they are not the encoding of what came out."""


def try_decoding(kind: type[Record], count: int, seed: int) -> Tally:
    """Decodes `count` mutated encodings of a kind; any error but `BadEncoding` ends it.

    What is decoded must be the canonical encoding of its value: the caller of `decode` relies on it.
    """
    started = time.perf_counter()
    decoded = unchanged = 0
    for part, start in enumerate(range(0, count, _EXAMPLES * _MUTATIONS_OF_AN_EXAMPLE)):
        mutator = make_mutator(kind, seed, part)
        for _ in range(min(_EXAMPLES * _MUTATIONS_OF_AN_EXAMPLE, count - start)):
            original, mutated = mutator.mutate()
            try:
                record = decode(mutated, kind, MAX_SIZE)
            except BadEncoding:
                if mutated == original:
                    raise
                continue
            if encode(record) != mutated:
                raise AcceptedWrongly(f"{kind.__name__}: {mutated.hex()}")
            decoded += 1
            unchanged += mutated == original
    return Tally(kind.__name__, count, decoded, unchanged, time.perf_counter() - started)


def make_mutator(kind: type[Record], seed: int, part: int = 0) -> Mutator:
    """Mutations of a few drawn records; the same for the same kind, seed and part."""
    random = Random(f"{kind.__name__} {seed} {part}")
    encodings = [encode(draw_record(kind, random)) for _ in range(_EXAMPLES)]
    return Mutator(encodings, crc32(f"{kind.__name__} {seed} {part}".encode()))
