"""The documentation site, built as `make site` builds it, once for all tests that look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.once import make_once

ROOT = Path(__file__).parents[1]


def build_site(folder: Path) -> None:
    """Writes the site into `folder`; a warning of any kind is a failure (with --quiet it would not even count)."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr


def find_site(factory: pytest.TempPathFactory) -> Path:
    return make_once(factory, "site", build_site)
