"""Row-level deletes of Iceberg go out as deletion vectors: through the server clients read what Spark reads directly.

Spark writes merge-on-read tables of both kinds, position deletes (v2) and deletion vectors (v3). Readers are the
official Python client, whose kernel is Delta's, and our own at the level of the protocol.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pytest

from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import read_iceberg
from lakeshare_server.tables.deletion_vectors import INLINE_BYTES, framed
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.deletion_vector import from_z85
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_door import rest_catalog
from tests.builders.lake_tables import IcebergState
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ProtocolReader, refusal
from tests.builders.sharing import a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg

COLUMNS = (("id", "long"), ("day", "date"), ("name", "string"))
COMPACT = (
    "CALL deletes.system.rewrite_data_files(table => '{t}', options => map('delete-file-threshold', '1'))"
)
COMPACT_A_DAY = (
    "CALL deletes.system.rewrite_data_files(table => '{t}', where => \"day = DATE '2024-01-02'\", "
    "options => map('rewrite-all', 'true'))"
)
COMPACT_DELETES = (
    "CALL deletes.system.rewrite_position_delete_files(table => '{t}', options => map('rewrite-all', 'true'))"
)


def insert(first: int, rows: int) -> str:
    """Rows over three days, in two files for each partition."""
    return (
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id, "
        "date_add(DATE'2024-01-01', CAST(id % 3 AS INT)), concat('n', id) "
        f"FROM range({first}, {first + rows})"
    )


def delete(where: str) -> str:
    return f"DELETE FROM {{t}} WHERE {where}"


DELETE = delete("id % 7 = 3")
UPDATE = "UPDATE {t} SET name = 'changed' WHERE id % 11 = 5"
MERGE = (
    "MERGE INTO {t} t USING (SELECT id FROM range(50, 450, 50)) s ON t.id = s.id "
    "WHEN MATCHED AND t.id % 100 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged' "
    "WHEN NOT MATCHED THEN INSERT (id, day, name) VALUES (s.id, DATE'2024-01-09', 'new')"
)
BY_DAY = "ALTER TABLE {t} ADD PARTITION FIELD day"
BY_BUCKET = "ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)"
BY_FILE = "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.granularity' = 'file')"
UPGRADE = "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')"

# What is done to a table of 300 rows, of either version. {t} is its whole name with the catalog, since its namespace is
# called as another catalog of the session is.
STORIES = {
    "deleted": [DELETE],
    "updated": [UPDATE],
    "merged": [MERGE],
    "many_generations": [DELETE, insert(300, 200), UPDATE, delete("id % 5 = 1"), MERGE, insert(3, 4)],
    "deleted_and_inserted_again": [delete("id < 100"), insert(0, 100), delete("id = 7")],
    "partitioned": [BY_DAY, insert(300, 300), DELETE, UPDATE],
    "partitioned_anew": [
        BY_DAY, insert(300, 300), DELETE, BY_BUCKET, insert(600, 200), UPDATE, delete("id % 13 = 2"),
    ],
    "deletes_for_each_file": [BY_FILE, BY_DAY, insert(300, 300), DELETE, UPDATE],
    "a_day_compacted": [BY_DAY, insert(300, 300), DELETE, COMPACT_A_DAY],
    "whole_files_gone": [BY_DAY, insert(300, 300), DELETE, delete("day = DATE'2024-01-02'")],
    "nothing_left": [delete("id % 1 = 0")],
}  # fmt: skip
OF_V2 = {
    "deletes_compacted": [DELETE, UPDATE, COMPACT_DELETES],
    "upgraded": [DELETE, BY_DAY, insert(300, 300), UPDATE, UPGRADE, delete("id % 10 = 4")],
}
COMPACTED = [DELETE, UPDATE, COMPACT]
WITH_DELETES = [
    *(f"v{version}_{story}" for version in (2, 3) for story in STORIES),
    *(f"v2_{s}" for s in OF_V2),
]
WITHOUT = ["v2_compacted", "v3_compacted"]
LARGE = ["v2_large", "v3_large"]

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@dataclass(frozen=True)
class Written:
    """A table as Spark left it."""

    state: IcebergState
    rows: Rows


@dataclass(frozen=True)
class Shared:
    """All tables behind one server."""

    tables: dict[str, Written]
    profile: Path
    client: httpx.Client
    data: httpx.Client
    # PyIceberg's, of the Iceberg door, which plans its scans.
    planned: Any

    def reader(self, name: str, fmt: Format = "delta") -> ProtocolReader:
        return ProtocolReader(self.client, f"flights.lake.{name}", fmt, self.data)

    def url(self, name: str) -> str:
        return f"{self.profile}#flights.lake.{name}"


@pytest.fixture(scope="module")
def tables(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    lake.spark.conf.set("spark.sql.catalog.deletes", "org.apache.iceberg.spark.SparkCatalog")
    lake.spark.conf.set("spark.sql.catalog.deletes.type", "hadoop")
    lake.spark.conf.set(
        "spark.sql.catalog.deletes.warehouse", f"file://{tmp_path_factory.mktemp('merge on read')}"
    )
    stories = {f"v{version}_{name}": story for version in (2, 3) for name, story in STORIES.items()}
    stories |= {f"v2_{name}": story for name, story in OF_V2.items()} | dict.fromkeys(WITHOUT, COMPACTED)
    written = {name: write(lake, name, [insert(0, 300), *story]) for name, story in stories.items()}
    rows = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, DATE'2024-01-01', 'n' FROM range(600000)"
    return written | {name: write(lake, name, [rows, delete("hash(id) % 2 = 0")]) for name in LARGE}


def write(lake: Lake, name: str, story: list[str]) -> Written:
    """Tell the story to Spark."""
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
    lake.spark.sql(
        f"CREATE TABLE deletes.lake.{name} (id BIGINT, day DATE, name STRING) USING iceberg TBLPROPERTIES "
        f"('format-version' = '{name[1]}', 'write.delete.granularity' = 'partition', {modes})"
    )
    tell(lake, name, *story)
    return as_it_is(lake, name)


def tell(lake: Lake, name: str, *story: str) -> None:
    for statement in story:
        lake.spark.sql(statement.format(t=f"deletes.lake.{name}"))


def as_it_is(lake: Lake, name: str) -> Written:
    """The newest state, and what Spark reads directly."""
    rows = lake.spark.table(f"deletes.lake.{name}").toArrow()
    warehouse = Path(lake.spark.conf.get("spark.sql.catalog.deletes.warehouse").removeprefix("file://"))
    versions = (warehouse / "lake" / name / "metadata").glob("v*.metadata.json")
    newest = max(versions, key=lambda file: int(file.name.split(".")[0][1:]))
    snapshot_id = json.loads(newest.read_text())["current-snapshot-id"]
    values = zip(*(rows.column(column).to_pylist() for column, _ in COLUMNS), strict=True)
    return Written(IcebergState(str(newest), snapshot_id), Rows.of(COLUMNS, values))


@pytest.fixture(scope="module")
def shared(tables: dict[str, Written], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    provider = a_provider(tmp_path_factory.mktemp("provider"))
    for name, table in tables.items():
        provider.publish_iceberg(f"lake.{name}", table.state)
    provider.share(*(f"lake.{name}" for name in tables))
    token = provider.recipient()
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        planned = rest_catalog(running, token, **{"scan-planning-mode": "server"})
        yield Shared(tables, running.profile(token), client, data, planned)


@pytest.mark.parametrize("name", [*WITH_DELETES, *WITHOUT, *LARGE])
def test_the_python_client_reads_what_spark_reads(shared: Shared, name: str) -> None:
    frame = quietly(delta_sharing.load_as_pandas, shared.url(name), use_delta_format=True)
    same_frame(frame, shared.tables[name].rows)


@pytest.mark.parametrize("name", [*WITH_DELETES, *WITHOUT])
def test_pyiceberg_reads_by_plans_of_the_server_what_spark_reads(shared: Shared, name: str) -> None:
    table, expected = shared.planned.load_table(f"lake.{name}"), shared.tables[name].rows
    for text, wanted in (("true", expected), ("id < 60", expected.where(lambda row: int(row["id"]) < 60))):
        rows = table.scan(row_filter=text).to_arrow()
        values = zip(*(rows.column(column).to_pylist() for column, _ in COLUMNS), strict=True)
        same_rows(Rows.of(COLUMNS, values), wanted, text)


@pytest.mark.parametrize("name", [*WITH_DELETES, *WITHOUT, *LARGE])
def test_our_reader_reads_what_spark_reads(shared: Shared, name: str) -> None:
    reader = shared.reader(name)
    same_rows(reader.rows(reader.snapshot()), shared.tables[name].rows)


@pytest.mark.parametrize("name", WITH_DELETES)
def test_the_parquet_format_is_refused_with_the_procedure(shared: Shared, name: str) -> None:
    reader = shared.reader(name, "parquet")
    answer = shared.client.post(f"{reader.path}/query", json={}, headers=reader.headers())
    assert "has deletion vectors" in (told := refusal(answer, 400)["message"])
    assert "CALL system.rewrite_data_files" in told


@pytest.mark.parametrize("name", WITHOUT)
def test_after_the_procedure_the_parquet_format_is_served(shared: Shared, name: str) -> None:
    reader = shared.reader(name, "parquet")
    same_rows(reader.rows(reader.snapshot()), shared.tables[name].rows)


@pytest.mark.parametrize("name", ["v3_many_generations", "v3_partitioned_anew", "v2_upgraded"])
def test_vectors_of_iceberg_go_out_byte_for_byte(shared: Shared, name: str) -> None:
    """Length, magic number, bitmap and checksum are those of the Puffin files that Spark wrote."""
    folder = Path(shared.tables[name].state.metadata_location).parents[1]
    written = [file.read_bytes() for file in folder.rglob("*.puffin")]
    vectors = [file.vector for file in shared.reader(name).snapshot().files if file.vector]
    contents = [from_z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]] for vector in vectors]
    as_written = [any(framed(content) in file for file in written) for content in contents]
    # Of an upgraded table, files that nothing was deleted from since still have their position deletes.
    assert any(as_written) if name == "v2_upgraded" else as_written and all(as_written)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_vector_is_a_file_of_its_own(shared: Shared, name: str) -> None:
    [file] = shared.reader(name).snapshot().files
    assert file.vector["storageType"] == "p"
    assert file.vector["sizeInBytes"] > INLINE_BYTES
    assert "/vectors/" in file.vector["pathOrInlineDv"]


def test_what_was_lost_of_the_state_folder_is_made_again(tables: dict[str, Written], tmp_path: Path) -> None:
    """The index of a publication, and the large vectors that it names."""
    provider = a_provider(tmp_path)
    provider.publish_iceberg("lake.flights", tables["v2_large"].state)
    provider.share("lake.flights")
    token = provider.recipient()
    for folder in (provider.settings.index_dir, provider.settings.vectors_dir):
        [file] = folder.iterdir()
        file.unlink()
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        reader = ProtocolReader(client, "flights.lake.flights", "delta", data)
        same_rows(reader.rows(reader.snapshot()), tables["v2_large"].rows)


def test_a_limit_counts_the_rows_that_are_left(shared: Shared) -> None:
    """Half of a file's rows are gone; its statistics keep telling all of them, as Delta's do."""
    [file] = shared.reader("v3_large").snapshot(limitHint=1).files
    assert json.loads(file.action["stats"])["numRecords"] == 600_000
    left = len(shared.tables["v3_large"].rows.rows)
    assert 600_000 - file.vector["cardinality"] == left


def test_equality_deletes_are_refused_until_the_procedure_ran(lake: Lake, tables: dict[str, Written]) -> None:
    before = write(lake, "v2_equality", [insert(0, 300)])
    SparkIceberg(lake.spark, "deletes").add_equality_delete("v2_equality", "id", 77)
    after = as_it_is(lake, "v2_equality")
    assert len(after.rows.rows) == len(before.rows.rows) - 1, "Spark does not apply the delete"
    with pytest.raises(Unserveable, match=r"1 files of equality deletes.*CALL system.rewrite_data_files"):
        read_iceberg(after.state.metadata_location, after.state.snapshot_id)
    tell(lake, "v2_equality", COMPACT)
    require_all_rows(as_it_is(lake, "v2_equality"), with_vectors=False)


def test_deletes_in_avro_are_refused_until_the_procedure_ran(lake: Lake, tables: dict[str, Written]) -> None:
    avro, parquet = (
        f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.format.default' = '{kind}')"
        for kind in ("avro", "parquet")
    )
    state = write(lake, "v2_avro", [insert(0, 300), avro, DELETE]).state
    with pytest.raises(Unserveable, match=r"in AVRO.*CALL system.rewrite_position_delete_files"):
        read_iceberg(state.metadata_location, state.snapshot_id)
    tell(lake, "v2_avro", parquet, COMPACT_DELETES)
    require_all_rows(as_it_is(lake, "v2_avro"), with_vectors=True)


def require_all_rows(table: Written, *, with_vectors: bool) -> None:
    """All rows that Spark reads are there, and no more."""
    files = read_iceberg(table.state.metadata_location, table.state.snapshot_id).files
    assert ("dv_cardinality" in files.column_names) == with_vectors
    gone = sum(files.column("dv_cardinality").to_pylist()) if with_vectors else 0
    assert sum(files.column("rows").to_pylist()) - gone == len(table.rows.rows)
