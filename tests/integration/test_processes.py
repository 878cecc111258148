"""A server for tests is ready when the block begins and gone when it ends, whatever the server wants."""

import signal
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.integration import processes
from tests.integration.processes import connect, free_ports, running

# Listens, and does not end when it is told to.
STUBBORN = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    "endings", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGQUIT)], ids=["killed", "second-signal"]
)
def test_a_server_that_does_not_want_to_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endings: tuple[signal.Signals, ...]
) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    (port,), log = free_ports(1), tmp_path / "log"
    with running([sys.executable, "-c", STUBBORN, str(port)], log, partial(connect, port), endings=endings):
        pid = int(log.read_text())
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_server_that_ends_before_it_is_ready_is_named_with_what_it_said(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "import sys; sys.exit('no such option')"]
    with (
        pytest.raises(AssertionError, match=r"did not start: .*refused(?s:.*)no such option"),
        running(command, tmp_path / "log", partial(connect, port)),
    ):
        pytest.fail("it was never ready")


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    (port,), command = free_ports(1), ["sleep", "600.25"]
    with (
        pytest.raises(AssertionError, match="did not start"),
        running(command, tmp_path / "log", partial(connect, port), start_s=0.2),
    ):
        pytest.fail("it was never ready")
    assert command not in [child.cmdline() for child in psutil.Process().children()]
