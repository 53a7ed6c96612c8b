"""Makes the golden vectors and the tables of FORMAT.md again: `python tests/vectors/make_vectors.py`.

What it writes is the same on every machine: keys and weights are made of whole numbers, schedules are made by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from bdfl.aggregation import get_aggregator
from bdfl.audit.export import to_plain
from bdfl.encoding import Record, digest, encode
from bdfl.identity import Meaning, statement_digest
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import (
    Admission,
    Block,
    FalseWork,
    Kind,
    Law,
    Member,
    MembershipChange,
    Privacy,
    Receipt,
    Removal,
    Seal,
    SignedReport,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
    block_digest,
    body_leaves,
    chain_id,
    header_seal,
)
from bdfl.ledger.merkle import merkle_root, prove_leaves
from bdfl.ledger.proof_of_work import is_worked, work_hash
from bdfl.ledger.statements import change_place, make_change
from bdfl.ledger.store import MemoryStore
from bdfl.protocol.messages import (
    BlockWanted,
    Decided,
    DecidedWanted,
    Gossip,
    Message,
    Proposal,
)
from bdfl.scenario import Accountant, Aggregation, LocalUnit
from bdfl.scenario.schema_learning import QuorumRule, WorkKind
from benchmarks.ledger.valid_chain import (
    CONDITIONS,
    SMALL,
    ChainMaker,
    example_genesis,
    example_limits,
    example_signer,
    example_weights,
    plan_by_hand,
)
from tests.vectors.ed25519_cases import edge_cases
from tests.vectors.format_tables import with_tables

FOLDER = Path(__file__).parent
VECTORS, CHAIN, FORMAT = (FOLDER / name for name in ("vectors.json", "chain.json", "FORMAT.md"))
ADAM = "adam rate=10000e-6 beta1=900000e-6 beta2=990000e-6 epsilon=1000e-6"
MOMENTUM = "mean momentum rate=1000000e-6 beta=900000e-6"
CHAINS = {  # by file: the aggregation of its law
    CHAIN: "mean",
    FOLDER / "chain-momentum.json": MOMENTUM,
    FOLDER / "chain-adam.json": f"median {ADAM}",
}
NUM_KEYS = 5
SECRETS = [bytes([number + 1]) * 32 for number in range(NUM_KEYS)]
_LAW = Law(QuorumRule.BFT, WorkKind.SHA256, 16, 40, "mean", 0, 1, 20 * 10**9)
_PRIVACY = Privacy(1_100_000, 1_000_000, 10**13, Accountant.RDP, 32, 5, LocalUnit.UPDATES)

Json = dict[str, Any]


def make_chain(aggregation: str = "mean") -> ChainMaker:
    """Eight blocks in which nearly everything happens that a verifier must understand.

    1: everybody takes part, member 2 without data. 2: in the second attempt; member 1 diverged, member 3 is missing and
    rests, member 2 is convicted. 3: only members 0 and 1 are left. 4: nobody is heard of, the block is empty. 5: member
    4 is admitted. 6: member 2 is removed. 7: with member 4 and still with member 2. 8: without member 2, and member 4
    trains. Training is private: updates say what is spent.
    """
    initial = encode_weights(example_weights(0), SMALL)
    law = msgspec.structs.replace(_LAW, aggregation=aggregation)
    genesis = example_genesis(initial, samples=(100, 200, 0, 400), law=law, plan=plan_by_hand, privacy=_PRIVACY)
    signers = [example_signer(number) for number in range(NUM_KEYS)]
    maker = ChainMaker(MemoryStore(genesis, initial), signers, plan_by_hand)

    updates = [maker.sign_update(client, example_weights(client + 1)) for client in range(4)]
    maker.commit(maker.make_block(updates, [maker.sign_report(client) for client in range(4)]), mining_ms=30)

    receipts = [Receipt(1, 10**11 + client, 10**8, 10**7, 10**9) for client in range(4)]
    updates = [maker.sign_update(client, weights) for client, weights in _second_round().items()]
    reports = [maker.sign_report(client, receipt=receipts[client]) for client in (0, 1, 3)]
    block = maker.make_block(updates, reports, entries=[two_votes(maker)], attempt=2, proposer=1)
    maker.commit(block, voters=(0, 1, 3), mining_ms=90)

    updates = [maker.sign_update(client, example_weights(client + 20)) for client in maker.state.schedule.selected]
    weaker = msgspec.structs.replace(CONDITIONS, gain_atto=CONDITIONS.gain_atto // 3, is_reachable=True)
    reports = [maker.sign_report(0, weaker), maker.sign_report(1), maker.sign_report(3)]
    maker.commit(maker.make_block(updates, reports, proposer=3), mining_ms=45)

    reports = [maker.sign_report(client) for client in range(4)]
    maker.commit(maker.make_block([], reports, proposer=0), voters=(0, 1, 2), mining_ms=45)

    reports = [maker.sign_report(client) for client in (0, 1, 3)]
    block = maker.make_block([], reports, entries=[admission(maker)], proposer=2)
    maker.commit(block, voters=(1, 2, 3), mining_ms=45)

    updates = [maker.sign_update(client, example_weights(client + 30)) for client in maker.state.schedule.selected]
    block = maker.make_block(updates, reports_of(maker, 0, 1, 3), entries=[removal(maker)], proposer=1)
    maker.commit(block, voters=(0, 1, 3), mining_ms=45)

    updates = [maker.sign_update(client, example_weights(client + 60)) for client in maker.state.schedule.selected]
    block = maker.make_block(updates, reports_of(maker, 0, 2, 3, 4), proposer=4)
    maker.commit(block, voters=(1, 2, 3, 4), mining_ms=45)

    updates = [maker.sign_update(client, example_weights(client + 70)) for client in maker.state.schedule.selected]
    block = maker.make_block(updates, reports_of(maker, 0, 1, 3, 4), proposer=3)
    maker.commit(block, voters=(0, 1, 4), mining_ms=45)
    return maker


def reports_of(maker: ChainMaker, *clients: int) -> list[SignedReport]:
    return [maker.sign_report(client) for client in clients]


def admission(maker: ChainMaker) -> MembershipChange:
    """Member 4 is admitted until block 6; member 2 agrees too, which does not count."""
    member = Member(maker.signers[4].public_key, example_limits(500), CONDITIONS)
    return make_change(maker.state.chain, Admission(4, member), 6, dict(enumerate(maker.signers[:4])))


def removal(maker: ChainMaker) -> MembershipChange:
    """Member 2 is removed."""
    return make_change(maker.state.chain, Removal(2), 100, {number: maker.signers[number] for number in (0, 1, 3)})


def _second_round() -> dict[int, Any]:
    return {0: example_weights(11), 1: None, 2: example_weights(13)}


def two_votes(maker: ChainMaker) -> TwoVotes:
    """Member 2 voted for two blocks."""
    names = [digest(text) for text in (b"one block", b"another block")]
    first, second = (maker.sign_vote(2, name, kind=Kind.PREVOTE) for name in names)
    return TwoVotes(maker.state.place, first, second)


def make_records(maker: ChainMaker) -> list[Record]:
    """At least one record of every kind that is not inside another one of these."""
    blocks = list(maker.store.blocks())
    last, certificate = blocks[-1], maker.store.certificate(len(blocks))
    chain = maker.state.chain
    place = maker.state.place
    updates = [maker.sign_update(client, example_weights(client + 40)) for client in range(2)]
    other = maker.sign_update(0, example_weights(50))
    votes = tuple(maker.sign_vote(voter, digest(b"one block"), kind=Kind.PREVOTE) for voter in range(2))
    changed = msgspec.structs.replace(last.header, body=digest(b"another body"))
    nonce = next(
        nonce
        for number in range(1000)
        if not is_worked(WorkKind.SHA256, header_seal(changed), nonce := number.to_bytes(8, "big"), changed.difficulty)
    )
    seal = Seal(changed, nonce)
    signature = maker.signers[0].sign(Meaning.BLOCK, changed.place, seal)
    false_block = Block(changed, nonce, signature, last.body).signed_header
    contents = [
        Gossip(
            attempt=1,
            wants_answer=True,
            updates=tuple(updates),
            reports=(maker.sign_report(1),),
            votes=votes,
            blocks=(digest(b"one block"),),
            changes=(removal(maker),),
        ),
        Proposal(last),
        BlockWanted(digest(b"one block")),
        DecidedWanted(),
        Decided(last, certificate),
    ]
    return [
        maker.state.genesis,
        *blocks,
        Seal(last.header, last.nonce),
        two_votes(maker),
        TwoBlocks(last.signed_header, false_block),
        TwoUpdates(place, updates[0], other),
        FalseWork(false_block),
        admission(maker),
        removal(maker),
        prove_leaves(body_leaves(blocks[0].body))[3],
        *(Message(chain, 1, 5, content) for content in contents),
    ]


def inside(record: Record) -> list[Record]:
    """A record and all records in it, outer ones first."""
    found = [record]
    for name in record.__struct_fields__:
        value = getattr(record, name)
        for item in value if isinstance(value, tuple) else (value,):
            found += inside(item) if isinstance(item, Record) else []
    return found


def describe_encodings(maker: ChainMaker) -> list[Json]:
    """The first record of every kind that these records hold, with its bytes."""
    firsts: dict[type[Record], Record] = {}
    for outer in make_records(maker):
        for record in inside(outer):
            firsts.setdefault(type(record), record)
    return [
        {
            "kind": kind.__name__,
            "value": to_plain(record),
            "bytes": encode(record).hex(),
            "digest": digest(encode(record)).hex(),
        }
        for kind, record in sorted(firsts.items(), key=lambda item: item[0].__name__)
    ]


def describe_bad_encodings() -> list[Json]:
    """Bytes that are to be refused although a lenient reader would take them for a Place."""
    zeros = "c420" + "00" * 32
    return [
        {"kind": "Place", "bytes": bytes_, "why": why}
        for why, bytes_ in {
            "integer in two bytes where one serves": f"93{zeros}cc01{zeros}",
            "array head of three bytes where one serves": f"dc0003{zeros}01{zeros}",
            "bytes head of three bytes where two serve": f"93c50020{'00' * 32}01{zeros}",
            "text where bytes belong": f"93d920{'00' * 32}01{zeros}",
            "a number that is not whole": f"93{zeros}cb3ff0000000000000{zeros}",
            "a field too few": f"92{zeros}01",
            "a field too many": f"94{zeros}01{zeros}00",
            "something after the end": f"93{zeros}01{zeros}00",
            "a negative height": f"93{zeros}ff{zeros}",
            "a height of 64 bits": f"93{zeros}cf8000000000000000{zeros}",
            "a digest of 31 bytes": f"93c41f{'00' * 31}01{zeros}",
            "a map": "83a5636861696e00a668656967687401a6706172656e7400",
            "a claim of four billion elements": f"ddffffffff{zeros}01{zeros}",
            "cut off": f"93{zeros}01",
        }.items()
    ]


def describe_statements(maker: ChainMaker) -> list[Json]:
    """What members signed for block 1, and for a change of membership, and how."""
    block = maker.store.block(1)
    place = block.header.place
    body = block.body
    signed: list[tuple[Meaning, int, Record, bytes]] = [
        (Meaning.UPDATE, 0, body.updates[0].update, body.updates[0].signature),
        (Meaning.REPORT, 1, body.reports[1].report, body.reports[1].signature),
        (Meaning.BLOCK, 0, Seal(block.header, block.nonce), block.signature),
        (Meaning.VOTE, 3, maker.store.certificate(1)[3].vote, maker.store.certificate(1)[3].signature),
    ]
    change = removal(maker)
    agreed = change_place(maker.state.chain, change.expires)
    placed = [(place, *statement) for statement in signed]
    placed.append((agreed, Meaning.MEMBERSHIP, 3, change.change, change.assents[2].signature))
    return [
        {
            "meaning": meaning.value,
            "place": encode(where).hex(),
            "content": encode(content).hex(),
            "statement": statement_digest(meaning, where, encode(content)).hex(),
            "member": member,
            "signature": signature.hex(),
        }
        for where, meaning, member, content, signature in placed
    ]


def describe_merkle() -> list[Json]:
    """Trees of 1 to 6 leaves with all proofs."""
    trees = [[b"leaf %d" % number for number in range(count)] for count in range(1, 7)]
    return [
        {
            "leaves": [leaf.hex() for leaf in leaves],
            "root": merkle_root(leaves).hex(),
            "proofs": [to_plain(proof) for proof in prove_leaves(leaves)],
        }
        for leaves in trees
    ]


def describe_work(maker: ChainMaker) -> list[Json]:
    """Hashes of both kinds for nonces that serve and that do not."""
    block = maker.store.block(1)
    seal = header_seal(block.header)
    found = []
    for kind in WorkKind:
        for nonce in (block.nonce, bytes(8), b"\xff" * 8):
            hashed = work_hash(kind, seal, nonce)
            served = 2**256 // (int.from_bytes(hashed, "big") + 1)  # the highest difficulty that this hash serves
            found.append(
                {
                    "kind": kind.value,
                    "seal": seal.hex(),
                    "nonce": nonce.hex(),
                    "hash": hashed.hex(),
                    "serves": served,
                }
            )
            assert is_worked(kind, seal, nonce, served)
            assert not is_worked(kind, seal, nonce, served + 1)
    return found


def describe_aggregation() -> list[Json]:
    """What every rule makes of the same updates."""
    samples = [3, 10, 7, 1, 5]
    updates = [example_weights(number) for number in (1, 2, 3, 4, 99)]
    updates[3] = np.where(np.arange(8) % 2 == 0, np.float32(-0.0), updates[3]).astype(np.float32)
    rules = [("mean", 0), *((rule, 1) for rule in ("median", "trimmed-mean", "krum", "multi-krum", "minimum-diameter"))]
    return [
        {
            "rule": rule,
            "faulty": faulty,
            "samples": samples,
            "updates": [update.astype("<f4").tobytes().hex() for update in updates],
            "result": get_aggregator(Aggregation(rule=rule, faulty=faulty))(updates, samples)
            .astype("<f4")
            .tobytes()
            .hex(),
        }
        for rule, faulty in rules
    ]


def describe_chain(maker: ChainMaker) -> Json:
    """A whole chain: what a verifier is given, and what it should find."""
    store = maker.store
    genesis = store.genesis
    blocks = list(store.blocks())
    wanted = [genesis.model.initial]
    for block in blocks:
        wanted += [block.body.model, *(signed.update.model for signed in block.body.updates)]
    blobs = {blob.hex(): data.hex() for blob in dict.fromkeys(wanted) if (data := store.get_blob(blob)) is not None}
    return {
        "genesis": encode(genesis).hex(),
        "blocks": [encode(block).hex() for block in blocks],
        "certificates": [
            msgspec.msgpack.encode(store.certificate(height)).hex() for height in range(1, len(blocks) + 1)
        ],
        "blobs": blobs,
        "found": {
            "chain": chain_id(genesis).hex(),
            "digests": [block_digest(block.header, block.nonce).hex() for block in blocks],
            "model": maker.state.model.hex(),
            "queue_nano": list(maker.state.queue_nano),
            "misses": list(maker.state.misses),
            "rests_until": list(maker.state.rests_until),
            "offenders": sorted(maker.state.offenders),
            "active": sorted(maker.state.active),
            "epsilon_micro": list(maker.state.epsilon_micro),
            "difficulty": maker.state.difficulty,
            "times_ms": list(maker.state.times_ms),
        },
    }


def make_vectors() -> Json:
    """All vectors but the chains."""
    maker = make_chain()
    keys = [
        {"secret": secret.hex(), "public": example_signer(number).public_key.hex()}
        for number, secret in enumerate(SECRETS)
    ]
    return {
        "keys": keys,
        "encodings": describe_encodings(maker),
        "bad_encodings": describe_bad_encodings(),
        "statements": describe_statements(maker),
        "ed25519": edge_cases(),
        "merkle": describe_merkle(),
        "work": describe_work(maker),
        "aggregation": describe_aggregation(),
    }


def render(value: Json) -> str:
    """JSON as it is committed."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    VECTORS.write_text(render(make_vectors()), encoding="utf-8")
    for path, aggregation in CHAINS.items():
        path.write_text(render(describe_chain(make_chain(aggregation))), encoding="utf-8")
    FORMAT.write_text(with_tables(FORMAT.read_text(encoding="utf-8")), encoding="utf-8")
    for path in (VECTORS, *CHAINS, FORMAT):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
