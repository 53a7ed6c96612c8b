"""Mutated statements, blocks and messages before the rules and a node: nothing that was changed is ever accepted.

The originals are all that honest members say for one block. A mutation that is well-formed goes to the rules that judge
its kind; only what equals an original may pass.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from bdfl.encoding import BadEncoding, Record, decode, digest, encode
from bdfl.identity import Meaning
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import (
    Admission,
    Block,
    Body,
    Certificate,
    FalseWork,
    Genesis,
    Header,
    Kind,
    Member,
    MembershipChange,
    Removal,
    Seal,
    SignedHeader,
    SignedReport,
    SignedUpdate,
    SignedVote,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
    header_seal,
)
from bdfl.ledger.chain import start_chain
from bdfl.ledger.errors import InvalidGenesis, RuleBroken
from bdfl.ledger.proof_of_work import is_worked
from bdfl.ledger.rules import make_header, validate_evidence, validate_model, validate_proposal
from bdfl.ledger.statements import (
    make_change,
    validate_certificate,
    validate_change,
    validate_report,
    validate_update,
    validate_vote,
)
from bdfl.ledger.store import MemoryStore
from bdfl.protocol.events import Commit, KeptStatement, MessageArrived, Started, Store
from bdfl.protocol.messages import (
    BlockWanted,
    Content,
    Decided,
    DecidedWanted,
    Gossip,
    Message,
    Proposal,
    decode_message,
)
from bdfl.protocol.node import begin, step
from bdfl.protocol.state import Context, NodeState, Recovered, Timing
from bdfl.scenario.schema_learning import WorkKind
from benchmarks.ledger.valid_chain import (
    CONDITIONS,
    SMALL,
    ChainMaker,
    example_genesis,
    example_limits,
    example_signer,
    example_weights,
)
from campaigns.fuzz.decoding import MAX_SIZE, AcceptedWrongly, Tally
from campaigns.fuzz.mutations import Mutator

_NODE = 3  # the member that messages come to
_MINED_HERE = 64  # highest difficulty that is worth the time


@dataclass(frozen=True, eq=False)
class Court:
    """A chain of two blocks and all that is said for the third."""

    maker: ChainMaker
    updates: tuple[SignedUpdate, ...]
    reports: tuple[SignedReport, ...]
    votes: tuple[SignedVote, ...]
    blocks: tuple[Block, ...]
    certificates: tuple[Certificate, ...]  # of these blocks
    headers: tuple[SignedHeader, ...]  # signed, but not all of valid blocks
    changes: tuple[MembershipChange, ...]
    blobs: dict[bytes, bytes] = field(default_factory=dict)


@cache
def hold_court() -> Court:
    initial = encode_weights(example_weights(0), SMALL)
    genesis = example_genesis(initial)
    maker = ChainMaker(MemoryStore(genesis, initial), [example_signer(number) for number in range(4)])
    maker.grow(2)
    clients = range(4)
    updates = tuple(maker.sign_update(client, example_weights(70 + client)) for client in clients)
    others = tuple(maker.sign_update(client, example_weights(80 + client)) for client in clients)
    reports = tuple(maker.sign_report(client) for client in clients)
    names = digest(b"a block"), digest(b"another block")
    votes = tuple(maker.sign_vote(voter, name, kind=kind) for voter in clients for name in names for kind in Kind)
    guilty = TwoVotes(maker.state.place, votes[0], votes[2])
    signers = dict(enumerate(maker.signers))
    member = Member(example_signer(4).public_key, example_limits(500), CONDITIONS)
    changes = tuple(make_change(maker.state.chain, one, 9, signers) for one in (Admission(4, member), Removal(2)))
    blocks = (
        maker.make_block(updates, reports, entries=[changes[1]]),
        maker.make_block(updates[:2], reports[:3], entries=[guilty, changes[0]], attempt=2, proposer=2),
    )
    certificates = tuple(
        tuple(maker.sign_vote(voter, block.digest, attempt=block.header.attempt) for voter in clients)
        for block in blocks
    )
    headers = (*(block.signed_header for block in blocks), _sign_false_work(maker, blocks[0]))
    blobs = {one.update.model: maker.store.get_blob(one.update.model) for one in (*updates, *others)}
    return Court(maker, (*updates, *others), reports, votes, blocks, certificates, headers, changes, blobs)


def _sign_false_work(maker: ChainMaker, block: Block) -> SignedHeader:
    header = block.header
    nonces = (number.to_bytes(8, "big") for number in range(10_000))
    nonce = next(nonce for nonce in nonces if not is_worked(WorkKind.SHA256, header_seal(header), nonce, 16))
    signature = maker.signers[header.proposer].sign(Meaning.BLOCK, header.place, Seal(header, nonce))
    return SignedHeader(header, nonce, signature)


# By kind: who judges. A judge raises `RuleBroken`, or says whether all that it accepted is original.

Judge = Callable[[Record], bool]


def _judge_update(record: Record) -> bool:
    court = hold_court()
    assert isinstance(record, SignedUpdate)
    validate_update(court.maker.state, record, court.maker.cache)
    return record in court.updates


def _judge_report(record: Record) -> bool:
    court = hold_court()
    assert isinstance(record, SignedReport)
    validate_report(court.maker.state, record, court.maker.cache)
    return record in court.reports


def _judge_vote(record: Record) -> bool:
    court = hold_court()
    assert isinstance(record, SignedVote)
    validate_vote(court.maker.state, record, court.maker.cache)
    return record in court.votes


def _judge_block(record: Record) -> bool:
    court = hold_court()
    assert isinstance(record, Block)
    validate_proposal(court.maker.state, record, court.maker.cache)
    validate_model(court.maker.state, record, court.blobs, court.maker.cache)
    return record in court.blocks


def _judge_body(record: Record) -> bool:
    """Of a body that its proposer mines and signs anew, only what is a proposer's to choose may differ.

    It may leave out votes beyond the quorum, choose among genuine reports and evidence, and plan another schedule
    within the constraints.
    """
    court = hold_court()
    maker = court.maker
    assert isinstance(record, Body)
    block = maker.seal(make_header(maker.state, 1, 0, record, 0), record)
    validate_proposal(maker.state, block, maker.cache)
    validate_model(maker.state, block, court.blobs, maker.cache)
    fixed = ("schedule", "is_empty", "model", "queue_nano", "modelled", "updates")
    return any(
        all(getattr(record, name) == getattr(original.body, name) for name in fixed)
        and set(record.parent_certificate) <= set(original.body.parent_certificate)
        and set(record.reports) <= set(court.reports)
        for original in court.blocks
    ) and all(
        _judge_change(entry) if isinstance(entry, MembershipChange) else _judge_evidence(entry)
        for entry in record.entries
    )


def _judge_header(record: Record) -> bool:
    """Of a header mined and signed anew for a body, attempt, proposer and time may differ: anybody may propose it."""
    court = hold_court()
    maker = court.maker
    assert isinstance(record, Header)
    if record.difficulty > _MINED_HERE or record.proposer >= maker.state.num_members:
        return True  # would have to be mined, or signed by nobody: not judged here
    body = court.blocks[0].body
    validate_proposal(maker.state, maker.seal(record, body), maker.cache)
    expected = make_header(maker.state, record.attempt, record.proposer, body, record.time_ms)
    return record == expected


def _judge_decided(record: Record) -> bool:
    court = hold_court()
    assert isinstance(record, Decided)
    validate_certificate(court.maker.state, record.block.digest, record.certificate, court.maker.cache)
    genuine = [vote for certificate in court.certificates for vote in certificate]
    are_genuine = all(vote in genuine for vote in record.certificate)
    return _judge_block(record.block) and are_genuine


def _judge_evidence(record: Record) -> bool:
    """Evidence may turn round what it is made of, but must be made of what its author signed."""
    court = hold_court()
    assert isinstance(record, TwoVotes | TwoBlocks | TwoUpdates | FalseWork)
    validate_evidence(court.maker.state, record, court.maker.cache)
    match record:
        case TwoVotes():
            return record.place == court.maker.state.place and {record.first, record.second} <= set(court.votes)
        case TwoUpdates():
            return record.place == court.maker.state.place and {record.first, record.second} <= set(court.updates)
        case TwoBlocks():
            return {record.first, record.second} <= set(court.headers)
        case FalseWork():
            return record.block in court.headers


def _judge_change(record: Record) -> bool:
    """Of a change assents beyond the quorum may be left out."""
    court = hold_court()
    assert isinstance(record, MembershipChange)
    validate_change(court.maker.state, record, court.maker.cache)
    return _is_original_change(record)


def _is_original_change(record: MembershipChange) -> bool:
    return any(
        (record.change, record.expires) == (one.change, one.expires) and set(record.assents) <= set(one.assents)
        for one in hold_court().changes
    )


def _judge_genesis(record: Record) -> bool:
    """Another genesis is another chain: no block of the first is valid on it."""
    court = hold_court()
    assert isinstance(record, Genesis)
    state = start_chain(record, court.maker.cache)
    if record == court.maker.store.genesis:
        return True
    try:
        validate_proposal(state, court.maker.store.block(1), court.maker.cache)
    except RuleBroken:
        return bool(state.chain != court.maker.state.chain)
    return False


@cache
def _start_node() -> tuple[Context, NodeState]:
    court = hold_court()
    context = Context(_NODE, court.maker.signers[_NODE], Timing(10**9, 10**9, 10**9), court.maker.cache)
    state = begin(context, court.maker.state, Recovered(certificate=court.maker.certificate))
    return context, step(context, state, Started(), 0, 0)[0]


def _judge_message(record: Record) -> bool:
    """A node takes from a message only what honest members said."""
    court = hold_court()
    assert isinstance(record, Message)
    context, before = _start_node()
    after, effects = step(context, before, MessageArrived(record), 1, 0)
    committed = [effect.block for effect in effects if isinstance(effect, Commit)]
    stored = [one.kept.statement for one in effects if isinstance(one, Store) and isinstance(one.kept, KeptStatement)]
    kept = [block for block in stored if isinstance(block, Block)]
    own = {signed.vote.voter for signed in after.own_votes.values()}
    certified = [vote for certificate in court.certificates for vote in certificate]
    return (
        all(update in court.updates for update in after.updates.values())
        and all(report in court.reports for report in after.reports.values())
        and all(vote in (*court.votes, *certified) for vote in after.votes.values() if vote.vote.voter not in own)
        and all(candidate.block in court.blocks for candidate in after.candidates.values())
        and all(block in court.blocks for block in (*committed, *kept))
        and all(digest(data) == name for name, data in after.blobs.items())
        and all(_is_original_change(change) for change in after.changes)
    )


def _evidence() -> dict[type[Record], Sequence[Record]]:
    court = hold_court()
    place, votes, updates, headers = court.maker.state.place, court.votes, court.updates, court.headers
    return {
        TwoVotes: [TwoVotes(place, votes[0], votes[2]), TwoVotes(place, votes[5], votes[7])],
        TwoUpdates: [TwoUpdates(place, updates[client], updates[client + 4]) for client in range(4)],
        TwoBlocks: [TwoBlocks(headers[0], headers[2])],
        FalseWork: [FalseWork(headers[2])],
    }


def _messages() -> list[Message]:
    court = hold_court()
    contents: list[Content] = [
        Gossip(
            attempt=1,
            wants_answer=True,
            updates=court.updates[:3],
            reports=court.reports[:3],
            votes=court.votes[:8],
            blocks=(court.blocks[0].digest,),
            changes=court.changes,
        ),
        Proposal(court.blocks[0]),
        Proposal(court.blocks[1]),
        BlockWanted(court.blocks[0].digest),
        DecidedWanted(),
        Decided(court.blocks[0], court.certificates[0]),
        Decided(court.blocks[1], court.certificates[1]),
    ]
    return [Message(court.maker.state.chain, 1, 3, content) for content in contents]


def judged_kinds() -> dict[type[Record], tuple[Sequence[Record], Judge]]:
    """Every kind that somebody judges, with originals and the judge."""
    court = hold_court()
    decided = [Decided(*both) for both in zip(court.blocks, court.certificates, strict=True)]
    return {
        SignedUpdate: (court.updates, _judge_update),
        SignedReport: (court.reports, _judge_report),
        SignedVote: (court.votes, _judge_vote),
        Block: (court.blocks, _judge_block),
        Body: ([block.body for block in court.blocks], _judge_body),
        Header: ([block.header for block in court.blocks[:1]], _judge_header),
        Decided: (decided, _judge_decided),
        Genesis: ([court.maker.store.genesis], _judge_genesis),
        MembershipChange: (court.changes, _judge_change),
        Message: (_messages(), _judge_message),
        **{kind: (originals, _judge_evidence) for kind, originals in _evidence().items()},
    }


def try_judging(kind: type[Record], count: int, seed: int) -> Tally:
    """Gives `count` mutations of a kind to its judge; `decoded` counts those that were well-formed.

    Raises `AcceptedWrongly` if one passes that is not an original, and whatever else a judge raises but `RuleBroken`.
    """
    started = time.perf_counter()
    originals, judge = judged_kinds()[kind]
    for original in originals:
        if not judge(original):
            raise AcceptedWrongly(f"{kind.__name__}: an original was not accepted as such")
    mutator = Mutator([encode(original) for original in originals], seed)
    decoded = unchanged = 0
    for _ in range(count):
        encoded, mutated = mutator.mutate()
        unchanged += mutated == encoded
        try:
            record = decode_message(mutated) if kind is Message else decode(mutated, kind, MAX_SIZE)
        except BadEncoding:
            continue
        decoded += 1
        try:
            is_original = judge(record)
        except (RuleBroken, InvalidGenesis):
            continue
        if not is_original:
            raise AcceptedWrongly(f"{kind.__name__} accepted: {mutated.hex()}")
    return Tally(f"{kind.__name__} judged", count, decoded, unchanged, time.perf_counter() - started)
