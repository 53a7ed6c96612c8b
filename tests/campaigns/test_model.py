"""The model of the agreement: safe in full where it is small, wrong models are caught, and it is of this code."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.network import create_network, run_network
from bdfl.localnet.processes import node_folder
from bdfl.transports.live.event_log import EVENTS_FILE
from campaigns.model import spin
from campaigns.model.__main__ import app
from campaigns.model.instances import LOCKS, MUTANTS, SMALL, WITHHELD, check_mutant
from campaigns.model.spin import check, check_trace
from campaigns.model.traces import record_logs, record_seed
from tests.campaigns.spin_checker import require_spin
from tests.localnet.small_network import BY_FORMULA, tiny_scenario, wait_for

SEEDS = (1, 9, 26, 52)  # with liars, crashes, 50 attempts, and several heights in one step


@pytest.fixture(autouse=True)
def needed():
    require_spin()


@pytest.fixture(scope="module")
def trace():
    return record_seed(9)


@pytest.mark.parametrize("instance", [SMALL, LOCKS, WITHHELD], ids=lambda instance: instance.name)
def test_the_model_keeps_its_laws_in_every_state(instance):
    found = check(instance.parameters)
    assert found.law == ""
    assert found.num_states > 100


@pytest.mark.parametrize(
    "name", ["forgotten-lock", "sent-before-kept", "past-quorums-ignored", "no-leader", "precommit-at-the-end"]
)
def test_a_wrong_model_is_caught(name):
    assert check_mutant(next(mutant for mutant in MUTANTS if mutant.name == name)).law != ""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_network_in_trouble_did_is_a_behaviour_of_the_model(seed):
    found = check_trace(record_seed(seed))
    assert found.law == ""
    assert found.reached[0] == found.reached[1] > 100


def without(trace, name):
    """The trace without the first step of a name."""
    place = next(place for place, step in enumerate(trace.steps) if step.name == name)
    return replace(trace, steps=trace.steps[:place] + trace.steps[place + 1 :])


def twice(trace, name):
    """The trace with the first step of a name taken again after it was said, for another block."""
    place = next(place for place, step in enumerate(trace.steps) if step.name == name)
    again = replace(trace.steps[place], block=b"another")
    return replace(trace, steps=(*trace.steps[: place + 2], again, *trace.steps[place + 2 :]))


def elsewhere(trace, name):
    """The trace with the first step of a name for another block."""
    place = next(place for place, step in enumerate(trace.steps) if step.name == name)
    changed = replace(trace.steps[place], block=b"another")
    return replace(trace, steps=(*trace.steps[:place], changed, *trace.steps[place + 1 :]))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (without, "lock"),
        (without, "prevote"),
        (without, "say"),
        (twice, "prevote"),
        (twice, "precommit"),
        (elsewhere, "precommit"),
        (elsewhere, "lock"),
        (elsewhere, "commit"),
        (without, "commit"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_changed_record_is_no_behaviour_of_the_model(trace, change, name):
    assert "none of the model" in check_trace(change(trace, name)).law


def test_a_restart_in_another_attempt_is_no_behaviour_of_the_model(trace):
    place = next(place for place, step in enumerate(trace.steps) if step.name == "restart" and step.attempt > 1)
    steps = (*trace.steps[:place], replace(trace.steps[place], attempt=1), *trace.steps[place + 1 :])
    assert "restart" in check_trace(replace(trace, steps=steps)).law


def test_what_live_nodes_recorded_is_a_behaviour_of_the_model(tmp_path):
    folder = tmp_path / "network"
    create_network(folder, tiny_scenario(2, "rounds=3", BY_FORMULA), 0, None)
    with run_network(folder, evaluates=False) as network:
        wait_for(
            lambda: all(view.snapshot is not None and view.snapshot.is_done for view in network.look().nodes),
            "the last block everywhere",
        )
    nodes = [node_folder(folder, number) for number in range(2)]
    with (
        ChainStore.open(nodes[0] / "chain", read_only=True) as first,
        ChainStore.open(nodes[1] / "chain", read_only=True) as second,
    ):
        both = record_logs({0: (nodes[0] / EVENTS_FILE, first), 1: (nodes[1] / EVENTS_FILE, second)}, 2)
        alone = record_logs({0: (nodes[0] / EVENTS_FILE, first)}, 2)
    assert sum(step.name == "commit" for step in both.steps) == 6
    assert check_trace(both).law == ""
    assert check_trace(alone).law == ""
    assert check_trace(elsewhere(both, "commit")).law != ""


def test_without_spin_the_command_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(spin, "find_spin", lambda: None)
    result = CliRunner().invoke(app, ["check", "small"])
    assert result.exit_code != 0
    assert "apt-get install spin" in result.output
