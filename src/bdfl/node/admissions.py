"""Members admitted after genesis: their certificates, which the chain does not carry, and submitted changes."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from bdfl.encoding import record_digest
from bdfl.errors import BdflError
from bdfl.federation.genesis_file import GenesisFile
from bdfl.federation.member_card import SignedCard
from bdfl.federation.membership_change import ChangeFile, read_change, taking_changes, write_change
from bdfl.ledger.block import Admission
from bdfl.node.log import NodeLog
from bdfl.storage import OWN_FOLDER

ADMISSIONS = "admissions"  # in a node's folder: admissions known to it
_SUFFIX = ".change"
_POLL_S = 1.0


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
    write_change(place / f"{record_digest(file).hex()[:16]}{_SUFFIX}", file, replaces=True)


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


class ChangeInbox:
    """Polls the node's folder for submitted changes until closed."""

    def __init__(self, folder: Path, take: Callable[[Sequence[ChangeFile]], None], log: NodeLog) -> None:
        self._folder = folder
        self._take = take
        self._log = log
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="inbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_closed.wait(_POLL_S):
            try:
                with taking_changes(self._folder) as found:
                    if found:
                        self._take(found)
            except (OSError, BdflError) as error:
                self._log.warn("change", {"why": str(error)})
