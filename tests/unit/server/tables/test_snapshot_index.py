"""The index of a large table is used before its file is written, and gives the same lines as from the file."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakeshare_server.access.rules import parse_rule
from lakeshare_server.protocol.lines import Progress, ResponseFormat, SnapshotLines, SnapshotResponse
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import TableSnapshot, read_delta, write_index
from lakeshare_server.tables import index as indexes
from lakeshare_server.tables.delta.log import list_log, replay
from lakeshare_server.tables.delta.snapshot import snapshot_of
from lakeshare_server.tables.index import FileIndex, IndexCache, SnapshotIndex, open_index
from lakeshare_server.tables.predicates import EVERYTHING, Predicate
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.written_log import WrittenLog, add, metadata, protocol

DAY, DISTANCE = parse_rule("day = DATE '2013-01-01'"), parse_rule("distance > 1000")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = a_delta_table(tmp_path_factory.mktemp("early") / "table")
    append_delta(location, some_rows(days=2))
    # In an order that is not that of their names.
    properties = {"delta.checkpointInterval": "7", "delta.appendOnly": "true", "b": "1", "a": "2"}
    DeltaTable(location).alter.set_table_properties(properties, raise_if_not_exists=False)
    return location


def vector(storage: str, described: str) -> dict[str, Any]:
    return {
        "storageType": storage,
        "pathOrInlineDv": described,
        "sizeInBytes": 4,
        "cardinality": 1,
        "offset": 1,
    }


def a_snapshot(table: Path) -> TableSnapshot:
    """The snapshot of version 2, without bounds."""
    stores, root = Stores(ServerSettings()), str(table)
    return snapshot_of(root, replay(stores, list_log(stores, root), 2), with_bounds=False)


@pytest.fixture(autouse=True)
def waiting_for_the_first_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "FIRST_READER_S", 60.0)


def sent(index: FileIndex, response_format: ResponseFormat, predicate: Predicate, limit: int | None) -> bytes:
    lines = SnapshotLines(response_format=response_format, ids=response_format, expires_at_ms=5)
    response = SnapshotResponse(index=index, predicate=predicate, rows_wanted=limit)
    return b"".join(response.render(lines, lambda paths: paths, Progress()))


def page(index: FileIndex, response_format: ResponseFormat, start: int) -> bytes:
    """The two files from place `start` on."""
    lines = SnapshotLines(response_format=response_format, ids=response_format, expires_at_ms=5)
    return b"".join(
        SnapshotResponse(index=index, start=start, most=2).render(lines, lambda paths: paths, Progress())
    )


@pytest.mark.parametrize("response_format", ["parquet", "delta"])
@pytest.mark.parametrize(
    ("predicate", "limit"), [(EVERYTHING, None), (DAY, None), (DISTANCE, None), (DISTANCE, 3)]
)
def test_lines_are_those_of_the_file(
    table: Path, tmp_path: Path, response_format: ResponseFormat, predicate: Predicate, limit: int | None
) -> None:
    early = SnapshotIndex(a_snapshot(table), lambda: written)
    written = open_index(tmp_path, write_index(read_delta(str(table)), tmp_path).digest)
    found = sent(early, response_format, predicate, limit).splitlines()
    in_order = sent(written, response_format, predicate, limit).splitlines()
    assert (sorted(found) if limit is None else found) == (sorted(in_order) if limit is None else in_order)
    assert found
    # Text, because the order of properties is part of the response.
    assert repr(early.header) == repr(written.header)


ODD = (
    add("z"),
    add("y", partitionValues={"p": None}, stats=None),
    add("x%20x", stats='{"numRecords":2,"minValues":{"id":1},"nullCount":{"id":0}}', tags={"a": "b"}),
    add("w", stats="damaged", deletionVector=vector("u", "ab^-aqEH.-t@S}K{vb[*k^")),
    add("v", partitionValues={"p": 'a "b"'}, deletionVector=vector("i", "inline")),
    add("u", baseRowId=4, defaultRowCommitVersion=0, clusteringProvider="liquid"),
    add("t/" + "é" * 9, stats='{"numRecords":3}'),
)


@pytest.mark.parametrize("response_format", ["parquet", "delta"])
def test_all_lines_are_sent_in_the_order_of_the_log(
    tmp_path: Path, response_format: ResponseFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting a million files takes longer than the first response may: only pages and limits need it."""
    log = WrittenLog(tmp_path / "table")
    log.commit(protocol(features=("deletionVectors", "rowTracking")), metadata(), *ODD[:4])
    log.commit(*ODD[4:])
    monkeypatch.setattr(indexes, "CHUNK_ROWS", 2)
    stores, root = Stores(ServerSettings()), str(log.location)
    early = SnapshotIndex(snapshot_of(root, replay(stores, list_log(stores, root), 1), with_bounds=False))
    written = open_index(tmp_path, write_index(read_delta(root), tmp_path).digest)
    found = sent(early, response_format, EVERYTHING, None).splitlines()
    in_order = sent(written, response_format, EVERYTHING, None).splitlines()
    assert found != in_order
    assert sorted(found) == sorted(in_order)
    assert len(found) == len(ODD)
    assert sent(early, response_format, EVERYTHING, 100).splitlines() == in_order
    assert page(early, response_format, 3) == page(written, response_format, 3)


def test_the_file_has_the_bytes_that_a_publication_has(table: Path, tmp_path: Path) -> None:
    early = write_index(a_snapshot(table), tmp_path / "early")
    assert early.digest == write_index(read_delta(str(table)), tmp_path / "whole").digest


def test_only_requested_columns_are_rendered(table: Path) -> None:
    early = SnapshotIndex(a_snapshot(table))
    [batch] = early.batches(["path", "common", "rows"])
    assert batch.schema.names == ["path", "rows", "common"]
    assert batch.num_rows == early.header.files == 5


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[IndexCache]:
    yield IndexCache(tmp_path / "cache", 10**9)
    for thread in threading.enumerate():
        if thread.name == "index":
            thread.join(30)


def test_the_file_is_written_once_after_the_first_response(
    table: Path, tmp_path: Path, cache: IndexCache
) -> None:
    built = list[int]()

    def build() -> TableSnapshot:
        built.append(1)
        return a_snapshot(table)

    def get() -> FileIndex:
        return cache.get_early(("table",), build)

    early = get()
    assert (early.is_written, get()) == (False, early)
    assert not list(tmp_path.glob("cache/*.arrow"))
    assert list(early.batches(["path"]))
    written = early.written()
    assert (written.is_written, get(), built) == (True, written, [1])
    assert len(list(tmp_path.glob("cache/*.arrow"))) == 1


def test_a_file_that_cannot_be_written_is_written_by_the_next_request(
    table: Path,
    tmp_path: Path,
    cache: IndexCache,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: SnapshotIndex, path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(SnapshotIndex, "write", refuse)
        early = cache.get_early(("table",), lambda: a_snapshot(table))
        for thread in threading.enumerate():
            if thread.name == "index":
                thread.join(30)
    assert "the next request builds it again" in caplog.text
    assert not list(tmp_path.glob("cache/*.arrow"))
    again = cache.get_early(("table",), lambda: a_snapshot(table))
    assert again is not early
    assert again.written().is_written
