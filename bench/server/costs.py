"""Where the time of a full answer goes: signing (hash), making the lines (copy), sending them (socket), and the rest.

Each part is done alone, in one thread of this process, on the lines that our server answered with.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter

import pyarrow as pa

from bench.server.goals import Report
from bench.server.limit import Lines, chunk, joined, taken_apart
from bench.server.processes import run
from bench.server.stage import Stage
from bench.server.turns import by_turns, say
from bench.server.urls import bench_signing

DRAIN_BYTES = 4 << 20


def measure_costs(stage: Stage, report: Report) -> None:
    """Milliseconds of the parts of one full answer of the middle table, and what the server adds to them."""
    files = stage.plan.middle
    say("where the time goes")
    stage.limit(files)
    lines = taken_apart(stage.capture(files).read_bytes())
    sign = bench_signing(stage.provided.state_dir, stage.ours.origin, lines.batches[0].paths[0].as_py())
    urls = [sign(batch.paths) for batch in lines.batches]
    pieces = [chunk(joined(batch, some)) for batch, some in zip(lines.batches, urls, strict=True)]
    works: dict[str, Callable[[], object]] = {
        "hash": lambda: [sign(batch.paths) for batch in lines.batches],
        "copy": lambda: _all_joined(lines, urls),
        "socket": lambda: _send(pieces),
        "whole answer": lambda: run(replace(stage.table(files, "query", {}), answers=1, warm=1)).whole_s[0],
    }
    given = by_turns(
        stage.plan.turns, {name: lambda work=work: _seconds(work) for name, work in works.items()}
    )
    figures = {name: median(times) * 1000 for name, times in given.items()}
    parts = {name: figures[name] for name in ("hash", "copy", "socket")}
    megabytes = sum(len(piece) for piece in pieces) / 1e6
    rows = [f"| {name} | {value:.0f} |" for name, value in parts.items()]
    rows.append(f"| whole answer of our server, as one client sees it | {figures['whole answer']:.0f} |")
    head = f"| {files:,} files, {megabytes:.0f} MB; each part done alone | ms |\n|---|---|"
    report.tables.append("\n".join([head, *rows]))


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    given = work()
    # What measures itself in another process says so; its start does not count.
    return given if isinstance(given, float) else perf_counter() - began


def _all_joined(lines: Lines, urls: list[pa.StringArray]) -> None:
    for batch, some in zip(lines.batches, urls, strict=True):
        chunk(joined(batch, some))


def _send(pieces: list[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = socket.create_connection(listening.getsockname())
        writer, _ = listening.accept()
    drain = threading.Thread(target=_drain, args=(reader,))
    drain.start()
    with writer:
        for piece in pieces:
            writer.sendall(piece)
    drain.join()


def _drain(reader: socket.socket) -> None:
    buffer = bytearray(DRAIN_BYTES)
    with reader:
        while reader.recv_into(buffer):
            pass
