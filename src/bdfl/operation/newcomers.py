"""Members who came after the genesis: their certificates, which the chain does not carry, and changes on their way."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bdfl.encoding import record_digest
from bdfl.errors import BdflError
from bdfl.ledger.block import Admission
from bdfl.operation.genesis_file import GenesisFile
from bdfl.operation.logs import NodeLog
from bdfl.operation.member_change import ChangeFile, read_change, taking_changes, write_change

ADMISSIONS = "admissions"  # in a node's folder: those it was told of
_SUFFIX = ".change"
_POLL_S = 1.0


def read_admissions(folder: Path | None, given: Iterable[Path], genesis: GenesisFile) -> dict[int, ChangeFile]:
    """By member number: the admissions given, and those that the node of a folder, if any, was told of before."""
    known = [] if folder is None else sorted((folder / ADMISSIONS).glob(f"*{_SUFFIX}"))
    found: dict[int, ChangeFile] = {}
    for path in (*known, *given):
        file = read_change(path)
        if file.chain == genesis.chain and isinstance(file.change, Admission):
            found[file.change.number] = file
    return found


def keep_admission(folder: Path, file: ChangeFile) -> None:
    """Keeps a newcomer's card for as long as the node lives."""
    place = folder / ADMISSIONS
    place.mkdir(mode=0o700, exist_ok=True)
    write_change(place / f"{record_digest(file).hex()[:16]}{_SUFFIX}", file, replaces=True)


def authorities_of(genesis: GenesisFile, admissions: Mapping[int, ChangeFile]) -> dict[int, bytes]:
    """CA certificates (DER) of all members that are known, by number."""
    newcomers = {number: file.card.card.authority for number, file in admissions.items() if file.card is not None}
    return {**newcomers, **dict(enumerate(genesis.authorities))}


def find_number(genesis: GenesisFile, admissions: Mapping[int, ChangeFile], public_key: bytes) -> int | None:
    """The member with that key, of the genesis or come later; none: nobody's."""
    found = genesis.number_of(public_key)
    for number, file in admissions.items():
        if file.card is not None and file.card.card.public_key == public_key:
            found = number
    return found


class ChangeInbox:
    """Takes changes that an operator puts into the node's folder, until it is closed."""

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
