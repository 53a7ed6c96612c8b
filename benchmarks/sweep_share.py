"""Where the time of a sweep goes: into its points, or into sending them about. Both engines side by side."""

import hashlib
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bdfl.sweeps.executors import Executor, open_local_executor, open_ray_executor
from bdfl.sweeps.plan import Sweep, load_sweep
from bdfl.sweeps.results import POINTS_FILE, SweepFolder, open_sweep_folder
from bdfl.sweeps.runner import run_sweep
from benchmarks.results import Result, make_result

_WORKERS = 2
_SWEEP = """
scenario = "paper-cifar10"
rounds = {rounds}
seeds = {seeds}
schedulers = ["drc", "exact:tradeoff=50"]

[grid]
"radio.bandwidth_hz" = [90e3, 180e3, 270e3, 360e3, 450e3]
"energy.budget_j" = [0.3, 0.4, 0.6, 0.8, 1.0]
"""
_NOTES = (
    "A delay-only sweep of `paper-cifar10`: 5 bandwidths x 5 budgets x 2 schedulers x seeds, by 2 workers. `wall s` is"
    " everything: starting the workers (and Ray), planning, sending, journal and table.",
    "Shares are of wall x workers. `in points` is wall-clock time inside the computation of points: draws, scheduler,"
    " cost model, queues, records and measures. `cpu in points` is the same in CPU time, which other processes cannot"
    " inflate; `solver` is that without the draws: the scheduler, and the cost model that judges and records what it"
    " decides; `scheduler alone` is only the time inside the scheduler's function.",
    "`steady` leaves the start of the workers out of the wall time: the share in a sweep that is long.",
)


@dataclass(frozen=True)
class ShareRow:
    """One engine."""

    engine: str
    points: int
    rounds: int
    wall_s: float
    in_points_percent: float
    cpu_in_points_percent: float
    solver_percent: float
    scheduler_alone_percent: float
    steady_percent: float
    point_ms: float  # mean CPU time of one
    table: str  # first digits of the table's SHA-256: the same for all


def measure_sweep(*, quick: bool, report: Callable[[str], None]) -> list[Result]:
    """A sweep of 1,000 points (quick: 100) by every engine."""
    text = _SWEEP.format(rounds=20 if quick else 100, seeds=2 if quick else 20)
    engines: dict[str, Callable[[], AbstractContextManager[Executor]]] = {
        "local": partial(open_local_executor, _WORKERS),
        "ray": partial(open_ray_executor, None, _WORKERS, with_torch=False),
    }
    rows = []
    for name, open_executor in engines.items():
        report(f"sweep: engine {name}")
        with tempfile.TemporaryDirectory() as path:
            file = Path(path) / "bench.toml"
            file.write_text(text, encoding="utf-8")
            rows.append(_measure(name, load_sweep(file), open_executor, Path(path) / "out"))
    if len({row.table for row in rows}) != 1:
        raise RuntimeError("the engines' tables differ")
    return [make_result("sweep", "bdfl sweep: where the workers' time goes", rows, _NOTES)]


def _measure(
    name: str, sweep: Sweep, open_executor: Callable[[], AbstractContextManager[Executor]], path: Path
) -> ShareRow:
    began_s = time.perf_counter()
    with open_sweep_folder(path, sweep) as folder, open_executor() as executor:
        outcome = run_sweep(sweep, folder, executor)
        times = _times(folder)
    wall_s = time.perf_counter() - began_s

    def percent(spent_s: float, of_s: float = wall_s) -> float:
        return 100.0 * spent_s / (of_s * _WORKERS)

    return ShareRow(
        engine=name,
        points=outcome.num_points,
        rounds=sweep.base.rounds,
        wall_s=wall_s,
        in_points_percent=percent(times["wall_s"]),
        cpu_in_points_percent=percent(times["cpu_s"]),
        solver_percent=percent(times["cpu_s"] - times["draws_s"]),
        scheduler_alone_percent=percent(times["scheduler_s"]),
        steady_percent=percent(times["wall_s"], outcome.wall_s),
        point_ms=1e3 * times["cpu_s"] / outcome.num_points,
        table=hashlib.sha256((path / POINTS_FILE).read_bytes()).hexdigest()[:12],
    )


def _times(folder: SweepFolder) -> dict[str, float]:
    """Sums over all points, by the names of `PointTimes`."""
    rows = list(folder.done.values())
    return {name: sum(getattr(row.times, name) for row in rows) for name in rows[0].times.__struct_fields__}
