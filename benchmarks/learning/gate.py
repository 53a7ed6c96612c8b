"""A side's end of the line to the benchmark: it plays a round when told to, says how long it took, and waits.

So all sides can live at the same time while only one of them computes.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
START, END = "start", "end"
SCHEDULE, TRAIN = "schedule", "train"  # parts of a round that a side may tell


class Gate:
    """Opens once for every round the benchmark asks for; owns this process's standard output from then on."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a framework prints must not look like a reply
        self._began_s: float | None = None

    def opens(self, phases_s: Mapping[str, float] | None = None) -> bool:
        """Ends the round under way, if any, and waits: True starts the next one, False says that it was the last.

        `phases_s` says what parts of the round took.
        """
        if self._began_s is not None:
            self._say({"seconds": self._clock() - self._began_s, "phases_s": dict(phases_s or {})})
        if sys.stdin.readline().strip() != START:
            return False
        self._began_s = self._clock()
        return True

    def close(self, accuracy: float, loss: float, versions: str, digest: str = "") -> None:
        """Says what the model that came out is worth on the test set: all sides should agree."""
        self._say({"accuracy": accuracy, "loss": loss, "versions": versions, "digest": digest})

    def _say(self, reply: Mapping[str, object]) -> None:
        self._replies.write(json.dumps(reply) + "\n")
        self._replies.flush()


def read_arguments() -> tuple[Path, str, int, int]:
    """File of the workload, kind of side, processes and threads of each: what every side is started with."""
    path, kind, processes, threads = sys.argv[1:]
    return Path(path), kind, int(processes), int(threads)
