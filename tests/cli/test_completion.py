"""A real bash completes commands, options and scenarios, after the one command that sets it up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash")

# What bash itself does on TAB: fill COMP_WORDS, call the function that was registered, read COMPREPLY.
COMPLETE = """
press_tab() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
  registered=$(complete -p bdfl); registered=${registered##*-F }
  COMPREPLY=(); "${registered%% *}" bdfl
  echo "${COMPREPLY[*]}"
}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with `bdfl` on the path, in which completion was installed from a bash."""
    home = tmp_path_factory.mktemp("home")
    command = home / "bin" / "bdfl"
    command.parent.mkdir()
    start = "import sys; sys.argv[0] = 'bdfl'; from bdfl.cli import main; main()"  # as the installed script does
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    command.chmod(0o755)
    done = in_bash(home, "bdfl --install-completion; true")  # `true`: bash stays, and is the shell that is found
    assert "completion installed in" in done
    return home


def in_bash(home: Path, script: str) -> str:
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    assert BASH is not None
    done = subprocess.run([BASH, "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_options_and_scenarios_are_completed(home: Path) -> None:
    script = f". {home}/.bashrc\n{COMPLETE}\npress_tab bdfl chain ver\n"
    script += "press_tab bdfl run quick\npress_tab bdfl run quickstart --sched"
    found = [line.split() for line in in_bash(home, script).splitlines()]
    assert found == [["verify"], ["quickstart"], ["--scheduler"]]
