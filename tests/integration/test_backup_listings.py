"""A real bucket with versions, reported as AWS documents, is listed as the store itself lists it, in each format."""

import datetime as dt
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.inventory.configuration import InventoryOptions, put_configuration
from lakeshare_pipelines.backup.inventory.sources import make_listing
from lakeshare_pipelines.backup.points import Workspace
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_inventory import InventoryReports, Stored, stored_in
from tests.builders.backup_listings import DAY, IN_TIME, as_listed, listed
from tests.integration.s3_server import S3Server

KEYS = [
    "sales/day=2026-11-20/a b+c%.parquet",
    "sales/ü/日本.parquet",
    "plain",
    "it's (a) [b] {c}",
    "a=b&c#d?e",
]
Row = tuple[str, str | None, bool, bool, int | None, str | None]


@pytest.fixture(scope="module")
def s3(s3: S3Server) -> S3Server:
    client = s3.client()
    for bucket in ("lake", "reports", "untouched"):
        client.create_bucket(Bucket=bucket)
    fill(client)
    return s3


@pytest.fixture(autouse=True)
def as_admin(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def fill(client: Any) -> None:
    """Objects of before there were versions, of several versions, overwritten, deleted, and of parts."""
    for key in KEYS:
        client.put_object(Bucket="lake", Key=key, Body=key.encode())
    client.put_bucket_versioning(Bucket="lake", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"second", b"third"):
        client.put_object(Bucket="lake", Key="plain", Body=body)
    client.put_object(Bucket="lake", Key="gone", Body=b"once")
    client.delete_object(Bucket="lake", Key="gone")
    upload = client.create_multipart_upload(Bucket="lake", Key="large")["UploadId"]
    parts = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(
                Bucket="lake", Key="large", UploadId=upload, PartNumber=number, Body=bytes(5 * 1024**2)
            )["ETag"],
        }
        for number in (1, 2)
    ]
    client.complete_multipart_upload(
        Bucket="lake", Key="large", UploadId=upload, MultipartUpload={"Parts": parts}
    )


def of_lake(s3: S3Server, **listing: object) -> Backup:
    return Backup(
        name="lake",
        source=StoreAddress(url="s3://lake", endpoint=s3.endpoint),
        target=StoreAddress(url="s3://copies", endpoint=s3.endpoint),
        listing=ListingSource.model_validate(
            {"kind": "s3_inventory", "location": "s3://reports/daily/lake/backup"} | listing
        ),
    )


def told(rows: list[dict[str, Any]]) -> set[Row]:
    names = ("key", "version_id", "is_latest", "is_delete_marker", "size_bytes", "etag")
    return {tuple(row[name] for name in names) for row in rows}  # type: ignore[misc]  # six of them


def told_by_store(objects: list[Stored], *, versions: bool) -> set[Row]:
    return told([as_listed(one, versions=versions) for one in objects])


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("file_format", ["CSV", "ORC", "Parquet"])
def test_a_reported_bucket_is_listed_as_the_store_lists_it(
    s3: S3Server, tmp_path: Path, file_format: str, versions: bool
) -> None:
    client = s3.client()
    configuration = f"{file_format}-{versions}"
    reports = InventoryReports(
        lambda key, content: client.put_object(Bucket="reports", Key=key, Body=content),
        prefix="daily",
        configuration=configuration,
    )
    objects = stored_in(client, "lake", versions=versions)
    reports.deliver(objects, file_format, versions=versions, files=3)
    backup = of_lake(s3, location=f"s3://reports/daily/lake/{configuration}", versions=versions)
    record, rows = listed(backup, tmp_path)
    assert told(rows) == told_by_store(objects, versions=versions)
    assert {row["key"] for row in rows if row["is_multipart"]} == {"large"}
    assert record.has_versions == versions
    if versions:
        # As listed, so healed: each version that is no marker can be read by what the listing says.
        source = open_store(backup.source)
        held = [row for row in rows if not row["is_delete_marker"]]
        assert all(source.head(row["key"], row["version_id"] or "null") is not None for row in held)


def test_the_generator_and_the_report_say_the_same(s3: S3Server, tmp_path: Path) -> None:
    late = dt.datetime(2026, 12, 24, tzinfo=dt.UTC)
    backup = of_lake(s3, location="s3://reports/daily/lake/none", versions=True)
    record, rows = listed(backup, tmp_path, now=late)
    assert (record.kind, record.is_late) == ("generator", True)
    assert told(rows) == told_by_store(stored_in(s3.client(), "lake", versions=True), versions=True)


@pytest.mark.parametrize("with_versions", [False, True])
def test_a_manifest_is_filled_by_the_store(s3: S3Server, tmp_path: Path, with_versions: bool) -> None:
    client = s3.client()
    objects = [one for one in stored_in(client, "lake", versions=with_versions) if not one.is_delete_marker]
    lines = [
        f'"lake","{quote(one.key)}"' + (f',"{one.version_id or "null"}"' if with_versions else "")
        for one in objects
    ]
    client.put_object(Bucket="reports", Key="manifest.csv", Body="\n".join(lines).encode())
    record, rows = listed(of_lake(s3, kind="manifest_csv", location="s3://reports/manifest.csv"), tmp_path)
    assert {(row["key"], row["size_bytes"], row["etag"]) for row in rows} == {
        (one.key, one.size, one.etag) for one in objects
    }
    assert record.has_versions == with_versions


def test_reports_that_may_not_be_read_are_a_sentence(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.stranger.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.stranger.secret_key)
    with pytest.raises(BackupError, match="access is denied"):
        make_listing(of_lake(s3), Workspace(tmp_path), DAY, IN_TIME)


def test_a_store_without_inventories_is_told_and_its_bucket_stays(s3: S3Server) -> None:
    backup = of_lake(s3, location="s3://reports/daily/untouched/backup")
    backup = backup.model_copy(update={"source": backup.source.model_copy(update={"url": "s3://untouched"})})
    with pytest.raises(BackupError, match="Use the generator"):
        put_configuration(backup, InventoryOptions())
    assert "untouched" in [one["Name"] for one in s3.client().list_buckets()["Buckets"]]
