"""Streaming the 100,000 files of an index leaves a server's peak memory at 300 MB or less.

Run: `python -m bench.stream_index`. The server is a process of its own; its resident memory is watched from here.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.wide_table import many_files_table
from lakeshare_server.catalog import (
    DeclaredShare,
    Ledger,
    NewPublication,
    Recipients,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import read_delta, write_index

FILES = 100_000
CLIENTS = 4
MOST_BYTES = 300 * 1_000_000
SAMPLE_S = 0.005
HEAD_LINES = 2  # protocol and metadata


class PeakMemory:
    """The most resident memory a process was seen with."""

    def __init__(self, pid: int) -> None:
        import psutil

        self.process, self.bytes = psutil.Process(pid), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.bytes = max(self.bytes, self.process.memory_info().rss)


def main() -> int:
    """Measure, print, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        token = _publish(Path(folder) / "table", state)
        environment = {**os.environ, "LAKESHARE_STATE_DIR": str(state)}
        server = subprocess.Popen(
            [sys.executable, "-m", "lakeshare_server", "serve", "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            return _measure(server, token)
        finally:
            server.terminate()
            server.wait()


def _publish(location: Path, state: Path) -> str:
    many_files_table(location, FILES)
    settings = ServerSettings(state_dir=state)
    snapshot = read_delta(str(location))
    index = write_index(snapshot, settings.index_dir)
    catalog = open_catalog(settings.catalog_url)
    publication = NewPublication(
        table="bench.files",
        set_name="bench",
        format="delta",
        location=snapshot.location,
        table_id=snapshot.table_id,
        delta_version=snapshot.version,
        schema_string=snapshot.schema_string,
        rows=index.rows,
        files=index.files,
        size_bytes=index.size_bytes,
        index_digest=index.digest,
        contract_digest="",
        verdicts={},
        run_id="bench",
        partition="all",
    )
    Ledger(catalog).append([publication])
    apply_shares(catalog, [DeclaredShare("bench", (SharedTable("bench", "files", "bench.files"),))])
    return Recipients(catalog).add("bench", ["bench"])[1]


def _measure(server: "subprocess.Popen[str]", token: str) -> int:
    if server.stdout is None:
        raise AssertionError("the server was started with a pipe")
    url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    with PeakMemory(server.pid) as peak:
        alone = _stream(url, token)
        counts: list[int] = []
        clients = [
            threading.Thread(target=lambda: counts.append(_stream(url, token)[0])) for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    lines, first_s, all_s = alone
    whole = lines == FILES and counts == [FILES] * CLIENTS
    print(
        f"{lines} files streamed in {all_s:.2f} s, the first byte after {first_s * 1000:.0f} ms; peak memory with "
        f"{CLIENTS} clients at once {peak.bytes / 1e6:.0f} MB, at most {MOST_BYTES / 1e6:.0f} MB"
    )
    return 0 if whole and peak.bytes <= MOST_BYTES else 1


def _stream(url: str, token: str) -> tuple[int, float, float]:
    """Files received, seconds to the first byte, seconds to the last."""
    import httpx

    began = time.perf_counter()
    first_s, lines = 0.0, 0
    with httpx.stream(
        "POST",
        f"{url}/shares/bench/schemas/bench/tables/files/query",
        content=json.dumps({}),
        headers={"Authorization": f"Bearer {token}"},
        timeout=120,
    ) as answer:
        for piece in answer.iter_raw():
            first_s = first_s or time.perf_counter() - began
            lines += piece.count(b"\n")
    return lines - HEAD_LINES, first_s, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
