"""Re-broadcast of held statements, requests for missing data, and state sync with nodes that are ahead.

Re-broadcasts back off exponentially within an attempt: all-to-all, at every interval, they would fill a slow line and
delay new messages, and a network without a quorum is nearly silent. News and newcomers hasten the next one.

Where updates are pruned, a node that was away too long, or is new, cannot recompute every model. It then follows the
decided blocks without their blobs: each needs a certificate by the members of its height and must keep every rule that
can be checked without models. Blocks so old that all members have pruned their blobs are committed on trust in their
certificates. The model of the newest such block is fetched, and from there on every model is recomputed.
"""

from bdfl.ledger.block import MAX_MEMBERS, SignedUpdate, SignedVote
from bdfl.ledger.chain import ChainState, apply_block
from bdfl.ledger.errors import InvalidBlock
from bdfl.ledger.rules import validate_proposal
from bdfl.ledger.statements import validate_certificate
from bdfl.ledger.store import last_pruned
from bdfl.protocol.consensus import commit_on_trust, progress
from bdfl.protocol.deadlines import hasten_resend, max_late, set_resend, tell_of
from bdfl.protocol.messages import BlockWanted, Content, Decided, DecidedWanted, Gossip, Message, Proposal
from bdfl.protocol.proposals import receive_block
from bdfl.protocol.state import Decision, Followed, Phase
from bdfl.protocol.transition import Draft
from bdfl.protocol.updates import enter_round, fetch_blob, want_blob
from bdfl.protocol.votes import key_of

MAX_EARLY = 16  # messages for the next height kept per sender
MAX_DOUBLINGS = 6  # of the interval between two re-broadcasts
NEWS_INTERVALS = 8  # the longest wait for a re-broadcast after news
NEWCOMER_SHARE = 8  # of an interval: the wait for a re-broadcast after a member appeared


def say_again(draft: Draft) -> None:
    """Re-broadcast all held statements of this height, and request missing data from one member after the other."""
    if draft.phase is Phase.DONE:
        return
    draft.turn += 1
    draft.num_resends += 1
    draft.send(
        None,
        Gossip(
            draft.attempt,
            wants_answer=True,
            updates=_updates_to_say(draft),
            reports=tuple(draft.reports[client] for client in sorted(draft.reports)),
            votes=_votes_to_say(draft),
            blocks=tuple(candidate.digest for candidate in draft.candidates.values() if candidate.is_valid),
            changes=draft.changes,
            evidence=tuple(draft.evidence[offender] for offender in sorted(draft.evidence)),
        ),
    )
    if draft.lacks_model:
        draft.wanted_blobs.setdefault(draft.chain.model, _next_holder(draft, draft.number))
    if draft.ahead:
        draft.send(_next_holder(draft, draft.number), DecidedWanted(), _head(draft).height + 1)
    for blob, client in draft.wanted_blobs.items():
        fetch_blob(draft, blob, _next_holder(draft, client))
    for block in sorted(draft.wanted_blocks):
        draft.send(_next_holder(draft, draft.number), BlockWanted(block))
    set_resend(draft, draft.context.timing.resend_ns << min(draft.num_resends, MAX_DOUBLINGS))


def tell_lacking(draft: Draft, sender: int, said: Gossip) -> None:
    """Tell a member that repeats all it holds what it lacks of a few members, which may keep back from it alone."""
    updates = (draft.held_updates.keys() & draft.announced) - {signed.update.client for signed in said.updates}
    reports = draft.reports.keys() - {signed.report.client for signed in said.reports}
    lacking = (updates | reports) & draft.due
    if 0 < len(lacking) <= max_late(draft):
        tell_of(draft, sender, lacking)


def note_news(draft: Draft) -> None:
    """Re-broadcast before long: what this node holds has changed."""
    hasten_resend(draft, NEWS_INTERVALS * draft.context.timing.resend_ns)


