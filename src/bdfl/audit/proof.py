"""Proof that a client's update is in a block; a verifier needs only the chain's genesis."""

from dataclasses import dataclass

from bdfl.audit.plain import Plain, to_plain
from bdfl.audit.reading import NotOnChain, get_block, validate_client
from bdfl.encoding import encode
from bdfl.ledger.block import Certificate, SignedHeader, SignedUpdate
from bdfl.ledger.keeping import Store
from bdfl.ledger.merkle import MerkleProof, proven_root


@dataclass(frozen=True)
class UpdateProof:
    """An update, its Merkle path to the header of its block, and the block's certificate."""

    update: SignedUpdate
    proof: MerkleProof
    block: SignedHeader
    certificate: Certificate

    def to_plain(self) -> dict[str, Plain]:
        """Return all fields by name, with the exact bytes that are hashed."""
        return {
            "update": to_plain(self.update),
            "leaf": encode(self.update).hex(),
            "proof": to_plain(self.proof),
            "header": to_plain(self.block.header),
            "header_bytes": encode(self.block.header).hex(),
            "nonce": self.block.nonce.hex(),
            "signature": self.block.signature.hex(),
            "certificate": to_plain(self.certificate),
        }


def prove_update(chain: Store, height: int, client: int) -> UpdateProof:
    """Prove that the client's update is in the block at a height; raise `NotOnChain` if it is not."""
    block = get_block(chain, height)
    validate_client(chain, client)
    found = next((signed for signed in block.body.updates if signed.update.client == client), None)
    proof = chain.proof(height, client)
    if found is None or proof is None:
        clients = [signed.update.client for signed in block.body.updates]
        raise NotOnChain(f"block {height}: no update of client {client} in it, only of clients {clients}")
    if proven_root(encode(found), proof) != block.header.body:
        raise NotOnChain(f"block {height}: the stored proof of client {client} does not lead to it")
    return UpdateProof(found, proof, block.signed_header, chain.certificate(height))
