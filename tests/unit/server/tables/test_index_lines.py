"""Rendered lines are JSON that says exactly what the table's metadata said of each file, in both formats."""

import hashlib
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.protocol.lines import ResponseFormat, SnapshotLines
from lakeshare_server.tables import read_delta
from lakeshare_server.tables.lines import LINE_COLUMNS, file_ids, md5, render_lines
from tests.builders.lake_tables import a_delta_table, some_rows

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = {
    "t": (pa.string(), TEXTS),
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float64(), st.floats()),
    "c": (pa.decimal128(9, 3), st.decimals(-1000, 1000, places=3)),
    "d": (pa.date32(), st.dates()),
    "m": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "b": (pa.bool_(), st.booleans()),
    'odd "name"\\': (pa.int8(), st.integers(-128, 127)),
}


@st.composite
def chunks(draw: st.DrawFn) -> list[dict[str, Any]]:
    values = st.fixed_dictionaries({name: st.none() | strategy for name, (_, strategy) in VALUES.items()})
    file = st.fixed_dictionaries(
        {"name": TEXTS, "rows": st.none() | st.integers(0, 10**9), "partition": values, "min": values}
    )
    return draw(st.lists(file, min_size=1, max_size=4))


def a_chunk(files: list[dict[str, Any]]) -> pa.Table:
    kind = pa.struct([pa.field(name, kind) for name, (kind, _) in VALUES.items()])
    nested = pa.struct([pa.field("deep", kind)])
    return pa.table(
        {
            "name": pa.array([file["name"] for file in files], pa.string()),
            "size": pa.array(range(len(files)), pa.int64()),
            "modification_time": pa.array(range(1000, 1000 + len(files)), pa.int64()),
            "rows": pa.array([file["rows"] for file in files], pa.int64()),
            "partition": pa.array([file["partition"] for file in files], kind),
            "min": pa.array([file["min"] for file in files], kind),
            "max": pa.array([{"deep": file["min"]} for file in files], nested),
            "null_count": pa.nulls(len(files), pa.struct([])),
        }
    )


def lines_of(
    files: pa.Table, partition_columns: tuple[str, ...], response_format: ResponseFormat = "parquet"
) -> list[dict[str, Any]]:
    """The lines as an answer has them, their URLs being their places among the files."""
    columns = render_lines(files, partition_columns)
    paths = pa.array([str(place) for place in range(files.num_rows)], pa.string())
    batch = pa.RecordBatch.from_arrays([paths, *columns], ["path", *LINE_COLUMNS])
    words = SnapshotLines(response_format=response_format, ids=response_format, expires_at_ms=5)
    text = bytes(words.of(batch, lambda paths: paths))
    return [json.loads(line)["file"] for line in text.splitlines()]


def partition_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        zone = value.tzinfo is not None
        return value.strftime(f"{value.year:04d}-%m-%d{'T' if zone else ' '}%H:%M:%S.%f{'Z' if zone else ''}")
    return value.isoformat() if isinstance(value, date) else str(value)


def stats_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime(f"{value.year:04d}-%m-%dT%H:%M:%S.{value.microsecond // 1000:03d}Z")
    return value.isoformat() if isinstance(value, date) else value


