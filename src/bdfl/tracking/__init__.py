"""Export of runs to experiment trackers: a small protocol, with writers for TensorBoard and MLflow."""

from bdfl.tracking.tracker import (
    Outcome as Outcome,
    TrackedRun as TrackedRun,
    Tracker as Tracker,
    Tracking as Tracking,
    open_tracker as open_tracker,
    track_run as track_run,
    tracked_run as tracked_run,
)
