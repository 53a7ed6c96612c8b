"""Where commands are tried."""

import pytest


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Commands write into the current folder: a new one for each test, and tables of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
