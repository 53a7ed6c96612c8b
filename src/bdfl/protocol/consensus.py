"""Consensus on a block: prevotes, locks, precommits, attempts, commit. Each clause was added for a counter-example.

A node prevotes once per attempt: for its locked block; else for the first votable one; in a later attempt for the
votable one with the lowest proof-of-work hash. On a quorum of prevotes it locks, and precommits if the attempt is still
the current one. A quorum of precommits of one attempt decides.

From the third attempt on members take turns to lead: the others wait for the leader's prevote and follow it, if none of
their own precommits forbids that, and nobody precommits in the last quarter of an attempt. Without this, a member that
shows its prevotes late, to one node at a time, keeps the others' locks apart for ever.
"""

from collections.abc import Collection, Sequence
from functools import partial

from bdfl.ledger.block import Block, Certificate, Kind, SignedVote, TwoVotes
from bdfl.ledger.chain import ChainState, apply_block
from bdfl.ledger.rules import validate_model
from bdfl.ledger.statements import validate_tip_vote, validate_vote
from bdfl.protocol.deadlines import charge_lateness, hasten_resend, is_head_start, set_review
from bdfl.protocol.entries import drop_settled, note_offence, repeat_entries
from bdfl.protocol.events import Commit, KeptBlob, KeptStatement, Store, Timer
from bdfl.protocol.messages import DecidedWanted, Gossip
from bdfl.protocol.proposals import (
    is_premature,
    is_votable,
    may_close,
    start_mining,
    stop_mining,
    want_near,
    want_voted,
)
from bdfl.protocol.state import Candidate, Lock, Phase, find_end
from bdfl.protocol.transition import Draft
from bdfl.protocol.updates import enter_round
from bdfl.protocol.votes import collect_votes, find_quorums, find_rivals, is_split, key_of, reached_attempt
from bdfl.scenario.schema_learning import QuorumRule

MAX_CERTIFIED = 2048  # late votes are added to a certificate up to this size, which always fits into a block
MAX_RIVALS = 8  # conflicting votes of one member, kind and attempt that are counted
LEADERLESS_ATTEMPTS = 2  # a split of prevotes may end these early; later ones have a leader and last their full time
ABSENCE_HEIGHTS = 16  # heights for which no attempt waits for the prevote of a member that missed one or was late
MAX_VOTES_AHEAD = 16  # attempts ahead; of a member's votes beyond that only the latest is kept


def receive_vote(draft: Draft, sender: int, signed: SignedVote) -> None:
    """Count a member's vote; two of one kind and attempt for different blocks are evidence of equivocation.

    Both are counted: quorums overlap in honest members, and a quorum seen by another node must be a quorum here too.
    """
    vote, key = signed.vote, key_of(signed)
    if key in draft.votes or not draft.accepts(sender, validate_vote, signed):
        return
    rivals = find_rivals(draft.votes, key)
    if rivals:
        note_offence(draft, TwoVotes(draft.chain.place, draft.votes[rivals[0]], signed))
    if len(rivals) >= MAX_RIVALS or not _is_near(draft, signed):
        return
    if (vote.attempt, vote.kind) == (draft.attempt, Kind.PREVOTE) and _is_over(draft, 1):
        _expect_no_more(draft, {vote.voter} - _prevoters(draft))
    draft.votes[key] = signed
    want_voted(draft, sender, vote, is_first=not rivals)


def receive_late_vote(draft: Draft, sender: int, votes: Sequence[SignedVote]) -> None:
    """Add the sender's own late precommit for the tip to the certificate that the next block carries.

    Only one per member and only of the deciding attempt, since a certificate has one: at most one is verified.
    """
    held = draft.precommits
    attempt = next((first.vote.attempt for first in held.values()), 0)
    for signed in votes if sender not in held and len(held) < MAX_CERTIFIED else ():
        vote = signed.vote
        if (vote.voter, vote.kind, vote.attempt, vote.block) == (sender, Kind.PRECOMMIT, attempt, draft.chain.tip):
            if draft.accepts(sender, validate_tip_vote, signed):
                held[sender] = signed
            return


