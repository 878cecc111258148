"""Copies are locked as long as the longest point that holds them, and swept by version, with Object Lock."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.backup.retention import (
    LockResult,
    apply_retention,
    lock_copies,
    lock_point,
    sweep_points,
)
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_plans import Planner, a_planner, an_object
from tests.integration.s3_server import S3Server

ONE, TWO, THREE = "2026-11-01", "2026-11-02", "2026-11-03"
SOON = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=2)
LATER = SOON + dt.timedelta(days=30)
BUCKETS = (f"safe{number}" for number in range(100))


@pytest.fixture
def credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)


@pytest.fixture
def planner(s3: S3Server, credentials: None, tmp_path: Path) -> Planner:
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    return a_bucket_planner(s3, tmp_path, bucket, mode="governance")


def a_bucket_planner(s3: S3Server, folder: Path, bucket: str, mode: str) -> Planner:
    target = {"url": f"s3://{bucket}/keep/", "endpoint": s3.endpoint, "region": "us-east-1"}
    retention = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0}
    return a_planner(folder, target=target, lock={"mode": mode}, retention=retention)


def lock_of(
    s3: S3Server, planner: Planner, key: str, **version: str
) -> tuple[str | None, dt.datetime | None]:
    said = s3.client().head_object(Bucket=planner.backup.target.bucket, Key=f"keep/objects/{key}", **version)
    return said.get("ObjectLockMode"), said.get("ObjectLockRetainUntilDate")


def locked(planner: Planner, day: str, until: dt.datetime) -> LockResult:
    points = planner.points
    return lock_copies(
        planner.backup, points.read_copies(points.get(day)), points, day, until, lambda sentence: None
    )


def test_copies_are_locked_and_a_second_time_is_nothing(s3: S3Server, planner: Planner) -> None:
    planner.point(ONE, [an_object("a"), an_object("b c+%")])
    assert locked(planner, ONE, SOON) == LockResult(SOON, 2, 0)
    mode, until = lock_of(s3, planner, "b c+%")
    assert mode == "GOVERNANCE"
    assert until is not None
    assert until >= SOON
    assert locked(planner, ONE, SOON) == LockResult(SOON, 0, 2)


def test_a_lock_is_extended_for_a_newer_point_and_never_shortened(s3: S3Server, planner: Planner) -> None:
    planner.point(ONE, [an_object("old"), an_object("both")])
    locked(planner, ONE, SOON)
    planner.point(TWO, [an_object("both"), an_object("new")])
    assert locked(planner, TWO, LATER) == LockResult(LATER, 2, 0)
    assert locked(planner, ONE, SOON) == LockResult(SOON, 0, 2)
    ends = {key: lock_of(s3, planner, key)[1] for key in ("old", "both", "new")}
    assert ends["old"] is not None
    assert ends["old"] < LATER <= min(ends["both"], ends["new"])  # type: ignore[type-var]


def test_what_a_point_that_is_locked_as_long_holds_is_not_asked_for(s3: S3Server, planner: Planner) -> None:
    planner.point(ONE, [an_object("a"), an_object("b")])
    points = planner.points
    lock_point(points, points.get(ONE), LATER, lambda sentence: None)
    planner.point(TWO, [an_object("a"), an_object("c")])
    # Were it asked for, this would be refused.
    s3.client().delete_object(Bucket=planner.backup.target.bucket, Key="keep/objects/a")
    assert locked(planner, TWO, SOON) == LockResult(SOON, 1, 1)


def test_a_new_point_is_given_a_class_and_its_lock(s3: S3Server, planner: Planner) -> None:
    planner.point(ONE, [an_object("a")])
    points = planner.points
    held = points.read_copies(points.get(ONE))
    found, until = apply_retention(points, ONE, "verified", SOON, held, lambda sentence: None)
    assert (found, until) == ("daily", SOON + dt.timedelta(days=1))
    assert lock_of(s3, planner, "a")[0] == "GOVERNANCE"


def test_a_bucket_without_lock_is_told(s3: S3Server, credentials: None, tmp_path: Path) -> None:
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket)
    planner = a_bucket_planner(s3, tmp_path, bucket, mode="compliance")
    planner.point(ONE, [an_object("a")])
    with pytest.raises(BackupError, match="made with Object Lock"):
        locked(planner, ONE, SOON)


def test_a_copy_that_is_not_there_is_told(s3: S3Server, planner: Planner) -> None:
    planner.point(ONE, [an_object("a")])
    s3.client().delete_object(Bucket=planner.backup.target.bucket, Key="keep/objects/a")
    with pytest.raises(BackupError, match="keep/objects/a"):
        locked(planner, ONE, SOON)


def test_a_locked_point_stays_until_its_lock_ends(planner: Planner) -> None:
    planner.point(ONE, [an_object("a")])
    points = planner.points
    lock_point(points, points.get(ONE), SOON, lambda sentence: None)
    planner.point(TWO, [an_object("b")])
    told = sweep_points(planner.backup, points, SOON - dt.timedelta(days=1), dry_run=True)
    assert told.days == ()
    assert told.spared == (f"{ONE} stays: it is locked until {SOON:%Y-%m-%d}.",)
    assert sweep_points(planner.backup, points, SOON, dry_run=True).days == (ONE,)


def test_a_sweep_removes_the_version_that_was_copied_and_no_other(s3: S3Server, planner: Planner) -> None:
    client, bucket = s3.client(), planner.backup.target.bucket
    first = put(client, bucket, "keep/objects/a")
    with_version(planner, ONE, [an_object("a", stored_version_id=first)])
    second = put(client, bucket, "keep/objects/a")
    planner.point(TWO, [an_object("b")])
    planner.points.claim(THREE, "run 3")
    told = sweep_points(planner.backup, planner.points, SOON, dry_run=False)
    assert (told.days, told.objects) == ((ONE,), 1)
    versions = client.list_object_versions(Bucket=bucket, Prefix="keep/objects/a")
    assert [one["VersionId"] for one in versions["Versions"] if one["VersionId"] != "null"][:1] == [second]
    assert first not in {one["VersionId"] for one in versions["Versions"]}
    assert "DeleteMarkers" not in versions


def put(client: Any, bucket: str, key: str) -> str:
    version: str = client.put_object(Bucket=bucket, Key=key, Body=b"x")["VersionId"]
    return version


def with_version(planner: Planner, day: str, rows: list[dict[str, Any]]) -> None:
    """A point whose copies have versions: planned with another object, held as told."""
    keep = {"table_root": None, "first_point": day}
    also = [row | keep | {"stored_key": f"keep/objects/{row['key']}"} for row in rows]
    planner.point(day, [an_object("b")], also_held=also, store_copies=False)
