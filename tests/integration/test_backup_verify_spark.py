"""Tables of every kind are proved from their copies with the rows that Spark read; Spark opens what others refuse."""

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import OpenSpark, TableProof
from lakeshare_pipelines.backup.points import wait_for_point_name
from lakeshare_pipelines.backup.restore import copies
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.run import BackupRun, make_point
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.wap.staged import Lake as SparkLake
from lakeshare_server.storage import normalise_location
from tests.builders.backup_lakes import Lake
from tests.builders.canonical import Rows
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.matrix import unpack
from tests.builders.hostile.place import HostileTable
from tests.builders.iceberg_matrix.made import Written
from tests.builders.iceberg_matrix.recorded import PLACE, unpacked

# The times inside of the tables are those of the clock: all of them are before this day ends.
DAY = "2099-12-31"
ICEBERG_BY_SPARK = {
    *("variant", "variant_inside", "variant_shredded", "variant_dropped", "manifests_inside", "avro_v2"),
    *("v2_in_avro", "v2_equality", "v2_equality_and_positions"),
}
DELTA_BY_SPARK = {"widened", "vacuumed"}
# Their logs name files by absolute locations: a copy would read the originals.
ABSOLUTE = {"absolute_paths", "dv_absolute", "shallow_clone"}


@pytest.fixture(scope="module")
def iceberg() -> Iterator[Mapping[str, Written]]:
    """Unpacked once: it is thousands of files."""
    with unpacked() as (made, _):
        yield made


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, HostileTable]]:
    """The folder of the tables, and what is known of each."""
    folder = tmp_path_factory.mktemp("hostile")
    tables = unpack(folder)
    return folder / "tables", tables


def rows_of(written: Written) -> Rows:
    assert written.rows is not None, "Spark does not read it"
    return written.rows


def open_spark(lake: SparkLake) -> OpenSpark:
    return lambda: lake.spark


def prove(
    lake: SparkLake, source: Path, folder: Path, *, pointers: tuple[str, ...] = ()
) -> tuple[TableProof, ...]:
    """The proofs of all tables of a folder."""
    to = StoreAddress(url=str(folder / "copies"))
    copied = Lake(folder, declared=Backup(name="lake", source=StoreAddress(url=str(source)), target=to))
    return copied.made(DAY, copied.listing(), pointers=pointers, spark=open_spark(lake)).tables


def test_every_iceberg_table_is_proved_with_its_rows(
    lake: SparkLake, iceberg: Mapping[str, Written], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    source = PLACE / "tables"
    pointers = tuple(one.state.metadata_location for one in iceberg.values())
    proofs = {
        proof.metadata_key or proof.table.root: proof
        for proof in prove(lake, source, tmp_path, pointers=pointers)
    }
    for name, written in iceberg.items():
        if written.rows is None:
            continue
        with subtests.test(name):
            key = normalise_location(written.state.metadata_location).removeprefix(f"{source}/")
            proof = proofs[key]
            assert (proof.status, proof.rows) == ("verified", len(written.rows.rows)), proof
            by_spark = str(proof.opened_by).startswith("Spark")
            assert by_spark == (name in ICEBERG_BY_SPARK), proof


def test_every_delta_table_is_proved_with_its_rows_or_names_others_by_absolute_locations(
    lake: SparkLake, delta: tuple[Path, Mapping[str, HostileTable]], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    source, tables = delta
    proofs = {proof.table.root: proof for proof in prove(lake, source, tmp_path)}
    for name, table in tables.items():
        if TABLES[name].refused:
            continue
        with subtests.test(name):
            proof, newest = proofs[Path(table.location).name], table.latest
            if name in ABSOLUTE:
                assert proof.status == "degraded"
                assert "by absolute locations, so a copy of it reads the originals" in proof.reasons[0]
                continue
            rows = len(table.rows(newest).rows)
            assert (proof.status, proof.version, proof.rows) == ("verified", newest, rows), proof
            assert str(proof.opened_by).startswith("Spark") == (name in DELTA_BY_SPARK), proof


@pytest.mark.parametrize("name", ["vacuumed", "variant"])
def test_a_table_that_only_spark_opens_is_restored(
    lake: SparkLake,
    iceberg: Mapping[str, Written],
    delta: tuple[Path, Mapping[str, HostileTable]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    # With the driver of the tests; commands start one.
    monkeypatch.setattr(copies, "open_lake", lambda _settings: nullcontext(lake))
    if name in TABLES:
        table = delta[1][name]
        root, rows = Path(table.location), table.rows(table.latest)
    else:
        root, rows = PLACE / "tables" / "lake" / name, rows_of(iceberg[name])
    source, target = StoreAddress(url=str(root)), StoreAddress(url=str(tmp_path / "copies"))
    backup = Backup(name="lake", source=source, target=target)
    making = BackupRun(lake.settings, backup, wait_for_point_name(), "test", open_spark(lake))
    point = make_point(making, dt.datetime.now(dt.UTC), print, lambda _progress: None)
    assert point.status == "verified"
    restored = PointRestore(lake.settings, backup, point).elsewhere(
        "", StoreAddress(url=str(tmp_path / "to"))
    )
    assert restored.rows == len(rows.rows)
    assert restored.opened_by.startswith("Spark")
