"""`bdfl node` and `bdfl ap`: options, exit codes, signals."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.errors import install_command
from bdfl.federation.keys import create_key
from bdfl.localnet.network import find_ports
from bdfl.node.access_point import create_access_point
from bdfl.node.run_file import is_locked
from bdfl.node.status import read_status
from tests.localnet.small_network import PATIENCE_S, descendants, found_single, is_alive, wait_for


@pytest.fixture(scope="module")
def founded(tmp_path_factory):
    """The settings of a node that is a network by itself."""
    return found_single(tmp_path_factory.mktemp("founded"))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def options(founded, folder):
    return ["--genesis", founded.genesis, "--key", founded.key, "--folder", folder]


def hear_signals():
    """In a new process: Ctrl-C counts, even where the tests run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(*arguments):
    """A process of the command line, which has ended after."""
    command = [sys.executable, "-P", "-m", "bdfl.cli", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, preexec_fn=hear_signals)
    below = []
    try:
        yield process
        below = descendants(process.pid)
    finally:
        below = below or descendants(process.pid)
        process.kill()
        process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "the end of all workers")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["node"], "--genesis, --key and --folder are needed"),
        (["node", "--genesis", "no", "--key", "no", "--folder", "no"], "no: No such file or directory"),
        (["node", "--genesis", "a", "--key", "a", "--folder", "a", "--listen", "7447"], "7447: HOST:PORT expected"),
        (["node", "--genesis", "a", "--key", "a", "--folder", "a", "--peer", "x:99999"], "HOST:PORT expected"),
        (["node", "--genesis", "a", "--key", "a", "--folder", "a", "--metrics", "x"], "HOST:PORT expected"),
        (["node", "--genesis", "a", "--key", "a", "--folder", "a", "--peer", "x:" + 5000 * "9"], "HOST:PORT expected"),
        (["node", "replay", "nowhere"], "nowhere"),
        (["node", "calibrate", "nothing"], "nothing"),
        (["ap", "--genesis", "no", "--key", "no", "--listen", "127.0.0.1:0"], "no: No such file or directory"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "name"), [("zenoh", "Zenoh"), ("psutil", "psutil"), ("prometheus_client", "prometheus-client")]
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["node", "--genesis", "a", "--key", "a", "--folder", "a"],
        ["ap", "--genesis", "a", "--key", "a", "--listen", "127.0.0.1:0"],
        ["network", "up"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_without_the_extra_live_one_line_says_how_to_get_it_and_nothing_is_written(
    tmp_path, monkeypatch, arguments, module, name
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    purpose = "an access point" if arguments[0] == "ap" else "a live network"
    assert result.stderr == f"error: {purpose} needs {name}: {install_command('live')}\n"
    assert not list(tmp_path.iterdir())


def test_doctor_says_ok_or_bad_and_its_exit_code_follows(founded, tmp_path):
    well = run("node", "doctor", *options(founded, tmp_path / "node"))
    assert well.exit_code == 0, well.output
    assert all(line.split()[0] in ("ok", "warn") for line in well.stdout.splitlines())
    create_key(tmp_path / "other.pem")
    given = ["--genesis", founded.genesis, "--key", tmp_path / "other.pem", "--folder", tmp_path / "node", "--json"]
    ill = run("node", "doctor", *given)
    assert ill.exit_code == 1
    verdicts = {found["check"]: found["verdict"] for found in json.loads(ill.stdout)}
    assert (verdicts["key"], verdicts["member"]) == ("ok", "bad")


def test_status_of_a_folder_in_which_nothing_runs(tmp_path):
    result = run("node", "status", tmp_path)
    assert result.exit_code == 1
    assert "not started yet" in result.stdout


def test_a_node_runs_says_how_it_is_and_ends_cleanly_when_asked_to(founded, tmp_path):
    folder = tmp_path / "node"
    with started("node", *options(founded, folder), "--listen", find_ports(1)[0]) as process:
        wait_for(lambda: (view := read_status(folder)).snapshot is not None and view.snapshot.height >= 2, "block 2")
        shown = run("node", "status", folder)
        assert shown.exit_code == 0, shown.output
        assert "node 0 (member 0)" in shown.stdout
        assert shown.stdout.startswith("working for ")
        assert json.loads(run("node", "status", folder, "--json").stdout)["snapshot"]["number"] == 0
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    assert "node 0: stopped" in errors
    assert "Traceback" not in errors
    assert not is_locked(folder)
    again = run("node", "replay", folder)
    assert again.exit_code == 0, again.output
    assert "blocks decided again, the same byte for byte" in again.stdout
    assert json.loads(run("node", "replay", folder, "--json").stdout)["same"]
    verified = run("chain", "verify", folder)
    assert verified.exit_code == 0, verified.output


def test_a_second_signal_ends_a_node_at_once(founded, tmp_path):
    folder = tmp_path / "node"
    with started("node", *options(founded, folder), "--listen", find_ports(1)[0]) as process:
        wait_for(lambda: read_status(folder).snapshot is not None, "an answer")
        process.send_signal(signal.SIGSTOP)  # both come before it can do anything about the first
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_an_access_point_that_is_not_listed_is_refused(founded, tmp_path):
    create_access_point(tmp_path / "ap", "ap-0", ["127.0.0.1"])
    result = run("ap", "--genesis", founded.genesis, "--key", tmp_path / "ap" / "key.pem", "--listen", "127.0.0.1:0")
    assert result.exit_code == 2
    assert "not one of the 0 access points of the genesis" in result.stderr
