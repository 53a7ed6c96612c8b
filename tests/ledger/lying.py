"""Chains for the tests of their verification, right ones and wrong ones that everybody voted for."""

import msgspec

from bdfl.encoding import Record
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import Block
from bdfl.ledger.memory_store import MemoryStore
from benchmarks.ledger.valid_chain import SMALL, ChainMaker, example_genesis, example_signer, example_weights

INITIAL = encode_weights(example_weights(0), SMALL)
SIGNERS = [example_signer(number) for number in range(4)]


def new_maker(**settings):
    """A chain before its first block, kept in memory."""
    return ChainMaker(MemoryStore(example_genesis(INITIAL, **settings), INITIAL), SIGNERS)


def replaced(record: Record, **changes) -> Record:
    return msgspec.structs.replace(record, **changes)


def commit_lie(maker, change, **settings):
    updates = [maker.sign_update(client, example_weights(50 + client)) for client in maker.state.schedule.selected]
    reports = [maker.sign_report(client) for client in range(4)]
    store_unasked(maker, maker.make_block(updates, reports, change=change, proposer=1, **settings))


def store_unasked(maker, block: Block):
    """Votes for a block and stores it as it is."""
    certificate = tuple(maker.sign_vote(voter, block.digest, attempt=block.header.attempt) for voter in range(4))
    maker.store._blocks.append(block)
    maker.store._certificates.append(certificate)
