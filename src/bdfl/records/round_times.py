"""How long a node's rounds took beside what the model says, one line of JSON each."""

from pathlib import Path

import msgspec

from bdfl.errors import BdflError, one_line
from bdfl.foreign_files import read_regular

ROUNDS_FILE = "rounds.jsonl"
_MAX_FILE = 2**28  # bytes


class BadRoundsFile(BdflError):
    """A file of round times that cannot be read."""


class Stretched(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A modelled round times the time scale (ns); training and upload are this node's own, 0 if it is not scheduled."""

    training_ns: int
    upload_ns: int
    exchange_ns: int
    mining_ns: int
    rest_ns: int
    delay_ns: int


class RoundTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round of one node. Exchange, mining and voting follow each other and make up the delay."""

    node: int
    round: int
    attempt: int  # whose block was agreed on
    num_updates: int  # in it
    is_whole: bool  # seen from its beginning, and not caught up with
    time_scale: float
    modelled: Stretched
    training_ns: int | None  # from the order to train until the model is there; none: not trained
    computing_ns: int  # of it, without waiting
    hashing_ns: int
    upload_ns: dict[int, int]  # by client: from hearing of its update until it is held
    exchange_ns: int  # from the beginning until collecting is over and the own update is let out
    mining_ns: int  # from then until the first valid block is here
    voting_ns: int  # from then until it is decided
    delay_ns: int

    @property
    def overhead_ns(self) -> int:
        """What the round took beyond the model."""
        return self.delay_ns - self.modelled.delay_ns


_DECODER = msgspec.json.Decoder(RoundTimes)


def former_rounds(path: Path) -> Path:
    """The file of rounds before the one that is written."""
    return path.with_name(path.name + ".1")


def read_rounds(path: Path) -> list[RoundTimes]:
    """The rounds in a file and in the one before it, without a last line that is cut off; raises `BadRoundsFile`."""
    former = former_rounds(path)
    return [*(_read_file(former) if former.exists() else ()), *_read_file(path)]


def _read_file(path: Path) -> list[RoundTimes]:
    try:
        *lines, _ = read_regular(path, _MAX_FILE).split(b"\n")
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
