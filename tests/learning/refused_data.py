"""How data are refused."""

import pytest

from bdfl.learning.data import BadData


def refused_line(load):
    """What loading raises: one line that says what was expected."""
    with pytest.raises(BadData) as caught:
        load()
    line = str(caught.value)
    assert "\n" not in line
    assert ", expected " in line
    return line
