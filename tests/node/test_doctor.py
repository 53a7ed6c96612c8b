"""`bdfl node doctor`: every thing that may be wrong has its line, and what is right has one too."""

import shutil
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.federation.genesis_file import read_genesis
from bdfl.federation.keys import create_key, write_secret
from bdfl.federation.member_card import emulated_profile_of, make_card
from bdfl.federation.membership_change import propose_admission, read_members
from bdfl.node import doctor
from bdfl.node.doctor import examine
from bdfl.node.reachability import CheckResult, NodeOptions, Verdict
from bdfl.node.run_file import RunFile, lock_folder, write_run
from bdfl.node.settings import NodeSettings, default_quota, identify, open_chain, write_tls
from bdfl.storage import write_record
from bdfl.transports.live.certificates import issue_leaf, make_authority, roots_pem, write_tls as write_files
from tests.federation.founders import agreed, signed, signer

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Files of a federation of four, of which the first is the patient."""
    folder = tmp_path_factory.mktemp("town")
    write_record(folder / "genesis.bdfl", signed())
    write_secret(folder / "key.pem", pem(0))
    return folder


def pem(number):
    """The key of `founders.signer` as a file."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture
def patient(town, tmp_path):
    return NodeOptions(
        genesis=town / "genesis.bdfl", key=town / "key.pem", folder=tmp_path / "node", listen=["127.0.0.1:0"]
    )


def findings(patient, check, **settings):
    return [found for found in examine(patient, **settings) if found.check == check]


def only(patient, check, **settings):
    [found] = findings(patient, check, **settings)
    return found


@contextmanager
def listening():
    """A socket that somebody else listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield f"127.0.0.1:{one.getsockname()[1]}"


@contextmanager
def answering(tls):
    """A peer that asks for a certificate, shakes hands and says nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.roots)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(120)


def test_where_all_is_well_nothing_is_bad(patient):
    found = list(examine(patient))
    assert not [finding for finding in found if finding.verdict is Verdict.BAD]
    assert [finding.check for finding in found] == [
        "packages", "key", "genesis", "member", "certificate", "clock", "store", "folder", "disk",
        "quota", "port", "quorum",
    ]  # fmt: skip
    assert all(str(finding).count("\n") == 0 for finding in found)
    assert only(patient, "member").found.startswith("number 0")


def test_a_finding_is_one_line_that_says_what_to_do():
    finding = CheckResult("port", Verdict.BAD, "127.0.0.1:1: taken", "choose another")
    assert str(finding) == "bad  port: 127.0.0.1:1: taken; choose another"


def test_a_missing_package_is_named_with_how_to_install_it(patient, monkeypatch):
    monkeypatch.setattr(doctor, "_PACKAGES", {"no-such-package": "live"})
    found = only(patient, "packages")
    assert (found.verdict, "pip install" in found.advice) == (Verdict.BAD, True)


def test_a_key_that_others_may_read_is_bad(patient, tmp_path):
    shutil.copy(patient.key, tmp_path / "open.pem")
    (tmp_path / "open.pem").chmod(0o640)
    found = only(replace(patient, key=tmp_path / "open.pem"), "key")
    assert found.verdict is Verdict.BAD
    assert "chmod 600" in found.found


def test_a_wrong_genesis_is_bad_in_whatever_way_it_is_wrong(patient, town, tmp_path):
    (tmp_path / "noise").write_bytes(b"noise")
    assert only(replace(patient, genesis=tmp_path / "noise"), "genesis").verdict is Verdict.BAD
    create_key(tmp_path / "stranger.pem")
    assert only(replace(patient, key=tmp_path / "stranger.pem"), "member").verdict is Verdict.BAD


def test_a_member_who_came_later_is_known_by_its_admission(patient, tmp_path):
    write_secret(tmp_path / "late.pem", pem(9))
    late = replace(patient, key=tmp_path / "late.pem")
    assert "--admission" in only(late, "member").advice
    with open_chain(tmp_path / "other" / "chain", signed()):
        pass
    share = emulated_profile_of(agreed(), 0, np.array((1, 2, 3)))
    card = make_card(signer(9), agreed(), "late", None, share)
    write_record(
        tmp_path / "late.change", propose_admission(read_members(tmp_path / "other"), signed(), agreed(), card, 9)
    )
    late = replace(late, admissions=(tmp_path / "late.change",))
    known = {**dict(enumerate(signed().authorities)), 4: card.card.authority}
    with answering(write_tls(tmp_path / "peer", signed(), signer(2), 2, authorities=known)) as address:
        found = list(examine(replace(late, peers=[address])))
    assert not [finding for finding in found if finding.verdict is Verdict.BAD]
    assert [finding.found for finding in found if finding.check in ("admission", "member")] == [
        "came later: 4", "number 4, 'late'"
    ]  # fmt: skip
    options = ["--genesis", late.genesis, "--key", late.key, "--admission", tmp_path / "late.change"]
    shown = CliRunner().invoke(app, ["node", "doctor", *map(str, options)])
    assert "number 4" in shown.stdout
    settings = NodeSettings(
        genesis=late.genesis, key=late.key, folder=late.folder, admissions=late.admissions, listen=tuple(late.listen)
    )
    assert identify(settings).number == 4  # the node itself finds the same


