"""The simulated network: discrete events on a virtual clock, with the durations of the cost model, and its nodes.

Events are handled in order of time, and at equal times in order of scheduling. There is no other clock and no
randomness here: the same world, delivery and incidents reproduce the run. The wall clock starts at the genesis time and
advances with the virtual clock.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import TypeAlias

from bdfl.identity import Signer
from bdfl.ledger import store as keeping
from bdfl.ledger.block import Block, Certificate, Kind, MembershipChange, header_seal
from bdfl.ledger.chain_params import weights_file
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.protocol.events import (
    BlobArrived,
    ChangeOffered,
    Commit,
    Effect,
    Event,
    FetchBlob,
    Measure,
    Measured,
    MessageArrived,
    Mine,
    NonceFound,
    PeersAppeared,
    Refused,
    Send,
    ServeDecided,
    SetTimer,
    Started,
    StopMining,
    Store,
    Timer,
    TimerFired,
    Train,
    TrainingFinished,
)
from bdfl.protocol.messages import Decided, Gossip, Message, Proposal, decode_message, encode_message
from bdfl.protocol.node import step
from bdfl.protocol.state import Context, NodeState
from bdfl.transports.cost_model import ScenarioCostModel
from bdfl.transports.interfaces import (
    BlobReply,
    BlobRequest,
    Delivery,
    Observer,
    Parcel,
    Tamper,
    Transition,
    keep,
    recover,
)

# A simulated node: the pure node, its store, and the driver's records of it.


@dataclass(eq=False, slots=True)
class SimulatedNode:
    """A node of a simulated network; only the driver changes it."""

    context: Context
    store: keeping.Store
    state: NodeState
    tamper: Tamper | None = None
    slowness: float = 1.0  # factor on modelled times of training, uploading, mining and sending
    clock_error_ms: int = 0  # offset of its wall clock, positive if ahead of the network's
    is_up: bool = True
    frozen_until_ns: int = 0
    effects_left: tuple[int, int] | None = None  # until it crashes, and for how long (ns)
    incarnation: int = 0  # restart counter: entries queued before a crash are void
    timers: dict[Timer, SetTimer] = field(default_factory=dict)
    mining: Mine | None = None
    search: tuple[int, int, int] | None = None  # height and attempt of a search, and when it ends (ns)
    announced: int = 0  # the height whose own update was sent last
    uploaded_ns: int = 0  # end of its upload

    def forget(self) -> None:
        """Drop all pending work and timers."""
        self.timers = {}
        self.mining = self.search = None
        self.announced = self.uploaded_ns = 0

    @property
    def number(self) -> int:
        return self.context.number

    @property
    def height(self) -> int:
        """Number of blocks that the node has committed."""
        return self.state.chain.height


def simulated_signer(seed: int, number: int) -> Signer:
    """The key of a simulated member. It is not secret: it is derived from the seed."""
    return Signer(hashlib.sha256(f"bdfl simulated member {seed} {number}".encode()).digest())


@dataclass(eq=False, slots=True)
class _ToAll:
    """A broadcast, queued once and re-queued for its next receiver."""

    event: Event | BlobRequest
    receivers: Iterator[int]  # after the one it is queued for


# An entry of the queue: an event, a request or a finished effect for a node, or an incident for none.
_Due: TypeAlias = Event | BlobRequest | SetTimer | Train | Mine | _ToAll | Callable[[], None]
_NOBODY = -1
_NS_PER_MS = 1_000_000
_ANY_INCARNATION = -1


class Ending(Enum):
    """The reason that `Network.run` returned."""

    DONE = "done"  # its condition is met
    IDLE = "idle"  # the queue is empty
    TIME = "time"
    EVENTS = "events"


class Network:
    """Nodes, the messages between them and a clock. A `Started` is queued for every node."""

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        world: ScenarioCostModel,
        *,
        delivery: Delivery | None = None,
        observer: Observer | None = None,
        on_commit: Callable[[int, Block, Certificate], None] | None = None,
        voting_ns: int = 0,
        check_encoding: bool = False,
    ) -> None:
        """Set up the network; both votes together take `voting_ns`, and `check_encoding` sends messages as bytes."""
        self.now_ns = 0
        self.nodes = tuple(nodes)
        self.set_clock(self.nodes[0].store.genesis.time_ms)
        self.num_events = 0
        self._world = world
        self._delivery = delivery
        self._observer = observer
        self._on_commit = on_commit
        self._vote_ns = voting_ns // 2, voting_ns - voting_ns // 2
        self._check_encoding = check_encoding
        self._queue: list[tuple[int, int, int, int, _Due]] = []  # time, order, node, its restart count, entry
        self._order = 0
        self._is_news = True  # `is_done` may have changed
        for node in self.nodes:
            self._push(0, node.number, node.incarnation, Started())

    def run(
        self,
        is_done: Callable[[], bool] | None = None,
        *,
        until_ns: int | None = None,
        max_events: int | None = None,
    ) -> Ending:
        """Run until `is_done`, an empty queue, the time `until_ns`, or `max_events` more events.

        `is_done` is called first, and after each event with a commit and each incident. `run` may be called again.
        """
        queue, nodes = self._queue, self.nodes
        last_event = None if max_events is None else self.num_events + max_events
        self._is_news = True
        while True:
            if self._is_news:
                self._is_news = False
                if is_done is not None and is_done():
                    return Ending.DONE
            if not queue:
                return Ending.IDLE
            if until_ns is not None and queue[0][0] > until_ns:
                self.now_ns = max(self.now_ns, until_ns)
                return Ending.TIME
            if self.num_events == last_event:
                return Ending.EVENTS
            time_ns, order, number, incarnation, due = heappop(queue)
            self.now_ns = time_ns
            if type(due) is _ToAll:
                following = next(due.receivers, _NOBODY)
                if following != _NOBODY:  # under the same order, so that no other entry comes between
                    heappush(queue, (time_ns, order, following, incarnation, due))
                due = due.event
            if number == _NOBODY:
                due()  # type: ignore[operator]  # only incidents have no node
                self._is_news = True
                continue
            node = nodes[number]
            if not node.is_up or incarnation not in (node.incarnation, _ANY_INCARNATION):
                continue
            if time_ns < node.frozen_until_ns:
                self._push(node.frozen_until_ns, number, incarnation, due)
                continue
            event = self._complete(node, due)
            if event is not None:
                self.num_events += 1
                self._take_in(node, event)

    def set_clock(self, utc_ms: int) -> None:
        """Set the wall clock of all nodes; a resumed run starts it at its last block."""
        self._clock = utc_ms, self.now_ns

    def utc_ms(self, node: SimulatedNode) -> int:
        """A node's wall clock."""
        utc_ms, then_ns = self._clock
        return utc_ms + (self.now_ns - then_ns) // _NS_PER_MS + node.clock_error_ms

    # Incidents

    def offer(self, number: int, change: MembershipChange) -> None:
        """Submit a change of membership to a node, as its operator; lost if the node is down."""
        self._push(self.now_ns, number, _ANY_INCARNATION, ChangeOffered(change))

    def at(self, time_ns: int, incident: Callable[[], None]) -> None:
        """Call `incident` at that time."""
        self._push(time_ns, _NOBODY, _ANY_INCARNATION, incident)

    def crash(self, number: int, down_ns: int) -> None:
        """Crash a node: it loses everything but its store, and restarts from that after `down_ns`.

        Its pending work and timers are void; messages in flight arrive if it is up by then.
        """
        node = self.nodes[number]
        if not node.is_up:
            return
        node.is_up = False
        node.incarnation += 1
        node.effects_left = None
        node.frozen_until_ns = 0
        node.forget()
        if self._observer is not None:
            self._observer.crashed(self.now_ns, number)
        self.at(self.now_ns + down_ns, lambda: self._restart(node))

    def crash_later(self, number: int, num_effects: int, down_ns: int) -> None:
        """Crash a node after its next `num_effects` effects, right before the following one."""
        if self.nodes[number].is_up:
            self.nodes[number].effects_left = num_effects, down_ns

    def reconnect(self, back: SimulatedNode | None = None) -> None:
        """Tell all nodes that others are reachable again, as live nodes notice after a crash or a long partition."""
        for node in self.nodes:
            if node is not back:
                self._push(self.now_ns, node.number, _ANY_INCARNATION, PeersAppeared())

    def freeze(self, number: int, duration_ns: int) -> None:
        """Freeze a node: its events, timers included, are held back and follow in order afterwards."""
        node = self.nodes[number]
        until_ns = self.now_ns + duration_ns
        if not node.is_up or until_ns <= node.frozen_until_ns:
            return
        incarnation, node.frozen_until_ns = node.incarnation, until_ns
        if self._observer is not None:
            self._observer.froze(self.now_ns, number)
        self.at(until_ns, lambda: self._thaw(node, incarnation, until_ns))

    def _restart(self, node: SimulatedNode) -> None:
        node.is_up = True
        node.state = recover(node.context, node.store)
        if self._observer is not None:
            self._observer.restarted(self.now_ns, node.number, node.state, node.store)
        self._push(self.now_ns, node.number, node.incarnation, Started())
        self.reconnect(node)

    def _thaw(self, node: SimulatedNode, incarnation: int, until_ns: int) -> None:
        if self._observer is not None and incarnation == node.incarnation and node.frozen_until_ns == until_ns:
            self._observer.thawed(self.now_ns, node.number)

    # Events in

    def _push(self, time_ns: int, number: int, incarnation: int, due: _Due) -> None:
        self._order += 1
        heappush(self._queue, (time_ns, self._order, number, incarnation, due))

    def _complete(self, node: SimulatedNode, due: _Due) -> Event | None:
        """The event of a due entry; none if an effect was replaced or stopped."""
        match due:
            case SetTimer():
                if node.timers.get(due.timer) is not due:
                    return None
                del node.timers[due.timer]
                return TimerFired(due.timer, due.height, due.attempt)
            case BlobRequest():
                self._serve_blob(node, due)
                return None
            case Train():
                return self._finish_training(node, due)
            case Mine():
                if node.mining is not due:
                    return None
                node.mining = None
                law, header = node.store.genesis.law, due.header
                nonce = search_nonce(law.work, header_seal(header), header.difficulty)
                return None if nonce is None else NonceFound(header, nonce)
        return due  # type: ignore[return-value]  # incidents are not for a node

    def _take_in(self, node: SimulatedNode, event: Event) -> None:
        before, observer = node.state, self._observer
        after, effects = step(node.context, before, event, self.now_ns, self.utc_ms(node))
        if node.tamper is not None:
            effects = node.tamper.effects(self.now_ns, node.context, Transition(before, event, after, effects))
        node.state = after
        if observer is not None:
            observer.stepped(self.now_ns, node.number, Transition(before, event, after, effects))
        for effect in effects:
            if node.effects_left is not None:
                left, down_ns = node.effects_left
                if left == 0:
                    self.crash(node.number, down_ns)
                    self._is_news = True
                    return
                node.effects_left = left - 1, down_ns
            if observer is not None:
                observer.did(self.now_ns, node.number, effect)
            self._do(node, effect)

    # Effects out

    def _do(self, node: SimulatedNode, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(node, effect.to, effect.message)
            case FetchBlob():
                request = BlobRequest(node.number, node.height + 1, effect.blob)
                self._post(node, (effect.holder,), request, request)
            case Store():
                keep(node.store, effect.kept)
            case SetTimer():
                node.timers[effect.timer] = effect
                self._push(self.now_ns + effect.delay_ns, node.number, node.incarnation, effect)
            case Commit():
                node.store.append(effect.block, effect.certificate, is_trusted=effect.is_trusted)
                if node.context.keep_blocks:
                    node.store.prune(node.context.keep_blocks)
                self._is_news = True
                if self._on_commit is not None:
                    self._on_commit(node.number, effect.block, effect.certificate)
            case Mine():
                self._mine(node, effect)
            case StopMining():
                node.mining = None
            case Train():
                if effect.parent == node.state.chain.tip:  # else the round is over
                    duration_ns = self._world.training_ns(node.number, node.state.chain)
                    self._push(self.now_ns + _slowed(node, duration_ns), node.number, node.incarnation, effect)
            case Measure():
                self._measure(node, effect)
            case ServeDecided():
                if 1 <= effect.height <= node.store.height:
                    decided = Decided(node.store.block(effect.height), node.store.certificate(effect.height))
                    message = Message(node.state.chain.chain, node.number, effect.height, decided)
                    self._send(node, effect.to, message)
            case Refused():
                pass

    def _send(self, node: SimulatedNode, to: int | None, message: Message) -> None:
        if self._check_encoding:
            message = decode_message(encode_message(message))
        self._post(node, self._receivers(node) if to is None else (to,), message, MessageArrived(message))

    def _post(self, node: SimulatedNode, to: Iterable[int], parcel: Parcel, due: Event | BlobRequest) -> None:
        """Deliver a message, a request or a blob, as `due`."""
        arrival_ns = self._arrival_ns(node, parcel)
        receivers = (receiver for receiver in to if receiver != node.number and receiver < len(self.nodes))
        delivery = self._delivery
        if delivery is None:
            first = next(receivers, _NOBODY)
            if first != _NOBODY:
                self._push(arrival_ns, first, _ANY_INCARNATION, _ToAll(due, receivers))
            return
        for receiver in receivers:
            for extra_ns in delivery.deliveries(self.now_ns, node.number, receiver, parcel):
                self._push(arrival_ns + _slowed(node, extra_ns), receiver, _ANY_INCARNATION, due)

    def _receivers(self, node: SimulatedNode) -> Iterable[int]:
        """Receivers of a node's broadcasts: all members whose key it knows from its chain."""
        keys = node.state.chain.public_keys
        return range(len(keys)) if None not in keys else [number for number, key in enumerate(keys) if key is not None]

    def _serve_blob(self, node: SimulatedNode, request: BlobRequest) -> None:
        keys = node.state.chain.public_keys
        if request.sender >= len(keys) or keys[request.sender] is None:
            return  # it is no member here
        data = node.store.get_blob(request.blob)
        if node.tamper is not None:
            data = node.tamper.serve(request.blob, data)
        if data is not None:
            reply = BlobReply(node.number, node.height + 1, data)
            self._post(node, (request.sender,), reply, BlobArrived(node.number, data))

    def _arrival_ns(self, node: SimulatedNode, parcel: Parcel) -> int:
        """Arrival time of a message or blob by the cost model alone.

        Messages with the sender's own update, proposals and blobs arrive after its upload has ended.
        """
        arrival_ns = self.now_ns
        if type(parcel) is not Message:
            return arrival_ns if type(parcel) is BlobRequest else max(arrival_ns, node.uploaded_ns)
        message, content = parcel, parcel.content
        if type(content) is Gossip:
            if content.votes and self._vote_ns[1]:
                is_late = any(signed.vote.kind is Kind.PRECOMMIT for signed in content.votes)
                arrival_ns += _slowed(node, self._vote_ns[is_late])
            if not content.updates or all(signed.update.client != node.number for signed in content.updates):
                return arrival_ns
            if node.announced != message.height and message.height == node.height + 1:
                node.announced = message.height
                upload_ns = self._world.upload_ns(node.number, node.state.chain)
                node.uploaded_ns = self.now_ns + _slowed(node, upload_ns)
        elif type(content) is not Proposal:
            return arrival_ns
        return max(arrival_ns, node.uploaded_ns)

    def _mine(self, node: SimulatedNode, effect: Mine) -> None:
        """Start mining, at the earliest when the node's own update is uploaded; a new header does not delay it.

        Mining is memoryless: the remaining time does not depend on the header.
        """
        header = effect.header
        node.mining = effect
        if node.search is None or node.search[:2] != (header.height, header.attempt):
            finding_ns = self._world.finding_ns(node.number, node.state.chain, header.attempt)
            begin_ns = max(self.now_ns, node.uploaded_ns)
            node.search = header.height, header.attempt, begin_ns + _slowed(node, finding_ns)
        self._push(max(self.now_ns, node.search[2]), node.number, node.incarnation, effect)

    def _measure(self, node: SimulatedNode, effect: Measure) -> None:
        chain = node.state.chain
        if effect.round != chain.height + 2:
            return
        tip = node.store.block(chain.height) if chain.height else None
        found = self._world.measure(node.number, chain, tip)
        if found is not None:
            self._push(self.now_ns, node.number, node.incarnation, Measured(effect.round, *found))

    def _finish_training(self, node: SimulatedNode, effect: Train) -> TrainingFinished | None:
        chain = node.state.chain
        if effect.parent != chain.tip:
            return None
        model = node.store.get_blob(effect.model)
        if model is None:
            raise RuntimeError(f"node {node.number}: the model {effect.model.hex()} of round {effect.height} is gone")
        trained = self._world.train(node.number, chain, weights_file(chain.genesis, model))
        return TrainingFinished(effect.height, effect.parent, trained, self._world.spent_micro(node.number, chain))


def _slowed(node: SimulatedNode, duration_ns: int) -> int:
    return duration_ns if node.slowness == 1.0 else round(duration_ns * node.slowness)
