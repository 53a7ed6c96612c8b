"""All runs that are open, and a function for every page: what it shows, as a document.

Any method may be called from any thread. What does not exist raises `NotHere`, a bad parameter `BadRequest`, what takes
too long `Busy`.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bdfl import __version__
from bdfl.explorer.chain_run import ChainRun
from bdfl.explorer.documents import (
    BackNews,
    BlockDocument,
    BlockList,
    BlockNews,
    ClientDocument,
    CompareDocument,
    DeskDocument,
    DeskSettings,
    FrontierDocument,
    GoneNews,
    Growth,
    ModelDocument,
    NetworkDocument,
    News,
    Overview,
    RunName,
    Status,
    StatusNews,
    StoryDocument,
    VerifyDocument,
)
from bdfl.explorer.errors import BadRequest, NotHere
from bdfl.explorer.opening import open_node, open_path
from bdfl.explorer.sources import genesis_bytes
from bdfl.explorer.story import MAX_POINTS, tell_story
from bdfl.ledger.units import NANO

_MAX_NEWS = 20  # blocks that a poll tells of; whoever misses more reads the story again


class _Told:
    """What the pollers of a run know."""

    def __init__(self, height: int) -> None:
        self.height = height
        self.status: Status | None = None
        self.is_gone = False
        self.learned = height  # rounds whose accuracy was told


class Library:
    """The open runs, by number from 0."""

    def __init__(self, runs: Sequence[ChainRun]) -> None:
        self._runs = list(runs)
        self._turn = threading.Lock()  # of those who poll
        self._told = [_Told(run.height) for run in runs]
        named = Counter(run.name for run in runs)
        self._names = [
            f"{run.name} ({run.around.folder.name})" if named[run.name] > 1 and run.around.folder else run.name
            for run in runs
        ]

    @property
    def num_runs(self) -> int:
        return len(self._runs)

    def _run(self, number: int) -> ChainRun:
        if not 0 <= number < len(self._runs):
            raise NotHere(f"run {number}: not open, 0 to {len(self._runs) - 1} expected")
        return self._runs[number]

    def poll(self, run: int) -> list[News]:
        """What is new since the last poll: blocks (of many only the newest), status, gone, back.

        Cheap where nothing happened; to be called every half second or so by one thread for all viewers. A block is
        told again when its accuracy becomes known.
        """
        found, told = self._run(run), self._told[run]
        with self._turn:
            found.refresh(at_once=True)
            news: list[News] = []
            if (found.gone is not None) != told.is_gone:
                told.is_gone = found.gone is not None
                news.append(BackNews() if found.gone is None else GoneNews(why=found.gone))
            with found.lock:
                news += self._new_blocks(found, told)
            status = found.status()
            if status != told.status and status is not None:
                told.status = status
                news.append(StatusNews(status=status))
            return news

    def _new_blocks(self, found: ChainRun, told: _Told) -> list[News]:
        height = found.height
        rounds = list(range(max(told.height, height - _MAX_NEWS) + 1, height + 1))
        known = found.accuracy(told.height)
        if told.height > told.learned and known is not None:
            rounds = [told.height, *rounds] if told.height not in rounds else rounds
            told.learned = told.height
        told.height = height
        if found.accuracy(height) is not None:
            told.learned = height
        if not rounds:
            return []
        growth = Growth(height=height, summary=found.summary(), problems=found.told_problems())
        return [BlockNews(story=tell_story(found.columns, one, one, 1), overview=growth) for one in rounds]

    def overview(self, run: int) -> Overview:
        found = self._run(run)
        found.refresh()
        with found.lock:
            genesis, around = found.genesis, found.around
            return Overview(
                kind=found.kind,
                name=self._names[run],
                run=run,
                runs=[
                    RunName(run=number, name=name, kind=one.kind)
                    for number, (name, one) in enumerate(zip(self._names, self._runs, strict=True))
                ],
                version=__version__,
                is_live=found.is_live,
                is_exported=False,
                chain=found.chain,
                height=found.height,
                planned_rounds=around.planned_rounds,
                scheduler=genesis.scheduler.name,
                aggregation=genesis.law.aggregation,
                quorum_rule=genesis.law.quorum.value,
                work=genesis.law.work.value,
                model_bytes=genesis.model.size,
                num_parameters=sum(math.prod(tensor.shape) for tensor in genesis.model.tensors),
                tradeoff=genesis.physics.tradeoff_nano / NANO,
                min_clients=genesis.physics.min_clients,
                bandwidth_hz=float(genesis.physics.bandwidth_hz),
                clients=found.clients(),
                access_points=found.access_points(),
                problems=found.told_problems(),
                label_names=None,
                summary=found.summary(),
                status=found.status(),
            )

    def story(self, run: int, first: int = 1, last: int | None = None, points: int = 2000) -> StoryDocument:
        """Rounds `first` to `last` in at most `points` rows; no round in there gives empty columns."""
        if not 1 <= points <= MAX_POINTS:
            raise BadRequest(f"points: {points} given, 1 to {MAX_POINTS} expected")
        found = self._run(run)
        found.refresh()
        with found.lock:
            return tell_story(found.columns, first, found.height if last is None else last, points)

    def blocks(self, run: int, first: int | None = None, last: int | None = None) -> BlockList:
        """At most 50 blocks, the newest unless said otherwise, by falling height."""
        found = self._run(run)
        found.refresh()
        return found.blocks(first, last)

    def block(self, run: int, height: int) -> BlockDocument:
        found = self._run(run)
        found.refresh()
        return found.block(height)

    def raw_block(self, run: int, height: int) -> bytes:
        """A MessagePack array of the block's and its certificate's bytes, as they are stored."""
        found = self._run(run)
        found.refresh()
        return found.raw_block(height)

    def raw_genesis(self, run: int) -> bytes:
        """The canonical bytes of the genesis."""
        return genesis_bytes(self._run(run).genesis)

    def network(self, run: int, round: int | None = None) -> NetworkDocument:
        """The round after the newest block unless said otherwise."""
        raise NotImplementedError

    def client(self, run: int, number: int) -> ClientDocument:
        raise NotImplementedError

    def model(self, run: int, height: int, without: int | None = None, other: int | None = None) -> ModelDocument:
        raise NotImplementedError

    def desk(self, run: int, height: int | None, settings: DeskSettings) -> DeskDocument:
        """The problem of round `height`; none: of the round after the newest block."""
        raise NotImplementedError

    def frontier(self, run: int) -> FrontierDocument:
        raise NotImplementedError

    def compare(self) -> CompareDocument:
        raise NotImplementedError

    def verify(self, run: int) -> VerifyDocument:
        raise NotImplementedError


@contextmanager
def open_library(paths: Sequence[Path], node: str | None = None) -> Iterator[Library]:
    """The runs at these paths, then the node behind a window at host:port; raises `CannotOpen` for what is none."""
    with ExitStack() as resources:
        runs: list[ChainRun] = []
        for path in paths:
            runs.append(open_path(path))
            resources.callback(runs[-1].close)
        if node is not None:
            runs.append(open_node(node))
            resources.callback(runs[-1].close)
        yield Library(runs)
