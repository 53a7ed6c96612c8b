"""The folder of a simulated run without a chain: its scenario and its records."""

from pathlib import Path

from bdfl.errors import BdflError
from bdfl.records import CrowdRecord, RunRecord
from bdfl.scenario import Scenario, dump_scenario

SCENARIO_FILE = "scenario.toml"
_OTHERS = ("journal.jsonl", "network.json", "chain")  # contents of other kinds of folders


class BadRecordFolder(BdflError):
    """A folder with other contents."""


def refuse_run_folder(folder: Path) -> None:
    """Raise `BadRecordFolder` if records would replace those of a run with a chain."""
    for name in _OTHERS:
        if (folder / name).exists():
            raise BadRecordFolder(f"{folder}: holds a {name}, a folder of its own expected")


def write_record(scenario: Scenario, run: RunRecord, folder: Path) -> list[Path]:
    """Write the scenario, and the records if pyarrow is installed; return the files written."""
    refuse_run_folder(folder)
    return write_record_files(scenario, run, folder)


def write_record_files(scenario: Scenario, run: RunRecord, folder: Path) -> list[Path]:
    """Write the same files without checking the folder, for callers that own its chain."""
    path = write_scenario(scenario, folder)
    try:
        from bdfl.records.parquet import write_parquet
    except ImportError:
        return [path]
    return [path, *write_parquet(run, None, folder)]


def write_crowd(scenario: Scenario, crowd: CrowdRecord, folder: Path) -> list[Path]:
    """Write a run of too many clients for full records; otherwise as `write_record`."""
    refuse_run_folder(folder)
    path = write_scenario(scenario, folder)
    try:
        from bdfl.records.parquet import write_crowd_parquet
    except ImportError:
        return [path]
    return [path, *write_crowd_parquet(crowd, folder)]


def write_scenario(scenario: Scenario, folder: Path) -> Path:
    """Write the scenario to `folder`, which is created if necessary, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCENARIO_FILE
    path.write_text(dump_scenario(scenario), encoding="utf-8")
    return path
