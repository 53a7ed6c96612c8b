"""Sweep files: a base scenario, the varied keys, random draws and the measures; strictly validated.

Dotted scenario keys may be quoted or not: `"radio.bandwidth_hz" = [...]` and `radio.bandwidth_hz = [...]` are equal.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from bdfl.environment import Purpose, stream
from bdfl.records import LearningRecord, RunRecord, RunSummary, summarise_run
from bdfl.scenario import Scenario, load_scenario, override_scenario, scenario_digest
from bdfl.scenario.distributions import Positive, WholePositive
from bdfl.scenario.files import find_scenario, read_toml
from bdfl.scenario.schema_learning import is_path
from bdfl.scenario.validation import (
    Annotation,
    Plain,
    ScenarioError,
    Section,
    Text,
    convert_strictly,
    refuse_value,
    toml_document,
    toml_value,
)
from bdfl.scheduling.registry import choose_scheduler, validate_choices

# Random values for the points of a sweep, each determined by the sweep's seed, the draw's number and the key.

_Scalar: TypeAlias = bool | int | float | str


class _Drawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="distribution"):
    """A distribution of a key's values."""


class Uniform(_Drawn, frozen=True, kw_only=True, tag="uniform"):
    """Uniform distribution from `low` to `high`."""

    low: float
    high: float


class LogUniform(_Drawn, frozen=True, kw_only=True, tag="log-uniform"):
    """Log-uniform distribution from `low` to `high`."""

    low: Positive
    high: Positive


class Integers(_Drawn, frozen=True, kw_only=True, tag="integers"):
    """Uniform distribution of whole numbers from `low` to `high`, both included."""

    low: int
    high: int


class Choice(_Drawn, frozen=True, kw_only=True, tag="choice"):
    """Uniform distribution over `values`."""

    values: Annotated[tuple[_Scalar, ...], Meta(min_length=1)]


Drawing: TypeAlias = Uniform | LogUniform | Integers | Choice
_DRAWING: Annotation = Drawing


def validate_drawing(data: Plain, key: str) -> Drawing:
    """Return the distribution at `key`; raise `ScenarioError` if it is not one."""
    if not isinstance(data, dict):
        raise refuse_value(key, data, 'a table such as {distribution = "uniform", low = 0.2, high = 0.8}')
    drawing: Drawing = convert_strictly(data, _DRAWING, key)
    if not isinstance(drawing, Choice) and drawing.low > drawing.high:
        raise refuse_value(f"{key}.low", drawing.low, f"at most high, which is {drawing.high!r}")
    return drawing


def draw_value(drawing: Drawing, seed: int, number: int, key: str) -> Plain:
    """Draw the value of `key` in draw `number`: independent of other draws and keys."""
    rng = stream(seed, Purpose.SWEEP, number, int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]))
    match drawing:
        case Uniform(low=low, high=high):
            return float(low + (high - low) * rng.random())
        case LogUniform(low=low, high=high):
            return float(math.exp(math.log(low) + (math.log(high) - math.log(low)) * rng.random()))
        case Integers(low=low, high=high):
            return int(rng.integers(low, high, endpoint=True))
        case Choice(values=values):
            return values[int(rng.integers(len(values)))]


# Measures of a point: numbers of a whole run, by name.


class Mode(StrEnum):
    """Computation at a point."""

    SIMULATE = "simulate"  # rounds are scheduled and their costs recorded, without learning
    RUN = "run"  # a whole run, with data, training and a chain


_PLAYED = {
    "total_delay_s": "time of all rounds (s)",
    "mean_delay_s": "mean delay of a round (s)",
    "worst_shortfall": "worst client's shortfall (share of rounds)",
    "mean_energy_use": "mean share of the energy budgets spent",
    "total_energy_j": "energy of all clients in all rounds (J)",
    "mean_selected": "clients that train in a round",
    "final_queue_mean": "mean queue at the end",
    "infeasible_rounds": "infeasible rounds",
    "mean_iterations": "iterations of the scheduler, K",
    "mean_gap": "proven gap",
}
_LEARNED = {
    "final_accuracy": "accuracy of the last model",
    "best_accuracy": "accuracy of the best round",
    "final_loss": "loss of the last model",
}
MEASURES = {Mode.SIMULATE: _PLAYED, Mode.RUN: _LEARNED | _PLAYED}  # by mode: name and description
_SUMMARISED = frozenset(RunSummary.__struct_fields__)


def measure_run(run: RunRecord, names: tuple[str, ...]) -> dict[str, float | None]:
    """Return the named measures that need no learning; None if not known."""
    summary = summarise_run(run)
    found = {name: float(getattr(summary, name)) for name in names if name in _SUMMARISED}
    if "total_energy_j" in names:
        found["total_energy_j"] = float(np.sum(run.energy_j))
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def measure_learning(learning: LearningRecord, names: tuple[str, ...]) -> dict[str, float | None]:
    """Return the named measures that need learning."""
    best, known = learning.best_round, learning.loss[np.isfinite(learning.loss)]
    found = {
        "final_accuracy": learning.final_accuracy,
        "best_accuracy": math.nan if best is None else float(learning.accuracy[best - 1]),
        "final_loss": float(known[-1]) if known.size else math.nan,
    }
    return {name: value if math.isfinite(value) else None for name, value in found.items() if name in names}


