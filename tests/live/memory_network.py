"""A live network inside one process: real nodes, threads, clock and stores; messages and blobs go through memory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bdfl.encoding import digest
from bdfl.environment import draw_federation, draw_rounds
from bdfl.identity import Signer
from bdfl.learning.participation import draw_participation
from bdfl.learning.weights import Layout, decode_weights, encode_weights
from bdfl.ledger.block import header_seal
from bdfl.ledger.genesis import conditions_of, make_genesis
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.store import MemoryStore
from bdfl.protocol.messages import decode_message, encode_message
from bdfl.protocol.state import Context, Timing
from bdfl.scenario import (
    Aggregation,
    Clients,
    Learning,
    Ledger,
    Privacy,
    QuorumRule,
    Scenario,
    SchedulerChoice,
    ServerOptimizer,
)
from bdfl.transports.live.driver import LiveNode
from bdfl.transports.live.shared_cache import SharedVerificationCache
from campaigns.faults.world import train_by_formula

MS = 1_000_000
TIMING = Timing(grace_ns=1500 * MS, attempt_ns=1000 * MS, resend_ns=200 * MS, time_scale=0.0)
TURN_S = 0.25  # from one member that finds a block to the next
LIMIT_S = 240.0  # far beyond what anything here takes


class MemoryNetwork:
    """A small federation and its network; every node has its own cache and store."""

    def __init__(
        self,
        folder,
        count=4,
        *,
        num_parameters=4,
        rounds=40,
        quorum=QuorumRule.BFT,
        noise=None,
        server=ServerOptimizer.NONE,
    ):
        self.folder = Path(folder)
        self.layout = Layout(("w",), ((num_parameters,),))
        self.scenario = Scenario(
            rounds=rounds,
            clients=Clients(count=count, min_selected=1, samples=300),
            scheduler=SchedulerChoice(name="all"),
            privacy=Privacy(noise_multiplier=noise),
            ledger=Ledger(quorum=quorum, cycles_per_hash=1e7),
            learning=Learning(aggregation=Aggregation(server=server)),
        )
        federation = draw_federation(self.scenario)
        self.rounds = list(draw_rounds(self.scenario, federation))
        self.initial = encode_weights(np.zeros(num_parameters, np.float32), self.layout)
        self.signers = [Signer(digest(f"villager {number}".encode())) for number in range(count)]
        self.genesis = make_genesis(
            self.scenario,
            federation,
            draw_participation(self.scenario, federation),
            self.rounds[0],
            [signer.public_key for signer in self.signers],
            self.layout,
            self.initial,
        )
        self.hub = Hub()

    @property
    def count(self):
        return len(self.signers)

    def context(self, number, last_height=None, timing=TIMING, keep_blocks=0):
        cache = SharedVerificationCache.sized_for(self.count, self.genesis.model.size)
        return Context(number, self.signers[number], timing, cache, last_height, keep_blocks=keep_blocks)

    def store_path(self, number):
        return self.folder / str(number) / "chain"

    def open_store(self, number):
        path = self.store_path(number)
        if (path / DATABASE_FILE).exists():
            return ChainStore.open(path, durable=False)
        return ChainStore.create(path, self.genesis, self.initial, durable=False)

    def memory_store(self):
        return MemoryStore(self.genesis, self.initial)

    def thread(self, number, store=None, *, last_height=None, timing=TIMING, keep_blocks=0, work=None, **options):
        """A node that can be started."""
        store = self.memory_store() if store is None else store
        link = MemoryLink(self.hub, number)
        work = FormulaWork(self, number) if work is None else work
        context = self.context(number, last_height, timing, keep_blocks)
        return NodeThread(LiveNode(context, store, link, work, **options), store, link, work)


class NodeThread:
    """A node with its thread."""

    def __init__(self, node, store, link, work):
        self.node, self.store, self.link, self.work = node, store, link, work
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def _run(self):
        try:
            self.node.run()
        except Exception as error:
            self.error = error

    def wait(self):
        """Until the node ends by itself."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def stop(self):
        self.node.stop()
        self.wait()


