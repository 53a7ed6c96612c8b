"""The folder of a run that was only played: its scenario and its records, for whoever looks at them later."""

from pathlib import Path

from bdfl.errors import BdflError
from bdfl.records import CrowdRecord, RunRecord
from bdfl.scenario import Scenario, dump_scenario

SCENARIO_FILE = "scenario.toml"
_OTHERS = ("journal.jsonl", "network.json", "chain")  # what folders of other kinds hold


class BadRecordFolder(BdflError):
    """A folder that holds something else."""


def refuse_run_folder(folder: Path) -> None:
    """Raises where records would replace those of a run with a chain."""
    for name in _OTHERS:
        if (folder / name).exists():
            raise BadRecordFolder(f"{folder}: holds a {name}, a folder of its own expected")


def write_record(scenario: Scenario, run: RunRecord, folder: Path) -> list[Path]:
    """The files written into `folder`: the scenario, and the records where pyarrow is installed."""
    refuse_run_folder(folder)
    return write_record_files(scenario, run, folder)


def write_record_files(scenario: Scenario, run: RunRecord, folder: Path) -> list[Path]:
    """The same, whatever else the folder holds: for those whose chain it is."""
    path = write_scenario(scenario, folder)
    try:
        from bdfl.records.parquet import write_parquet
    except ImportError:
        return [path]
    return [path, *write_parquet(run, None, folder)]


def write_crowd(scenario: Scenario, crowd: CrowdRecord, folder: Path) -> list[Path]:
    """As `write_record`, of a run of too many clients to keep what each did in every round."""
    refuse_run_folder(folder)
    path = write_scenario(scenario, folder)
    try:
        from bdfl.records.parquet import write_crowd_parquet
    except ImportError:
        return [path]
    return [path, *write_crowd_parquet(crowd, folder)]


def write_scenario(scenario: Scenario, folder: Path) -> Path:
    """The file of the scenario in `folder`, which is made if it must be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCENARIO_FILE
    path.write_text(dump_scenario(scenario), encoding="utf-8")
    return path
