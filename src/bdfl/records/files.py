"""Files of a run and of a node: round times, and the height that they prove; a shorter chain was truncated."""

from pathlib import Path

import msgspec

from bdfl.errors import BdflError, one_line
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.store import KnownHeight
from bdfl.records.learning import CHAIN_FOLDER, JOURNAL_FILE
from bdfl.storage import complete_lines, open_regular, read_regular

# Measured and modelled times of a node's rounds, as JSON lines.

ROUNDS_FILE = "rounds.jsonl"
_MAX_FILE = 2**28  # bytes


class BadRoundsFile(BdflError):
    """A file of round times that cannot be read."""


class ModelledRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Modelled durations of a round, and of one client in it; the delay is the sum of exchange, mining and rest."""

    training_ns: int  # 0 if not scheduled
    upload_ns: int
    exchange_ns: int  # until the slowest client has uploaded
    mining_ns: int  # from then until the first block of the first attempt is found
    rest_ns: int  # downlink, verification and voting
    delay_ns: int

    def scaled(self, scale: float) -> "ModelledRound":
        """The same round in a time scale."""
        return ModelledRound(*(round(getattr(self, name) * scale) for name in self.__struct_fields__))


class RoundTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round of one node; the delay is exchange, then mining, then voting."""

    node: int
    round: int
    attempt: int  # attempt of the committed block
    num_updates: int  # in it
    is_whole: bool  # observed from its beginning, not by state sync
    time_scale: float
    modelled: ModelledRound  # scaled by the time scale
    training_ns: int | None  # from the start of training until the model is available; none: not trained
    computing_ns: int  # of it, without waiting
    hashing_ns: int
    upload_ns: dict[int, int]  # by client: from the announcement of its update until it is stored
    exchange_ns: int  # from the beginning until collection ends and the own update is released
    mining_ns: int  # from then until the first valid proposal is received
    voting_ns: int  # from then until the commit
    delay_ns: int

    @property
    def overhead_ns(self) -> int:
        """Measured delay minus modelled delay (ns)."""
        return self.delay_ns - self.modelled.delay_ns


_DECODER = msgspec.json.Decoder(RoundTimes)


def former_rounds(path: Path) -> Path:
    """Return the path of the previous, rotated file of rounds."""
    return path.with_name(path.name + ".1")


def read_rounds(path: Path) -> list[RoundTimes]:
    """Read the rounds of the rotated file and of this one, without a truncated last line; raise `BadRoundsFile`."""
    former = former_rounds(path)
    return [*(_read_file(former) if former.exists() else ()), *_read_file(path)]


def _read_file(path: Path) -> list[RoundTimes]:
    try:
        lines = complete_lines(read_regular(path, _MAX_FILE))
    except OSError as error:
        raise BadRoundsFile(f"{path}: {error.strerror}, a file of round times expected") from None
    rounds = []
    for number, line in enumerate(lines, start=1):
        try:
            rounds.append(_DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = one_line(error)
            raise BadRoundsFile(f"{path}: line {number}: {reason}, the times of a round expected") from None
    return rounds


# Height that a chain is known to have reached; a shorter chain was truncated.

_MAX_JOURNAL = 2**30  # bytes
_TAIL = 2**16  # bytes read from the end of a file to find its last line


def known_height(chain: ChainStore, path: Path) -> KnownHeight:
    """Return the height by the database of the chain at `path` and by the journals beside it, the highest one.

    Call it before reading the chain: another process may be writing, and every journal is written after the chain.
    """
    rounds = {DATABASE_FILE: chain.known_height}
    if path.resolve().name == CHAIN_FOLDER:
        beside = path.resolve().parent
        rounds |= {
            JOURNAL_FILE: _count_lines(beside / JOURNAL_FILE) - 1,
            ROUNDS_FILE: _last_round(beside / ROUNDS_FILE),
        }
    source = max(rounds, key=lambda name: rounds[name])
    return KnownHeight(rounds[source], source)


def _count_lines(path: Path) -> int:
    """Return the number of complete lines of a file; 0 if it is missing or unreadable."""
    try:
        with open_regular(path, _MAX_JOURNAL) as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(_TAIL), b""))
    except OSError:
        return 0


def _last_round(path: Path) -> int:
    """Return the round of the last complete line of a node's rounds file; 0 if it is missing or unreadable."""
    try:
        with open_regular(path, _MAX_JOURNAL) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return _DECODER.decode(complete_lines(file.read(_TAIL))[-1]).round
    except (OSError, IndexError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
