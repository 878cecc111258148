"""How row-level deletes of Iceberg go out as deletion vectors: byte for byte, inline or as files, and made again.

That every client reads what Spark reads of such tables is in test_iceberg_matrix.py, whose stories these are.
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
from lakeshare_server.tables.deletion_vectors import INLINE_BYTES, framed
from lakeshare_server.tables.locations import local_path
from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.deletion_vector import from_z85
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_door import rest_catalog
from tests.builders.iceberg_matrix import TABLES
from tests.builders.iceberg_matrix.made import Makers, Written
from tests.builders.iceberg_matrix.plan import Plan, of, properties
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.sharing import a_provider, a_server

WITH_VECTORS = ["v3_many_generations", "v3_partitioned_anew", "v2_upgraded"]
LARGE = ["v2_large", "v3_large"]


def a_large_one(version: int) -> Plan:
    """One file, and of every second row that it is deleted, by chance."""
    modes = properties(f"format-version={version}", "write.delete.mode=merge-on-read")
    rows = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, DATE'2024-01-01', 'n' FROM range(600000)"
    columns = "id BIGINT, day DATE, name STRING"
    return Plan(of(columns, rows, "DELETE FROM {t} WHERE hash(id) % 2 = 0", options=modes))


PLANS = {name: TABLES[name] for name in WITH_VECTORS}
PLANS |= {name: a_large_one(int(name[1])) for name in LARGE}

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Shared:
    """All tables behind one server."""

    tables: dict[str, Written]
    profile: Path
    client: httpx.Client
    data: httpx.Client
    # PyIceberg's, of the Iceberg door, which plans its scans.
    planned: Any

    def reader(self, name: str) -> ProtocolReader:
        return ProtocolReader(self.client, f"flights.lake.{name}", "delta", self.data)


@pytest.fixture(scope="module")
def tables(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    made = Makers.on(lake, tmp_path_factory.mktemp("merge on read")).make(PLANS)
    return {name: table.result() for name, table in made.items()}


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


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_vectors_of_iceberg_go_out_byte_for_byte(shared: Shared, name: str) -> None:
    """Length, magic number, bitmap and checksum are those of the Puffin files that Spark wrote."""
    folder = Path(local_path(shared.tables[name].state.metadata_location)).parents[1]
    written = [file.read_bytes() for file in folder.rglob("*.puffin")]
    vectors = [file.vector for file in shared.reader(name).snapshot().files if file.vector]
    contents = [from_z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]] for vector in vectors]
    as_written = [any(framed(content) in file for file in written) for content in contents]
    # Of an upgraded table, files that nothing was deleted from since still have their position deletes.
    assert any(as_written) if name == "v2_upgraded" else as_written and all(as_written)


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_pyiceberg_reads_by_plans_of_the_server_what_spark_reads(shared: Shared, name: str) -> None:
    table, expected = shared.planned.load_table(f"lake.{name}"), rows_of(shared.tables[name])
    for text, wanted in (("true", expected), ("id < 60", expected.where(lambda row: int(row["id"]) < 60))):
        rows = table.scan(row_filter=text).to_arrow()
        values = zip(*(rows.column(column).to_pylist() for column in expected.names), strict=True)
        same_rows(Rows.of(expected.columns, values), wanted, text)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_vector_is_a_file_of_its_own(shared: Shared, name: str) -> None:
    [file] = shared.reader(name).snapshot().files
    assert file.vector["storageType"] == "p"
    assert file.vector["sizeInBytes"] > INLINE_BYTES
    assert file.vector["pathOrInlineDv"].startswith("http")
    reader, expected = shared.reader(name), rows_of(shared.tables[name])
    same_rows(reader.rows(reader.snapshot()), expected)
    url = f"{shared.profile}#flights.lake.{name}"
    same_frame(quietly(delta_sharing.load_as_pandas, url, use_delta_format=True), expected)


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
        same_rows(reader.rows(reader.snapshot()), rows_of(tables["v2_large"]))


def test_a_limit_counts_the_rows_that_are_left(shared: Shared) -> None:
    """Half of a file's rows are gone; its statistics keep telling all of them, as Delta's do."""
    [file] = shared.reader("v3_large").snapshot(limitHint=1).files
    assert json.loads(file.action["stats"])["numRecords"] == 600_000
    left = len(rows_of(shared.tables["v3_large"]).rows)
    assert 600_000 - file.vector["cardinality"] == left


def rows_of(table: Written) -> Rows:
    assert table.rows is not None
    return table.rows
