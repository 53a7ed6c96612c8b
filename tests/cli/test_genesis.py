"""`bdfl keygen` and `bdfl genesis`: from keys to a genesis that all have signed, as docs/live.md shows it."""

import contextlib
import json
import re
import shlex
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.federation.genesis_draft import read_draft
from bdfl.federation.genesis_file import read_genesis
from bdfl.federation.keys import load_key
from bdfl.learning.data import BadData
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import chain_id
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.transports.live.training_process import Setup
from bdfl.transports.live.training_worker import open_share

PAGE = Path(__file__).parents[2] / "docs" / "live.md"
SITES = ("north", "east", "south", "west")
COMMANDS = ("new", "card", "add-member", "add-access-point", "make", "show", "sign", "merge")

pytestmark = pytest.mark.usefixtures("elsewhere")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def say(*words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*words):
    return json.loads(say(*words, "--json"))


def refusal(*words):
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def shown_commands():
    """The commands of the page's part on founding; what one member does, all do."""
    text = PAGE.read_text(encoding="utf-8").partition("## Found it")[2].partition("\n## ")[0]
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)[1:]
            if "north" in line and "east" not in line:
                for number, site in enumerate(SITES):
                    named = [word.replace("north", site) for word in words]
                    yield [str(number) if word == "0" else word for word in named]
            else:
                yield words


def write_card(number, site, *options):
    named = ["--key", f"{site}.key", "--name", site, "--client", number, "--out", f"{site}.card"]
    return run("genesis", "card", "our.draft", *named, *options)


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """Two members' keys and cards, a draft that has them and an unsigned genesis."""
    path = tmp_path_factory.mktemp("founded")
    with contextlib.chdir(path):
        say("genesis", "new", "minimal", "--members", 2, "--out", "empty.draft")
        shutil.copy("empty.draft", "our.draft")
        for number, site in enumerate(SITES[:2]):
            say("keygen", "--out", f"{site}.key")
            assert write_card(number, site).exit_code == 0
        say("genesis", "add-member", "our.draft", "north.card", "east.card")
        say("genesis", "make", "our.draft", "--out", "our.genesis")
    return path


