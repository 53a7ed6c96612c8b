"""A server of the explorer in a thread of the test."""

import threading
from contextlib import contextmanager

from bdfl.explorer.server import ExplorerServer

STARTING_S = 30.0


@contextmanager
def serve_in_background(library, **settings):
    """Serve the library at a free port of loopback inside the context."""
    server = ExplorerServer(library, port=0, **settings)
    thread = threading.Thread(target=server.run, name="explorer", daemon=True)
    thread.start()
    try:
        waited = threading.Event()
        while thread.is_alive() and not server.is_serving:
            waited.wait(0.01)
        yield server
    finally:
        server.stop()
        thread.join(STARTING_S)
        server.close()