def _is_near(draft: Draft, signed: SignedVote) -> bool:
    """Return whether a vote is not far ahead or is the member's latest; its earlier votes far ahead are dropped."""
    vote, limit = signed.vote, draft.attempt + MAX_VOTES_AHEAD
    if vote.attempt <= limit:
        return True
    ahead = [key for key in draft.votes if key[0] > limit and key[1:3] == (vote.kind, vote.voter)]
    if any(key[0] >= vote.attempt for key in ahead):
        return False
    for key in ahead:
        del draft.votes[key]
    return True


def progress(draft: Draft) -> None:
    """Take every step that the held messages allow: close, follow to a later attempt, lock, vote, commit, mine."""
    if draft.phase is Phase.DONE or draft.lacks_model:
        return
    if _try_commit(draft):
        progress(draft)
        return
    _follow(draft)
    _close(draft)
    _move_lock(draft)
    _prevote(draft)
    _precommit(draft)
    if _try_commit(draft):
        progress(draft)
        return
    if _is_hopeless(draft):
        enter_attempt(draft, draft.attempt + 1)
        progress(draft)
        return
    if draft.phase is Phase.MINING and draft.leader_until_ns is None:
        start_mining(draft)
    _time_attempt(draft)
    set_review(draft)


def _close(draft: Draft) -> None:
    """End collecting when all due statements are held or the deadline is over, and a block is due."""
    if draft.phase is Phase.COLLECTING and may_close(draft):
        draft.move(Phase.MINING)
        draft.mining_since_ns = draft.now_ns


def _follow(draft: Draft) -> None:
    """Enter a later attempt that enough others have reached: one if faults are crashes only, else f + 1."""
    chain = draft.chain
    is_crash_only = chain.genesis.law.quorum is QuorumRule.MAJORITY
    num_needed = 1 if is_crash_only else len(chain.active) - chain.quorum + 1
    reached = reached_attempt(draft.votes, num_needed, draft.attempt)
    if reached:
        enter_attempt(draft, reached)


def enter_attempt(draft: Draft, attempt: int) -> None:
    """Leave the current attempt for good; stored, so that a restart does not return to it."""
    draft.attempt = attempt
    draft.attempt_end_ns = draft.leader_until_ns = None
    draft.num_resends = 0
    hasten_resend(draft, draft.context.timing.resend_ns)
    stop_mining(draft)
    want_near(draft)
    draft.keep_progress()
    if draft.phase is Phase.VOTING:
        draft.move(Phase.MINING)


def end_attempt(draft: Draft) -> None:
    """Enter the next attempt when this one times out.

    A node that voted in it first waits until a quorum, itself included, has reached it. Otherwise a node that ran ahead
    in a partition would stay ahead, and the attempts of the others would lack its precommit. Members without a quorum
    would mine and store blocks in vain.
    """
    if _is_without_quorum(draft):
        draft.attempt_end_ns = None
        return
    _expect_no_more(draft, draft.chain.active - _prevoters(draft))
    enter_attempt(draft, draft.attempt + 1)


def _expect_no_more(draft: Draft, members: Collection[int]) -> None:
    """Wait for the prevotes of these members no more for some heights, if a quorum prevoted without them."""
    if members and len(_prevoters(draft)) >= draft.chain.quorum:
        until = draft.height + ABSENCE_HEIGHTS
        draft.absent_until = {**draft.absent_until, **dict.fromkeys(members, until)}


def _prevoters(draft: Draft) -> set[int]:
    return {voter for when, kind, voter, _ in draft.votes if (when, kind) == (draft.attempt, Kind.PREVOTE)}


def _is_hopeless(draft: Draft) -> bool:
    """Return whether the attempt cannot decide: prevotes are split so that no block can reach a quorum.

    Members whose prevote recently was missing or came late are not expected. Only in the first attempts: where a lock
    and a Byzantine member keep votes apart, only re-broadcasts help, which take time.
    """
    if draft.attempt > LEADERLESS_ATTEMPTS or draft.own_vote(Kind.PREVOTE) is None:
        return False
    absent = {member for member, until in draft.absent_until.items() if until >= draft.height}
    num_expected = len(draft.chain.active - absent | _prevoters(draft)) if absent else len(draft.chain.active)
    num_expected = max(num_expected, draft.chain.quorum)
    return is_split(draft.votes, draft.attempt, num_expected, draft.chain.quorum)


def _is_without_quorum(draft: Draft) -> bool:
    has_voted = any(attempt == draft.attempt for attempt, _ in draft.own_votes)
    return has_voted and len({voter for when, _, voter, _ in draft.votes if when >= draft.attempt}) < draft.chain.quorum


