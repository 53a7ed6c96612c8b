"""A run simulated without a chain: its records, memory-mapped from files."""

import mmap
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from bdfl.errors import BdflError, one_line
from bdfl.explorer import NotHere
from bdfl.explorer.block_page import list_rows
from bdfl.explorer.columns import (
    DELIVERED,
    MISSED,
    PER_CLIENT,
    PER_ROUND,
    Columns,
    Values,
    summarise,
)
from bdfl.explorer.documents import (
    AccessPointRow,
    BlockDocument,
    BlockList,
    BlockRow,
    ClientDocument,
    ClientRow,
    Kind,
    Overview,
    Problem,
    Status,
    Summary,
)
from bdfl.explorer.pages import RoundView, show_client
from bdfl.explorer.worker_client import DrawProblem, FindMining, RecordFacts, SplitRecord, WorkerClient
from bdfl.records import NOBODY
from bdfl.records.learning import SCENARIO_FILE
from bdfl.scenario import Scenario
from bdfl.scenario.files import load_foreign_scenario
from bdfl.scheduling.problem import Decision, RoundProblem

_DECIDED = ("client_cpu_hz", "client_mining_hz", "client_power_w")
_READING_S = 120.0


def read_scenario(path: Path, *, shown_as: str) -> tuple[Scenario | None, str | None]:
    """Return the scenario of a run, or the reason why it cannot be read, with `shown_as` in place of its path."""
    try:
        return load_foreign_scenario(path), None
    except (BdflError, OSError) as error:
        return None, one_line(error).replace(str(path), shown_as)


