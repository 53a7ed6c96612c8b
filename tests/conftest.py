"""Settings of all tests: the same examples every time, no clock in the verdict, and what is shared is made once."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests (`--dist loadgroup`): those that use one fixture of a module or a folder
    go to the same process, which makes it once, and go first.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        home = _shared_home(item)
        if home is not None:
            item.add_marker(pytest.mark.xdist_group(home))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _shared_home(item: pytest.Item) -> str | None:
    """The widest of the places whose lasting fixtures a test uses; none: it uses none."""
    known = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]  # no other way to ask
    used = [definitions[-1] for definitions in known]
    homes = [definition.baseid for definition in used if definition.scope != "function" and definition.baseid]
    return min(homes, key=len, default=None)
