"""The height that a chain has reached by what is written beside its blocks: a shorter one was cut."""

from pathlib import Path

import msgspec

from bdfl.foreign_files import open_regular
from bdfl.ledger.store import DATABASE_FILE, ChainStore
from bdfl.ledger.verify import KnownHeight
from bdfl.records.round_times import ROUNDS_FILE, RoundTimes
from bdfl.records.run_files import CHAIN_FOLDER, JOURNAL_FILE

_MAX_JOURNAL = 2**30  # bytes
_TAIL = 2**16  # bytes in which the last line of a file ends
_TIMES = msgspec.json.Decoder(RoundTimes)


def known_height(chain: ChainStore, path: Path) -> KnownHeight:
    """The height of the chain in the folder `path`, by its own rows and by the journals of a run or node beside it.

    To be asked before the chain is read: others may be writing, and every journal follows the chain.
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
    """Whole lines of a file; 0: it is not there or cannot be read."""
    try:
        with open_regular(path, _MAX_JOURNAL) as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(_TAIL), b""))
    except OSError:
        return 0


def _last_round(path: Path) -> int:
    """The round of the last whole line of a node's rounds; 0: none can be read."""
    try:
        with open_regular(path, _MAX_JOURNAL) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return _TIMES.decode(file.read(_TAIL).split(b"\n")[-2]).round
    except (OSError, IndexError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
