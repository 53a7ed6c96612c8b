"""Check the proposers' signatures of a chain in a separate process, which saves memory in the server."""

import subprocess
import sys
from pathlib import Path

import msgspec

from bdfl.errors import BdflError
from bdfl.explorer.chain_view import find_block, find_forgery
from bdfl.explorer.sources import StoreSource
from bdfl.ledger.roll import BINDS_AFTER, find_change, first_roll

_PATIENCE_S = 600.0


def find_forgeries(path: Path, first: int, last: int) -> dict[int, str]:
    """Return the blocks that are not signed by their proposer, by height; unreadable blocks are left out."""
    source = StoreSource(path)
    try:
        roll, forged = first_roll(source.genesis), {}
        for height in range(1, last + 1):
            found = find_block(source, height)
            if height >= first:
                what = find_forgery(found, roll)
                if what is not None:
                    forged[height] = what
            change = None if found.block is None else find_change(found.block.body.entries)
            if change is not None:
                roll = roll.after(change.change, height + BINDS_AFTER)
        return forged
    finally:
        source.close()


def ask_for_forgeries(path: Path, first: int, last: int) -> dict[int, str]:
    """Run `find_forgeries` in a new process; empty if that fails."""
    command = [sys.executable, "-P", "-m", "bdfl.explorer.signature_check", str(path), str(first), str(last)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S
        )
        return msgspec.json.decode(done.stdout, type=dict[int, str])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return {}


def main() -> None:
    path, first, last = sys.argv[1:]
    try:
        forged = find_forgeries(Path(path), int(first), int(last))
    except (BdflError, IndexError):
        forged = {}
    sys.stdout.buffer.write(msgspec.json.encode(forged))


if __name__ == "__main__":
    main()
