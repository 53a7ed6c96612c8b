"""Changes of membership on their way into a block: held and passed on as long as they can still be made."""

from bdfl.ledger.block import MembershipChange
from bdfl.ledger.chain import ChainState
from bdfl.ledger.errors import BadChange, InvalidBlock
from bdfl.ledger.membership import is_settled, validate_assents, validate_change
from bdfl.ledger.toolbox import Toolbox
from bdfl.protocol.draft import Draft
from bdfl.protocol.messages import MAX_CHANGES
from bdfl.protocol.state import Phase


def receive_change(draft: Draft, sender: int | None, found: MembershipChange) -> bool:
    """Holds a change that a quorum agreed to, and says whether it is new; the first to arrive is held.

    One that is not possible yet, such as an admission under a number after the next, is held until it is.
    """
    if draft.phase is Phase.DONE or any(_is_same(held, found) for held in draft.changes):
        return False
    try:
        _validate_pending(draft.chain, found, draft.toolbox)
    except InvalidBlock as error:
        draft.refuse(sender, error)
        return False
    if len(draft.changes) >= MAX_CHANGES:
        draft.refuse(sender, f"change of membership: {MAX_CHANGES} are held already")
        return False
    draft.changes = (*draft.changes, found)
    return True


def _is_same(held: MembershipChange, found: MembershipChange) -> bool:
    """Whether both are one change, by whomever they were signed."""
    return (held.change, held.expires) == (found.change, found.expires)


def lasting_changes(draft: Draft) -> tuple[MembershipChange, ...]:
    """The changes held that can still be made after the block that was decided last."""
    return tuple(held for held in draft.changes if _is_pending(draft, held))


def choose_change(draft: Draft) -> tuple[MembershipChange, ...]:
    """The change that this node puts into its block: the first it holds that is possible now, or none."""
    for held in draft.changes:
        try:
            validate_change(draft.chain, held, draft.toolbox)
        except InvalidBlock:
            continue
        return (held,)
    return ()


def _is_pending(draft: Draft, held: MembershipChange) -> bool:
    try:
        _validate_pending(draft.chain, held, draft.toolbox)
    except InvalidBlock:
        return False
    return True


def _validate_pending(chain: ChainState, found: MembershipChange, toolbox: Toolbox) -> None:
    validate_assents(chain, found, toolbox)
    if is_settled(chain, found.change):
        raise BadChange("change-settled", "a change that can still be made", "one that was, or another of its number")
