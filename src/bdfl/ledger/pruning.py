"""Pruning of blobs: those that may be dropped, and Merkle proofs that keep the updates verifiable."""

from collections.abc import Iterable

from bdfl.ledger.block import Block, Genesis, body_leaves
from bdfl.ledger.keeping import StoredRound, rested_on
from bdfl.ledger.merkle import MerkleProof, prove_leaf, prove_leaves


def last_pruned(height: int, keep_blocks: int) -> int:
    """The last block to prune so that the `keep_blocks` newest of `height` blocks stay whole; 0: none."""
    if keep_blocks < 1:
        raise ValueError(f"keep_blocks is {keep_blocks}, at least 1 expected")
    return max(height - keep_blocks, 0)


def prove_updates(block: Block) -> dict[int, MerkleProof]:
    """Inclusion proofs by client, from its `SignedUpdate` to the header's `body`."""
    proofs = prove_leaves(body_leaves(block.body))[1:]  # the first leaf is the rest of the body
    return {signed.update.client: proof for signed, proof in zip(block.body.updates, proofs, strict=True)}


def prove_update(block: Block, client: int) -> MerkleProof | None:
    """The inclusion proof of one client's update; none if the block has none."""
    for index, signed in enumerate(block.body.updates, start=1):
        if signed.update.client == client:
            return prove_leaf(body_leaves(block.body), index)
    return None


def needed_blobs(genesis: Genesis, checkpoint: Block, kept: Iterable[Block]) -> set[bytes]:
    """Digests needed to verify the kept blocks: blobs they reference, the untrained and the checkpoint's model."""
    return {genesis.model.initial, checkpoint.body.model} | {use.blob for block in kept for use in rested_on(block)}


def open_blobs(open_round: StoredRound) -> set[bytes]:
    """Digests that the open height may need: own models, and blobs that its candidates reference."""
    own = {signed.update.model for signed in open_round.updates}
    return own | {use.blob for block in open_round.candidates for use in rested_on(block)}
