"""HTTP pages that serve a node's chain as stored, for clients that verify it themselves.

They read through a database connection of their own, so requests never block the node.
"""

import threading
from http import HTTPStatus
from pathlib import Path

import msgspec

from bdfl.encoding import encode
from bdfl.ledger.keeping import StoreError
from bdfl.ledger.store import ChainStore
from bdfl.operation.window import Page, refusal

BYTES = "application/octet-stream"
GENESIS_PAGE = "/chain/genesis"
BLOCK_PAGES = "/chain/blocks/"  # followed by a height


class ChainPages:
    """Serves the genesis and blocks of the chain in a folder. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._store: ChainStore | None = None  # opened by the first request

    def genesis(self) -> Page:
        """Serve the genesis in canonical bytes."""
        with self._turn:
            try:
                return Page(encode(self._open().genesis), BYTES)
            except StoreError:
                return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the chain cannot be read")

    def block(self, height: int) -> Page:
        """Serve a MessagePack array of two byte strings: a block and its certificate."""
        with self._turn:
            try:
                return Page(msgspec.msgpack.encode(self._open().raw_block(height)), BYTES)
            except IndexError as error:
                return refusal(HTTPStatus.NOT_FOUND, f"not here: {error} expected")
            except StoreError:
                return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the chain cannot be read")

    def close(self) -> None:
        with self._turn:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _open(self) -> ChainStore:
        if self._store is None:
            self._store = ChainStore.open(self._path, read_only=True)
        return self._store
