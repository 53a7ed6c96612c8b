"""Merkle trees over lists of bytes, and inclusion proofs.

Leaves, inner nodes and roots are hashed with different first bytes, so that none can pass for another. An odd node at
the end of a level moves up unchanged. The root is hashed with the number of leaves: without it the last of three leaves
would also be the last of two.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from bdfl.encoding import Digest, Record, Whole, digest

_LEAF = b"\x00"
_NODE = b"\x01"
_ROOT = b"\x02"
_COUNT_SIZE = 8
_MAX_DEPTH = 32


class MerkleProof(Record, frozen=True):
    """An inclusion proof of the leaf at `index` of `count` leaves: the sibling digests on its path to the root."""

    index: Whole
    count: Whole
    siblings: Annotated[tuple[Digest, ...], Meta(max_length=_MAX_DEPTH)]


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root of the tree over at least one leaf, 32 bytes."""
    return _seal(len(leaves), _levels(leaves)[-1][0])


def prove_leaves(leaves: Sequence[bytes]) -> list[MerkleProof]:
    """The inclusion proof of every leaf."""
    levels = _levels(leaves)[:-1]
    return [MerkleProof(index, len(leaves), tuple(_siblings(levels, index))) for index in range(len(leaves))]


def _siblings(levels: Sequence[Sequence[bytes]], place: int) -> Iterator[bytes]:
    for level in levels:
        if place ^ 1 < len(level):
            yield level[place ^ 1]
        place //= 2


def proven_root(leaf: bytes, proof: MerkleProof) -> bytes | None:
    """The root that the proof leads to from this leaf; none if the proof is malformed."""
    if not proof.index < proof.count:
        return None
    siblings = list(proof.siblings)
    node, place, width = digest(_LEAF + leaf), proof.index, proof.count
    while width > 1:
        if place ^ 1 < width:
            if not siblings:
                return None
            beside = siblings.pop(0)
            node = digest(_NODE + (beside + node if place % 2 else node + beside))
        place, width = place // 2, (width + 1) // 2
    return None if siblings else _seal(proof.count, node)


def _seal(count: int, top: bytes) -> bytes:
    """Root of a tree with `count` leaves and the top node `top`."""
    return digest(_ROOT + count.to_bytes(_COUNT_SIZE, "big") + top)


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    level = [digest(_LEAF + leaf) for leaf in leaves]
    levels = [level]
    while len(level) > 1:
        pairs = [level[place : place + 2] for place in range(0, len(level), 2)]
        level = [digest(_NODE + pair[0] + pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
        levels.append(level)
    return levels
