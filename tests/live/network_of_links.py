"""Links on loopback, each with a node that only remembers what it was told; for tests."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bdfl.encoding import digest
from bdfl.identity import Signer
from bdfl.localnet.network import find_ports
from bdfl.protocol.messages import DecidedWanted, Message
from bdfl.transports.interfaces import Offer
from bdfl.transports.live.certificates import (
    TlsFiles,
    issue_leaf,
    make_ap_certificate,
    make_authority,
    member_name,
    roots_pem,
    write_tls,
)
from bdfl.transports.live.envelope import EnvelopeWriter, Keyring
from bdfl.transports.live.zenoh_link import ZenohLink
from bdfl.transports.live.zenoh_session import LinkSettings

CHAIN = digest(b"a chain for tests")
PATIENCE_S = 240.0


def signer_of(number: int) -> Signer:
    return Signer(digest(b"member %d" % number))


def writer_of(number: int, incarnation: int = 1, *, signer: int | None = None, num_members: int = 10) -> EnvelopeWriter:
    """Makes envelopes in a member's name, with its own key or another member's, for so many members."""
    keyring = Keyring(signer_of(number if signer is None else signer), CHAIN)
    return EnvelopeWriter(keyring, number, incarnation, [signer_of(one).public_key for one in range(num_members)])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    return [int(address.rpartition(":")[2]) for address in find_ports(count)]


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.01)


def message_of(number: int, height: int) -> Message:
    return Message(CHAIN, number, height, DecidedWanted())


@dataclass
class Listener:
    """A node that remembers what its link told it, and serves what it was given."""

    blobs: dict[bytes, Offer] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    fetched: list[tuple[int, bytes]] = field(default_factory=list)
    present: frozenset[int] = frozenset()
    refused: list[tuple[int | None, str]] = field(default_factory=list)
    asked_by: list[int] = field(default_factory=list)

    def receive(self, message: Message) -> None:
        self.messages.append(message)

    def receive_blob(self, holder: int, data: bytes) -> None:
        self.fetched.append((holder, data))

    def offer(self, to: int, blob: bytes) -> Offer | None:
        self.asked_by.append(to)
        return self.blobs.get(blob)

    def notice(self, present: frozenset[int]) -> None:
        self.present = present

    def refuse(self, sender: int | None, reason: str) -> None:
        self.refused.append((sender, reason))

    def heights(self, sender: int) -> list[int]:
        return [message.height for message in list(self.messages) if message.sender == sender]


class Links:
    """Some members' links, opened one by one, all closed at the end; no thread is left."""

    def __init__(self, num_members: int, folder: Path | None = None, num_access_points: int = 0) -> None:
        self.signers = [signer_of(number) for number in range(num_members)]
        self.public_keys = tuple(signer.public_key for signer in self.signers)
        self.listeners = [Listener() for _ in self.signers]
        self.links: dict[int, ZenohLink] = {}
        self.tls: list[TlsFiles | None] = [None] * num_members
        self.ap_tls: list[TlsFiles | None] = [None] * num_access_points
        self._threads = set(threading.enumerate())
        self._closers: list[Callable[[], None]] = []
        if folder is not None:
            self._certify(folder)

    def settings(self, number: int, listen: tuple[str, ...], peers: tuple[str, ...], **changes: Any) -> LinkSettings:
        settings = LinkSettings(
            number=number,
            signer=self.signers[number],
            chain=CHAIN,
            public_keys=self.public_keys,
            incarnation=1,
            listen=listen,
            peers=peers,
            tls=self.tls[number],
            max_blob_size=64 * 2**20,
        )
        return replace(settings, **changes)

    def open(self, number: int, listen: tuple[str, ...], peers: tuple[str, ...], **changes: Any) -> ZenohLink:
        link = ZenohLink(self.settings(number, listen, peers, **changes))
        self.links[number] = link
        link.open(self.listeners[number])
        return link

    def open_all(self, **changes: Any) -> None:
        """All listen; each but the first knows the first only."""
        ports = free_ports(len(self.signers))
        for number, port in enumerate(ports):
            peers = () if number == 0 else (f"127.0.0.1:{ports[0]}",)
            self.open(number, (f"127.0.0.1:{port}",), peers, **changes)

    def wait_for_all(self) -> None:
        numbers = frozenset(self.links)
        for number in numbers:
            wait_until(lambda me=number: self.listeners[me].present >= numbers - {me}, f"{number} sees all")

    def close_later(self, close: Callable[[], None]) -> None:
        self._closers.append(close)

    def __enter__(self) -> "Links":
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links.values():
            link.close()
        for close in self._closers:
            close()
        left = set(threading.enumerate()) - self._threads
        assert not left, left

    def _certify(self, folder: Path) -> None:
        authorities = [make_authority(signer, f"authority-{i}") for i, signer in enumerate(self.signers)]
        leaves = [
            issue_leaf(signer, authorities[i], member_name(i), ("127.0.0.1",)) for i, signer in enumerate(self.signers)
        ]
        points = [make_ap_certificate(f"point-{i}", ("127.0.0.1",)) for i in range(len(self.ap_tls))]
        roots = roots_pem([*authorities, *(der for _, _, der in points)])
        self.tls = [write_tls(folder / f"{i}", key, leaf, roots) for i, (key, leaf) in enumerate(leaves)]
        self.ap_tls = [write_tls(folder / f"ap-{i}", key, leaf, roots) for i, (key, leaf, _) in enumerate(points)]
