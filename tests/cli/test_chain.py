"""`bdfl chain`: every command answers people and machines, and says in one line what is wrong."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.federation.keys import create_key
from bdfl.ledger.sqlite_store import ChainStore
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis
from tests.ledger.lying import FIELD_LIES, INITIAL, SIGNERS, write_field_lie

COMMANDS = ("verify", "audit", "show", "block", "trace", "blame", "without", "export", "prune", "prove", "privacy")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder with a chain of six blocks; no scenario."""
    with ChainStore.create(tmp_path / "run" / "chain", example_genesis(INITIAL), INITIAL, durable=False) as store:
        ChainMaker(store, SIGNERS).grow(6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def learned(tmp_path_factory, coarse_pictures):
    """A real run of two rounds in which client 1 poisons the model."""
    path = tmp_path_factory.mktemp("learned") / "run"
    changes = [
        "clients.count=4",
        "clients.samples=100",
        "scheduler.name=all",
        "learning.aggregation.rule=mean",
        "learning.aggregation.faulty=0",
        "adversaries.members=[1]",
        "adversaries.strength=3.0",
    ]
    options = [option for change in changes for option in ("--set", change)]
    result = CliRunner().invoke(app, ["run", "poisoning", "--rounds", "2", "--out", str(path), *options])
    assert result.exit_code == 0, result.output
    return path


def invoke(*words):
    return CliRunner().invoke(app, ["chain", *map(str, words)])


def answer(*words):
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"bdfl chain {command} runs/" in result.stdout


def test_a_valid_chain_is_said_to_be_valid_by_run_folder_and_by_chain_folder(folder):
    for path in (folder, folder / "chain"):
        result = invoke("verify", path)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("valid: chain ")
        assert "6 models aggregated again, equal in every bit" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80
    found = answer("verify", folder)
    assert found["valid"]
    assert found["height"] == 6
    assert found["signatures"] == 6 * 13
    assert [block["model"] for block in found["blocks"]] == ["recomputed"] * 6


def test_a_broken_chain_ends_with_1_and_names_block_and_rule(folder):
    with ChainStore.open(folder / "chain", read_only=True) as store:
        name = store.block(4).body.updates[1].update.model.hex()
    blob = folder / "chain" / "blobs" / name[:2] / name
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    result = invoke("verify", folder)
    assert result.exit_code == 1
    assert result.stderr.startswith("INVALID at block 4, rule blob-digest: ")
    assert result.stderr.endswith("; 3 blocks before it are valid\n")
    found = json.loads(invoke("verify", folder, "--json").stdout)
    assert (found["valid"], found["block"], found["rule"]) == (False, 4, "blob-digest")


@pytest.mark.parametrize("field", FIELD_LIES)
def test_expected_is_what_the_rules_require_and_found_what_the_block_says(tmp_path, field):
    lie = FIELD_LIES[field]
    due, wrong = write_field_lie(tmp_path / "chain", lie)
    result = invoke("verify", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert (found["block"], found["rule"]) == (3, lie.rule)
    assert (found["expected"], found["found"]) == (lie.read(due), lie.read(wrong))
    assert f"{found['found']} found, {found['expected']} expected" in result.stderr
    report = json.loads(invoke("audit", tmp_path, "--json").stdout)["report"]
    assert report["failure"] == {name: found[name] for name in ("block", "rule", "message", "expected", "found")}


def test_a_damaged_genesis_ends_with_1(folder):
    with sqlite3.connect(folder / "chain" / "chain.sqlite") as database:
        database.execute("UPDATE genesis SET data = zeroblob(10)")
    database.close()
    result = invoke("verify", folder, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rule"] == "store"
    result = invoke("audit", folder)
    assert result.exit_code == 1
    assert result.stderr.endswith("; no report can be made\n")


def test_a_chain_is_shown_on_80_columns(folder):
    for words in (
        ("show", folder),
        ("show", folder, "--all"),
        ("block", folder, 3),
        ("block", folder),
        ("trace", folder),
    ):
        result = invoke(*words)
        assert result.exit_code == 0, result.output
        assert max(map(len, result.stdout.splitlines())) <= 80
    assert "..." not in invoke("show", folder, "--all").stdout
    assert "Block 6 of chain" in invoke("block", folder).stdout
    found = answer("show", folder)
    assert [block["height"] for block in found["blocks"]] == [1, 2, 3, 4, 5, 6]
    assert answer("block", folder, 3)["block"]["header"]["height"] == 3
    assert [row["weight"] for row in answer("trace", folder, 2)["contributions"]] == [0.1, 0.2, 0.3, 0.4]


def test_a_chain_is_exported_as_lines_to_a_file_or_to_standard_output(folder, tmp_path):
    lines = invoke("export", folder).stdout.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["genesis", *["block"] * 6]
    result = invoke("export", folder, "--out", tmp_path / "chain.jsonl")
    assert result.stdout == f"wrote {tmp_path / 'chain.jsonl'}\n"
    assert (tmp_path / "chain.jsonl").read_text().splitlines() == lines


def test_a_model_without_a_client_is_saved(folder, tmp_path):
    result = invoke("without", folder, 3)
    assert result.exit_code == 0, result.output
    assert "trained on models that knew it" in result.stdout
    assert set(load_file(tmp_path / "without-3-block-6.safetensors")) == {"bias", "weight"}
    found = answer("without", folder, 3, "--block", 2, "--since", 2, "--out", tmp_path / "two.safetensors")
    assert (found["changed_in"], found["block"]) == ([2], 2)
    assert (tmp_path / "two.safetensors").exists()


def test_pruning_says_what_it_dropped_and_verifying_what_is_gone(folder):
    assert "nothing to prune" in invoke("prune", folder, "--keep", 6).stdout
    result = invoke("prune", folder, "--keep", 2)
    assert result.stdout.startswith("pruned 4 blocks up to block 4: ")
    assert answer("prune", folder, "--keep", 1)["checkpoint"] == 5
    verified = invoke("verify", folder)
    assert verified.exit_code == 0
    assert "5 models NOT aggregated again: updates up to block 5 were pruned" in verified.stdout
    assert "updates of blocks 6 to 6; those before were pruned" in invoke("show", folder).stdout
    result = invoke("without", folder, 1)
    assert result.exit_code == 2
    assert "pruned, blocks 6 to 6 have theirs" in result.stderr
    proof = answer("prove", folder, 2, 1)
    assert proof["update"]["update"]["client"] == 1
    assert "The update of client 1 is in block 2" in invoke("prove", folder, 2, 1).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", "nowhere"), "nowhere: not there, the folder of a run or of a chain expected"),
        (("show", "."), ".: no chain in it, the folder of a run or of a chain expected"),
        (("block", "run", 7), "block 7: not on the chain, 1 to 6 expected"),
        (("trace", "run", 7), "block 7: not on the chain, 1 to 6 expected"),
        (("without", "run", 9), "client 9: no member of the chain, 0 to 3 expected"),
        (("prove", "run", 7, 1), "block 7: not on the chain, 1 to 6 expected"),
        (("blame", "run"), "run: no scenario.toml beside the chain, which says what the model and the data are"),
        (("export", "run", "--out", "no/file.jsonl"), "no/file.jsonl: No such file or directory"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_one_line(folder, words, message):
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_a_poisoner_is_blamed_by_the_runs_own_data_and_by_data_given(learned):
    assert invoke("verify", learned).exit_code == 0
    result = invoke("blame", learned)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    found = answer("blame", learned)
    worst, *others = found["verdicts"]
    assert (worst["client"], worst["num_harmed"], worst["num_blocks"]) == (1, 2, 2)
    assert worst["mean_effect"] < 0 < min(row["mean_effect"] for row in others)
    again = answer("blame", learned / "chain", "--data", "digits", "--first", 2)
    assert again["verdicts"][0]["client"] == 1
    assert {row["block"] for row in again["effects"]} == {2}


def test_another_scenario_beside_the_chain_is_not_taken_for_its_own(learned, tmp_path):
    text = (learned / "scenario.toml").read_text()
    (tmp_path / "scenario.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    (tmp_path / "chain").symlink_to(learned / "chain")
    result = invoke("blame", tmp_path)
    assert result.exit_code == 2
    assert "not the scenario that the chain was begun with" in result.stderr


# Audits


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "auditor.pem"
    create_key(path)
    return path


def test_an_audit_writes_a_page_and_its_json_which_checks_if_it_is_signed(folder, key):
    page, file = Path("reports/six.html"), Path("reports/six.json")
    result = invoke("audit", folder, "--key", key, "--out", page)
    assert result.exit_code == 0, result.output
    assert "valid: chain " in result.stdout
    assert "0 misses, 0 offences" in result.stdout
    document = json.loads(file.read_text())
    report = file.read_bytes().split(b'{"report":')[1].split(b',"digest":')[0]
    assert hashlib.sha256(report).hexdigest() == document["digest"]
    assert document["digest"][:8] in page.read_text()
    checked = invoke("audit", "--check", file)
    assert checked.exit_code == 0, checked.output
    assert "no member of this chain" in checked.stdout
    assert document["signature"]["public_key"] in checked.stdout
    assert max(map(len, (result.stdout + checked.stdout).splitlines())) <= 80
    assert answer("audit", "--check", file)["public_key"] == document["signature"]["public_key"]
    secret = key.read_bytes().splitlines()[1]
    assert secret not in page.read_bytes() + file.read_bytes()


def test_an_audit_of_a_member_says_which_member_signed_it(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("bdfl.federation.keys.load_key", lambda path: SIGNERS[2])
    assert "member 2\n" in invoke("audit", folder, "--key", "any.pem").stdout
    assert (tmp_path / "audit.html").is_file()
    assert (tmp_path / "audit.json").is_file()


def test_a_report_that_nobody_signed_or_somebody_changed_does_not_check(folder, tmp_path, key):
    invoke("audit", folder)
    result = invoke("audit", "--check", "audit.json")
    assert result.exit_code == 1
    assert "no signature found, one expected" in result.stderr
    invoke("audit", folder, "--key", key)
    file = tmp_path / "audit.json"
    file.write_bytes(file.read_bytes().replace(b'"verified":6', b'"verified":7'))
    result = invoke("audit", "--check", file, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["valid"] is False
    assert result.stderr.startswith(f"INVALID: {file}: changed after it was written: digest ")


def test_an_audit_of_a_broken_chain_ends_with_1_and_covers_the_blocks_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_field_lie(tmp_path / "chain", FIELD_LIES["parent"])
    result = invoke("audit", "chain")
    assert result.exit_code == 1
    assert result.stderr.startswith("INVALID at block 3, rule parent: ")
    assert "2 blocks before it are valid" in result.stderr
    assert "Where verification failed" in (tmp_path / "audit.html").read_text()


def test_an_audit_is_of_a_path_or_checks_a_report(folder):
    for words in ((), (folder, "--check", "audit.json")):
        result = invoke("audit", *words)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
