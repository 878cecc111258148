"""What a recipient with a rule reads, by every door, is what Spark reads of the table under the very same words.

Delta with mapped columns, deletion vectors and change files, and Iceberg with deletes, changed rows and partitions that
evolve; rows also move from one partition to another.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from lakeshare_pipelines.wap.lake import Lake
from tests.builders.applied_changes import applied
from tests.builders.canonical import Rows, same_rows
from tests.builders.grants import grant_to
from tests.builders.iceberg_door import door
from tests.builders.protocol_reader import Answer, ProtocolReader
from tests.builders.recorded_changes import RecordingLake
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, frame_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.timeout(600)

RULES = (
    "region = 'eu'",
    "NOT (region = 'eu' OR year = 2021)",
    "region IS NULL OR (region LIKE 'u%' AND year BETWEEN 2020 AND 2021)",
    "region = 'nowhere'",
)
# Iceberg's first files state their region alone.
OF_REGIONS = ("region <> 'eu'", "region IS NULL", "region IN ('eu', 'asia')")
COLUMNS = "(region STRING, year INT, id BIGINT, note STRING)"
INSERT = (
    "INSERT INTO {{t}} SELECT CASE id % 4 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' WHEN 2 THEN 'asia' END, "
    "CAST(2020 + id % 3 AS INT), id, concat('n', id) FROM range({first}, {last})"
)
STEPS = (
    INSERT.format(first=0, last=24),
    INSERT.format(first=24, last=36),
    "UPDATE {t} SET note = 'changed' WHERE id % 5 = 1",
    "DELETE FROM {t} WHERE id % 7 = 3",
    "UPDATE {t} SET region = 'us' WHERE id IN (4, 8, 10)",
    "DELETE FROM {t} WHERE region = 'asia'",
)
COMPACT = (
    "CALL {c}.system.rewrite_data_files(table => '{t}', "
    "options => map('rewrite-all', 'true', 'delete-file-threshold', '1'))"
)


@dataclass(frozen=True)
class Made:
    """The tables, and what Spark read: by table and rule, the rows of each version."""

    provider: Provider
    running: Running
    read: dict[tuple[str, str], list[Rows]] = field(default_factory=dict)
    changed: dict[str, Rows] = field(default_factory=dict)


@pytest.fixture(scope="module")
def made(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("rules")
    provider = a_provider(folder)
    with a_server(provider) as running:
        made = Made(provider, running)
        make_delta(lake, made, folder / "mapped")
        make_iceberg(lake, made, folder / "warehouse")
        provider.share("lake.mapped", "lake.evolving", history=True)
        yield made


def make_delta(lake: Lake, made: Made, location: Path) -> None:
    spark, table = lake.spark, f"delta.`{location}`"
    spark.sql(
        f"CREATE TABLE {table} {COLUMNS} USING delta PARTITIONED BY (region, year) TBLPROPERTIES ("
        "'delta.enableChangeDataFeed' = 'true', 'delta.columnMapping.mode' = 'name', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    for statement in STEPS:
        spark.sql(statement.format(t=table))
    for version in range(len(STEPS) + 1):
        made.provider.publish_delta("lake.mapped", location, version)
        state = spark.read.format("delta").option("versionAsOf", version).load(str(location))
        for rule, rows in rows_where(state, RULES):
            made.read.setdefault(("mapped", rule), []).append(rows)
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    changes = feed.load(str(location)).drop("_commit_timestamp")
    made.changed.update(rows_where(changes, RULES))


def rows_where(frame: "DataFrame", rules: Sequence[str]) -> Iterator[tuple[str, Rows]]:
    """The rows for which Spark finds each rule true; it is asked once for all of them."""
    rows = frame_rows(frame.selectExpr("*", *(f"({rule}) AS `{rule}`" for rule in rules)))
    for rule in rules:
        place = rows.names.index(rule)
        wanted = tuple(row for row in rows.rows if json.loads(row)[place] is True)
        yield rule, replace(rows, rows=wanted).without(*rules)


def make_iceberg(lake: Lake, made: Made, warehouse: Path) -> None:
    tables = SparkIceberg.at(lake.spark, "ruled", warehouse)
    recording = RecordingLake(tables, made.provider)
    modes = ", ".join(f"'write.{one}.mode' = 'merge-on-read'" for one in ("delete", "update", "merge"))
    partitioned = f"PARTITIONED BY (region) TBLPROPERTIES ('format-version' = '2', {modes})"
    tables.run("evolving", [f"CREATE TABLE {{t}} {COLUMNS} USING iceberg {partitioned}"])
    for number, statement in enumerate((*STEPS, COMPACT)):
        tables.run("evolving", [statement])
        if number == 0:
            tables.run("evolving", ["ALTER TABLE {t} ADD PARTITION FIELD year"])
        recording.publish("evolving")
        for rule, rows in rows_where(lake.spark.table(tables.table("evolving")), OF_REGIONS):
            made.read.setdefault(("evolving", rule), []).append(rows)


@dataclass(frozen=True)
class Doors:
    """One recipient's ways to one table."""

    reader: ProtocolReader
    token: str

    def snapshots(self, version: int, newest: int) -> Iterator[Answer]:
        """A version in each way to ask for it."""
        yield self.reader.snapshot(version=version)
        yield self.reader.pages(2, version=version)
        yield self.reader.submitted(version=version)
        if version == newest:
            yield self.reader.refreshed(self.reader.snapshot(includeRefreshToken=True))


