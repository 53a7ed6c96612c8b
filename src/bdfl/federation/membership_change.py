"""Membership change of a running chain: a file that members pass on until a quorum has signed.

The chain's rules decide whether a block may carry it; the checks here report mistakes earlier.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from bdfl.encoding import Digest, Positive, Record, encode, record_digest
from bdfl.errors import BdflError
from bdfl.federation.genesis_file import GenesisFile
from bdfl.federation.member_card import SignedCard, validate_card
from bdfl.identity import Meaning, Signer, is_signed, statement_digest
from bdfl.learning.participation import participation_of
from bdfl.ledger.block import MAX_MEMBERS, Admission, Assent, Change, Member, MembershipChange, Removal, chain_id
from bdfl.ledger.costs import NANO, count_units
from bdfl.ledger.member_set import MemberSet, quorum_size, read_member_set
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.statements import change_place, sign_change
from bdfl.scenario import Scenario
from bdfl.storage import OWN_FOLDER, read_record, write_record

ADMISSIONS = "admissions"  # in a node's folder: admissions known to it
INBOX = "inbox"  # in a node's folder: changes submitted by its operator
_SUFFIX = ".change"
_MAX_SIZE = 4 * 2**20
_CHAIN_FOLDER = "chain"


class BadMemberChange(BdflError):
    """An invalid membership change, or a file that was tampered with."""


class ChangeFile(Record, frozen=True):
    """A proposed change with its assents; an admission includes the new member's card for its TLS certificate."""

    form: Literal["bdfl change 1"]
    chain: Digest
    change: Change
    expires: Positive  # the last height whose block may carry it
    card: SignedCard | None
    assents: Annotated[tuple[Assent, ...], Meta(max_length=MAX_MEMBERS)]  # by member

    @property
    def membership_change(self) -> MembershipChange:
        """The record that a block carries."""
        return MembershipChange(self.change, self.expires, self.assents)


@dataclass(frozen=True)
class ChainMembers:
    """A chain's current members and quorum."""

    chain: bytes
    height: int
    member_set: MemberSet
    quorum: int

    def number_of(self, public_key: bytes) -> int | None:
        """Return the number of the active member with that key; None: not a member now."""
        return next(
            (one for one in sorted(self.member_set.active) if self.member_set.members[one].public_key == public_key),
            None,
        )


def read_members(path: Path) -> ChainMembers:
    """Read the current members from a node's or a chain's folder, even while the node runs."""
    folder = path / _CHAIN_FOLDER if (path / _CHAIN_FOLDER / DATABASE_FILE).is_file() else path
    with ChainStore.open(folder, read_only=True) as store:
        genesis, height = store.genesis, store.height
        roll = read_member_set(genesis, store.blocks())
    return ChainMembers(chain_id(genesis), height, roll, quorum_size(genesis.law.quorum, len(roll.active)))


def propose_admission(
    members: ChainMembers, genesis: GenesisFile, scenario: Scenario, signed: SignedCard, expires: int
) -> ChangeFile:
    """Propose to admit the signer of a card, with a participation rate from its labels and the founders'."""
    validate_card(signed)
    card = signed.card
    if genesis.chain != members.chain:
        raise BadMemberChange("genesis: of another chain than the node's")
    if card.scenario != genesis.genesis.scenario:
        raise BadMemberChange(f"card of {card.name!r}: made for another scenario; make it again with this genesis")
    if any(member.public_key == card.public_key for member in members.member_set.members):
        raise BadMemberChange(f"card of {card.name!r}: its key is or was a member's, a new key expected")
    limits = msgspec.structs.replace(card.limits, rate_nano=newcomer_rate(genesis, scenario, signed))
    member = Member(card.public_key, limits, card.conditions)
    file = ChangeFile(
        form="bdfl change 1",
        chain=members.chain,
        change=Admission(len(members.member_set.members), member),
        expires=expires,
        card=signed,
        assents=(),
    )
    validate_change_file(file)
    return file


def propose_removal(members: ChainMembers, number: int, expires: int) -> ChangeFile:
    """Propose to remove a member; its number and key are never reused."""
    if number not in members.member_set.active:
        numbers = ", ".join(map(str, sorted(members.member_set.active)))
        raise BadMemberChange(f"member {number}: not one of the members {numbers}")
    return ChangeFile("bdfl change 1", members.chain, Removal(number), expires, None, ())


