"""Settings of all tests: the same examples every time, no clock in the verdict, and pictures of few points."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Files that take minutes, most of it waiting: begun first, so that no worker is left alone with one at the end.
LONG = ("test_three_machines.py", "test_environments.py", "test_quickstart.py", "test_hostile.py", "test_ray.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="module")
def coarse_pictures():
    """Pictures are drawn and saved as ever, of fewer points and in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdfl.report.style.DPI", 40)
        yield
