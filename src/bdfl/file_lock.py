"""A lock on a file that ends with its process, however that ends."""

import time
from typing import BinaryIO

_TRIES = 10
_WAIT_S = 0.02


def try_lock(file: BinaryIO) -> bool:
    """Whether this process has the file to itself now; true where the system has no such locks."""
    try:
        import fcntl
    except ImportError:  # not there on Windows, where this is left to people's care
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_patiently(file: BinaryIO) -> bool:
    """As `try_lock`, for a moment: whoever only asks whether a lock is held has it himself meanwhile."""
    for _ in range(_TRIES):
        if try_lock(file):
            return True
        time.sleep(_WAIT_S)
    return False
