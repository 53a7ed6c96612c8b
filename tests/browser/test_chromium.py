"""Tests in a browser are skipped in one line where there is none, and fail where one was asked for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.chromium import CHOICE, MISSING, REQUIRED, find_browser

ROOT = Path(__file__).parents[2]


def make_program(folder: Path, name: str) -> Path:
    program = folder / name
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    return program


def test_the_chosen_browser_goes_first(tmp_path):
    chosen, found = make_program(tmp_path, "mine"), make_program(tmp_path, "chromium")
    assert find_browser({"PATH": str(tmp_path)}) == found
    assert find_browser({"PATH": str(tmp_path), CHOICE: str(chosen)}) == chosen
    assert find_browser({"PATH": str(tmp_path), CHOICE: str(tmp_path / "nothing")}) is None
    assert find_browser({"PATH": str(tmp_path / "empty")}) is None


_RUN_TWICE = f"""
import os, sys, pytest
for required in ("", "1"):
    os.environ["{REQUIRED}"] = required
    print("exit code", int(pytest.main(sys.argv[1:])), flush=True)
"""


@pytest.fixture(scope="module")
def without_browser() -> list[str]:
    """What pytest says of tests in a browser where there is none: where that may be so, and where one is required."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment[CHOICE] = "/nowhere/chromium"
    command = [sys.executable, "-c", _RUN_TWICE, "-q", "-p", "no:cacheprovider", "tests/browser/test_pages.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    runs = re.findall(r".*?^exit code \d+$", done.stdout, re.DOTALL | re.MULTILINE)
    assert len(runs) == 2, done.stdout + done.stderr
    return runs


def test_without_a_browser_tests_are_skipped_with_one_clear_line(without_browser):
    said = without_browser[0]
    assert said.endswith("exit code 0"), said
    assert said.count(MISSING) == 1
    assert "failed" not in said


def test_without_a_browser_that_is_required_tests_fail(without_browser):
    said = without_browser[1]
    assert said.endswith("exit code 1"), said
    assert MISSING in said
    assert "passed" not in said.splitlines()[-2]
    assert "skipped" not in said.splitlines()[-2]


def test_what_a_change_must_pass_requires_a_browser():
    assert f"export {REQUIRED}=1" in (ROOT / ".ci" / "run").read_text()


def test_a_machine_where_nothing_may_be_installed_gets_one_line(monkeypatch, capsys):
    monkeypatch.setenv(CHOICE, "/nowhere/chromium")
    monkeypatch.setattr(chromium, "_find_rights", lambda: None)
    chromium.main()
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith(MISSING)
    assert len(said) == 2


def test_an_installation_that_fails_says_what_apt_said(monkeypatch, tmp_path, capsys):
    make_program(tmp_path, "apt-get").write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    monkeypatch.setenv(CHOICE, "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    monkeypatch.setattr(chromium, "_find_rights", list)
    chromium.main()
    assert "exit code 100: E: no network" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usefixtures("browser")
def test_where_a_browser_is_nothing_is_done(monkeypatch, capsys):
    monkeypatch.setattr(chromium, "install_browser", lambda: pytest.fail("nothing to install"))
    chromium.main()
    assert capsys.readouterr().out == ""
