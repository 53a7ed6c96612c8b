"""Downsampled time series of a run: single rounds if they fit, else buckets of equally many rounds."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.explorer.columns import Columns, Values
from bdfl.explorer.documents import (
    FLAG_INFEASIBLE,
    ClientColumns,
    ClientRow,
    ClientStory,
    StoryDocument,
    Summary,
)
from bdfl.records import NOBODY

MAX_POINTS = 4000
_DIGITS = 6
_TIME_DIGITS = 10
_CLIENT_DIGITS = 4
_ROWS_AT_A_TIME = 64
_NOTHING = msgspec.Raw(b"[]")


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
        found: Values = how.reduceat(values, self._starts)
        return found


def tell_story(columns: Columns, first: int, last: int, points: int) -> StoryDocument:
    """Return rounds `first` to `last` in at most `points` rows."""
    window = Window(columns, first, last, points)
    is_single = window.bucket == 1
    if window.last < window.first:
        return _empty_story(columns, window)

    def means(name: str, digits: int = _DIGITS) -> list[float | None]:
        return rounded(window.means(window.values(name)), digits)

    def counts(how: np.ufunc, name: str) -> list[int]:
        found: list[int] = window.merge(how, window.values(name).astype(np.int64)).tolist()
        return found

    delay_s = window.values("delay_s")
    return StoryDocument(
        first=window.first,
        last=window.last,
        num_rounds=columns.num_rows,
        bucket=window.bucket,
        round=window.rounds,
        time_s=rounded(window.ends(window.values("time_s")), _TIME_DIGITS),
        is_measured=bool(np.mean(window.values("is_measured")) > 0.5),
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
        proposer=_proposers(window.values("proposer")) if is_single else [None] * len(window.rounds),
        attempt=counts(np.maximum, "attempt"),
        is_empty=counts(np.add, "is_empty"),
        flags=counts(np.bitwise_or, "flags"),
        digest=_digests(window.values("digest")) if is_single else None,
        mean_queue=means("mean_queue"),
        objective=means("objective"),
        clients=ClientColumns(
            energy_share=encode_rows(window.means(energy_shares(window)), _CLIENT_DIGITS),
            queue=encode_rows(window.ends(window.values("client_queue")), _CLIENT_DIGITS),
            count=encode_rows(window.ends(window.values("client_count"))),
            state=_states(window.values("client_state")) if is_single else None,
        ),
    )


def _empty_story(columns: Columns, window: Window) -> StoryDocument:
    return StoryDocument(
        first=window.first,
        last=window.last,
        num_rounds=columns.num_rows,
        bucket=1,
        round=[],
        time_s=[],
        is_measured=False,
        delay_s=[],
        delay_min_s=None,
        delay_max_s=None,
        training_s=[],
        upload_s=[],
        mining_s=[],
        rest_s=[],
        accuracy=[],
        loss=[],
        num_updates=[],
        num_selected=[],
        proposer=[],
        attempt=[],
        is_empty=[],
        flags=[],
        digest=[],
        mean_queue=[],
        objective=[],
        clients=ClientColumns(energy_share=_NOTHING, queue=_NOTHING, count=_NOTHING, state=[]),
    )


def tell_client(columns: Columns, client: int, points: int) -> ClientStory:
    """Return all rounds of one client in at most `points` rows."""
    window = Window(columns, 1, columns.num_rows, points)
    is_single = window.bucket == 1

    def of(name: str) -> Values:
        values: Values = window.values(f"client_{name}")[:, client]
        return values

    def means(values: Values) -> list[float | None]:
        return rounded(window.means(values), _CLIENT_DIGITS)

    if not columns.num_rows:
        return ClientStory(
            bucket=1,
            round=[],
            time_s=[],
            state="",
            training_j=[],
            upload_j=[],
            mining_j=[],
            energy_j=[],
            budget_j=[],
            queue=[],
            training_s=[],
            upload_s=[],
            count=[],
        )
    parts = [of("training_j"), of("upload_j"), of("mining_j")]
    return ClientStory(
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
    energy_use = None
    if num_rounds:
        shares = energy_shares(Window(columns, 1, num_rounds, num_rounds))[took_place]
        shares = shares[np.isfinite(shares)]
        energy_use = float(np.mean(shares, dtype=np.float64)) if shares.size else None
    return Summary(
        accuracy=float(accuracy[known[-1]]) if known.size else None,
        best_accuracy=None if best_round is None else float(accuracy[best_round - 1]),
        best_round=best_round,
        total_s=float(columns["time_s"][-1]) if num_rounds else 0.0,
        mean_delay_s=float(np.mean(delay_s)) if delay_s.size else None,
        worst_shortfall=_worst_shortfall(columns, clients),
        energy_use=energy_use,
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


def _proposers(values: Values) -> list[int | None]:
    return [None if value == NOBODY else value for value in values.tolist()]


def _digests(values: Values) -> list[str | None]:
    return [value.decode("ascii") or None for value in values.tolist()]


def _states(values: Values) -> list[str]:
    return [row.tobytes().decode("ascii") for row in values]
