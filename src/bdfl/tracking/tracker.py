"""What a tracker is, and what it is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

Parameter: TypeAlias = bool | int | float | str


class Outcome(StrEnum):
    """How a run ended, as far as its process knows."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run before its first round."""

    name: str  # among the runs of its experiment
    experiment: str  # what runs that belong together share: the scenario's name
    identity: str  # digest of what it rests on: a run and its continuation have the same
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # by key of the scenario
    description: str = ""
    document: str = ""  # the whole scenario in TOML; empty: not known
    is_continued: bool = False  # all rounds are told again, those that a tracker may have had before too


class Tracker(Protocol):
    """Whoever wants to know. Every method may raise: the run goes on without this tracker then."""

    def begin(self, run: TrackedRun) -> None:
        """Before the first round."""

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """After round 1, 2, ...: its finite numbers by name, such as `learning/accuracy`; others are left out."""

    def finish(self, outcome: Outcome, files: Sequence[Path]) -> None:
        """After the last one; `files` are what the run leaves for people to look at."""
