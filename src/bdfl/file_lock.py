"""An advisory file lock (flock) that the system releases when its process ends."""

import time
from typing import BinaryIO

_TRIES = 10
_WAIT_S = 0.02


def try_lock(file: BinaryIO) -> bool:
    """Take the exclusive lock without waiting and return whether that succeeded; always true without `fcntl`."""
    try:
        import fcntl
    except ImportError:  # Windows: operators must not share the file
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_patiently(file: BinaryIO) -> bool:
    """Retry `try_lock` for a moment: a process that only tests the lock holds it meanwhile."""
    for _ in range(_TRIES):
        if try_lock(file):
            return True
        time.sleep(_WAIT_S)
    return False
