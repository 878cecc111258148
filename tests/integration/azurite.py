"""Azurite, Microsoft's stand-in for Azure's blob storage, over TLS on a free loopback port.

It checks shared keys, shared access signatures and their ends, and takes the tokens of any tenant's identity; it
knows neither directories nor roles.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jwt

from tests.builders.certificates import Certificates, certificates
from tests.integration.s3_server import free_ports

INSTALL = Path(__file__).parents[2] / "deploy" / "azurite.sh"
START_S = 60
STOP_S = 20
# The one account that every Azurite has; it is in its documentation.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Azurite:
    """Where it is, and who vouches for it."""

    endpoint: str
    trusted: Path


@contextmanager
def running_azurite(folder: Path) -> Iterator[Azurite]:
    """Azurite with its data in memory, until the end of the block."""
    node, script = subprocess.run(
        ["bash", str(INSTALL)], check=True, capture_output=True, text=True
    ).stdout.split("\n")[:2]
    (port,) = free_ports(1)
    tls = certificates(folder)
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            [node, script, *_options(port, tls)], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_ready(port, process, folder / "azurite.log")
        yield Azurite(f"https://127.0.0.1:{port}/{ACCOUNT}", tls.authority)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def identity_token(life_s: int = 3600) -> tuple[str, int]:
    """A token as Azure gives to an identity, as far as Azurite looks, and when it ends."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000001/",
        "tid": "00000000-0000-0000-0000-000000000001",
        "oid": "00000000-0000-0000-0000-000000000002",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": now + life_s,
    }
    return jwt.encode(
        claims, "nobody looks at the signature, whatever it is", algorithm="HS256"
    ), now + life_s


def _options(port: int, tls: Certificates) -> list[str]:
    return [
        "--blobHost=127.0.0.1",
        f"--blobPort={port}",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--oauth=basic",
        f"--cert={tls.own}",
        f"--key={tls.key}",
    ]


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Azurite did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.1)
        else:
            return