def rounded_up(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    try:
        return value + timedelta(microseconds=-value.microsecond % 1000)
    except OverflowError:
        return None


def stats_of(values: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value for name, value in values.items() if value is not None and not isinstance(value, bool)
    }
    finite = {n: v for n, v in kept.items() if not isinstance(v, float) or math.isfinite(v)}
    return {name: stats_value(value) for name, value in finite.items()}


@given(chunks())
@settings(deadline=None)
def test_a_line_says_what_the_file_is(files: list[dict[str, Any]]) -> None:
    for number, (file, said) in enumerate(zip(files, lines_of(a_chunk(files), tuple(VALUES)), strict=True)):
        assert said["url"] == str(number)
        assert said["id"] == hashlib.md5(file["name"].encode()).hexdigest()
        assert said["size"] == number
        for name, value in file["partition"].items():
            text = said["partitionValues"][name]
            if isinstance(value, float) and text is not None:
                assert float(text) == value or math.isnan(value)
            else:
                assert text == partition_text(value)
        if file["rows"] is None:
            assert "stats" not in said
            continue
        stats = json.loads(said["stats"], parse_float=Decimal)
        assert stats["numRecords"] == file["rows"]
        expected = stats_of(file["min"])
        assert set(stats["minValues"]) == set(expected)
        for name, value in expected.items():
            found = stats["minValues"][name]
            assert (float(found) if isinstance(value, float) else found) == value
        highest = stats_of({name: rounded_up(value) for name, value in file["min"].items()})
        assert {**stats["minValues"], "m": None} == {**stats["maxValues"]["deep"], "m": None}
        assert stats["maxValues"]["deep"].get("m") == highest.get("m")
        assert (stats["nullCount"], stats["tightBounds"]) == ({}, False)


@given(chunks())
@settings(deadline=None)
def test_both_formats_say_the_same_of_a_file(files: list[dict[str, Any]]) -> None:
    """protocol §2.1, §2.2, §2.6: the ids are MD5 and SHA-256, the path is the URL."""
    chunk = a_chunk(files)
    parquet, delta = lines_of(chunk, tuple(VALUES)), lines_of(chunk, tuple(VALUES), "delta")
    for number, (file, one, other) in enumerate(zip(files, parquet, delta, strict=True)):
        add = other["deltaSingleAction"]["add"]
        assert list(other) == ["expirationTimestamp", "id", "deltaSingleAction"]
        assert other["id"] == hashlib.sha256(file["name"].encode()).hexdigest()
        assert (add["path"], add["modificationTime"], add["dataChange"]) == (one["url"], 1000 + number, True)
        assert add["partitionValues"] == one["partitionValues"]
        assert (add["size"], add.get("stats")) == (one["size"], one.get("stats"))


def test_ids_are_those_of_the_reference_server() -> None:
    """protocol §2.6: the verified vectors."""
    vectors = {
        "date=2021-04-28/part-00000-8b0086f2-7b27-4935-ac5a-8ed6215a6640.c000.snappy.parquet": (
            "9f1a49539c5cffe1ea7f9e055d5c003c"
        ),
        "date=2021-04-28/part-00000-591723a8-6a27-4240-a90e-57426f4736d2.c000.snappy.parquet": (
            "cd2209b32f5ed5305922dd50f5908a75"
        ),
    }
    assert file_ids(pa.array(list(vectors)), md5).to_pylist() == list(vectors.values())


def logged_adds(location: Path) -> dict[str, Any]:
    log = (location / "_delta_log" / "00000000000000000000.json").read_text().splitlines()
    return {add["path"]: add for line in log if (add := json.loads(line).get("add"))}


@pytest.mark.parametrize("response_format", ["parquet", "delta"])
def test_lines_of_a_real_table_repeat_its_log(tmp_path: Path, response_format: ResponseFormat) -> None:
    location = a_delta_table(tmp_path / "table", partitioned_by=("day", "carrier"))
    snapshot = read_delta(str(location))
    found = lines_of(snapshot.files.combine_chunks(), snapshot.head.partition_columns, response_format)
    adds = logged_adds(location)
    assert len(found) == len(adds)
    for name, line in zip(snapshot.files.column("name").to_pylist(), found, strict=True):
        said, add = line.get("deltaSingleAction", {}).get("add", line), adds[name]
        assert said["partitionValues"] == add["partitionValues"]
        assert (said["size"], said["stats"]) == (add["size"], add["stats"])
        if response_format == "delta":
            assert said["modificationTime"] == add["modificationTime"]


TRACKED = {"baseRowId": 7, "defaultRowCommitVersion": 3, "clusteringProvider": "liquid", "tags": {"a": 'b"'}}
INLINE = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
VECTORS = {
    "inline": {**INLINE, "sizeInBytes": 40, "cardinality": 6},
    "relative": {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    },
    "absolute": {
        "storageType": "p",
        "pathOrInlineDv": "s3://bucket/deletion_vector_x.bin",
        "sizeInBytes": 40,
        "cardinality": 6,
    },
}


def test_what_a_log_says_of_rows_and_tags_is_passed_on(tmp_path: Path) -> None:
    """protocol §0.18, §2.2: row tracking, the clustering provider and tags stand where the log has them."""
    location = a_delta_table(tmp_path / "table", some_rows(days=2))
    rewrite_adds(location, [TRACKED, {}])
    told, plain = sorted(deltas(location), key=lambda add: "tags" not in add)
    assert {key: told[key] for key in TRACKED} == TRACKED
    assert not set(TRACKED) & set(plain)


def test_deletion_vectors_are_sent_where_clients_find_them(tmp_path: Path) -> None:
    """protocol §0.5, §2.3: `u` becomes `p`, inline ones stay; ids for those in files, differing by offset."""
    location = a_delta_table(tmp_path / "table", some_rows(days=5), partitioned_by=("day",))
    other = {**VECTORS["relative"], "offset": 99}
    rewrite_adds(location, [{"deletionVector": one} for one in (*VECTORS.values(), other)] + [{}])
    snapshot = read_delta(str(location))
    found = {
        json.dumps(line["deltaSingleAction"]["add"]["partitionValues"]): line
        for line in lines_of(snapshot.files.combine_chunks(), snapshot.head.partition_columns, "delta")
    }
    inline, relative, absolute, later, plain = (found[day] for day in sorted(found))
    assert inline["deltaSingleAction"]["add"]["deletionVector"] == VECTORS["inline"]
    beside = f"{location}/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    for line, logged, place in (
        (relative, VECTORS["relative"], beside),
        (absolute, VECTORS["absolute"], VECTORS["absolute"]["pathOrInlineDv"]),
        (later, other, beside),
    ):
        sent = line["deltaSingleAction"]["add"]["deletionVector"]
        assert sent == {**logged, "storageType": "p", "pathOrInlineDv": place}
        assert len(line["deletionVectorFileId"]) == 64
    assert len({line["deletionVectorFileId"] for line in (relative, absolute, later)}) == 3
    for line in (inline, plain):
        assert "deletionVectorFileId" not in line
    assert "deletionVector" not in plain["deltaSingleAction"]["add"]


def test_a_file_whose_log_has_no_time_has_a_line_all_the_same(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table", some_rows(days=1))
    rewrite_adds(location, [{"modificationTime": None}])
    [add] = deltas(location)
    assert add["modificationTime"] == 0


def deltas(location: Path) -> list[dict[str, Any]]:
    snapshot = read_delta(str(location))
    found = lines_of(snapshot.files.combine_chunks(), snapshot.head.partition_columns, "delta")
    return [line["deltaSingleAction"]["add"] for line in found]


def rewrite_adds(location: Path, changes: list[dict[str, Any]]) -> None:
    """Change the table's `add` actions, in the order of their paths, as another writer would have written them."""
    log = location / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    adds = sorted((action["add"] for action in actions if "add" in action), key=lambda add: str(add["path"]))
    for add, change in zip(adds, changes, strict=True):
        add.update(change)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
