"""The generator lists every object and version of a bucket once, in however many ranges, with and without Spark."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.inventory import list_objects
from lakeshare_pipelines.backup.inventory.configuration import FORMATS, ReportFormat
from lakeshare_pipelines.backup.inventory.list_objects import PAGES_BEFORE_CUT, BucketListing
from lakeshare_pipelines.backup.inventory.reports import ReportDestination, generate_report, read_listed_rows
from lakeshare_pipelines.backup.inventory.sources import list_source
from lakeshare_pipelines.backup.model import LISTING
from lakeshare_pipelines.backup.points import Workspace
from lakeshare_pipelines.backup.stores import StoreAddress, make_s3_client, open_store
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.backup_batch import keys_of
from tests.builders.backup_keys import put_keys
from tests.builders.backup_listings import read_reports
from tests.integration.ministack import running_ministack
from tests.integration.s3_server import REGION, S3Server

AWKWARD = ("a b+c%20&'\"é🌊.txt", "day=2026-01-01/x", "line\nbreak", "q<>?#.txt", "z~*_-.y", "folder/")
FLAT = tuple(f"wh/flat/part-{number:05}-{number * 7919 % 997:03x}.parquet" for number in range(450))
# So many folders that Spark has ranges for its tasks. Their names begin alike: stores that sort folder by folder and
# by whole keys differ on them.
ALIKE = tuple(
    f"wh/{table}/day=2026-01-{day:02}/part-{number}.parquet"
    for table in ("orders", "orders-v2", "orders.old", "orders_2")
    for day in range(1, 29)
    for number in range(2)
)
KEYS = (*AWKWARD, *FLAT, *ALIKE)
OVERWRITTEN, DELETED, MADE_LATER = ALIKE[::7], ALIKE[3::11], ("wh/orders/new", "wh/orders-v2/new")
PAGE_KEYS = 50


@pytest.fixture(autouse=True)
def _as_admin(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)


@pytest.fixture
def lake_with_keys(lake: Lake, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Workers of Spark have the environment that the driver's context gives them."""
    for name, value in keys_of(s3.admin).items():
        monkeypatch.setitem(lake.spark.sparkContext.environment, name, value)
    return lake


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> StoreAddress:
    """Objects as of `KEYS`; then, with versions, some written again, some deleted, some new."""
    address = StoreAddress(url="s3://lake", endpoint=s3.endpoint, region=REGION)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
        environment.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
        client = make_s3_client(address)
        client.create_bucket(Bucket="lake")
        client.create_bucket(Bucket="reports")
        put_keys(address, KEYS)
        client.put_bucket_versioning(Bucket="lake", VersioningConfiguration={"Status": "Enabled"})
        put_keys(address, (*OVERWRITTEN, *MADE_LATER))
        for key in DELETED:
            client.delete_object(Bucket="lake", Key=key)
    return address


def listed(
    address: StoreAddress, in_flight: int, *, versions: bool, wanted: int = 1
) -> list[dict[str, object]]:
    """The rows of small pages, so that ranges are cut."""

    async def rows() -> list[dict[str, object]]:
        async with AsyncS3(address, in_flight) as client:
            listing = BucketListing(client, in_flight=in_flight, versions=versions, page_keys=PAGE_KEYS)
            first, beside = await listing.ranges(address.prefix, wanted)
            found = [*beside, *[page async for page in listing.rows(first)]]
            return pa.Table.from_batches(found, LISTING).to_pylist()

    return asyncio.run(rows())


CURRENT = {*KEYS, *MADE_LATER} - set(DELETED)


@pytest.mark.parametrize(("in_flight", "wanted"), [(1, 1), (1, 8), (2, 100), (16, 1), (16, 8)])
def test_every_current_object_is_listed_once(bucket: StoreAddress, in_flight: int, wanted: int) -> None:
    found = Counter(row["key"] for row in listed(bucket, in_flight, versions=False, wanted=wanted))
    assert found == Counter(CURRENT)


@pytest.mark.parametrize(("in_flight", "wanted"), [(1, 1), (16, 8)])
def test_every_version_and_marker_is_listed_once(bucket: StoreAddress, in_flight: int, wanted: int) -> None:
    rows = listed(bucket, in_flight, versions=True, wanted=wanted)
    objects = Counter(row["key"] for row in rows if not row["is_delete_marker"])
    assert objects == Counter((*KEYS, *OVERWRITTEN, *MADE_LATER))
    assert Counter(row["key"] for row in rows if row["is_delete_marker"]) == Counter(DELETED)
    assert Counter(row["key"] for row in rows if row["is_latest"]) == Counter({*KEYS, *MADE_LATER})
    ids = [(row["key"], row["version_id"]) for row in rows]
    assert len(set(ids)) == len(ids)
    assert all(row["version_id"] is None for row in rows if row["key"] in FLAT)


