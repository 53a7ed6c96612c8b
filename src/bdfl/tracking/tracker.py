"""The protocol of an experiment tracker, and trackers by name.

Registry of trackers: the entry points `bdfl.trackers`, built-in and third-party, or a user's module:function.

A tracker is specified as NAME:WHERE or module:function[:WHERE]; the named function is called with WHERE.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, TypeAlias

from bdfl.errors import BdflError
from bdfl.plugins import BadFunction, find_function, show_exception

# The tracker protocol and the data passed to it.

Parameter: TypeAlias = bool | int | float | str


class Outcome(StrEnum):
    """Outcome of a run, as far as its process knows."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run before its first round."""

    name: str  # among the runs of its experiment
    experiment: str  # the scenario's name, shared by related runs
    identity: str  # digest of its inputs: a run and its continuation have the same
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # by key of the scenario
    description: str = ""
    document: str = ""  # the whole scenario in TOML; empty: unknown
    is_continued: bool = False  # all rounds are reported again, including those a tracker may have already


class Tracker(Protocol):
    """A tracker of runs. Any method may raise: the run then continues without this tracker."""

    def begin(self, run: TrackedRun) -> None:
        """Start a run, before its first round."""

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """Record round 1, 2, ...: its finite metrics by name, such as `learning/accuracy`; others are left out."""

    def finish(self, outcome: Outcome, files: Sequence[Path]) -> None:
        """End the run; `files` are its output files."""


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
