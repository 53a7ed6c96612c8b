"""A node's memory of what happened to it: every event in order, so that anybody can play its part again.

A file of frames: length and CRC-32 of a record, 4 bytes each, then its canonical bytes. Whatever a sudden end left
unfinished at the end of the file is recognised and cut off when the next life begins. Blobs are named by their digest,
their bytes are in the store; those that were refused are not, and stand here.
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
    Conditions,
    Header,
    MemberNumber,
    MembershipChange,
    Receipt,
    SignedReport,
    SignedUpdate,
    SignedVote,
    TimeMs,
)
from bdfl.ledger.chain import ChainState
from bdfl.ledger.toolbox import Toolbox
from bdfl.protocol.events import (
    ChangeOffered,
    Event,
    KeptProgress,
    Measured,
    MessageArrived,
    NonceFound,
    Started,
    Timer,
    TimerFired,
    TrainingFinished,
)
from bdfl.protocol.messages import Blob, Message
from bdfl.protocol.state import Context, NodeState, Recovered

FORMAT = 4  # 1: without epsilon, 2: without the wall clock, 3: without what is kept and lacking
MAX_BYTES = 256 * 2**20
EVENTS_FILE = "events.log"
_HEAD = struct.Struct(">II")
_MAX_FRAME = 4 * MAX_BLOCK_SIZE
_NO_BLOB = b""

_Nonce: TypeAlias = Annotated[bytes, Meta(max_length=64)]
_BlobName: TypeAlias = Annotated[bytes, Meta(max_length=32)]


class BrokenLog(BdflError):
    """A file that is not the log of a node."""


class LoggedProgress(Record, frozen=True):
    attempt: Attempt
    lock: Certificate


class Began(Record, frozen=True, tag="began"):
    """A life of the node, with what it found in its store."""

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


class LoggedStart(Record, frozen=True, tag="started"):
    pass


class LoggedMessage(Record, frozen=True, tag="message"):
    message: Message


class LoggedBlob(Record, frozen=True, tag="blob"):
    sender: MemberNumber
    height: Whole
    blob: Digest
    data: bytes  # only if it was refused


class LoggedTimer(Record, frozen=True, tag="timer"):
    timer: str
    height: Whole
    attempt: Whole


class LoggedTraining(Record, frozen=True, tag="trained"):
    height: Whole
    parent: Digest
    model: _BlobName  # none: it diverged
    epsilon_micro: Whole


class LoggedMeasures(Record, frozen=True, tag="measured"):
    round: Whole
    conditions: Conditions
    receipt: Receipt | None


class LoggedNonce(Record, frozen=True, tag="nonce"):
    header: Header
    nonce: _Nonce


class LoggedChange(Record, frozen=True, tag="change"):
    change: MembershipChange


LoggedEvent: TypeAlias = (
    LoggedStart
    | LoggedMessage
    | LoggedBlob
    | LoggedTimer
    | LoggedTraining
    | LoggedMeasures
    | LoggedNonce
    | LoggedChange
)


class Happened(Record, frozen=True, tag="happened"):
    """An event, when it was taken in by both clocks, and what the node signed because of it, in order."""

    now_ns: Whole
    utc_ms: TimeMs
    event: LoggedEvent
    signatures: tuple[Signature, ...]


@prepared
class _Entry(Record, frozen=True):
    entry: Began | Happened


def log_event(event: Event, after: NodeState, toolbox: Toolbox) -> LoggedEvent:
    """An event as it is written down; `after` is the state it led to."""
    match event:
        case MessageArrived(Message(content=Blob(data)) as message):
            blob = toolbox.digest(data)
            return LoggedBlob(message.sender, message.height, blob, data if blob in after.refused else b"")
        case MessageArrived(message):
            return LoggedMessage(message)
        case TimerFired(timer, height, attempt):
            return LoggedTimer(timer.value, height, attempt)
        case TrainingFinished(height, parent, model, epsilon_micro):
            return LoggedTraining(height, parent, _NO_BLOB if model is None else toolbox.digest(model), epsilon_micro)
        case Measured(round, conditions, receipt):
            return LoggedMeasures(round, conditions, receipt)
        case NonceFound(header, nonce):
            return LoggedNonce(header, nonce)
        case ChangeOffered(change):
            return LoggedChange(change)
        case Started():
            return LoggedStart()


def log_beginning(context: Context, chain: ChainState, recovered: Recovered) -> Began:
    """What a life begins with."""
    timing, progress = context.timing, recovered.progress
    return Began(
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


def progress_of(began: Began) -> KeptProgress | None:
    progress = began.progress
    return None if progress is None else KeptProgress(began.height + 1, progress.attempt, progress.lock)


class EventLog:
    """The log of a node that is running. What cannot be written ends the log, not the node.

    A life ends with a height, and no height may fill the disk: once the file has twice `max_bytes`, the rest of the
    life is not written down. The next life begins in a new file, and the one before the former is forgotten. So at most
    four times `max_bytes` are on the disk, beside what two lives begin with.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._size = 0
        self._is_cut = False  # the rest of this life is left out: what follows a gap could not be played again
        self._file: BinaryIO | None = None
        with suppress(OSError):
            self._file = self._open()

    @property
    def is_writing(self) -> bool:
        """Whether events are written down; never again if the disk refused one, not in a life that grew too long."""
        return self._file is not None and not self._is_cut

    @property
    def is_full(self) -> bool:
        """Whether the next life should begin in a new file."""
        return self._is_cut or self._size > self._max_bytes

    def begin(self, began: Began) -> None:
        """A new life; in a new file if this one is full."""
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
        data = encode(_Entry(Happened(now_ns, utc_ms, event, tuple(signatures))))
        self._is_cut = len(data) > _MAX_FRAME or self._size + _HEAD.size + len(data) > 2 * self._max_bytes
        if not self._is_cut:
            self._write(data)

    def flush(self) -> None:
        """Gives all to the system: it outlives the process, perhaps not the machine. From any thread."""
        file = self._file
        if file is not None:
            try:
                file.flush()
            except (OSError, ValueError):  # full, or closed meanwhile
                self._file = None

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        """The file, without what was left unfinished at its end."""
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
    """The log before the one that is written."""
    return path.with_name(path.name + ".1")


def read_entries(path: Path) -> Iterator[Began | Happened]:
    """All entries of a log, up to a tail that was cut off; raises `BrokenLog` if it is none of ours."""
    try:
        for data, _ in _read_frames(path):
            yield decode(data, _Entry, _MAX_FRAME).entry
    except (OSError, BadEncoding) as error:
        raise BrokenLog(f"{path}: {error}, the log of a node expected") from None


def _read_frames(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole frames and their sizes in the file, until the first that is not."""
    with path.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            if length > _MAX_FRAME:
                return
            data = file.read(length)
            if len(data) != length or zlib.crc32(data) != checksum:
                return
            yield data, _HEAD.size + length


def read_timer(logged: LoggedTimer) -> TimerFired:
    return TimerFired(Timer(logged.timer), logged.height, logged.attempt)
