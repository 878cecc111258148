"""What is called verified of an Iceberg table opens from the copies alone, at the state the catalog had, or the newest.

The source is gone when the mount is read: whatever still pointed there would be missed.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.model import TableProof, Verification
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.copies import select_table
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_lakes import Lake, listed_as
from tests.builders.lake_tables import IcebergTable, some_rows

# The times inside of Iceberg's metadata are those of the clock: all of them are before this day ends.
DAY = "2099-12-31"
ROWS = some_rows(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def table(lake: Lake) -> IcebergTable:
    """Three snapshots of four rows each."""
    made = IcebergTable(lake.source, ROWS.schema, partitioned_by=())
    for _ in range(3):
        made.append(ROWS)
    return made


def key_of(lake: Lake, location: str) -> str:
    """The key of a file that a table names."""
    return location.removeprefix("file://").removeprefix(f"{lake.source}/")


def data_files(lake: Lake, table: IcebergTable) -> list[str]:
    """Keys of the data files, those of the newest snapshot first."""
    found = []
    for snapshot in reversed(table.table.snapshots()):
        found += [
            task.file.file_path for task in table.table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        ]
    keys = [key_of(lake, path) for path in dict.fromkeys(found)]
    oldest_first = sorted(keys, key=lambda key: (lake.source / key).stat().st_mtime_ns)
    return oldest_first[::-1]


def manifest_list(lake: Lake, table: IcebergTable) -> str:
    return key_of(lake, table.table.current_snapshot().manifest_list)


def manifest(lake: Lake, table: IcebergTable) -> str:
    """The key of the newest snapshot's own manifest."""
    return key_of(lake, table.table.current_snapshot().manifests(table.table.io)[0].manifest_path)


def verified(
    lake: Lake, lost: Sequence[str] = (), vanished: Sequence[str] = (), pointers: Sequence[str] = ()
) -> Verification:
    """A whole turn; `lost` was not listed, `vanished` is gone before it is copied."""

    def meanwhile() -> None:
        for key in vanished:
            (lake.source / key).unlink()

    return lake.made(DAY, listed_as(lake.listing(), lost), meanwhile, pointers)


def only(proved: Verification) -> TableProof:
    (proof,) = proved.tables
    return proof


def mounted(lake: Lake, proof: TableProof) -> pa.Table:
    """The rows of the mount, after the source was removed."""
    shutil.rmtree(lake.source)
    assert proof.mount is not None
    return StaticTable.from_metadata(proof.mount).scan().to_arrow()


def test_a_whole_copy_opens_on_its_mount(lake: Lake, table: IcebergTable) -> None:
    proof = only(verified(lake))
    assert (proof.status, proof.rows, proof.files, proof.level) == ("verified", 12, 3, 4)
    assert proof.snapshot_id == table.table.current_snapshot().snapshot_id
    assert proof.metadata_key == key_of(lake, table.table.metadata_location)
    assert proof.version == proof.wanted_version == 3
    assert mounted(lake, proof).num_rows == 12


@pytest.mark.parametrize("kind", [manifest_list, manifest, data_files], ids=lambda kind: kind.__name__)
def test_what_the_listing_lost_is_healed(lake: Lake, table: IcebergTable, kind) -> None:  # type: ignore[no-untyped-def]
    found = kind(lake, table)
    key = found if isinstance(found, str) else found[0]
    proof = only(verified(lake, lost=[key]))
    assert (proof.status, proof.rows) == ("verified", 12)
    assert proof.healed == (key,)
    assert mounted(lake, proof).num_rows == 12


@pytest.mark.parametrize("kind", [manifest_list, manifest, data_files], ids=lambda kind: kind.__name__)
def test_what_vanished_means_the_newest_state_without_it(lake: Lake, table: IcebergTable, kind) -> None:  # type: ignore[no-untyped-def]
    found = kind(lake, table)
    key = found if isinstance(found, str) else found[0]
    proved = verified(lake, vanished=[key])
    proof = only(proved)
    assert (proved.status, proof.status) == ("verified_with_fallback", "verified_with_fallback")
    assert (proof.rows, proof.version, proof.wanted_version) == (8, 2, 3)
    assert proof.missing == (key,)
    assert mounted(lake, proof).num_rows == 8


def test_an_empty_older_state_is_no_fallback(lake: Lake, table: IcebergTable) -> None:
    """Appended files stay in every later snapshot; what is left is the table before there were any."""
    proved = verified(lake, vanished=[data_files(lake, table)[-1]])
    proof = only(proved)
    assert (proved.status, proof.status, proof.snapshot_id, proof.rows) == ("degraded", "degraded", None, 0)
    assert "has 0 rows, the newest one has 12" in proof.reasons[-1]
    with pytest.raises(BackupError, match="0 rows, the newest one has 12"):
        select_table(Points(lake.backup), "lake/flights", DAY)


