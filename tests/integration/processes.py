"""Servers for tests as processes: on free ports, waited for until they are ready, and always ended."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0
STOP_S = 30.0  # SeaweedFS needs up to twelve seconds to let go of its ports
POLL_S = 0.1
TAIL = 2000


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    ready: Callable[[], object],
    *,
    not_yet: type[Exception] | tuple[type[Exception], ...] = OSError,
    start_s: float = START_S,
    endings: Sequence[signal.Signals] = (signal.SIGTERM,),
    **options: Any,
) -> Iterator[None]:
    """A server until the end of the block, which begins when `ready` no longer raises `not_yet`.

    What it says goes into `log`. At the end it gets the signals of `endings`, each with its time, and is killed if it
    has not ended by then. `options` are those of `Popen`.

    Raises:
        AssertionError: it ended by itself or was not ready in time; the message has the end of its log.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
        )
    try:
        _wait_until_ready(process, log, ready, not_yet, start_s)
        yield
    finally:
        _stop(process, endings)


def connect(port: int) -> None:
    """Reach whoever listens on a port of 127.0.0.1.

    Raises:
        OSError: nobody does.
    """
    socket.create_connection(("127.0.0.1", port), 1).close()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_until_ready(
    process: "subprocess.Popen[bytes]",
    log: Path,
    ready: Callable[[], object],
    not_yet: type[Exception] | tuple[type[Exception], ...],
    start_s: float,
) -> None:
    deadline = time.monotonic() + start_s
    while True:
        try:
            ready()
        except not_yet as error:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-TAIL:]
                raise AssertionError(f"{process.args!r} did not start: {error}\n{said}") from error
            time.sleep(POLL_S)
        else:
            return


def _stop(process: "subprocess.Popen[bytes]", endings: Sequence[signal.Signals]) -> None:
    for ending in endings:
        process.send_signal(ending)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()
    process.wait()
