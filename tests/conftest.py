"""Settings of all tests: the same examples every time, no clock in the verdict, and pictures of few points."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="module")
def coarse_pictures():
    """Pictures are drawn and saved as ever, of fewer points and in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdfl.report.style.DPI", 40)
        yield
