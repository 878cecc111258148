"""A real PostgreSQL on a free loopback port, from the wheel in the lock: nothing on the machine is needed.

`running_postgres` starts and stops one; it refuses to run as root, so root starts it as nobody.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from lakeshare_pipelines.demo.processes import find_postgres, unprivileged
from tests.integration.processes import free_ports, running

# Its fast shutdown, in which connections are cut and nothing is waited for, and the one without any order.
ENDINGS = (signal.SIGINT, signal.SIGQUIT)
MEMORY = Path("/dev/shm")
# Nothing here outlives the tests, so nothing waits for the disk.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Times are to come back right whatever the server thinks of time zones.
    "timezone": "Asia/Kathmandu",
}


@dataclass(frozen=True)
class PostgresServer:
    """Where it listens; each test has a database of its own."""

    port: int

    def new_database(self, template: str = "template1") -> str:
        """A copy of a database, by default of an empty one; returns its SQLAlchemy URL."""
        name = f"t{uuid.uuid4().hex}"
        with self._connected() as connection:
            # Half the time of the default strategy, which writes all pages to the log.
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return f"postgresql+psycopg://lakeshare@127.0.0.1:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        with self._connected() as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def connect(self) -> None:
        """See that it takes connections.

        Raises:
            OperationalError: it does not.
        """
        self._connected().close()

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=lakeshare dbname=postgres connect_timeout=5",
            autocommit=True,
        )


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """PostgreSQL with an empty cluster, until the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="lakeshare-postgres-") as name,
        tempfile.TemporaryDirectory(prefix="lakeshare-postgres-", dir=_memory()) as cluster_name,
    ):
        folder, cluster = Path(name), Path(cluster_name) / "cluster"
        binaries = find_postgres(folder)
        user = unprivileged(folder, cluster.parent)
        initdb = ["--auth=trust", "--username=lakeshare", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [binaries / "initdb", "--pgdata", cluster, *initdb], check=True, capture_output=True, **user
        )
        server = PostgresServer(*free_ports(1))
        settings = [f"--{key}={value}" for key, value in {**SETTINGS, "port": server.port}.items()]
        command, not_yet = [f"{binaries}/postgres", "-D", f"{cluster}", *settings], psycopg.OperationalError
        with running(command, folder / "log", server.connect, not_yet=not_yet, endings=ENDINGS, **user):
            yield server


def _memory() -> Path | None:
    """A file system in memory, if there is a large one.

    A database has 300 files: on a disk, copying one took 0.2 s of processor time, in memory a tenth of that.
    """
    is_large = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= 2**30
    return MEMORY if is_large else None
