"""Pending entries: evidence and changes of membership, held and gossiped until a block includes them.

A node that has held an entry for some heights votes for no block without it: a proposer cannot keep its own conviction
or removal off the chain.
"""

from collections.abc import Callable

from bdfl.ledger.block import Entry, Evidence, MembershipChange
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.ledger.errors import BadChange, InvalidBlock
from bdfl.ledger.member_set import find_change, find_evidence, offender_of
from bdfl.ledger.rules import validate_evidence
from bdfl.ledger.statements import is_settled, validate_assents, validate_change
from bdfl.protocol.messages import MAX_CHANGES, Gossip
from bdfl.protocol.state import Phase
from bdfl.protocol.transition import Draft

HELD_HEIGHTS = 2  # heights after which a votable block must include an entry; doubled in each later attempt
_MAX_DOUBLINGS = 40  # more heights than any chain has


def note_offence(draft: Draft, evidence: Evidence) -> None:
    """Hold and broadcast evidence against a member, unless there is evidence against it already."""
    offender = offender_of(evidence)
    if offender in draft.evidence or offender in draft.chain.offenders:
        return
    draft.evidence[offender] = evidence
    draft.held_since.setdefault(offender, draft.height)  # it may offend again
    draft.send(None, Gossip(draft.attempt, evidence=(evidence,)))


def receive_evidence(draft: Draft, sender: int, evidence: Evidence) -> None:
    """Take evidence that proves an offence of a member, unless there is evidence against it already."""
    if draft.phase is Phase.DONE or offender_of(evidence) in draft.evidence.keys() | draft.chain.offenders:
        return
    if draft.accepts(sender, validate_evidence, evidence):
        note_offence(draft, evidence)


def receive_change(draft: Draft, sender: int | None, found: MembershipChange) -> bool:
    """Hold a change with the assents of a quorum, and return whether it is new; of equal changes the first is held.

    A change that is not possible yet, such as an admission under a number after the next, is held until it is.
    """
    if draft.phase is Phase.DONE or any(_is_same(held, found) for held in draft.changes):
        return False
    if not draft.accepts(sender, _validate_pending, found):
        return False
    if len(draft.changes) >= MAX_CHANGES:
        draft.refuse(sender, f"change of membership: {MAX_CHANGES} are held already")
        return False
    draft.changes = (*draft.changes, found)
    draft.held_since[found] = draft.height
    return True


def _is_same(held: MembershipChange, found: MembershipChange) -> bool:
    """Return whether both are the same change, regardless of its signers."""
    return (held.change, held.expires) == (found.change, found.expires)


def choose_entries(draft: Draft) -> tuple[Entry, ...]:
    """The entries of this node's block: all evidence it holds, and the first change that is possible now."""
    change = next((held for held in draft.changes if _is_possible(draft, held)), None)
    evidence = [draft.evidence[offender] for offender in sorted(draft.evidence)]
    return tuple(evidence) if change is None else (*evidence, change)


def repeat_entries(draft: Draft) -> None:
    """Broadcast the entries of this node's block again, as a height begins.

    Members that were ahead ignored the first broadcast, and quick rounds end before a re-broadcast is due.
    """
    entries = choose_entries(draft)
    if entries:
        change = find_change(entries)
        changes = () if change is None else (change,)
        draft.send(None, Gossip(draft.attempt, changes=changes, evidence=tuple(find_evidence(entries))))


def drops_entries(draft: Draft, entries: tuple[Entry, ...]) -> bool:
    """Return whether a block with these entries omits one that this node has held for too long.

    A block holds at most one change, so that any change will do: a quorum signed each.
    """
    heights = HELD_HEIGHTS << min(draft.attempt - 1, _MAX_DOUBLINGS)
    overdue = [what for what, since in draft.held_since.items() if draft.height - since >= heights]
    convicted = {offender_of(evidence) for evidence in find_evidence(entries)}
    is_changed = find_change(entries) is not None
    return any(
        what not in convicted if isinstance(what, int) else not is_changed and _is_possible(draft, what)
        for what in overdue
    )


def drop_settled(draft: Draft) -> None:
    """Drop the entries that the last decided block included or made obsolete."""
    evidence, changes = draft.evidence, draft.changes
    draft.evidence = {one: proof for one, proof in evidence.items() if one not in draft.chain.offenders}
    draft.changes = tuple(held for held in changes if _keeps(draft, _validate_pending, held))
    held = {*draft.evidence, *draft.changes}
    draft.held_since = {what: since for what, since in draft.held_since.items() if what in held}


def _is_possible(draft: Draft, held: MembershipChange) -> bool:
    return _keeps(draft, validate_change, held)


def _keeps(
    draft: Draft, rule: Callable[[ChainState, MembershipChange, VerificationCache], None], held: MembershipChange
) -> bool:
    try:
        rule(draft.chain, held, draft.cache)
    except InvalidBlock:
        return False
    return True


def _validate_pending(chain: ChainState, found: MembershipChange, cache: VerificationCache) -> None:
    validate_assents(chain, found, cache)
    if is_settled(chain, found.change):
        raise BadChange("change-settled", "a change that can still be made", "one that was, or another of its number")
