"""What may keep a node from running, looked for before it is: one line each, with what to do about it."""

import shutil
import socket
import ssl
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from bdfl.errors import BdflError, install_command
from bdfl.identity import Signer
from bdfl.ledger.keeping import StoreError, StoreInUse
from bdfl.ledger.store import DATABASE_FILE, ChainStore
from bdfl.operation.addresses import BadAddress, split_address
from bdfl.operation.genesis_file import GenesisFile, read_genesis
from bdfl.operation.key_file import load_key
from bdfl.operation.member_change import ChangeFile
from bdfl.operation.newcomers import authorities_of, find_number, read_admissions
from bdfl.operation.node_files import CHAIN_FOLDER, write_tls
from bdfl.operation.own_name import LOOPBACK
from bdfl.operation.run_file import LIFE_FILE, BadFolder, is_locked, read_run
from bdfl.transports.live.certificates import AUTHORITY_DAYS, LEAF_DAYS, TlsFiles, common_name_of, member_name
from bdfl.transports.live.event_log import EVENTS_FILE

_PACKAGES = ("eclipse-zenoh", "torch", "prometheus-client", "psutil", "safetensors")
_PATIENCE_S = 3.0  # with a peer
_ROUNDS_OF_ROOM = 10  # that the disk should have room for
_LEAST_ROOM = 64 * 2**20
_SKEW_S = 5.0  # between two clocks that is no news
_SOON_DAYS = 14
_BEGIN_ANEW = (
    f"put {CHAIN_FOLDER} and {EVENTS_FILE} aside and keep the rest of the folder, above all the file {LIFE_FILE}; "
    "start again when the others have decided the height at which this one was, or it may vote twice there"
)


