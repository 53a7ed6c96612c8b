"""An access point: its process and its files."""

import os
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bdfl import __version__
from bdfl.encoding import digest
from bdfl.errors import BdflError
from bdfl.federation.genesis_file import GenesisFile, read_genesis
from bdfl.federation.keys import read_secret, write_secret
from bdfl.federation.member_card import MAX_CERTIFICATE
from bdfl.federation.membership_change import authorities_of, read_admissions
from bdfl.node.log import LOG_FILE, NodeLog
from bdfl.node.run_file import RunFile, forget_run, lock_folder, write_run
from bdfl.node.settings import ROOTS_FILE, TLS_FOLDER, roots_of
from bdfl.processes import raise_file_limit
from bdfl.storage import OWN_FOLDER, read_regular, replace_file
from bdfl.transports.live.certificates import TlsFiles, make_ap_certificate, validate_access_point, validate_tls

# Files of an access point: its private TLS key, and its certificate, which the genesis lists.

KEY_FILE = "key.pem"
CERTIFICATE_FILE = "certificate.pem"
_MAX_SIZE = 2 * MAX_CERTIFICATE
_PEM_HEAD = b"-----BEGIN CERTIFICATE-----"


class BadCertificateFile(BdflError):
    """A certificate that cannot be written or read."""


def create_access_point(folder: Path, name: str, hosts: Sequence[str]) -> bytes:
    """Create a key and a certificate for these host names or addresses in a folder; return the certificate in DER.

    An existing key is never overwritten.
    """
    key, certificate, der = make_ap_certificate(name, hosts)
    try:
        folder.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        write_secret(folder / KEY_FILE, key)
        (folder / CERTIFICATE_FILE).write_bytes(certificate)
    except OSError as error:
        raise BadCertificateFile(f"{folder}: {error.strerror}, a writable folder expected") from None
    return der


def read_certificate(path: Path) -> bytes:
    """Read a PEM or DER certificate, or that of an access point's folder; return it as DER once validated."""
    file = path / CERTIFICATE_FILE if path.is_dir() else path
    try:
        data = read_regular(file, _MAX_SIZE)
    except OSError as error:
        raise BadCertificateFile(f"{file}: {error.strerror}, a single certificate expected") from None
    if data.startswith(_PEM_HEAD):
        try:
            data = ssl.PEM_cert_to_DER_cert(data.decode("ascii"))
        except ValueError:
            raise BadCertificateFile(f"{file}: damaged, a certificate in PEM expected") from None
    try:
        validate_access_point(data)
    except BdflError as error:
        raise BadCertificateFile(f"{file}: {error}") from None
    return data


# Access point service: forwards messages between nodes until stopped, and signs nothing.

_POLL_S = 0.2


class NotListed(BdflError):
    """An access point that the genesis does not list."""


@dataclass(frozen=True)
class AccessPointSettings:
    """Settings chosen by the operator of an access point."""

    genesis: Path
    key: Path
    certificate: Path
    folder: Path
    listen: tuple[str, ...]
    peers: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    admissions: tuple[Path, ...] = ()  # of members admitted after genesis


class AccessPointService:
    """A running access point, created by `open_service`."""

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self._is_stopping = threading.Event()

    def run(self) -> None:
        """Block until `stop`."""
        # The OS may deliver a signal to a zenoh thread, which does not wake this one: so it polls.
        while not self._is_stopping.wait(_POLL_S):
            pass
        self._log.info("stopped")

    def stop(self) -> None:
        self._is_stopping.set()


@contextmanager
def open_service(settings: AccessPointSettings, *, echo: TextIO | None = None) -> Iterator[AccessPointService]:
    """Run an access point; raises a `BdflError` unless the genesis lists its certificate."""
    from bdfl.transports.live.access_point import open_access_point

    raise_file_limit()
    genesis = read_genesis(settings.genesis, allowed=settings.allowed)
    name = find_name(genesis, settings.certificate)
    read_secret(settings.key)  # rejects a key that others may read
    with ExitStack() as resources:
        resources.enter_context(lock_folder(settings.folder))
        forget_run(settings.folder)
        log = NodeLog(settings.folder / LOG_FILE, echo=echo, name=name)
        tls = TlsFiles(settings.key, settings.certificate, settings.folder / TLS_FOLDER / ROOTS_FILE)
        try:
            tls.roots.parent.mkdir(mode=OWN_FOLDER, exist_ok=True)
            admissions = read_admissions(settings.folder, settings.admissions, genesis)
            authorities = authorities_of(genesis, admissions)
            replace_file(tls.roots, roots_of(genesis, authorities))
        except OSError as error:
            raise NotListed(f"{settings.folder}: {error.strerror}, a writable folder expected") from None
        validate_tls(tls)
        session = open_access_point(settings.listen, settings.peers, tls, members=sorted(authorities))
        resources.callback(session.close)
        run = RunFile(
            kind="access point",
            pid=os.getpid(),
            started=time.time(),
            version=__version__,
            chain=genesis.chain.hex(),
            listen=settings.listen,
        )
        write_run(settings.folder, run)
        log.info("forwarding", {"listen": ", ".join(settings.listen)})
        yield AccessPointService(log)


def find_name(genesis: GenesisFile, certificate: Path) -> str:
    """Return the name under which the genesis lists a certificate."""
    name = digest(read_certificate(certificate))
    for point in genesis.genesis.access_points:
        if point.certificate == name:
            return point.name
    raise NotListed(f"{certificate}: not one of the {len(genesis.genesis.access_points)} access points of the genesis")
