"""Attacker without a trusted certificate that can connect to the nodes' addresses."""

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

import zenoh

from bdfl.addresses import split_address
from bdfl.transports.live.certificates import TlsFiles
from campaigns.hostile.counters import Tally
from campaigns.hostile.member import open_session
from campaigns.hostile.orders import Order

_AT_ONCE = 128  # concurrent connection attempts
_LIMIT_S = 0.2  # per attempt
_KEPT_OPEN = 512
_LISTENING_S = 2.0
_PACE_S = 0.01

_Strike = Callable[[str, int], Awaitable[None]]


@dataclass(frozen=True)
class StrangerProbe:
    """Observations of a zenoh session without a listed certificate."""

    transports: int  # largest number seen
    heard: int  # messages from nodes


def attack_as_stranger(order: Order, tally: Tally, is_over: Event, on_ready: Callable[[], None]) -> None:
    """Connect and send until the attack is over; `on_ready` returns when it may begin."""
    stranger = _Stranger(order, tally)
    strikes: dict[str, _Strike] = {
        "noise": stranger.make_noise,
        "half-open": stranger.stay_silent,
        "half-hello": stranger.say_half,
        "unlisted": stranger.shake_hands,
    }
    strike = strikes[order.attack]
    on_ready()
    asyncio.run(_strike_all(strike, order, tally, is_over))


def probe_as_stranger(tls: TlsFiles, chain: bytes, num_members: int, targets: tuple[str, ...]) -> StrangerProbe:
    """Open a zenoh session with that certificate and subscribe to everything for a while."""
    heard: list[zenoh.Sample] = []
    num_transports = 0
    with open_session(tls, chain, num_members, targets) as session:
        session.declare_subscriber("**", heard.append, allowed_origin=zenoh.Locality.REMOTE)
        session.liveliness().declare_subscriber("**", heard.append, history=True)
        deadline_s = time.monotonic() + _LISTENING_S
        while time.monotonic() < deadline_s:
            num_transports = max(num_transports, len(session.info.transports()))
            time.sleep(0.02)
    return StrangerProbe(num_transports, len(heard))


async def _strike_all(strike: _Strike, order: Order, tally: Tally, is_over: Event) -> None:
    number, targets = 0, order.targets

    async def work() -> None:
        nonlocal number
        while not is_over.is_set():
            number += 1
            mine = number
            while not is_over.is_set() and tally.lead_s(order.rate) > 0:
                await asyncio.sleep(_PACE_S)
            try:
                await asyncio.wait_for(strike(targets[mine % len(targets)], mine), _LIMIT_S)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                tally.fail()

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


class _Stranger:
    def __init__(self, order: Order, tally: Tally) -> None:
        self._tally = tally
        self._dice = random.Random(order.seed)
        self._kept: deque[asyncio.StreamWriter] = deque()
        self._hello = _client_hello()
        self._unlisted = _unlisted_context(order.unlisted_tls)

    async def make_noise(self, target: str, number: int) -> None:
        await self._send(target, self._dice.randbytes(self._dice.randint(1, 2048)))

    async def say_half(self, target: str, number: int) -> None:
        await self._send(target, self._hello[: len(self._hello) // 2] + self._dice.randbytes(200))

    async def stay_silent(self, target: str, number: int) -> None:
        _, writer = await asyncio.open_connection(*split_address(target))
        self._kept.append(writer)
        self._tally.send(0)
        if len(self._kept) > _KEPT_OPEN:
            self._kept.popleft().close()

    async def shake_hands(self, target: str, number: int) -> None:
        host, port = split_address(target)
        reader, writer = await asyncio.open_connection(host, port, ssl=self._unlisted, server_hostname="localhost")
        try:
            writer.write(b"\x00" * 64)
            self._tally.send(64)
            with suppress(ssl.SSLError, ConnectionError):  # the rejection
                self._tally.receive(len(await reader.read(4096)))
        finally:
            writer.close()

    async def _send(self, target: str, data: bytes) -> None:
        _, writer = await asyncio.open_connection(*split_address(target))
        try:
            writer.write(data)
            await writer.drain()
            self._tally.send(len(data))
        finally:
            writer.close()


def _client_hello() -> bytes:
    """Return a TLS ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    conversation = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        conversation.do_handshake()
    return outgoing.read()


def _unlisted_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(tls.certificate, tls.key)
    return context
