"""How large a folder is whose files are many: looked at now and then, by a thread of its own, so that nobody waits."""

import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

_EVERY_S = 15.0  # it is measured no more often
_SHARE = 0.01  # of the time that passes, at most, it is being measured


class FolderSize:
    """The size of a folder as it was not long ago. For any thread."""

    def __init__(self, folder: Path) -> None:
        """Measures it for the first time."""
        self._folder = folder
        self._size, self._due_s = 0, math.inf
        self._lock = threading.Lock()
        self._measure()

    def read(self) -> int:
        """In bytes, as last measured; begins to measure it again when it is time to."""
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
    """Size of all files in a folder, as far as they are still there when it is looked at them."""
    total = 0
    pending = [os.fspath(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    with suppress(OSError):  # a temporary file that is gone meanwhile
                        total += entry.stat(follow_symlinks=False).st_size
    return total
