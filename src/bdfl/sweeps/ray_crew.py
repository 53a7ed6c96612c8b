"""Executor on a Ray cluster: tasks are pure, so those of a lost node are computed again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from bdfl.experiment.sweep import InvalidSweep, SweepFailed
from bdfl.ray_cluster import OtherSoftware, count_cpus, describe_trouble, find_difference, list_software, open_ray
from bdfl.sweeps.computing import Batch, PointResult, compute_batch
from bdfl.sweeps.crew import AHEAD, Answer, Crew, Lost

_LOOK_AGAIN_S = 5.0  # interval of counting the cluster's CPUs: nodes come and go


class Refusal(msgspec.Struct, frozen=True):
    """In place of results: the reason why this node must not compute them."""

    reason: str


@contextmanager
def open_ray_crew(address: str | None, workers: int | None, *, with_torch: bool) -> Iterator[Crew]:
    """Run tasks of one CPU each on the cluster at `address`, or on a local one; at most `workers` at once."""
    if workers is not None and workers < 1:
        raise InvalidSweep(f"workers: {workers} given, at least 1 is needed")
    with open_ray(address, num_cpus=workers) as ray:
        crew = _RayCrew(ray, workers, with_torch=with_torch)
        try:
            yield crew
        finally:
            crew.cancel()


def compute_on_node(batch: Batch, software: tuple[tuple[str, str], ...]) -> list[PointResult] | Refusal:
    """Compute a batch, if the node has the same software as the sender."""
    import ray

    difference = find_difference(software)
    if difference is not None:
        return Refusal(difference)
    node = ray.get_runtime_context().get_node_id()[:8]  # a machine may host several nodes
    return [msgspec.structs.replace(result, host=f"{result.host}/{node}") for result in compute_batch(batch)]


class _RayCrew:
    """Owns the submitted tasks."""

    name = "ray"
    is_lost_together = False

    def __init__(self, ray: Any, workers: int | None, *, with_torch: bool) -> None:
        self._ray = ray
        self._most = workers
        self._software = list_software(with_torch)
        self._task = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(compute_on_node)
        self._under_way: dict[Any, Batch] = {}
        self._counted_s = time.monotonic()
        self.num_workers = self._count()

    @property
    def capacity(self) -> int:
        if time.monotonic() - self._counted_s > _LOOK_AGAIN_S:
            self._counted_s, self.num_workers = time.monotonic(), self._count()
        return AHEAD * self.num_workers

    def submit(self, batch: Batch) -> None:
        self._under_way[self._task.remote(batch, self._software)] = batch

    def wait(self) -> list[Answer]:
        ready, _ = self._ray.wait(list(self._under_way), num_returns=1)
        return [(self._under_way.pop(task), self._fetch(task)) for task in ready]

    def cancel(self) -> None:
        """Cancel the tasks still running."""
        for task in self._under_way:
            self._ray.cancel(task, force=True)
        self._under_way.clear()

    def _count(self) -> int:
        cpus = count_cpus(self._ray)
        return cpus if self._most is None else min(cpus, self._most)

    def _fetch(self, task: Any) -> list[PointResult] | Lost:
        errors = self._ray.exceptions
        try:
            found: list[PointResult] | Refusal = self._ray.get(task)
        except errors.RayTaskError as error:  # ours never raises: the node is faulty
            raise SweepFailed(f"ray: {describe_trouble(error)}; is bdfl installed on every node?") from error
        except errors.RayError:  # worker, node or object lost
            return Lost()
        if isinstance(found, Refusal):
            raise OtherSoftware(found.reason)
        return found
