"""Write-ahead log of a node's events, in order, for deterministic replay.

The file consists of frames: length and CRC-32 of a record, 4 bytes each, then its canonical bytes. A torn frame at the
end is detected and truncated at the next start. Blobs are logged by digest and stored elsewhere; only refused blobs,
which the store does not keep, are logged whole. An incarnation runs from one start to its end.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO, TypeAlias

from msgspec import Meta

from bdfl.encoding import BadEncoding, Digest, Record, Signature, Whole, decode, encode, prepared
from bdfl.errors import BdflError
from bdfl.ledger.block import (
    MAX_BLOCK_SIZE,
    Attempt,
    Block,
    Certificate,
    MemberNumber,
    SignedReport,
    SignedUpdate,
    SignedVote,
    TimeMs,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.protocol.events import (
    BlobArrived,
    ChangeOffered,
    Event,
    Measured,
    MessageArrived,
    NonceFound,
    PeersAppeared,
    Started,
    TimerFired,
    TrainingFinished,
)
from bdfl.protocol.state import Context, NodeState, Recovered

FORMAT = 5  # 1: no epsilon, 2: no wall clock, 3: no `keep_blocks` and `lacks_model`, 4: blobs as messages
MAX_BYTES = 256 * 2**20
EVENTS_FILE = "events.log"
_HEAD = struct.Struct(">II")
_MAX_FRAME = 4 * MAX_BLOCK_SIZE

_BlobName: TypeAlias = Annotated[bytes, Meta(max_length=32)]


class BrokenLog(BdflError):
    """The file is not the log of a node."""


class LoggedProgress(Record, frozen=True):
    attempt: Attempt
    lock: Certificate


class LogHeader(Record, frozen=True, tag="began"):
    """The start of a node, with the state recovered from its store."""

    format: Whole
    chain: Digest
    number: MemberNumber
    public_key: Digest
    height: Whole
    grace_ns: Whole
    attempt_ns: Whole
    resend_ns: Whole
    time_scale: str  # as `float.hex` writes it
    last_height: Whole | None
    keep_blocks: Whole
    certificate: Certificate
    update: SignedUpdate | None
    report: SignedReport | None
    blocks: tuple[Block, ...]
    votes: tuple[SignedVote, ...]
    progress: LoggedProgress | None
    blobs: tuple[Digest, ...]
    lacks_model: bool


class LoggedBlob(Record, frozen=True, tag="blob"):
    holder: MemberNumber
    blob: Digest
    data: bytes  # only if it was refused


class LoggedTraining(Record, frozen=True, tag="trained"):
    height: Whole
    parent: Digest
    model: _BlobName  # empty: training diverged
    epsilon_micro: Whole


LoggedEvent: TypeAlias = (
    Started
    | MessageArrived
    | LoggedBlob
    | PeersAppeared
    | TimerFired
    | LoggedTraining
    | Measured
    | NonceFound
    | ChangeOffered
)


class LoggedStep(Record, frozen=True, tag="happened"):
    """An event, its time by both clocks, and the signatures made in its step, in order."""

    now_ns: Whole
    utc_ms: TimeMs
    event: LoggedEvent
    signatures: tuple[Signature, ...]


@prepared
class _Entry(Record, frozen=True):
    entry: LogHeader | LoggedStep


def log_event(event: Event, after: NodeState, cache: VerificationCache) -> LoggedEvent:
    """Return the log record of an event; `after` is the state after its step."""
    match event:
        case BlobArrived(holder, data):
            blob = cache.digest(data)
            return LoggedBlob(holder, blob, data if blob in after.refused else b"")
        case TrainingFinished(height, parent, model, epsilon_micro):
            return LoggedTraining(height, parent, b"" if model is None else cache.digest(model), epsilon_micro)
        case _:
            return event


def log_beginning(context: Context, chain: ChainState, recovered: Recovered) -> LogHeader:
    """Return the log record of a node's start."""
    timing, progress = context.timing, recovered.progress
    return LogHeader(
        FORMAT,
        chain.chain,
        context.number,
        context.signer.public_key,
        chain.height,
        timing.grace_ns,
        timing.attempt_ns,
        timing.resend_ns,
        float(timing.time_scale).hex(),
        context.last_height,
        context.keep_blocks,
        recovered.certificate,
        recovered.update,
        recovered.report,
        recovered.blocks,
        recovered.votes,
        None if progress is None else LoggedProgress(progress.attempt, progress.lock),
        tuple(sorted(recovered.blobs)),
        recovered.lacks_model,
    )


class EventLog:
    """The log of a running node. A write error ends the log, not the node.

    A new incarnation begins only between heights, and no height may fill the disk. So beyond twice `max_bytes` the rest
    of an incarnation is not logged. The next one begins in a new file, and only one former file is kept. The disk holds
    at most four times `max_bytes`, plus the first records of two incarnations.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._size = 0
        self._is_cut = False  # the rest is not logged: events after a gap cannot be replayed
        self._file: BinaryIO | None = None
        with suppress(OSError):
            self._file = self._open()

    @property
    def is_writing(self) -> bool:
        """True while events are logged: not after a write error, nor in the rest of an overlong incarnation."""
        return self._file is not None and not self._is_cut

    @property
    def is_full(self) -> bool:
        """True if the next incarnation should begin in a new file."""
        return self._is_cut or self._size > self._max_bytes

    def begin(self, began: LogHeader) -> None:
        """Log the start of an incarnation, in a new file if this one is full."""
        if self.is_full and self._file is not None:
            try:
                self._file.close()
                os.replace(self._path, former_log(self._path))
                self._file = self._open()
            except OSError:
                self._file = None
        self._is_cut = False
        self._write(encode(_Entry(began)))
        self.flush()

    def append(self, now_ns: int, utc_ms: int, event: LoggedEvent, signatures: Sequence[bytes]) -> None:
        if not self.is_writing:
            return
        data = encode(_Entry(LoggedStep(now_ns, utc_ms, event, tuple(signatures))))
        self._is_cut = len(data) > _MAX_FRAME or self._size + _HEAD.size + len(data) > 2 * self._max_bytes
        if not self._is_cut:
            self._write(data)

    def flush(self) -> None:
        """Flush without fsync: the log survives a crash of the process, not of the machine. Thread-safe."""
        file = self._file
        if file is not None:
            try:
                file.flush()
            except (OSError, ValueError):  # disk full, or closed meanwhile
                self._file = None

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        """Open the file for appending and truncate a torn frame."""
        self._size = sum(size for _, size in _read_frames(self._path)) if self._path.exists() else 0
        file = self._path.open("ab")
        file.truncate(self._size)
        return file

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        except (OSError, ValueError):
            self._file = None
            return
        self._size += _HEAD.size + len(data)


def former_log(path: Path) -> Path:
    """Return the path of the rotated log."""
    return path.with_name(path.name + ".1")


def read_entries(path: Path) -> Iterator[LogHeader | LoggedStep]:
    """Yield all entries of a log up to a torn tail; raises `BrokenLog` if it is not a node's log."""
    try:
        for data, _ in _read_frames(path):
            yield decode(data, _Entry, _MAX_FRAME).entry
    except (OSError, BadEncoding) as error:
        raise BrokenLog(f"{path}: {error}, the log of a node expected") from None


def _read_frames(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield records and their frame sizes up to the first incomplete or corrupt frame."""
    with path.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            if length > _MAX_FRAME:
                return
            data = file.read(length)
            if len(data) != length or zlib.crc32(data) != checksum:
                return
            yield data, _HEAD.size + length