def test_an_admission_that_cannot_be_read_is_bad(patient, tmp_path):
    (tmp_path / "noise").write_bytes(b"noise")
    assert only(replace(patient, admissions=(tmp_path / "noise",)), "admission").verdict is Verdict.BAD


def test_missing_signatures_are_bad_unless_allowed(patient, tmp_path):
    genesis = read_genesis(patient.genesis)
    signatures = (genesis.signatures[0], b"", b"", genesis.signatures[3])
    write_record(tmp_path / "part", msgspec.structs.replace(genesis, signatures=signatures))
    part = replace(patient, genesis=tmp_path / "part")
    assert only(part, "genesis").verdict is Verdict.BAD
    assert "not signed by 1, 2" in only(part, "genesis").found
    assert only(replace(part, is_unsigned_allowed=True), "genesis").verdict is Verdict.WARN


def test_an_expired_certificate_is_bad_if_it_is_ones_own(patient):
    found = findings(patient, "certificate", now_s=time.time() + 3660 * DAY_S)
    assert {finding.verdict for finding in found} == {Verdict.BAD, Verdict.WARN}
    assert sum(finding.verdict is Verdict.BAD for finding in found) == 1
    assert all("expired on" in finding.found for finding in found)


def test_certificates_that_expire_soon_are_told_of(patient):
    found = only(patient, "certificate", now_s=time.time() + 3645 * DAY_S)
    assert found.verdict is Verdict.WARN


def test_a_clock_that_is_behind_is_bad(patient):
    assert only(patient, "clock").verdict is Verdict.OK
    found = only(patient, "clock", now_s=time.time() - 3600)
    assert found.verdict is Verdict.BAD
    assert "before you made your card" in found.found


def test_a_clock_that_went_back_since_the_last_start_is_bad(patient):
    patient.folder.mkdir()
    started = time.time() + 500
    write_run(patient.folder, RunFile(kind="node", pid=1, started=started, version="0", chain=""))
    assert "the node was last started" in only(patient, "clock").found


