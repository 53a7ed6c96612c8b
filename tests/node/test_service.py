"""A node as a service: what it refuses, how it runs, and how it ends. One node is a whole network here."""

import io
import json
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest

from bdfl.errors import BdflError
from bdfl.federation.genesis_draft import create_federation
from bdfl.federation.genesis_file import read_genesis, read_scenario
from bdfl.federation.keys import create_key, load_key
from bdfl.identity import Signer
from bdfl.learning.training import TrainingFailed
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import NotKept
from bdfl.node.run_file import BadFolder, lock_folder, read_incarnation, read_run
from bdfl.node.service import NodeFailed, open_node
from bdfl.node.settings import (
    NotRunnable,
    WrongChain,
    default_quota,
    hosts_of,
    identify,
    num_awaited,
    open_chain,
    write_tls,
)
from bdfl.node.status import ServiceState
from bdfl.storage import write_record
from bdfl.transports.live.certificates import BadCertificate, common_name_of, validate_tls
from bdfl.transports.live.driver import Barrier
from bdfl.transports.live.training_process import TrainingProcess
from tests.localnet.small_network import BY_FORMULA, FORMULA_CLIENT, found_single, tiny_scenario, wait_for


@pytest.fixture(scope="module")
def founded(tmp_path_factory):
    return found_single(tmp_path_factory.mktemp("founded"))


@pytest.fixture
def settings(founded, tmp_path):
    return replace(founded, folder=tmp_path / "node")


@pytest.fixture(scope="module")
def founded_by_formula(tmp_path_factory):
    settings = found_single(tmp_path_factory.mktemp("founded"), BY_FORMULA, "scheduler.name=exact")
    return replace(settings, allowed=frozenset([FORMULA_CLIENT]))


@pytest.fixture
def formula_settings(founded_by_formula, tmp_path):
    """Of a node that trains without PyTorch."""
    return replace(founded_by_formula, folder=tmp_path / "node")


@contextmanager
def running(service):
    """Inside, the node runs; it has ended after, and what it raised is raised."""
    errors = []

    def run():
        try:
            service.run()
        except BdflError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_a_node_alone_makes_blocks_shows_them_and_goes_on_after_a_stop(settings):
    echo = io.StringIO()
    with open_node(replace(settings, evaluates=True), echo=echo) as service, running(service):
        wait_for(lambda: service.snapshot().height >= 3, "block 3")
        wait_for(lambda: service.snapshot().accuracy is not None, "an accuracy")
        run = read_run(settings.folder)
        with urllib.request.urlopen(f"http://{run.metrics}/healthz", timeout=10) as answer:
            assert json.load(answer)["state"] == "working"
        found = service.snapshot()
        assert (found.number, found.num_members, found.present) == (0, 1, ())
        assert found.memory_bytes > 0
        assert found.num_threads > 1
        assert found.store_bytes > 0
        assert found.counters["commits"] == found.last_block.height == found.height >= 3
        assert found.last_block.proposer == 0
        assert found.deadline_s > 0
    reached = service.snapshot().height
    lines = [json.loads(line) for line in (settings.folder / "node.log").read_text().splitlines()]
    assert [line["height"] for line in lines if line["event"] == "block"] == list(range(1, reached + 1))
    assert "node 0: block (height 1, proposer 0" in echo.getvalue()
    with open_node(replace(settings, last_height=reached + 1)) as service, running(service):
        assert service.snapshot().height >= reached
        wait_for(lambda: service.snapshot().is_done, "the last block")
        assert service.snapshot().incarnation == found.incarnation + 1
    assert read_incarnation(settings.folder) == found.incarnation + 1


