"""Changes of membership: a quorum of assents, not expired, and possible on the chain.

An assent counts if its signer is a member at the height of the block that carries the change and no proven offender: an
offender gets no say about members, and could withhold its assent anyway. The quorum stays that of all members. A change
cannot be replayed: an admission takes the next number and a new key, a removal a present member's number.
"""

from collections.abc import Mapping

from bdfl.encoding import DIGEST_SIZE, encode
from bdfl.identity import Meaning, Place, Signer, statement_digest
from bdfl.ledger.block import Admission, Assent, Change, MembershipChange
from bdfl.ledger.chain import ChainState, charter_after
from bdfl.ledger.errors import BadChange, BadSignature
from bdfl.ledger.statements import is_ascending
from bdfl.ledger.toolbox import Toolbox


def change_place(chain: bytes, expires: int) -> Place:
    """The signing context of an assent: the chain, and the last height whose block may carry the change."""
    return Place(chain, expires, bytes(DIGEST_SIZE))


def sign_change(chain: bytes, change: Change, expires: int, number: int, signer: Signer) -> Assent:
    """A member's assent to a change that is void after height `expires`."""
    return Assent(number, signer.sign(Meaning.MEMBERSHIP, change_place(chain, expires), change))


def make_change(chain: bytes, change: Change, expires: int, signers: Mapping[int, Signer]) -> MembershipChange:
    """A change with the assents of these members."""
    assents = (sign_change(chain, change, expires, number, signers[number]) for number in sorted(signers))
    return MembershipChange(change, expires, tuple(assents))


def validate_change(state: ChainState, found: MembershipChange, toolbox: Toolbox) -> None:
    """Raise unless the next block may carry the change: assented, not expired, and possible after earlier ones."""
    validate_assents(state, found, toolbox)
    charter_after(state, (found,), toolbox)


def validate_assents(state: ChainState, found: MembershipChange, toolbox: Toolbox) -> None:
    """Raise unless a quorum of the next height's members assented to the change and it has not expired."""
    if found.expires <= state.height:
        raise BadChange("change-expired", f"a change for height {state.height + 1}", f"up to height {found.expires}")
    members, numbers = state.charter.members, [assent.member for assent in found.assents]
    if not is_ascending(numbers) or (numbers and not 0 <= numbers[0] <= numbers[-1] < len(members)):
        raise BadChange("change-assents", "different members in ascending order", numbers)
    num_counted = sum(number in state.active and number not in state.offenders for number in numbers)
    if num_counted < state.quorum:
        raise BadChange("change-quorum", f"assents of at least {state.quorum} members, offenders aside", num_counted)
    statement = statement_digest(Meaning.MEMBERSHIP, change_place(state.chain, found.expires), encode(found.change))
    for assent in found.assents:
        if not toolbox.is_signed(members[assent.member].public_key, assent.signature, statement):
            expected = f"signed by member {assent.member} for up to height {found.expires}"
            raise BadSignature("change-signature", expected, "another signature")


def is_settled(state: ChainState, change: Change) -> bool:
    """Return whether a change is obsolete: it was made, or another change took its number or key."""
    roll = state.coming_charter.roll
    if isinstance(change, Admission):
        is_known = any(member.public_key == change.member.public_key for member in roll.members)
        return is_known or change.number < len(roll.members)
    return change.number < len(roll.members) and change.number not in roll.active
