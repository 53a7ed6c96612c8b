"""Members of a running node's network: their names, their TLS roots, and changes that its operator submits."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from bdfl.errors import BdflError
from bdfl.federation.genesis_file import GenesisFile
from bdfl.federation.membership_change import ChangeFile, authorities_of, keep_admission, names_of, taking_changes
from bdfl.ledger.block import Admission, MembershipChange
from bdfl.node.log import NodeLog
from bdfl.node.settings import ROOTS_FILE, TLS_FOLDER, roots_of
from bdfl.storage import replace_file


@dataclass(eq=False, repr=False)
class Membership:
    """Trusts the members that the chain has now. Thread-safe."""

    folder: Path
    genesis: GenesisFile
    admissions: list[ChangeFile]
    log: NodeLog
    _: KW_ONLY
    reconnect: Callable[[], None]  # applies new TLS roots
    offer: Callable[[MembershipChange], None]  # gives the node a change to propose

    def __post_init__(self) -> None:
        self._public_keys: Sequence[bytes | None] = ()
        self._turn = threading.Lock()

    def begin(self, public_keys: Sequence[bytes | None]) -> None:
        """Write the trusted roots for the members of the stored chain, which may have changed since genesis."""
        self._public_keys = public_keys
        self._write_roots()

    def follow(self, public_keys: Sequence[bytes | None]) -> None:
        """Reconnect in a thread if the members changed, so that TLS accepts new ones and rejects removed ones."""
        if public_keys != self._public_keys:
            self._public_keys = public_keys
            threading.Thread(target=self._replace_roots, name="members", daemon=True).start()

    def names(self, public_keys: Sequence[bytes | None]) -> list[str]:
        """Return the members' names by number."""
        return names_of(self.genesis, self.admissions, public_keys)

    def take_changes(self) -> None:
        """Offer the changes in the node's folder, and store the certificates of new members."""
        try:
            with taking_changes(self.folder) as files:
                for file in files:
                    if isinstance(file.change, Admission):
                        keep_admission(self.folder, file)
                        self.admissions.append(file)
                    self.offer(file.membership_change)
                    self.log.info("change", {"member": file.change.number, "assents": len(file.assents)})
        except (OSError, BdflError) as error:
            self.log.warn("change", {"why": str(error)})

    def _replace_roots(self) -> None:
        with self._turn:
            try:
                self._write_roots()
                self.reconnect()
            except (OSError, BdflError) as error:
                self.log.error("members", {"why": str(error)})
                return
            self.log.info("members", {"in all": sum(key is not None for key in self._public_keys)})

    def _write_roots(self) -> None:
        public_keys = self._public_keys
        authorities = authorities_of(self.genesis, self.admissions, public_keys)
        unknown = [number for number, key in enumerate(public_keys) if key is not None and number not in authorities]
        if unknown:
            advice = "bdfl member submit their admission to this node too"
            self.log.warn("no certificate", {"members": " ".join(map(str, unknown)), "advice": advice})
        replace_file(self.folder / TLS_FOLDER / ROOTS_FILE, roots_of(self.genesis, authorities))
