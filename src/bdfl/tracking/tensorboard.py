"""TensorBoard tracker: a folder per run, with event files written as rounds end.

A round is one record of a file, so it is written completely or not at all. A resumed run gets another file in the same
folder; rounds already there are not written again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bdfl.errors import require
from bdfl.tracking.tracker import Outcome, TrackedRun, UnknownTracker

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

_FILES = "events.out.tfevents.*"  # pattern of TensorBoard's files
_FILE_VERSION = "brain.Event:2"


def open_tensorboard(folder: str) -> "TensorBoardTracker":
    """Open a tracker that writes below `folder`, the argument of `tensorboard --logdir`."""
    require("--track tensorboard", "tensorboard")
    if not folder:
        raise UnknownTracker("tensorboard: no folder given, tensorboard:FOLDER expected")
    return TensorBoardTracker(Path(folder))


class TensorBoardTracker:
    """Writes runs into folders below `folder`, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._folder = folder
        self._run = TrackedRun(name="", experiment="", identity="")
        self._known: set[int] = set()  # rounds already there
        self._file: BinaryIO | None = None
        self._last_round = 0

    def begin(self, run: TrackedRun) -> None:
        self._run = run
        self._folder = _choose_folder(self._root, run)
        self._known = {event.step for event in read_events(self._folder) if event.step}
        if not self._known:
            self._open()

    def round(self, round: int, values: Mapping[str, float]) -> None:
        if round in self._known:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Summary(value=numbers), round)
        self._last_round = round

    def finish(self, outcome: Outcome, files: Sequence[Path]) -> None:
        if self._last_round and files:
            from tensorboard.plugins.text.summary_v2 import text_pb

            self._write(text_pb("files", "\n\n".join(str(path.absolute()) for path in files)), self._last_round)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        """Open a new file, which starts with the identity of the run."""
        from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._folder.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(self._folder.glob(_FILES)))
        self._file = (self._folder / _FILES.replace("*", f"{number:010d}.bdfl")).open("xb")
        source = SourceMetadata(writer=_writer_name(self._run))
        self._append(Event(wall_time=time.time(), file_version=_FILE_VERSION, source_metadata=source))
        if number == 1:
            self._write(hparams_pb(dict(self._run.parameters), trial_id=self._run.name), 0)
            if self._run.document:
                indented = "".join(f"    {line}\n" for line in self._run.document.splitlines())
                self._write(text_pb("scenario", indented), 0)

    def _write(self, summary: Any, round: int) -> None:  # protocol buffers have no types
        from tensorboard.compat.proto.event_pb2 import Event

        if self._file is None:
            self._open()
        self._append(Event(wall_time=time.time(), step=round, summary=summary))

    def _append(self, event: "Event") -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._file is not None
        RecordWriter(self._file).write(event.SerializeToString())
        self._file.flush()


def read_events(folder: Path) -> "Iterator[Event]":
    """Yield all events in the files of a run's folder, in order; a torn record ends its file."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(folder.glob(_FILES)):
        yield from LegacyEventFileLoader(str(path)).Load()


def _choose_folder(root: Path, run: TrackedRun) -> Path:
    """Return the folder of the run: the existing one of a resumed run, or else a new one."""
    number, begun = 1, None
    while (folder := root / (run.name if number == 1 else f"{run.name}-{number}")).exists():
        first = next(read_events(folder), None)
        if first is not None and first.source_metadata.writer == _writer_name(run):
            begun = folder
        number += 1
    return begun if run.is_continued and begun is not None else folder


def _writer_name(run: TrackedRun) -> str:
    return f"bdfl {run.identity}"
