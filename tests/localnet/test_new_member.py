"""A member who comes in while the network runs: by a change that the others signed, with real processes."""

import json
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from bdfl.experiment.training_run import prepare_run
from bdfl.federation.genesis_file import read_genesis
from bdfl.federation.keys import create_key, load_key
from bdfl.federation.member_card import emulated_profile, make_card
from bdfl.federation.membership_change import (
    INBOX,
    authorities_of,
    find_admission,
    keep_admission,
    propose_admission,
    read_admissions,
    read_members,
    sign_change_file,
    submit_change,
)
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.network import create_network, find_ports, run_network
from bdfl.localnet.processes import GENESIS_FILE, Child, end_all, node_folder
from bdfl.node.service import open_node
from bdfl.node.settings import CHAIN_FOLDER, NodeSettings, open_chain
from bdfl.node.status import read_status
from bdfl.storage import write_record
from bdfl.transports.live.zenoh_config import count_authorities
from tests.localnet.small_network import BY_FORMULA, FORMULA_CLIENT, tiny_scenario, wait_for

ALLOWED = frozenset([FORMULA_CLIENT])


def admit(folder, scenario, signer):
    """An admission that both members have signed."""
    nodes = [node_folder(folder, 0), node_folder(folder, 1)]
    standing = read_members(nodes[0])
    card = make_card(signer, scenario, "third", 0, emulated_profile(prepare_run(scenario), 0))
    genesis = read_genesis(folder / GENESIS_FILE, allowed=ALLOWED)
    change = propose_admission(standing, genesis, scenario, card, standing.height + 500)
    for node in nodes:
        change = sign_change_file(change, standing, load_key(node / "key.pem"))
    return change


def test_a_newcomer_is_let_in_catches_up_and_is_needed_from_then_on(tmp_path):
    folder, place = tmp_path / "network", tmp_path / "third"
    scenario = tiny_scenario(2, "rounds=1000", BY_FORMULA)
    create_network(folder, scenario, 0, None)
    place.mkdir()
    signer = create_key(place / "key.pem")
    nodes = [node_folder(folder, 0), node_folder(folder, 1)]
    with run_network(folder, evaluates=False) as network, ExitStack() as resources:
        wait_for(lambda: min(network.look().heights, default=0) >= 1, "block 1")
        change = admit(folder, scenario, signer)
        write_record(place / "admission", change)
        for node in nodes:
            submit_change(node, change, read_members(node))
        wait_for(lambda: len(read_members(nodes[0]).member_set.members) == 3, "the admission on the chain")
        arguments = [
            "node", "--genesis", folder / GENESIS_FILE, "--key", place / "key.pem", "--folder", place / "node",
            "--admission", place / "admission", "--listen", find_ports(1)[0], "--while-input",
            "--allow", FORMULA_CLIENT,
        ]  # fmt: skip
        for address in [read_status(node).listen[0] for node in nodes]:
            arguments += ["--peer", address]
        newcomer = Child("third", [str(argument) for argument in arguments], place / "output.log")
        resources.callback(end_all, [newcomer])
        # All three are needed for a quorum now.
        goal = read_members(nodes[0]).height + 2
        node = place / "node"
        wait_for(lambda: (found := read_status(node).snapshot) and found.height >= goal, "blocks with the third")
    with ChainStore.open(place / "node" / "chain", read_only=True) as store:
        voters = {vote.vote.voter for vote in store.certificate(goal)}
        blocks = [store.block(height).digest for height in range(1, goal + 1)]
    assert voters == {0, 1, 2}
    with ChainStore.open(nodes[1] / "chain", read_only=True) as store:
        assert [store.block(height).digest for height in range(1, goal + 1)] == blocks
    lines = [json.loads(line) for line in (nodes[0] / "node.log").read_text().splitlines()]
    assert [line["in all"] for line in lines if line["event"] == "members"] == [3]
    genesis = read_genesis(folder / GENESIS_FILE, allowed=ALLOWED)
    known = authorities_of(genesis, read_admissions(nodes[0], (), genesis))
    assert sorted(known) == [0, 1, 2]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The folder of a network of two that does not run."""
    folder = tmp_path_factory.mktemp("rivals") / "network"
    create_network(folder, tiny_scenario(2, "rounds=1000", BY_FORMULA), 0, None)
    return folder


@pytest.fixture(scope="module")
def rivals(network):
    """Its genesis, and the admissions of two newcomers under one number."""
    genesis = read_genesis(network / GENESIS_FILE, allowed=ALLOWED)
    with open_chain(node_folder(network, 0) / CHAIN_FOLDER, genesis):
        pass
    scenario = tiny_scenario(2, "rounds=1000", BY_FORMULA)
    changes = [admit(network, scenario, create_key(network.parent / f"{name}.pem")) for name in ("third", "rival")]
    return genesis, changes


def key_of(change):
    return change.card.card.public_key


def test_of_who_was_removed_no_certificate_counts(rivals):
    genesis, (third, _) = rivals
    first, second = genesis.public_keys
    assert sorted(authorities_of(genesis, [third], (first, second, key_of(third)))) == [0, 1, 2]
    assert sorted(authorities_of(genesis, [third], (first, None, key_of(third)))) == [0, 2]
    assert sorted(authorities_of(genesis, [third], (first, second, None))) == [0, 1]
    assert sorted(authorities_of(genesis, [third], (first, second))) == [0, 1, 2]  # the chain may be far behind


def test_of_two_admissions_under_one_number_that_on_the_chain_counts(rivals, tmp_path):
    genesis, changes = rivals
    for change in changes:
        keep_admission(tmp_path, change)
    kept = read_admissions(tmp_path, (), genesis)
    assert len(kept) == 2
    for change in changes:
        known = authorities_of(genesis, kept, (*genesis.public_keys, key_of(change)))
        assert known[2] == change.card.card.authority
        assert find_admission(kept, key_of(change)) == (2, change.card)


def test_a_node_connects_anew_when_somebody_comes_and_when_somebody_is_removed(network, rivals, monkeypatch):
    genesis, (third, _) = rivals
    folder = node_folder(network, 0)
    settings = NodeSettings(
        genesis=network / GENESIS_FILE,
        key=folder / "key.pem",
        folder=folder,
        listen=find_ports(1),
        allowed=ALLOWED,
    )
    with open_node(settings) as service:
        found = []
        tls = service._zenoh._settings.tls
        monkeypatch.setattr(service._members, "reconnect", lambda: found.append(count_authorities(tls)))
        (folder / INBOX).mkdir(exist_ok=True)
        write_record(folder / INBOX / "third.change", third)
        service._members.take_changes()
        assert not list((folder / INBOX).iterdir())
        first, second = genesis.public_keys
        coming = [(first, second, key_of(third)), (first, None, key_of(third)), (first, None, None)]
        for number, public_keys in enumerate(coming, 1):
            for _ in range(2):
                service._notice_block(None, SimpleNamespace(public_keys=public_keys))
            wait_for(lambda num=number: len(found) == num, "the link is opened anew")
        assert found == [3, 2, 1]
