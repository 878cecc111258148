"""A column that a data file lacks is read as Iceberg reads it: the value of its partition, through every API.

Iceberg's specification, "Column Projection". Files adopted from Hive lack their partition columns. A value that
recipients could not read is refused when the table is indexed, and never read as null.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import delta_sharing
import httpx
import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import DateType, IntegerType, NestedField, StringType, StructType

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import TableSnapshot, read_iceberg
from lakeshare_server.tables.lines import LINE_COLUMNS, rendered
from tests.builders.campaign import campaign_size
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_door import rest_catalog
from tests.builders.iceberg_projection import ProjectedTable
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.random_projection import Drawn, draw_table
from tests.builders.sharing import Running, a_provider, a_server

TABLES = campaign_size(in_ci=16, in_campaign=2_000)
IN_A_SHARE = 100
SEED = 20_241_122


@dataclass(frozen=True)
class Reading:
    """A running server and what its clients need."""

    server: Running
    token: str
    client: httpx.Client
    data: httpx.Client


def a_table(folder: Path, kind: str, *, required: bool = False) -> ProjectedTable:
    """A number and a column `c` of this type, partitioned by it."""
    schema = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "c", kind, required=required))
    return ProjectedTable(folder, schema, [("c", "identity")])


def read(table: ProjectedTable) -> TableSnapshot:
    state = table.state()
    return read_iceberg(state.metadata_location, state.snapshot_id)


@pytest.mark.parametrize("is_required", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("timestamptz", datetime(2024, 1, 1, 12, 0, 0, 5, UTC), "2024-01-01T12:00:00.000005Z"),
        ("timestamptz", datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000000Z"),
        ("timestamp", datetime.fromisoformat("1969-12-31T23:59:59.999999"), "1969-12-31 23:59:59.999999"),
        ("string", "a b", "a b"),
        ("date", date(9999, 12, 31), "9999-12-31"),
    ],
)
def test_a_value_that_files_lack_is_in_their_lines(
    tmp_path: Path, kind: str, value: Any, text: str, is_required: bool
) -> None:
    table = a_table(tmp_path, kind, required=is_required)
    table.add_file([{"n": 1, "c": value}], ["c"])
    table.add_file([{"n": 2, "c": value}])
    snapshot = read(table)
    assert snapshot.partition_columns == ("c",)
    for common in rendered(snapshot.files, ("c",))[LINE_COLUMNS.index("common")].to_pylist():
        assert json.loads(f"{{{common}}}")["partitionValues"] == {"c": text}


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "binary"])
def test_what_all_files_have_or_is_null_is_left_to_them(tmp_path: Path, kind: str) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    value = {"binary": b"a", "timestamp": moment.replace(tzinfo=None), "timestamptz": moment}[kind]
    table = a_table(tmp_path, kind)
    table.add_file([{"n": 1, "c": value}])
    table.add_file([{"n": 2, "c": None}], ["c"])
    assert read(table).partition_columns == ()


def test_a_file_that_is_not_partitioned_by_a_column_and_lacks_it_is_null_in_it(tmp_path: Path) -> None:
    table = a_table(tmp_path, "string")
    table.add_file([{"n": 1, "c": "x"}], ["c"])
    table.partition_by(without=["p0"])
    table.add_file([{"n": 2, "c": None}], ["c"])
    snapshot = read(table)
    assert snapshot.partition_columns == ("c",)
    assert snapshot.files.sort_by("path").column("partition").to_pylist() == [{"c": "x"}, {"c": None}]


@pytest.mark.parametrize(("kind", "value"), [("string", ""), ("binary", b"abc"), ("binary", b"")])
def test_a_value_without_a_text_that_clients_read_is_refused(tmp_path: Path, kind: str, value: Any) -> None:
    table = a_table(tmp_path, kind)
    table.add_file([{"n": 1, "c": value}])
    assert read(table).partition_columns == ()
    table.add_file([{"n": 2, "c": value}], ["c"])
    require_refusal(table, f"value of the type {kind} that clients do not read")


def test_a_column_inside_of_another_is_refused_when_a_file_lacks_it(tmp_path: Path) -> None:
    inside = StructType(NestedField(3, "day", DateType()), NestedField(4, "s", StringType()))
    table = ProjectedTable(tmp_path, Schema(NestedField(1, "st", inside)), [("st.day", "identity")])
    table.add_file([{"st": {"day": date(2024, 1, 1), "s": "x"}}])
    assert read(table).partition_columns == ()
    table.add_file([{"st": {"day": date(2024, 1, 1), "s": "x"}}], ["st.day"])
    require_refusal(table, "without the partition column st.day: it is inside of another column")


def test_a_column_with_many_values_in_files_of_another_spec_is_refused_when_a_file_lacks_it(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path, "int")
    table.add_file([{"n": 1, "c": 7}], ["c"])
    table.partition_by(without=["p0"])
    table.add_file([{"n": 2, "c": 8}, {"n": 3, "c": 9}])
    require_refusal(table, "other files have many values of it")


def test_a_table_that_is_read_by_field_ids_is_refused_when_a_file_lacks_a_partition_column(
    tmp_path: Path,
) -> None:
    """The kernel of the Python client fails on partition columns there, so no promise could be kept."""
    table = a_table(tmp_path, "int")
    table.add_file([{"n": 1, "c": 7}])
    table.rename("n", "m")
    assert read(table).partition_columns == ()
    table.add_file([{"m": 1, "c": 7}], ["c"])
    require_refusal(table, "columns are read by field ids")


@pytest.mark.parametrize("lacking", [(), ("c",)])
def test_changes_are_refused_when_values_of_files_that_lack_a_column_cannot_be_in_all_lines(
    tmp_path: Path, lacking: tuple[str, ...]
) -> None:
    """Versions with different partition columns are told together without partition values."""
    provider, table = a_provider(tmp_path), a_table(tmp_path / "table", "string")
    table.add_file([{"n": 1, "c": "x"}], lacking)
    provider.follow_iceberg("lake.t", table.table.location().removeprefix("file://"))
    provider.share("lake.t", history=True)
    with (
        a_server(provider) as server,
        server.client(provider.recipient()) as client,
        httpx.Client(timeout=30) as data,
    ):
        reader = ProtocolReader(client, "flights.lake.t", "delta", data)
        assert reader.snapshot().head.metadata["partitionColumns"] == ["c"]
        table.table.delete()
        table.add_file([{"n": 2, "c": ""}])
        assert reader.snapshot().head.metadata["partitionColumns"] == []
        last = reader.window(2)
        assert reader.file_rows(last.head.shape, last.files[0]) == [[2, ""]]
        path = "shares/flights/schemas/lake/tables/t"
        asked = [
            client.post(f"{path}/query", json={"startingVersion": 0}, headers=reader.headers()),
            client.get(f"{path}/changes", params={"startingVersion": 0}, headers=reader.headers()),
        ]
        for answer in asked:
            assert answer.status_code == (400 if lacking else 200), answer.text
            assert ("[PARTITION_VALUES_NOT_IN_FILES]" in answer.text) == bool(lacking)
        if not lacking:
            added = [file for file in reader.window(0).files if file.kind == "add"]
            rows = [row for file in added for row in reader.file_rows(last.head.shape, file)]
            assert sorted(rows) == [[1, "x"], [2, ""]]


def require_refusal(table: ProjectedTable, reason: str) -> None:
    with pytest.raises(Unserveable, match=reason) as refused:
        read(table)
    assert refused.value.code == "PARTITION_VALUES_NOT_IN_FILES"


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_random_tables_are_served_as_they_are_or_refused(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    differences = []
    for first in range(0, TABLES, IN_A_SHARE):
        folder = tmp_path / f"share{first}"
        provider, served = a_provider(folder), dict[str, tuple[int, Drawn]]()
        for number in range(first, min(first + IN_A_SHARE, TABLES)):
            seed = SEED + number
            drawn = draw_table(Random(seed), folder / f"t{number}")
            try:
                provider.publish_iceberg(f"lake.t{number}", drawn.table.state())
                served[f"t{number}"] = seed, drawn
            except Unserveable as refusal:
                outcomes[f"refused {refusal.code}"] += 1
        provider.share(*(f"lake.{name}" for name in served))
        token = provider.recipient()
        with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
            reading = Reading(server, token, client, data)
            for name, (seed, drawn) in served.items():
                for api, read in APIS.items():
                    try:
                        outcomes[f"{api}: {read(reading, name, drawn)}"] += 1
                    except AssertionError as error:
                        differences.append(f"seed {seed}, {api}: {error}")
                        outcomes[f"{api}: DIFFERENT"] += 1
    print(json.dumps(outcomes, indent=1, sort_keys=True))
    assert not [outcome for outcome in outcomes if "refused 5" in outcome]
    assert not differences, f"{len(differences)} silent differences: {differences[:5]}"


def by_parquet(reading: Reading, name: str, drawn: Drawn) -> str:
    return by_protocol(reading, name, drawn, "parquet")


def by_delta(reading: Reading, name: str, drawn: Drawn) -> str:
    return by_protocol(reading, name, drawn, "delta")


def by_protocol(reading: Reading, name: str, drawn: Drawn, fmt: Any) -> str:
    reader = ProtocolReader(reading.client, f"flights.lake.{name}", fmt, reading.data)
    asked = reading.client.post(f"{reader.path}/query", json={}, headers=reader.headers())
    if asked.status_code == 400:
        return asked.json()["message"].rpartition("[")[2].rstrip("]")
    answer, expected = reader.snapshot(), drawn.table.expected()
    same_rows(reader.rows(answer), expected)
    for file in answer.files:
        require_true_counts(reader, answer, file)
    for sql, is_wanted in drawn.predicates:
        some = reader.snapshot(predicateHints=[sql])
        same_rows(reader.rows(some).where(is_wanted), expected.where(is_wanted), sql)
    return "rows"


def require_true_counts(reader: ProtocolReader, answer: Any, file: Any) -> None:
    """The counts of nulls in a file's statistics are those of the rows that are read of it."""
    shape = answer.head.shape
    rows = reader.file_rows(shape, file)
    told: Mapping[str, int] = json.loads(file.stats or "{}").get("nullCount", {})
    physical = {
        field["metadata"].get("delta.columnMapping.physicalName", field["name"]): place
        for place, field in enumerate(shape.schema["fields"])
    }
    for column, count in told.items():
        place = physical.get(column)
        if place is None:
            place = [field["name"] for field in shape.schema["fields"]].index(column)
        assert count == sum(row[place] is None for row in rows), f"nullCount of {column}: {count}"


