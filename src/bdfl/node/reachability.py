"""Reachability of the other members: their addresses, and the votes that can be counted on."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from bdfl.addresses import LOOPBACK, BadAddress, split_address
from bdfl.errors import BdflError
from bdfl.federation.genesis_file import GenesisFile
from bdfl.federation.membership_change import ChangeFile, authorities_of, find_number
from bdfl.identity import Signer
from bdfl.ledger.block import TIME_TOLERANCE_MS
from bdfl.ledger.member_set import quorum_size
from bdfl.node.settings import roots_of
from bdfl.transports.live.certificates import (
    AUTHORITY_DAYS,
    EARLY,
    LEAF_DAYS,
    TlsFiles,
    common_name_of,
    is_issued_by,
    issue_leaf,
    member_name,
    write_tls,
)

# Findings of `bdfl doctor`, and the node under examination.


class Verdict(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"  # works, but not as intended
    BAD = "bad"  # a node would not run


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""  # remedy

    def __str__(self) -> str:
        return f"{self.verdict:<4} {self.check}: {self.found}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class NodeOptions:
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
class KnownMembers:
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


# Reachability checks: bind and call own addresses, complete TLS handshakes with peers, compare clocks.

SKEW_S = 5.0  # normal difference between two clocks
WRONG_S = TIME_TOLERANCE_MS / 1000  # members prevote for no block whose time is further off
_PATIENCE_S = 3.0  # per peer
_REFUSAL_S = 1.0  # to wait for a rejected certificate: TLS 1.3 reports it after the handshake
_EVERYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1"}
_CLOCK_ADVICE = "set both, best by NTP"
_PEER_ADVICE = "network, firewall, or it is not started yet"


class Refused(BdflError):
    """A peer that rejected this node's certificate."""


@dataclass(frozen=True)
class PeerCheck:
    """Result of calling a peer."""

    finding: CheckResult
    number: int | None = None  # the member that answered
    is_there: bool = False  # also true of an access point


def bind(address: str) -> socket.socket:
    """Listen on HOST:PORT and return the socket, to be closed; raises `OSError` or `BadAddress`."""
    host, port = split_address(address)
    one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen()
    except OSError:
        one.close()
        raise
    return one


def check_port(address: str, *, is_running: bool) -> CheckResult:
    """Bind an address and call it from this machine; reachability from other machines is not tested."""
    try:
        with bind(address) as one:
            host, port = one.getsockname()[:2]
            socket.create_connection((_EVERYWHERE.get(host, host), port), timeout=_PATIENCE_S).close()
    except (OSError, BadAddress) as error:
        if is_running:
            return CheckResult("port", Verdict.OK, f"{address}: taken, and the node is running")
        return CheckResult(
            "port", Verdict.BAD, f"{address}: {_reason(error)}", "choose another, or end who listens there"
        )
    return CheckResult("port", Verdict.OK, f"{address}: free, answers this machine; other machines were not tried")


def check_peers(
    peers: Sequence[str],
    members: KnownMembers | None,
    now_s: float,
    *,
    present: frozenset[int] | None,
    own_leaf: Path | None,
    is_listening: bool,
) -> Iterator[CheckResult]:
    """Call every peer and count the reachable votes; `present` are the members connected to the running node."""
    with TemporaryDirectory() as folder:
        reached = [_reach(peer, members, Path(folder), now_s, own_leaf) for peer in peers]
        yield from (one.finding for one in reached)
        if members is not None:
            yield from _compare_clocks(peers, reached, members, Path(folder), now_s)
    if peers and not any(one.is_there for one in reached):
        yield CheckResult("peers", Verdict.BAD, "none can be reached", "network, firewall, or they are not started yet")
    if members is not None:
        yield _count_votes(members, reached, present, has_peers=bool(peers), is_listening=is_listening)
    elif not peers:
        yield CheckResult("peers", Verdict.WARN, "none given", "--peer, unless the others come to this one")


def issued_s(certificate: x509.Certificate, days: int) -> float:
    """Return the time at which a certificate of so many days was made: its validity starts a day earlier."""
    return (certificate.not_valid_after_utc - timedelta(days=days)).timestamp()


def _count_votes(
    members: KnownMembers,
    reached: Sequence[PeerCheck],
    present: frozenset[int] | None,
    *,
    has_peers: bool,
    is_listening: bool,
) -> CheckResult:
    """Compare the votes that can be reached now with the quorum."""
    needed = members.quorum
    others = {one.number for one in reached if one.number not in (None, members.number)}
    if present is not None:
        votes = f"{len(present) + 1} of {needed} votes that are needed can be reached"
        if len(present) + 1 >= needed:
            return CheckResult("quorum", Verdict.OK, votes)
        away = sorted(set(range(len(members.genesis.public_keys))) - present - {members.number})
        who = ", ".join(f"{number} ({members.name_of(number)})" for number in away[:8])
        advice = "start them; one more --listen or an access point if they cannot be reached"
        return CheckResult("quorum", Verdict.BAD, f"{votes}; not there: {who}", advice)
    if needed == 1:
        return CheckResult("quorum", Verdict.OK, "1 of 1 votes that are needed is this node's own")
    if not has_peers and not is_listening:
        advice = "--peer of a member or access point that listens, or --listen"
        return CheckResult("quorum", Verdict.BAD, "no peer and no address to listen on: nobody can be reached", advice)
    votes = f"{len(others) + 1} of {needed} votes that are needed answer"
    if len(others) + 1 >= needed:
        return CheckResult("quorum", Verdict.OK, votes)
    advice = "the others must reach a listening member or access point, which relays"
    return CheckResult("quorum", Verdict.WARN, votes, advice)


