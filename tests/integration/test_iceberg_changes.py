"""Changes of Iceberg tables: what is read of a version, applied to the one before it, gives what Spark reads of it.

Spark makes the tables, in all ways in which rows come and go; readers are the official Python client in both formats
and our own at the level of the protocol.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import delta_sharing
import httpx
import pandas as pd
import pytest

from lakeshare_pipelines.wap.staged import Lake
from tests.builders.applied_changes import applied
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_matrix.made import session_of_its_own
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ProtocolReader, refusal
from tests.builders.recorded_changes import RecordingLake
from tests.builders.sharing import Running, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg

COMPACT = (
    "CALL {c}.system.rewrite_data_files(table => '{t}', "
    "options => map('rewrite-all', 'true', 'delete-file-threshold', '1'))"
)
OVERWRITE = (
    "INSERT OVERWRITE {t} PARTITION (day = DATE'2024-01-02') SELECT id, concat('n', id) FROM range(30, 40)"
)
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
]


def insert(first: int, rows: int) -> str:
    return (
        "INSERT INTO {t} SELECT id, concat('n', id), date_add(DATE'2024-01-01', CAST(id % 3 AS INT)) "
        f"FROM range({first}, {first + rows})"
    )


@dataclass(frozen=True)
class Step:
    """What is done between two publications; `kinds` are change types that recipients are to learn of, none of
    nothing."""

    name: str
    statements: tuple[str, ...]
    kinds: frozenset[str]
    rolls_back_to: int | None = None


def step(name: str, *statements: str, kinds: str = "") -> Step:
    return Step(name, statements, frozenset(kinds.split()))


UPDATED = "update_preimage update_postimage"
STEPS = (
    step("first", insert(0, 30), kinds="insert"),
    step("append", insert(30, 9), kinds="insert"),
    step("overwrite", OVERWRITE, kinds="delete insert"),
    step("overwritten with the same", OVERWRITE),
    step("delete", "DELETE FROM {t} WHERE id % 7 = 3", kinds="delete"),
    step("update", "UPDATE {t} SET name = 'changed' WHERE id % 5 = 1", kinds=UPDATED),
    step(
        "merge",
        "MERGE INTO {t} t USING (SELECT id FROM range(0, 60, 4)) s ON t.id = s.id "
        "WHEN MATCHED AND t.id % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET name = NULL "
        "WHEN NOT MATCHED THEN INSERT (id, name, day) VALUES (s.id, 'new', DATE'2024-01-09')",
        kinds=f"delete insert {UPDATED}",
    ),
    step("compaction", COMPACT),
    step("duplicates", insert(0, 6), insert(0, 6), kinds="insert"),
    step("one of two", "DELETE FROM {t} WHERE id < 3", insert(0, 3), kinds="delete"),
    step("partition deleted", "DELETE FROM {t} WHERE day = DATE'2024-01-09'", kinds="delete"),
    step("several", insert(70, 6), "DELETE FROM {t} WHERE id = 71", COMPACT, kinds="insert"),
    Step("rollback", (), frozenset(("insert", "update_preimage", "update_postimage")), 1),
    step("nothing left", "DELETE FROM {t}", kinds="delete"),
)  # fmt: skip
# Merge-on-read makes a difference only where rows are deleted or updated, whole files only where they are rewritten.
OF_FILES = {"append", "overwrite", "overwritten with the same", "duplicates", "one of two", "rollback"}
OF_ROWS = {"delete", "update", "compaction", "partition deleted", "several", "nothing left"}
NOT_OF_POSITIONS = {step.name for step in STEPS} - {"first", "delete"}


def steps_without(names: Set[str]) -> tuple[Step, ...]:
    """The steps but some that another table has in CI; the campaign has every step of every table."""
    return tuple(step for step in STEPS if IS_CAMPAIGN or step.name not in names)


TABLES = {
    "v2_cow": ("2", "copy-on-write", steps_without(OF_ROWS)),
    "v2_mor": ("2", "merge-on-read", steps_without(NOT_OF_POSITIONS)),
    "v3_mor": ("3", "merge-on-read", steps_without(OF_FILES)),
}
EVOLVED = (
    "CREATE TABLE {t} (id INT, s STRING, d DOUBLE, m MAP<STRING, INT>, st STRUCT<a: INT, b: STRING>, ts TIMESTAMP) "
    "USING iceberg"
)
ROWS = (
    "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ CAST(id AS INT), concat('s', id), "
    "CASE id % 3 WHEN 0 THEN CAST('NaN' AS DOUBLE) WHEN 1 THEN 0.0D END, map('k', CAST(id AS INT), 'l', NULL), "
    "IF(id % 4 = 0, NULL, named_struct('a', CAST(id AS INT), 'b', 'x')), TIMESTAMP'1500-01-01 00:00:00.000001' "
    "FROM range(12)"
)


@dataclass(frozen=True)
class Evolution:
    """Statements between two publications; `renamed` has older names of columns by newer ones, '' for none.

    With `rewrites` as many rows change as there are.
    """

    statements: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    rewrites: bool = False
    is_read_by_python: bool = True


EVOLUTIONS = (
    Evolution((ROWS,), rewrites=True),
    Evolution(
        (
            "ALTER TABLE {t} ADD COLUMN c INT",
            "UPDATE {t} SET c = id WHERE id < 3",
            "ALTER TABLE {t} RENAME COLUMN s TO text",
            "UPDATE {t} SET text = 'x' WHERE id = 4",
        ),
        {"text": "s"},
    ),
    Evolution(
        (
            "ALTER TABLE {t} RENAME COLUMN st.b TO name",
            "UPDATE {t} SET st.name = 'y' WHERE id = 3",
            "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
            "DELETE FROM {t} WHERE id = 5",
        )
    ),
    Evolution(
        (
            "ALTER TABLE {t} DROP COLUMN c",
            "UPDATE {t} SET d = -d, m = map('l', NULL, 'k', id) WHERE d = 0",
            "ALTER TABLE {t} DROP COLUMN text",
            "ALTER TABLE {t} ADD COLUMN text STRING",
            "UPDATE {t} SET text = 'new' WHERE id = 6",
        ),
        {"text": ""},
    ),
    Evolution(("ALTER TABLE {t} ADD PARTITION FIELD id", "UPDATE {t} SET text = NULL WHERE id >= 6")),
    Evolution(
        ("INSERT INTO {t} SELECT id + 5000000000L, 0.5D, NULL, NULL, NULL, 't' FROM {t}",),
        rewrites=True,
        is_read_by_python=False,
    ),
    Evolution(("DELETE FROM {t} WHERE id > 9",), rewrites=True),
)

NESTED = (
    (
        "CREATE TABLE {t} (id INT, l ARRAY<STRUCT<a: INT, b: STRING>>, m MAP<STRING, STRUCT<a: INT>>) USING iceberg",
        "INSERT INTO {t} VALUES "
        "(1, array(named_struct('a', 1, 'b', 'x'), NULL), map('k', named_struct('a', 1), 'n', NULL)), "
        "(2, NULL, NULL), (3, array(), map()), (4, array(named_struct('a', 4, 'b', 'y')), NULL)",
    ),
    (
        "ALTER TABLE {t} RENAME COLUMN l.element.b TO name",
        "ALTER TABLE {t} ALTER COLUMN l.element.a TYPE BIGINT",
        "ALTER TABLE {t} ADD COLUMN m.value.z STRING",
        "UPDATE {t} SET m = map('k', named_struct('a', 7, 'z', 'w')) WHERE id = 1",
    ),
)


@dataclass(frozen=True)
class Shared:
    """All tables behind one server."""

    recorded: RecordingLake
    server: Running
    token: str
    client: httpx.Client
    data: httpx.Client

    def reader(self, table: str, fmt: Format = "delta") -> ProtocolReader:
        return ProtocolReader(self.client, f"flights.lake.{table}", fmt, self.data)

    def frame(self, table: str, version: int, *, delta: bool) -> pd.DataFrame:
        url = f"{self.server.profile(self.token)}#flights.lake.{table}"
        options = {"starting_version": version, "ending_version": version, "use_delta_format": delta}
        return quietly(delta_sharing.load_table_changes_as_pandas, url, **options)


@pytest.fixture(scope="module")
def recorded(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> RecordingLake:
    spark = session_of_its_own(lake.spark)
    tables = SparkIceberg.at(spark, "changed", tmp_path_factory.mktemp("changed rows"))
    provider = a_provider(tmp_path_factory.mktemp("provider"))
    recorded = RecordingLake(tables, provider, key=("id",))
    for name, (version, mode, steps) in TABLES.items():
        publish_steps(recorded, name, version, mode, steps)
    tables.run("evolved", [EVOLVED])
    for one in EVOLUTIONS:
        tables.run("evolved", one.statements)
        recorded.publish("evolved")
    for statements in NESTED:
        tables.run("nested", statements)
        recorded.publish("nested")
    tables.run(
        "renamed", ["CREATE TABLE {t} (id INT, s STRING) USING iceberg", "INSERT INTO {t} VALUES (1, 'a')"]
    )
    recorded.publish("renamed")
    tables.run("renamed", ["ALTER TABLE {t} RENAME COLUMN s TO name", "INSERT OVERWRITE {t} VALUES (1, 'b')"])
    recorded.publish("renamed")
    return recorded


def publish_steps(recorded: RecordingLake, name: str, version: str, mode: str, steps: Sequence[Step]) -> None:
    modes = ", ".join(f"'write.{verb}.mode' = '{mode}'" for verb in ("delete", "update", "merge"))
    create = (
        "CREATE TABLE {t} (id BIGINT, name STRING, day DATE) USING iceberg PARTITIONED BY (day) "
        f"TBLPROPERTIES ('format-version' = '{version}', {modes})"
    )
    recorded.tables.run(name, [create])
    states = []
    for one in steps:
        recorded.tables.run(name, one.statements)
        state = recorded.state(name) if one.rolls_back_to is None else states[one.rolls_back_to]
        recorded.publish_state(name, state)
        states.append(state)
    recorded.read_states(name, states)


@pytest.fixture(scope="module")
def shared(recorded: RecordingLake) -> Iterator[Shared]:
    provider = recorded.provider
    provider.share(*(f"lake.{name}" for name in recorded.read), history=True)
    token = provider.recipient()
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        yield Shared(recorded, running, token, client, data)


@pytest.mark.campaign
@pytest.mark.parametrize("name", TABLES)
def test_changes_of_each_version_make_it_of_the_one_before(
    shared: Shared, name: str, subtests: pytest.Subtests
) -> None:
    reader, rows, steps = shared.reader(name), shared.recorded.read[name], TABLES[name][2]
    first = reader.snapshot(version=0)
    for version, (step, after) in enumerate(zip(steps, rows, strict=True)):
        with subtests.test(step=step.name):
            before = rows[version - 1] if version else Rows(after.columns, ())
            changes = reader.change_rows(reader.changes(version, version))
            same_rows(applied(before, changes), after)
            assert step.kinds <= kinds_of(changes)
            if not step.kinds:
                assert not changes.rows
                assert not reader.changes(version, version).files
                assert not reader.window(version, version).files
            if version:
                copy = reader.replica(first, [reader.window(1, version)], first.head.shape)
                same_rows(copy, after, "a copy by a window")
            # In turn, as both formats name the same files.
            for delta in (False, True) if IS_CAMPAIGN or not version else (bool(version % 2),):
                frame = shared.frame(name, version, delta=delta).drop(columns="_commit_timestamp")
                same_frame(frame, changes.without("_commit_timestamp"), f"the Python client, delta={delta}")
    with subtests.test("all versions by pages"):
        last = len(steps) - 1
        whole = reader.changes(0, last, includeHistoricalMetadata=True)
        paged = reader.changes(0, last, includeHistoricalMetadata=True, maxFiles=2)
        assert paged.ids == whole.ids
        assert paged.pages > 2
        same_rows(reader.change_rows(paged), reader.change_rows(whole))
        same_rows(applied(Rows(rows[0].columns, ()), reader.change_rows(whole)), rows[last])


def test_changes_follow_the_evolution_of_columns_and_partitions(
    shared: Shared, subtests: pytest.Subtests
) -> None:
    """Change files have the names and types of their version: no column mapping is announced for them."""
    reader, read = shared.reader("evolved"), shared.recorded.read["evolved"]
    for version, (evolution, after) in enumerate(zip(EVOLUTIONS, read, strict=True)):
        with subtests.test(statements=evolution.statements):
            before = read[version - 1] if version else Rows(after.columns, ())
            answer = reader.changes(version, version, includeHistoricalMetadata=True)
            changes = reader.change_rows(answer)
            same_rows(applied(before, changes, evolution.renamed), after)
            assert len(changes.rows) < len(after.rows) or evolution.rewrites, "more rows changed"
            if evolution.is_read_by_python:
                frame = shared.frame("evolved", version, delta=True).drop(columns="_commit_timestamp")
                same_frame(frame, changes.without("_commit_timestamp"), "the Python client")


def test_rows_whose_lists_and_maps_only_have_new_members_have_not_changed(shared: Shared) -> None:
    reader = shared.reader("nested")
    changes = reader.change_rows(reader.changes(1, 1, includeHistoricalMetadata=True))
    assert sorted(json.loads(row)[:4] for row in changes.rows) == [
        [1, [[1, "x"], None], [["k", [1, None]], ["n", None]], "update_preimage"],
        [1, [[1, "x"], None], [["k", [7, "w"]]], "update_postimage"],
    ]


def test_one_schema_for_columns_that_changed_meanwhile_is_refused(shared: Shared) -> None:
    """Without the metadata of each version, files with other names would be read by the names of the latest one."""
    reader = shared.reader("renamed", "parquet")
    answer = reader.client.get(f"{reader.path}/changes?startingVersion=0", headers=reader.headers())
    assert "Ask with includeHistoricalMetadata=true" in refusal(answer, 400)["message"]
    # What was rewritten since has one name.
    read = shared.recorded.read["renamed"]
    changes = reader.change_rows(reader.changes(1, 1))
    same_rows(applied(read[0], changes, {"name": "s"}), read[1])
    assert reader.changes(0, 1, includeHistoricalMetadata=True).body.later


def kinds_of(changes: Rows) -> frozenset[str]:
    place = changes.names.index("_change_type")
    return frozenset(json.loads(row)[place] for row in changes.rows)
