"""Folders too large to be kept: a chain of a thousand blocks by fifty clients, a record of 100,000 rounds."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from bdfl.experiment import simulate
from bdfl.experiment.run_folder import write_record
from bdfl.records import RunRecord
from bdfl.scenario import Scenario, load_scenario
from bdfl.scenario.files import find_scenario
from tests.browser.folders import RunWriter, example_scenario

NUM_CLIENTS = 50
_PLAYED_ROUNDS = 1000  # that a long record repeats
_HEADINGS = ("scenario", "scenario_digest", "scheduler", "tradeoff", "seed", "participation_rate", "drift_constant")

Report = Callable[[str], None]


def large_scenario(num_rounds: int) -> Scenario:
    """Fifty clients of which about thirty train in a round."""
    return example_scenario(f"clients.count={NUM_CLIENTS}", f"rounds={num_rounds}", "clients.min_selected=10")


def write_large_run(folder: Path, num_blocks: int, report: Report) -> Path:
    """A finished run with a chain of so many blocks."""
    with RunWriter(folder, large_scenario(num_blocks)) as writer:
        while writer.height < num_blocks:
            if writer.write_round() % 200 == 0:
                report(f"explorer: block {writer.height} of {num_blocks} written")
        return writer.finish()


def write_long_record(folder: Path, num_rounds: int) -> Path:
    """The record of a simulation that long, as `bdfl simulate --out` writes it: the same rounds again and again."""
    played, whole = (
        load_scenario(find_scenario("paper-cifar10"), [f"rounds={count}"])
        for count in (min(num_rounds, _PLAYED_ROUNDS), num_rounds)
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_record(whole, _repeat(simulate(played), num_rounds), folder)
    return folder


def _repeat(record: RunRecord, num_rounds: int) -> RunRecord:
    columns = {item.name: getattr(record, item.name) for item in fields(record) if item.name not in _HEADINGS}
    times = -(-num_rounds // record.num_rounds)

    def repeat(column: object) -> object:
        if isinstance(column, tuple):
            return (column * times)[:num_rounds]
        assert isinstance(column, np.ndarray)
        return np.concatenate([column] * times)[:num_rounds]

    repeated = {name: repeat(column) for name, column in columns.items()}
    return replace(record, **{**repeated, "round": np.arange(1, num_rounds + 1)})  # type: ignore[arg-type]
