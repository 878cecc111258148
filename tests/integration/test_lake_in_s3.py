"""A lake whose warehouse is a bucket: the same publications as on the disk, which recipients read from the store.

The steps and their assertions are those of test_publication.py and test_published_iceberg_changes.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import delta_sharing
import pytest

from lakeshare_pipelines.cli.doctor import check_folders
from lakeshare_pipelines.share.publication import drop_abandoned, rollback
from lakeshare_pipelines.spark.stores import make_hadoop_conf
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.iceberg import IcebergStaging
from lakeshare_pipelines.wap.stage import drop_staging_location, stage
from lakeshare_pipelines.wap.staged import Lake, read_quarantine
from lakeshare_server.catalog import DeclaredShare, Recipients, SharedTable, apply_shares
from lakeshare_server.errors import LakeshareError
from lakeshare_server.settings import ServerSettings
from tests.builders.sets import a_contract, an_order, orders
from tests.builders.sharing import Provider, a_server
from tests.builders.store_gate import StoreGate, store_gate
from tests.integration.s3_server import REGION, S3Server
from tests.integration.test_publication import (
    MONDAY,
    PublishedSet,
    a_corrected_delivery_replaces_its_partition_only,
    a_red_audit_changes_nothing_and_masks_personal_columns,
    a_repaired_staged_set_is_audited_again_and_published,
    an_abandoned_staged_set_is_dropped_and_nothing_else,
    every_table_gets_its_first_number_once,
    rows_written_after_the_audit_are_not_published,
)
from tests.integration.test_published_iceberg_changes import Killed, Walk, corrected

BUCKET = f"lake-{uuid4().hex[:8]}"
"""A name of its own: a Spark driver keeps how it reached a bucket."""


@pytest.fixture(scope="module")
def s3_keys(s3: S3Server, lake: Lake) -> Iterator[None]:
    """The keys of the store in the environment, and in the driver as its chain of credentials finds them."""
    java = lake.spark.sparkContext._jvm.java.lang.System
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
        java.setProperty("aws.accessKeyId", s3.admin.access_key)
        java.setProperty("aws.secretAccessKey", s3.admin.secret_key)
        yield
        java.clearProperty("aws.accessKeyId")
        java.clearProperty("aws.secretAccessKey")


def a_lake_at(lake: Lake, endpoint: str, location: str, **more: object) -> Lake:
    """A lake of the tests' Spark and Nessie with its tables at a location, in a session with its own catalogs."""
    places = {"warehouse": location, "s3_endpoint": endpoint, "s3_region": REGION, **more}
    settings, session = lake.settings.model_copy(update=places), lake.spark.newSession()
    there = Lake(settings, lambda: session)
    there.__dict__["endpoint"] = lake.endpoint
    for key, value in make_hadoop_conf(there.stores, location).items():
        session.conf.set(key, value)
    return there


@pytest.fixture(scope="module")
def s3_lake(s3: S3Server, lake: Lake, s3_keys: None) -> Lake:
    s3.client().create_bucket(Bucket=BUCKET)
    return a_lake_at(lake, s3.endpoint, f"s3://{BUCKET}/a lake")


@pytest.fixture
def published_set(s3_lake, catalog, contract) -> PublishedSet:
    return PublishedSet(s3_lake, catalog, contract)


def keys_of(s3: S3Server, prefix: str) -> list[str]:
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


def test_a_set_is_published_in_s3_as_on_the_disk(published_set, s3, tmp_path):
    every_table_gets_its_first_number_once(published_set)
    staged = a_red_audit_changes_nothing_and_masks_personal_columns(published_set)
    a_repaired_staged_set_is_audited_again_and_published(published_set, staged)
    an_abandoned_staged_set_is_dropped_and_nothing_else(published_set)
    a_corrected_delivery_replaces_its_partition_only(published_set)
    rows_written_after_the_audit_are_not_published(published_set)
    published_set.require_spark_reads_the_same()
    recipients_read_what_spark_reads(published_set, tmp_path)
    assert not Path(
        published_set.lake.settings.state_dir / "warehouse" / published_set.contract.name
    ).exists()


