"""The file index: one file per content, the same bytes from anywhere, whole or not there."""

import hashlib
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakeshare_server.errors import Unavailable
from lakeshare_server.tables import open_index, read_delta, write_index
from lakeshare_server.tables.index import BATCH_ROWS, index_path
from lakeshare_server.tables.snapshot import TableSnapshot
from tests.builders.lake_tables import a_delta_table, some_rows


def a_snapshot(files: int, /, **different: object) -> TableSnapshot:
    numbers = list(range(files))
    empty = pa.nulls(files, pa.struct([]))
    table = pa.table(
        {
            "path": [f"/lake/{number:06d}.parquet" for number in numbers],
            "name": [f"{number:06d}.parquet" for number in numbers],
            "size": pa.array([100 + number for number in numbers], pa.int64()),
            "modification_time": pa.array(numbers, pa.int64()),
            "rows": pa.array([None if number % 7 == 3 else number for number in numbers], pa.int64()),
            "partition": empty,
            "min": pa.StructArray.from_arrays([pa.array([f"m{number}" for number in numbers])], ["s"]),
            "max": pa.StructArray.from_arrays([pa.array([f"m{number}z" for number in numbers])], ["s"]),
            "null_count": empty,
        }
    )
    schema = '{"type":"struct","fields":[{"name":"s","type":"string","nullable":true,"metadata":{}}]}'
    given = {
        "format": "delta",
        "location": "/lake",
        "table_id": "id",
        "schema_string": schema,
        "files": table,
    }
    return TableSnapshot(**{**given, "partition_columns": (), **different})


def test_the_name_of_an_index_is_the_digest_of_its_bytes(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(10), tmp_path)
    assert stored.path == index_path(tmp_path, stored.digest)
    assert hashlib.sha256(stored.path.read_bytes()).hexdigest() == stored.digest
    assert list(tmp_path.iterdir()) == [stored.path]


def test_the_same_files_in_another_order_give_the_same_index(tmp_path: Path) -> None:
    snapshot = a_snapshot(25_000)
    order = pc.sort_indices(pc.random(25_000, initializer=7))
    shuffled = pa.Table.from_batches(snapshot.files.take(order).to_batches(max_chunksize=777))
    again = a_snapshot(25_000, files=shuffled)
    assert write_index(snapshot, tmp_path / "a").digest == write_index(again, tmp_path / "b").digest


def test_reading_a_table_twice_gives_one_index(tmp_path: Path) -> None:
    location = str(a_delta_table(tmp_path / "table"))
    digests = {write_index(read_delta(location), tmp_path / "index").digest for _ in range(3)}
    assert len(digests) == 1
    assert len(list((tmp_path / "index").iterdir())) == 1


@pytest.mark.parametrize(
    "different", [{"table_id": "other"}, {"description": "d"}, {"partition_columns": ("s",)}]
)
def test_another_table_gives_another_index(tmp_path: Path, different: dict[str, object]) -> None:
    if "partition_columns" in different:
        files = a_snapshot(3).files
        place = files.column_names.index("partition")
        different["files"] = files.set_column(place, "partition", files.column("min"))
    assert (
        write_index(a_snapshot(3), tmp_path).digest
        != write_index(a_snapshot(3, **different), tmp_path).digest
    )


def test_totals_are_those_of_the_files(tmp_path: Path) -> None:
    snapshot = a_snapshot(2500)
    stored = write_index(snapshot, tmp_path)
    header = open_index(tmp_path, stored.digest).header
    rows = sum(number for number in range(2500) if number % 7 != 3)
    size = sum(100 + number for number in range(2500))
    assert (stored.rows, stored.files, stored.size_bytes) == (rows, 2500, size)
    assert (header.rows, header.files, header.size_bytes) == (rows, 2500, size)


def test_files_come_back_in_order_and_in_batches(tmp_path: Path) -> None:
    index = open_index(tmp_path, write_index(a_snapshot(25_500), tmp_path).digest)
    batches = list(index.batches())
    assert max(batch.num_rows for batch in batches) == BATCH_ROWS
    paths = [path for batch in batches for path in batch.column("path").to_pylist()]
    assert paths == [f"/lake/{number:06d}.parquet" for number in range(25_500)]


def test_a_table_without_files_has_an_index_too(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(0), tmp_path)
    assert (stored.rows, stored.files, stored.size_bytes) == (0, 0, 0)
    assert list(open_index(tmp_path, stored.digest).batches()) == []


def test_recipients_see_comments_but_no_other_metadata_of_columns(tmp_path: Path) -> None:
    schema = (
        '{"type":"struct","fields":[{"name":"s","type":{"type":"struct","fields":[{"name":"metadata","type":"long",'
        '"nullable":true,"metadata":{"secret":"x"}}]},"nullable":true,"metadata":{"comment":"c","delta.id":3}}]}'
    )
    index = open_index(tmp_path, write_index(a_snapshot(1, schema_string=schema), tmp_path).digest)
    assert index.header.schema_string == (
        '{"type":"struct","fields":[{"name":"s","type":{"type":"struct","fields":[{"name":"metadata","type":"long",'
        '"nullable":true,"metadata":{}}]},"nullable":true,"metadata":{"comment":"c"}}]}'
    )


def test_an_index_that_is_gone_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=rf"{'a' * 64}.*publish the table again"):
        open_index(tmp_path, "a" * 64)


def test_an_index_that_was_cut_off_is_not_opened(tmp_path: Path) -> None:
    stored = write_index(a_snapshot(5000), tmp_path)
    stored.path.write_bytes(stored.path.read_bytes()[:-100])
    with pytest.raises(Unavailable, match="cannot be opened"):
        open_index(tmp_path, stored.digest)


def test_writing_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = a_snapshot(3, files=a_snapshot(3).files.drop_columns(["name"]))
    with pytest.raises(KeyError):
        write_index(broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


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
