"""The rounds of a run as compact numeric columns, and their downsampling for the pages.

Unknown values are NaN, an unknown proposer is `NOBODY`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from bdfl.explorer.documents import (
    FLAG_INFEASIBLE,
    ClientColumns,
    ClientRow,
    ClientSeries,
    SeriesDocument,
    Summary,
)
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

_FILL = {"client_state": OUTSIDE, "client_count": 0}
_LEAST_ROWS = 64


@dataclass(kw_only=True)
class Row:
    """One round; arrays have one entry per client known by then, NaN stands for unknown ones."""

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
    client_training_j: Values | float = np.nan
    client_upload_j: Values | float = np.nan
    client_mining_j: Values | float = np.nan
    client_budget_j: Values | float = np.nan
    client_training_s: Values | float = np.nan
    client_upload_s: Values | float = np.nan
    client_queue: Values | float = np.nan
    client_count: Values
    client_state: Values


_ROW_FIELDS = tuple(item.name for item in fields(Row))
_KINDS: Mapping[object, DTypeLike] = {float: np.float64, bool: np.uint8, int: np.int32, bytes: "S12"}
PER_ROUND: Mapping[str, DTypeLike] = {"time_s": np.float64, "accuracy": np.float64, "loss": np.float64} | {
    item.name: _KINDS[item.type] for item in fields(Row) if item.type in _KINDS
}
PER_CLIENT: Mapping[str, DTypeLike] = {
    name: {"client_count": np.int32, "client_state": np.uint8}.get(name, np.float32)
    for name in _ROW_FIELDS
    if name not in PER_ROUND
}


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

    def known(self, name: str, round: int) -> float | None:
        """Return a value of a round; None if unknown."""
        found = float(self[name][round - 1]) if 1 <= round <= self.num_rows else math.nan
        return found if math.isfinite(found) else None

    def append(self, row: Row) -> None:
        """Append the next round; new clients are `OUTSIDE` in earlier rounds."""
        self._widen(len(row.client_state))
        if self.num_rows == len(self._arrays["delay_s"]):
            for name, old in self._arrays.items():
                self._arrays[name] = np.zeros((max(_LEAST_ROWS, 2 * self.num_rows), *old.shape[1:]), old.dtype)
                self._arrays[name][: len(old)] = old
        place = self.num_rows
        before_s = self._arrays["time_s"][place - 1] if place else 0.0
        for name in _ROW_FIELDS:
            self._arrays[name][place] = getattr(row, name)
        self._arrays["accuracy"][place] = self._arrays["loss"][place] = np.nan
        self._arrays["time_s"][place] = before_s + _known(row.delay_s)
        self.num_rows += 1

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


# Downsampled time series of a run: single rounds if they fit, else buckets of equally many rounds.

MAX_POINTS = 4000
_DIGITS = 6
_TIME_DIGITS = 10
_CLIENT_DIGITS = 4
_ROWS_AT_A_TIME = 64


class Window:
    """Rounds `first` to `last` of some columns, in rows of `bucket` rounds each."""

    def __init__(self, columns: Columns, first: int, last: int, points: int) -> None:
        first, last = max(first, 1), min(last, columns.num_rows)
        self.first, self.last = first, max(last, first - 1)
        self._columns = columns
        num_rounds = self.last - self.first + 1
        self.bucket = max(1, math.ceil(num_rounds / max(1, points)))
        self._starts = np.arange(0, num_rounds, self.bucket)
        self._ends = np.minimum(self._starts + self.bucket, num_rounds) - 1

    @property
    def rounds(self) -> list[int]:
        """Last round of each row."""
        found: list[int] = (self._ends + self.first).tolist()
        return found

    def values(self, name: str) -> Values:
        """Return a column without downsampling."""
        return self._columns[name][self.first - 1 : self.last]

    def means(self, values: Values) -> Values:
        """Return the mean of the known values of each row; NaN if there are none."""
        if self.bucket == 1:
            return values
        known = np.isfinite(values)
        sums = np.add.reduceat(np.where(known, values, 0.0).astype(np.float64), self._starts, axis=0)
        counts = np.add.reduceat(known.astype(np.int64), self._starts, axis=0)
        with np.errstate(invalid="ignore"):
            found: Values = np.where(counts > 0, sums / counts, np.nan)
        return found

    def ends(self, values: Values) -> Values:
        """Return the last value of each row."""
        found: Values = values[self._ends]
        return found

    def latest(self, values: Values) -> Values:
        """Return the last known value of each row; NaN if there is none."""
        if self.bucket == 1:
            return values
        places = np.where(np.isfinite(values), np.arange(len(values)), -1)
        last = np.maximum.reduceat(places, self._starts)
        found: Values = np.where(last >= self._starts, values[np.maximum(last, 0)], np.nan)
        return found

    def merge(self, how: np.ufunc, values: Values) -> Values:
        """Reduce the values of each row by a ufunc."""
        if self.bucket == 1:
            return values
        found: Values = how.reduceat(values, self._starts)
        return found


def read_series(columns: Columns, first: int, last: int, points: int) -> SeriesDocument:
    """Return rounds `first` to `last` in at most `points` rows."""
    window = Window(columns, first, last, points)
    is_single = window.bucket == 1

    def means(name: str, digits: int = _DIGITS) -> list[float | None]:
        return rounded(window.means(window.values(name)), digits)

    def counts(how: np.ufunc, name: str) -> list[int]:
        found: list[int] = window.merge(how, window.values(name).astype(np.int64)).tolist()
        return found

    delay_s, is_measured = window.values("delay_s"), window.values("is_measured")
    return SeriesDocument(
        first=window.first,
        last=window.last,
        num_rounds=columns.num_rows,
        bucket=window.bucket,
        round=window.rounds,
        time_s=rounded(window.ends(window.values("time_s")), _TIME_DIGITS),
        is_measured=2 * int(is_measured.sum(dtype=np.int64)) > len(is_measured),
        delay_s=means("delay_s"),
        delay_min_s=None if is_single else rounded(window.merge(np.fmin, delay_s), _DIGITS),
        delay_max_s=None if is_single else rounded(window.merge(np.fmax, delay_s), _DIGITS),
        training_s=means("training_s"),
        upload_s=means("upload_s"),
        mining_s=means("mining_s"),
        rest_s=means("rest_s"),
        accuracy=rounded(window.latest(window.values("accuracy")), _DIGITS),
        loss=rounded(window.latest(window.values("loss")), _DIGITS),
        num_updates=means("num_updates"),
        num_selected=means("num_selected"),
        proposer=[None if one == NOBODY else one for one in window.values("proposer").tolist()]
        if is_single
        else [None] * len(window.rounds),
        attempt=counts(np.maximum, "attempt"),
        is_empty=counts(np.add, "is_empty"),
        flags=counts(np.bitwise_or, "flags"),
        digest=[one.decode("ascii") or None for one in window.values("digest").tolist()] if is_single else None,
        mean_queue=means("mean_queue"),
        objective=means("objective"),
        clients=ClientColumns(
            energy_share=encode_rows(window.means(energy_shares(window)), _CLIENT_DIGITS),
            queue=encode_rows(window.ends(window.values("client_queue")), _CLIENT_DIGITS),
            count=encode_rows(window.ends(window.values("client_count"))),
            state=[row.tobytes().decode("ascii") for row in window.values("client_state")] if is_single else None,
        ),
    )


def read_client_series(columns: Columns, client: int, points: int) -> ClientSeries:
    """Return all rounds of one client in at most `points` rows."""
    window = Window(columns, 1, columns.num_rows, points)
    is_single = window.bucket == 1

    def of(name: str) -> Values:
        values: Values = window.values(f"client_{name}")[:, client]
        return values

    def means(values: Values) -> list[float | None]:
        return rounded(window.means(values), _CLIENT_DIGITS)

    parts = [of("training_j"), of("upload_j"), of("mining_j")]
    return ClientSeries(
        bucket=window.bucket,
        round=window.rounds,
        time_s=rounded(window.ends(window.values("time_s")), _TIME_DIGITS),
        state=np.ascontiguousarray(of("state")).tobytes().decode("ascii") if is_single else None,
        training_j=means(parts[0]),
        upload_j=means(parts[1]),
        mining_j=means(parts[2]),
        energy_j=means(parts[0] + parts[1] + parts[2]),
        budget_j=means(of("budget_j")),
        queue=rounded(window.ends(of("queue")), _CLIENT_DIGITS),
        training_s=means(of("training_s")),
        upload_s=means(of("upload_s")),
        count=window.ends(of("count")).tolist(),
    )


def energy_shares(window: Window) -> Values:
    """Return energy over budget of every client in every round; NaN without a budget."""
    spent_j = window.values("client_training_j") + window.values("client_upload_j") + window.values("client_mining_j")
    budget_j = window.values("client_budget_j")
    shares: Values = np.divide(spent_j, budget_j, out=np.full_like(spent_j, np.nan), where=budget_j > 0)
    return shares


def summarise(columns: Columns, clients: Sequence[ClientRow], best_round: int | None) -> Summary:
    """Summarise a run in a few numbers."""
    num_rounds = columns.num_rows
    accuracy = columns["accuracy"]
    known = np.flatnonzero(np.isfinite(accuracy))
    took_place = (columns["flags"] & FLAG_INFEASIBLE == 0) & np.isfinite(columns["delay_s"])
    delay_s = columns["delay_s"][took_place]
    shares = energy_shares(Window(columns, 1, num_rounds, num_rounds))[took_place]
    shares = shares[np.isfinite(shares)]
    return Summary(
        accuracy=float(accuracy[known[-1]]) if known.size else None,
        best_accuracy=None if best_round is None else float(accuracy[best_round - 1]),
        best_round=best_round,
        total_s=float(columns["time_s"][-1]) if num_rounds else 0.0,
        mean_delay_s=float(np.mean(delay_s)) if delay_s.size else None,
        worst_shortfall=_worst_shortfall(columns, clients),
        energy_use=float(np.mean(shares, dtype=np.float64)) if shares.size else None,
    )


def _worst_shortfall(columns: Columns, clients: Sequence[ClientRow]) -> float | None:
    """Return max_i (beta_i - share_i), at least 0; the share is over the client's rounds as a member."""
    num_rounds = columns.num_rows
    if not num_rounds:
        return None
    counts = columns["client_count"][-1]
    worst = 0.0
    for one in clients:
        num_member = member_rounds(one, num_rounds)
        if num_member and one.client < len(counts):
            worst = max(worst, one.rate - int(counts[one.client]) / num_member)
    return worst


