"""What a recipient with a rule reads, by every door, is what Spark reads of the table under the very same words.

Delta with mapped columns, deletion vectors and change files, and Iceberg with deletes, changed rows and partitions that
evolve; rows also move from one partition to another.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Ledger
from tests.builders.applied_changes import applied
from tests.builders.canonical import Rows, same_rows
from tests.builders.grants import grant_to
from tests.builders.iceberg_matrix.made import session_of_its_own
from tests.builders.iceberg_rest import door
from tests.builders.protocol_reader import Answer, ProtocolReader
from tests.builders.recorded_changes import RecordingLake, is_of_state
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, frame_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

RULES = (
    "region = 'eu'",
    "NOT (region = 'eu' OR year = 2021)",
    "region IS NULL OR (region LIKE 'u%' AND year BETWEEN 2020 AND 2021)",
    "region = 'nowhere'",
)
# Iceberg's first files state their region alone.
OF_REGIONS = ("region <> 'eu'", "region IS NULL", "region IN ('eu', 'asia')")
DOOR = "/v1/shares/flights/namespaces/lake/tables"
COLUMNS = "(region STRING, year INT, id BIGINT, note STRING)"
INSERT = (
    "INSERT INTO {{t}} SELECT CASE id % 4 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' WHEN 2 THEN 'asia' END, "
    "CAST(2020 + id % 3 AS INT), id, concat('n', id) FROM range({first}, {last})"
)
STEPS = (
    INSERT.format(first=0, last=36),
    "UPDATE {t} SET note = 'changed' WHERE id % 5 = 1",
    "DELETE FROM {t} WHERE id % 7 = 3",
    "UPDATE {t} SET region = 'us' WHERE id IN (4, 8, 10)",
    "DELETE FROM {t} WHERE region = 'asia'",
)
# Each costs Spark a comparison of two snapshots. The second one writes by partitions that the first one lacks.
OF_ICEBERG = (INSERT.format(first=0, last=24), INSERT.format(first=24, last=36), *STEPS[1:4])


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
        made, spark = Made(provider, running), session_of_its_own(lake.spark)
        make_delta(spark, made, folder / "mapped")
        make_iceberg(spark, made, folder / "warehouse")
        make_vectors(spark, made)
        provider.share("lake.mapped", "lake.evolving", "lake.vectors", history=True)
        yield made


def make_delta(spark: "SparkSession", made: Made, location: Path) -> None:
    table = f"delta.`{location}`"
    spark.sql(
        f"CREATE TABLE {table} {COLUMNS} USING delta PARTITIONED BY (region, year) TBLPROPERTIES ("
        "'delta.enableChangeDataFeed' = 'true', 'delta.columnMapping.mode' = 'name', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    for statement in STEPS:
        spark.sql(statement.format(t=table))
    states = []
    for version in range(len(STEPS) + 1):
        made.provider.publish_delta("lake.mapped", location, version)
        states.append(spark.read.format("delta").option("versionAsOf", version).load(str(location)))
    made.read.update((("mapped", rule), rows) for rule, rows in states_where(states, RULES))
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


def states_where(states: "Sequence[DataFrame]", rules: Sequence[str]) -> Iterator[tuple[str, list[Rows]]]:
    """The same for each state of a table; Spark reads all states by one query."""
    numbered = (state.selectExpr(f"{number} AS `#`", "*") for number, state in enumerate(states))
    for rule, rows in rows_where(reduce(lambda one, other: one.unionAll(other), numbered), rules):
        yield rule, [rows.where(partial(is_of_state, number)).without("#") for number in range(len(states))]


def make_iceberg(spark: "SparkSession", made: Made, warehouse: Path) -> None:
    tables = SparkIceberg.at(spark, "ruled", warehouse)
    recording = RecordingLake(tables, made.provider)
    modes = ", ".join(f"'write.{one}.mode' = 'merge-on-read'" for one in ("delete", "update", "merge"))
    partitioned = f"PARTITIONED BY (region) TBLPROPERTIES ('format-version' = '2', {modes})"
    tables.run("evolving", [f"CREATE TABLE {{t}} {COLUMNS} USING iceberg {partitioned}"])
    states = []
    for number, statement in enumerate(OF_ICEBERG):
        tables.run("evolving", [statement])
        if number == 0:
            tables.run("evolving", ["ALTER TABLE {t} ADD PARTITION FIELD year"])
        state = recording.state("evolving")
        recording.publish_state("evolving", state)
        at = f"SELECT * FROM {tables.table('evolving')} VERSION AS OF {state.snapshot_id}"
        states.append(spark.sql(at))
    made.read.update((("evolving", rule), rows) for rule, rows in states_where(states, OF_REGIONS))


def make_vectors(spark: "SparkSession", made: Made) -> None:
    """Two regions whose deletion vectors one task writes into one file."""
    tables = SparkIceberg(spark, "ruled")
    terms = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read', 'write.delete.distribution-mode' = 'none'"
    tables.run(
        "vectors",
        [
            f"CREATE TABLE {{t}} {COLUMNS} USING iceberg PARTITIONED BY (region) TBLPROPERTIES ({terms})",
            "INSERT INTO {t} SELECT IF(id % 2 = 0, 'eu', 'us'), 2020, id, 'n' FROM range(0, 20)",
            "DELETE FROM {t} WHERE id IN (2, 3, 5)",
        ],
    )
    made.provider.publish_iceberg("lake.vectors", tables.state("vectors"))
    for rule, rows in rows_where(spark.table(tables.table("vectors")), ["region = 'eu'"]):
        made.read["vectors", rule] = [rows]


@dataclass(frozen=True)
class Doors:
    """One recipient's ways to one table."""

    reader: ProtocolReader
    token: str

    def snapshots(self, version: int, newest: int) -> Iterator[Answer]:
        """A version in each way to ask for it."""
        yield self.reader.snapshot(version=version)
        yield self.reader.pages(2, version=version)
        if version == newest:
            yield self.reader.submitted(version=version)
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


