"""What an attacking process is told, and what it says of itself: lines of JSON."""

from pathlib import Path

import msgspec

from bdfl.transports.live.certificates import TlsFiles

STOP = "stop"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An attack to carry out."""

    attack: str  # its name
    count: int  # things to send, at least
    rate: float  # a second; 0: as many as are taken
    targets: tuple[str, ...]  # host:port of the nodes
    chain: str  # its id
    member: int  # whose key the attacker has, the last of all
    public_keys: tuple[str, ...]  # of all members
    folder: str  # of its key and certificates
    life: int  # higher than in the attacks before
    max_message_size: int
    seed: int = 0

    @property
    def tls(self) -> TlsFiles:
        """The member's, as listed in the genesis."""
        return tls_in(Path(self.folder) / "tls")

    def tls_as(self, member: int) -> TlsFiles:
        """Of another's name, certified by the attacker's own authority, which the genesis lists."""
        return tls_in(folder_as(Path(self.folder), member))

    @property
    def unlisted_tls(self) -> TlsFiles:
        """Of somebody with a certificate of the same form that nobody listed."""
        return tls_in(Path(self.folder) / "unlisted")


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """How far an attack is."""

    sent: int
    sent_bytes: int = 0
    failed: int = 0  # could not be sent: not let in, or cut off
    received_bytes: int = 0  # of anything but refusals
    cpu_s: float = 0.0  # of the attacking process
    seconds: float = 0.0
    is_ready: bool = False
    is_over: bool = False  # the last word


def folder_as(folder: Path, member: int) -> Path:
    """Where an attacker keeps what TLS needs in another's name."""
    return folder / f"as-{member}"


def tls_in(folder: Path) -> TlsFiles:
    return TlsFiles(folder / "key.pem", folder / "certificate.pem", folder / "roots.pem")
