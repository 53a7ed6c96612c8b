"""The runner of a sweep: adaptive batches, retries of failures, and a journal of completed points."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bdfl.sweeps.executors import Executor, Lost
from bdfl.sweeps.plan import Sweep
from bdfl.sweeps.points import NO_TIME, Batch, Group, PointResult, group_points, list_points
from bdfl.sweeps.results import POINTS_FILE, TIMES_FILE, Done, SweepFolder, write_points, write_times

RETRIES = 2
LOST_LINE = "the process that computed it ended by itself (killed, or out of memory)"
_BATCH_S = 0.5  # target duration of a batch: makes the cost of sending negligible

Progress = Callable[[int, int], None]  # points done, points in all


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """Summary of a sweep's execution."""

    num_points: int
    num_computed: int  # now; the others were done before
    num_lost: int  # batches whose process or node died, and that were resubmitted
    failed: list[Done]  # points without values, in order
    engine: str
    num_workers: int
    wall_s: float  # from the first batch to the last
    busy_s: float  # inside points, summed over workers

    @property
    def busy_share(self) -> float:
        """Share of the workers' time spent on points; NaN if there was nothing to compute."""
        return self.busy_s / (self.wall_s * self.num_workers) if self.num_computed else float("nan")


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    executor: Executor,
    *,
    retries: int = RETRIES,
    on_progress: Progress | None = None,
) -> SweepOutcome:
    """Compute the points missing in the folder, and write the table; points that failed before are retried."""
    began_s = time.monotonic()
    points = list_points(sweep)
    missing = [point for point in points if point.id not in folder.done or folder.done[point.id].error is not None]
    work = _Work(group_points(sweep, missing), folder, executor, retries)
    num_known = len(points) - len(missing)
    while work.is_left:
        work.go_on()
        if on_progress is not None:
            on_progress(num_known + work.num_settled, len(points))
    wall_s = time.monotonic() - began_s
    write_points(sweep, points, folder.done, folder.path / POINTS_FILE)
    write_times(points, folder.done, folder.path / TIMES_FILE)
    rows = [folder.done[point.id] for point in points]
    return SweepOutcome(
        num_points=len(points),
        num_computed=len(missing),
        num_lost=work.num_lost,
        failed=[row for row in rows if row.error is not None],
        engine=executor.name,
        num_workers=executor.num_workers,
        wall_s=wall_s,
        busy_s=work.busy_s,
    )


class _Work:
    """Remaining points, submitted points, and points suspected of killing their process.

    Each point of a lost batch is computed again on its own: one that is then lost again is the cause.
    """

    def __init__(self, groups: list[Group], folder: SweepFolder, executor: Executor, retries: int) -> None:
        self._fresh = deque(groups)
        self._alone: deque[Group] = deque()
        self._folder = folder
        self._executor = executor
        self._retries = retries
        self._groups = {id: group for group in groups for id in group.ids}
        self._attempts: dict[str, int] = {}
        self._num_under_way = 0
        self._num_groups_done = 0
        self.num_settled = 0
        self.num_lost = 0
        self.busy_s = 0.0

    @property
    def is_left(self) -> bool:
        return bool(self._fresh or self._alone or self._num_under_way)

    def go_on(self) -> None:
        """Submit work, wait until some of it is done, and record it."""
        self._give_out()
        answers = self._executor.wait()
        for batch, answer in answers:
            self._num_under_way -= 1
            if isinstance(answer, Lost):
                self._lose(batch)
            else:
                self._keep(batch, answer)

    def _give_out(self) -> None:
        if self._alone and self._executor.is_lost_together:  # run alone: other batches would be lost with it
            if not self._num_under_way:
                self._submit([self._alone.popleft()])
            return
        while self._num_under_way < self._executor.capacity and (self._alone or self._fresh):
            if self._alone:
                self._submit([self._alone.popleft()])
            else:
                self._submit([self._fresh.popleft() for _ in range(self._batch_size())])

    def _batch_size(self) -> int:
        """Number of groups that fill a batch's target duration, limited so that all workers have work."""
        if not self._num_groups_done or not self.busy_s:
            return 1
        lasting = _BATCH_S * self._num_groups_done / self.busy_s
        fair = len(self._fresh) // (2 * self._executor.num_workers)
        return max(1, min(int(lasting), fair, len(self._fresh)))

    def _submit(self, groups: list[Group]) -> None:
        self._executor.submit(Batch(tuple(groups)))
        self._num_under_way += 1

    def _keep(self, batch: Batch, results: list[PointResult]) -> None:
        self._num_groups_done += len(batch.groups)
        self.busy_s += sum(result.times.wall_s for result in results)
        self._folder.append([self._settle(result) for result in results])

    def _lose(self, batch: Batch) -> None:
        self.num_lost += 1
        if len(batch.ids) > 1:
            self._alone += [alone for group in batch.groups for alone in group.alone()]
            return
        result = PointResult(point=batch.ids[0], error=LOST_LINE, times=NO_TIME, host="")
        self._folder.append([self._settle(result)])

    def _settle(self, result: PointResult) -> Done:
        """Return the journal line; a failed point is queued again while retries are left."""
        attempt = self._attempts[result.point] = self._attempts.get(result.point, 0) + 1
        if result.error is not None and attempt <= self._retries:
            group = self._groups[result.point]
            again = self._alone if result.error == LOST_LINE else self._fresh
            again += [alone for alone in group.alone() if alone.ids == (result.point,)]
        else:
            self.num_settled += 1
        return Done(
            point=result.point,
            values=result.values,
            error=result.error,
            attempt=attempt,
            engine=self._executor.name,
            host=result.host,
            times=result.times,
        )