def by_python(reading: Reading, name: str, drawn: Drawn, *, use_delta_format: bool) -> str:
    expected = drawn.table.expected()
    url = f"{reading.server.profile(reading.token)}#flights.lake.{name}"
    try:
        frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=use_delta_format)
    except requests.HTTPError as error:
        return f"refused {error.response.status_code}"
    same_frame(frame[expected.names], expected)
    return "rows"


def by_rest(reading: Reading, name: str, drawn: Drawn) -> str:
    expected = drawn.table.expected()
    loaded = rest_catalog(reading.server, reading.token).load_table(f"lake.{name}")
    try:
        found = loaded.scan().to_arrow()
    except ResolveError:
        # PyIceberg 0.12 looks for required columns in files before it looks at partition values.
        return "own limit"
    try:
        same_rows(rows_of(found, expected), expected)
    except AssertionError:
        # PyIceberg 0.12 makes single floats of partition values that files lack, with and without a server.
        without_server = StaticTable.from_metadata(drawn.table.state().metadata_location).scan().to_arrow()
        same_rows(rows_of(found, expected), rows_of(without_server, expected))
        return "own limit"
    return "rows"


def rows_of(found: pa.Table, expected: Rows) -> Rows:
    lists = [found.column(column).to_pylist() for column in expected.names]
    return Rows.of(expected.columns, zip(*lists, strict=True))


APIS = {
    "parquet": by_parquet,
    "delta": by_delta,
    "python parquet": lambda *given: by_python(*given, use_delta_format=False),
    "python delta": lambda *given: by_python(*given, use_delta_format=True),
    "Iceberg REST": by_rest,
}
