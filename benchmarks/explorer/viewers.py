"""Many viewers of one explorer: connections that read server-sent events and count the blocks told."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_PATIENCE_S = 30.0


class Viewer:
    """A connection that counts the blocks it is told of."""

    def __init__(self, host: str, port: int) -> None:
        self.num_blocks = 0
        self._socket = socket.create_connection((host, port), timeout=_PATIENCE_S)
        request = f"GET /events?run=0 HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n"
        self._socket.sendall(request.encode())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        kept = b""
        try:
            while received := self._socket.recv(65536):
                kept += received
                *whole, kept = kept.split(b"\n")
                self.num_blocks += sum(line.strip() == b"event: block" for line in whole)
        except OSError:
            return  # closed by us, or silence

    def close(self) -> None:
        with suppress(OSError):  # the other side may have hung up
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends the reading
        self._thread.join(_PATIENCE_S)
        self._socket.close()


@contextmanager
def watching(host: str, port: int, count: int) -> Iterator[list[Viewer]]:
    """So many viewers at a time."""
    with ExitStack() as opened:
        viewers = []
        for _ in range(count):
            viewers.append(Viewer(host, port))
            opened.callback(viewers[-1].close)
        yield viewers