class RecordRun:
    """The records in a folder, which do not change."""

    def __init__(self, path: Path, worker: WorkerClient) -> None:
        self.kind: Kind = "record"
        self.folder: Path | None = path
        self.lock = threading.RLock()
        self.gone: str | None = None
        self.is_live = False
        self._worker = worker
        self._place = tempfile.TemporaryDirectory(prefix="bdfl-explore-")
        into = Path(self._place.name)
        split = SplitRecord(folder=str(path), into=str(into))
        self._found: RecordFacts = worker.ask(split, RecordFacts, _READING_S)
        arrays = {name: np.load(into / f"{name}.npy", mmap_mode="r") for name in (*PER_ROUND, *PER_CLIENT, *_DECIDED)}
        self._arrays: dict[str, Values] = arrays
        self.columns = Columns.of({name: arrays[name] for name in (*PER_ROUND, *PER_CLIENT)})
        self._scenario, problem = read_scenario(path / SCENARIO_FILE, shown_as=f"{path.name}/{SCENARIO_FILE}")
        self.scenario_path = None if self._scenario is None else path / SCENARIO_FILE
        self._problems = [] if problem is None else [Problem(height=0, what=problem)]
        self.name = self._found.scenario or path.name
        accuracy = np.where(np.isfinite(self.columns["loss"]), self.columns["accuracy"], np.nan)
        known = np.flatnonzero(np.isfinite(accuracy))
        best_round = int(known[np.argmax(accuracy[known])]) + 1 if known.size else None
        self._summary = summarise(self.columns, self.clients(), best_round)
        self.release()

    def close(self) -> None:
        self._arrays.clear()
        self._place.cleanup()

    def release(self) -> None:
        """Release the memory of mapped pages; they are read from the files again when needed."""
        for values in self._arrays.values():
            base = getattr(values, "_mmap", None)
            if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                base.madvise(mmap.MADV_DONTNEED)

    def read_all(self) -> None:
        """Do nothing: records are read when opened."""

    def unknown_mining(self) -> list[FindMining]:
        return []

    def set_mining(self, place: int, mining_s: float) -> None:
        """Do nothing: mining times are known."""

    def refresh(self, *, at_once: bool = False) -> None:
        """Do nothing: records do not change."""

    @property
    def height(self) -> int:
        return self.columns.num_rows

    @property
    def newest_round(self) -> int:
        return max(self.height, 1)

    @property
    def chain_path(self) -> Path | None:
        return None

    def clients(self) -> list[ClientRow]:
        samples = self._found.samples
        return [
            ClientRow(
                client=number,
                name=f"client {number}",
                samples=samples[number] if number < len(samples) else None,
                rate=rate,
            )
            for number, rate in enumerate(self._found.rates)
        ]

    def access_points(self) -> list[AccessPointRow]:
        count = 0 if self._scenario is None else len(self._scenario.geometry.access_points_m)
        return [AccessPointRow(name=f"access point {number}") for number in range(count)]

    def problems(self) -> list[Problem]:
        return self._problems

    def summary(self) -> Summary:
        return self._summary

    def status(self) -> Status | None:
        return None

    def overview(self) -> Overview:
        found, scenario = self._found, self._scenario
        return Overview(
            kind=self.kind,
            name=self.name,
            is_live=False,
            height=self.height,
            planned_rounds=None if scenario is None else scenario.rounds,
            scheduler=found.scheduler,
            tradeoff=found.tradeoff if np.isfinite(found.tradeoff) else None,
            min_clients=None if scenario is None else scenario.clients.min_selected,
            bandwidth_hz=None if scenario is None else scenario.radio.bandwidth_hz,
            clients=self.clients(),
            access_points=self.access_points(),
            problems=self._problems,
            summary=self._summary,
        )

    def accuracy(self, height: int) -> float | None:
        return self.columns.known("accuracy", height)

    def block(self, height: int) -> BlockDocument:
        raise NotHere("a record of a simulation has no blocks")

    def raw_block(self, height: int) -> bytes:
        raise NotHere("a record of a simulation has no blocks")

    def raw_genesis(self) -> bytes:
        raise NotHere("a record of a simulation has no chain")

    def blocks(self, first: int | None, last: int | None) -> BlockList:
        """Return a page of rounds in the form of blocks, by descending height."""
        return list_rows(self.height, first, last, self._row)

    def _row(self, height: int) -> BlockRow:
        columns, place = self.columns, height - 1
        states = columns["client_state"][place]
        winner = int(columns["proposer"][place])
        return BlockRow(
            height=height,
            proposer=None if winner == NOBODY else winner,
            trained=np.flatnonzero(states == DELIVERED).tolist(),
            missing=np.flatnonzero(states == MISSED).tolist(),
            delay_s=float(columns["delay_s"][place]),
            mean_queue=float(columns["mean_queue"][place]),
            accuracy=self.accuracy(height),
        )

    def client(self, number: int) -> ClientDocument:
        rows = self.clients()
        if not 0 <= number < len(rows):
            raise NotHere(f"client {number}: 0 to {len(rows) - 1} expected")
        return show_client(rows[number], self.columns)

    def view_round(self, round: int) -> RoundView:
        if not 1 <= round <= self.height:
            raise NotHere(f"round {round}: 1 to {self.height} expected")
        place = round - 1
        states = self.columns["client_state"][place]
        delivered = frozenset(np.flatnonzero(states == DELIVERED).tolist())
        power_w = self._arrays["client_power_w"][place]
        winner = int(self.columns["proposer"][place])
        return RoundView(
            round=round,
            gain=[float("nan")] * self.columns.num_clients,
            power_w=power_w.tolist(),
            cpu_hz=self._arrays["client_cpu_hz"][place].tolist(),
            mining_hz=self._arrays["client_mining_hz"][place].tolist(),
            reachable=frozenset(range(self.columns.num_clients)),
            selected=frozenset(np.flatnonzero(power_w > 0).tolist()),
            delivered=delivered,
            winner=None if winner == NOBODY else winner,
            bandwidth_hz=None,
            noise_w_per_hz=None,
        )

    def problem_at(self, round: int) -> tuple[RoundProblem, Decision | None]:
        view = self.view_round(round)
        if self.scenario_path is None:
            raise NotHere("the scenario of this record cannot be read")
        drawn = self._worker.ask(DrawProblem(scenario=str(self.scenario_path), round=round), RoundProblem)
        queue = np.zeros(self.columns.num_clients)
        if round > 1:
            queue = self.columns["client_queue"][round - 2].astype(np.float64)
        problem = replace(drawn, queue=queue)
        selected = np.array([number in view.selected for number in range(self.columns.num_clients)])
        decision = Decision(
            selected=selected,
            cpu_hz=np.array(view.cpu_hz),
            mining_hz=np.array(view.mining_hz),
            power_w=np.array(view.power_w),
            reason=None if selected.any() else "nobody was scheduled",
        )
        return problem, decision
