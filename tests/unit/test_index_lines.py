"""Rendered lines are JSON that says exactly what the table's metadata said of each file."""

import hashlib
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.tables import read_delta
from lakeshare_server.tables.lines import parquet_lines
from tests.builders.lake_tables import a_delta_table

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
            "rows": pa.array([file["rows"] for file in files], pa.int64()),
            "partition": pa.array([file["partition"] for file in files], kind),
            "min": pa.array([file["min"] for file in files], kind),
            "max": pa.array([{"deep": file["min"]} for file in files], nested),
            "null_count": pa.nulls(len(files), pa.struct([])),
        }
    )


def partition_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime(f"{value.year:04d}-%m-%d %H:%M:%S.%f")
    return value.isoformat() if isinstance(value, date) else str(value)


def stats_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime(f"{value.year:04d}-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


def stats_of(values: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value for name, value in values.items() if value is not None and not isinstance(value, bool)
    }
    finite = {n: v for n, v in kept.items() if not isinstance(v, float) or math.isfinite(v)}
    return {name: stats_value(value) for name, value in finite.items()}


@given(chunks())
@settings(deadline=None)
def test_a_line_says_what_the_file_is(files: list[dict[str, Any]]) -> None:
    rendered = parquet_lines(a_chunk(files), tuple(VALUES)).to_pylist()
    for number, (file, line) in enumerate(zip(files, rendered, strict=True)):
        said = json.loads('{"url":"' + line + "}")
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
        assert stats["maxValues"]["deep"] == stats["minValues"]
        assert stats["nullCount"] == {}


def test_lines_of_a_real_table_repeat_its_log(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table", partitioned_by=("day", "carrier"))
    snapshot = read_delta(str(location))
    lines = parquet_lines(snapshot.files.combine_chunks(), snapshot.partition_columns).to_pylist()
    log = (location / "_delta_log" / "00000000000000000000.json").read_text().splitlines()
    adds = {add["path"]: add for line in log if (add := json.loads(line).get("add"))}
    assert len(lines) == len(adds)
    for name, line in zip(snapshot.files.column("name").to_pylist(), lines, strict=True):
        said, add = json.loads('{"url":"' + line + "}"), adds[name]
        assert said["partitionValues"] == add["partitionValues"]
        assert said["size"] == add["size"]
        stats, logged = json.loads(said["stats"]), json.loads(add["stats"])
        assert stats["numRecords"] == logged["numRecords"]
        for column, low in logged["minValues"].items():
            if column not in ("departed", "cancelled"):
                assert stats["minValues"][column] == low
        assert {c: n for c, n in stats["nullCount"].items() if c != "crew"} == {
            c: n for c, n in logged["nullCount"].items() if c != "crew"
        }
