"""An in-memory overlay over a stored chain, for a node that continues it."""

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.keeping import MisplacedBlock, Store
from bdfl.ledger.memory_store import MemoryStore


class ContinuedStore(MemoryStore):
    """An overlay `Store`: the first blocks, and blobs that it does not hold itself, are read from `past`."""

    def __init__(self, past: Store, height: int) -> None:
        """Continue the chain after block `height` of `past`, which may have more."""
        initial = past.get_blob(past.genesis.model.initial)
        if initial is None or height > past.height:
            raise MisplacedBlock(f"a chain of {past.height} blocks, one of {height} and the untrained model expected")
        self._past = past
        self._first = height
        super().__init__(past.genesis, initial)

    @property
    def height(self) -> int:
        return self._first + len(self._blocks)

    def block(self, height: int) -> Block:
        return self._past.block(height) if height <= self._first else super().block(height)

    def certificate(self, height: int) -> Certificate:
        return self._past.certificate(height) if height <= self._first else super().certificate(height)

    def has_blob(self, blob: bytes) -> bool:
        return super().has_blob(blob) or self._past.has_blob(blob)

    def get_blob(self, blob: bytes) -> bytes | None:
        own = super().get_blob(blob)
        return self._past.get_blob(blob) if own is None else own

    def _index(self, height: int) -> int:
        return super()._index(height) - self._first