MAX_POINTS = 100_000
SCENARIO_FILE = "scenario.toml"
_REFUSED = {
    "name": "a key that changes what happens",
    "description": "a key that changes what happens",
    "seed": "seeds = 20, or a list, at the top of the file",
    "scheduler.name": 'schedulers = ["drc", "exact:tradeoff=50"] at the top of the file',
}  # keys that a sweep varies in another way
_PATHS = ("data.source", "radio.trace", "energy.trace", "availability.trace")  # relative to the sweep file

Settings: TypeAlias = tuple[tuple[str, Plain], ...]  # changes of one point to the base scenario: keys and values


class _Random(Section, frozen=True, kw_only=True):
    """Settings drawn at random."""

    count: Annotated[int, Meta(ge=0)] = 0
    seed: Annotated[int, Meta(ge=0)] = 0
    draw: Any = {}  # noqa: RUF012 (only read): dotted keys and their distributions, validated one by one


class _File(Section, frozen=True, kw_only=True):
    """Contents of a sweep file."""

    scenario: Text
    name: Text = "sweep"
    mode: Mode = Mode.SIMULATE
    rounds: WholePositive | None = None
    seeds: WholePositive | Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)] = 1
    schedulers: Annotated[tuple[Text, ...], Meta(min_length=1)] | None = None
    measures: Annotated[tuple[Text, ...], Meta(min_length=1)] | None = None
    set: Any = {}  # noqa: RUF012 (only read)
    grid: Any = {}  # noqa: RUF012 (only read)
    random: _Random = _Random()


