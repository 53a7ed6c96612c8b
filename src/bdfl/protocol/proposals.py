"""Proposals for the height worked on: mining the node's own block, and validating those of others."""

from collections.abc import Sequence

from bdfl.encoding import encode
from bdfl.identity import Meaning, statement_digest
from bdfl.ledger.block import Block, Body, FalseWork, Kind, Seal, TwoBlocks, Vote, body_root, header_seal
from bdfl.ledger.chain import is_idle
from bdfl.ledger.errors import BadWork, InvalidBlock, NotVotable
from bdfl.ledger.rules import (
    is_timely,
    judge_schedule,
    make_body,
    make_header,
    min_offset_ms,
    required_blobs,
    validate_model,
    validate_proposal,
)
from bdfl.protocol.deadlines import is_given_up, is_head_start, max_late
from bdfl.protocol.entries import choose_entries, drops_entries, note_offence
from bdfl.protocol.events import KeptStatement, Mine, NonceFound, StopMining, Store
from bdfl.protocol.messages import BlockWanted, Proposal
from bdfl.protocol.state import Candidate, Mined, Phase, clock_offset_ms
from bdfl.protocol.transition import Draft
from bdfl.protocol.updates import find_left_out, is_complete, receive_update, want_blob
from bdfl.protocol.votes import find_quorums, tally_of

MAX_ASKED_PER_MEMBER = 4  # times the members: blocks requested because of one message
MAX_AHEAD = 2  # attempts: blocks further ahead are ignored until this node gets there


def start_mining(draft: Draft) -> None:
    """Start mining this node's own block of the attempt, if it has none yet.

    A node not scheduled to mine starts at the deadline, so that a round does not depend on a few miners.
    """
    if draft.mined is not None or _has_proposed(draft) or not draft.is_member:
        return
    is_scheduled = draft.chain.schedule.mining_hz[draft.number] > 0 or not draft.chain.schedule.is_feasible
    if not (is_scheduled or draft.is_deadline_over or draft.attempt > 1):
        return
    body = _make_own_body(draft)
    draft.mined = Mined(make_header(draft.chain, draft.attempt, draft.number, body, draft.utc_ms), body)
    draft.do(Mine(draft.mined.header))


def _make_own_body(draft: Draft) -> Body:
    """The body of a block with all held statements; in a later attempt without updates of equivocating members."""
    left_out = draft.two_faced if draft.attempt > 1 else ()
    body, _ = make_body(
        draft.chain,
        certificate=tuple(draft.precommits[voter] for voter in sorted(draft.precommits)),
        updates=tuple(signed for client, signed in draft.held_updates.items() if client not in left_out),
        reports=tuple(draft.reports[client] for client in sorted(draft.reports)),
        entries=choose_entries(draft),
        blobs=draft.needed_blobs,
        cache=draft.cache,
    )
    return body


def stop_mining(draft: Draft) -> None:
    if draft.mined is not None:
        draft.mined = None
        draft.do(StopMining())


def _has_proposed(draft: Draft) -> bool:
    """Return whether this node proposed a block in this attempt: it never proposes another."""
    return any(
        candidate.block.header.proposer == draft.number and candidate.block.header.attempt == draft.attempt
        for candidate in draft.candidates.values()
    )


def finish_mining(draft: Draft, event: NonceFound) -> None:
    """Sign, store and broadcast this node's block."""
    mined = draft.mined
    if mined is None or event.header != mined.header or draft.phase is not Phase.MINING:
        return
    seal = Seal(mined.header, event.nonce)
    signature = draft.context.signer.sign(Meaning.BLOCK, draft.chain.place, seal)
    block = Block(mined.header, event.nonce, signature, mined.body)
    draft.mined = None
    candidate = Candidate(block, block.digest, True, _find_complaint(draft, block))
    draft.candidates[candidate.digest] = candidate
    draft.do(Store(KeptStatement(draft.height, block)))
    draft.send(None, Proposal(block))