def test_an_older_state_with_far_fewer_rows_is_no_fallback(lake: Lake, table: IcebergTable) -> None:
    (_, second, _) = data_files(lake, table)
    proof = only(verified(lake, vanished=[second]))
    assert (proof.status, proof.rows, proof.wanted_version) == ("degraded", 4, 3)
    assert "has 4 rows, the newest one has 12" in proof.reasons[-1]
    # Who names point and version knows what it is.
    version = proof.snapshot_id
    assert select_table(Points(lake.backup), "lake/flights", DAY, version).version == version


def test_an_older_state_does_not_stand_for_metadata_that_cannot_be_read(
    lake: Lake, table: IcebergTable
) -> None:
    newest = key_of(lake, table.table.metadata_location)
    proof = only(verified(lake, vanished=[newest]))
    assert (proof.status, proof.rows, proof.missing) == ("verified_with_fallback", 8, (newest,))


def test_a_snapshot_that_is_not_whole_is_not_on_the_mount(lake: Lake, table: IcebergTable) -> None:
    """The oldest snapshot lost its own list of manifests; the newest does not need that."""
    first = table.table.snapshots()[0]
    proof = only(verified(lake, vanished=[key_of(lake, first.manifest_list)]))
    assert (proof.status, proof.rows) == ("verified", 12)
    assert proof.mount is not None
    ids = [one.snapshot_id for one in StaticTable.from_metadata(proof.mount).snapshots()]
    assert ids == [one.snapshot_id for one in table.table.snapshots()[1:]]


def test_the_catalogs_state_counts_and_not_the_newest_file(lake: Lake, table: IcebergTable) -> None:
    """What is newer is of a branch that nobody published."""
    published = table.table.metadata_location
    table.append(ROWS)
    proof = only(verified(lake, pointers=[published]))
    assert (proof.status, proof.rows, proof.metadata_key) == ("verified", 12, key_of(lake, published))
    assert only(lake.made("2099-12-30", lake.listing())).rows == 16


def test_the_catalogs_state_is_fetched_when_it_was_not_listed(lake: Lake, table: IcebergTable) -> None:
    published = key_of(lake, table.table.metadata_location)
    proof = only(verified(lake, lost=[published], pointers=[table.table.metadata_location]))
    assert (proof.status, proof.rows, proof.healed) == ("verified", 12, (published,))


def test_a_catalogs_state_that_is_nowhere_is_told(lake: Lake, table: IcebergTable) -> None:
    published = key_of(lake, table.table.metadata_location)
    proof = only(verified(lake, vanished=[published], pointers=[table.table.metadata_location]))
    assert proof.status == "failed"
    assert proof.missing == (published,)


def test_a_full_copy_of_a_day_opens_on_a_mount_beside_it(tmp_path: Path) -> None:
    dated = Lake(tmp_path, "dated")
    IcebergTable(dated.source, ROWS.schema, partitioned_by=()).append(ROWS)
    proof = only(verified(dated))
    assert (proof.status, proof.rows) == ("verified", 4)
    assert proof.mount is not None
    assert not proof.mount.startswith(str(tmp_path / f"copies-{DAY}"))
    assert mounted(dated, proof).num_rows == 4


def test_a_table_without_snapshots_is_verified(lake: Lake) -> None:
    IcebergTable(lake.source, ROWS.schema, partitioned_by=())
    proof = only(verified(lake))
    assert (proof.status, proof.rows, proof.snapshot_id) == ("verified", 0, None)


def test_a_data_file_that_is_damaged_does_not_open(lake: Lake, table: IcebergTable) -> None:
    """The source itself has it so: sizes and checksums agree, and only who reads it notices."""
    path = lake.source / data_files(lake, table)[0]
    path.write_bytes(bytes(path.stat().st_size))
    proof = only(verified(lake))
    assert (proof.status, proof.rows) == ("verified_with_fallback", 8)
    assert any("pyiceberg cannot open it" in reason for reason in proof.reasons)


@pytest.mark.parametrize("external", ["refuse", "follow"])
def test_files_outside_of_the_source_are_followed_where_that_is_declared(
    tmp_path: Path, external: str
) -> None:
    declared = Lake(tmp_path).backup.model_copy(update={"external": external})
    lake = Lake(tmp_path, declared=declared)
    table = IcebergTable(lake.source, ROWS.schema, partitioned_by=())
    outside = tmp_path / "outside"
    with table.table.transaction() as change:
        change.set_properties({"write.data.path": outside.as_uri()})
    table.append(ROWS)
    assert list(outside.rglob("*.parquet"))
    proof = only(verified(lake))
    if external == "refuse":
        assert (proof.status, proof.rows) == ("degraded", 0)
        assert any("`external: follow`" in reason for reason in proof.reasons)
        return
    assert (proof.status, proof.rows) == ("verified", 4)
    shutil.rmtree(outside)
    assert mounted(lake, proof).num_rows == 4
