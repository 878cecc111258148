"""A column that a data file lacks is read as Iceberg reads it: the value of its partition, through every API.

Iceberg's specification, "Column Projection". Files adopted from Hive lack their partition columns. A value that
recipients could not read is refused when the table is indexed, and never read as null.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IntegerType, NestedField, StringType, StructType

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import TableSnapshot, read_iceberg
from lakeshare_server.tables.lines import LINE_COLUMNS, render_lines
from lakeshare_server.tables.serveability import REWRITE, ReasonCode
from tests.builders.campaign import campaign_size
from tests.builders.iceberg_projection import ProjectedTable
from tests.builders.projection_reading import APIS, Reading, SharedTable
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.random_projection import draw_table
from tests.builders.sharing import Provider, a_provider, a_server

TABLES = campaign_size(in_ci=6, in_campaign=2_000)
IN_A_SHARE = 100
SEED = 20_241_122
# Refusals whose fix is to rewrite the files of the table.
REWRITTEN = {f"refused {code}" for code in ReasonCode if code.fix == REWRITE}


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
    assert snapshot.head.partition_columns == ("c",)
    for common in render_lines(snapshot.files, ("c",))[LINE_COLUMNS.index("common")].to_pylist():
        assert json.loads(f"{{{common}}}")["partitionValues"] == {"c": text}


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "binary"])
def test_what_all_files_have_or_is_null_is_left_to_them(tmp_path: Path, kind: str) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    value = {"binary": b"a", "timestamp": moment.replace(tzinfo=None), "timestamptz": moment}[kind]
    table = a_table(tmp_path, kind)
    table.add_file([{"n": 1, "c": value}])
    table.add_file([{"n": 2, "c": None}], ["c"])
    assert read(table).head.partition_columns == ()


def test_a_file_that_is_not_partitioned_by_a_column_and_lacks_it_is_null_in_it(tmp_path: Path) -> None:
    table = a_table(tmp_path, "string")
    table.add_file([{"n": 1, "c": "x"}], ["c"])
    table.partition_by(without=["p0"])
    table.add_file([{"n": 2, "c": None}], ["c"])
    snapshot = read(table)
    assert snapshot.head.partition_columns == ("c",)
    assert snapshot.files.sort_by("path").column("partition").to_pylist() == [{"c": "x"}, {"c": None}]


@pytest.mark.parametrize(("kind", "value"), [("string", ""), ("binary", b"abc"), ("binary", b"")])
def test_a_value_without_a_text_that_clients_read_is_refused(tmp_path: Path, kind: str, value: Any) -> None:
    table = a_table(tmp_path, kind)
    table.add_file([{"n": 1, "c": value}])
    assert read(table).head.partition_columns == ()
    table.add_file([{"n": 2, "c": value}], ["c"])
    require_refusal(table, f"value of the type {kind} that clients do not read")


def test_a_column_inside_of_another_is_refused_when_a_file_lacks_it(tmp_path: Path) -> None:
    inside = StructType(NestedField(3, "day", DateType()), NestedField(4, "s", StringType()))
    table = ProjectedTable(tmp_path, Schema(NestedField(1, "st", inside)), [("st.day", "identity")])
    table.add_file([{"st": {"day": date(2024, 1, 1), "s": "x"}}])
    assert read(table).head.partition_columns == ()
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
    assert read(table).head.partition_columns == ()
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
@pytest.mark.timeout(campaign_size(in_ci=300, in_campaign=14_400))
@pytest.mark.filterwarnings("ignore")
def test_random_tables_are_served_as_they_are_or_refused(tmp_path: Path) -> None:
    """Every fourth is published, the others are followed; what is refused is served once its fix was applied."""
    outcomes: Counter[str] = Counter()
    differences: list[str] = []
    for first in range(0, TABLES, IN_A_SHARE):
        folder = tmp_path / f"share{first}"
        provider = a_provider(folder)
        shared = []
        for number in range(first, min(first + IN_A_SHARE, TABLES)):
            random = Random(SEED + number)
            source = draw_table(random, folder / f"t{number}")
            table = SharedTable(f"t{number}", source, number % 4 != 0, random)
            publish(provider, table, outcomes)
            shared.append(table)
        provider.share(*(f"lake.{table.name}" for table in shared), history=True)
        token = provider.recipient()
        with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
            reading = Reading(server, token, client, data)
            for table in shared:
                differences += read_by_all(provider, reading, table, outcomes)
        shutil.rmtree(folder)
        print(f"{first + len(shared)} tables, {len(differences)} differences", flush=True)
    print(json.dumps(outcomes, indent=1, sort_keys=True))
    assert not differences, f"{len(differences)} silent differences: " + "\n".join(differences)
    for kind in ("files", "planned files"):
        assert outcomes[f"{kind} left out"] > outcomes[f"{kind} without a match"] * 0.1


def publish(provider: Provider, table: SharedTable, outcomes: Counter[str]) -> None:
    """Publish or follow a table; where that is refused, apply the fix and publish."""
    if table.is_followed:
        provider.follow_iceberg(f"lake.{table.name}", table.source.table.location().removeprefix("file://"))
        return
    try:
        provider.publish_iceberg(f"lake.{table.name}", table.source.state())
    except Unserveable as refusal:
        outcomes[f"publication refused {refusal.code}"] += 1
        if refusal.fix != REWRITE:
            raise
        table.source.rewrite()
        provider.publish_iceberg(f"lake.{table.name}", table.source.state())


def read_by_all(
    provider: Provider, reading: Reading, table: SharedTable, outcomes: Counter[str]
) -> Iterator[str]:
    """What is different from the table, through each API, and again after the fix of a refusal."""
    found: dict[str, Counter[str]] = {}
    yield from differences(reading, table, found)
    codes = {outcome for each in found.values() for outcome in each if outcome.startswith("refused ")}
    fixable = codes & REWRITTEN
    if fixable:
        table.source.rewrite()
        if not table.is_followed:
            provider.publish_iceberg(f"lake.{table.name}", table.source.state())
        table = replace(table, is_followed=False)
        after: dict[str, Counter[str]] = {}
        yield from (f"after the fix: {text}" for text in differences(reading, table, after))
        left = {outcome for each in after.values() for outcome in each} & fixable
        if left:
            yield f"{table.name}: the fix does not help against {left}"
        found |= {f"{api}, after the fix": outcome for api, outcome in after.items()}
    for api, each in found.items():
        outcomes.update({f"{api}: {outcome}": count for outcome, count in each.items()})
    outcomes.update(table.seen)


def differences(reading: Reading, table: SharedTable, found: dict[str, Counter[str]]) -> Iterator[str]:
    for api, read_by in APIS.items():
        try:
            found[api] = read_by(reading, table)
        # Whatever a client raises of a table that is served is a difference, too.
        except Exception as error:
            found[api] = Counter(["DIFFERENT"])
            yield f"{table.name}, {api}: {error!r}"
