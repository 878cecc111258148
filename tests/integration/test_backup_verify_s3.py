"""On a real S3 server: copies are proved in place, and what vanished is healed from older versions of the source."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import POINT_COPIES, TableProof, read_table
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.scrub import scrub
from lakeshare_pipelines.backup.stores import (
    StoreAddress,
    make_file_properties,
    make_storage_options,
    open_store,
)
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_lakes import Lake, listed_as
from tests.builders.lake_tables import IcebergTable, some_rows
from tests.integration.s3_server import REGION, S3Server

# The times of objects are those of the clock: all of them are before this day ends.
DAY, NEXT_DAY = "2099-12-30", "2099-12-31"
ORDERS = "sales/orders"
ROWS = some_rows(days=1)


@pytest.fixture(autouse=True)
def _keys(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
    monkeypatch.setenv("AWS_REGION", REGION)


@pytest.fixture
def client(s3: S3Server) -> Any:
    return s3.client()


@pytest.fixture
def lake(s3: S3Server, client: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """A versioned bucket with a Delta table of three commits of two rows, and an empty bucket for copies of it."""
    name = f"{abs(hash(request.node.name)) % 10**8}"
    addresses = {}
    for role in ("source", "target"):
        client.create_bucket(Bucket=f"{role}-{name}")
        versioning = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=f"{role}-{name}", VersioningConfiguration=versioning)
        addresses[role] = StoreAddress(url=f"s3://{role}-{name}", endpoint=s3.endpoint, region=REGION)
    made = Lake(tmp_path, declared=Backup.model_validate({"name": "lake", **addresses}))
    for number in range(3):
        append(made, number)
    return made


def append(lake: Lake, number: int) -> None:
    source = lake.backup.source
    rows = pa.table({"n": [number, number + 1]})
    options = make_storage_options(source) | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    write_deltalake(source.location(ORDERS), rows, mode="append", storage_options=options)


def vanish(lake: Lake, client: Any, keys: Sequence[str]) -> None:
    """Delete the objects as a vacuum does: of a bucket with versions an older one stays."""
    for key in keys:
        client.delete_object(Bucket=lake.backup.source.bucket, Key=key)


def newest_data(lake: Lake) -> str:
    """The key of the newest data file."""
    data = [one for one in lake.listing() if one.key.endswith(".parquet") and "_delta_log" not in one.key]
    return max(data, key=lambda one: one.last_modified).key


def rows_of(lake: Lake, proof: TableProof) -> int:
    """How many rows are in the copy at the version that is told."""
    target = lake.backup.target
    table = DeltaTable(
        target.location(proof.table.stored_root),
        version=proof.version,
        storage_options=make_storage_options(target),
    )
    return table.to_pyarrow_dataset().count_rows()


def test_a_copy_is_proved_in_place_with_equal_etags(lake: Lake) -> None:
    proved = lake.made(DAY, lake.listing())
    (proof,) = proved.tables
    assert (proved.status, proof.status, proof.version, proof.rows) == ("verified", "verified", 2, 6)
    assert rows_of(lake, proof) == 6
    held = read_table(lake.workspace(DAY).rows("held"), POINT_COPIES)
    assert held["level"].to_pylist() == [2] * held.num_rows
    assert all(held["stored_version_id"].to_pylist())


def test_what_was_deleted_is_healed_from_an_older_version(lake: Lake, client: Any) -> None:
    key = newest_data(lake)
    (proof,) = lake.made(DAY, lake.listing(), lambda: vanish(lake, client, [key])).tables
    assert (proof.status, proof.version, proof.rows, proof.healed) == ("verified", 2, 6, (key,))
    assert rows_of(lake, proof) == 6


def test_what_was_overwritten_is_healed_from_the_version_that_was_listed(lake: Lake, client: Any) -> None:
    key = newest_data(lake)

    def overwrite() -> None:
        client.put_object(Bucket=lake.backup.source.bucket, Key=key, Body=b"?")

    (proof,) = lake.made(DAY, lake.listing(), overwrite).tables
    assert (proof.status, proof.rows, proof.healed) == ("verified", 6, (key,))


def test_a_copy_that_was_overwritten_behind_its_back_is_healed_the_next_day(lake: Lake, client: Any) -> None:
    key = newest_data(lake)
    size_bytes = next(one.size_bytes for one in lake.listing() if one.key == key)
    lake.made(DAY, lake.listing())
    client.put_object(Bucket=lake.backup.target.bucket, Key=f"objects/{key}", Body=bytes(size_bytes or 0))
    append(lake, 3)
    (proof,) = lake.made(NEXT_DAY, lake.listing()).tables
    assert (proof.status, proof.version, proof.rows, proof.healed) == ("verified", 3, 8, (key,))


def test_an_iceberg_table_opens_on_its_mount(lake: Lake, s3: S3Server) -> None:
    source = lake.backup.source
    table = IcebergTable(
        source.location("ice"), ROWS.schema, partitioned_by=(), **make_file_properties(source)
    )
    table.append(ROWS)
    table.append(ROWS)
    lost = [one.key for one in lake.listing() if one.key.startswith("ice/") and one.key.endswith(".parquet")][
        :1
    ]
    proof = next(
        one for one in lake.made(DAY, listed_as(lake.listing(), lost)).tables if one.table.format == "iceberg"
    )
    assert (proof.status, proof.rows, proof.healed) == ("verified", 8, tuple(lost))
    assert proof.mount is not None
    mounted = StaticTable.from_metadata(proof.mount, make_file_properties(lake.backup.target))
    paths = [task.file.file_path for task in mounted.scan().plan_files()]
    assert all(path.startswith(lake.backup.target.location("objects/")) for path in paths)


def test_what_nobody_may_read_is_told_and_not_verified(
    lake: Lake, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever copies may list the source and nothing else."""
    credentials = tmp_path / "credentials"
    keys = (s3.lister.access_key, s3.lister.secret_key)
    credentials.write_text("[lister]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(*keys))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    listing = lake.listing()
    backup = lake.backup
    # By another name it is another store, so that copies are read with the source's own keys.
    endpoint = s3.endpoint.replace("localhost", "127.0.0.1")
    source = backup.source.model_copy(update={"profile": "lister", "endpoint": endpoint})
    proved = Lake(lake.base, declared=backup.model_copy(update={"source": source})).made(DAY, listing)
    (proof,) = proved.tables
    assert (proved.status, proof.status, proof.version) == ("degraded", "degraded", None)
    assert any(reason.startswith("The source did not answer: ") for reason in proved.reasons)
    assert proved.objects == 0


def test_a_scrub_notices_a_copy_that_was_overwritten_and_the_points_learn_of_its_new_version(
    lake: Lake, client: Any
) -> None:
    """The copy was made by the store, so that its ETag is all that is known of its content."""
    proved = lake.made(DAY, lake.listing())
    assert proved.status == "verified"
    points, target = Points(lake.backup), open_store(lake.backup.target)
    key = f"objects/{newest_data(lake)}"
    (row,) = [
        row
        for batch in points.read_copies(points.get(DAY))
        for row in batch.to_pylist()
        if row["stored_key"] == key
    ]
    content = target.read(key)
    client.delete_object(Bucket=target.address.bucket, Key=key, VersionId=row["stored_version_id"])
    target.put(key, bytes(len(content)))
    settings = LakeSettings(_env_file=None, state_dir=lake.base / "state")
    record = scrub(lake.backup, points, settings, dt.datetime.now(dt.UTC), everything=True)
    assert (record.passed, len(record.repaired), record.downgraded) == (True, 1, ())
    assert target.read(key) == content
    again = scrub(lake.backup, points, settings, dt.datetime.now(dt.UTC), everything=True)
    assert (again.passed, again.repaired, again.read) == (True, (), record.read)
    place = StoreAddress(url=str(lake.base / "restored"))
    assert PointRestore(settings, lake.backup, points.get(DAY)).elsewhere(ORDERS, place).rows == 6
