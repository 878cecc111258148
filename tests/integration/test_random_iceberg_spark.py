"""Spark reads random Iceberg tables and metadata folders as the campaigns' judges say; the fixes of refusals work.

The campaigns themselves run without Spark: tests/unit/server/tables/test_iceberg_projection.py and
tests/unit/server/versions/test_metadata_folders.py.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from py4j.protocol import Py4JJavaError

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.serveability import REWRITE
from tests.builders.campaign import campaign_size
from tests.builders.canonical import same_rows
from tests.builders.iceberg_matrix.made import session_of_its_own
from tests.builders.iceberg_matrix.plan import COMPACT
from tests.builders.iceberg_projection import ProjectedTable
from tests.builders.lake_tables import IcebergState
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.random_metadata_folder import draw_folder
from tests.builders.random_projection import draw_table
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg, frame_rows

SEED = 20_261_122
REFUSED, FOLDERS = campaign_size(in_ci=2, in_campaign=60), campaign_size(in_ci=80, in_campaign=2_000)
STATES = 12


@pytest.mark.campaign
@pytest.mark.timeout(campaign_size(in_ci=300, in_campaign=7200))
def test_refused_tables_are_served_after_their_files_were_rewritten(lake: Lake, tmp_path: Path) -> None:
    """`rewrite_data_files` is what the refusal says; other tables are read on the way, until enough were refused."""
    iceberg = SparkIceberg.at(session_of_its_own(lake.spark), "drawn", tmp_path)
    provider, rewritten, seed = a_provider(tmp_path), dict[str, ProjectedTable](), SEED
    while len(rewritten) < REFUSED:
        seed += 1
        table = draw_table(Random(seed), tmp_path / f"t{seed}")
        state = table.state()
        frame = iceberg.spark.read.format("iceberg").load(state.metadata_location)
        same_rows(frame_rows(frame), table.expected(), f"Spark, seed {seed}")
        refusal = refusal_of(provider, f"lake.t{seed}", state)
        if refusal is None:
            continue
        assert refusal.fix == REWRITE, f"seed {seed}: {refusal}"
        mended = rewrite(iceberg, table, f"t{seed}")
        assert refusal_of(provider, f"lake.t{seed}", mended) is None
        rewritten[f"t{seed}"] = table
    provider.share(*(f"lake.{name}" for name in rewritten))
    with (
        a_server(provider) as server,
        server.client(provider.recipient()) as client,
        httpx.Client(timeout=30) as data,
    ):
        for name, table in rewritten.items():
            reader = ProtocolReader(client, f"flights.lake.{name}", "delta", data)
            same_rows(reader.rows(reader.snapshot()), table.expected(), name)


def refusal_of(provider: Provider, name: str, state: IcebergState) -> Unserveable | None:
    """Publish a table, or say why it is refused."""
    try:
        provider.publish_iceberg(name, state)
    except Unserveable as refusal:
        return refusal
    return None


def rewrite(iceberg: SparkIceberg, table: ProjectedTable, name: str) -> IcebergState:
    """Rewrite a table's files with Spark, in a catalog of folders that finds it by its newest metadata."""
    newest = Path(table.state().metadata_location.removeprefix("file://"))
    newest.with_name("v1.metadata.json").write_bytes(newest.read_bytes())
    newest.with_name("version-hint.text").write_text("1")
    identifier = f"{iceberg.name}.{name}.lake.projected"
    iceberg.spark.sql(COMPACT.format(c=iceberg.name, t=identifier))
    same_rows(
        frame_rows(iceberg.spark.table(identifier)), table.expected(), f"Spark after the rewrite of {name}"
    )
    metadata = newest.with_name("v2.metadata.json")
    return IcebergState(metadata.as_uri(), json.loads(metadata.read_bytes())["current-snapshot-id"])


@pytest.mark.campaign
@pytest.mark.timeout(campaign_size(in_ci=300, in_campaign=7200))
def test_java_reads_the_files_of_folders_that_have_to_be_read(lake: Lake, tmp_path: Path) -> None:
    """Java's classes know the files of Hadoop catalogs and numbers in hints, both as integers of 32 bits."""
    table = draw_table(Random(SEED), tmp_path / "drawn").table
    contents = [Path(table.metadata_location.removeprefix("file://")).read_bytes()] * STATES
    java, compared = lake.spark._jvm, 0
    tables = java.org.apache.iceberg.hadoop.HadoopTables(lake.spark._jsc.hadoopConfiguration())
    for seed in range(SEED, SEED + FOLDERS):
        folder = draw_folder(Random(seed), STATES)
        wanted = folder.current()
        is_known = folder.hint is None or folder.hint.name is None
        is_known &= all(one.number < 1 << 31 for one in folder.of("hadoop"))
        if wanted is None or wanted.kind != "hadoop" or not is_known:
            continue
        folder.write(tmp_path / "t", contents)
        found = file_of_java(tables, tmp_path / "t")
        if found is not None:
            assert found == wanted.name, f"seed {seed}: {folder}"
            compared += 1
    assert compared > FOLDERS / 20


def file_of_java(tables: Any, root: Path) -> str | None:
    """The metadata file that Java's classes read; None where they read none."""
    try:
        location = tables.load(str(root)).operations().current().metadataFileLocation()
    except Py4JJavaError:
        return None
    return str(location).rpartition("/")[2]