def greet(draft: Draft) -> None:
    """Re-broadcast soon, to members that appeared, but not twice in an interval: presence is not authenticated."""
    interval_ns = draft.context.timing.resend_ns
    due_ns = max(draft.now_ns + interval_ns // NEWCOMER_SHARE, draft.greeting_from_ns)
    if due_ns < draft.resend_at_ns:
        hasten_resend(draft, due_ns - draft.now_ns)
        draft.greeting_from_ns = due_ns + interval_ns


def ask_others(draft: Draft, sender: int, content: Content) -> None:
    """Request wanted blobs also from a sender that claims to hold them: each member once, beside the re-broadcasts."""
    if not draft.wanted_blobs:
        return
    for signed in _updates_in(content):
        blob = signed.update.model
        if blob in draft.wanted_blobs and sender not in draft.asked_holders.get(blob, ()):
            fetch_blob(draft, blob, sender)


def _updates_in(content: Content) -> tuple[SignedUpdate, ...]:
    match content:
        case Gossip(updates=updates):
            return updates
        case Proposal(block) | Decided(block):
            return block.body.updates
    return ()


def _updates_to_say(draft: Draft) -> tuple[SignedUpdate, ...]:
    """Held updates, and both of each equivocating member, so that all nodes know which members to leave out."""
    both = [signed for found in draft.two_faced.values() for signed in (found.first, found.second)]
    return tuple(dict.fromkeys((*both, *draft.held_updates.values())))[:MAX_MEMBERS]


def _next_holder(draft: Draft, first: int) -> int:
    """Another member to ask, by round-robin over the turns, starting near `first`."""
    num_members, active = draft.chain.num_members, draft.chain.active
    near = (first + draft.turn - 1) % num_members
    others = ((near + step) % num_members for step in range(num_members))
    return next((other for other in others if other in active and other != draft.number), near)


def _votes_to_say(draft: Draft) -> tuple[SignedVote, ...]:
    """Own votes, all votes from the previous attempt on, and the prevotes behind the lock."""
    said = {key: vote for key, vote in draft.votes.items() if key[2] == draft.number or key[0] >= draft.attempt - 1}
    if draft.lock is not None:
        said |= {key_of(vote): vote for vote in draft.lock.prevotes}
    return tuple(said[key] for key in sorted(said))


def hear_ahead(draft: Draft, message: Message) -> None:
    """Buffer a message for the next height until this one is decided; request the decision if the sender is ahead."""
    if draft.phase is Phase.DONE:
        return
    content = message.content
    if isinstance(content, Decided):
        receive_decided(draft, message.sender, message.height, content)
        return
    is_next = message.height == draft.height + 1
    if is_next and isinstance(content, (Gossip, Proposal)):
        if sum(kept.sender == message.sender for kept in draft.early) < MAX_EARLY:
            draft.early = (*draft.early, message)
        if not (isinstance(content, Gossip) and content.wants_answer):
            return
    if draft.ahead:
        _ask_further(draft, message)
    elif draft.decision is None or draft.decision.block not in draft.candidates:  # else only blobs are missing
        draft.send(message.sender, DecidedWanted())


def _ask_further(draft: Draft, message: Message) -> None:
    """Request the block after the followed ones from a sender that has it, else the model of the tip.

    The model only then: models of intermediate blocks are pruned, or about to be.
    """
    sender, next_height = message.sender, _head(draft).height + 1
    is_asking = isinstance(message.content, Gossip) and message.content.wants_answer
    if message.height > next_height and (is_asking or sender not in draft.asked):
        draft.asked |= {sender}
        draft.send(sender, DecidedWanted(), next_height)
    elif message.height == next_height and draft.lacks_model:
        want_blob(draft, sender, draft.chain.model, sender)


def receive_decided(draft: Draft, sender: int, height: int, decided: Decided) -> None:
    """Take a decided block with its certificate; it is committed once it is valid here too.

    Where updates are pruned, a block with missing blobs and those after it are followed.
    """
    head, keep_blocks = _head(draft), draft.context.keep_blocks
    is_present = height == draft.height
    is_followed = keep_blocks > 0 and height == head.height + 1 and len(draft.ahead) <= keep_blocks
    if not (is_present or is_followed):
        return
    block, cache = decided.block, draft.cache
    try:
        validate_certificate(draft.chain if is_present else head, block.digest, decided.certificate, cache)
        if is_followed:
            cache.once(validate_proposal, head, block)
    except InvalidBlock as error:
        draft.refuse(sender, error)
        return
    if is_present and not draft.lacks_model:
        draft.decision = Decision(block.digest, decided.certificate, sender)
        receive_block(draft, sender, block, is_decided=True)
        found = draft.candidates.get(block.digest)
        is_followed = is_followed and not (found is not None and found.is_valid)
    if is_followed:
        chain = cache.once(apply_block, head, block)
        draft.ahead = (*draft.ahead, Followed(block, decided.certificate, sender, chain))
        draft.asked = frozenset({sender})
        draft.send(sender, DecidedWanted(), chain.height + 1)


def take_followed(draft: Draft) -> None:
    """Commit followed blocks: on trust where all members pruned their updates, else as any decided block."""
    while draft.ahead and draft.phase is not Phase.DONE:
        first = draft.ahead[0]
        if _is_gone(draft):
            commit_on_trust(draft)
        elif draft.lacks_model or draft.decision is not None:
            return  # wait for the model or the blobs
        else:
            draft.decision = Decision(first.block.digest, first.certificate, first.teller)
            receive_block(draft, first.teller, first.block, is_decided=True)
            progress(draft)


def _is_gone(draft: Draft) -> bool:
    """Return whether the first followed block may be committed on trust: later certified blocks imply its pruning.

    Never a block found invalid here, nor an empty block, whose model is its parent's, if that is held.
    """
    first, head = draft.ahead[0].block, _head(draft)
    if first.digest in draft.refused or (first.body.is_empty and not draft.lacks_model):
        return False
    return draft.height <= last_pruned(head.height, draft.context.keep_blocks)


def resume(draft: Draft) -> None:
    """Participate again, once the model of a tip committed on trust has arrived."""
    if draft.lacks_model:
        draft.lacks_model = False
        enter_round(draft)


def _head(draft: Draft) -> ChainState:
    """The chain after the last followed block."""
    return draft.ahead[-1].chain if draft.ahead else draft.chain
