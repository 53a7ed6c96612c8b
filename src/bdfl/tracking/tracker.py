"""The tracker protocol and the data passed to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

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
