"""IPC records of an attacking process, as lines of JSON."""

from pathlib import Path

import msgspec

from bdfl.transports.live.certificates import TlsFiles

STOP = "stop"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An attack to carry out."""

    attack: str  # its name
    count: int  # payloads to send, at least
    rate: float  # per second; 0: as fast as accepted
    targets: tuple[str, ...]  # host:port of the nodes
    chain: str  # its id
    member: int  # the attacker's member number, the last of all
    public_keys: tuple[str, ...]  # of all members
    folder: str  # of its key and certificates
    incarnation: int  # restart counter, increased per attack
    max_message_size: int
    seed: int = 0

    @property
    def tls(self) -> TlsFiles:
        """The member's own, as listed in the genesis."""
        return tls_in(Path(self.folder) / "tls")

    def tls_as(self, member: int) -> TlsFiles:
        """Return TLS files in another member's name, issued by the attacker's own CA, which the genesis lists."""
        return tls_in(folder_as(Path(self.folder), member))

    @property
    def unlisted_tls(self) -> TlsFiles:
        """TLS files with a certificate of the same form that the genesis does not list."""
        return tls_in(Path(self.folder) / "unlisted")


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an attack."""

    sent: int
    sent_bytes: int = 0
    failed: int = 0  # not sent: rejected or disconnected
    received_bytes: int = 0  # except rejections
    cpu_s: float = 0.0  # of the attacking process
    seconds: float = 0.0
    is_ready: bool = False
    is_over: bool = False  # the final report


def folder_as(folder: Path, member: int) -> Path:
    """Return the attacker's folder for TLS files in another member's name."""
    return folder / f"as-{member}"


def tls_in(folder: Path) -> TlsFiles:
    return TlsFiles(folder / "key.pem", folder / "certificate.pem", folder / "roots.pem")
