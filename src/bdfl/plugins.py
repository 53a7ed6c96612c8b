"""User functions by the name module:function."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches

from bdfl.errors import Unexpected, one_line


class BadFunction(Unexpected):
    """A user function that does not exist or fails."""


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Make modules of the working folder importable inside, as for a script in that folder."""
    here = os.getcwd()
    sys.path.insert(0, here)
    invalidate_caches()  # a module may have been written since the last import
    try:
        yield
    finally:
        if here in sys.path:  # unless the imported code removed it
            sys.path.remove(here)


def find_function(name: str) -> Callable[..., object]:
    """Load the function module:function, also from the working folder; raise `BadFunction`."""
    module_name, _, attribute = name.partition(":")
    with importing_from_here():
        try:
            module = import_module(module_name)
        except Exception as error:  # a user's module may raise anything
            raise BadFunction(name, show_exception(error), f"a module {module_name} that can be imported") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        found = f"no {attribute} in module {module_name}" if function is None else f"{attribute} is no function"
        raise BadFunction(name, found, "a function of that name")
    found_function: Callable[..., object] = function
    return found_function


def show_exception(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