@contextmanager
def running(*threads):
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.node.stop()
        for thread in threads:
            thread.wait()


def wait_until(condition):
    """Waits for a condition; fails if it does not come true in a long time."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("not in time")


class Hub:
    """Everybody's mail."""

    def __init__(self):
        self.links = {}
        self.is_lost = lambda sender, receiver, message: False


class MemoryLink:
    """A `Link` to the others of a hub. One thread delivers what is sent to a node, others fetch."""

    def __init__(self, hub, number):
        self.hub, self.number = hub, number
        self.sent, self.fetches, self.members = [], [], []
        self.num_forgotten = 0
        self.is_open = False

    def open(self, receiver):
        self.receiver = receiver
        self.delivery = ThreadPoolExecutor(1)
        self.fetchers = ThreadPoolExecutor(2)
        self.hub.links[self.number] = self
        self.is_open = True
        for link in list(self.hub.links.values()):
            link.receiver.notice(link.present)

    @property
    def present(self):
        return frozenset(self.hub.links) - {self.number}

    def send(self, to, message):
        assert self.is_open
        self.sent.append((to, message))
        data = encode_message(message)
        for number, link in list(self.hub.links.items()):
            if number != self.number and to in (None, number) and not self.hub.is_lost(self.number, number, message):
                link.deliver(link.receiver.receive, decode_message(data))

    def deliver(self, receive, *arguments):
        if self.is_open:
            try:
                self.delivery.submit(receive, *arguments)
            except RuntimeError:  # closed meanwhile
                assert not self.is_open

    def fetch(self, blob, size, holders):
        self.fetches.append((blob, size, tuple(holders)))
        self.fetchers.submit(self._fetch, blob, size, holders)

    def _fetch(self, blob, size, holders):
        for holder in holders:
            link = self.hub.links.get(holder)
            offer = link.receiver.offer(self.number, blob) if link is not None and link.is_open else None
            if offer is not None:
                assert len(offer.data) == size
                self.receiver.receive_blob(holder, bytes(bytearray(offer.data)))
                return

    def forget_fetches(self):
        self.num_forgotten += 1

    def set_members(self, public_keys):
        self.members.append(list(public_keys))

    def close(self):
        self.is_open = False
        self.hub.links.pop(self.number, None)
        self.delivery.shutdown()
        self.fetchers.shutdown()


class FormulaWork:
    """A `Work` that trains by a formula and mines in a thread."""

    def __init__(self, network, number):
        self.network, self.number = network, number
        self.workers = ThreadPoolExecutor(8)
        self.search = None
        self.upload_ns = 0
        self.num_stopped_trainings = 0
        self.is_over = threading.Event()

    def train(self, chain, model, on_done):
        self.workers.submit(self._train, chain, model, on_done)

    def _train(self, chain, model, on_done):
        layout, trained = self.network.layout, decode_weights(model, self.network.layout).copy()
        trained[:4] = train_by_formula(trained[:4], chain.height + 1, self.number)
        on_done(encode_weights(trained, layout))

    def spent_micro(self, chain):
        return 1000 * (1 + chain.rounds_scheduled[self.number]) if chain.genesis.privacy else 0

    def stop_training(self):
        self.num_stopped_trainings += 1

    def mine(self, chain, header, on_found):
        search = self.search = object()
        self.workers.submit(self._mine, search, header, on_found)

    def _mine(self, search, header, on_found):
        """Everybody finds a block at once, but each height has another who is told first."""
        turn = (self.number - header.height) % self.network.count
        if self.is_over.wait(turn * TURN_S) or self.search is not search:
            return
        law = self.network.genesis.law
        nonce = search_nonce(law.work, header_seal(header), header.difficulty)
        if self.search is search:
            on_found(nonce)

    def stop_mining(self):
        self.search = None

    def measure(self, chain, tip):
        round = chain.height + 2
        if round > len(self.network.rounds):
            return None
        return conditions_of(self.network.rounds[round - 1], self.number), None

    def upload(self, chain):
        return self.upload_ns

    def close(self):
        self.is_over.set()
        self.workers.shutdown()
