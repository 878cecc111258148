"""The file index: one file per content, the same bytes from anywhere, whole or not there."""

import hashlib
import json
import mmap
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap64

from lakeshare_server.errors import Unavailable
from lakeshare_server.storage.location_columns import find_outside_files, find_roots
from lakeshare_server.tables import TableHead, TableProtocol, open_index, read_delta, write_index
from lakeshare_server.tables import index as index_file
from lakeshare_server.tables.iceberg.deletes import vector_columns, vector_of
from lakeshare_server.tables.index import (
    ABANDONED_AFTER_S,
    BATCH_ROWS,
    HEADER_KEY,
    LAYOUT,
    index_path,
    scratch_file,
)
from lakeshare_server.tables.snapshot import Hindrance, TableSnapshot
from tests.builders.lake_tables import a_delta_table, some_rows

SCHEMA = '{"type":"struct","fields":[{"name":"s","type":"string","nullable":true,"metadata":{}}]}'
HEAD = TableHead(table_id="id", schema_string=SCHEMA, partition_columns=())


def a_snapshot(files: int, /, content: pa.Table | None = None, **different: Any) -> TableSnapshot:
    """One of so many files, but for what the test says of its head."""
    return TableSnapshot(
        format="delta",
        location="/lake",
        head=replace(HEAD, **different),
        files=some_files(files) if content is None else content,
    )


def some_files(files: int) -> pa.Table:
    numbers = list(range(files))
    empty = pa.nulls(files, pa.struct([]))
    return pa.table(
        {
            "path": pa.array([f"/lake/{number:06d}.parquet" for number in numbers], pa.string()),
            "name": pa.array([f"{number:06d}.parquet" for number in numbers], pa.string()),
            "size": pa.array([100 + number for number in numbers], pa.int64()),
            "modification_time": pa.array(numbers, pa.int64()),
            "rows": pa.array([None if number % 7 == 3 else number for number in numbers], pa.int64()),
            "partition": empty,
            "min": pa.StructArray.from_arrays(
                [pa.array([f"m{number}" for number in numbers], pa.string())], ["s"]
            ),
            "max": pa.StructArray.from_arrays(
                [pa.array([f"m{number}z" for number in numbers], pa.string())], ["s"]
            ),
            "null_count": empty,
        }
    )


def test_the_name_of_an_index_is_the_digest_of_its_bytes(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(10), tmp_path)
    assert stored.path == index_path(tmp_path, stored.digest)
    assert hashlib.sha256(stored.path.read_bytes()).hexdigest() == stored.digest
    assert list(tmp_path.iterdir()) == [stored.path]


def test_the_same_files_in_another_order_give_the_same_index(tmp_path: Path) -> None:
    snapshot = a_snapshot(25_000)
    order = pc.sort_indices(pc.random(25_000, initializer=7))
    shuffled = pa.Table.from_batches(snapshot.files.take(order).to_batches(max_chunksize=777))
    again = a_snapshot(25_000, shuffled)
    assert write_index(snapshot, tmp_path / "a").digest == write_index(again, tmp_path / "b").digest


def test_reading_a_table_twice_gives_one_index(tmp_path: Path) -> None:
    location = str(a_delta_table(tmp_path / "table"))
    digests = {write_index(read_delta(location), tmp_path / "index").digest for _ in range(3)}
    assert len(digests) == 1
    assert len(list((tmp_path / "index").iterdir())) == 1


