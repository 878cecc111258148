"""Tables of many files in a bucket are backed up by every engine, lost, and read again as they were.

Source and target are reached with two access keys. Killed at random points, a backup continues: no object is lost, and
none is copied twice beyond one batch. Tables have a twentieth of the files that they have in `make campaign`.
"""

import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.config import Backup, Batch, ListingSource
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points, wait_for_point_name
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.run import BackupRun, ensure_listing, ensure_plan, make_point
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import open_catalog
from tests.builders.backup_batch import ACCOUNT, ROLE, running_batch_server
from tests.builders.backup_inventory import InventoryReports, stored_in
from tests.builders.backup_processes import is_killed_after
from tests.builders.campaign import campaign_size
from tests.builders.small_batches import BATCH, SmallBatches
from tests.integration.s3_server import REGION, S3Server

ROOT, FILES_A_COMMIT, COMMITS = "sales/orders", campaign_size(in_ci=20, in_campaign=400), 3
LINES = "sales/lines"
MOST_KEYS = 1000  # of one request that deletes
IN_FLIGHT = 2
LISTED_BY = 80
"""A run makes at least so many requests before it has its plan."""


@dataclass(frozen=True)
class Kills:
    """How often a backup with an engine is killed, and after how many requests each time."""

    engine: str
    count: int
    requests: tuple[int, int]
    seed: int