def receive_block(draft: Draft, sender: int, block: Block, *, is_decided: bool = False) -> None:
    """Take a valid block as a candidate and request its blobs; its model is recomputed once they have arrived.

    Of several blocks by one member for one attempt the first counts, others only if a member voted for them. Honest
    members vote for no block of an attempt that they have not reached: a block further ahead needs a quorum.
    """
    digest, header = block.digest, block.header
    is_needed = is_decided or _has_quorum(draft, digest)
    is_wanted = is_needed or digest in draft.wanted_blocks
    if digest in draft.candidates and is_decided:
        _want_blobs(draft, sender, block, is_needed=True)
    if digest in draft.candidates or digest in draft.refused:
        return
    if header.attempt > draft.attempt + MAX_AHEAD and not is_needed:
        draft.wanted_blocks -= {digest}
        return
    if header.proposer in draft.banned and not is_wanted:
        return
    try:
        draft.approve(validate_proposal, block)
    except InvalidBlock as error:
        draft.refuse(sender, error)
        if _is_meant_for_here(draft, block):  # else neither the digest nor the proposer is to blame
            draft.refused |= {digest}
            draft.banned |= {header.proposer}
        if isinstance(error, BadWork):  # checked after the signature: only its proposer can have made it
            _note_false_work(draft, block)
        return
    for rival in draft.candidates.values():
        if (rival.block.header.proposer, rival.block.header.attempt) == (header.proposer, header.attempt):
            note_offence(draft, TwoBlocks(rival.block.signed_header, block.signed_header))
            if not is_wanted:
                return
    draft.wanted_blocks -= {digest}
    draft.candidates[digest] = Candidate(block, digest, False, None)
    if not is_decided and header.proposer != draft.number:
        offset_ms = min_offset_ms(header.time_ms, draft.since_ms, draft.utc_ms)
        draft.clock_offsets_ms[header.proposer] = offset_ms
    for signed in block.body.updates:
        receive_update(draft, sender, signed)
    _want_blobs(draft, sender, block, is_needed=is_needed)
    complete_candidates(draft)


def _want_blobs(draft: Draft, holder: int, block: Block, *, is_needed: bool) -> None:
    """Request the blobs that a block references; beyond `MAX_BLOBS` of a member only if needed."""
    owners = {signed.update.model: signed.update.client for signed in block.body.updates}
    for blob in required_blobs(draft.chain, block):
        want_blob(draft, holder, blob, owners[blob], is_needed=is_needed)


def _has_quorum(draft: Draft, digest: bytes) -> bool:
    """Return whether a quorum prevoted or precommitted a block in one attempt, so that this node needs it."""
    quorums = (find_quorums(draft.votes, kind, draft.chain.quorum) for kind in Kind)
    return any(block == digest for found in quorums for _, block in found)


def _is_meant_for_here(draft: Draft, block: Block) -> bool:
    """Return whether its proposer signed this very block, including the body, for the height worked on.

    Any sender can corrupt another's block or replay an old one.
    """
    members = draft.chain.params.members
    if block.header.place != draft.chain.place or block.header.proposer >= len(members):
        return False
    if body_root(block.body) != block.header.body:
        return False
    statement = statement_digest(Meaning.BLOCK, block.header.place, encode(Seal(block.header, block.nonce)))
    return draft.cache.is_signed(members[block.header.proposer].public_key, block.signature, statement)


def _note_false_work(draft: Draft, block: Block) -> None:
    """Note evidence if the hash is above the target that the block itself states."""
    header = block.header
    work = draft.chain.genesis.law.work
    if not draft.cache.is_worked(work, header_seal(header), block.nonce, header.difficulty):
        note_offence(draft, FalseWork(block.signed_header))


def complete_candidates(draft: Draft) -> None:
    """Recompute the models of candidates whose blobs are all held now; drop those with an invalid blob or model."""
    if draft.lacks_model and draft.chain.params.server is not None:
        return  # its optimizer goes on from that model
    for candidate in list(draft.candidates.values()):
        blobs = () if candidate.is_valid else required_blobs(draft.chain, candidate.block)
        if candidate.is_valid or not all(blob in draft.blobs for blob in blobs):
            if any(blob in draft.refused for blob in blobs):
                _drop(draft, candidate)
            continue
        try:
            validate_model(draft.chain, candidate.block, draft.needed_blobs, draft.cache)
        except InvalidBlock as error:
            draft.refuse(candidate.block.header.proposer, error)
            _drop(draft, candidate)
            continue
        complaint = _find_complaint(draft, candidate.block)
        draft.candidates[candidate.digest] = Candidate(candidate.block, candidate.digest, True, complaint)
        draft.do(Store(KeptStatement(draft.height, candidate.block)))


def _drop(draft: Draft, candidate: Candidate) -> None:
    del draft.candidates[candidate.digest]
    draft.refused |= {candidate.digest}


def _find_complaint(draft: Draft, block: Block) -> str | None:
    try:
        draft.approve(judge_schedule, block)
    except NotVotable as error:
        return str(error)
    return None


def want_voted(draft: Draft, holder: int, vote: Vote, *, is_first: bool) -> None:
    """Request a block that a member voted for, if it may be useful.

    It is useful as the member's first prevote in an attempt at most `MAX_AHEAD` ahead, as all of honest members are.
    Once a quorum voted for it, it is needed with all blobs that it references.
    """
    if tally_of(draft.votes)[vote.attempt, vote.kind, vote.block] == draft.chain.quorum:
        want_block(draft, holder, vote.block)
        if vote.block in draft.candidates:
            _want_blobs(draft, holder, draft.candidates[vote.block].block, is_needed=True)
    elif is_first and vote.kind is Kind.PREVOTE and vote.attempt <= draft.attempt + MAX_AHEAD:
        want_block(draft, holder, vote.block)


