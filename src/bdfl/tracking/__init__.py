"""Export of runs to experiment trackers: a small protocol, with writers for TensorBoard and MLflow."""

from bdfl.tracking.choosing import UnknownTracker, open_tracker, tracker_names
from bdfl.tracking.scalars import RoundScalars, parameters_of, tracked_run
from bdfl.tracking.telling import Tracking, track_run
from bdfl.tracking.tracker import Outcome, TrackedRun, Tracker

__all__ = [
    "Outcome",
    "RoundScalars",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "UnknownTracker",
    "open_tracker",
    "parameters_of",
    "track_run",
    "tracked_run",
    "tracker_names",
]
