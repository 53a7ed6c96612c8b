"""What is dear to make and only looked at: made once for all processes that run tests."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of that name which `make` has filled, here or in another process of the same run of the tests."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    shared.mkdir(exist_ok=True)
    folder, is_made = shared / "made", shared / "is-made"
    with (shared / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not is_made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            is_made.touch()
    return folder