def member_rounds(client: ClientRow, num_rounds: int) -> int:
    """Return in how many of the first `num_rounds` rounds a client was a member."""
    last = num_rounds if client.until is None else min(client.until, num_rounds)
    return max(0, last - client.since + 1)


def rounded(values: Values, digits: int) -> list[float | None]:
    """Return the values with `digits` significant digits; NaN becomes null in JSON."""
    found: list[float | None] = _round(values, digits).tolist()
    return found


def encode_rows(values: Values, digits: int | None = None) -> msgspec.Raw:
    """Encode a table as JSON in parts: as Python objects it would need twenty times its size."""
    parts = []
    for begin in range(0, len(values), _ROWS_AT_A_TIME):
        some = values[begin : begin + _ROWS_AT_A_TIME]
        parts.append(msgspec.json.encode((some if digits is None else _round(some, digits)).tolist())[1:-1])
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def _round(values: Values, digits: int) -> NDArray[np.float64]:
    """Round to `digits` significant decimal digits, so that the text is short."""
    wide = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        places = digits - 1 - np.floor(np.log10(np.abs(wide)))
        places = np.where(np.isfinite(places), np.clip(places, -300, 300), 0.0)
        up, down = 10.0 ** np.maximum(places, 0.0), 10.0 ** np.maximum(-places, 0.0)
        return np.where(wide == 0, 0.0, np.rint(wide / down * up) / up * down)
