"""What runs beside the demo: the sharing server and the Dagster UI, as processes that end with it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import make_private

READY_S = 120
STOP_S = 20
PROBE_S = 5
POLL_S = 0.2


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else a free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unavailable("no port is free on 127.0.0.1", "Close something that listens there.")


@contextmanager
def sharing_server(port: int, log: Path) -> Iterator[str]:
    """`lakeshare serve` on `port`; yields its root URL once it is ready."""
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", str(port)]
    # What it says goes into a log, where no key belongs.
    command.append("--no-first-key")
    root = f"http://127.0.0.1:{port}"
    with _process(command, log, f"{root}/readyz"):
        yield root


@contextmanager
def dagster_ui(port: int, log: Path) -> Iterator[str]:
    """`dagster dev` on `port` (webserver and daemon); yields its URL once it answers."""
    command = [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    # The checkout's workspace file names the location as `make dagster` does; an installed package has none.
    has_workspace = Path("workspace.yaml").exists()
    command += ["-w", "workspace.yaml"] if has_workspace else ["-m", "lakeshare_pipelines.definitions"]
    root = f"http://127.0.0.1:{port}"
    with _process(command, log, f"{root}/server_info"):
        yield root


@contextmanager
def _process(command: list[str], log: Path, probe: str) -> Iterator[None]:
    make_private(log.parent)
    with log.open("ab") as out:
        # Its own process group: Ctrl-C reaches this process alone, which then stops the other in order.
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        _wait_until_ready(child, probe, log)
        yield
    finally:
        _stop(child)


def _wait_until_ready(child: "subprocess.Popen[bytes]", probe: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        if child.poll() is not None:
            raise Unavailable(f"{child.args!r} ended with {child.returncode}", f"Read the end of {log}.")
        try:
            # On this machine whatever the environment says of proxies.
            httpx.get(probe, timeout=PROBE_S, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"{probe} did not answer: {error}", f"Read the end of {log}.") from error
        else:
            return
        time.sleep(POLL_S)


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with its own children: it cannot stop them any more
        child.wait()
