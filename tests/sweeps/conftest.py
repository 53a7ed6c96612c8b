"""Small sweeps."""

import pytest

from bdfl.sweeps.executors import open_local_executor
from bdfl.sweeps.plan import load_sweep
from bdfl.sweeps.results import POINTS_FILE, open_sweep_folder
from bdfl.sweeps.runner import run_sweep
from tests.sweeps.small_sweeps import SMALL


@pytest.fixture
def write_sweep(tmp_path):
    """A function that writes a sweep file; its path."""

    def write(text=SMALL, name="small.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def make_sweep(write_sweep):
    """A function that loads a sweep from text."""
    return lambda text=SMALL: load_sweep(write_sweep(text))


@pytest.fixture
def play_sweep():
    """A function that runs a sweep in a folder: how it ended, and the bytes of its table."""

    def run(sweep, path, *, workers=1, retries=2, on_progress=None):
        with open_sweep_folder(path, sweep) as folder, open_local_executor(workers) as executor:
            outcome = run_sweep(sweep, folder, executor, retries=retries, on_progress=on_progress)
        return outcome, (path / POINTS_FILE).read_bytes()

    return run
