"""Every page shows what it is about."""

import pytest


@pytest.mark.parametrize("path", ["/"])
def test_every_page_is_filled(look, explorer, path):
    look(explorer.origin).open(path)
