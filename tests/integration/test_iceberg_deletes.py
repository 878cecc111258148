"""How row-level deletes of Iceberg go out as deletion vectors: byte for byte, inline or as files, and made again.

That every client reads what Spark reads of such tables is in test_iceberg_matrix.py, whose stories these are.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import delta_sharing
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.locations import local_path
from lakeshare_server.tables.iceberg.deletes import INLINE_BYTES, frame_vector
from tests.builders.canonical import Rows, same_rows
from tests.builders.deletion_vector import from_z85
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_matrix.made import Written, session_of_its_own
from tests.builders.iceberg_matrix.plan import properties
from tests.builders.iceberg_matrix.recorded import unpacked
from tests.builders.iceberg_rest import rest_catalog
from tests.builders.lake_tables import IcebergState
from tests.builders.protocol_lines import FileLine
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.sharing import a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg
from tests.integration.s3_server import REGION, S3Server

WITH_VECTORS = ["v3_many_generations", "v3_partitioned_anew", "v2_upgraded"]
LARGE = ["v2_large", "v3_large"]


def a_large_one(version: int) -> Sequence[str]:
    """The statements for one file, and for each row a chance of one half that it is deleted."""
    modes = properties(f"format-version={version}", "write.delete.mode=merge-on-read")
    return (
        f"CREATE TABLE {{t}} (id BIGINT) USING iceberg {modes}",
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(600000)",
        "DELETE FROM {t} WHERE hash(id) % 2 = 0",
    )


pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Made:
    """All tables: what Spark reads of each, of the large ones their ids in order."""

    tables: dict[str, Written]
    large: dict[str, IcebergState]
    large_ids: dict[str, pa.ChunkedArray]

    @property
    def states(self) -> dict[str, IcebergState]:
        return {**{name: table.state for name, table in self.tables.items()}, **self.large}


@dataclass(frozen=True)
class Shared:
    """All tables behind one server."""

    made: Made
    profile: Path
    client: httpx.Client
    data: httpx.Client
    # PyIceberg's, of the Iceberg REST catalog, which plans its scans.
    planned: Any

    def reader(self, name: str) -> ProtocolReader:
        return ProtocolReader(self.client, f"flights.lake.{name}", "delta", self.data)


@pytest.fixture(scope="module")
def made(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    iceberg = SparkIceberg.at(session_of_its_own(lake.spark), "large", tmp_path_factory.mktemp("large"))
    for name in LARGE:
        iceberg.run(name, a_large_one(int(name[1])))
    with unpacked() as (tables, _):
        yield Made(
            {name: tables[name] for name in WITH_VECTORS},
            {name: iceberg.state(name) for name in LARGE},
            {
                name: iceberg.spark.table(iceberg.table(name)).sort("id").toArrow().column("id")
                for name in LARGE
            },
        )


@pytest.fixture(scope="module")
def shared(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    provider = a_provider(tmp_path_factory.mktemp("provider"))
    for name, state in made.states.items():
        provider.publish_iceberg(f"lake.{name}", state)
    provider.share(*(f"lake.{name}" for name in made.states))
    token = provider.recipient()
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        planned = rest_catalog(running, token, **{"scan-planning-mode": "server"})
        yield Shared(made, running.profile(token), client, data, planned)


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_vectors_of_iceberg_are_sent_byte_for_byte_and_planned(shared: Shared, name: str) -> None:
    """Length, magic number, bitmap and checksum are those of the Puffin files that Spark wrote.

    PyIceberg reads by plans of the server what Spark reads.
    """
    made = shared.made.tables[name]
    folder = Path(local_path(made.state.metadata_location)).parents[1]
    written = [file.read_bytes() for file in folder.rglob("*.puffin")]
    vectors = [file.vector for file in shared.reader(name).snapshot().files if file.vector]
    contents = [from_z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]] for vector in vectors]
    as_written = [any(frame_vector(content) in file for file in written) for content in contents]
    # Of an upgraded table, files that nothing was deleted from since still have their position deletes.
    assert any(as_written) if name == "v2_upgraded" else as_written and all(as_written)

    table, expected = shared.planned.load_table(f"lake.{name}"), rows_of(made)
    for text, wanted in (("true", expected), ("id < 60", expected.where(lambda row: int(row["id"]) < 60))):
        rows = table.scan(row_filter=text).to_arrow()
        values = zip(*(rows.column(column).to_pylist() for column in expected.names), strict=True)
        same_rows(Rows.of(expected.columns, values), wanted, text)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_vector_is_a_file_of_its_own(shared: Shared, name: str) -> None:
    reader, expected = shared.reader(name), shared.made.large_ids[name].to_numpy()
    [file] = reader.snapshot().files
    assert file.vector["storageType"] == "p"
    assert file.vector["sizeInBytes"] > INLINE_BYTES
    assert file.vector["pathOrInlineDv"].startswith("http")
    assert np.array_equal(ids_left(reader, file), expected)
    url = f"{shared.profile}#flights.lake.{name}"
    frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=True)
    assert np.array_equal(np.sort(frame["id"].to_numpy()), expected)
    # Half of a file's rows are gone; its statistics keep the count of all of them, as Delta's do.
    [limited] = reader.snapshot(limitHint=1).files
    assert json.loads(limited.action["stats"])["numRecords"] == 600_000
    assert 600_000 - limited.vector["cardinality"] == len(expected)


def test_what_was_lost_of_the_state_folder_is_made_again(made: Made, tmp_path: Path) -> None:
    """The index of a publication, and the large vectors that it names."""
    provider = a_provider(tmp_path)
    provider.publish_iceberg("lake.flights", made.large["v2_large"])
    provider.share("lake.flights")
    token = provider.recipient()
    for folder in (provider.settings.index_dir, provider.settings.vectors_dir):
        [file] = folder.iterdir()
        file.unlink()
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        reader = ProtocolReader(client, "flights.lake.flights", "delta", data)
        [line] = reader.snapshot().files
        assert np.array_equal(ids_left(reader, line), made.large_ids["v2_large"].to_numpy())


def test_hosts_share_the_large_vectors_of_a_followed_table_and_one_that_may_only_read_keeps_its_own(
    s3_lake: Lake, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, nessie = f"large-{uuid4().hex}", s3_lake.nessie()
    nessie.create_branch(ref, nessie.reference("main").hash)
    iceberg = SparkIceberg(s3_lake.spark, s3_lake.catalog(ref))
    s3_lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {iceberg.name}.lake")
    iceberg.run("large", a_large_one(3))
    shared = {"s3_endpoint": s3.endpoint, "s3_region": REGION, "warehouse": s3_lake.settings.warehouse}
    hosts = [
        a_provider(tmp_path / name, database_url=f"sqlite:///{tmp_path}/catalog.db", **shared)
        for name in ("reader", "first", "second")
    ]
    lines, ids = [], []
    for provider, user in zip(hosts, (s3.reader, s3.admin, s3.admin), strict=True):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", user.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", user.secret_key)
        if provider is hosts[0]:
            provider.follow_iceberg("lake.flights", iceberg.location("large"))
            provider.share("lake.flights")
            token = provider.recipient()
        with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
            reader = ProtocolReader(client, "flights.lake.flights", "delta", data)
            [line] = reader.snapshot().files
            lines.append(line)
            ids.append(ids_left(reader, line))
    assert [line.vector["pathOrInlineDv"].startswith(s3.endpoint) for line in lines] == [False, True, True]
    expected = iceberg.spark.table(iceberg.table("large")).sort("id").toArrow().column("id").to_numpy()
    assert [np.array_equal(found, expected) for found in ids] == [True, True, True]
    assert [len(list(host.settings.vectors_dir.glob("*"))) for host in hosts] == [1, 0, 0]


def ids_left(reader: ProtocolReader, file: FileLine) -> np.ndarray:
    """The ids of a file less those of its deletion vector, in order."""
    ids = pq.read_table(io.BytesIO(reader.content(file))).column("id").to_numpy()
    return np.sort(np.delete(ids, reader.positions(file).astype(np.int64)))


def rows_of(table: Written) -> Rows:
    assert table.rows is not None
    return table.rows
