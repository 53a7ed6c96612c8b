"""Findings of `bdfl doctor`, and the node under examination."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography import x509

from bdfl.identity import Signer
from bdfl.ledger.roll import quorum_size
from bdfl.operation.genesis_file import GenesisFile
from bdfl.operation.member_change import ChangeFile
from bdfl.operation.newcomers import authorities_of, find_number
from bdfl.transports.live.certificates import is_issued_by


class Verdict(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"  # works, but not as intended
    BAD = "bad"  # a node would not run


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""  # remedy

    def __str__(self) -> str:
        return f"{self.verdict:<4} {self.check}: {self.found}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Patient:
    """The node under examination, as it would be started; fields not given are not checked."""

    genesis: Path | None = None
    key: Path | None = None
    folder: Path | None = None
    data: str | None = None
    flower: str | None = None
    listen: Sequence[str] = ()
    peers: Sequence[str] = ()
    metrics: str | None = None  # host:port
    is_unsigned_allowed: bool = False
    allowed: frozenset[str] = frozenset()
    admissions: tuple[Path, ...] = ()
    quota_bytes: int | None = None  # of models; none: enough for the rounds agreed on


@dataclass(frozen=True)
class Federation:
    """The members, and the identity of the examined node among them."""

    genesis: GenesisFile
    admissions: tuple[ChangeFile, ...]  # of members admitted after genesis
    signer: Signer | None

    @property
    def authorities(self) -> dict[int, bytes]:
        """CA certificates (DER) by member number."""
        return authorities_of(self.genesis, self.admissions)

    @property
    def number(self) -> int | None:
        """The examined node's member number; None: unknown, or not a member."""
        return None if self.signer is None else find_number(self.genesis, self.admissions, self.signer.public_key)

    @property
    def quorum(self) -> int:
        """Votes of the founders that finalise a block."""
        return quorum_size(self.genesis.genesis.law.quorum, len(self.genesis.public_keys))

    def name_of(self, number: int) -> str:
        newcomers = {file.change.number: file.card.card.name for file in self.admissions if file.card is not None}
        return {**newcomers, **dict(enumerate(self.genesis.names))}[number]

    def holder_of(self, leaf: x509.Certificate) -> int | None:
        """Return the member whose key issued a TLS certificate, regardless of the name in it; None: an access point."""
        issuers = ((number, x509.load_der_x509_certificate(data)) for number, data in self.authorities.items())
        return next((number for number, issuer in issuers if is_issued_by(leaf, issuer)), None)
