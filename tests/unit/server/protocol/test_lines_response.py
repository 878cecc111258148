"""Lines are made piece by piece, so that a long look through an index keeps nobody waiting who has not asked for it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_server.protocol.lines import Progress, SnapshotLines, SnapshotResponse
from lakeshare_server.protocol.requests import parse_query
from lakeshare_server.routes.responses import LinesResponse
from lakeshare_server.tables import index as index_writing
from lakeshare_server.tables import open_index, read_delta, write_index
from tests.builders.lake_tables import a_delta_table, some_rows

DAYS = 5
LINES = SnapshotLines(response_format="parquet", ids="parquet", expires_at_ms=0)


@pytest.mark.parametrize(("hint", "pieces"), [("day = '1999-01-01'", DAYS), ("day = '2013-01-02'", DAYS + 1)])
def test_each_batch_that_makes_no_piece_makes_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hint: str, pieces: int
) -> None:
    monkeypatch.setattr(index_writing, "BATCH_ROWS", 1)
    table = a_delta_table(tmp_path / "table", some_rows(days=DAYS))
    index = open_index(tmp_path, write_index(read_delta(str(table)), tmp_path).digest)
    answer = SnapshotResponse(index=index, predicate=parse_query({"predicateHints": [hint]}).predicate)
    progress = Progress()
    made = list(answer.render(LINES, lambda paths: paths, progress))
    assert len(made) == pieces
    assert made[:DAYS] == [b""] * DAYS
    assert sum(map(bool, made)) == progress.files == pieces - DAYS


@pytest.mark.parametrize(("is_slow", "sizes"), [(False, [2000, 500]), (True, [1000, 1000, 500])])
def test_pieces_are_smaller_where_urls_take_time(is_slow: bool, sizes: list[int]) -> None:
    progress = Progress(is_slow)
    batch = pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(3), 2500)], ["size"])
    assert [piece.num_rows for piece in progress.pieces(batch)] == sizes
    assert (progress.files, progress.size_bytes) == (2500, 7500)


def sent_of(pieces: Iterator[bytes], left: Event) -> list[bytes]:
    """The bodies that are sent, to a client that leaves with the event."""
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        while not left.is_set():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(bytes(message["body"]))

    asyncio.run(LinesResponse(b"first", pieces, {})({"type": "http"}, receive, send))
    return sent


async def stay() -> dict[str, Any]:
    """The `receive` of a client that does not leave."""
    await asyncio.sleep(60)
    return {"type": "http.disconnect"}


def test_empty_pieces_are_not_sent() -> None:
    assert sent_of(iter([b"", b"one", b"", b"", b"two", b""]), Event()) == [b"first", b"one", b"two", b""]


def test_the_next_piece_is_made_while_one_is_sent() -> None:
    is_made, sent = Event(), list[bytes]()

    def pieces() -> Iterator[bytes]:
        yield b"one"
        is_made.set()
        yield b"two"

    async def send(message: Any) -> None:
        if message.get("body") == b"one":
            assert await asyncio.to_thread(is_made.wait, 30)
        sent.append(bytes(message.get("body", b"start")))

    asyncio.run(LinesResponse(b"first", pieces(), {})({"type": "http"}, stay, send))
    assert sent == [b"start", b"first", b"one", b"two", b""]


def test_a_look_for_a_client_that_has_left_ends() -> None:
    left = Event()

    def endless() -> Iterator[bytes]:
        for number in range(10_000_000):
            if number == 3:
                left.set()
            yield b""
        raise AssertionError("nobody looked whether the client is there")

    assert sent_of(endless(), left) == [b"first"]


def test_no_piece_is_made_before_the_response_began() -> None:
    """Then its audit event is written, which would have counts of the piece."""
    is_made, early = Event(), list[bool]()

    def pieces() -> Iterator[bytes]:
        is_made.set()
        yield b"one"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            early.append(await asyncio.to_thread(is_made.wait, 0.05))

    asyncio.run(LinesResponse(b"first", pieces(), {})({"type": "http"}, stay, send))
    assert early == [False]
    assert is_made.is_set()