def newcomer_rate(genesis: GenesisFile, scenario: Scenario, signed: SignedCard) -> int:
    """Return a new member's participation rate (1e-9) from all labels; the founders' mean if rates are set."""
    if scenario.participation.rates is not None:
        founders = [member.limits.rate_nano for member in genesis.genesis.members]
        return sum(founders) // len(founders)
    counts = [one.card.label_counts for one in (*genesis.cards, signed)]
    if len({len(row) for row in counts}) > 1:
        raise BadMemberChange(f"card of {signed.card.name!r}: {len(counts[-1])} labels, {len(counts[0])} expected")
    rate = participation_of(scenario, np.array(counts, dtype=np.int64))[-1]
    return count_units(float(rate), NANO, "participation rate")


def validate_change_file(file: ChangeFile) -> None:
    """Raise unless an admission agrees with the new member's valid card."""
    if isinstance(file.change, Removal):
        if file.card is not None:
            raise BadMemberChange("a removal with a card, none expected")
        return
    if file.card is None:
        raise BadMemberChange("an admission without the newcomer's card, which has its certificate")
    validate_card(file.card)
    card, member = file.card.card, file.change.member
    limits = msgspec.structs.replace(card.limits, rate_nano=member.limits.rate_nano)
    if member != Member(card.public_key, limits, card.conditions):
        raise BadMemberChange(f"card of {card.name!r}: the change says other than it of key, limits or conditions")
    if member.limits.rate_nano > NANO:
        raise BadMemberChange(f"card of {card.name!r}: rate {member.limits.rate_nano / NANO:g}, at most 1 expected")


def validate_timely(file: ChangeFile, members: ChainMembers) -> None:
    """Raise unless the next block of this chain could carry the change once a quorum has signed."""
    if file.chain != members.chain:
        raise BadMemberChange(f"change: of chain {file.chain.hex()[:16]}, {members.chain.hex()[:16]} expected")
    if file.expires <= members.height:
        raise BadMemberChange(
            f"change: void after block {file.expires}, the chain has {members.height}; propose it anew"
        )
    match file.change:
        case Admission(number=number):
            if number != len(members.member_set.members):
                found = f"as member {number}, {len(members.member_set.members)} is the next number"
                raise BadMemberChange(f"admission: {found}; others were admitted meanwhile, or it was made already")
        case Removal(number=number):
            if number not in members.member_set.active:
                raise BadMemberChange(f"removal: member {number} is none any more")
    statement = _statement(file)
    for assent in file.assents:
        is_member = assent.member in members.member_set.active
        if not is_member or not is_signed(
            members.member_set.members[assent.member].public_key, assent.signature, statement
        ):
            raise BadMemberChange(f"assent of member {assent.member}: not a member's signature of this change")


def sign_change_file(file: ChangeFile, members: ChainMembers, signer: Signer) -> ChangeFile:
    """Add a member's assent to the file."""
    validate_timely(file, members)
    number = members.number_of(signer.public_key)
    if number is None:
        raise BadMemberChange("your key: not that of a member of this chain")
    return _with_assents(file, [sign_change(file.chain, file.change, file.expires, number, signer)])


def merge_changes(file: ChangeFile, other: ChangeFile) -> ChangeFile:
    """Add the assents from another copy of the file."""
    if msgspec.structs.replace(other, assents=()) != msgspec.structs.replace(file, assents=()):
        raise BadMemberChange("change: another one, assents to the same change expected")
    return _with_assents(file, other.assents)


def read_change(path: Path) -> ChangeFile:
    """Read a change, validated as far as possible without the chain."""
    file = read_record(path, ChangeFile, "change", _MAX_SIZE)
    try:
        validate_change_file(file)
    except BdflError as error:
        raise BadMemberChange(f"{path}: {error}") from None
    return file


def submit_change(folder: Path, file: ChangeFile, members: ChainMembers) -> Path:
    """Submit a change signed by a quorum to the node of a folder; return the file's path in its inbox."""
    validate_timely(file, members)
    missing = members.quorum - len(file.assents)
    if missing > 0:
        raise BadMemberChange(
            f"change: {len(file.assents)} assents, {members.quorum} expected: {missing} more must sign"
        )
    inbox = folder / INBOX
    path = inbox / f"{record_digest(file).hex()[:16]}{_SUFFIX}"
    try:
        inbox.mkdir(mode=OWN_FOLDER, exist_ok=True)
    except OSError as error:
        raise BadMemberChange(f"{inbox}: {error.strerror}, a node's folder expected") from None
    write_record(path, file, replaces=True)
    return path


