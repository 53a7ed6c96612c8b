"""Cached size of a folder with many files, measured in the background so that readers never wait."""

import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

_EVERY_S = 15.0  # shortest interval between measurements
_SHARE = 0.01  # largest fraction of the time spent on measuring


class FolderSize:
    """Recently measured size of a folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Take the first measurement, which blocks."""
        self._folder = folder
        self._size, self._due_s = 0, math.inf
        self._lock = threading.Lock()
        self._measure()

    def read(self) -> int:
        """Return the last measurement in bytes; start a new one in the background if it is due."""
        with self._lock:
            is_due = time.monotonic() >= self._due_s
            if is_due:
                self._due_s = math.inf
        if is_due:
            threading.Thread(target=self._measure, name="size", daemon=True).start()
        return self._size

    def _measure(self) -> None:
        began_s = time.monotonic()
        self._size = folder_bytes(self._folder)
        now_s = time.monotonic()
        with self._lock:
            self._due_s = now_s + max(_EVERY_S, (now_s - began_s) / _SHARE)


def folder_bytes(folder: Path) -> int:
    """Sum up the sizes of all files in a folder, skipping files that vanish meanwhile."""
    total = 0
    pending = [os.fspath(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    with suppress(OSError):  # a temporary file, already deleted
                        total += entry.stat(follow_symlinks=False).st_size
    return total
