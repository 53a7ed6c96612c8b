"""Summary of a sweep: means over seeds with 95 % intervals along one key, one line for each other setting."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from bdfl.errors import BdflError
from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.scenario.toml_text import toml_value
from bdfl.sweeps.plan import Origin
from bdfl.sweeps.table import OK, PointTable

Value: TypeAlias = bool | int | float | str

SCHEDULER = "scheduler"
MOST_LINES = 12
_FIRST = ("final_accuracy", "mean_delay_s", "worst_shortfall", "mean_energy_use")  # shown by default
_LOGARITHMIC = 20.0  # ratio of greatest to least value from which on an axis is logarithmic


class InvalidPlot(BdflError):
    """A plot that a table cannot provide: an unknown key, no points left, or too many lines."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One position on a line."""

    x: Value
    num_points: int
    measures: dict[str, Interval]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """All points with equal values of the keys that distinguish lines."""

    settings: dict[str, Value]
    places: list[Place]  # ascending, or in the order of the table if x is not numeric


class SweepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a sweep, reduced to lines."""

    name: str
    x: str
    is_numeric: bool  # whether x has an order and a distance
    is_connected: bool  # whether consecutive positions may be joined: not for random draws
    is_logarithmic: bool
    by: list[str]  # keys that distinguish lines
    pooled: list[str]  # keys that vary within a position
    measures: list[str]
    num_seeds: int
    num_failed: int
    lines: list[Line]


def summarise_points(
    table: PointTable,
    *,
    x: str | None = None,
    by: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
    where: Mapping[str, str] | None = None,
    logarithmic: bool | None = None,
) -> SweepSummary:
    """Average the points that did not fail.

    Defaults: x is the key with most values, numbers before words; every scheduler and every other grid key has its own
    lines; the measures are the most common ones.
    """
    rows = _keep_rows(table, where or {})
    columns = {key: [table.columns[key][row] for row in rows] for key in (*table.varied, SCHEDULER)}
    varying = {key: values for key, values in columns.items() if len(_distinct(values)) > 1}
    along = _choose_x(varying, table) if x is None else _known(x, columns, "x")
    lines_by = _choose_by(varying, table, along) if by is None else [_known(key, columns, "by") for key in by]
    shown = _choose_measures(table, rows) if measures is None else [_known(m, table.measures, "y") for m in measures]
    ok_rows = [row for row in rows if table.columns["status"][row] == OK]
    if not ok_rows:
        raise InvalidPlot(f"{table.name}: all {len(rows)} points failed, nothing to show")
    lines = _collect(table, ok_rows, along, lines_by, shown)
    if len(lines) > MOST_LINES:
        raise InvalidPlot(
            f"{len(lines)} lines for {', '.join(lines_by)}, at most {MOST_LINES} expected: choose with --by or --where"
        )
    values = _distinct(table.columns[along][row] for row in ok_rows)
    is_numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return SweepSummary(
        name=table.name,
        x=along,
        is_numeric=is_numeric,
        is_connected=is_numeric and table.varied.get(along) is not Origin.RANDOM,
        is_logarithmic=_is_logarithmic(values) if logarithmic is None and is_numeric else bool(logarithmic),
        by=lines_by,
        pooled=[
            key
            for key in varying
            if key != along
            and key not in lines_by
            and not (table.varied.get(key) is table.varied.get(along) is Origin.RANDOM)
        ],
        measures=list(shown),
        num_seeds=len(_distinct(table.columns["seed"][row] for row in ok_rows)),
        num_failed=len(rows) - len(ok_rows),
        lines=lines,
    )


def _keep_rows(table: PointTable, where: Mapping[str, str]) -> list[int]:
    """Return the rows with these values, written as in TOML or bare."""
    kept = list(range(table.num_rows))
    for key, text in where.items():
        values = table.columns[_known(key, [*table.varied, SCHEDULER, "seed"], "where")]
        found = [row for row in kept if text in _writings(values[row])]
        if not found:
            there = ", ".join(map(_shown, _distinct(values)[:8]))
            raise InvalidPlot(f"where: {key} is nowhere {text!r}, there are {there}")
        kept = found
    return kept


def _writings(value: Value) -> set[str]:
    number = {f"{value:g}"} if isinstance(value, (int, float)) and not isinstance(value, bool) else set()
    return {_shown(value), str(value)} | number


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else toml_value(value)


def _known(key: str, allowed: Mapping[str, object] | Sequence[str], option: str) -> str:
    if key not in allowed:
        raise InvalidPlot(f"{option}: {key!r} given, allowed: {', '.join(allowed)}")
    return key


def _distinct(values: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(values))


def _choose_x(varying: Mapping[str, Sequence[Value]], table: PointTable) -> str:
    keys = [key for key in varying if key != SCHEDULER]

    def rank(key: str) -> tuple[bool, int]:
        values = varying[key]
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return is_number, len(_distinct(values))

    return max(keys, key=rank) if keys else SCHEDULER


def _choose_by(varying: Mapping[str, Sequence[Value]], table: PointTable, along: str) -> list[str]:
    gridded = [key for key in varying if table.varied.get(key) is Origin.GRID and key != along]
    schedulers = [SCHEDULER] if SCHEDULER in varying and along != SCHEDULER else []
    return [*schedulers, *gridded]


def _choose_measures(table: PointTable, rows: Sequence[int]) -> list[str]:
    known = [name for name in table.measures if any(table.columns[name][row] is not None for row in rows)] or list(
        table.measures
    )
    return [name for name in _FIRST if name in known] or known[:3]


def _collect(
    table: PointTable, rows: Sequence[int], along: str, by: Sequence[str], measures: Sequence[str]
) -> list[Line]:
    places: dict[tuple[Value, ...], dict[Value, list[int]]] = {}
    for row in rows:
        line = tuple(table.columns[key][row] for key in by)
        places.setdefault(line, {}).setdefault(table.columns[along][row], []).append(row)
    order = _distinct(table.columns[along][row] for row in rows)
    if all(isinstance(value, (int, float)) for value in order):
        order = sorted(order, key=float)
    return [
        Line(
            settings=dict(zip(by, line, strict=True)),
            places=[_summarise(table, value, found[value], measures) for value in order if value in found],
        )
        for line, found in places.items()
    ]


def _summarise(table: PointTable, x: Value, rows: Sequence[int], measures: Sequence[str]) -> Place:
    values = {name: [table.columns[name][row] for row in rows] for name in measures}
    return Place(
        x=x,
        num_points=len(rows),
        measures={
            name: mean_interval([math.nan if value is None else value for value in found])
            for name, found in values.items()
        },
    )


def _is_logarithmic(values: Sequence[Value]) -> bool:
    numbers = [float(value) for value in values]
    return min(numbers) > 0 and max(numbers) / min(numbers) >= _LOGARITHMIC