def test_a_node_stops_in_order_when_its_models_reach_the_quota_and_goes_on_with_a_larger_one(formula_settings):
    genesis = read_genesis(formula_settings.genesis, allowed=formula_settings.allowed)
    size = genesis.genesis.model.size
    # The first model, and one for each block: its only update is its model.
    little = replace(formula_settings, quota_bytes=6 * size + size // 2)
    with open_node(little) as service:
        with pytest.raises(NodeFailed, match=r"exceed the quota of \d+; start it with a larger --quota"):
            service.run()
        found = service.snapshot()
        reached = found.height
        assert found.state is ServiceState.STOPPED
        assert "quota" in found.reason
        assert (found.model_bytes // size, found.quota_bytes) == (1 + reached, little.quota_bytes)
    assert reached == 5
    with open_node(formula_settings) as service, running(service):
        wait_for(lambda: service.snapshot().height > reached + 1, "more blocks")
        found = service.snapshot()
    assert found.quota_bytes == default_quota(genesis, read_scenario(genesis.scenario, formula_settings.allowed))


def test_a_disk_that_fails_ends_the_node_with_one_line(formula_settings, monkeypatch):
    def refuse(self, block, certificate, *, is_trusted=False):
        raise NotKept("chain: No space left on device; the block is not kept")

    monkeypatch.setattr(ChainStore, "append", refuse)
    with open_node(formula_settings) as service, pytest.raises(NodeFailed, match="No space left on device"):
        service.run()
    last = json.loads((formula_settings.folder / "node.log").read_text().splitlines()[-1])
    assert (last["event"], last["level"]) == ("stopped", "error")
    monkeypatch.undo()
    with ChainStore.open(formula_settings.folder / "chain") as store:
        assert store.height == 0


def die_in_a_thread():
    """A thread of that name, which has ended by an error after."""

    def listen():
        raise ValueError("deaf\nfrom now on")

    thread = threading.Thread(target=listen, name="link-ear")
    thread.start()
    thread.join()


def test_a_thread_that_dies_ends_the_node_with_one_line(formula_settings):
    hook = threading.excepthook
    failed = pytest.raises(NodeFailed, match=r"^thread link-ear: ValueError: deaf from now on$")
    with open_node(formula_settings) as service, failed, running(service):
        wait_for(lambda: service.snapshot().height >= 1, "block 1")
        die_in_a_thread()
    assert threading.excepthook is hook
    lines = [json.loads(line) for line in (formula_settings.folder / "node.log").read_text().splitlines()]
    assert lines[-1]["event"] == "stopped"
    assert lines[-1]["why"] == "thread link-ear: ValueError: deaf from now on"
    assert next(line for line in lines if line["event"] == "thread")["where"].startswith("test_service.py:")


def test_a_thread_that_dies_before_the_first_round_ends_the_node(formula_settings, monkeypatch):
    def die_waiting(self, timeout_s):
        die_in_a_thread()
        raise TrainingFailed("not ready")

    monkeypatch.setattr(TrainingProcess, "wait_ready", die_waiting)
    with open_node(formula_settings) as service, pytest.raises(NodeFailed, match=r"^thread link-ear: "):
        service.run()


def test_a_node_that_is_stopped_before_it_runs_ends_at_once(formula_settings):
    with open_node(formula_settings) as service:
        service.stop()
        service.run()
        assert read_incarnation(formula_settings.folder) == service.snapshot().incarnation > 0


def test_a_stranger_is_refused(settings, tmp_path):
    create_key(tmp_path / "other.pem")
    with pytest.raises(NotRunnable, match="not the key of a member"):
        identify(replace(settings, key=tmp_path / "other.pem"))


def test_a_key_that_others_may_read_is_refused(settings, tmp_path):
    (tmp_path / "open.pem").write_bytes(settings.key.read_bytes())
    (tmp_path / "open.pem").chmod(0o644)
    with pytest.raises(BdflError, match="0644"):
        identify(replace(settings, key=tmp_path / "open.pem"))


def test_a_genesis_that_not_all_signed_needs_a_word(settings, tmp_path):
    unsigned = msgspec.structs.replace(read_genesis(settings.genesis), signatures=(b"",))
    write_record(tmp_path / "unsigned", unsigned)
    with pytest.raises(NotRunnable, match="not signed by 0"):
        identify(replace(settings, genesis=tmp_path / "unsigned"))
    assert identify(replace(settings, genesis=tmp_path / "unsigned", is_unsigned_allowed=True)).number == 0


def test_data_that_the_genesis_does_not_know_are_refused(settings, tmp_path):
    with (
        open_node(replace(settings, data=str(tmp_path / "none.npz"))) as service,
        pytest.raises(NotRunnable, match=r"none\.npz"),
    ):
        service.run()


def test_a_folder_in_use_is_refused_and_its_number_of_starts_stays(settings):
    with lock_folder(settings.folder), pytest.raises(BadFolder), open_node(settings):
        pass
    assert read_incarnation(settings.folder) == 0


def test_a_chain_of_another_genesis_is_refused(settings, tmp_path):
    genesis = read_genesis(settings.genesis)
    with open_chain(tmp_path / "chain", genesis):
        pass
    renamed = msgspec.structs.replace(genesis, genesis=msgspec.structs.replace(genesis.genesis, name="another"))
    with pytest.raises(WrongChain, match="another genesis"), open_chain(tmp_path / "chain", renamed):
        pass


def test_tls_files_are_the_members_own(settings, tmp_path):
    identity = identify(settings)
    tls = write_tls(tmp_path, identity.genesis, identity.signer, 0)
    assert common_name_of(validate_tls(tls)) == "member-0"
    assert tls.key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadCertificate):
        write_tls(tmp_path, identity.genesis, Signer(bytes(32)), 0)


def test_hosts_of_a_certificate_are_those_listened_on():
    assert hosts_of(["192.0.2.7:1", "[2001:db8::1]:2", "0.0.0.0:3"]) == [
        "192.0.2.7", "2001:db8::1", "127.0.0.1", "localhost"
    ]  # fmt: skip


class Presence:
    """A link on which others appear."""

    present = frozenset()


def gather(link, **settings):
    """Waits at the barrier in a thread, until that is over."""
    is_over = threading.Event()
    barrier = Barrier(num_others=3, num_enough=2, **settings)
    thread = threading.Thread(target=barrier.wait, args=(link, is_over))
    thread.start()
    return is_over, thread


def test_the_first_round_waits_for_all():
    link = Presence()
    _, thread = gather(link)
    link.present = frozenset([0, 1])
    time.sleep(0.2)
    assert thread.is_alive()
    link.present = frozenset([0, 1, 2])
    thread.join(60)
    assert not thread.is_alive()


def test_the_first_round_does_not_wait_for_ever_where_enough_are_there():
    link = Presence()
    link.present = frozenset([0, 2])
    _, thread = gather(link, patience_s=0.1)
    thread.join(60)
    assert not thread.is_alive()


def test_only_founders_wait_for_each_other_and_only_for_the_first_round(settings, tmp_path):
    create_key(tmp_path / "key.pem")
    signers = [load_key(settings.key), load_key(tmp_path / "key.pem")]
    genesis = create_federation(tiny_scenario(2), signers)
    founder = replace(identify(settings), genesis=genesis, number=1)
    assert num_awaited(founder, 0) == 1
    assert num_awaited(founder, 1) == 0
    assert num_awaited(replace(founder, number=2), 0) == 0  # came later, and finds a network that goes on


def test_waiting_for_others_can_be_left():
    is_over, thread = gather(Presence(), patience_s=0.0)
    time.sleep(0.2)
    assert thread.is_alive()
    is_over.set()
    thread.join(60)
    assert not thread.is_alive()
