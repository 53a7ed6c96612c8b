"""All runs that are open, and a function for every page: what it shows, as a document.

Any method may be called from any thread. What does not exist raises `NotHere`, a bad parameter `BadRequest`, what takes
too long `Busy`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bdfl.explorer.documents import (
    BlockDocument,
    BlockList,
    ClientDocument,
    CompareDocument,
    DeskDocument,
    DeskSettings,
    FrontierDocument,
    ModelDocument,
    NetworkDocument,
    News,
    Overview,
    StoryDocument,
    VerifyDocument,
)


class Library:
    """The open runs, by number from 0."""

    @property
    def num_runs(self) -> int:
        raise NotImplementedError

    def poll(self, run: int) -> list[News]:
        """What is new since the last poll: blocks (of many only the newest), status, gone, back.

        Cheap where nothing happened; to be called every half second or so by one thread for all viewers.
        """
        raise NotImplementedError

    def overview(self, run: int) -> Overview:
        raise NotImplementedError

    def story(self, run: int, first: int = 1, last: int | None = None, points: int = 2000) -> StoryDocument:
        """Rounds `first` to `last` in at most `points` rows; no round in there gives empty columns."""
        raise NotImplementedError

    def blocks(self, run: int, first: int | None = None, last: int | None = None) -> BlockList:
        """At most 50 blocks, the newest unless said otherwise, by falling height."""
        raise NotImplementedError

    def block(self, run: int, height: int) -> BlockDocument:
        raise NotImplementedError

    def raw_block(self, run: int, height: int) -> bytes:
        """A MessagePack array of the block's and its certificate's bytes, as they are stored."""
        raise NotImplementedError

    def raw_genesis(self, run: int) -> bytes:
        """The canonical bytes of the genesis."""
        raise NotImplementedError

    def network(self, run: int, round: int | None = None) -> NetworkDocument:
        """The round after the newest block unless said otherwise."""
        raise NotImplementedError

    def client(self, run: int, number: int) -> ClientDocument:
        raise NotImplementedError

    def model(self, run: int, height: int, without: int | None = None, other: int | None = None) -> ModelDocument:
        raise NotImplementedError

    def desk(self, run: int, height: int | None, settings: DeskSettings) -> DeskDocument:
        """The problem of round `height`; none: of the round after the newest block."""
        raise NotImplementedError

    def frontier(self, run: int) -> FrontierDocument:
        raise NotImplementedError

    def compare(self) -> CompareDocument:
        raise NotImplementedError

    def verify(self, run: int) -> VerifyDocument:
        raise NotImplementedError


@contextmanager
def open_library(paths: Sequence[Path], node: str | None = None) -> Iterator[Library]:
    """The runs at these paths, then the node behind a window at host:port; raises `CannotOpen` for what is none."""
    raise NotImplementedError
    yield Library()
