"""`bdfl explore`: what it opens and says, how it ends, and what it writes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette")

from bdfl.cli import app, network as network_module
from bdfl.errors import install_command
from bdfl.explorer.server import main as server_main
from tests.browser.folders import write_run
from tests.explorer.asking import ask

EXPLORE = [sys.executable, "-P", "-m", "bdfl.cli", "explore"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    write_run(folder)
    return folder


def start(*arguments, stdin=subprocess.DEVNULL):
    return subprocess.Popen(
        [*EXPLORE, *map(str, arguments)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def port_of(process):
    line = process.stdout.readline()
    found = re.match(r"explorer at http://127\.0\.0\.1:(\d+)/", line)
    assert found, line + process.stderr.read()
    return int(found[1])


def finish(process):
    """Exit code and what was said on stderr."""
    _, errors = process.communicate(timeout=240)
    return process.returncode, errors


def test_two_servers_find_a_port_each_only_read_and_serve_until_they_are_stopped(run):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*") if path.is_file()}

    before = state()
    first, second = start(run), start(run)
    try:
        port, other = port_of(first), port_of(second)
        second.terminate()  # the moment it has said where it is
        assert port != other
        overview = json.loads(ask(port, "/index.json").content)
        assert overview["height"] > 0
        assert ask(port, "/").content.startswith(b"<!doctype html>")
        for path in ("/rounds.json", "/block/1.json", "/raw/1", "/blocks.json"):
            assert ask(port, path).status == 200
        first.send_signal(signal.SIGINT)
        for process in (first, second):
            assert finish(process) == (0, "")
    finally:
        for process in (first, second):
            process.kill()
    assert state() == before


def test_it_ends_with_the_process_that_started_it(run):
    process = start(run, "--port", "0", "--while-input", stdin=subprocess.PIPE)
    try:
        port_of(process)
        process.stdin.close()
        process.stdin = None
        assert finish(process) == (0, "")
    finally:
        process.kill()


def test_a_network_says_where_its_explorer_is_and_ends_it(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "copy")
    with network_module._explorer(folder, is_wanted=True) as say:
        deadline_s = time.monotonic() + 240
        while "http://" not in say():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        port = int(re.fullmatch(r"explorer at http://127\.0\.0\.1:(\d+)/", say())[1])
        assert ask(port, "/index.json").status == 200
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/index.json")
    with network_module._explorer(folder, is_wanted=False) as say:
        assert say() == ""


def test_listening_on_all_addresses_is_warned_of(run):
    process = start(run, "--port", "0", "--host", "0.0.0.0")
    try:
        line = process.stdout.readline()
        port = int(re.search(r"http://0\.0\.0\.0:(\d+)/", line)[1])
        assert ask(port, "/index.json", host=f"192.0.2.1:{port}").status == 200
        assert ask(port, "/index.json", host=f"evil.example:{port}").status == 403
        process.terminate()
        code, errors = finish(process)
        assert code == 0
        assert errors.startswith("warning: everybody who reaches 0.0.0.0 can see all of it")
    finally:
        process.kill()


def test_what_cannot_be_opened_ends_the_process_with_one_line(tmp_path):
    command = [*EXPLORE, "nothing-there", "--port", "0"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: nothing-there: not there")
    assert found.stderr.count("\n") == 1


@pytest.fixture
def in_process(monkeypatch):
    """The command goes on as its server within this process."""

    def become(path, command, environment):
        monkeypatch.setattr(sys, "argv", command[-2:])
        sys.exit(server_main())

    monkeypatch.setattr(os, "execve", become)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["."], "the folder of a run, a chain, a node, a network or a record expected"),
        (["--node", "127.0.0.1:1"], "127.0.0.1:1"),
        (["--node", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["explore", *arguments, "--port", "0"])
    assert found.exit_code == 2
    assert found.stdout == ""
    assert expected in found.stderr
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "explore: a PATH is missing"),
        (["here", "--last", "3"], "--last: says how much --export writes"),
        (["nothing-there", "--export", "site"], "nothing-there: not there"),
    ],
)
def test_options_that_do_not_go_together_are_said_in_one_line(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["explore", *arguments])
    assert found.exit_code == 2
    assert found.stderr.startswith(f"error: {expected}")
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_its_extra_it_says_how_to_get_it(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("bdfl.cli.explore._become_server", None)
    found = CliRunner().invoke(app, ["explore", str(run)])
    assert found.exit_code == 2
    assert found.stderr == f"error: the explorer needs uvicorn: {install_command('explore')}\n"


def test_help_has_examples():
    found = CliRunner().invoke(app, ["explore", "--help"])
    assert found.exit_code == 0
    assert "bdfl explore --node" in found.stdout
    assert "--export" in found.stdout
    assert "while-input" not in found.stdout


def test_an_export_is_written_and_its_size_told(run, tmp_path):
    found = CliRunner().invoke(app, ["explore", str(run), "--export", str(tmp_path / "site"), "--last", "2"])
    assert found.exit_code == 0, found.stderr
    assert re.match(r"wrote .*index\.html, \d+\.\d MB in \d+ files; open it in a browser\n", found.stdout)
    assert (tmp_path / "site" / "index.html").exists()
    assert json.loads((tmp_path / "site" / "index.json").read_bytes())["is_exported"]


def test_an_export_has_every_block_of_a_chain_that_takes_long_to_open(run, tmp_path, monkeypatch):
    monkeypatch.setattr("bdfl.explorer.chain_run._OPENING_S", 0.0)
    monkeypatch.setattr("bdfl.explorer.chain_run._STEP_S", 0.0)
    found = CliRunner().invoke(app, ["explore", str(run), "--export", str(tmp_path / "site")])
    assert found.exit_code == 0, found.stderr
    index = json.loads((tmp_path / "site" / "index.json").read_bytes())
    assert index["height"] == index["planned_rounds"] == 12
    assert (tmp_path / "site" / "block" / "1.json").exists()
