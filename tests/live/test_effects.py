"""Effects: what is said rests on what is kept, and the disk is waited for once for all that waits."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import Kind, SignedUpdate, SignedVote, Vote
from bdfl.ledger.chain import start_chain
from bdfl.ledger.store import NotKept
from bdfl.protocol.events import FetchBlob, KeptBlob, KeptStatement, Send, Store as Keep, Train
from bdfl.protocol.messages import Gossip, Message
from bdfl.transports.interfaces import LiveObserver
from bdfl.transports.live.blob_client import BlobCache
from bdfl.transports.live.effects import Effects
from tests.live.memory_network import FormulaWork, MemoryNetwork, wait_until
from tests.protocol.manual_network import ManualNetwork


class _Trace:
    """Link and store that note what is done to them, in order."""

    def __init__(self, store):
        self.store, self.done = store, []
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False

    def __getattr__(self, name):
        return getattr(self.store, name)

    @contextmanager
    def batch(self):
        self.gate.wait()
        with self.store.batch():
            yield
            if self.failing:
                raise NotKept("chain: No space left on device")
        self.done.append("kept")

    def put_statement(self, height, statement):
        if isinstance(statement, SignedVote):
            self.done.append("vote")
        self.store.put_statement(height, statement)

    def send(self, to, message):
        self.done.append("sent")

    def fetch(self, blob, size, holders):
        self.done.append(("fetch", blob, size, tuple(holders)))

    def set_members(self, public_keys):
        pass


class _Doing:
    def __init__(self, tmp_path):
        self.network = MemoryNetwork(tmp_path)
        self.trace = _Trace(self.network.memory_store())
        self.context = self.network.context(0)
        self.chain = start_chain(self.network.genesis, self.context.cache)
        self.shelf = BlobCache(self.trace, 10**6)
        self.events, self.failures = [], []
        self.now_ns = 1000
        self.work = FormulaWork(self.network, 0)
        self.effects = Effects(
            0,
            self.trace,
            self.trace,
            self.work,
            self.shelf,
            give=self.events.append,
            find_chain=lambda: self.chain,
            clock=lambda: self.now_ns,
            observers=[LiveObserver()],
            before_keeping=lambda: None,
            on_failure=self.failures.append,
        )
        self.effects.start(self.chain, None)

    def put(self, *effects):
        self.effects.put(effects, self.chain)

    def message(self, content, height=1):
        return Message(self.chain.chain, 0, height, content)

    def vote(self, attempt):
        vote = Vote(Kind.PREVOTE, attempt, bytes(32), 0, (), (), 0)
        return SignedVote(vote, self.context.signer.sign(Meaning.VOTE, self.chain.place, vote))

    def say_vote(self, attempt):
        vote = self.vote(attempt)
        return Keep(KeptStatement(1, vote)), Send(None, self.message(Gossip(attempt, votes=(vote,))))


@pytest.fixture
def doing(tmp_path):
    doing = _Doing(tmp_path)
    yield doing
    doing.trace.gate.set()
    doing.effects.end()
    doing.work.close()


def test_a_vote_is_kept_before_it_is_sent(doing):
    doing.put(*doing.say_vote(1))
    assert doing.effects.wait_done()
    assert doing.trace.done == ["vote", "kept", "sent"]


def test_all_that_waits_is_kept_at_once(doing):
    doing.trace.gate.clear()
    doing.put(*doing.say_vote(1))
    wait_until(lambda: doing.effects._num_under_way == 2)
    for attempt in range(2, 10):
        doing.put(*doing.say_vote(attempt))
    doing.trace.gate.set()
    assert doing.effects.wait_done()
    assert doing.trace.done == ["vote", "kept", "sent", *["vote"] * 8, "kept", *["sent"] * 8]
    assert len(doing.trace.read_round(1).votes) == 9


def test_nothing_is_sent_after_what_could_not_be_kept(doing):
    doing.trace.failing = True
    doing.put(*doing.say_vote(1))
    doing.put(*doing.say_vote(2))
    assert not doing.effects.wait_done()
    wait_until(lambda: doing.failures)
    doing.trace.failing = False
    doing.put(*doing.say_vote(3))
    assert "sent" not in doing.trace.done
    assert [str(error) for error in doing.failures] == ["chain: No space left on device"]


def test_what_is_left_to_do_is_done_at_the_end(doing):
    doing.trace.gate.clear()
    for attempt in range(1, 20):
        doing.put(*doing.say_vote(attempt))
    doing.trace.gate.set()
    doing.effects.end()
    assert doing.trace.done.count("sent") == 19


def test_a_wanted_blob_is_pulled(doing):
    doing.put(FetchBlob(b"b" * 32, 2))
    assert doing.effects.wait_done()
    past, doing.chain = doing.chain, replace(doing.chain, tip=bytes(32))
    doing.effects.put([FetchBlob(b"c" * 32, 2)], past)  # its height is decided: no more
    assert doing.effects.wait_done()
    assert doing.trace.done == [("fetch", b"b" * 32, doing.network.genesis.model.size, (2,))]


def test_an_update_is_served_as_its_upload_goes_and_others_at_once(doing):
    network = ManualNetwork()
    node = network.nodes[0]
    network.start()
    kept = next(effect.kept for effect in network.train(node) if isinstance(effect, Keep) and _is_update(effect))
    signed = kept.statement
    model = node.state.blobs[signed.update.model]
    doing.work.upload_ns = 400
    assert doing.shelf.offer(signed.update.model) is None
    doing.put(Keep(KeptBlob(signed.update.model, model)), Keep(KeptStatement(1, signed)))
    assert doing.effects.wait_done()
    assert doing.shelf.offer(signed.update.model) is None  # nobody was told of it
    doing.put(Send(None, doing.message(Gossip(1, updates=(signed,)))))
    assert doing.effects.wait_done()
    doing.now_ns = 5000
    doing.put(Send(None, doing.message(Gossip(1, updates=(signed,)))))  # said again: the upload goes on
    assert doing.effects.wait_done()
    offer = doing.shelf.offer(signed.update.model)
    assert (offer.data, offer.begun_ns, offer.done_ns) == (model, 1000, 1400)
    initial = doing.shelf.offer(doing.network.genesis.model.initial)
    assert (initial.data, initial.begun_ns, initial.done_ns) == (doing.network.initial, 0, 0)


def _is_update(effect):
    return isinstance(effect.kept, KeptStatement) and isinstance(effect.kept.statement, SignedUpdate)


def test_training_of_a_past_round_is_not_begun(doing):
    doing.put(Train(1, b"p" * 32, doing.chain.model))
    assert doing.effects.wait_done()
    assert doing.events == []
    doing.put(Train(1, doing.chain.tip, doing.chain.model))
    wait_until(lambda: doing.events)
    assert doing.events[0].parent == doing.chain.tip


def test_few_blobs_are_kept_in_memory_and_the_others_are_found_in_the_store(tmp_path):
    network = MemoryNetwork(tmp_path)
    cache = BlobCache(network.memory_store(), 100)
    blobs = {bytes([number]) * 32: bytes([number]) * 60 for number in range(5)}
    for blob, data in blobs.items():
        cache.put(blob, data)
    assert cache.get(bytes([4]) * 32) == bytes([4]) * 60
    assert cache.get(bytes([0]) * 32) is None  # forgotten, and not in the store
    assert cache.get(network.genesis.model.initial) == network.initial


def test_a_blob_that_is_asked_for_stays_whatever_older_ones_are_read_from_the_store(tmp_path):
    store = MemoryNetwork(tmp_path).memory_store()
    cache = BlobCache(store, 200)
    wanted = b"wanted", b"w" * 60
    cache.put(*wanted)
    for number in range(5):
        old = bytes([number]) * 60
        store.put_blob(digest(old), old)
        assert cache.get(digest(old)) == old
        assert cache.get(wanted[0]) == wanted[1]  # not in the store
