"""Registry of trackers: the entry points `bdfl.trackers`, built-in and third-party, or a user's module:function.

A tracker is specified as NAME:WHERE or module:function[:WHERE]; the named function is called with WHERE.
"""

from collections.abc import Callable
from importlib.metadata import entry_points

from bdfl.errors import BdflError
from bdfl.learning.own_function import BadFunction, find_function, show_exception
from bdfl.tracking.tracker import Tracker

ENTRY_POINT_GROUP = "bdfl.trackers"
_METHODS = ("begin", "round", "finish")


class UnknownTracker(BdflError):
    """A tracker name with no match, or with several."""


def tracker_names() -> list[str]:
    """Names of all installed trackers, in alphabetical order."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP).names)


def open_tracker(choice: str) -> Tracker:
    """Open the named tracker; it writes nothing before a run begins. Raises `BdflError` with the reason."""
    name, _, where = choice.partition(":")
    found = {point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if len(found) > 1:
        raise UnknownTracker(f"tracker {name!r} is claimed by several packages: {', '.join(sorted(found))}")
    function: Callable[..., object]
    if found:
        [point] = found.values()
        function = point.load()
    else:
        attribute, _, where = where.partition(":")
        if not attribute:
            names = ", ".join(tracker_names())
            raise UnknownTracker(f"tracker {choice!r}: NAME:WHERE with a NAME of {names}, or module:function expected")
        name = f"{name}:{attribute}"
        function = find_function(name)
    return _call(name, function, where)


def _call(name: str, function: Callable[..., object], where: str) -> Tracker:
    try:
        tracker = function(where)
    except BdflError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise BadFunction(name, show_exception(error), "a tracker") from error
    missing = [method for method in _METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise BadFunction(name, f"what it returns has no {' and no '.join(missing)}", "a tracker")
    found: Tracker = tracker  # type: ignore[assignment]  # checked above
    return found