def _time_attempt(draft: Draft) -> None:
    """Set the timeout of the attempt, once there is a block to vote on; later attempts last longer.

    Not while collecting: a block that is not votable yet would drive all nodes through attempts.
    """
    if draft.phase is Phase.COLLECTING or draft.attempt_end_ns is not None:
        return
    has_voted = draft.own_vote(Kind.PREVOTE) is not None
    if has_voted or any(map(partial(_is_due, draft), draft.candidates.values())):
        draft.attempt_end_ns = draft.now_ns + _attempt_ns(draft)
        draft.set_timer(Timer.ATTEMPT, _attempt_ns(draft))


def _attempt_ns(draft: Draft) -> int:
    return draft.context.timing.attempt_ns * (2 + draft.attempt) // 2


def _is_due(draft: Draft, candidate: Candidate) -> bool:
    block = candidate.block
    return candidate.is_valid and not is_premature(draft, block.body) and not is_head_start(draft, block)


def _move_lock(draft: Draft) -> None:
    """Lock on the block of the latest quorum of prevotes, even of a past attempt."""
    for attempt, block in find_quorums(draft.votes, Kind.PREVOTE, draft.chain.quorum):
        if attempt > draft.attempt or block in draft.refused:
            continue
        if draft.lock is None or attempt > draft.lock.attempt:
            draft.lock = Lock(attempt, block, collect_votes(draft.votes, Kind.PREVOTE, attempt, block))
            draft.keep_progress()
        return


def _prevote(draft: Draft) -> None:
    if draft.own_vote(Kind.PREVOTE) is not None or not draft.is_member:
        return
    candidate = _choose(draft)
    if candidate is not None:
        stop_mining(draft)
        draft.move(Phase.VOTING)
        _cast(draft, Kind.PREVOTE, candidate.digest)


def _choose(draft: Draft) -> Candidate | None:
    """The block to prevote for; none if there is none, or while the leader's prevote is awaited."""
    own, leader = _choose_alone(draft), leader_of(draft.chain, draft.attempt)
    if draft.attempt <= LEADERLESS_ATTEMPTS or leader == draft.number:
        return own
    led = [key[3] for key in draft.votes if key[:3] == (draft.attempt, Kind.PREVOTE, leader)]
    followed = next((block for block in led if _may_follow(draft, block)), None)
    if followed is not None:
        return _find_valid(draft, followed)
    is_declined = bool(led) and all(_find_valid(draft, block) for block in led)
    return own if own is None or is_declined or not _awaits_leader(draft) else None


def leader_of(chain: ChainState, attempt: int) -> int:
    """The member that leads an attempt at the height after `chain`: every active one in turn."""
    return sorted(chain.active)[(chain.height + 1 + attempt) % len(chain.active)]


