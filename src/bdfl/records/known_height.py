"""Verification of the chain in a folder; a chain shorter than its journals say was truncated."""

from pathlib import Path

import msgspec

from bdfl.ledger import verify
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.verify import KnownHeight, Verification
from bdfl.records.learning import CHAIN_FOLDER, JOURNAL_FILE
from bdfl.records.round_times import ROUNDS_FILE, RoundTimes
from bdfl.storage import open_regular

_MAX_JOURNAL = 2**30  # bytes
_TAIL = 2**16  # bytes read from the end of a file to find its last line
_TIMES = msgspec.json.Decoder(RoundTimes)


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
            return _TIMES.decode(file.read(_TAIL).split(b"\n")[-2]).round
    except (OSError, IndexError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
