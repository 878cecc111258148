"""Azurite, Microsoft's stand-in for Azure's blob storage, on a free loopback port.

It checks shared keys, shared access signatures and their ends, and takes the tokens of any tenant's identity; it
knows neither directories nor roles.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jwt

from tests.builders.certificates import Certificates, certificates
from tests.integration.processes import connect, free_ports, running

INSTALL = Path(__file__).parents[2] / "deploy" / "azurite.sh"
# The one account that every Azurite has; it is in its documentation.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Azurite:
    """Where it is, and who vouches for it."""

    endpoint: str
    trusted: Path


@contextmanager
def running_azurite(folder: Path, *, has_tls: bool = True) -> Iterator[Azurite]:
    """Azurite with its data in memory, until the end of the block. Without TLS it takes account keys only."""
    node, script = subprocess.run(
        ["bash", str(INSTALL)], check=True, capture_output=True, text=True
    ).stdout.split("\n")[:2]
    (port,) = free_ports(1)
    tls = certificates(folder)
    command = [node, script, *_options(port), *(_tls_options(tls) if has_tls else ())]
    scheme = "https" if has_tls else "http"
    with running(command, folder / "azurite.log", partial(connect, port), cwd=folder):
        yield Azurite(f"{scheme}://127.0.0.1:{port}/{ACCOUNT}", tls.authority)


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


def _options(port: int) -> list[str]:
    return [
        "--blobHost=127.0.0.1",
        f"--blobPort={port}",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]


def _tls_options(tls: Certificates) -> list[str]:
    return ["--oauth=basic", f"--cert={tls.own}", f"--key={tls.key}"]
