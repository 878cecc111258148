"""A log to write, stores that count, and a reader of what versions changed."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_server.tables.delta.changes import (
    ChangeLog,
    SegmentCache,
    VersionChanges,
    read_changes,
    segment_cache,
)
from tests.builders.change_responses import CountingStores
from tests.builders.written_log import WrittenLog, add, metadata, protocol


@pytest.fixture
def stores() -> CountingStores:
    return CountingStores()


@pytest.fixture
def cache(tmp_path: Path) -> SegmentCache:
    return segment_cache(tmp_path / "index", 10**9)


@pytest.fixture
def read(stores: CountingStores, cache: SegmentCache) -> Callable[..., list[VersionChanges]]:
    def reader(table: Path, first: int, last: int) -> list[VersionChanges]:
        return read_changes(ChangeLog(stores, str(table)), cache, first, last)

    return reader


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


@pytest.fixture
def deltalake_table(tmp_path: Path) -> Path:
    """Inserts, an update, deletes and a merge by deltalake, with its own cdc files."""
    table = tmp_path / "deltalake"
    rows = pa.table({"id": [1, 2, 3], "p": ["a", "b c", None]})
    write_deltalake(table, rows, partition_by=["p"], configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(table).update(updates={"id": "10"}, predicate="id = 1")
    DeltaTable(table).delete("id = 3")
    news = pa.table({"id": [2, 9], "p": ["b c", "n%"]})
    merge = DeltaTable(table).merge(news, "t.id = u.id", source_alias="u", target_alias="t")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    write_deltalake(table, rows, mode="append")
    DeltaTable(table).optimize.compact()
    return table


@pytest.fixture
def five_versions(log: WrittenLog) -> WrittenLog:
    """protocol §5.9: (1,2) with the feed, add, (1,4) with another name, add, add."""
    log.commit(protocol(1, 2), metadata(name="first"))
    log.commit(add("1"))
    log.commit(protocol(1, 4), metadata(name="second"))
    log.commit(add("3"))
    log.commit(add("4"))
    return log
