"""Copies that change after they were made, in the same size and with the same time, do not pass as verified."""

import datetime as dt
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from lakeshare_pipelines.backup.config import Scrub
from lakeshare_pipelines.backup.model import TableProof
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.copies import select_table
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.run import run_drill
from lakeshare_pipelines.backup.scrub import ScrubRecord, scrub
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_damage import damaged, delete, flip_bytes, removed, truncate
from tests.builders.backup_lakes import Lake, at
from tests.builders.kept_folder import KeptFolder
from tests.builders.lake_tables import IcebergTable, a_delta_table, append_delta, some_rows

ONE, TWO = "2099-12-30", "2099-12-31"
ROWS = some_rows(days=1)
OTHERS = some_rows(days=2).slice(4)


@pytest.fixture(scope="module")
def kept_delta(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """A Delta table of two files, with a point."""
    lake = Lake(tmp_path_factory.mktemp("delta"))
    append_delta(a_delta_table(lake.source / "flights", ROWS, partitioned_by=()), OTHERS)
    lake.made(ONE, lake.listing())
    return KeptFolder(lake.base)


@pytest.fixture
def delta(kept_delta: KeptFolder) -> Lake:
    return Lake(kept_delta.put_back())


@pytest.fixture(scope="module")
def kept_iceberg(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """An Iceberg table of two files, with a point."""
    lake = Lake(tmp_path_factory.mktemp("iceberg"))
    table = IcebergTable(lake.source, ROWS.schema, partitioned_by=())
    table.append(ROWS)
    table.append(OTHERS)
    lake.made(ONE, lake.listing())
    return KeptFolder(lake.base)


@pytest.fixture
def iceberg(kept_iceberg: KeptFolder) -> Lake:
    return Lake(kept_iceberg.put_back())


def copies(lake: Lake, pattern: str) -> list[Path]:
    return sorted((lake.target / "objects").rglob(pattern))


def rot(path: Path) -> None:
    damaged(path, flip_bytes, Random(1), [])


def made(lake: Lake, day: str = TWO) -> TableProof:
    (proof,) = lake.made(day, lake.listing()).tables
    return proof


@pytest.mark.parametrize("pattern", ["*.parquet", "*0.json"])
def test_the_next_run_copies_a_rotten_file_of_a_delta_table_again(delta: Lake, pattern: str) -> None:
    [path, *_] = copies(delta, pattern)
    rot(path)
    proof = made(delta)
    assert (proof.status, proof.level, proof.rows) == ("verified", 4, 8)
    key = str(path.relative_to(delta.target / "objects"))
    assert proof.healed == (key,)
    assert path.read_bytes() == (delta.source / key).read_bytes()
    assert DeltaTable(path.parents[path.parent.name == "_delta_log"]).to_pyarrow_table().num_rows == 8


@pytest.mark.parametrize("pattern", ["*.parquet", "*-m0.avro", "snap-*.avro", "*.metadata.json"])
def test_the_next_run_copies_a_rotten_file_of_an_iceberg_table_again(iceberg: Lake, pattern: str) -> None:
    path = copies(iceberg, pattern)[-1]
    rot(path)
    proof = made(iceberg)
    assert (proof.status, proof.level, proof.rows) == ("verified", 4, 8)
    key = str(path.relative_to(iceberg.target / "objects"))
    assert key in proof.healed
    assert path.read_bytes() == (iceberg.source / key).read_bytes()


def scrubbed(lake: Lake, **options: object) -> ScrubRecord:
    settings = LakeSettings(_env_file=None, state_dir=lake.base / "state")
    return scrub(lake.backup, Points(lake.backup), settings, dt.datetime.now(dt.UTC), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [flip_bytes, truncate, delete])
def test_a_scrub_copies_again_what_the_source_still_has(delta: Lake, damage) -> None:  # type: ignore[no-untyped-def]
    path = copies(delta, "*.parquet")[0]
    damaged(path, damage, Random(1), [])
    record = scrubbed(delta, everything=True)
    assert (record.passed, record.downgraded, len(record.repaired)) == (True, (), 1)
    assert "copied again from" in record.repaired[0]
    assert record.read == record.copies == 4
    key = path.relative_to(delta.target / "objects")
    assert path.read_bytes() == (delta.source / key).read_bytes()
    assert Points(delta.backup).get(ONE).status == "verified"
    left = [one.key for one in Points(delta.backup).store.list("_lakeshare/lake/") if "/scrub/" in one.key]
    assert left == []


def test_what_is_nowhere_else_downgrades_every_point_that_holds_it(delta: Lake) -> None:
    delta.made(TWO, delta.listing())
    removed(delta.source)
    path = copies(delta, "*.parquet")[0]
    rot(path)
    record = scrubbed(delta, everything=True)
    assert not record.passed
    assert record.downgraded == (ONE, TWO)
    assert path.name in record.damaged[0]
    points = Points(delta.backup)
    point = points.get(TWO)
    assert (point.status, point.verification.tables[0].status) == ("degraded", "degraded")
    assert path.name in point.verification.tables[0].reasons[-1]
    assert points.latest_good() is None
    with pytest.raises(BackupError, match="degraded"):
        select_table(points, "flights", ONE)


def test_rot_is_repaired_from_a_copy_of_other_name_with_the_same_content(tmp_path: Path) -> None:
    """Its time is another, so that the points have to learn of the new ETag."""
    lake = Lake(tmp_path)
    append_delta(a_delta_table(lake.source / "flights", ROWS, partitioned_by=()), ROWS)
    lake.made(ONE, lake.listing())
    removed(lake.source)
    rot(copies(lake, "*.parquet")[0])
    record = scrubbed(lake, everything=True)
    assert (record.passed, len(record.repaired)) == (True, 1)
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    ran = run_drill(lake.backup, Points(lake.backup), settings, "seed")
    assert (ran.passed, ran.rows, ran.reasons) == (True, 8, ())
    # The copy is known where it is now: nothing is found again.
    assert scrubbed(lake, everything=True).repaired == ()


def test_a_copy_that_is_whole_again_takes_the_downgrade_back(delta: Lake) -> None:
    path = copies(delta, "*.parquet")[0]
    rot(path)
    away = delta.source.rename(delta.base / "away")
    assert scrubbed(delta, everything=True).downgraded == (ONE,)
    away.rename(delta.source)
    # It was read a moment ago and is tried again all the same.
    record = scrubbed(delta, budget_bytes=1)
    assert (record.downgraded, len(record.repaired), record.read) == ((), 1, 1)
    assert Points(delta.backup).get(ONE).status == "verified"


def test_rot_is_repaired_from_another_point_where_the_source_has_it_no_more(tmp_path: Path) -> None:
    lake = Lake(tmp_path, layout="dated")
    a_delta_table(lake.source / "flights", ROWS, partitioned_by=())
    for day in (ONE, TWO):
        lake.made(day, lake.listing())
    removed(lake.source)
    (path,) = Path(lake.backup.target_of(ONE).url).glob("flights/*.parquet")
    rot(path)
    record = scrubbed(lake, everything=True)
    assert record.passed
    assert f"copied again from point {TWO}" in record.repaired[0]
    assert DeltaTable(path.parent).to_pyarrow_table().num_rows == 4


def test_everything_is_read_within_its_days_and_the_oldest_first(delta: Lake) -> None:
    now, within_days = dt.datetime(2100, 1, 1, tzinfo=dt.UTC), 7
    backup = delta.backup.model_copy(update={"scrub": Scrub(within_days=within_days)})
    settings = LakeSettings(_env_file=None, state_dir=delta.base / "state")
    points = Points(backup)
    total = sum(path.stat().st_size for path in copies(delta, "*.*"))
    read = []
    for day in range(10):
        record = scrub(backup, points, settings, now + dt.timedelta(days=day))
        read.append(record.read_bytes)
        assert record.passed
    newest = now + dt.timedelta(days=9)
    assert record.compared_since is not None
    assert record.compared_since >= newest - dt.timedelta(days=within_days)
    assert max(read) < total


def test_a_budget_that_is_too_small_is_reported(delta: Lake) -> None:
    small = Scrub(within_days=1, bytes_per_scrub=1000)
    record = scrub(
        delta.backup.model_copy(update={"scrub": small}),
        Points(delta.backup),
        LakeSettings(_env_file=None, state_dir=delta.base / "state"),
        dt.datetime.now(dt.UTC),
    )
    assert "scrub.bytes_per_scrub" in record.warnings[0]


def test_the_level_says_when_copies_were_not_compared_for_long(tmp_path: Path) -> None:
    """A run that may read nothing again does not claim that it did."""
    lake = Lake(tmp_path)
    a_delta_table(lake.source / "flights", ROWS, partitioned_by=())
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    at(long_ago, *(path for path in lake.source.rglob("*") if path.is_file()))
    lake.made("2020-01-02", lake.listing())
    thrifty = lake.backup.model_copy(update={"scrub": Scrub(bytes_per_run=0)})
    # One copy is read all the same, the other one is not.
    proof = made(Lake(tmp_path, declared=thrifty), "2020-01-03")
    assert (proof.status, proof.level) == ("verified", 1)
    assert proof.compared_at == dt.datetime(2020, 1, 3, tzinfo=dt.UTC)
    assert "lakeshare backup scrub" in proof.reasons[-1]
    assert made(lake, "2020-01-04").level == 4


def test_a_restore_refuses_changed_metadata_by_name_before_any_run_has_read_it(iceberg: Lake) -> None:
    """One manifest stands in the place of another: it can be read, and has as many rows."""
    one, other = copies(iceberg, "*-m0.avro")
    one.write_bytes(other.read_bytes())
    settings = LakeSettings(_env_file=None, state_dir=iceberg.base / "state")
    restores = PointRestore(settings, iceberg.backup, Points(iceberg.backup).get(ONE))
    with pytest.raises(BackupError, match=one.name):
        restores.elsewhere("lake/flights", StoreAddress(url=str(iceberg.base / "restored")))
