"""Sources of blocks: a store in a folder, which another process may write to, or the status server of a live node."""

import http.client
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bdfl.encoding import BadEncoding
from bdfl.errors import one_line
from bdfl.explorer.chain_view import Stored
from bdfl.ledger.block import MAX_BLOCK_SIZE, Genesis, chain_id
from bdfl.ledger.chain_rows import decode_stored
from bdfl.ledger.keeping import DamagedStore, NotAStore, StoreError
from bdfl.ledger.store import DATABASE_FILE, ChainStore
from bdfl.operation.status import ask_status

_PATIENCE_S = 2.0
_PAIR = msgspec.msgpack.Decoder(tuple[bytes, bytes])


class Unreachable(StoreError):
    """A node's status server that does not answer."""


class StoreSource:
    """The chain in a folder; reopened if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._store, self._file = self._open()
        self.genesis: Genesis = self._store.genesis

    def close(self) -> None:
        with self._turn:
            self._store.close()

    def height(self) -> int:
        with self._turn:
            self._follow()
            return self._store.height

    def read(self, height: int) -> Stored:
        with self._turn:
            try:
                block, certificate = self._store.raw_block(height)
            except IndexError as error:
                raise NotAStore(f"block {height} is missing") from error
            except StoreError as error:
                raise type(error)(self._bare(error)) from None
            try:
                self._store.certificate(height)
            except StoreError as error:
                return Stored(block, certificate, self._bare(error))
            return Stored(block, certificate)

    @property
    def checkpoint(self) -> int:
        """The last block whose updates were pruned."""
        with self._turn:
            return self._store.checkpoint

    @property
    def folder(self) -> Path | None:
        return self.path

    def _open(self) -> tuple[ChainStore, tuple[int, int]]:
        file = _identity(self.path / DATABASE_FILE)
        return ChainStore.open(self.path, read_only=True), file

    def _follow(self) -> None:
        """Reopen the file if it was replaced; raise `StoreError` if it is missing or of another chain."""
        file = _identity(self.path / DATABASE_FILE)
        if file == self._file:
            return
        store, file = self._open()
        if chain_id(store.genesis) != chain_id(self.genesis):
            store.close()
            raise NotAStore("another chain is in the folder now")
        self._store.close()
        self._store, self._file = store, file

    def _bare(self, error: StoreError) -> str:
        """Return the error without the folder's path, which pages must not reveal."""
        return one_line(error).replace(f"{self.path}: ", "").replace(f"{self.path / DATABASE_FILE}: ", "")


class NetworkSource:
    """The chain of a local network: the highest of all its nodes' stores."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._sources: dict[Path, StoreSource] = {}
        self._best: StoreSource | None = None
        self.height()
        if self._best is None:
            raise NotAStore("no node has a chain yet; start the network first")
        self.genesis: Genesis = self._best.genesis

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def height(self) -> int:
        heights = {}
        for path in self._paths:
            try:
                source = self._sources.get(path) or self._sources.setdefault(path, StoreSource(path))
                heights[source] = source.height()
            except StoreError:
                continue  # not started, or gone: use the others
        if not heights:
            raise NotAStore("no node's chain can be read")
        self._best = max(heights, key=lambda source: (heights[source], source is self._best))
        return heights[self._best]

    @property
    def best(self) -> StoreSource:
        assert self._best is not None
        return self._best

    @property
    def folder(self) -> Path | None:
        return self.best.folder

    @property
    def checkpoint(self) -> int:
        return self.best.checkpoint

    def read(self, height: int) -> Stored:
        return self.best.read(height)


class WindowSource:
    """The chain of a live node, read from its status server and not trusted."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._turn = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        try:
            self.genesis: Genesis = decode_stored(self._get("/chain/genesis"), Genesis)
        except BadEncoding as error:
            raise DamagedStore(f"{address}: {one_line(error)}, the genesis of a chain expected") from None
        self._chain = chain_id(self.genesis).hex()

    def close(self) -> None:
        with self._turn:
            self._hang_up()

    @property
    def folder(self) -> Path | None:
        return None

    @property
    def checkpoint(self) -> int:
        return 0

    def height(self) -> int:
        found = ask_status(self.address, _PATIENCE_S)
        if found is None:
            raise Unreachable(f"{self.address} does not answer")
        if found.chain != self._chain:
            raise NotAStore(f"{self.address} is on another chain now")
        return found.height

    def read(self, height: int) -> Stored:
        try:
            block, certificate = _PAIR.decode(self._get(f"/chain/blocks/{height}"))
        except msgspec.DecodeError as error:
            raise DamagedStore(f"block {height}: {one_line(error)}, a block and its certificate expected") from None
        return Stored(block, certificate)

    def _get(self, path: str) -> bytes:
        with self._turn:
            for is_last in (False, True):  # retry once: an idle connection may be closed
                try:
                    return self._ask(path)
                except (OSError, http.client.HTTPException) as error:
                    self._hang_up()
                    if is_last:
                        raise Unreachable(f"{self.address}{path}: {one_line(error)}") from None
            raise AssertionError

    def _ask(self, path: str) -> bytes:
        if self._connection is None:
            host, _, port = self.address.rpartition(":")
            self._connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_PATIENCE_S)
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        content = answer.read(2 * MAX_BLOCK_SIZE)
        if answer.will_close or not answer.isclosed():
            self._hang_up()
        if answer.status != http.client.OK:
            raise DamagedStore(f"{self.address}{path}: answered {answer.status}, 200 expected")
        return content

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise NotAStore(f"{path.name}: {error.strerror}") from None
    return found.st_dev, found.st_ino
