"""The blobs a node serves: the newest at hand, older ones from its store."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from bdfl.encoding import digest
from bdfl.ledger.keeping import Store
from bdfl.transports.live.ports import Offer


@dataclass(frozen=True)
class _Upload:
    """The node's own update, and from when to when it is uploaded."""

    blob: bytes
    begun_ns: int
    done_ns: int


class BlobShelf:
    """May be asked by any thread; reading from the disk holds up nobody but who asks."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        """`max_bytes` are kept at hand."""
        self._store = store
        self._max_bytes = max_bytes
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_bytes = 0
        self._withheld: bytes | None = None
        self._upload: _Upload | None = None
        self._lock = threading.Lock()

    def put(self, blob: bytes, data: bytes) -> None:
        """A blob that is kept in the store now."""
        with self._lock:
            if blob in self._recent:
                self._recent.move_to_end(blob)
                return
            self._recent[blob] = data
            self._num_bytes += len(data)
            while self._num_bytes > self._max_bytes and len(self._recent) > 1:
                self._num_bytes -= len(self._recent.popitem(last=False)[1])

    def get(self, blob: bytes) -> bytes | None:
        """The bytes of that digest; raises `DamagedStore` if a block rests on them and they are lost."""
        with self._lock:
            data = self._recent.get(blob)
        if data is None and self._store.has_blob(blob):
            data = self._store.read_unchecked(blob)
            if data is None or digest(data) != blob:
                return None
            self.put(blob, data)
        return data

    def withhold(self, blob: bytes | None) -> None:
        """The node's own update of the round worked on: not served before its upload begins. None: there is none."""
        self._withheld, self._upload = blob or None, None

    def upload(self, begun_ns: int, done_ns: int) -> None:
        """The withheld blob is served from now on, as its upload goes."""
        if self._withheld is not None and self._upload is None:
            self._upload = _Upload(self._withheld, begun_ns, done_ns)

    @property
    def is_withholding(self) -> bool:
        return self._withheld is not None and self._upload is None

    def offer(self, blob: bytes) -> Offer | None:
        """What is served under that digest."""
        upload = self._upload
        if blob == self._withheld and upload is None:
            return None
        data = self.get(blob)
        if data is None:
            return None
        if upload is not None and upload.blob == blob:
            return Offer(data, upload.begun_ns, upload.done_ns)
        return Offer(data)