def test_a_flat_folder_is_shared_among_idle_workers(
    bucket: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts, is_cut, pages, page_of = [], asyncio.Event(), itertools.count(1), BucketListing.page
    find_cut = list_objects.find_cut

    async def cut_of(*arguments: Any, **options: Any) -> str | None:
        cuts.append(await find_cut(*arguments, **options))
        is_cut.set()
        return cuts[-1]

    async def page(listing: BucketListing, *place: Any, **more: str) -> Any:
        if not more and next(pages) > PAGES_BEFORE_CUT:
            # So few keys are listed before anybody has found where to cut them.
            await is_cut.wait()
        return await page_of(listing, *place, **more)

    monkeypatch.setattr(BucketListing, "page", page)
    monkeypatch.setattr("lakeshare_pipelines.backup.inventory.list_objects.find_cut", cut_of)
    flat = bucket.model_copy(update={"url": "s3://lake/wh/flat"})
    found = Counter(row["key"] for row in listed(flat, 8, versions=False))
    assert found == Counter(FLAT)
    assert [cut for cut in cuts if cut is not None]


def test_a_cut_that_is_looked_for_longer_than_its_range_is_listed_holds_nobody_up(
    bucket: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = []

    async def endless(*_: Any, **__: Any) -> str | None:
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            given_up.append(True)
            raise

    monkeypatch.setattr("lakeshare_pipelines.backup.inventory.list_objects.find_cut", endless)
    flat = bucket.model_copy(update={"url": "s3://lake/wh/flat"})
    assert Counter(row["key"] for row in listed(flat, 8, versions=False)) == Counter(FLAT)
    assert given_up


def test_rows_say_what_boto3_says(bucket: StoreAddress) -> None:
    told = {one.key: one for one in open_store(bucket).list()}
    for row in listed(bucket, 4, versions=False):
        one = told.pop(str(row["key"]))
        assert (row["size_bytes"], row["etag"], row["storage_class"]) == (
            one.size_bytes,
            one.etag,
            one.storage_class,
        )
        assert row["last_modified"] == one.last_modified
    assert not told


def test_a_prefix_is_all_that_is_listed(bucket: StoreAddress) -> None:
    part = bucket.model_copy(update={"url": "s3://lake/wh/orders"})
    found = {row["key"] for row in listed(part, 4, versions=False, wanted=8)}
    assert found == {key for key in CURRENT if key.startswith("wh/orders/")}


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_report_of_all_versions_tells_what_the_bucket_has(
    bucket: StoreAddress, file_format: ReportFormat
) -> None:
    destination = bucket.model_copy(update={"url": "s3://reports/inventory"})
    place = ReportDestination(
        bucket, destination, file_format, versions=True, configuration=file_format.lower()
    )
    found = generate_report(place)
    store = open_store(destination.at("reports"))
    [report] = read_reports(store, f"s3://reports/inventory/lake/{file_format.lower()}")
    assert (report.source_bucket, report.has_versions, report.location) == ("lake", True, found.location)
    batches = [batch for file in report.files for batch in read_listed_rows(store, report, file)]
    told = pa.Table.from_batches(batches, LISTING).to_pylist()
    assert sorted(told, key=str) == sorted(listed(bucket, 4, versions=True, wanted=8), key=str)


@pytest.mark.parametrize(
    ("url", "user", "sentence"),
    [("s3://nowhere", "admin", "there is no such bucket"), ("s3://lake", "stranger", "access is denied")],
)
def test_a_refusal_is_told_and_leaves_no_listing(
    s3: S3Server,
    bucket: StoreAddress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    user: str,
    sentence: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", getattr(s3, user).access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", getattr(s3, user).secret_key)
    workspace = Workspace(tmp_path)
    with pytest.raises(BackupError, match=sentence):
        list_source(_a_backup(bucket.model_copy(update={"url": url})), workspace)
    assert not workspace.rows("listing").exists()


def test_spark_writes_a_report(bucket: StoreAddress, lake_with_keys: Lake, tmp_path: Path) -> None:
    destination = StoreAddress(url=str(tmp_path / "reports"))
    found = generate_report(ReportDestination(bucket, destination), spark=lambda: lake_with_keys.spark)
    location = str(tmp_path / "reports/lake/lakeshare")
    store = open_store(StoreAddress(url=location))
    [report] = read_reports(store, location)
    assert len(report.files) == found.files
    assert found.files > 1
    batches = [batch for file in report.files for batch in read_listed_rows(store, report, file)]
    assert Counter(key.as_py() for batch in batches for key in batch["key"]) == Counter(CURRENT)


def test_a_refusal_at_spark_is_told(bucket: StoreAddress, lake_with_keys: Lake, tmp_path: Path) -> None:
    destination = StoreAddress(url="s3://nowhere/reports", endpoint=bucket.endpoint, region=REGION)
    with pytest.raises(BackupError, match="there is no such bucket"):
        generate_report(ReportDestination(bucket, destination), spark=lambda: lake_with_keys.spark)


def test_a_store_that_sorts_whole_keys_and_takes_any_is_listed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = (*KEYS, "a//b", "/lead", "back\\slash", "wh/orders", "tab\tand\x7f", "..dots/..a")
    with running_ministack(tmp_path) as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.user.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.user.secret_key)
        address = StoreAddress(url="s3://lake", endpoint=server.endpoint, region=REGION)
        client = make_s3_client(address)
        client.create_bucket(Bucket="lake")
        client.put_bucket_versioning(Bucket="lake", VersioningConfiguration={"Status": "Enabled"})
        put_keys(address, (*keys, *OVERWRITTEN))
        for in_flight, wanted in ((1, 1), (16, 8)):
            current = listed(address, in_flight, versions=False, wanted=wanted)
            assert Counter(row["key"] for row in current) == Counter(keys)
            versions = listed(address, in_flight, versions=True, wanted=wanted)
            assert Counter(row["key"] for row in versions) == Counter((*keys, *OVERWRITTEN))


def _a_backup(source: StoreAddress, *, versions: bool = False) -> Backup:
    return Backup(
        name="lake",
        source=source,
        target=StoreAddress(url="s3://copies", endpoint=source.endpoint, region=REGION),
        listing=ListingSource(versions=versions),
        engine="spark",
    )
