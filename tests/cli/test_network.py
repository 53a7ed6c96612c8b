"""`bdfl network`: what it shows, and that it ends with everything it started."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from io import StringIO

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.cli.progress import list_troubles, summarise_view, tabulate_network
from bdfl.localnet.network import NetworkView, create_network
from bdfl.localnet.processes import node_folder, read_network
from bdfl.node.run_file import is_locked
from bdfl.node.status import NodeView, ServiceState, read_status
from tests.localnet.small_network import PATIENCE_S, descendants, is_alive, tiny_scenario, wait_for
from tests.node.test_http import SNAPSHOT

UP = [sys.executable, "-P", "-m", "bdfl.cli", "network", "up"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def hear_signals():
    """In a new process: Ctrl-C counts, even where the tests run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def view_of(*snapshots, blocks=30):
    nodes = [
        NodeView(folder="x", is_up=False, pid=None, state=ServiceState.STOPPED, reason="killed")
        if found is None
        else NodeView(folder="x", is_up=True, pid=1, state=found.state, reason=found.reason, snapshot=found)
        for found in snapshots
    ]
    point = NodeView(folder="y", is_up=True, pid=2, state=ServiceState.WORKING, reason="forwards")
    return NetworkView(
        folder="f", scenario="live", is_up=True, blocks=blocks, nodes=tuple(nodes), access_points=(point,)
    )


def test_the_table_fits_eighty_columns_and_shows_who_is_down():
    large = msgspec.structs.replace(
        SNAPSHOT, height=12345, last_height=99999, present=tuple(range(99)), num_members=100,
        refused={"rate": 1_000_000}, memory_bytes=2**34,
    )  # fmt: skip
    console = Console(width=80, file=StringIO(), color_system=None)
    console.print(tabulate_network(view_of(large, None, SNAPSHOT)))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "12345/99999" in lines[1]
    assert "99/99" in lines[1]
    assert "stopped" in lines[2]
    assert "mines" in lines[3]
    assert lines[4].startswith("ap 0")
    assert "forwards" in lines[4]


def test_states_that_need_somebody_are_shown_with_their_reason():
    waits = msgspec.structs.replace(
        SNAPSHOT, state=ServiceState.WAITING, reason="2 of 4 votes", refused={"rate": 10**6}, accuracy=1.0,
        height=12345, last_height=99999, memory_bytes=2**34,
    )  # fmt: skip
    view = view_of(waits, SNAPSHOT, waits, None)
    assert list_troubles(view) == ["node 0 2 waiting: 2 of 4 votes", "node 3 stopped: killed"]
    console = Console(width=80, file=StringIO(), color_system=None)
    untrained = msgspec.structs.replace(waits, state=ServiceState.NOT_TRAINING)
    console.print(tabulate_network(view_of(waits, untrained)))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "waiting" in lines[1]
    assert "not-training" in lines[2]


def test_a_network_in_one_line():
    later = msgspec.structs.replace(SNAPSHOT, height=9)
    assert summarise_view(view_of(SNAPSHOT, later, None)) == (
        "2 of 3 nodes up, 1 of 1 access points, block 7 to 9 of 30, accuracy 90.0 %"
    )


def test_a_network_is_done_when_every_node_has_the_last_block():
    assert view_of(SNAPSHOT, SNAPSHOT, blocks=7).is_done
    assert not view_of(SNAPSHOT, SNAPSHOT, blocks=8).is_done
    assert not view_of(SNAPSHOT, None, blocks=7).is_done
    assert not view_of(SNAPSHOT, blocks=None).is_done


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "nothing"], "nothing not found"),
        (["up", "--resume", "here", "--nodes", "3"], "--resume: goes on with what its folder says"),
        (["up", "--resume", "here"], "here: no network.json in it"),
        (["up", "--set", "clients.count=0", "--out", "here"], "clients.count"),
        (["status", "here"], "here: no network.json in it"),
        (["down"], "no network.json in it"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    result = run("network", *arguments)
    assert result.exit_code == 2, result.output
    assert expected in result.stderr.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def test_ctrl_c_ends_everything_judges_it_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "network"
    create_network(folder, tiny_scenario(2, "rounds=1000"), 1, 1000)
    with ExitStack() as resources:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [*UP, "--resume", str(folder), "--json"]
        process = subprocess.Popen(command, **pipes, preexec_fn=hear_signals)
        resources.callback(process.wait)
        resources.callback(process.kill)
        nodes = [node_folder(folder, 0), node_folder(folder, 1)]
        wait_for(lambda: all(read_status(node).snapshot is not None for node in nodes), "an answer of both nodes")
        below = descendants(process.pid)
        assert len(below) >= 3 + 2 * 2  # an access point, two nodes, a miner and a training process each
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        wait_for(lambda: not any(map(is_alive, below)), "the end of all others")
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == f"stopped; go on: bdfl network up --resume {folder}"
    summary = json.loads(output)
    assert (summary["num_nodes"], summary["failures"]) == (2, [])
    assert read_network(folder).pid is None


def test_a_network_in_the_background_can_be_looked_at_and_ended(tmp_path):
    folder = tmp_path / "network"
    create_network(folder, tiny_scenario(2, "rounds=1000"), 0, 1000)
    command = [*UP, "--resume", str(folder), "--detach"]
    begun = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert begun.returncode == 0, begun.stderr
    pid = read_network(folder).pid
    try:
        wait_for(lambda: run("network", "status", folder).exit_code == 0, "all processes")
        shown = json.loads(run("network", "status", folder, "--json").stdout)
        assert [node["is_up"] for node in shown["nodes"]] == [True, True]
        below = descendants(pid)
        assert run("network", "up", "--resume", folder).exit_code == 2  # it runs already
    finally:
        stopped = run("network", "down", folder)
    assert stopped.exit_code == 0, stopped.output
    wait_for(lambda: not any(map(is_alive, [pid, *below])), "the end of all processes")
    assert not is_locked(folder)
    assert run("network", "down", folder).stdout.endswith("not running\n")
    assert run("network", "status", folder).exit_code == 1
