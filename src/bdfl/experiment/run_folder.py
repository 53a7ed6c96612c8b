"""The folder of a run: its scenario, a journal of the completed rounds, and their chain; or records without a chain.

The journal has one JSON document per line: a header, then a row per round. A round is complete once its line is; its
block, with all models, is in the chain before. So an interruption loses at most the current round.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from bdfl.errors import BdflError, one_line, other_format
from bdfl.learning.personal import PERSONAL_FOLDER, PersonalFolder
from bdfl.learning.training import Outcome
from bdfl.learning.weights import Layout
from bdfl.ledger import verify
from bdfl.ledger.blob_store import BLOBS_FOLDER
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.verify import Verification
from bdfl.records import AggregateRecord, RunRecord
from bdfl.records.files import known_height
from bdfl.records.learning import (
    BEST_MODEL,
    CHAIN_FOLDER,
    FINAL_MODEL,
    FORMAT,
    JOURNAL_FILE,
    LOCK_FILE,
    SCENARIO_FILE,
    JournalHeader,
    LearningRound,
    best_round,
)
from bdfl.scenario import Scenario, dump_scenario
from bdfl.scenario.files import load_foreign_scenario
from bdfl.storage import complete_lines, find_stray, lock_file, read_regular, replace_file

_MAX_JOURNAL = 2**28  # bytes
_Line = TypeVar("_Line")


class BadRunFolder(BdflError):
    """A run folder that is missing, in use, damaged, of another run, or with other contents."""


@dataclass(eq=False)
class RunFolder:
    """An open run on disk; made by `create_run_folder` or `open_run_folder`."""

    path: Path
    scenario: Scenario
    header: JournalHeader | None
    rounds: list[LearningRound]

    @property
    def chain_path(self) -> Path:
        return self.path / CHAIN_FOLDER

    @property
    def is_finished(self) -> bool:
        """True if all rounds are done and the final model is written."""
        return len(self.rounds) == self.scenario.rounds and (self.path / FINAL_MODEL).exists()

    def write_header(self, header: JournalHeader) -> None:
        """Start the journal."""
        replace_file(self.path / JOURNAL_FILE, msgspec.json.encode(header) + b"\n")
        self.header = header

    def append(self, row: LearningRound, model: bytes) -> None:
        """Append a completed round; `model` is the model after it, saved if it is the best so far."""
        self.rounds.append(row)
        if self.best_round == row.round:
            replace_file(self.path / BEST_MODEL, model)
        with (self.path / JOURNAL_FILE).open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")

    def drop_rounds(self, num_rounds: int) -> None:
        """Keep only the first rounds: the chain has no others."""
        del self.rounds[num_rounds:]
        lines = [self.header, *self.rounds]
        replace_file(self.path / JOURNAL_FILE, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def open_personal(self, layout: Layout) -> PersonalFolder:
        """Open the clients' personal layers as they were after the last round; raise if that is not possible."""
        kept, clients = self.scenario.ledger.keep_blocks, range(self.scenario.clients.count)
        personal = PersonalFolder(self.path / PERSONAL_FOLDER, layout, num_kept=kept and max(2, kept))
        trained = dict.fromkeys(clients, 0)
        for row in self.rounds:
            told = zip(row.selected, row.outcome, strict=True)
            trained |= {client: row.round for client, outcome in told if outcome == Outcome.TRAINED}
        for client, found in personal.forget_after(len(self.rounds), clients).items():
            if (
                found != trained[client] and client not in self.scenario.adversaries.members
            ):  # they tell another outcome
                wrong = (
                    f"of round {found} found, of round {trained[client]} expected: going on would end in other bytes"
                )
                raise BadRunFolder(f"{self.path}: personal layers of client {client}: {wrong}")
        return personal

    @property
    def best_round(self) -> int | None:
        """The round with the best model so far; None if no evaluation was finite."""
        return best_round([row.accuracy for row in self.rounds], [row.loss for row in self.rounds])

    def finish(self, final_model: bytes) -> None:
        """Write the final model; remove the best one if no evaluation was finite."""
        replace_file(self.path / FINAL_MODEL, final_model)
        if self.best_round is None:
            (self.path / BEST_MODEL).unlink(missing_ok=True)


@contextmanager
def create_run_folder(path: Path, scenario: Scenario) -> Iterator[RunFolder]:
    """Create a folder for a run of `scenario`; raise `BadRunFolder` if it exists and is not empty."""
    refuse_existing(path)
    path.mkdir(parents=True, exist_ok=True)
    with lock_file(path / LOCK_FILE, _taken(path)):
        replace_file(path / SCENARIO_FILE, dump_scenario(scenario).encode())
        yield RunFolder(path, scenario, None, [])


def refuse_existing(path: Path) -> None:
    """Raise `BadRunFolder` if a run cannot be started at `path`."""
    if path.exists() and (not path.is_dir() or any(file.name != LOCK_FILE for file in path.iterdir())):
        raise BadRunFolder(f"{path}: exists already; go on with --resume {path}, or choose another folder with --out")


