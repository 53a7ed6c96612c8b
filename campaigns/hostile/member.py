"""Hostile member: a zenoh session with a member's own certificate that ignores all rules."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import zenoh

from bdfl.encoding import BadEncoding
from bdfl.federation.keys import load_key
from bdfl.node.access_point import KEY_FILE
from bdfl.protocol.messages import decode_message
from bdfl.transports.live.certificates import TlsFiles
from bdfl.transports.live.envelope import read_envelope
from bdfl.transports.live.zenoh_config import Role, chain_keys, session_config
from campaigns.hostile.counters import Tally
from campaigns.hostile.orders import Order
from campaigns.hostile.payloads import Arsenal, Shot

_LEASE_S = 5.0
_PATIENCE_S = 60.0
_QUERY_S = 2.0
_MAX_ASKED = 512  # unanswered queries
_PAUSE_S = 0.0005  # while disconnected
_NUM_HEARD = 64  # overheard envelopes to work with


@contextmanager
def open_session(tls: TlsFiles, chain: bytes, num_members: int, targets: tuple[str, ...]) -> Iterator[zenoh.Session]:
    """Open a session with all targets, with any certificate and without access control on this side."""
    config = session_config(
        Role.PEER,
        (),
        targets,
        tls,
        keys=chain_keys(chain),
        members=range(num_members),
        lease_s=_LEASE_S,
        max_payload=2**27,
    )
    config.insert_json5("access_control/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")
    session = zenoh.open(config)
    try:
        yield session
    finally:
        session.close()  # type: ignore[no-untyped-call]


def attack_as_member(order: Order, tally: Tally, is_over: Event, on_ready: Callable[[], None]) -> None:
    """Send until the attack is over; `on_ready` is called when connected and returns when sending may begin."""
    with _loading(order) as (session, arsenal):
        make = arsenal.load(order.attack)
        on_ready()
        _shoot(_Gun(session, tally), make, order, tally, is_over)


def attack_in_others_names(order: Order, tally: Tally, is_over: Event, on_ready: Callable[[], None]) -> None:
    """Attack over connections with certificates in the victims' names, each at full speed."""
    with _loading(order) as (_, arsenal), ExitStack() as stack:
        guns = []
        for victim in arsenal.victims:
            tls = order.tls_as(victim)
            session = stack.enter_context(open_session(tls, arsenal.chain, order.member + 1, order.targets))
            guns.append((_Gun(session, tally), arsenal.impersonate(victim)))
        on_ready()
        shooters = [Thread(target=_shoot, args=(gun, make, order, tally, is_over), daemon=True) for gun, make in guns]
        for shooter in shooters:
            shooter.start()
        for shooter in shooters:
            shooter.join()


@contextmanager
def _loading(order: Order) -> Iterator[tuple[zenoh.Session, Arsenal]]:
    """Open a session as the member itself, and collect messages for the payloads."""
    chain = bytes.fromhex(order.chain)
    with open_session(order.tls, chain, order.member + 1, order.targets) as session:
        _wait_for_transports(session, len(order.targets))
        spy = Spy(session, chain)
        _wait_for(lambda: len(spy.heard) >= _NUM_HEARD)
        arsenal = Arsenal(
            keys=chain_keys(chain),
            chain=chain,
            member=order.member,
            signer=load_key(Path(order.folder) / KEY_FILE),
            public_keys=tuple(map(bytes.fromhex, order.public_keys)),
            victims=range(len(order.targets)),
            heard=spy.heard[:_NUM_HEARD],
            find_height=lambda: spy.height,
            incarnation=order.incarnation,
            max_message_size=order.max_message_size,
            dice=random.Random(order.seed),
        )
        yield session, arsenal


def _shoot(gun: "_Gun", make: Callable[[int], Shot], order: Order, tally: Tally, is_over: Event) -> None:
    number = 0
    while not is_over.is_set():
        if (lead_s := tally.lead_s(order.rate)) > 0:
            is_over.wait(lead_s)
        gun.fire(make(number))
        number += 1


class Spy:
    """Overhears broadcasts, as any member may."""

    def __init__(self, session: zenoh.Session, chain: bytes) -> None:
        self.heard: list[bytes] = []  # the first envelopes
        self.height = 1  # the highest mentioned so far
        self._subscriber = session.declare_subscriber(chain_keys(chain).to_all("*"), self._take)

    def _take(self, sample: zenoh.Sample) -> None:
        data = sample.payload.to_bytes()
        with suppress(BadEncoding):
            message = decode_message(read_envelope(data, len(data), 0).payload)
            self.height = max(self.height, message.height)
            if len(self.heard) < _NUM_HEARD:
                self.heard.append(data)


class _Gun:
    """Sends messages and requests as fast as they are accepted."""

    def __init__(self, session: zenoh.Session, tally: Tally) -> None:
        self._session, self._tally = session, tally
        self._num_asked = 0

    def fire(self, shot: Shot) -> None:
        if not self._session.info.transports():  # zenoh would silently accept messages without a receiver
            self._tally.fail()
            time.sleep(_PAUSE_S)
            return
        try:
            if shot.is_query:
                self._ask(shot)
            else:
                self._session.put(shot.key, shot.data, congestion_control=zenoh.CongestionControl.BLOCK)
        except zenoh.ZError:
            self._tally.fail()
        else:
            self._tally.send(len(shot.data))

    def _ask(self, shot: Shot) -> None:
        while self._num_asked >= _MAX_ASKED:
            time.sleep(0.001)
        self._num_asked += 1
        callback = zenoh.handlers.Callback(self._take_reply, self._end_query, indirect=False)
        self._session.get(
            shot.key,
            callback,
            payload=shot.data,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=_QUERY_S,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def _take_reply(self, reply: zenoh.Reply) -> None:
        if reply.ok is not None:
            self._tally.receive(len(reply.ok.payload))

    def _end_query(self) -> None:
        self._num_asked -= 1


def _wait_for_transports(session: zenoh.Session, count: int) -> None:
    _wait_for(lambda: len(session.info.transports()) >= count)


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.02)
