"""What runs beside the demo is there when it is said to be, and gone afterwards, with all it started."""

import sys
import time

import httpx
import psutil
import pytest

from lakeshare_pipelines.demo import processes
from lakeshare_pipelines.demo.processes import free_port, sharing_server
from lakeshare_server.errors import Unavailable
from tests.builders.sharing import a_provider

# Ignores SIGTERM, and has a child that does; the child's pid goes to the log.
STUBBORN = """
import os, signal, subprocess, sys, http.server
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


def test_the_server_is_reached_past_a_proxy_and_stops_with_the_block(tmp_path, monkeypatch):
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port(0)}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes, "READY_S", 30)

    with sharing_server(free_port(0), tmp_path / "server.log") as root:
        assert httpx.get(f"{root}/healthz", trust_env=False).status_code == 200

    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{root}/healthz", trust_env=False)


def test_a_server_that_ends_before_it_is_ready_is_named_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_PAGE_SIZE", "none")
    log = tmp_path / "server.log"

    with pytest.raises(Unavailable, match=str(log)), sharing_server(free_port(0), log):
        pass

    assert "page_size" in log.read_text()


def test_what_does_not_stop_is_ended_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    port, log = free_port(0), tmp_path / "stubborn.log"
    command = [sys.executable, "-c", STUBBORN, str(port)]

    with processes.running_process(command, log, processes._get(f"http://127.0.0.1:{port}/")):
        child = psutil.Process(int(log.read_text().split()[0]))
        assert not has_ended(child)

    deadline = time.monotonic() + 30
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
