"""Long-running campaigns that test this code base, run by hand and not part of the installed package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).parents[1]


@contextmanager
def importable() -> Iterator[None]:
    """Let child processes import this package while the context is open."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(_ROOT) if not before else f"{_ROOT}{os.pathsep}{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