class Origin(StrEnum):
    """Origin of a varied key."""

    GRID = "grid"
    RANDOM = "random"


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved sweep, independent of other files and of the working folder."""

    name: str
    mode: Mode
    base: Scenario
    seeds: tuple[int, ...]
    schedulers: tuple[str, ...]
    measures: tuple[str, ...]
    grid: tuple[tuple[str, tuple[Plain, ...]], ...]  # in the order of the file
    count: int  # settings drawn at random, 0: none
    random_seed: int
    random: tuple[tuple[str, Drawing], ...]

    @property
    def varied(self) -> dict[str, Origin]:
        """All varied keys, in the order of the file."""
        return {key: Origin.GRID for key, _ in self.grid} | {key: Origin.RANDOM for key, _ in self.random}

    @property
    def num_planned(self) -> int:
        """Number of points, including duplicate draws."""
        num_settings = max(self.count, 1) * math.prod(len(values) for _, values in self.grid)
        return num_settings * len(self.schedulers) * len(self.seeds)

    def settings(self) -> Iterator[Settings]:
        """Yield all settings in order: the last grid key changes fastest, and every draw meets every grid point.

        Duplicates, which draws from few values produce, are left out.
        """
        keys = [key for key, _ in self.grid]
        drawn = [
            tuple((key, draw_value(drawing, self.random_seed, number, key)) for key, drawing in self.random)
            for number in range(max(self.count, 1))
        ]
        seen: set[str] = set()
        for values in itertools.product(*(values for _, values in self.grid)):
            for chosen in drawn:
                settings = (*zip(keys, values, strict=True), *chosen)
                text = toml_value([value for _, value in settings])
                if text not in seen:
                    seen.add(text)
                    yield settings

    def digest(self) -> str:
        """SHA-256 (hex) of all that determines the results and their order; the name is excluded."""
        facts = (
            "bdfl-sweep-1",
            self.mode,
            scenario_digest(self.base),
            *(self.seeds, self.schedulers, self.measures, self.grid, self.count, self.random_seed, self.random),
        )
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def load_sweep(path: Path) -> Sweep:
    """Load the sweep in the TOML file `path`; raise `ScenarioError` at the first error.

    The base scenario is a path relative to the file, or the name of a shipped one.
    """
    try:
        data = read_toml(path, "expected a sweep in TOML")
    except OSError as error:
        raise ScenarioError(str(path), str(error.strerror).lower(), "expected a sweep in TOML") from None
    file = convert_strictly({"name": path.stem} | data, _File)
    base = _load_base(file, path.parent)
    seeds = file.seeds if isinstance(file.seeds, tuple) else tuple(base.seed + number for number in range(file.seeds))
    grid = tuple(_parse_grid(file.grid, path.parent))
    random = tuple(_parse_random(file.random))
    sweep = Sweep(
        name=file.name,
        mode=file.mode,
        base=base,
        seeds=seeds,
        schedulers=file.schedulers or (base.scheduler.name,),  # V and parameters stay the scenario's
        measures=_choose_measures(file),
        grid=grid,
        count=file.random.count,
        random_seed=file.random.seed,
        random=random,
    )
    _validate(sweep)
    return sweep


def dump_sweep(sweep: Sweep) -> str:
    """TOML text that loads as an equal sweep, beside the base scenario in `SCENARIO_FILE`."""
    document: dict[str, Plain] = {
        "name": sweep.name,
        "scenario": SCENARIO_FILE,
        "mode": sweep.mode.value,
        "seeds": sweep.seeds,
        "schedulers": sweep.schedulers,
        "measures": sweep.measures,
        "grid": dict(sweep.grid),
    }
    if sweep.random:
        drawn = {key: msgspec.to_builtins(drawing) for key, drawing in sweep.random}
        document["random"] = {"count": sweep.count, "seed": sweep.random_seed, "draw": drawn}
    return toml_document({key: value for key, value in document.items() if value != {}})


def apply_settings(scenario: Scenario, settings: Settings) -> Scenario:
    """Return the scenario with these values, validated as in a file."""
    return override_scenario(scenario, [f"{key}={toml_value(value)}" for key, value in settings])


def _load_base(file: _File, folder: Path) -> Scenario:
    beside = folder / file.scenario
    fixed = [(key, _anchor(key, value, folder)) for key, value in _flatten(file.set, "set") if _is_allowed(key, "set")]
    changes = [f"{key}={toml_value(value)}" for key, value in fixed]
    changes += [] if file.rounds is None else [f"rounds={file.rounds}"]
    return load_scenario(beside if beside.is_file() else find_scenario(file.scenario), changes)


def _choose_measures(file: _File) -> tuple[str, ...]:
    known = MEASURES[file.mode]
    chosen = tuple(known) if file.measures is None else file.measures
    for name in chosen:
        if name not in known:
            raise refuse_value("measures", name, f"some of {', '.join(known)} in mode {file.mode}")
    if len(set(chosen)) < len(chosen):
        raise ScenarioError("measures", "one given twice", "once is allowed")
    return chosen


def _parse_grid(table: Plain, folder: Path) -> Iterator[tuple[str, tuple[Plain, ...]]]:
    for key, values in _flatten(table, "grid"):
        _is_allowed(key, "grid")
        where = f"grid.{key}"
        if not isinstance(values, list) or not values:
            raise refuse_value(where, values, "a list of values, at least one")
        counts = Counter(toml_value(value) for value in values)
        text, most = counts.most_common(1)[0]
        if most > 1:
            raise ScenarioError(where, f"{text} given {most} times", "once is allowed")
        yield key, tuple(_anchor(key, value, folder) for value in values)


def _parse_random(random: _Random) -> Iterator[tuple[str, Drawing]]:
    found = list(_flatten(random.draw, "random.draw"))
    if random.count and not found:
        raise ScenarioError("random.draw", "missing", 'expected keys such as "energy.budget_j" with distributions')
    if found and not random.count:
        raise ScenarioError("random.count", "missing", "expected how many settings to draw")
    for key, value in found:
        _is_allowed(key, "random.draw")
        yield key, validate_drawing(value, f"random.draw.{key}")


def _flatten(table: Plain, key: str) -> Iterator[tuple[str, Plain]]:
    """Yield dotted keys and their values: tables are flattened, except distributions."""
    if not isinstance(table, Mapping):
        raise refuse_value(key, table, "a table of scenario keys")
    for name, value in table.items():
        if isinstance(value, Mapping) and "distribution" not in value:
            for below, inner in _flatten(value, f"{key}.{name}"):
                yield f"{name}.{below}", inner
        else:
            yield name, value


def _is_allowed(key: str, table: str) -> bool:
    """Return True; raise `ScenarioError` for a key that a sweep varies in another way."""
    if key in _REFUSED and not (table == "set" and key == "seed"):
        raise ScenarioError(f"{table}.{key}", "cannot vary", f"expected {_REFUSED[key]}")
    return True


def _anchor(key: str, value: Plain, folder: Path) -> Plain:
    """Make a path relative to the sweep file absolute; return any other value unchanged."""
    if key not in _PATHS or not isinstance(value, str) or (key == "data.source" and not is_path(value)):
        return value
    return str((folder / value).absolute())


def _validate(sweep: Sweep) -> None:
    """Raise on invalid or excessively large sweeps; points are validated when they are made."""
    validate_choices(sweep.schedulers)
    if len(set(sweep.seeds)) < len(sweep.seeds):
        raise ScenarioError("seeds", "one given twice", "once is allowed")
    both = {key for key, _ in sweep.grid} & {key for key, _ in sweep.random}
    if both:
        raise ScenarioError(f"random.draw.{min(both)}", "in the grid too", "once is allowed")
    if sweep.num_planned > MAX_POINTS:
        raise ScenarioError("sweep", f"{sweep.num_planned:,} points", f"at most {MAX_POINTS:,}: several sweeps do more")
    first = next(sweep.settings())
    for choice in sweep.schedulers:
        chosen = choose_scheduler(sweep.base, choice)
        settings = [setting.partition("=")[0] for setting in choice.partition(":")[2].split(",")]
        for key in sweep.varied:
            if key.startswith("scheduler.") and key.rpartition(".")[2] in settings:
                raise ScenarioError(key, f"varies, and {choice!r} sets it", "one of the two expected")
        apply_settings(chosen, first)  # unknown keys are reported before any work