@pytest.mark.parametrize(("doors", "case"), [(case, case) for case in CASES], indirect=["doors"])
def test_versions_changes_and_plans_have_the_rows_that_spark_reads(
    made: Made, doors: Doors, case: tuple[str, str], subtests: pytest.Subtests
) -> None:
    with subtests.test("versions and windows"):
        require_versions(made, doors, case)
    if case[0] == "mapped":
        with subtests.test("the change data feed"):
            for answer in (doors.reader.changes(0), doors.reader.changes(0, maxFiles=1)):
                rows = doors.reader.change_rows(answer).without("_commit_timestamp")
                same_rows(rows, made.changed[case[1]], case[1])
    else:
        with subtests.test("changes of an Iceberg table"):
            require_changes(made, doors, case)
        with subtests.test("scans that the server plans"):
            require_plans(made, doors, case)


def require_versions(made: Made, doors: Doors, case: tuple[str, str]) -> None:
    read, reader = made.read[case], doors.reader
    assert any(rows.rows for rows in read) != ("nowhere" in case[1])
    assert reader.version() == len(read) - 1
    for version, rows in enumerate(read):
        head = reader.metadata(version=version).head.outer
        for answer in doors.snapshots(version, len(read) - 1):
            same_rows(reader.rows(answer), rows, f"version {version} where {case[1]}")
            assert head["numFiles"] == len(answer.files)
            assert head["size"] == sum(file.size for file in answer.files)
    shape = reader.metadata().head.shape
    copy = reader.replica(reader.snapshot(version=0), [reader.window(1, maxFiles=2)], shape)
    same_rows(copy, read[-1], f"a copy by windows where {case[1]}")


def require_changes(made: Made, doors: Doors, case: tuple[str, str]) -> None:
    """Changes of each version make its rows of the rows before it."""
    read, reader = made.read[case], doors.reader
    before = Rows(read[0].columns, ())
    for version, after in enumerate(read):
        changes = reader.change_rows(reader.changes(version, version))
        same_rows(applied(before, changes), after, f"version {version} where {case[1]}")
        before = after


def require_plans(made: Made, doors: Doors, case: tuple[str, str]) -> None:
    with door(made.running, doors.token) as client:
        for version, rows in enumerate(made.read[case]):
            publication = Ledger(made.provider.catalog).at("lake.evolving", version)
            assert publication is not None
            plan = planned(client, "evolving", publication.snapshot_id)
            # Spark writes a file of position deletes for each data file.
            deleted = sum(file["record-count"] for file in plan.deletes)
            live = sum(file["record-count"] for file in plan.files) - deleted
            assert live == len(rows.rows), f"version {version} where {case[1]}"
        # On a disk that the client shares, nothing could keep the other files from it.
        assert client.get(f"{DOOR}/evolving").status_code == 400


@pytest.mark.parametrize("doors", [("vectors", "region = 'eu'")], indirect=True)
def test_a_file_of_deletes_that_tells_of_others_is_not_named(made: Made, doors: Doors) -> None:
    every = made.provider.recipient(f"every-{uuid.uuid4()}")
    with door(made.running, every) as client, door(made.running, doors.token) as own:
        plan = planned(client, "vectors", None)
        vectors = {one["file-path"] for one in plan.deletes}
        assert len(vectors) == 1 < len(plan.deletes), "the vectors of both regions are in one puffin file"
        answer = own.post(f"{DOOR}/vectors/plan", json={})
        assert answer.status_code == 400
        assert "delete files" in answer.text
        assert ".puffin" not in answer.text
    # Each line has its own vector: by the other door nothing is in the way.
    rows = doors.reader.rows(doors.reader.snapshot())
    same_rows(rows, made.read["vectors", "region = 'eu'"][-1])


@dataclass(frozen=True)
class Plan:
    """The files that a plan names."""

    files: list[dict[str, Any]]
    deletes: list[dict[str, Any]]


def planned(client: httpx.Client, table: str, snapshot_id: int | None) -> Plan:
    asked = {} if snapshot_id is None else {"snapshot-id": snapshot_id}
    answer = client.post(f"{DOOR}/{table}/plan", json=asked)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return Plan([task["data-file"] for task in told["file-scan-tasks"]], told.get("delete-files", []))
