"""From a clone to a finished run with a report in two commands; `make newcomer` also installs everything."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from campaigns.installation.newcomer import COMMANDS, NAME, ROOT, validate_report, walk


def is_repository() -> bool:
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return shutil.which("git") is not None and subprocess.run(asked, capture_output=True).returncode == 0


@pytest.mark.skipif(not is_repository() or shutil.which("make") is None, reason="needs git, make and a repository")
def test_two_commands_lead_from_a_clone_to_a_finished_run_with_its_report(tmp_path):
    def reuse_environment(clone: Path) -> Mapping[str, str]:
        """An environment that counts as installed: this interpreter, with the sources of the clone."""
        folder = tmp_path / "environment"
        command = folder / "bin" / "bdfl"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexport PYTHONPATH={clone}/src\nexec {sys.executable} -m bdfl.cli "$@"\n')
        command.chmod(0o755)
        (command.parent / "python").symlink_to(sys.executable)
        (folder / ".installed-learn").touch()
        return {"MAKEFLAGS": f" -- VENV={folder}"}

    clean = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    steps = walk(tmp_path, clean, reuse_environment)
    validate_report(tmp_path / NAME)
    assert len(steps) == 2
    assert "report.html" in steps[-1].output
    for step in steps:
        print(f"{step.seconds:.1f} s  {step.command}")


def test_the_tutorial_begins_with_these_two_commands():
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert "\n".join(COMMANDS).format(source="ADDRESS") in tutorial
