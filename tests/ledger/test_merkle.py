"""Merkle trees: a proof leads to the root for its own leaf at its own place, and for nothing else."""

from hypothesis import given, strategies as st

from bdfl.encoding import digest
from bdfl.ledger.merkle import MerkleProof, merkle_root, prove_leaves, proven_root

leaves = st.lists(st.binary(max_size=8), min_size=1, max_size=20)


def plain_root(parts):
    """The same law, written as it is said: the number of leaves and the top of their tree."""
    return digest(b"\x02" + len(parts).to_bytes(8, "big") + plain_top(parts))


def plain_top(parts):
    """Split at the largest power of two below the number of leaves."""
    if len(parts) == 1:
        return digest(b"\x00" + parts[0])
    split = 1 << (len(parts) - 1).bit_length() - 1
    return digest(b"\x01" + plain_top(parts[:split]) + plain_top(parts[split:]))


@given(leaves)
def test_the_root_is_that_of_the_tree_split_at_powers_of_two(parts):
    assert merkle_root(parts) == plain_root(parts)


@given(leaves, st.data())
def test_every_leaf_is_proven(parts, data):
    index = data.draw(st.integers(0, len(parts) - 1))
    assert proven_root(parts[index], prove_leaves(parts)[index]) == merkle_root(parts)


@given(leaves, st.binary(max_size=8), st.data())
def test_nothing_else_is_proven(parts, other, data):
    index = data.draw(st.integers(0, len(parts) - 1))
    proof = prove_leaves(parts)[index]
    if other != parts[index]:
        assert proven_root(other, proof) != merkle_root(parts)
    place = data.draw(st.integers(0, 2 * len(parts)))
    if place >= len(parts) or parts[place] != parts[index]:
        moved = MerkleProof(place, proof.count, proof.siblings)
        assert proven_root(parts[index], moved) != merkle_root(parts)
    longer = MerkleProof(index, proof.count, (*proof.siblings, b"x" * 32))
    assert proven_root(parts[index], longer) is None
    if proof.siblings:
        assert proven_root(parts[index], MerkleProof(index, proof.count, proof.siblings[1:])) != merkle_root(parts)


def test_an_inner_node_does_not_pass_for_a_leaf():
    parts = [b"a", b"b", b"c", b"d"]
    inner = digest(b"\x00a") + digest(b"\x00b")
    assert merkle_root([inner, b"c", b"d"]) != merkle_root(parts)
