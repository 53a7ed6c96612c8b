"""Access point service: forwards messages between nodes until stopped, and signs nothing."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bdfl import __version__
from bdfl.encoding import digest
from bdfl.errors import BdflError
from bdfl.operation.access_point_files import read_certificate
from bdfl.operation.genesis_file import GenesisFile, read_genesis
from bdfl.operation.key_file import read_secret
from bdfl.operation.logs import LOG_FILE, NodeLog
from bdfl.operation.newcomers import authorities_of, read_admissions
from bdfl.operation.node_files import ROOTS_FILE, TLS_FOLDER, roots_of
from bdfl.operation.run_file import RunFile, forget_run, lock_folder, replace_file, write_run
from bdfl.operation.set_up_file import OWN_FOLDER
from bdfl.process_pool import raise_file_limit
from bdfl.transports.live.access_point import open_access_point
from bdfl.transports.live.certificates import TlsFiles, validate_tls

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
