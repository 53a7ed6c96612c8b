"""Saying everything again, and closing the gap to those who are ahead."""

from bdfl.ledger.block import SignedVote
from bdfl.ledger.errors import InvalidBlock
from bdfl.ledger.rules import validate_certificate
from bdfl.protocol.draft import Draft
from bdfl.protocol.events import Timer
from bdfl.protocol.messages import BlobWanted, BlockWanted, Decided, DecidedWanted, Hearsay, Message, Proposal
from bdfl.protocol.proposing import receive_block
from bdfl.protocol.state import Decision, Phase
from bdfl.protocol.votes import key_of

MAX_EARLY = 16  # messages of the next height kept from one sender


def say_again(draft: Draft) -> None:
    """Says all that is held of this height, and asks one member after the other for what is missing."""
    if draft.phase is Phase.DONE:
        return
    draft.turn += 1
    draft.send(
        None,
        Hearsay(
            draft.attempt,
            wants_answer=True,
            updates=tuple(draft.held_updates.values()),
            reports=tuple(draft.reports[client] for client in sorted(draft.reports)),
            votes=_votes_to_say(draft),
            blocks=tuple(candidate.digest for candidate in draft.candidates.values() if candidate.is_valid),
            changes=draft.changes,
        ),
    )
    for blob, client in draft.wanted_blobs.items():
        draft.send(_next_holder(draft, client), BlobWanted(blob))
    for block in sorted(draft.wanted_blocks):
        draft.send(_next_holder(draft, draft.number), BlockWanted(block))
    draft.set_timer(Timer.RESEND, draft.context.timing.resend_ns)


def _next_holder(draft: Draft, first: int) -> int:
    """Somebody else to ask, another one every time, beginning near `first`."""
    num_members, active = draft.chain.num_members, draft.chain.active
    near = (first + draft.turn - 1) % num_members
    others = ((near + step) % num_members for step in range(num_members))
    return next((other for other in others if other in active and other != draft.number), near)


def _votes_to_say(draft: Draft) -> tuple[SignedVote, ...]:
    """Own votes, everybody's of this attempt and the one before, and the prevotes behind the lock."""
    said = {key: vote for key, vote in draft.votes.items() if key[2] == draft.number or key[0] >= draft.attempt - 1}
    if draft.lock is not None:
        said |= {key_of(vote): vote for vote in draft.lock.prevotes}
    return tuple(said[key] for key in sorted(said))


def hear_ahead(draft: Draft, message: Message) -> None:
    """Keeps what is for the next height until this one is decided; asks for the decision if others are ahead."""
    if draft.phase is Phase.DONE:
        return
    content = message.content
    is_next = message.height == draft.height + 1
    if is_next and isinstance(content, (Hearsay, Proposal)):
        if sum(kept.sender == message.sender for kept in draft.early) < MAX_EARLY:
            draft.early = (*draft.early, message)
        if not (isinstance(content, Hearsay) and content.wants_answer):
            return
    if draft.decision is None or draft.decision.block not in draft.candidates:  # else only its blobs are missing
        draft.send(message.sender, DecidedWanted())


def receive_decided(draft: Draft, sender: int, decided: Decided) -> None:
    """Takes a decided block with the precommits that decided it; once it is valid here too, it is committed."""
    digest = decided.block.digest
    try:
        validate_certificate(draft.chain, digest, decided.certificate, draft.toolbox)
    except InvalidBlock as error:
        draft.refuse(sender, error)
        return
    draft.decision = Decision(digest, decided.certificate, sender)
    receive_block(draft, sender, decided.block, is_decided=True)