@pytest.fixture
def founded(origin, tmp_path):
    """A copy of it, where commands run."""
    shutil.copytree(origin, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    assert f"bdfl genesis {command} " in say("genesis", command, "--help")


def save_data(labels, shape=(8, 8), dtype=np.uint8, scale=16):
    """Data of one's own with these labels, as mine.npz."""
    size = len(labels) * int(np.prod(shape))
    inputs = (np.arange(size) % scale).reshape(len(labels), *shape).astype(dtype)
    np.savez("mine.npz", train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels)


def test_what_the_page_shows_ends_in_a_genesis_that_all_have_signed():
    save_data(np.arange(50) % 10)
    for words in shown_commands():
        assert max(map(len, say(*words).splitlines()[:-1] or [""])) <= 80 or "--toml" in words
    file = read_genesis(Path("our.genesis"))
    assert file.names == SITES
    assert file.missing_signatures == []
    assert [point.name for point in file.genesis.access_points] == ["ap-0"]
    text = say("genesis", "show", "our.genesis")
    assert "all members have signed: ready to start" in text
    assert "at most 1 of the 4 members lie; 1 may be away" in text
    assert "3 of 4 votes (bft)" in text
    assert "the counts of labels are public" in text


def test_a_key_is_made_once_and_only_its_public_half_is_shown():
    shown = answer("keygen", "--out", "a.key")
    assert shown["public_key"] == load_key(Path("a.key")).public_key.hex()
    assert stat.S_IMODE(Path("a.key").stat().st_mode) == 0o600
    assert "exists already" in refusal("keygen", "--out", "a.key")
    text = say("keygen")
    assert Path("member.key").exists()
    assert "fingerprint" in text
    secret = Path("member.key").read_text().splitlines()[1]
    assert secret not in text


def test_an_access_point_gets_a_key_of_its_own_and_a_certificate():
    shown = answer("keygen", "--access-point", "ap-0", "--host", "127.0.0.1", "--host", "ap.example.org")
    assert stat.S_IMODE(Path("ap-0/key.pem").stat().st_mode) == 0o600
    assert Path("ap-0/certificate.pem").read_text().startswith("-----BEGIN CERTIFICATE-----")
    assert len(shown["certificate"]) == 64
    assert "exists already" in refusal("keygen", "--access-point", "ap-0", "--host", "127.0.0.1")
    assert run("keygen", "--access-point", "ap-1").exit_code == 2
    assert run("keygen", "--host", "127.0.0.1").exit_code == 2


@pytest.mark.usefixtures("founded")
def test_a_card_says_that_label_counts_become_public():
    assert "all of it becomes public" in say("genesis", "show", "north.card")
    words = ["genesis", "card", "empty.draft", "--key", "north.key", "--name", "north"]
    shown = answer("genesis", "show", "north.card")
    assert sum(shown["label_counts"]) == shown["limits"]["samples"] == 300
    assert shown["name"] == "north"
    assert "0 to 1 expected" in refusal(*words, "--client", 2, "--out", "other.card")
    assert "--client" in refusal(*words, "--out", "other.card")
    assert "exists already" in refusal(*words, "--client", 0, "--out", "north.card")


@pytest.mark.usefixtures("founded")
def test_data_of_ones_own_are_counted_and_need_not_have_all_labels():
    save_data(np.array([0, 0, 2, 2, 2]))
    words = ["genesis", "card", "empty.draft", "--key", "north.key", "--name", "north", "--client", 1]
    shown = answer(*words, "--data", "mine.npz", "--out", "own.card")
    assert shown["label_counts"] == [2, 0, 3, 0, 0, 0, 0, 0, 0, 0]
    assert shown["limits"]["samples"] == 5


MISFITS = {
    "shape": ({"labels": np.arange(50) % 10, "shape": (28, 28)}, "inputs uint8 28x28x1, expected uint8 8x8x1"),
    "type": ({"labels": np.arange(50) % 10, "dtype": np.float32}, "inputs float32 8x8, expected uint8 8x8x1"),
    "labels": ({"labels": np.arange(50) % 12}, "12 labels, expected at most 10"),
    "range": ({"labels": np.arange(50) % 10, "scale": 1}, "every value of the inputs is 0"),
    "whole numbers": ({"labels": np.linspace(0, 9, 50)}, "labels of type float64"),
    "samples": ({"labels": np.zeros(0, int)}, "no samples, expected at least one"),
}


@pytest.mark.usefixtures("founded")
@pytest.mark.parametrize("kind", MISFITS)
def test_no_card_is_written_of_data_that_do_not_fit_the_draft(kind):
    data, reason = MISFITS[kind]
    save_data(**data)
    words = ["genesis", "card", "empty.draft", "--key", "north.key", "--name", "north", "--client", 1]
    assert reason in refusal(*words, "--data", "mine.npz", "--out", "own.card")
    assert not Path("own.card").exists()


def test_example_data_say_what_everybodys_must_be():
    save_data(np.arange(60) % 3, shape=(5,), dtype=np.float32, scale=2)
    shown = answer(
        "genesis", "new", "minimal", "--data", "mine.npz", "--set", "data.normalise=none", "--out", "our.draft"
    )
    assert (shown["inputs"], shown["num_labels"]) == ("float32 5", 3)
    say("keygen", "--out", "north.key")
    assert write_card(0, "north", "--data", "mine.npz").exit_code == 0
    save_data(np.arange(60) % 3, shape=(5,), dtype=np.float32, scale=256)
    refused = write_card(1, "north", "--data", "mine.npz")
    assert "values 0 to 255, expected about 0 to 1" in refused.stderr


def test_a_model_of_ones_own_is_tried_with_the_data(tmp_path):
    """Loss and gradient of a batch: only that tells of a model that nobody here knows."""
    source = "import torch\n\ndef network(shape, labels):\n    return torch.nn.Linear({size}, labels)\n"
    Path("odd_model.py").write_text(source.format(size="shape[0]"))
    save_data(np.arange(60) % 3, shape=(5,), dtype=np.float32)
    model = ["--set", "learning.model=odd_model:network"]
    say("genesis", "new", "minimal", "--data", "mine.npz", *model, "--out", "our.draft")
    say("keygen", "--out", "north.key")
    assert "would run here" in write_card(0, "north", "--data", "mine.npz").stderr
    allowed = ["--allow", "odd_model:network", "--data", "mine.npz"]
    assert write_card(0, "north", *allowed).exit_code == 0
    draft, _ = read_draft(Path("our.draft"), allowed=frozenset(["odd_model:network"]))
    hot = encode_weights(np.full(18, 3e38, np.float32), draft.layout)
    for model, reason in ((hot, "a finite loss"), (hot[:-4], "another model")):
        with pytest.raises(BadData, match=reason):
            open_share(Setup(draft.scenario, 0, str(tmp_path / "mine.npz"), model))


@pytest.mark.usefixtures("founded")
def test_whoever_signs_is_told_what_was_checked_and_what_not():
    text = say("genesis", "sign", "our.genesis", "--key", "north.key", "--card", "north.card")
    assert "checked: yours is north.card, for which your data were tried with the model" in text
    assert "not checked: data of others" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "uint8 8x8x1, 10 labels" in say("genesis", "show", "our.genesis")


@pytest.mark.usefixtures("founded")
def test_all_numbers_come_as_json_too():
    shown = answer("genesis", "show", "our.genesis")
    assert shown["kind"] == "genesis"
    assert shown["digest"] == chain_id(read_genesis(Path("our.genesis")).genesis).hex()
    assert [seat["name"] for seat in shown["seats"]] == ["north", "east"]
    assert shown["missing"] == [0, 1]
    assert answer("genesis", "sign", "our.genesis", "--key", "north.key")["missing"] == [1]
    signed = answer("genesis", "sign", "our.genesis", "--key", "east.key", "--out", "east.signature")
    assert signed["member"] == 1
    assert answer("genesis", "merge", "our.genesis", "east.signature")["missing"] == []
    draft = answer("genesis", "show", "our.draft")
    assert (draft["kind"], draft["digest"], draft["missing"]) == ("draft", None, [])


@pytest.mark.usefixtures("founded")
def test_nobody_signs_what_it_did_not_expect():
    digest = answer("genesis", "show", "our.genesis")
    say("keygen", "--out", "stranger.key")
    sign = ["genesis", "sign", "our.genesis", "--key"]
    assert "not among the members" in refusal(*sign, "stranger.key")
    assert "another card of you" in refusal(*sign, "north.key", "--card", "east.card")
    assert "not signed" in refusal(*sign, "north.key", "--digest", "lusab-babad-gutih-tugad")
    assert "not signed" in refusal(*sign, "north.key", "--digest", digest["digest"][:8])
    assert read_genesis(Path("our.genesis")).missing_signatures == [0, 1]
    say(*sign, "north.key", "--digest", digest["digest_words"].replace("-", " "))
    say(*sign, "east.key", "--digest", digest["digest_groups"].upper())
    assert read_genesis(Path("our.genesis")).missing_signatures == []


@pytest.mark.usefixtures("founded")
def test_signatures_of_another_genesis_are_not_merged():
    Path("our.genesis").rename("first.genesis")
    Path("east.card").unlink()
    assert write_card(1, "east").exit_code == 0  # another card, with a new certificate
    say("genesis", "add-member", "our.draft", "east.card")
    say("keygen", "--access-point", "ap-0", "--host", "127.0.0.1")
    say("genesis", "add-access-point", "our.draft", "ap-0")
    say("genesis", "make", "our.draft", "--out", "our.genesis")
    say("genesis", "sign", "first.genesis", "--key", "north.key", "--out", "north.signature")
    say("genesis", "sign", "first.genesis", "--key", "east.key")
    assert "another genesis" in refusal("genesis", "merge", "our.genesis", "north.signature")
    assert "another genesis" in refusal("genesis", "merge", "our.genesis", "first.genesis")
    assert "another card of you" in refusal(
        "genesis", "sign", "first.genesis", "--key", "east.key", "--card", "east.card"
    )


@pytest.mark.usefixtures("founded")
def test_mistakes_are_one_line_that_says_what_is_expected():
    assert "a draft, a genesis file expected" in refusal("genesis", "sign", "our.draft", "--key", "north.key")
    assert "a genesis, a card file expected" in refusal("genesis", "add-member", "our.draft", "our.genesis")
    assert "no file of a set-up" in refusal("genesis", "show", "north.key")
    assert "No such file" in refusal("genesis", "show", "nothing")
    assert "live.mode" in refusal("genesis", "new", "minimal", "--mode", "guess", "--out", "other.draft")
    assert "exists already" in refusal("genesis", "make", "our.draft", "--out", "our.genesis")
    Path("north.key").chmod(0o644)
    assert "chmod 600 north.key" in refusal("genesis", "sign", "our.genesis", "--key", "north.key")
    data = bytearray(Path("our.genesis").read_bytes())
    data[len(data) // 2] ^= 1
    Path("our.genesis").write_bytes(data)
    refusal("genesis", "show", "our.genesis")


def test_functions_that_a_scenario_names_run_only_if_they_are_allowed():
    Path("own_rule.py").write_text("def rule(updates, samples):\n    return updates[0]\n")
    say("genesis", "new", "minimal", "--members", 2, "--set", "learning.aggregation.rule=own_rule:rule", "--out", "a")
    assert "--allow own_rule:rule" in refusal("genesis", "show", "a")
    say("genesis", "show", "a", "--allow", "own_rule:rule")


@pytest.mark.usefixtures("founded")
def test_members_are_changed_by_a_file_that_a_quorum_signs():
    file = read_genesis(Path("our.genesis"))
    ChainStore.create(Path("node/chain"), file.genesis, file.initial_model, durable=False).close()
    say("keygen", "--out", "south.key")
    words = ["genesis", "card", "our.genesis", "--key", "south.key", "--name", "south", "--client", 0]
    say(*words, "--out", "south.card")
    at_node = ["--folder", "node"]
    proposal = ["member", "propose-add", "south.card", "--genesis", "our.genesis", *at_node, "--out", "add.change"]
    shown = answer(*proposal)
    assert (shown["kind"], shown["number"], shown["name"], shown["quorum"]) == ("admission", 2, "south", 2)
    assert "2 more must sign" in refusal("member", "submit", "add.change", *at_node)
    shutil.copy("add.change", "copy.change")
    say("member", "sign", "add.change", "--key", "north.key", *at_node)
    assert "not that of a member" in refusal("member", "sign", "add.change", "--key", "south.key", *at_node)
    say("member", "sign", "copy.change", "--key", "east.key", *at_node)
    assert "enough" in say("member", "merge", "add.change", "copy.change", *at_node)
    assert answer("member", "show", "add.change", *at_node)["signed_by"] == [0, 1]
    say("member", "submit", "add.change", *at_node)
    assert len(list(Path("node/inbox").glob("*.change"))) == 1
    assert answer("member", "propose-remove", 1, *at_node, "--out", "remove.change")["kind"] == "removal"
    assert "not one of the members" in refusal("member", "propose-remove", 7, *at_node, "--out", "other.change")


@pytest.mark.parametrize("command", ["propose-add", "propose-remove", "show", "sign", "merge", "submit"])
def test_every_command_about_members_explains_itself_with_an_example(command):
    assert f"bdfl member {command} " in say("member", command, "--help")