DIFFERENT = {
    "id": {"table_id": "other"},
    "description": {"description": "d"},
    "property": {"configuration": {"a": "b"}},
    "protocol": {"protocol": TableProtocol(3, 7, ("deletionVectors",), ("deletionVectors",))},
    "age": {"created_time_ms": 1},
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_another_table_gives_another_index(tmp_path: Path, case: str) -> None:
    other = a_snapshot(3, **DIFFERENT[case])
    assert write_index(a_snapshot(3), tmp_path).digest != write_index(other, tmp_path).digest


def test_other_partitions_give_another_index(tmp_path: Path) -> None:
    files = some_files(3)
    place = files.column_names.index("partition")
    parted = files.set_column(place, "partition", files.column("min"))
    other = a_snapshot(3, parted, partition_columns=("s",))
    assert write_index(a_snapshot(3), tmp_path).digest != write_index(other, tmp_path).digest


def test_rows_that_are_deleted_are_not_counted(tmp_path: Path) -> None:
    """Nor those of a file that does not tell how many it has."""
    files = some_files(5)
    assert files.column("rows").to_pylist() == [0, 1, 2, None, 4]
    vectors = vector_columns({3: vector_of(BitMap64([0])), 4: vector_of(BitMap64([0, 2]))}, 5, None)
    content = pa.table({**{name: files.column(name) for name in files.column_names}, **vectors})
    stored = write_index(a_snapshot(5, content), tmp_path)
    assert stored.header.rows == open_index(tmp_path, stored.digest).header.rows == 1 + 2 + (4 - 2)


def test_the_head_comes_back_as_it_was(tmp_path: Path) -> None:
    head = {
        "name": "n",
        "description": "d\u00fc\n",
        "configuration": {"delta.enableChangeDataFeed": "true"},
        "protocol": TableProtocol(3, 7, ("columnMapping",), ("columnMapping", "appendOnly")),
        "hindrances": (Hindrance("columnMapping", "reason", "fix"), Hindrance(None, "r", "f")),
        "created_time_ms": 7,
        "commit_times_since": 3,
    }
    index = open_index(tmp_path, write_index(a_snapshot(1, **head), tmp_path).digest)
    assert index.header.head == replace(HEAD, **head)
    assert (index.header.table_format, index.header.location) == ("delta", "/lake")


def test_the_stores_of_all_files_and_vectors_are_named(tmp_path: Path) -> None:
    files = some_files(3)
    paths = ["/lake/a", "s3://elsewhere/b", "/lake/c"]
    vectors = pa.array([None, None, "gs://bucket/v.bin"])
    content = files.set_column(0, "path", pa.array(paths)).append_column("dv_path", vectors)
    for name, kind in (("dv_id", pa.string()), ("dv_offset", pa.int64()), ("dv_size", pa.int64())):
        content = content.append_column(name, pa.array([None, None, "1" if kind == pa.string() else 1], kind))
    content = content.append_column("dv_cardinality", pa.array([0, 0, 1], pa.int64()))
    index = open_index(tmp_path, write_index(a_snapshot(3, content), tmp_path).digest)
    assert index.header.roots == ("", "gs://bucket", "s3://elsewhere")
    assert open_index(tmp_path, write_index(a_snapshot(3), tmp_path).digest).header.roots == ("",)


def test_files_on_the_disk_elsewhere_are_named_by_folder_without_those_of_partitions() -> None:
    paths = [
        "/lake/t/a",
        "/lake/t/p=1/b",
        "/lake/s/c",
        "/lake/s/p=1/q=2/d",
        "/p=1/s/e",
        "/lake/t/../../x/f",
        "//y/g",
    ]
    files = pa.table({"path": paths, "dv_path": [None, "/lake/v/h.bin", *[None] * 5]})
    assert find_outside_files("/lake/t/", files) == [*paths[2:], "/lake/v/h.bin"]
    assert find_roots("/lake/t", find_outside_files("/lake/t", files)) == {
        "",
        "/lake/s",
        "/p=1/s",
        "/x",
        "//y",
        "/lake/v",
    }
    assert find_roots("s3://lake/t", ["/a/b", "s3://lake/u/c"]) == {"s3://lake", "/a"}


def test_totals_are_those_of_the_files(tmp_path: Path) -> None:
    snapshot = a_snapshot(2500)
    stored = write_index(snapshot, tmp_path)
    header = open_index(tmp_path, stored.digest).header
    rows = sum(number for number in range(2500) if number % 7 != 3)
    size = sum(100 + number for number in range(2500))
    assert (stored.header.rows, stored.header.files, stored.header.size_bytes) == (rows, 2500, size)
    assert (header.rows, header.files, header.size_bytes) == (rows, 2500, size)


def test_files_come_back_in_order_and_in_batches(tmp_path: Path) -> None:
    index = open_index(tmp_path, write_index(a_snapshot(25_500), tmp_path).digest)
    batches = list(index.batches())
    assert len(batches) == 2
    assert max(batch.num_rows for batch in batches) == BATCH_ROWS
    paths = [path for batch in batches for path in batch.column("path").to_pylist()]
    assert paths == [f"/lake/{number:06d}.parquet" for number in range(25_500)]


def test_of_a_large_index_pages_are_given_back_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the batch and no others: its empty columns lie anywhere in memory."""
    given: list[tuple[int, int]] = []

    class Noting(mmap.mmap):
        def madvise(self, advice: int, start: int = 0, length: int = 0) -> None:
            given.append((start, start + length))
            super().madvise(advice, start, length)

    monkeypatch.setattr(mmap, "mmap", Noting)
    monkeypatch.setattr(index_file, "MAX_CACHED_BYTES", 0)
    stored = write_index(a_snapshot(BATCH_ROWS + 10), tmp_path)
    index = open_index(tmp_path, stored.digest)
    before = [batch.to_pylist() for batch in index.batches()]
    for batch in index.batches():
        index.give_back(batch)
        index.give_back(batch.select([]))
    first, second = given
    assert 0 <= first[0] < first[1] <= second[0] + mmap.PAGESIZE
    assert second[1] <= stored.path.stat().st_size
    assert [batch.to_pylist() for batch in index.batches()] == before


def test_a_table_without_files_has_an_index_too(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(0), tmp_path)
    assert (stored.header.rows, stored.header.files, stored.header.size_bytes) == (0, 0, 0)
    assert list(open_index(tmp_path, stored.digest).batches()) == []


def test_recipients_see_comments_but_no_other_metadata_of_columns(tmp_path: Path) -> None:
    schema = (
        '{"type":"struct","fields":[{"name":"s","type":{"type":"struct","fields":[{"name":"metadata","type":"long",'
        '"nullable":true,"metadata":{"secret":"x"}}]},"nullable":true,"metadata":{"comment":"c","delta.id":3}}]}'
    )
    index = open_index(tmp_path, write_index(a_snapshot(1, schema_string=schema), tmp_path).digest)
    assert index.header.head.schema_string == schema
    assert index.header.parquet_schema_string == (
        '{"type":"struct","fields":[{"name":"s","type":{"type":"struct","fields":[{"name":"metadata","type":"long",'
        '"nullable":true,"metadata":{}}]},"nullable":true,"metadata":{"comment":"c"}}]}'
    )


def test_an_index_that_is_gone_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=rf"{'a' * 64}.*publish the table again") as refused:
        open_index(tmp_path, "a" * 64)
    assert str(tmp_path) not in str(refused.value)


def test_an_index_that_was_cut_off_is_not_opened(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(5000), tmp_path)
    stored.path.write_bytes(stored.path.read_bytes()[:-100])
    with pytest.raises(Unavailable, match="cannot be opened"):
        open_index(tmp_path, stored.digest)


def test_an_index_of_another_layout_is_not_opened(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(3), tmp_path)
    with pa.OSFile(str(stored.path)) as file:
        table = pa.ipc.open_file(file).read_all()
    header = json.loads(table.schema.metadata[HEADER_KEY])
    older = table.replace_schema_metadata({HEADER_KEY: json.dumps({**header, "layout": LAYOUT - 1})})
    with pa.ipc.new_file(str(stored.path), older.schema) as writer:
        writer.write_table(older)
    with pytest.raises(Unavailable, match=f"has layout {LAYOUT - 1}, this lakeshare reads {LAYOUT}"):
        open_index(tmp_path, stored.digest)


def test_writing_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = a_snapshot(3, some_files(3).drop_columns(["name"]))
    with pytest.raises(KeyError):
        write_index(broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_is_removed_when_the_next_one_writes(tmp_path: Path) -> None:
    abandoned, at_work = scratch_file(tmp_path), scratch_file(tmp_path)
    for file in (abandoned, at_work):
        file.write_text("half")
    long_ago = time.time() - ABANDONED_AFTER_S - 60
    os.utime(abandoned, (long_ago, long_ago))
    stored = write_index(a_snapshot(1), tmp_path)
    assert set(tmp_path.iterdir()) == {stored.path, at_work}


def test_writers_of_one_index_do_not_disturb_each_other(tmp_path: Path) -> None:
    snapshot = a_snapshot(5000)
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda: digests.append(write_index(snapshot, tmp_path).digest))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(digests)) == 1
    assert open_index(tmp_path, digests[0]).header.files == 5000
    assert len(list(tmp_path.iterdir())) == 1


def test_the_location_of_a_table_may_be_a_path_or_a_url(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "a table", some_rows(days=1))
    by_path, by_url = read_delta(str(location)), read_delta(location.as_uri())
    assert by_path.files.equals(by_url.files)
    assert all(Path(path).is_file() for path in by_path.files.column("path").to_pylist())
