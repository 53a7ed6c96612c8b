"""Chains for the tests of their verification, right ones and wrong ones that everybody voted for."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import msgspec

from bdfl.encoding import Record, digest, encode
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import Admission, Block, Member, body_root
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.sqlite_tables import encode_certificate
from bdfl.ledger.statements import make_change
from bdfl.ledger.store import MemoryStore
from benchmarks.ledger.valid_chain import (
    CONDITIONS,
    SMALL,
    ChainMaker,
    example_genesis,
    example_limits,
    example_signer,
    example_weights,
)

INITIAL = encode_weights(example_weights(0), SMALL)
SIGNERS = [example_signer(number) for number in range(4)]


def new_maker(**settings):
    """A chain before its first block, kept in memory."""
    return ChainMaker(MemoryStore(example_genesis(INITIAL, **settings), INITIAL), SIGNERS)


def new_admission(key: bytes) -> ChainMaker:
    """A chain whose only block admits a member with any key, as somebody without the rule for keys makes it."""
    maker = new_maker()
    member = Member(key, example_limits(100), CONDITIONS)
    change = make_change(maker.state.chain, Admission(4, member), 9, dict(enumerate(SIGNERS)))
    updates = [maker.sign_update(client, example_weights(client + 1)) for client in maker.state.schedule.selected]
    reports = [maker.sign_report(client) for client in range(4)]
    with patch("bdfl.ledger.chain_params.is_public_key", return_value=True):
        maker.commit(maker.make_block(updates, reports, entries=[change]))
    return maker


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


@dataclass(frozen=True)
class FieldLie:
    """One field of a block that says something else than the rules require."""

    rule: str  # by `bdfl chain verify`
    browser_rule: str
    header: dict[str, object]
    body: dict[str, object]
    read: Callable[[Block], str]  # the field as `bdfl chain verify` shows it
    read_in_browser: Callable[[Block], str]


def _hex(data: bytes) -> str:
    return data.hex()[:16]


def _both(rule: str, browser_rule: str, read: Callable[[Block], str], **header: object) -> FieldLie:
    return FieldLie(rule, browser_rule, header, {}, read, read)


FIELD_LIES = {
    "chain": _both("chain", "link", lambda block: _hex(block.header.chain), chain=digest(b"another chain")),
    "height": _both("height", "link", lambda block: str(block.header.height), height=4),
    "parent": _both("parent", "link", lambda block: _hex(block.header.parent), parent=digest(b"another parent")),
    "body": _both("body-root", "body", lambda block: _hex(block.header.body), body=digest(b"another body")),
    "difficulty": _both("difficulty", "difficulty", lambda block: str(block.header.difficulty), difficulty=15),
    "is_empty": FieldLie(
        "empty", "empty", {}, {"is_empty": True}, lambda block: str(block.body.is_empty),
        lambda block: "an empty block" if block.body.is_empty else "a block with a new model",
    ),
    "queue_nano": FieldLie(
        "queues", "queues", {}, {"queue_nano": (7 * 10**9, 0, 0, 0)}, lambda block: str(block.body.queue_nano),
        lambda block: str(block.body.queue_nano[0] // 10**9),
    ),
}  # fmt: skip


def write_field_lie(path: Path, lie: FieldLie) -> tuple[Block, Block]:
    """A chain in a folder whose third block lies, with everybody's votes: the block as it should be, and as it is."""
    with ChainStore.create(path, example_genesis(INITIAL), INITIAL, durable=False) as store:
        maker = ChainMaker(store, SIGNERS)
        maker.grow(2)
        updates = [maker.sign_update(client, example_weights(50 + client)) for client in maker.state.schedule.selected]
        honest = maker.make_block(updates, [maker.sign_report(client) for client in range(4)], proposer=1)
        body = replaced(honest.body, **lie.body)
        wrong = maker.seal(replaced(honest.header, **({"body": body_root(body)} | lie.header)), body)
        votes = encode_certificate(tuple(maker.sign_vote(voter, wrong.digest) for voter in range(4)))
        maker.commit(honest)
    with sqlite3.connect(path / DATABASE_FILE) as database:
        row = (encode(wrong), votes, digest(encode(wrong) + votes))
        database.execute("UPDATE blocks SET data = ?, certificate = ?, checksum = ? WHERE height = 3", row)
    database.close()
    return honest, wrong
