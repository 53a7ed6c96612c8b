"""Cache of blobs served to peers: recent ones in memory, others read from the store."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from bdfl.encoding import digest
from bdfl.ledger.keeping import Store
from bdfl.transports.live.ports import Offer


@dataclass(frozen=True)
class _Upload:
    """The node's own update and its upload interval."""

    blob: bytes
    begun_ns: int
    done_ns: int


class BlobShelf:
    """FIFO cache over the store; a repeated `put` renews a blob. Thread-safe; disk reads happen outside the lock."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        """`max_bytes` bounds the blobs in memory; one blob is always kept."""
        self._store = store
        self._max_bytes = max_bytes
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_bytes = 0
        self._withheld: bytes | None = None
        self._upload: _Upload | None = None
        self._lock = threading.Lock()

    def put(self, blob: bytes, data: bytes) -> None:
        """Cache a blob that the store holds."""
        with self._lock:
            if blob in self._recent:
                self._recent.move_to_end(blob)
                return
            self._recent[blob] = data
            self._num_bytes += len(data)
            while self._num_bytes > self._max_bytes and len(self._recent) > 1:
                self._num_bytes -= len(self._recent.popitem(last=False)[1])

    def get(self, blob: bytes) -> bytes | None:
        """Return the bytes of that digest or None; raises `DamagedStore` if a block needs them and they are lost."""
        with self._lock:
            data = self._recent.get(blob)
        if data is None and self._store.has_blob(blob):
            data = self._store.read_unchecked(blob)
            if data is None or digest(data) != blob:
                return None
            self.put(blob, data)
        return data

    def withhold(self, blob: bytes | None) -> None:
        """Withhold the node's own update of the current round until its upload begins. None: there is none."""
        self._withheld, self._upload = blob or None, None

    def upload(self, begun_ns: int, done_ns: int) -> None:
        """Serve the withheld blob from now on, at the pace of its upload."""
        if self._withheld is not None and self._upload is None:
            self._upload = _Upload(self._withheld, begun_ns, done_ns)

    @property
    def is_withholding(self) -> bool:
        return self._withheld is not None and self._upload is None

    def offer(self, blob: bytes) -> Offer | None:
        """Return the blob to serve under that digest; None if absent or withheld."""
        upload = self._upload
        if blob == self._withheld and upload is None:
            return None
        data = self.get(blob)
        if data is None:
            return None
        if upload is not None and upload.blob == blob:
            return Offer(data, upload.begun_ns, upload.done_ns)
        return Offer(data)
