"""All open runs, with a method for the document of every page.

All methods are thread-safe. They raise `NotHere` for missing things, `BadRequest` for a bad parameter, and `Busy` if an
answer takes too long.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from bdfl.errors import BdflError
from bdfl.explorer import BadRequest, Busy, NotHere
from bdfl.explorer.columns import MAX_POINTS, read_series
from bdfl.explorer.documents import (
    BackEvent,
    BlockDocument,
    BlockEvent,
    BlockList,
    ClientDocument,
    CompareDocument,
    ComparedRun,
    FrontierDocument,
    GoneEvent,
    Growth,
    ModelDocument,
    NetworkDocument,
    Overview,
    RunEvent,
    RunName,
    SeriesDocument,
    Status,
    StatusEvent,
    VerifyDocument,
    WhatIfDocument,
    WhatIfSettings,
)
from bdfl.explorer.pages import add_accuracies, compare_runs, draw_map
from bdfl.explorer.record_run import RecordRun
from bdfl.explorer.run import Run, open_node, open_path
from bdfl.explorer.worker_client import (
    MAX_DRAWN,
    FindFrontier,
    FindIntervals,
    FindPositions,
    Positions,
    SolveAgain,
    TraceModel,
    VerifyChain,
    WorkerClient,
)

_MAX_PLACES = 64  # cached maps of rounds
_MAX_EVENTS = 20  # blocks reported by a poll; a viewer that misses more reloads the time series


@dataclass
class _Reported:
    """State of a run already reported by `poll`."""

    height: int
    learned: int  # last round whose accuracy was reported
    num_problems: int
    status: Status | None = None
    is_gone: bool = False


class Library:
    """The open runs, by number from 0."""

    def __init__(self, runs: Sequence[Run], worker: WorkerClient) -> None:
        self._runs = list(runs)
        self._worker = worker
        self._find_places = lru_cache(_MAX_PLACES)(self._ask_for_places)
        self._turn = threading.Lock()  # serialises polls
        self._told = [_Reported(run.height, run.height, len(run.problems())) for run in runs]
        named = Counter(run.name for run in runs)
        self._names = [
            f"{run.name} ({run.folder.name})" if named[run.name] > 1 and run.folder else run.name for run in runs
        ]

    def measure_ends(self) -> None:
        """Recompute sampled mining times of the last rounds, whose receipts are in no block."""
        for run in self._runs:
            with run.lock:
                races = run.unknown_mining()
            for race in races:
                try:
                    mining_s = self._worker.ask(race, float)
                except BdflError:
                    continue  # keep the modelled time
                with run.lock:
                    run.set_mining(race.round - 1, mining_s)

    @property
    def num_runs(self) -> int:
        return len(self._runs)

    def _run(self, number: int) -> Run:
        if not 0 <= number < len(self._runs):
            raise NotHere(f"run {number}: not open, 0 to {len(self._runs) - 1} expected")
        return self._runs[number]

    def _fresh_run(self, number: int) -> Run:
        run = self._run(number)
        run.refresh()
        return run

    def read_all(self, run: int) -> None:
        """Read a whole chain at once, for exports; otherwise a long chain is read in steps."""
        self._run(run).read_all()

    def poll(self, run: int) -> list[RunEvent]:
        """Return the events since the last poll: blocks (at most the newest few), status, gone, back.

        It is cheap if nothing happened. One thread polls for all viewers, about twice a second. A block is reported
        again when its accuracy becomes known.
        """
        found, told = self._run(run), self._told[run]
        with self._turn:
            found.refresh(at_once=True)
            news: list[RunEvent] = []
            if (found.gone is not None) != told.is_gone:
                told.is_gone = found.gone is not None
                news.append(BackEvent() if found.gone is None else GoneEvent(why=found.gone))
            with found.lock:
                news += self._block_events(found, told)
            status = found.status()
            if status != told.status and status is not None:
                told.status = status
                news.append(StatusEvent(status=status))
            return news

    def _block_events(self, found: Run, told: _Reported) -> list[RunEvent]:
        height = found.height
        rounds = list(range(max(told.height, height - _MAX_EVENTS) + 1, height + 1))
        known = found.accuracy(told.height)
        if told.height > told.learned and known is not None:
            rounds = [told.height, *rounds] if told.height not in rounds else rounds
            told.learned = told.height
        problems = found.problems()
        if len(problems) != told.num_problems and height and not rounds:
            rounds = [height]
        told.height, told.num_problems = height, len(problems)
        if found.accuracy(height) is not None:
            told.learned = height
        if not rounds:
            return []
        growth = Growth(height=height, summary=found.summary(), problems=problems)
        return [BlockEvent(rounds=read_series(found.columns, one, one, 1), overview=growth) for one in rounds]

    def overview(self, run: int) -> Overview:
        found = self._fresh_run(run)
        status = found.status()  # may be slow, so outside the lock
        with found.lock:
            runs = [
                RunName(run=number, name=name, kind=one.kind)
                for number, (name, one) in enumerate(zip(self._names, self._runs, strict=True))
            ]
            return msgspec.structs.replace(found.overview(), name=self._names[run], run=run, runs=runs, status=status)

    def rounds(self, run: int, first: int = 1, last: int | None = None, points: int = 2000) -> SeriesDocument:
        """Return rounds `first` to `last` in at most `points` rows; an empty range gives empty columns."""
        if not 1 <= points <= MAX_POINTS:
            raise BadRequest(f"points: {points} given, 1 to {MAX_POINTS} expected")
        found = self._fresh_run(run)
        with found.lock:
            try:
                return read_series(found.columns, first, found.height if last is None else last, points)
            finally:
                _release(found)

    def blocks(self, run: int, first: int | None = None, last: int | None = None) -> BlockList:
        """Return at most 50 blocks by descending height (default: the newest)."""
        return self._fresh_run(run).blocks(first, last)

    def block(self, run: int, height: int) -> BlockDocument:
        return self._fresh_run(run).block(height)

    def raw_block(self, run: int, height: int) -> bytes:
        """Return a MessagePack array of the block's and its certificate's stored bytes."""
        return self._fresh_run(run).raw_block(height)

    def raw_genesis(self, run: int) -> bytes:
        """Return the canonical bytes of the genesis."""
        return self._run(run).raw_genesis()

    def network(self, run: int, round: int | None = None) -> NetworkDocument:
        """Return the map of a round (default: the round in progress; of a finished run, the last one)."""
        found = self._fresh_run(run)
        view = found.view_round(found.newest_round if round is None else round)
        places, why = None, None
        try:
            places = self._find_places(run, view.round)
        except (NotHere, Busy) as error:
            why = str(error)
        return draw_map(view, found.clients(), found.access_points(), places, found.status(), why)

    def _ask_for_places(self, run: int, round: int) -> Positions:
        path = self._run(run).scenario_path
        if path is None:
            raise NotHere("no scenario says where anybody is")
        return self._worker.ask(FindPositions(scenario=str(path), round=round), Positions)

    def client(self, run: int, number: int) -> ClientDocument:
        found = self._fresh_run(run)
        try:
            return found.client(number)
        finally:
            _release(found)

    def model(self, run: int, height: int, without: int | None = None, other: int | None = None) -> ModelDocument:
        found = self._fresh_run(run)
        path = found.chain_path
        if path is None:
            raise NotHere("the models of this run are not kept on this machine")
        if not 1 <= height <= found.height:
            raise NotHere(f"model {height}: 1 to {found.height} expected")
        if other is not None and not 0 <= other <= found.height:
            raise BadRequest(f"other: {other} given, 0 to {found.height} expected")
        num_clients = len(found.clients())
        if without is not None and not 0 <= without < num_clients:
            raise BadRequest(f"without: {without} given, 0 to {num_clients - 1} expected")
        request = TraceModel(chain=str(path), height=height, without=without, other=other)
        return add_accuracies(self._worker.ask(request, ModelDocument), found.accuracy)

    def what_if(self, run: int, height: int | None, settings: WhatIfSettings) -> WhatIfDocument:
        """Return the what-if page of a round (default: the round in progress; of a finished run, the last one)."""
        found = self._fresh_run(run)
        newest = min(found.newest_round, MAX_DRAWN) if found.kind == "record" else found.newest_round
        round = newest if height is None else height
        problem, recorded = found.problem_at(round)
        request = SolveAgain(
            height=round, is_next=round > found.height, problem=problem, recorded=recorded, settings=settings
        )
        return self._worker.ask(request, WhatIfDocument)

    def frontier(self, run: int) -> FrontierDocument:
        path = self._run(run).scenario_path
        if path is None:
            raise NotHere("the scenario of this run is not known")
        return self._worker.ask(FindFrontier(scenario=str(path)), FrontierDocument)

    def compare(self) -> CompareDocument:
        rows = []
        for number, found in enumerate(self._runs):
            found.refresh()
            with found.lock:
                overview = found.overview()
                rows.append(
                    ComparedRun(
                        run=number,
                        name=self._names[number],
                        kind=overview.kind,
                        scheduler=overview.scheduler,
                        tradeoff=overview.tradeoff,
                        num_rounds=overview.height,
                        num_clients=found.columns.num_clients,
                        summary=overview.summary,
                    )
                )

        def find_intervals(differences: list[list[float]]) -> list[tuple[float, float]]:
            return self._worker.ask(FindIntervals(differences=differences), list[tuple[float, float]])

        return compare_runs(rows, [found.columns for found in self._runs], find_intervals)

    def verify(self, run: int) -> VerifyDocument:
        path = self._run(run).chain_path
        if path is None:
            raise NotHere("there is no chain of this run on this machine")
        return self._worker.ask(VerifyChain(chain=str(path)), VerifyDocument)


def _release(found: Run) -> None:
    if isinstance(found, RecordRun):
        found.release()


@contextmanager
def open_library(paths: Sequence[Path], node: str | None = None) -> Iterator[Library]:
    """Open the runs at these paths, then the node with a status server at host:port; raise `CannotOpen`."""
    with ExitStack() as resources:
        worker = WorkerClient()
        resources.callback(worker.close)
        runs: list[Run] = []
        for path in paths:
            runs.append(open_path(path, worker))
            resources.callback(runs[-1].close)
        if node is not None:
            runs.append(open_node(node))
            resources.callback(runs[-1].close)
        library = Library(runs, worker)
        if any(run.unknown_mining() for run in runs):
            threading.Thread(target=library.measure_ends, daemon=True, name="mining").start()
        yield library