def _reach(address: str, members: KnownMembers | None, folder: Path, now_s: float, own_leaf: Path | None) -> PeerCheck:
    """Check that a peer answers, belongs to this network, is not this node, and accepts its certificate."""
    tls = _write_tls(folder / "now", members, now_s)
    try:
        certificate = _shake_hands(address, tls)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        if "not yet valid" in reason:
            return _unreached(f"{address}: its certificate begins in the future", "compare the clocks")
        return _unreached(f"{address}: not of this network: {reason}", "the same genesis there?")
    except Refused as error:
        is_time = "EXPIRED" in str(error)  # also reported for a certificate not yet valid
        advice = _CLOCK_ADVICE if is_time else "the same genesis there? were you removed?"
        return _unreached(f"{address}: refuses this node{' by its clock' if is_time else ''}: {error}", advice)
    except (OSError, BadAddress) as error:
        return _unreached(f"{address}: {_reason(error)}", _PEER_ADVICE)
    if certificate is None or members is None:
        found = f"{address}: answers; its certificate was not checked"
        return PeerCheck(CheckResult("peer", Verdict.OK, found), is_there=True)
    number, name = members.holder_of(certificate), common_name_of(certificate)
    if number is not None and number == members.number:
        if own_leaf is not None and own_leaf.is_file() and _load(own_leaf) == certificate:
            return PeerCheck(CheckResult("peer", Verdict.WARN, f"{address}: this node itself", "leave it out"))
        found = f"{address}: answers as {name}, which is this node: another one runs with the same key"
        advice = "end one of them: two with one key are taken for a liar"
        return PeerCheck(CheckResult("peer", Verdict.BAD, found, advice), is_there=True)
    ahead_s = issued_s(certificate, AUTHORITY_DAYS if number is None else LEAF_DAYS) - now_s
    if ahead_s > SKEW_S:  # issued at its start, so in the past
        found = f"{address}: {name}, whose clock is at least {ahead_s:,.0f} s ahead of this one"
        verdict = Verdict.BAD if ahead_s > WRONG_S else Verdict.WARN
        return PeerCheck(CheckResult("peer", verdict, found, _CLOCK_ADVICE), number, is_there=True)
    return PeerCheck(CheckResult("peer", Verdict.OK, f"{address}: {name}"), number, is_there=True)


def _compare_clocks(
    peers: Sequence[str], reached: Sequence[PeerCheck], members: KnownMembers, folder: Path, now_s: float
) -> Iterator[CheckResult]:
    """Present each peer a certificate valid from just now: it is rejected if this node's clock is ahead."""
    tls = _write_tls(folder / "young", members, now_s + EARLY.total_seconds() - WRONG_S)
    for address, one in zip(peers, reached, strict=True):
        if tls is None or one.finding.verdict is not Verdict.OK:
            continue
        try:
            _shake_hands(address, tls)
        except Refused:
            found = f"more than {WRONG_S:.0f} s ahead of the peer's at {address}"
            yield CheckResult("clock", Verdict.BAD, found, _CLOCK_ADVICE)
        except OSError:  # the peer has gone meanwhile
            continue


def _shake_hands(address: str, tls: TlsFiles | None) -> x509.Certificate | None:
    """Return the peer's certificate once it accepted this node's; None without a certificate to present."""
    with socket.create_connection(split_address(address), timeout=_PATIENCE_S) as connection:
        if tls is None:
            return None
        with _tls_context(tls).wrap_socket(connection) as secured:
            certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
            secured.settimeout(_REFUSAL_S)
            try:
                secured.recv(1)
            except TimeoutError:
                return certificate
            except OSError as error:
                raise Refused(_reason(error)) from None
            return certificate


def _write_tls(folder: Path, members: KnownMembers | None, at_s: float) -> TlsFiles | None:
    """Issue this member's TLS certificate as of that time; None if it is not a member."""
    if members is None or members.signer is None or members.number is None:
        return None
    authority = members.authorities[members.number]
    at = datetime.fromtimestamp(at_s, UTC)
    try:
        key, leaf = issue_leaf(members.signer, authority, member_name(members.number), (LOOPBACK,), at=at)
    except BdflError:  # its CA is not valid then, which is reported elsewhere
        return None
    return write_tls(folder, key, leaf, roots_of(members.genesis, members.authorities))


def _tls_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.roots)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _unreached(found: str, advice: str) -> PeerCheck:
    return PeerCheck(CheckResult("peer", Verdict.BAD, found, advice))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