def _awaits_leader(draft: Draft) -> bool:
    """Return whether the leader has time left to prevote: a quarter of the attempt from when there is a block."""
    if draft.leader_until_ns is None:
        draft.leader_until_ns = draft.now_ns + _attempt_ns(draft) // 4
        draft.set_timer(Timer.LEADER, _attempt_ns(draft) // 4)
    return draft.now_ns < draft.leader_until_ns


def _choose_alone(draft: Draft) -> Candidate | None:
    """The block that this node would prevote for without a leader."""
    if draft.lock is not None:
        return _find_valid(draft, draft.lock.block)
    votable = [candidate for candidate in draft.candidates.values() if is_votable(draft, candidate)]
    if draft.attempt > 1:
        votable = draft.lowest_hash_first(votable)
    return votable[0] if votable else None


def _may_follow(draft: Draft, block: bytes) -> bool:
    """Return whether a leader's block may be prevoted for, whatever this node is locked on.

    Only a precommit binds: then the block needs a quorum of prevotes of the precommit's attempt or a later one.
    """
    candidate = _find_valid(draft, block)
    if candidate is None:
        return False
    bound = max((attempt for attempt, kind in draft.own_votes if kind is Kind.PRECOMMIT), default=0)
    quorums = find_quorums(draft.votes, Kind.PREVOTE, draft.chain.quorum)
    if any(what == block and bound <= attempt <= draft.attempt for attempt, what in quorums):
        return True
    return not bound and is_votable(draft, candidate, is_led=True)


def _precommit(draft: Draft) -> None:
    """Precommit the block locked in this attempt; not so late that others enter the next attempt without this lock."""
    lock = draft.lock
    if lock is None or lock.attempt != draft.attempt or draft.own_vote(Kind.PRECOMMIT) is not None:
        return
    if draft.attempt > LEADERLESS_ATTEMPTS and _is_over(draft, 3):
        return
    if draft.is_member and _find_valid(draft, lock.block) is not None:
        _cast(draft, Kind.PRECOMMIT, lock.block)


def _is_over(draft: Draft, num_quarters: int) -> bool:
    """Return whether so many quarters of the attempt are over."""
    left_ns = (4 - num_quarters) * _attempt_ns(draft) // 4
    return draft.attempt_end_ns is not None and draft.now_ns >= draft.attempt_end_ns - left_ns


def _find_valid(draft: Draft, digest: bytes) -> Candidate | None:
    candidate = draft.candidates.get(digest)
    return candidate if candidate is not None and candidate.is_valid else None


def _cast(draft: Draft, kind: Kind, block: bytes) -> None:
    """Store a vote, then broadcast it: a restarted node repeats it and casts no other."""
    if not draft.own_votes and draft.mining_since_ns:  # else the node was still collecting: 0, unknown
        draft.mining_ms = max(1, (draft.now_ns - draft.mining_since_ns) // 1_000_000)
    signed = draft.sign_vote(kind, block)
    draft.votes[key_of(signed)] = draft.own_votes[draft.attempt, kind] = signed
    draft.do(Store(KeptStatement(draft.height, signed)))
    draft.send(None, Gossip(draft.attempt, votes=(signed,)))


def _try_commit(draft: Draft) -> bool:
    """Commit the decided block if it is held and valid; return whether it was."""
    for block, certificate in _find_decisions(draft):
        candidate = _find_valid(draft, block)
        if candidate is not None:
            _commit(draft, candidate, certificate)
            return True
    return False


def _find_decisions(draft: Draft) -> list[tuple[bytes, Certificate]]:
    quorums = find_quorums(draft.votes, Kind.PRECOMMIT, draft.chain.quorum)
    found = [(block, collect_votes(draft.votes, Kind.PRECOMMIT, attempt, block)) for attempt, block in quorums]
    return found if draft.decision is None else [*found, (draft.decision.block, draft.decision.certificate)]


def commit_on_trust(draft: Draft) -> None:
    """Commit the first followed block on trust in its certificate, without recomputing its model."""
    first = draft.ahead[0]
    candidate = Candidate(first.block, first.block.digest, False, None)
    _commit(draft, candidate, first.certificate, is_trusted=True)


def _commit(draft: Draft, candidate: Candidate, certificate: Certificate, *, is_trusted: bool = False) -> None:
    """Commit the block and enter the next round."""
    stop_mining(draft)
    charge_lateness(draft)
    model = b""
    if not is_trusted:
        model = validate_model(draft.chain, candidate.block, draft.needed_blobs, draft.cache)  # not held for each
        if model:
            draft.do(Store(KeptBlob(candidate.block.body.model, model)))
    draft.do(Commit(candidate.block, certificate, is_trusted))
    is_last, decision = draft.is_last or draft.is_leaving, draft.decision
    draft.move(Phase.DONE if is_last else Phase.COLLECTING)
    if draft.ahead and draft.ahead[0].block.digest != candidate.digest:  # two quorums: drop the followed blocks
        draft.ahead = ()
    draft.chain = _follow_block(draft, candidate.block)
    draft.start_height(certificate)
    draft.lacks_model = is_trusted
    if draft.chain.params.server is not None and (model or is_trusted):
        draft.model = model
    drop_settled(draft)
    draft.end = find_end(draft.context, draft.chain)
    if not is_last:
        enter_round(draft)
        repeat_entries(draft)
        if decision is not None and not draft.ahead:  # the sender may have more decided blocks
            draft.send(decision.teller, DecidedWanted())


def _follow_block(draft: Draft, block: Block) -> ChainState:
    """The chain after the block; nodes of one process at the same state share the value."""
    return draft.ahead[0].chain if draft.ahead else draft.cache.once(apply_block, draft.chain, block)