@contextmanager
def taking_changes(folder: Path) -> Iterator[list[ChangeFile]]:
    """Yield the changes submitted to a node; delete them if the `with` block succeeds.

    Unreadable files are renamed.
    """
    found: list[ChangeFile] = []
    paths = sorted((folder / INBOX).glob(f"*{_SUFFIX}")) if (folder / INBOX).is_dir() else []
    for path in paths:
        try:
            found.append(read_change(path))
        except BdflError:
            path.rename(path.with_suffix(".refused"))
    yield found
    for path in paths:
        path.unlink(missing_ok=True)


def _statement(file: ChangeFile) -> bytes:
    return statement_digest(Meaning.MEMBERSHIP, change_place(file.chain, file.expires), encode(file.change))


def _with_assents(file: ChangeFile, more: Sequence[Assent]) -> ChangeFile:
    by_member = {assent.member: assent for assent in (*file.assents, *more)}
    return msgspec.structs.replace(file, assents=tuple(by_member[number] for number in sorted(by_member)))


# Members admitted after genesis: their certificates are in their admissions, not in the chain.


def read_admissions(folder: Path | None, given: Iterable[Path], genesis: GenesisFile) -> tuple[ChangeFile, ...]:
    """Read the admissions stored in a node's folder, if any, then those given.

    Several may have one number; the chain decides which of them took effect.
    """
    known = [] if folder is None else sorted((folder / ADMISSIONS).glob(f"*{_SUFFIX}"))
    files = [read_change(path) for path in (*known, *given)]
    return tuple(file for file in files if file.chain == genesis.chain and isinstance(file.change, Admission))


def find_admission(admissions: Iterable[ChangeFile], public_key: bytes) -> tuple[int, SignedCard] | None:
    """Return the member number and card of the last admission of that key."""
    found = [(number, card) for number, key, card in _newcomers(admissions) if key == public_key]
    return found[-1] if found else None


def keep_admission(folder: Path, file: ChangeFile) -> None:
    """Store an admission in the node's folder."""
    place = folder / ADMISSIONS
    place.mkdir(mode=OWN_FOLDER, exist_ok=True)
    write_record(place / f"{record_digest(file).hex()[:16]}{_SUFFIX}", file, replaces=True)


def authorities_of(
    genesis: GenesisFile, admissions: Iterable[ChangeFile], public_keys: Sequence[bytes | None] = ()
) -> dict[int, bytes]:
    """Return the members' CA certificates (DER) by number.

    `public_keys` are the chain's, by number. Removed members and admissions that lost their number are left out;
    members not yet in the chain are included.
    """
    founders = zip(count(), genesis.public_keys, genesis.authorities)
    newcomers = ((number, key, card.card.authority) for number, key, card in _newcomers(admissions))
    return {
        number: authority
        for number, key, authority in (*newcomers, *founders)
        if number >= len(public_keys) or public_keys[number] == key
    }


def names_of(genesis: GenesisFile, admissions: Iterable[ChangeFile], public_keys: Sequence[bytes | None]) -> list[str]:
    """Return the members' names by number, as on their cards; without a card, the number."""
    cards = {card.card.public_key: card.card.name for _, _, card in _newcomers(admissions)}
    cards |= {card.card.public_key: card.card.name for card in genesis.cards}
    return [cards.get(key or b"", f"member {number}") for number, key in enumerate(public_keys)]


def _newcomers(admissions: Iterable[ChangeFile]) -> Iterator[tuple[int, bytes, SignedCard]]:
    """Yield number, key and card of each admission."""
    for file in admissions:
        if isinstance(file.change, Admission) and file.card is not None:
            yield file.change.number, file.change.member.public_key, file.card


def find_number(genesis: GenesisFile, admissions: Iterable[ChangeFile], public_key: bytes) -> int | None:
    """Return the number of the member with that key, a founder or admitted later; None: not a member."""
    newcomer = find_admission(admissions, public_key)
    return genesis.number_of(public_key) if newcomer is None else newcomer[0]