LOCAL_KILLS = campaign_size(in_ci=3, in_campaign=20)
KILLS = [
    # A run makes 14 requests before its first copy; the last one still has something to copy.
    Kills("local", LOCAL_KILLS, (20, FILES_A_COMMIT * (COMMITS + 1) * 3 // (2 * LOCAL_KILLS)), seed=20),
    # A run makes 14 requests until its job is running.
    *(Kills("aws_batch", 5, (1, 14), seed) for seed in range(campaign_size(in_ci=1, in_campaign=4))),
]


@dataclass(frozen=True)
class Lake:
    """A bucket with a partitioned Delta and a partitioned Iceberg table, and the stand-in for batch jobs."""

    s3: S3Server
    batch: str
    folder: Path
    metadata_location: str

    @property
    def source(self) -> StoreAddress:
        return StoreAddress(url="s3://lake", endpoint=self.s3.endpoint, region=REGION, profile="lake")

    def backup(self, engine: str, target: str, **said: Any) -> Backup:
        """A backup into a new bucket that keeps every version of what is written."""
        client = self.s3.client()
        client.create_bucket(Bucket=target)
        client.put_bucket_versioning(Bucket=target, VersioningConfiguration={"Status": "Enabled"})
        return Backup.model_validate(
            {
                "name": "lake",
                "source": self.source,
                "target": StoreAddress(
                    url=f"s3://{target}", endpoint=self.s3.endpoint, region=REGION, profile="keeper"
                ),
                "listing": ListingSource(lag_days=0, wait_hours=0),
                "engine": engine,
                "batch": Batch(account=ACCOUNT, role_arn=ROLE, endpoint=self.batch),
                **said,
            }
        )

    def options(self) -> dict[str, str]:
        """How deltalake reaches the bucket."""
        return {
            "AWS_ENDPOINT_URL": self.s3.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.s3.admin.access_key,
            "AWS_SECRET_ACCESS_KEY": self.s3.admin.secret_key,
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        }

    def iceberg(self) -> dict[str, str]:
        """How pyiceberg does."""
        return {
            "s3.endpoint": self.s3.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": self.s3.admin.access_key,
            "s3.secret-access-key": self.s3.admin.secret_key,
        }

    def orders(self) -> pa.Table:
        """The Delta table's rows, in order."""
        table = DeltaTable(f"s3://lake/{ROOT}", storage_options=self.options())
        return table.to_pyarrow_table().sort_by("id").select(["id", "part"])

    def lines(self, location: str) -> pa.Table:
        """The Iceberg table's rows, in order."""
        found = StaticTable.from_metadata(location, self.iceberg())
        return found.scan().to_arrow().sort_by("id").select(["id", "part"])


@pytest.fixture(scope="module")
def sales(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        keys = folder / "credentials"
        keys.write_text(
            "".join(
                f"[{name}]\naws_access_key_id={user.access_key}\naws_secret_access_key={user.secret_key}\n"
                for name, user in (("lake", s3.admin), ("keeper", s3.keeper))
            )
        )
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        # The service works with the keys of whoever keeps the copies.
        with running_batch_server(replace(s3, admin=s3.keeper)) as batch:
            s3.client().create_bucket(Bucket="lake")
            yield Lake(s3, batch, folder, _tables(s3, folder))


def _tables(s3: S3Server, folder: Path) -> str:
    made = Lake(s3, "", folder, "")
    for commit in range(COMMITS):
        ids = range(commit * FILES_A_COMMIT, (commit + 1) * FILES_A_COMMIT)
        rows = pa.table({"id": ids, "part": [number % FILES_A_COMMIT for number in ids]})
        write_deltalake(
            f"s3://lake/{ROOT}", rows, mode="append", partition_by=["part"], storage_options=made.options()
        )
    catalog = SqlCatalog(
        "made", uri=f"sqlite:///{folder / 'iceberg.db'}", warehouse="s3://lake", **made.iceberg()
    )
    catalog.create_namespace("sales")
    rows = pa.table({"id": range(FILES_A_COMMIT), "part": range(FILES_A_COMMIT)})
    table = catalog.create_table("sales.lines", rows.schema, location=f"s3://lake/{LINES}")
    with table.update_spec() as spec:
        spec.add_identity("part")
    table.append(rows)
    return table.metadata_location


@pytest.fixture
def own(tmp_path: Path) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path / "state")


def _made(making: BackupRun) -> Point:
    return make_point(making, dt.datetime.now(dt.UTC), print, lambda _: None)


@pytest.mark.parametrize("engine", ["local", "spark", "aws_batch"])
def test_lost_tables_come_back_through_every_engine(
    sales: Lake,
    own: LakeSettings,
    engine: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spark() -> Any:
        session = request.getfixturevalue("lake").spark
        # Workers of Spark have the environment that the driver's context gives them.
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_EC2_METADATA_DISABLED"):
            monkeypatch.setitem(session.sparkContext.environment, name, os.environ[name])
        return session

    orders, lines = sales.orders(), sales.lines(sales.metadata_location)
    backup = sales.backup(engine, f"vault-{engine.replace('_', '-')}")
    day = wait_for_point_name()
    making = BackupRun(own, backup, day, "test", spark if engine == "spark" else None)
    point = _made(making)

    assert point.status == "verified", point.verification
    proofs = {proof.table.root: proof for proof in point.verification.tables}
    assert proofs[ROOT].rows == orders.num_rows
    assert proofs[LINES].rows == lines.num_rows

    client = sales.s3.client()
    _lose(client, "lake", ROOT)
    restored = PointRestore(own, backup, point).in_place(open_catalog(own.catalog_url), ROOT)
    assert restored.objects >= FILES_A_COMMIT * COMMITS
    assert sales.orders().equals(orders)

    to = StoreAddress(
        url=f"s3://lake/restored/{engine}", endpoint=sales.s3.endpoint, region=REGION, profile="keeper"
    )
    elsewhere = PointRestore(own, backup, point).elsewhere(LINES, to)
    assert elsewhere.location.startswith("s3://lake/restored/")
    assert sales.lines(elsewhere.location).equals(lines)


@pytest.mark.campaign
@pytest.mark.parametrize("kills", KILLS, ids=lambda kills: f"{kills.engine}-{kills.seed}")
def test_killed_at_random_points_nothing_is_lost_and_little_copied_twice(
    sales: Lake, own: LakeSettings, kills: Kills, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's driver, and its executors, are killed in test_backup_spark_copies.py."""
    monkeypatch.setattr("lakeshare_pipelines.backup.copy.local.LocalEngine", SmallBatches)
    chance, vault = random.Random(kills.seed), f"vault-killed-{kills.engine.replace('_', '-')}-{kills.seed}"
    backup = sales.backup(kills.engine, vault, in_flight=IN_FLIGHT)
    making = BackupRun(own, backup, wait_for_point_name(), "test")

    def work() -> None:
        _made(replace(making))

    again = 0
    for kill in range(kills.count):
        assert is_killed_after(work, chance.randint(*kills.requests if kill else (1, LISTED_BY)))
        # A run that was killed before it had its plan lists everything again.
        ensure_listing(making, dt.datetime.now(dt.UTC))
        ensure_plan(making)
        before, again = again, _copied_again(sales, vault)
        assert again - before <= BATCH + IN_FLIGHT
    point = _made(making)

    assert point.status == "verified"
    assert _copied_again(sales, vault) - again <= BATCH + IN_FLIGHT
    held = {key for batch in Points(backup).read_copies(point) for key in batch["stored_key"].to_pylist()}
    assert held <= set(_objects(sales.s3.client(), vault, "objects"))


def _copied_again(sales: Lake, vault: str) -> int:
    """How many objects were written though they were there: the target keeps every version."""
    pages = sales.s3.client().get_paginator("list_object_versions").paginate(Bucket=vault, Prefix="objects/")
    versions = Counter(one["Key"] for page in pages for one in page.get("Versions", ()))
    return sum(versions.values()) - len(versions)


@pytest.mark.parametrize(
    ("engine", "file_format", "versions"),
    [("aws_batch", "CSV", True), ("local", "ORC", True), ("aws_batch", "Parquet", False)],
)
def test_a_bucket_reported_as_aws_documents_is_backed_up(
    sales: Lake, own: LakeSettings, engine: str, file_format: str, versions: bool
) -> None:
    client, bucket = sales.s3.client(), f"reported-{file_format.lower()}"
    rows = _reported_table(sales, bucket)
    reports = InventoryReports(
        lambda key, content: client.put_object(Bucket="lake", Key=key, Body=content), bucket, "lake"
    )
    day = wait_for_point_name()
    reports.deliver(
        stored_in(client, bucket, versions=versions),
        file_format,
        scan=dt.datetime.now(dt.UTC),
        versions=versions,
        unknown=True,
    )
    listing = ListingSource(
        kind="s3_inventory", location=f"s3://lake/{reports.base}", store=sales.source, versions=versions
    )
    source = sales.source.model_copy(update={"url": f"s3://{bucket}"})
    backup = sales.backup(engine, f"vault-{bucket}", source=source, listing=listing)
    point = _made(BackupRun(own, backup, day, "test"))

    assert point.status == "verified", point.verification
    assert point.listing.kind == "s3_inventory"
    assert not point.listing.is_late
    [proof] = point.verification.tables
    assert proof.rows == rows
    kept = {key for batch in Points(backup).read_copies(point) for key in batch["key"].to_pylist()}
    assert kept == {one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]}


def _reported_table(sales: Lake, bucket: str) -> int:
    """A bucket that keeps versions, with a Delta table, an object that was overwritten and one that was deleted."""
    client = sales.s3.client()
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key, content in (
        ("notes/a b+c%20.txt", b"old"),
        ("notes/a b+c%20.txt", b"new"),
        ("notes/gone", b"x"),
    ):
        client.put_object(Bucket=bucket, Key=key, Body=content)
    client.delete_object(Bucket=bucket, Key="notes/gone")
    for commit in range(COMMITS):
        write_deltalake(
            f"s3://{bucket}/t=1/orders",
            pa.table({"id": [commit]}),
            mode="append",
            storage_options=sales.options(),
        )
    return COMMITS


def _objects(client: Any, bucket: str, prefix: str) -> Iterator[str]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        yield from (one["Key"] for one in page.get("Contents", ()))


def _lose(client: Any, bucket: str, prefix: str) -> None:
    keys = [{"Key": key} for key in _objects(client, bucket, prefix)]
    for start in range(0, len(keys), MOST_KEYS):
        client.delete_objects(Bucket=bucket, Delete={"Objects": keys[start : start + MOST_KEYS]})
    assert list(_objects(client, bucket, prefix)) == []
