"""Replay of runs and chains in folders to trackers, after they end or while another process writes them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from bdfl.errors import BdflError, require
from bdfl.experiment.run_folder import read_journal
from bdfl.ledger.block import chain_id
from bdfl.ledger.store import ChainStore
from bdfl.records import LearningRound
from bdfl.records.run_files import JOURNAL_FILE, SCENARIO_FILE
from bdfl.scenario.files import load_foreign_scenario
from bdfl.tracking.scalars import RoundScalars, tracked_run
from bdfl.tracking.tracker import TrackedRun

Told = tuple[int, dict[str, float]]  # a round and its numbers


class NothingToTrack(BdflError):
    """A folder without rounds."""


def read_records(folder: Path) -> Iterator[Told]:
    """Yield every round of `rounds.parquet` and `clients.parquet` in a folder, with the journal beside them."""
    require(f"{folder}: reading its tables", "pyarrow")
    from bdfl.records.parquet import read_run

    run, learned, scalars = read_run(folder), _read_learning(folder), RoundScalars()
    for record in run.rounds:
        yield record.round, scalars.of_round(record, learned.get(record.round))


class ChainRounds:
    """Rounds of a chain, which may grow; those of a run include the data of its journal."""

    def __init__(self, chain: ChainStore, folder: Path) -> None:
        self._chain = chain
        self._folder = folder
        self._scalars = RoundScalars()
        self._done = 0

    def news(self) -> Iterator[Told]:
        """Yield the rounds since the last call; if a journal exists, only those it contains."""
        learned = _read_learning(self._folder)
        known = max(learned) if learned else self._chain.height
        for block in self._chain.blocks(self._done + 1):
            if block.header.height > known:
                return
            self._done = block.header.height
            yield self._done, self._scalars.of_block(block, learned.get(self._done))


def describe_folder(folder: Path, chain: ChainStore | None) -> TrackedRun:
    """Describe the run in a folder from its scenario, or else from the chain's genesis."""
    name = folder.resolve().name
    if (folder / SCENARIO_FILE).is_file():
        return tracked_run(load_foreign_scenario(folder / SCENARIO_FILE), name, is_continued=True)
    if chain is None:
        raise NothingToTrack(f"{folder}: no {SCENARIO_FILE} and no chain in it, the folder of a run or chain expected")
    genesis = chain.genesis
    return TrackedRun(
        name=name,
        experiment=genesis.name or name,
        identity=chain_id(genesis).hex(),
        parameters={
            "scheduler.name": genesis.scheduler.name,
            "seed": genesis.scheduler.seed,
            "clients.count": len(genesis.members),
            "ledger.quorum": genesis.law.quorum.value,
            "ledger.work": genesis.law.work.value,
            "learning.aggregation.rule": genesis.law.aggregation,
        },
        is_continued=True,
    )


def _read_learning(folder: Path) -> Mapping[int, LearningRound]:
    path = folder / JOURNAL_FILE
    return {row.round: row for row in read_journal(path)[1]} if path.is_file() else {}
