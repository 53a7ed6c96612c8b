"""The download thread, and the cache of blobs served to peers."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bdfl.encoding import digest
from bdfl.ledger.cache import MAX_ENTRIES
from bdfl.ledger.costs import NANO
from bdfl.ledger.store import Store
from bdfl.transports.interfaces import Offer
from bdfl.transports.live.blob_transfer import PIECE_SIZE, Answer, Download, DownloadRequest, Downloads
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.shared_cache import SharedLruCache

# Blob client: a thread that requests pieces, collects answers and delivers whole blobs.

_SHORTEST_WAIT_S = 0.001


class SendRequest(Protocol):
    """Sends a request to a holder. The answer comes by callback, from any thread, at most once."""

    def __call__(self, holder: int, request: PieceRequest, on_answer: Callable[[Answer], None]) -> None: ...


@dataclass(eq=False, repr=False)
class BlobClient:
    """Downloads any number of blobs. Thread-safe. Close it after use."""

    ask: SendRequest
    deliver: Callable[[int, bytes], None]
    count: Callable[[str], None]
    patience_s: float
    piece_size: int = PIECE_SIZE

    def __post_init__(self) -> None:
        self._pulls = Downloads(round(self.patience_s * NANO), self.piece_size)
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="puller", daemon=True)
        self._thread.start()

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Start a download, or add holders to one in progress."""
        with self._changed:
            if self._pulls.want(blob, size, holders, time.monotonic_ns()):
                self.count("fetches")
            self._changed.notify()

    def forget(self) -> None:
        """Cancel all downloads; a delivery in progress still completes."""
        with self._changed:
            self._pulls.clear()

    def set_present(self, present: frozenset[int]) -> None:
        """Set the members that may be asked beside the named holders."""
        with self._changed:
            self._pulls.set_present(present)
            self._changed.notify()

    @property
    def num_pulls(self) -> int:
        return len(self._pulls)

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._pulls.clear()
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now_ns = time.monotonic_ns()
                whole = self._pulls.find_whole()
                errands = [] if whole else self._plan(now_ns)
                if whole is None and not errands:
                    self._changed.wait(self._idle_s(now_ns))
            if whole is not None:
                self._finish(whole)
            for errand in errands:
                self.ask(errand.holder, errand.request, self._taking(errand))

    def _plan(self, now_ns: int) -> list[DownloadRequest]:
        for _ in range(self._pulls.expire(now_ns)):
            self.count("fetch_timeouts")
        return self._pulls.plan(now_ns)

    def _idle_s(self, now_ns: int) -> float | None:
        next_ns = self._pulls.next_time_ns(now_ns)
        return None if next_ns is None else max(_SHORTEST_WAIT_S, (next_ns - now_ns) / NANO)

    def _taking(self, errand: DownloadRequest) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            with self._changed:
                if self._pulls.answer(errand, answer, time.monotonic_ns()):
                    self.count("fetched_late")
                self._changed.notify()

        return take

    def _finish(self, pull: Download) -> None:
        data = pull.whole()
        giver = pull.main_giver
        with self._changed:
            if pull not in self._pulls:
                return
            if data is None:
                self.count("fetches_wrong")
                self._pulls.blame(pull)
                return
            self._pulls.remove(pull)
        self.count("fetches_done")
        self.deliver(-1 if giver is None else giver, data)


# Cache of blobs served to peers: recent ones in memory, others read from the store.


@dataclass(frozen=True)
class _Upload:
    """The node's own update and its upload interval."""

    blob: bytes
    begun_ns: int
    done_ns: int


class BlobCache:
    """LRU cache over the store. Thread-safe; disk reads happen outside the lock."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        """`max_bytes` bounds the blobs in memory; a longer one is read from the store each time."""
        self._store = store
        self._recent: SharedLruCache[bytes, bytes] = SharedLruCache(MAX_ENTRIES, max_bytes)
        self._withheld: bytes | None = None
        self._upload: _Upload | None = None

    def put(self, blob: bytes, data: bytes) -> None:
        """Cache a blob that the store holds."""
        self._recent.put(blob, data, len(data))

    def get(self, blob: bytes) -> bytes | None:
        """Return the bytes of that digest or None; raises `DamagedStore` if a block needs them and they are lost."""
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