def recipients_read_what_spark_reads(published_set: PublishedSet, folder: Path) -> None:
    settings, name = published_set.lake.settings, published_set.contract.name
    stores = {"s3_endpoint": settings.s3_endpoint, "s3_region": settings.s3_region}
    sharing = ServerSettings(_env_file=None, state_dir=settings.state_dir, port=0, **stores)
    provider = Provider(sharing, published_set.catalog)
    shared = SharedTable("shop", "orders", f"{name}.orders")
    apply_shares(provider.catalog, [DeclaredShare(f"{name}_s3", (shared,))])
    _, token = Recipients(provider.catalog).add(f"{name}-reader", (f"{name}_s3",))
    with a_server(provider) as server:
        frame = delta_sharing.load_as_pandas(f"{server.profile(token)}#{name}_s3.shop.orders")
    rows = [tuple(row) for row in frame.astype({"day": str}).itertuples(index=False)]
    assert sorted(rows) == published_set.rows()


def test_changes_lead_from_publication_to_publication_and_orphans_are_dropped(
    s3_lake, catalog, s3, tmp_path, monkeypatch
):
    walk = Walk(s3_lake, catalog, a_contract(tmp_path / "contracts", "changed_in_s3", "iceberg"))
    walk.run(MONDAY, orders(MONDAY, 3))
    walk.run(MONDAY, corrected(MONDAY, 0))
    rollback(s3_lake, catalog, walk.contract, walk.contract.table("orders"), 0)
    walk.read[walk.tables[0]].append(walk.read[walk.tables[0]][0])
    walk.require_changes_lead_on("orders")
    before = walk.folders()

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(IcebergStaging, "land", killed)
        walk.run_until_killed(MONDAY, corrected(MONDAY, 1))
    [orphan] = set(walk.folders()) - set(before)
    assert orphan in drop_abandoned(s3_lake, catalog, walk.contract)
    assert walk.folders() == before
    walk.require_changes_lead_on("orders")


def test_discarding_leaves_no_object_and_rejected_rows_are_kept(published_set, s3):
    lake, contract = published_set.lake, published_set.contract
    published_set.deliver(MONDAY, [*orders(MONDAY, 2), an_order("no day", 7)])
    staged = stage(lake, contract, [MONDAY], str(uuid4()))
    [rejected] = read_quarantine(lake.settings, contract.name)
    assert "no day" in str(rejected["raw"])
    drop_staging_location(lake, contract, staged.ref)
    if contract.tables[0].format == "delta":
        assert keys_of(s3, f"a lake/{contract.name}/") == []


def test_the_doctor_names_a_warehouse_that_cannot_be_written(s3_lake, s3, monkeypatch):
    [fine] = [found for found in check_folders(s3_lake.settings) if found.name == "warehouse"]
    assert fine.ok, fine
    assert fine.detail.startswith(f"s3://{BUCKET}/a lake can be read, written, listed and deleted")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.lister.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.lister.secret_key)
    [refused] = [found for found in check_folders(s3_lake.settings) if found.name == "warehouse"]
    assert not refused.ok
    assert "refuses to write" in refused.detail
    assert "s3:PutObject" in refused.remedy


@pytest.fixture
def gate(s3: S3Server) -> Iterator[StoreGate]:
    with store_gate(int(s3.endpoint.rpartition(":")[2])) as gate:
        yield gate


@pytest.mark.usefixtures("s3_keys")
def test_a_store_that_is_down_at_any_step_publishes_nothing_and_a_rerun_succeeds(
    s3, gate, lake, catalog, contract
):
    bucket = f"gated-{uuid4().hex[:8]}"
    s3.client().create_bucket(Bucket=bucket)
    behind = a_lake_at(lake, gate.endpoint, f"s3://{bucket}", outside_answer_s=2)

    def a_run() -> PublishedSet:
        """As a process of its own has it: without what another one has seen of the store."""
        again = Lake(behind.settings, lambda: behind.spark)
        again.__dict__["endpoint"] = behind.endpoint
        return PublishedSet(again, catalog, contract)

    def fails(step: Callable[[], object]) -> None:
        gate.close()
        with pytest.raises(LakeshareError, match=rf"s3://{bucket}.*does not answer"):
            step()
        gate.open()
        assert a_run().latest() == [None, None]

    a_run().deliver(MONDAY, orders(MONDAY, 2))
    fails(lambda: stage(a_run().lake, contract, [MONDAY], "run"))
    staged, verdicts = a_run().audited(MONDAY)
    fails(lambda: audit_and_save(a_run().lake, contract, staged))
    fails(lambda: a_run().publish(staged, verdicts))
    published = a_run().publish(staged, verdicts)
    assert [(p.version, p.rows) for p in published] == [(0, 2), (0, 1)]
    a_run().require_spark_reads_the_same()
