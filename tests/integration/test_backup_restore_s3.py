"""Tables of a bucket come back from a point in another bucket: made, verified and restored by the real steps on S3."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import StaticTable
from typer.testing import CliRunner

from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points, wait_for_point_name
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.restore.targets import find_mount
from lakeshare_pipelines.backup.run import BackupRun, make_point, run_drill
from lakeshare_pipelines.backup.stores import (
    StoreAddress,
    make_file_properties,
    make_storage_options,
    open_store,
)
from lakeshare_pipelines.cli.backup import backup_app
from lakeshare_pipelines.cli.restore import restore_app
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders.lake_tables import IcebergTable, some_rows
from tests.integration.s3_server import REGION, S3Server

DELTA, ICEBERG = "sales/orders", "lake/flights"


@dataclass
class Scene:
    """A bucket with a Delta and an Iceberg table, and a point of it in another one."""

    settings: LakeSettings
    catalog: Catalog
    backup: Backup
    point: Point
    client: Any
    delta: list[str]
    iceberg: list[str]

    def address(self, url: str) -> StoreAddress:
        return self.backup.source.model_copy(update={"url": url})

    def rows(self, location: str) -> list[str]:
        table = DeltaTable(location, storage_options=make_storage_options(self.backup.source))
        return sorted(map(repr, table.to_pyarrow_table().to_pylist()))

    def iceberg_rows(self, location: str) -> list[str]:
        table = StaticTable.from_metadata(location, make_file_properties(self.backup.source))
        return sorted(map(repr, table.scan().to_arrow().to_pylist()))

    def lose(self, prefix: str) -> None:
        store = open_store(self.backup.source)
        for one in list(store.list(prefix)):
            store.delete(one.key)


@pytest.fixture(scope="module")
def scene(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
        patched.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
        yield a_scene(s3, folder)


def a_scene(s3: S3Server, folder: Path) -> Scene:
    client = s3.client()
    for bucket in ("lake", "vault", "elsewhere"):
        client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket="vault", VersioningConfiguration={"Status": "Enabled"})
    source = StoreAddress(url="s3://lake", endpoint=s3.endpoint, region=REGION)
    options = make_storage_options(source)
    for days in (3, 2):
        write_deltalake(
            f"s3://lake/{DELTA}",
            some_rows(days=days),
            mode="append",
            partition_by=["day"],
            storage_options=options,
        )
    iceberg = IcebergTable("s3://lake", some_rows().schema, **make_file_properties(source))
    for days in (3, 2):
        iceberg.append(some_rows(days=days))
    backup = Backup(
        name="lake",
        source=source,
        target=source.model_copy(update={"url": "s3://vault"}),
        listing=ListingSource(lag_days=0, wait_hours=0),
    )
    settings = LakeSettings(_env_file=None, state_dir=folder / "state")
    making = BackupRun(settings, backup, wait_for_point_name(), "test")
    point = make_point(making, datetime.now(UTC), print, lambda _: None)
    scene = Scene(settings, open_catalog(settings.catalog_url), backup, point, client, [], [])
    scene.delta = scene.rows(f"s3://lake/{DELTA}")
    scene.iceberg = scene.iceberg_rows(iceberg.table.metadata_location)
    return scene


def restored_in_place(scene: Scene) -> list[str]:
    PointRestore(scene.settings, scene.backup, scene.point).in_place(scene.catalog, DELTA)
    return scene.rows(f"s3://lake/{DELTA}")


def test_the_point_is_verified(scene: Scene) -> None:
    assert {proof.table.root: proof.status for proof in scene.point.verification.tables} == {
        DELTA: "verified",
        ICEBERG: "verified",
    }


def test_a_lost_delta_table_is_the_same_again(scene: Scene) -> None:
    scene.lose(f"{DELTA}/")
    plan = PointRestore(scene.settings, scene.backup, scene.point).plan(scene.catalog, DELTA, None)
    assert plan.objects == plan.requests > 5
    assert plan.usd > 0
    assert restored_in_place(scene) == scene.delta
    assert (
        PointRestore(scene.settings, scene.backup, scene.point).plan(scene.catalog, DELTA, None).objects == 0
    )
    assert not list(open_store(scene.backup.source).list("_lakeshare/"))


def test_a_delta_table_that_went_on_shows_its_old_state(scene: Scene) -> None:
    options = make_storage_options(scene.backup.source)
    DeltaTable(f"s3://lake/{DELTA}", storage_options=options).delete("day = DATE '2013-01-02'")
    assert restored_in_place(scene) == scene.delta


def test_a_partition_comes_back(scene: Scene) -> None:
    options = make_storage_options(scene.backup.source)
    DeltaTable(f"s3://lake/{DELTA}", storage_options=options).delete("day = DATE '2013-01-01'")
    PointRestore(scene.settings, scene.backup, scene.point).partition(
        scene.catalog, DELTA, {"day": "2013-01-01"}
    )
    assert scene.rows(f"s3://lake/{DELTA}") == scene.delta


@pytest.mark.parametrize("to", ["bucket", "folder"])
def test_tables_open_at_another_place(scene: Scene, to: str, tmp_path: Path) -> None:
    for table, expected in ((DELTA, scene.delta), (ICEBERG, scene.iceberg)):
        place = (
            scene.address(f"s3://elsewhere/{table}")
            if to == "bucket"
            else StoreAddress(url=f"{tmp_path}/{table}")
        )
        restored = PointRestore(scene.settings, scene.backup, scene.point).elsewhere(table, place)
        found = scene.rows(restored.location) if table == DELTA else scene.iceberg_rows(restored.location)
        assert found == expected
        assert restored.location.startswith(place.url)


def test_a_backup_of_a_prefix_is_restored_below_to_as_it_was_below_the_prefix(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.client.put_object(Bucket="lake", Key="sales/notes.txt", Body=b"mine")
    source = scene.address("s3://lake/sales").model_dump(exclude_none=True)
    declared = {"sales": {"source": source, "target": {"url": str(tmp_path / "copies")}}}
    (tmp_path / "backups.yaml").write_text(json.dumps({"backups": declared}))
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(tmp_path / "backups.yaml"))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    restore = ["all", "--to", str(tmp_path / "restored")]
    for app, command, shown in (
        (backup_app, ["run"], "verified: 1 of 1 tables verified"),
        (restore_app, restore, "1 of 1 tables restored"),
    ):
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert shown in done.output
    assert (tmp_path / "restored" / "notes.txt").read_text() == "mine"
    assert DeltaTable(tmp_path / "restored" / "orders").to_pyarrow_dataset().count_rows() == len(scene.delta)


def test_an_iceberg_table_opens_where_its_copies_are(scene: Scene) -> None:
    found = find_mount(Points(scene.backup), scene.point, ICEBERG)
    assert found.location.startswith("s3://vault/_lakeshare/lake/points/")
    assert scene.iceberg_rows(found.location) == scene.iceberg


def test_a_drill_finds_a_copy_that_was_changed_behind_its_back(scene: Scene) -> None:
    points = Points(scene.backup)
    ran = run_drill(scene.backup, points, scene.settings, "seed")
    assert ran.reasons == ()
    assert ran.compared == ran.objects > 0
    changed = []
    for one in list(open_store(scene.backup.target).list("objects/")):
        if one.key.endswith(".parquet"):
            content = bytearray(scene.client.get_object(Bucket="vault", Key=one.key)["Body"].read())
            content[len(content) // 2] ^= 1
            # An older version is still what was backed up: it is taken away as well.
            scene.client.delete_object(Bucket="vault", Key=one.key, VersionId=one.version_id or "null")
            for version in open_store(scene.backup.target).versions(one.key):
                scene.client.delete_object(Bucket="vault", Key=one.key, VersionId=version.version_id)
            scene.client.put_object(Bucket="vault", Key=one.key, Body=bytes(content))
            changed.append(one.key)
    ran = run_drill(scene.backup, points, scene.settings, "seed")
    assert not ran.passed
    assert any(key.rpartition("/")[2] in ran.reasons[0] for key in changed)
