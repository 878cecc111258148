"""The servers as processes, the clients as processes, and how much memory a server has in use."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.server.load import Ask, Seen

START_S = 120
SAMPLE_S = 0.01
IDLE_S = 0.2
IDLE_SHARE = 0.05
SETTLE_S = 60
LOAD_S = 900


class Running:
    """A server process, and where it answers."""

    def __init__(self, words: list[str], environment: Mapping[str, str], log: Path) -> None:
        import psutil

        self.words = words
        # What clients that leave early make a server say would drown the progress.
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self.url = self._ready_url()
        except BaseException:
            self.stop()
            raise
        self.process = psutil.Process(self._child.pid)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return urlsplit(self.url).port or 80

    @property
    def origin(self) -> str:
        """The URL without its path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def prefix(self) -> str:
        """The path of the protocol's root, with a slash at its end."""
        return urlsplit(self.url).path.rstrip("/") + "/"

    def settle(self) -> None:
        """Wait until it does nothing any more: what was cut off goes on for a while."""
        deadline = time.monotonic() + SETTLE_S
        before = self._cpu_s()
        while time.monotonic() < deadline:
            time.sleep(IDLE_S)
            now = self._cpu_s()
            if now - before < IDLE_S * IDLE_SHARE:
                return
            before = now

    def stop(self) -> None:
        """End it, and wait for that."""
        self._child.terminate()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _ready_url(self) -> str:
        if self._child.stdout is None:
            raise AssertionError("the process was started with a pipe")
        timer = threading.Timer(START_S, self._child.kill)
        timer.start()
        try:
            for line in self._child.stdout:
                for word in line.split():
                    if word.startswith("http"):
                        return word
        finally:
            timer.cancel()
        raise RuntimeError(f"{' '.join(self.words)} ended before it was ready")

    def _cpu_s(self) -> float:
        times = [one.cpu_times() for one in (self.process, *self.process.children(recursive=True))]
        return sum(one.user + one.system for one in times)


class Clients:
    """A process of clients that has begun; `seen` waits for its end."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.server.load", json.dumps(asdict(ask))],
            stdout=subprocess.PIPE,
            text=True,
        )

    def seen(self) -> Seen:
        """What the clients saw.

        Raises:
            RuntimeError: an answer was not 200, or was cut off by the server.
        """
        printed, _ = self._child.communicate(timeout=LOAD_S)
        if self._child.returncode:
            raise RuntimeError(f"the clients of {self.ask.path} broke down")
        seen = Seen(**json.loads(printed))
        if seen.failures:
            raise RuntimeError(f"{self.ask.path} was answered: {seen.failures[0]}")
        return seen


def run(ask: Ask) -> Seen:
    """Let clients do what was asked, in a process of their own."""
    return Clients(ask).seen()


@dataclass
class Memory:
    """The most that a process and its workers had at one time.

    Resident counts pages of mapped files too; anonymous memory is what nothing but the process can give back.
    """

    resident_bytes: int = 0
    anonymous_bytes: int = 0


class PeakMemory:
    """Watches a server's memory for as long as it is entered."""

    def __init__(self, server: Running) -> None:
        self.server, self.peak = server, Memory()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self.peak

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            pids = [one.pid for one in (self.server.process, *self.server.process.children(recursive=True))]
            samples = [_status_bytes(pid) for pid in pids]
            self.peak.resident_bytes = max(self.peak.resident_bytes, sum(one[0] for one in samples))
            self.peak.anonymous_bytes = max(self.peak.anonymous_bytes, sum(one[1] for one in samples))


def _status_bytes(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    values = dict(line.split(":", 1) for line in lines)
    resident, anonymous = (int(values.get(name, "0").split()[0]) for name in ("VmRSS", "RssAnon"))
    return resident * 1024, anonymous * 1024