def want_near(draft: Draft) -> None:
    """Request the blocks of first prevotes that a new attempt has brought within `MAX_AHEAD`."""
    voters: set[tuple[int, int]] = set()
    for (attempt, kind, voter, _), signed in draft.votes.items():
        is_first = (attempt, voter) not in voters
        if kind is Kind.PREVOTE and voter != draft.number:
            voters.add((attempt, voter))
            want_voted(draft, voter, signed.vote, is_first=is_first)


def want_block(draft: Draft, holder: int, digest: bytes) -> None:
    """Request a candidate block once, and again at every re-broadcast."""
    is_known = digest in draft.candidates or digest in draft.refused or digest in draft.wanted_blocks
    if not is_known:
        draft.wanted_blocks |= {digest}
        draft.send(holder, BlockWanted(digest))


def ask_for_blocks(draft: Draft, holder: int, digests: Sequence[bytes]) -> None:
    """Request candidates that a sender claims to hold; the claim is unsigned, so the request is not recorded."""
    for digest in digests[: MAX_ASKED_PER_MEMBER * draft.chain.num_members]:
        if digest not in draft.candidates and digest not in draft.refused:
            draft.send(holder, BlockWanted(digest))


def may_close(draft: Draft) -> bool:
    """Return whether collecting may end: complete or past the deadline, and the block would not be premature."""
    is_whole = is_complete(draft)
    if not (is_whole or draft.is_deadline_over):
        return False
    if draft.may_be_idle or not is_idle(tuple(draft.held_updates.values()), ()):
        return True
    return not is_premature(draft, _make_own_body(draft))


def is_premature(draft: Draft, body: Body) -> bool:
    """Return whether a block is idle before its back-off is over: an idle network would make thousands of these.

    After a round without training, a block whose next schedule has training is accepted at once.
    """
    if draft.may_be_idle or not is_idle(body.updates, body.entries):
        return False
    return draft.chain.schedule.is_feasible or not body.next_schedule.is_feasible


def is_votable(draft: Draft, candidate: Candidate, *, is_led: bool = False) -> bool:
    """Return whether this node may vote for a block it is not locked on: valid, well scheduled, timely and complete.

    A block without a scheduled member's update must wait until that member is given up; otherwise a miner that does not
    train would win every round. In the first attempt a block must have every statement that this node held while
    collecting. Later, nodes that hold different statements must converge: each attempt may leave out f members more. A
    first-attempt block must have every scheduled update, which all nodes see alike. It must not have an update of a
    member that equivocated, since not all nodes request both. A leader's block may be a head start here: nodes measure
    lateness differently.
    """
    header, body = candidate.block.header, candidate.block.body
    if not candidate.is_valid or candidate.complaint is not None or header.attempt > draft.attempt:
        return False
    if is_premature(draft, body) and not _is_vouched_for(draft, candidate.digest):
        return False
    if not _is_timely(draft, candidate.block) or (not is_led and is_head_start(draft, candidate.block)):
        return False
    if drops_entries(draft, body.entries):
        return False
    given = {signed.update.client for signed in body.updates}
    two_faced = draft.two_faced if draft.attempt > 1 else ()
    if not given.isdisjoint(two_faced):
        return False
    if header.attempt == 1 < draft.attempt and not given.issuperset(draft.chain.schedule.selected):
        return False
    if not all(is_given_up(draft, client) for client in draft.chain.scheduled.difference(given, two_faced)):
        return False
    left_out = find_left_out(draft, given, {signed.report.client for signed in body.reports}).difference(two_faced)
    return len(left_out) <= max_late(draft) * (draft.attempt - 1)


def _is_vouched_for(draft: Draft, digest: bytes) -> bool:
    """Return whether more than f members prevoted for a block: for an honest one of them it was not premature."""
    voters = {voter for _, kind, voter, block in draft.votes if block == digest and kind is Kind.PREVOTE}
    return len(voters) > len(draft.chain.active) - draft.chain.quorum


def _is_timely(draft: Draft, block: Block) -> bool:
    """Return whether a block is timely by this node's wall clock or, in case that is wrong, by the members' median."""
    return any(
        is_timely(draft.chain, block, draft.since_ms - ahead_ms, draft.utc_ms - ahead_ms, draft.attempt)
        for ahead_ms in {0, clock_offset_ms(draft.clock_offsets_ms, draft.chain.active)}
    )
