"""Wrong set-ups, one of each kind: `bdfl node doctor` names the cause, and a node that cannot run ends in one line."""

import shutil
import sqlite3
import sys
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment.training_run import prepare_run
from bdfl.federation.genesis_draft import agree_on_data, create_federation
from bdfl.federation.genesis_file import read_genesis
from bdfl.federation.keys import create_key, load_key
from bdfl.federation.member_card import emulated_profile_of
from bdfl.learning.data import load_data
from bdfl.ledger.block import Removal
from bdfl.ledger.member_set import first_member_set
from bdfl.ledger.sqlite_store import DATABASE_FILE
from bdfl.node import doctor
from bdfl.node.doctor import examine
from bdfl.node.reachability import NodeOptions, Verdict
from bdfl.node.run_file import lock_folder
from bdfl.node.settings import open_chain, write_tls
from bdfl.storage import write_record
from tests.localnet.small_network import tiny_scenario
from tests.node.test_doctor import answering, listening

DAY_S = 86_400.0
LABELS = np.arange(60) % 10


def save(path, labels=LABELS, side=8):
    inputs = (np.arange(len(labels) * side * side) % 200).reshape(len(labels), side, side).astype(np.uint8)
    np.savez(path, train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Three members with data of their own, of whom the first is the patient; and another federation."""
    folder = tmp_path_factory.mktemp("town")
    signers = [create_key(folder / f"{number}.key") for number in range(3)]
    save(folder / "mine.npz")
    scenario = tiny_scenario(3)
    scenario = agree_on_data(scenario, load_data(scenario.data))
    shares = [emulated_profile_of(scenario, number, np.bincount(LABELS)) for number in range(3)]
    federated = prepare_run(scenario)
    write_record(folder / "genesis", create_federation(scenario, signers, profiles=shares, federated=federated))
    strangers = [create_key(folder / f"stranger-{number}.key") for number in range(3)]
    write_record(folder / "other", create_federation(scenario, strangers, profiles=shares, federated=federated))
    return folder


@pytest.fixture
def patient(town, tmp_path):
    return NodeOptions(genesis=town / "genesis", key=town / "0.key", folder=tmp_path / "node", listen=["127.0.0.1:0"])


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A busy machine may take long to start a training process."""
    monkeypatch.setattr(doctor, "_DATA_S", 600.0)


def causes(patient, **settings):
    return [str(finding) for finding in examine(patient, **settings) if finding.verdict is Verdict.BAD]


def start(patient):
    """The node itself, with the same options."""
    words = ["node", "--genesis", patient.genesis, "--key", patient.key, "--folder", patient.folder]
    words += [] if patient.data is None else ["--data", patient.data]
    words += [word for address in patient.listen for word in ("--listen", address)]
    return CliRunner().invoke(app, [str(word) for word in (*words, "--metrics", "off")])


def assert_named(patient, cause, refusal=None, **settings):
    """The doctor says nothing else is bad; a node that ends does so in one line that names the cause too."""
    found = causes(patient, **settings)
    assert len(found) == 1
    assert cause in found[0]
    if refusal is not None:
        result = start(patient)
        assert result.exit_code == 2, result.output
        [line] = [line for line in result.stderr.splitlines() if not line.startswith("node 0: ")]  # those are its log
        assert refusal in line


def test_a_right_set_up_has_nothing_bad(patient, town):
    found = list(examine(replace(patient, data=str(town / "mine.npz"))))
    assert not [finding for finding in found if finding.verdict is Verdict.BAD]
    assert [finding.found for finding in found if finding.check == "data"] == [
        f"{town / 'mine.npz'}: 60 samples, as the card says; the model has a finite loss on a batch"
    ]


def test_wrong_genesis(patient, town):
    assert_named(replace(patient, genesis=town / "other"), "the key is no member's", "not the key of a member")


def test_no_peer(patient):
    alone = replace(patient, listen=[])
    assert_named(alone, "no peer and no address to listen on", "neither --listen nor --peer given")
    with listening() as address:
        pass
    assert "none can be reached" in causes(replace(alone, peers=[address]))[1]


def test_no_quorum(patient, monkeypatch):
    """Before the start nobody knows who will come; a running node does."""
    monkeypatch.setattr(doctor, "read_status", lambda _: SimpleNamespace(snapshot=SimpleNamespace(present=(2,))))
    with lock_folder(patient.folder):
        assert_named(patient, "2 of 3 votes that are needed can be reached; not there: 1 (member 1)")


def test_wrong_data(patient, tmp_path):
    save(tmp_path / "wrong.npz", side=28)
    words = "inputs uint8 28x28x1, expected uint8 8x8x1"
    assert_named(replace(patient, data=str(tmp_path / "wrong.npz")), words, words)


def test_wrong_labels(patient, tmp_path):
    save(tmp_path / "many.npz", np.arange(60) % 12)
    words = "12 labels, expected at most 10"
    assert_named(replace(patient, data=str(tmp_path / "many.npz")), words, words)
    save(tmp_path / "other.npz", np.sort(LABELS)[::-1] // 2)
    words = "12 samples of label 0, expected 6, as this member's card says"
    assert_named(replace(patient, data=str(tmp_path / "other.npz")), words, words)


def test_data_file_gone(patient, tmp_path):
    assert_named(replace(patient, data=str(tmp_path / "gone.npz")), "gone.npz: not found", "gone.npz: not found")


def test_disk_too_small(patient, monkeypatch):
    usage = shutil.disk_usage(patient.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    assert_named(patient, "1 MB free, about 64 MB needed for")


def test_clock_off_by_a_day(patient, tmp_path):
    assert_named(patient, "s before you made your card", now_s=time.time() - DAY_S)
    genesis = read_genesis(patient.genesis)
    tls = write_tls(tmp_path / "peer", genesis, load_key(patient.genesis.parent / "2.key"), 2)
    with answering(tls) as address:
        near = replace(patient, peers=[address])
        assert causes(near) == []
        assert_named(near, f"more than 60 s ahead of the peer's at {address}", now_s=time.time() + DAY_S)


def test_expired_certificate(patient, monkeypatch):
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3660 * DAY_S)
    assert_named(patient, "it expired: a new card and genesis are needed", "it expired")


def test_port_taken(patient):
    with listening() as address:
        words = f"{address}: Address already in use"
        assert_named(replace(patient, listen=[address]), words, words)


def test_folder_of_another_node(patient, town):
    write_tls(patient.folder, read_genesis(patient.genesis), load_key(town / "1.key"), 1)
    assert_named(patient, "the folder of member-1 with key", "each node has a folder of its own")
    with open_chain(patient.folder.parent / "third" / "chain", read_genesis(town / "other")):
        pass
    third = replace(patient, folder=patient.folder.parent / "third")
    assert_named(third, "of another genesis", "begins with another genesis")


def test_two_nodes_with_one_key(patient, tmp_path):
    tls = write_tls(tmp_path / "twin", read_genesis(patient.genesis), load_key(patient.key), 0)
    with answering(tls) as address:
        assert_named(replace(patient, peers=[address]), "another one runs with the same key")


def test_member_removed(patient, monkeypatch):
    genesis = read_genesis(patient.genesis)
    with open_chain(patient.folder / "chain", genesis):
        pass
    monkeypatch.setattr(doctor, "read_member_set", lambda begin, _: first_member_set(begin).after(Removal(0), 19))
    assert_named(patient, "number 0 was removed: block 18 was its last")


def test_newer_format(patient, tmp_path):
    newer = tmp_path / "newer"
    newer.write_bytes(patient.genesis.read_bytes().replace(b"bdfl genesis 3", b"bdfl genesis 9"))
    words = "a newer bdfl wrote it and can read it"
    assert_named(replace(patient, genesis=newer), words, words)
    with open_chain(patient.folder / "chain", read_genesis(patient.genesis)):
        pass
    with sqlite3.connect(patient.folder / "chain" / DATABASE_FILE) as database:
        database.execute("PRAGMA user_version = 99")
    assert_named(patient, words, words)


def test_no_extra(patient, monkeypatch):
    def find_version(name):
        if name == "eclipse-zenoh":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", find_version)
    monkeypatch.setitem(sys.modules, "zenoh", None)
    assert_named(patient, "eclipse-zenoh is missing", "a live network needs Zenoh")