@contextmanager
def open_run_folder(path: Path, allowed: frozenset[str] = frozenset()) -> Iterator[RunFolder]:
    """Open an interrupted run at its last complete round; a torn last line of the journal is dropped.

    Functions that its scenario names must be in `allowed`: the folder is untrusted.
    """
    if not (path / SCENARIO_FILE).is_file():
        raise BadRunFolder(f"{path}: no {SCENARIO_FILE} in it, the folder of a run expected")
    scenario = load_foreign_scenario(path / SCENARIO_FILE, allowed)
    stray = find_stray(path, beside=frozenset([BLOBS_FOLDER]))
    if stray is not None:
        raise BadRunFolder(f"{stray}: a link, pipe or device, only folders and regular files expected")
    with lock_file(path / LOCK_FILE, _taken(path)):
        drop_cut_off(path / JOURNAL_FILE)
        header, rounds = read_journal(path / JOURNAL_FILE)
        if len(rounds) > scenario.rounds:
            raise BadRunFolder(f"{path / JOURNAL_FILE}: {len(rounds)} rounds, at most {scenario.rounds} expected")
        yield RunFolder(path, scenario, header, rounds)


def read_journal(path: Path) -> tuple[JournalHeader | None, list[LearningRound]]:
    """Read the header of a journal and its rounds without a torn last line; None and empty if there is none yet."""
    if not path.exists():
        return None, []
    lines = complete_lines(_read_journal(path))
    if not lines:
        return None, []
    header = decode_line(path, lines[0], 1, JournalHeader, BadRunFolder)
    if header.format != FORMAT:
        raise BadRunFolder(f"{path}: {other_format(header.format, FORMAT)}")
    told = enumerate(lines[1:], start=2)
    rounds = [decode_line(path, line, number, LearningRound, BadRunFolder) for number, line in told]
    for number, row in enumerate(rounds, start=1):
        if row.round != number:
            raise BadRunFolder(f"{path}: line {number + 1} is round {row.round}, round {number} expected")
    return header, rounds


def drop_cut_off(path: Path) -> None:
    """Remove a torn last line."""
    content = _read_journal(path) if path.exists() else b""
    if content and not content.endswith(b"\n"):
        replace_file(path, content[: content.rfind(b"\n") + 1])


def _read_journal(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_JOURNAL)
    except OSError as error:
        raise BadRunFolder(f"{path}: {error.strerror}, a journal expected") from None


def decode_line(path: Path, line: bytes, number: int, kind: type[_Line], refusal: type[BdflError]) -> _Line:
    """Decode a line of a journal; raise `refusal` with its number if it is damaged."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(f"{path}: line {number} is damaged: {one_line(error)}") from None


def _taken(path: Path) -> BadRunFolder:
    return BadRunFolder(f"{path}: another process is at work on this run")


# The folder of a simulated run without a chain: its scenario and its records.

_OTHERS = (JOURNAL_FILE, "network.json", CHAIN_FOLDER)  # contents of other kinds of folders


def refuse_run_folder(folder: Path) -> None:
    """Raise `BadRunFolder` if records would replace those of a run with a chain."""
    for name in _OTHERS:
        if (folder / name).exists():
            raise BadRunFolder(f"{folder}: holds a {name}, a folder of its own expected")


def write_record(scenario: Scenario, record: RunRecord | AggregateRecord, folder: Path) -> list[Path]:
    """Write the scenario, and the records if pyarrow is installed; return the files written."""
    refuse_run_folder(folder)
    return write_record_files(scenario, record, folder)


def write_record_files(scenario: Scenario, record: RunRecord | AggregateRecord, folder: Path) -> list[Path]:
    """Write the same files without checking the folder, for callers that own its chain."""
    path = write_scenario(scenario, folder)
    try:
        from bdfl.records.parquet import write_crowd_parquet, write_parquet
    except ImportError:
        return [path]
    if isinstance(record, AggregateRecord):
        return [path, *write_crowd_parquet(record, folder)]
    return [path, *write_parquet(record, None, folder)]


def write_scenario(scenario: Scenario, folder: Path) -> Path:
    """Write the scenario to `folder`, which is created if necessary, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCENARIO_FILE
    path.write_text(dump_scenario(scenario), encoding="utf-8")
    return path


def verify_chain(folder: Path | str, own_functions: frozenset[str] = frozenset()) -> Verification:
    """Verify the chain in the folder of a run, or in its own, from the genesis on; nothing but the folder is needed.

    `own_functions` are the aggregation rules of the form module:function that may be called.
    """
    path = Path(folder)
    if (path / CHAIN_FOLDER / DATABASE_FILE).is_file():
        path = path / CHAIN_FOLDER
    with ChainStore.open(path, read_only=True) as chain:
        known = known_height(chain, path)
        return verify.verify_chain(chain, own_functions=own_functions, known=known)