def test_a_full_disk_is_bad(patient, monkeypatch):
    usage = shutil.disk_usage(patient.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    found = only(patient, "disk")
    assert found.verdict is Verdict.BAD
    assert "1 MB free" in found.found


def test_a_folder_that_cannot_be_written_to_is_bad(patient, tmp_path):
    (tmp_path / "file").write_text("")
    assert only(replace(patient, folder=tmp_path / "file" / "node"), "folder").verdict is Verdict.BAD


def test_a_store_is_looked_through(patient):
    with open_chain(patient.folder / "chain", read_genesis(patient.genesis)):
        locked = only(patient, "store")
    assert (locked.verdict, "another process" in locked.found) == (Verdict.BAD, True)
    assert locked.advice == "end the other process"
    assert only(patient, "store").found.endswith("0 blocks, nothing is missing")
    with lock_folder(patient.folder):  # a node is running
        assert only(patient, "store").verdict is Verdict.OK
    for blob in (patient.folder / "chain" / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    damaged = only(patient, "store")
    assert (damaged.verdict, "missing" in damaged.found) == (Verdict.BAD, True)
    assert "keep the rest of the folder, above all the file life" in damaged.advice
    assert "when the others have decided the height" in damaged.advice


def test_a_store_of_another_genesis_is_bad(patient, tmp_path):
    genesis = read_genesis(patient.genesis)
    other = msgspec.structs.replace(genesis, genesis=msgspec.structs.replace(genesis.genesis, name="another"))
    with open_chain(patient.folder / "chain", other):
        pass
    assert "of another genesis" in only(patient, "store").found


def test_a_taken_port_is_bad_unless_the_node_itself_runs(patient):
    with listening() as address:
        busy = replace(patient, listen=[address])
        assert only(busy, "port").verdict is Verdict.BAD
        with lock_folder(patient.folder):
            assert only(busy, "port").verdict is Verdict.OK
    assert only(busy, "port").verdict is Verdict.OK
    assert only(replace(patient, listen=[], metrics="127.0.0.1:0"), "port").verdict is Verdict.OK


def test_a_peer_that_is_not_there_is_bad(patient):
    with listening() as address:
        pass
    found = list(examine(replace(patient, peers=[address])))
    assert [finding.verdict for finding in found if finding.check == "peer"] == [Verdict.BAD]
    assert "none can be reached" in found[-2].found


def test_a_peer_of_this_network_is_named(patient, tmp_path):
    genesis = read_genesis(patient.genesis)
    with answering(write_tls(tmp_path / "peer", genesis, signer(2), 2)) as address:
        found = only(replace(patient, peers=[address]), "peer")
    assert (found.verdict, found.found) == (Verdict.OK, f"{address}: member-2")


def test_a_peer_whose_clock_is_ahead_is_told_of(patient, tmp_path):
    genesis = read_genesis(patient.genesis)
    with answering(write_tls(tmp_path / "peer", genesis, signer(2), 2)) as address:
        found = only(replace(patient, peers=[address]), "peer", now_s=time.time() - 3600)
    assert found.verdict is Verdict.BAD
    assert "s ahead of this one" in found.found


def test_a_peer_of_another_network_is_bad(patient, tmp_path):
    stranger = create_key(tmp_path / "stranger.pem")
    authority = make_authority(stranger, "stranger")
    key, certificate = issue_leaf(stranger, authority, "member-2", ["127.0.0.1"])
    with answering(write_files(tmp_path / "peer", key, certificate, roots_pem([authority]))) as address:
        found = only(replace(patient, peers=[address]), "peer")
    assert found.verdict is Verdict.BAD
    assert "not of this network" in found.found


def test_votes_that_answer_are_counted_against_the_quorum(patient, tmp_path):
    genesis = read_genesis(patient.genesis)
    tls = [write_tls(tmp_path / str(number), genesis, signer(number), number) for number in (1, 2)]
    with answering(tls[0]) as first, answering(tls[1]) as second:
        few = only(replace(patient, peers=[first]), "quorum")
        enough = only(replace(patient, peers=[first, second]), "quorum")
    assert (few.verdict, few.found) == (Verdict.WARN, "2 of 3 votes that are needed answer")
    assert (enough.verdict, enough.found) == (Verdict.OK, "3 of 3 votes that are needed answer")


def test_the_disk_must_have_room_for_all_rounds_but_only_for_the_models_that_are_kept(patient):
    genesis, scenario = read_genesis(patient.genesis), agreed("rounds=1000")
    whole, none_left = doctor._round_bytes(genesis, scenario, 0), doctor._round_bytes(genesis, scenario, 1000)
    pruned = doctor._round_bytes(genesis, agreed("rounds=1000", "ledger.keep_blocks=10"), 0)
    models = genesis.genesis.model.size * (len(genesis.genesis.schedule.selected) + 1)
    assert none_left == 0
    assert whole - pruned == 990 * models


def test_a_quota_below_what_the_rounds_need_is_found(patient):
    enough, little = only(patient, "quota"), only(replace(patient, quota_bytes=1), "quota")
    assert enough.verdict is Verdict.OK
    assert little.verdict is Verdict.BAD
    assert "--quota" in little.advice


def test_the_default_quota_holds_every_round_with_twice_the_members(patient):
    genesis = read_genesis(patient.genesis)
    num_rounds, per_round = 1000, 2 * len(genesis.public_keys) + 1
    whole = default_quota(genesis, agreed(f"rounds={num_rounds}"))
    pruned = default_quota(genesis, agreed(f"rounds={num_rounds}", "ledger.keep_blocks=10"))
    assert whole == genesis.genesis.model.size * (num_rounds + 3) * per_round
    assert pruned == genesis.genesis.model.size * 13 * per_round


def test_a_peer_that_does_not_know_this_member_refuses_it(patient, tmp_path):
    genesis = read_genesis(patient.genesis)
    others = {number: genesis.authorities[number] for number in (1, 2, 3)}
    with answering(write_tls(tmp_path / "peer", genesis, signer(2), 2, authorities=others)) as address:
        found = only(replace(patient, peers=[address]), "peer")
    assert found.verdict is Verdict.BAD
    assert "refuses this node" in found.found
