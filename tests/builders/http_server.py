"""A stand-in that speaks HTTP, listening in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


@contextmanager
def listening(server: ThreadingHTTPServer) -> Iterator[None]:
    """Serves while the block runs; its port is closed afterwards."""
    # It looks this often whether it is to stop: the block waits for that.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
