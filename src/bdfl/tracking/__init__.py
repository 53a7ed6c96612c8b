"""Export of runs to experiment trackers: a small protocol, with writers for TensorBoard and MLflow."""

from bdfl.tracking.tracker import (
    Outcome,
    RoundScalars,
    TrackedRun,
    Tracker,
    Tracking,
    UnknownTracker,
    open_tracker,
    parameters_of,
    track_run,
    tracked_run,
    tracker_names,
)

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
