"""A lock on a file that ends with its process, however that ends."""

from typing import BinaryIO


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
