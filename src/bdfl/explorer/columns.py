"""The rounds of a run as compact numeric columns.

Unknown values are NaN, an unknown proposer is `NOBODY`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bdfl.records import NOBODY

Values: TypeAlias = NDArray[Any]

# State of a client in a round, one character each.
IDLE = ord(".")  # eligible, not scheduled
DELIVERED = ord("s")
DECLINED = ord("d")  # trained and declined to give an update
MISSED = ord("m")  # scheduled, no update received
RESTING = ord("r")  # not eligible: no report, unreachable, or in back-off
OUTSIDE = ord("-")  # not a member
UNKNOWN = ord("?")  # the block cannot be read

PER_ROUND: Mapping[str, DTypeLike] = {
    "time_s": np.float64,
    "delay_s": np.float64,
    "training_s": np.float64,
    "upload_s": np.float64,
    "mining_s": np.float64,
    "rest_s": np.float64,
    "is_measured": np.uint8,
    "accuracy": np.float64,
    "loss": np.float64,
    "num_updates": np.int32,
    "num_selected": np.int32,
    "proposer": np.int32,
    "attempt": np.int32,
    "is_empty": np.uint8,
    "flags": np.uint8,
    "digest": "S12",
    "mean_queue": np.float64,
    "objective": np.float64,
}
PER_CLIENT: Mapping[str, DTypeLike] = {
    "client_training_j": np.float32,
    "client_upload_j": np.float32,
    "client_mining_j": np.float32,
    "client_budget_j": np.float32,
    "client_training_s": np.float32,
    "client_upload_s": np.float32,
    "client_queue": np.float32,
    "client_count": np.int32,
    "client_state": np.uint8,
}
_FILL = {"client_state": OUTSIDE, "client_count": 0}
_LEAST_ROWS = 64


@dataclass(kw_only=True)
class Row:
    """One round; arrays have one entry per client known by then."""

    delay_s: float = np.nan
    training_s: float = np.nan  # of the slowest client
    upload_s: float = np.nan
    mining_s: float = np.nan
    rest_s: float = np.nan
    is_measured: bool = False
    num_updates: int = 0
    num_selected: int = 0
    proposer: int = NOBODY
    attempt: int = 0
    is_empty: bool = False
    flags: int = 0
    digest: bytes = b""
    mean_queue: float = np.nan
    objective: float = np.nan
    client_training_j: Values
    client_upload_j: Values
    client_mining_j: Values
    client_budget_j: Values
    client_training_s: Values
    client_upload_s: Values
    client_queue: Values
    client_count: Values
    client_state: Values


_ROW_FIELDS = tuple(item.name for item in fields(Row))


class Columns:
    """Rounds 1, 2, ... of a run; `columns["delay_s"]` has one value per round, `["client_queue"]` one row per round."""

    def __init__(self, num_clients: int) -> None:
        self.num_rows = 0
        self.num_clients = num_clients
        self._arrays: dict[str, Values] = {name: np.zeros(0, kind) for name, kind in PER_ROUND.items()}
        self._arrays |= {name: np.zeros((0, num_clients), kind) for name, kind in PER_CLIENT.items()}

    @classmethod
    def of(cls, arrays: Mapping[str, Values]) -> "Columns":
        """Return read-only columns over existing arrays."""
        found = cls(arrays["client_queue"].shape[1])
        found._arrays = dict(arrays)
        found.num_rows = len(arrays["delay_s"])
        return found

    def __getitem__(self, name: str) -> Values:
        return self._arrays[name][: self.num_rows]

    def append(self, row: Row) -> None:
        """Append the next round; new clients are `OUTSIDE` in earlier rounds."""
        self._widen(len(row.client_state))
        if self.num_rows == len(self._arrays["delay_s"]):
            self._lengthen(max(_LEAST_ROWS, 2 * self.num_rows))
        place = self.num_rows
        before_s = self._arrays["time_s"][place - 1] if place else 0.0
        for name in _ROW_FIELDS:
            self._arrays[name][place] = getattr(row, name)
        self._arrays["accuracy"][place] = self._arrays["loss"][place] = np.nan
        self._arrays["time_s"][place] = before_s + _known(row.delay_s)
        self.num_rows += 1

    def learn(self, place: int, accuracy: float, loss: float) -> None:
        """Set accuracy and loss of the model after the round at `place` (from 0)."""
        self._arrays["accuracy"][place] = accuracy
        self._arrays["loss"][place] = loss

    def measure(self, place: int, training_s: float, upload_s: float, mining_s: float, rest_s: float) -> None:
        """Set the measured times of the round at `place` (from 0); the ends of later rounds shift accordingly."""
        arrays = self._arrays
        took_s = training_s + upload_s + mining_s + rest_s
        more_s = took_s - _known(float(arrays["delay_s"][place]))
        arrays["training_s"][place], arrays["upload_s"][place] = training_s, upload_s
        arrays["mining_s"][place], arrays["rest_s"][place] = mining_s, rest_s
        arrays["delay_s"][place] = took_s
        arrays["is_measured"][place] = True
        arrays["time_s"][place : self.num_rows] += more_s

    def _lengthen(self, num_rows: int) -> None:
        for name, old in self._arrays.items():
            new = np.zeros((num_rows, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            self._arrays[name] = new

    def _widen(self, num_clients: int) -> None:
        if num_clients <= self.num_clients:
            return
        for name in PER_CLIENT:
            old = self._arrays[name]
            new = np.full((len(old), num_clients), _FILL.get(name, np.nan), old.dtype)
            new[:, : self.num_clients] = old
            self._arrays[name] = new
        self.num_clients = num_clients


def _known(value: float) -> float:
    return value if np.isfinite(value) else 0.0