@pytest.fixture
def doors(made: Made, request: pytest.FixtureRequest) -> Iterator[Doors]:
    """Of a recipient of its own, whose grant has the rule of the test."""
    table, rule = request.param
    name = f"{table}-{uuid.uuid4()}"
    token = made.provider.recipient(name)
    grant_to(made.provider, name, rule=rule)
    with made.running.client(token) as client, httpx.Client(timeout=30) as data:
        yield Doors(ProtocolReader(client, f"flights.lake.{table}", "delta", data), token)


CASES = [*(("mapped", rule) for rule in RULES), *(("evolving", rule) for rule in OF_REGIONS)]


@pytest.mark.parametrize(("doors", "case"), [(one, one) for one in CASES], indirect=["doors"])
def test_every_version_has_the_rows_that_spark_reads(made: Made, doors: Doors, case: tuple[str, str]) -> None:
    read = made.read[case]
    reader = doors.reader
    assert any(rows.rows for rows in read) != ("nowhere" in case[1])
    assert reader.version() == len(read) - 1
    for version, rows in enumerate(read):
        for answer in doors.snapshots(version, len(read) - 1):
            same_rows(reader.rows(answer), rows, f"version {version} where {case[1]}")
            told = reader.metadata(version=version).head.outer
            assert told["numFiles"] == len(answer.files)
            assert told["size"] == sum(file.size for file in answer.files)
    shape = reader.metadata().head.shape
    copy = reader.replica(reader.snapshot(version=0), [reader.window(1, maxFiles=2)], shape)
    same_rows(copy, read[-1], f"a copy by windows where {case[1]}")


@pytest.mark.parametrize(
    ("doors", "case"), [(one, one) for one in CASES if one[0] == "mapped"], indirect=["doors"]
)
def test_the_change_data_feed_has_the_rows_that_spark_reads(
    made: Made, doors: Doors, case: tuple[str, str]
) -> None:
    reader = doors.reader
    for answer in (reader.changes(0), reader.changes(0, maxFiles=1)):
        same_rows(reader.change_rows(answer).without("_commit_timestamp"), made.changed[case[1]], case[1])


@pytest.mark.parametrize(
    ("doors", "case"), [(one, one) for one in CASES if one[0] == "evolving"], indirect=["doors"]
)
def test_changes_of_an_iceberg_table_lead_from_what_spark_reads_to_what_it_reads(
    made: Made, doors: Doors, case: tuple[str, str]
) -> None:
    read, reader = made.read[case], doors.reader
    before = Rows(read[0].columns, ())
    for version, after in enumerate(read):
        changes = reader.change_rows(reader.changes(version, version))
        same_rows(applied(before, changes), after, f"version {version} where {case[1]}")
        before = after


@pytest.mark.parametrize(
    ("doors", "case"), [(one, one) for one in CASES if one[0] == "evolving"], indirect=["doors"]
)
def test_scans_that_the_server_plans_have_the_rows_that_spark_reads(
    made: Made, doors: Doors, case: tuple[str, str]
) -> None:
    with door(made.running, doors.token) as client:
        answer = client.post("/v1/shares/flights/namespaces/lake/tables/evolving/plan", json={})
        assert answer.status_code == 200, answer.text
        # The last step was a compaction: no row of these files is deleted.
        files = [task["data-file"] for task in answer.json()["file-scan-tasks"]]
        assert sum(file["record-count"] for file in files) == len(made.read[case][-1].rows)
        assert client.get("/v1/shares/flights/namespaces/lake/tables/evolving").status_code == 400