class Verdict(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"  # works, but not as it should
    BAD = "bad"  # a node would not run


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""  # what to do

    def __str__(self) -> str:
        return f"{self.verdict:<4} {self.check}: {self.found}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Patient:
    """A node as it would be started; what is not given is not looked at."""

    genesis: Path | None = None
    key: Path | None = None
    folder: Path | None = None
    listen: Sequence[str] = ()
    peers: Sequence[str] = ()
    metrics: str | None = None  # host:port
    is_unsigned_allowed: bool = False
    allowed: frozenset[str] = frozenset()
    admissions: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Federation:
    """Who the members are, and which of them the patient is."""

    genesis: GenesisFile
    admissions: tuple[ChangeFile, ...]  # of members who came later
    signer: Signer | None

    @property
    def authorities(self) -> dict[int, bytes]:
        """CA certificates (DER) by member number."""
        return authorities_of(self.genesis, self.admissions)

    @property
    def number(self) -> int | None:
        """The patient's; none: not known, or no member's."""
        return None if self.signer is None else find_number(self.genesis, self.admissions, self.signer.public_key)

    def name_of(self, number: int) -> str:
        newcomers = {file.change.number: file.card.card.name for file in self.admissions if file.card is not None}
        return {**newcomers, **dict(enumerate(self.genesis.names))}[number]


def examine(patient: Patient, now_s: float | None = None) -> Iterator[Finding]:
    """Everything that can be found out without starting the node, in the order in which it would matter."""
    now_s = time.time() if now_s is None else now_s
    yield from _check_packages()
    signer = yield from _check_key(patient.key)
    genesis = yield from _check_genesis(patient)
    members = None
    if genesis is not None:
        members = _Federation(genesis, (yield from _check_admissions(patient, genesis)), signer)
        if signer is not None:
            yield _check_membership(members)
        yield from _check_certificates(members, now_s)
    is_running = patient.folder is not None and is_locked(patient.folder)
    if patient.folder is not None:
        yield from _check_folder(patient.folder, genesis, is_running=is_running)
        yield from _check_store(patient.folder / CHAIN_FOLDER, genesis, is_running=is_running)
    for address in (*patient.listen, *([] if patient.metrics is None else [patient.metrics])):
        yield _check_port(address, is_running=is_running)
    yield _check_clock(patient, members, now_s)
    yield from _check_peers(patient.peers, members, now_s)


def _check_packages() -> Iterator[Finding]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            extra = "learn" if name in ("torch", "safetensors") else "live"
            yield Finding("packages", Verdict.BAD, f"{name} is missing", install_command(extra))
    if len(found) == len(_PACKAGES):
        yield Finding("packages", Verdict.OK, ", ".join(found))


def _check_key(path: Path | None) -> Generator[Finding, None, Signer | None]:
    if path is None:
        return None
    try:
        signer = load_key(path)
    except BdflError as error:
        yield Finding("key", Verdict.BAD, str(error))
        return None
    yield Finding("key", Verdict.OK, f"{path}, public key {signer.public_key.hex()[:16]}")
    return signer


def _check_genesis(patient: Patient) -> Generator[Finding, None, GenesisFile | None]:
    if patient.genesis is None:
        return None
    try:
        genesis = read_genesis(patient.genesis, allowed=patient.allowed)
    except BdflError as error:
        yield Finding("genesis", Verdict.BAD, str(error), "ask the organiser for the file again")
        return None
    name = f"chain {genesis.chain.hex()[:16]}, {len(genesis.public_keys)} members"
    missing = genesis.missing_signatures
    if not missing:
        yield Finding("genesis", Verdict.OK, f"{name}, signed by all")
    else:
        verdict = Verdict.WARN if patient.is_unsigned_allowed else Verdict.BAD
        who = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        yield Finding("genesis", verdict, f"{name}, not signed by {who}", "they sign with bdfl genesis sign")
    return genesis


def _check_admissions(patient: Patient, genesis: GenesisFile) -> Generator[Finding, None, tuple[ChangeFile, ...]]:
    try:
        found = read_admissions(patient.folder, patient.admissions, genesis)
    except BdflError as error:
        yield Finding("admission", Verdict.BAD, str(error), "ask whoever proposed it for the file again")
        return ()
    if found:
        numbers = sorted({file.change.number for file in found})
        yield Finding("admission", Verdict.OK, f"came later: {', '.join(map(str, numbers))}")
    return found


def _check_membership(members: _Federation) -> Finding:
    number = members.number
    if number is None:
        advice = "the wrong key, the wrong genesis, or no --admission of this chain"
        return Finding("member", Verdict.BAD, "the key is no member's", advice)
    return Finding("member", Verdict.OK, f"number {number}, {members.name_of(number)!r}")


def _check_certificates(members: _Federation, now_s: float) -> Iterator[Finding]:
    """Members' certificates and access points'; those of others keep others out, one's own this node."""
    genesis, own = members.genesis, members.number
    now = datetime.fromtimestamp(now_s, UTC)
    names = [(f"member {number}", data, number == own) for number, data in sorted(members.authorities.items())]
    points = zip(genesis.genesis.access_points, genesis.access_points, strict=True)
    names += [(f"access point {point.name}", data, False) for point, data in points]
    first_end: datetime | None = None
    is_fine = True
    for name, data, is_own in names:
        certificate = x509.load_der_x509_certificate(data)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        first_end = end if first_end is None else min(first_end, end)
        if begin <= now <= end:
            continue
        is_fine = False
        verdict = Verdict.BAD if is_own else Verdict.WARN
        if now > end:
            yield Finding("certificate", verdict, f"{name}: expired on {end:%Y-%m-%d}", "a new genesis is needed")
        else:
            yield Finding(
                "certificate", verdict, f"{name}: not valid before {begin:%Y-%m-%d %H:%M} UTC", "set the clock"
            )
    if is_fine and first_end is not None:
        days = (first_end - now).days
        verdict = Verdict.OK if days > _SOON_DAYS else Verdict.WARN
        yield Finding("certificate", verdict, f"{len(names)} valid, the first expires in {days} days")


def _check_folder(folder: Path, genesis: GenesisFile | None, *, is_running: bool) -> Iterator[Finding]:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir() or not _is_writable(place):
        yield Finding("folder", Verdict.BAD, f"{folder}: {place} is not a folder one can write to", "choose another")
        return
    state = "a node works in it" if is_running else "free" if folder.exists() else "will be made"
    yield Finding("folder", Verdict.OK, f"{folder}: {state}")
    num_bytes = 0 if genesis is None else genesis.genesis.model.size * (len(genesis.public_keys) + 1)
    needed, free = max(_LEAST_ROOM, _ROUNDS_OF_ROOM * num_bytes), shutil.disk_usage(place).free
    room = f"{free / 2**20:,.0f} MB free"
    if free < needed:
        advice = "make room, or prune: ledger.keep_blocks, bdfl chain prune"
        yield Finding(
            "disk", Verdict.BAD, f"{room}, {needed / 2**20:,.0f} MB needed for {_ROUNDS_OF_ROOM} rounds", advice
        )
    else:
        yield Finding("disk", Verdict.OK, room)


def _is_writable(folder: Path) -> bool:
    try:
        with TemporaryDirectory(dir=folder, prefix=".doctor-"):
            return True
    except OSError:
        return False


def _check_store(path: Path, genesis: GenesisFile | None, *, is_running: bool) -> Iterator[Finding]:
    if not (path / DATABASE_FILE).is_file():
        yield Finding("store", Verdict.OK, f"{path}: none yet")
        return
    try:
        with ChainStore.open(path, read_only=is_running) as store:  # for writing everything is checked
            height, begin = store.height, store.genesis
    except StoreInUse as error:
        yield Finding("store", Verdict.BAD, str(error), "end the other process")
        return
    except StoreError as error:
        yield Finding("store", Verdict.BAD, str(error), _BEGIN_ANEW)
        return
    if genesis is not None and begin != genesis.genesis:
        yield Finding("store", Verdict.BAD, f"{path}: of another genesis", "another folder, or the other genesis file")
    else:
        yield Finding("store", Verdict.OK, f"{path}: {height} blocks" + ("" if is_running else ", nothing is missing"))


def _check_port(address: str, *, is_running: bool) -> Finding:
    try:
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
    except (OSError, BadAddress) as error:
        if is_running:
            return Finding("port", Verdict.OK, f"{address}: taken, and the node is running")
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Finding("port", Verdict.BAD, f"{address}: {reason}", "choose another, or end who listens there")
    return Finding("port", Verdict.OK, f"{address}: free")


def _check_clock(patient: Patient, members: _Federation | None, now_s: float) -> Finding:
    """Blocks and certificates need the wall clock: those here were made, and the node ran, in the past."""
    latest_s, what = 0.0, ""
    if members is not None and members.number is not None:
        certificate = x509.load_der_x509_certificate(members.authorities[members.number])
        latest_s, what = _issued_s(certificate, AUTHORITY_DAYS), "you made your card"
    if patient.folder is not None:
        with suppress(BadFolder):
            run = read_run(patient.folder)
            if run is not None and run.started > latest_s:
                latest_s, what = run.started, "the node was last started"
    if now_s < latest_s - _SKEW_S:
        behind = f"{latest_s - now_s:,.0f} s before {what}"
        return Finding("clock", Verdict.BAD, f"says {_show_time(now_s)}, {behind}", "set it, best by NTP")
    return Finding("clock", Verdict.OK, f"says {_show_time(now_s)}")


def _check_peers(peers: Sequence[str], members: _Federation | None, now_s: float) -> Iterator[Finding]:
    if not peers:
        yield Finding("peers", Verdict.WARN, "none given", "--peer, unless the others come to this one")
        return
    with TemporaryDirectory() as folder:
        tls = None if members is None else _write_tls(Path(folder), members)
        findings = [_check_peer(peer, tls, now_s) for peer in peers]
    yield from findings
    if all(finding.verdict is Verdict.BAD for finding in findings):
        yield Finding("peers", Verdict.BAD, "none can be reached", "network, firewall, or they are not started yet")


def _write_tls(folder: Path, members: _Federation) -> TlsFiles | None:
    number = members.number
    if members.signer is None or number is None:
        return None
    return write_tls(folder, members.genesis, members.signer, number, (LOOPBACK,), members.authorities)


def _check_peer(address: str, tls: TlsFiles | None, now_s: float) -> Finding:
    """Whether somebody answers, is of this network, and has the same time."""
    try:
        with socket.create_connection(split_address(address), timeout=_PATIENCE_S) as connection:
            if tls is None:
                return Finding("peer", Verdict.OK, f"{address}: answers; its certificate was not checked")
            with _tls_context(tls).wrap_socket(connection) as secured:
                certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        if "not yet valid" in reason:
            return Finding(
                "peer", Verdict.BAD, f"{address}: its certificate begins in the future", "compare the clocks"
            )
        return Finding("peer", Verdict.BAD, f"{address}: not of this network: {reason}", "the same genesis there?")
    except (OSError, BadAddress) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Finding("peer", Verdict.BAD, f"{address}: {reason}", "network, firewall, or it is not started yet")
    name = common_name_of(certificate)
    is_member = name.startswith(member_name(0)[:-1])
    ahead_s = _issued_s(certificate, LEAF_DAYS if is_member else AUTHORITY_DAYS) - now_s
    if ahead_s > _SKEW_S:  # made when it was started, so before now
        found = f"{address}: {name}, whose clock is at least {ahead_s:,.0f} s ahead of this one"
        return Finding("peer", Verdict.WARN, found, "set both, best by NTP")
    return Finding("peer", Verdict.OK, f"{address}: {name}")


def _tls_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.roots)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def _issued_s(certificate: x509.Certificate, days: int) -> float:
    """When a certificate that is valid for so many days was made; it says that it was valid a day before already."""
    return (certificate.not_valid_after_utc - timedelta(days=days)).timestamp()


def _show_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
