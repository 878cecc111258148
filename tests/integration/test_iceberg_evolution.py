"""Iceberg tables that Spark evolved read through every client as Spark reads them, or are refused with the reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import delta_sharing
import httpx
import pytest

from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import read_iceberg
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.hostile.served import CLIENT_FEATURES, quietly
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ALL_FEATURES, ProtocolReader, refusal
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, as_delta_table, frame_rows

pytestmark = [
    pytest.mark.timeout(600),
    # The client's own: it concatenates empty frames.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
]
COMPACT = "CALL {c}.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))"


@dataclass(frozen=True)
class Case:
    """A table as statements, the features it needs of its readers, and a test that some of its rows pass."""

    statements: tuple[str, ...]
    needs: tuple[str, ...] = ()
    where: str | None = None


def of(columns: str, *statements: str, options: str = "") -> tuple[str, ...]:
    return (f"CREATE TABLE {{t}} ({columns}) USING iceberg {options}", *statements)


INSERT = "INSERT INTO {{t}} VALUES {}"
RENAMED = of(
    "id INT, s STRING",
    INSERT.format("(1, 'a'), (2, NULL)"),
    "ALTER TABLE {t} RENAME COLUMN s TO text",
    INSERT.format("(3, 'c')"),
)
STRUCT = of(
    "id INT, st STRUCT<a: INT, b: STRING>",
    INSERT.format("(1, named_struct('a', 1, 'b', 'x'))"),
    "ALTER TABLE {t} RENAME COLUMN st.b TO c",
    "ALTER TABLE {t} ALTER COLUMN st.c FIRST",
    INSERT.format("(2, named_struct('c', 'y', 'a', 2)), (3, NULL)"),
)
USED_AGAIN = of(
    "id INT, s STRING",
    INSERT.format("(1, 'old')"),
    "ALTER TABLE {t} DROP COLUMN s",
    "ALTER TABLE {t} ADD COLUMN s STRING",
    INSERT.format("(2, 'new')"),
)
WIDENED = of(
    "i INT, f FLOAT, d DECIMAL(5, 2)",
    INSERT.format("(1, 1.5, 1.25), (2147483647, 0.1, 999.99)"),
    "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT",
    "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
    "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(20, 2)",
    INSERT.format("(5000000000, 1e300, 123456789012.34)"),
)
MAPPING, WIDENING, WITHOUT_ZONE = "columnMapping", "typeWidening", "timestampNtz"
CODES = {"odd_names": "NAMES_SPELT_OTHERWISE"}

CASES: Mapping[str, Case] = {
    "plain": Case(of("id INT, s STRING", INSERT.format("(1, 'a'), (2, NULL)")), (), "id > 1"),
    "added": Case(
        of("id INT", INSERT.format("(1)"), "ALTER TABLE {t} ADD COLUMN s STRING", INSERT.format("(2, 'b')"))
    ),
    "reordered": Case(
        of("id INT, s STRING", INSERT.format("(1, 'a')"), "ALTER TABLE {t} ALTER COLUMN s FIRST")
    ),
    "dropped": Case(
        of("id INT, gone STRING", INSERT.format("(1, 'a')"), "ALTER TABLE {t} DROP COLUMN gone"), (), "id = 1"
    ),
    "struct_grown": Case(
        of(
            "id INT, st STRUCT<a: INT>, l ARRAY<STRUCT<x: INT>>",
            INSERT.format("(1, named_struct('a', 1), array(named_struct('x', 1)))"),
            "ALTER TABLE {t} ADD COLUMN st.b STRING FIRST",
            "ALTER TABLE {t} ADD COLUMN l.element.y INT",
            INSERT.format("(2, named_struct('b', 'z', 'a', 2), array(named_struct('x', 2, 'y', 3)))"),
        ),
        (),
        "st.a = 1",
    ),
    "struct_reordered": Case(
        of(
            "id INT, st STRUCT<a: INT, b: INT>",
            INSERT.format("(1, named_struct('a', 1, 'b', 2))"),
            "ALTER TABLE {t} ALTER COLUMN st.b FIRST",
            INSERT.format("(2, named_struct('b', 4, 'a', 3))"),
        ),
        (),
        "st.b = 2",
    ),
    "struct_shrunk": Case(
        of(
            "id INT, st STRUCT<a: INT, b: INT>",
            INSERT.format("(1, named_struct('a', 1, 'b', 2))"),
            "ALTER TABLE {t} DROP COLUMN st.b",
        )
    ),
    "imported": Case(
        (
            "CREATE TABLE parquet_of_imported (id INT, s STRING) USING parquet",
            "INSERT INTO parquet_of_imported VALUES (1, 'a')",
            *of("id INT, s STRING", "CALL {c}.system.add_files('{t}', 'parquet_of_imported')"),
            "ALTER TABLE {t} ADD COLUMN later INT",
            INSERT.format("(2, 'b', 3)"),
        ),
        (),
        "id = 1",
    ),
    "renamed": Case(RENAMED, (MAPPING,), "text = 'c'"),
    "renamed_v1": Case(
        (RENAMED[0] + " TBLPROPERTIES ('format-version' = '1')", *RENAMED[1:]), (MAPPING,), "text = 'a'"
    ),
    "renamed_v3": Case(
        (RENAMED[0] + " TBLPROPERTIES ('format-version' = '3')", *RENAMED[1:]), (MAPPING,), "text = 'a'"
    ),
    "renamed_compacted": Case((*RENAMED, COMPACT), (), "text = 'c'"),
    "swapped": Case(
        of(
            "a INT, b INT",
            INSERT.format("(1, 2)"),
            "ALTER TABLE {t} RENAME COLUMN a TO x",
            "ALTER TABLE {t} RENAME COLUMN b TO a",
            "ALTER TABLE {t} RENAME COLUMN x TO b",
            INSERT.format("(3, 4)"),
        ),
        (MAPPING,),
        "a = 2",
    ),
    "added_again": Case(USED_AGAIN, (MAPPING,), "s IS NULL"),
    "added_again_all_old": Case(USED_AGAIN[:-1], (MAPPING,), "s IS NULL"),
    "struct": Case(STRUCT, (MAPPING,), "st.c = 'x'"),
    "struct_replaced": Case(
        of(
            "id INT, v INT",
            INSERT.format("(1, 7)"),
            "ALTER TABLE {t} DROP COLUMN v",
            "ALTER TABLE {t} ADD COLUMN v STRUCT<w: INT>",
            INSERT.format("(2, named_struct('w', 3))"),
        ),
        (MAPPING,),
    ),
    "in_list_and_map": Case(
        of(
            "id INT, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<y: INT>>",
            INSERT.format("(1, array(named_struct('x', 1)), map('k', named_struct('y', 2)))"),
            "ALTER TABLE {t} RENAME COLUMN l.element.x TO x2",
            "ALTER TABLE {t} RENAME COLUMN m.value.y TO y2",
            INSERT.format("(2, array(named_struct('x2', 3)), map('k', named_struct('y2', 4)))"),
        ),
        (MAPPING,),
    ),
    "renamed_partition": Case(
        of(
            "id INT, day DATE",
            INSERT.format("(1, DATE'2024-01-01'), (2, NULL)"),
            "ALTER TABLE {t} RENAME COLUMN day TO date",
            INSERT.format("(3, DATE'2024-01-02')"),
            options="PARTITIONED BY (day)",
        ),
        (MAPPING,),
        "date = DATE'2024-01-01'",
    ),
    "odd_names": Case(
        of("`a b` INT, `1st` STRING, `ü` INT, `x-y` INT", INSERT.format("(1, 'a', 2, 3)")),
        (MAPPING,),
        "`a b` = 1",
    ),
    "without_zone": Case(
        of(
            "id INT, at TIMESTAMP_NTZ",
            INSERT.format("(1, TIMESTAMP_NTZ'2024-01-01 12:00:00.123456'), (2, NULL)"),
            INSERT.format("(3, TIMESTAMP_NTZ'1969-12-31 23:59:59.999999')"),
        ),
        (WITHOUT_ZONE,),
        "at = TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'",
    ),
    "without_zone_partition": Case(
        of(
            "id INT, at TIMESTAMP_NTZ",
            INSERT.format("(1, TIMESTAMP_NTZ'2024-01-01 12:00:00.5'), (2, NULL)"),
            options="PARTITIONED BY (at)",
        ),
        (WITHOUT_ZONE,),
        "at = TIMESTAMP_NTZ'2024-01-01 12:00:00.5'",
    ),
    "widened": Case(WIDENED, (WIDENING,), "i = 2147483647"),
    "widened_compacted": Case((*WIDENED, COMPACT), (), "f > 1e299"),
    "widened_inside": Case(
        of(
            "id INT, l ARRAY<INT>, st STRUCT<a: INT>",
            INSERT.format("(1, array(1, 2), named_struct('a', 1))"),
            "ALTER TABLE {t} ALTER COLUMN l.element TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN st.a TYPE BIGINT",
            INSERT.format("(2, array(5000000000), named_struct('a', 5000000000))"),
        ),
        (WIDENING,),
    ),
    "everything": Case(
        (
            *of("id INT, at TIMESTAMP_NTZ", INSERT.format("(1, TIMESTAMP_NTZ'2024-01-01 00:00:00')")),
            "ALTER TABLE {t} RENAME COLUMN id TO key",
            "ALTER TABLE {t} ALTER COLUMN key TYPE BIGINT",
            INSERT.format("(5000000000, NULL)"),
        ),
        (MAPPING, WIDENING, WITHOUT_ZONE),
        "key = 1",
    ),
}
FOR_THE_PYTHON_CLIENT = frozenset(CLIENT_FEATURES)
PYTHON = [name for name, case in CASES.items() if FOR_THE_PYTHON_CLIENT.issuperset(case.needs)]
NOT_PYTHON = [name for name in CASES if name not in PYTHON]
PARQUET = [name for name, case in CASES.items() if not case.needs]
READS: list[tuple[str, Format]] = [
    *((name, "delta") for name in CASES),
    *((name, "parquet") for name in PARQUET),
]


@dataclass(frozen=True)
class Evolved:
    """The tables, what Spark reads of each, and the server that shares them."""

    iceberg: SparkIceberg
    rows: Mapping[str, Rows]
    provider: Provider
    server: Running
    profile: Path
    client: httpx.Client
    data: httpx.Client

    def url(self, name: str) -> str:
        return f"{self.profile}#flights.lake.{name}"

    def reader(
        self, name: str, fmt: Format = "delta", features: frozenset[str] = ALL_FEATURES
    ) -> ProtocolReader:
        return ProtocolReader(self.client, f"flights.lake.{name}", fmt, self.data, features)


@pytest.fixture(scope="module")
def iceberg(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> SparkIceberg:
    return SparkIceberg.at(lake.spark, "evolution", tmp_path_factory.mktemp("warehouse"))


@pytest.fixture(scope="module")
def evolved(lake: Lake, iceberg: SparkIceberg, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evolved]:
    # Imported files stay where Spark keeps its own tables.
    also_in = f"{lake.settings.state_dir}/spark-warehouse"
    provider, rows = a_provider(tmp_path_factory.mktemp("provider"), files_also_in=also_in), {}
    for name, case in CASES.items():
        iceberg.run(name, case.statements)
        rows[name] = iceberg.rows(name)
        provider.publish_iceberg(f"lake.{name}", iceberg.state(name))
    provider.share(*(f"lake.{name}" for name in CASES))
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
        yield Evolved(iceberg, rows, provider, server, server.profile(token), client, data)


@pytest.mark.parametrize("name", PYTHON)
@pytest.mark.parametrize("use_delta_format", [None, True])
def test_the_python_client_reads_what_spark_reads(
    evolved: Evolved, name: str, use_delta_format: bool | None
) -> None:
    frame = quietly(delta_sharing.load_as_pandas, evolved.url(name), use_delta_format=use_delta_format)
    same_frame(frame, evolved.rows[name])


@pytest.mark.parametrize("name", PARQUET)
def test_the_python_client_reads_it_in_parquet_format(evolved: Evolved, name: str) -> None:
    frame = quietly(delta_sharing.load_as_pandas, evolved.url(name), use_delta_format=False)
    same_frame(frame[evolved.rows[name].names], evolved.rows[name])


@pytest.mark.parametrize(("name", "fmt"), READS)
def test_our_reader_reads_what_spark_reads(evolved: Evolved, name: str, fmt: Format) -> None:
    reader = evolved.reader(name, fmt)
    answer = reader.snapshot()
    same_rows(reader.rows(answer), evolved.rows[name])
    assert set(answer.head.protocol.get("readerFeatures") or ()) == set(CASES[name].needs)


@pytest.mark.parametrize("name", CASES)
def test_sparks_delta_reads_the_lines_as_a_table(evolved: Evolved, name: str, tmp_path: Path) -> None:
    """With its own data skipping, which goes by the statistics in the lines."""
    reader = evolved.reader(name)
    place = as_delta_table(reader, reader.snapshot(), tmp_path / name)
    frame = evolved.iceberg.spark.read.format("delta").load(str(place))
    same_rows(frame_rows(frame), evolved.rows[name])
    where = CASES[name].where
    if where:
        judge = evolved.iceberg.spark.table(evolved.iceberg.table(name)).where(where)
        assert judge.count() > 0
        same_rows(frame_rows(frame.where(where)), frame_rows(judge))


@pytest.mark.parametrize("name", [name for name in CASES if name not in PARQUET])
def test_what_parquet_cannot_carry_is_refused_with_its_code(evolved: Evolved, name: str) -> None:
    answer = evolved.client.post(f"{evolved.reader(name).path}/query", json={})
    told = refusal(answer, 400)["message"]
    codes = {MAPPING: "RENAMED_COLUMNS", WIDENING: "WIDENED_TYPES", WITHOUT_ZONE: "TIMESTAMPS_WITHOUT_ZONE"}
    assert told.endswith(f"[{CODES.get(name, codes[CASES[name].needs[0]])}]")
    assert CASES[name].needs[0].lower() in told
    # Nothing of where the provider keeps it.
    assert not [place for place in ("file:", "/metadata/", ".parquet") if place in told]


@pytest.mark.parametrize("name", NOT_PYTHON)
def test_what_the_python_client_did_not_announce_is_refused_to_it(evolved: Evolved, name: str) -> None:
    reader = evolved.reader(name, "delta", CLIENT_FEATURES)
    answer = evolved.client.post(f"{reader.path}/query", json={}, headers=reader.headers())
    assert "typeWidening" in refusal(answer, 400)["message"]


REFUSED: Mapping[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "orc": (
        of("id INT", INSERT.format("(1)"), options="TBLPROPERTIES ('write.format.default' = 'orc')"),
        "FILE_FORMAT",
        ("ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'parquet')", COMPACT),
    ),
    "avro": (
        of("id INT", INSERT.format("(1)"), options="TBLPROPERTIES ('write.format.default' = 'avro')"),
        "FILE_FORMAT",
        ("ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'parquet')", COMPACT),
    ),
    "variant": (
        of(
            "id INT, v VARIANT",
            "INSERT INTO {t} SELECT 1, parse_json('1')",
            options="TBLPROPERTIES ('format-version' = '3')",
        ),
        "UNSUPPORTED_TYPE",
        (
            "CREATE TABLE {t}_copy USING iceberg AS SELECT id, to_json(v) AS v FROM {t}",
            "DROP TABLE {t}",
            "CREATE TABLE {t} USING iceberg AS SELECT * FROM {t}_copy",
        ),
    ),
    "imported_renamed": (
        (
            "CREATE TABLE parquet_of_renamed (id INT, s STRING) USING parquet",
            "INSERT INTO parquet_of_renamed VALUES (1, 'a')",
            *of("id INT, s STRING", "CALL {c}.system.add_files('{t}', 'parquet_of_renamed')"),
            "ALTER TABLE {t} RENAME COLUMN s TO text",
        ),
        "FILES_WITHOUT_IDS",
        (COMPACT,),
    ),
    "case": (
        of("id INT, Id2 INT", INSERT.format("(1, 2)"), "ALTER TABLE {t} RENAME COLUMN Id2 TO ID"),
        "NAMES_DIFFER_BY_CASE",
        ("ALTER TABLE {t} RENAME COLUMN ID TO other",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_can_read_is_refused_and_its_fix_works(iceberg: SparkIceberg, name: str) -> None:
    statements, code, fix = REFUSED[name]
    iceberg.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        iceberg.run(name, statements)
        with pytest.raises(Unserveable, match=rf"\[{code}\]$"):
            read(iceberg, name)
        iceberg.run(name, fix)
    finally:
        iceberg.spark.conf.set("spark.sql.caseSensitive", "false")
    assert read(iceberg, name) >= 1


def test_a_default_is_refused_until_the_files_are_rewritten(iceberg: SparkIceberg) -> None:
    iceberg.run("with_default", of("id INT", options="TBLPROPERTIES ('format-version' = '3')"))
    iceberg.run("with_default", [INSERT.format("(1)")])
    iceberg.add_column_with_default("with_default", "added", 7)
    assert [row.added for row in iceberg.spark.table(iceberg.table("with_default")).collect()] == [7]
    with pytest.raises(Unserveable, match=r"\[COLUMN_DEFAULTS\]$"):
        read(iceberg, "with_default")
    iceberg.run("with_default", [COMPACT])
    assert read(iceberg, "with_default") == 1


def read(iceberg: SparkIceberg, name: str) -> int:
    """How many files a publication would have."""
    state = iceberg.state(name)
    return read_iceberg(state.metadata_location, state.snapshot_id).files.num_rows
