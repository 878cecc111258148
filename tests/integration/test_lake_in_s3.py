"""A lake whose warehouse is a bucket: changes, discarding, and a store that refuses or is down.

That sets are published there: test_publication.py.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import delta_sharing
import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli import main
from lakeshare_pipelines.cli.doctor import check_folders
from lakeshare_pipelines.errors import WarehouseError
from lakeshare_pipelines.share.changes import restore_changes
from lakeshare_pipelines.share.publication import drop_abandoned, rollback
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.iceberg import IcebergStaging
from lakeshare_pipelines.wap.stage import drop_staging_location, list_staging_locations, stage
from lakeshare_pipelines.wap.staged import Lake, read_quarantine
from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.errors import LakeshareError
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.delta.changes import Segment
from lakeshare_server.tables.iceberg.changes import change_files_of
from lakeshare_server.tables.index import index_path
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.canonical import same_rows
from tests.builders.protocol_reader import refusal
from tests.builders.recipients import Recipients
from tests.builders.sets import a_contract, an_order, green, orders
from tests.builders.sharing import Provider, a_server
from tests.builders.store_gate import StoreGate, store_gate
from tests.integration.conftest import a_lake_at, a_lake_with
from tests.integration.s3_server import S3Server
from tests.integration.test_publication import MONDAY, PublishedSet, rows_of
from tests.integration.test_published_iceberg_changes import Killed, Walk, corrected


def keys_of(s3: S3Server, location: str) -> list[str]:
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


@pytest.fixture
def published_set(s3_lake, catalog, contract) -> PublishedSet:
    return PublishedSet(s3_lake, catalog, contract)


def test_changes_lead_on_for_a_server_on_another_host_and_orphans_are_dropped(
    s3_lake, catalog, s3, tmp_path, monkeypatch, caplog
):
    walk = Walk(s3_lake, catalog, a_contract(tmp_path / "contracts", "changed_in_s3", "iceberg"))
    walk.run(MONDAY, orders(MONDAY, 3))
    walk.run(MONDAY, corrected(MONDAY, 0))
    rollback(s3_lake, catalog, walk.contract, walk.contract.table("orders"), 0)
    walk.read[walk.tables[0]].append(walk.read[walk.tables[0]][0])
    walk.other_host = tmp_path / "host 2"
    walk.require_changes_lead_on("orders")
    another_host_has_the_indexes_of_the_store(walk)
    lost_changes_are_recorded_again(walk, monkeypatch)
    before = walk.folders()

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(IcebergStaging, "land", killed)
        walk.run_until_killed(MONDAY, corrected(MONDAY, 1))
    [orphan] = set(walk.folders()) - set(before)
    dropped = drop_abandoned(s3_lake, catalog, walk.contract)
    assert orphan in dropped
    assert set(walk.folders()) == set(before) - set(dropped)
    assert len(walk.folders()) == 2, "the first recording of publication 1 stays"
    walk.require_changes_lead_on("orders")
    changes_of_a_state_that_is_gone_stay_lost(walk, caplog)


def another_host_has_the_indexes_of_the_store(walk: Walk) -> None:
    """They are downloaded into its bounded cache; lost or damaged ones are built from pinned snapshots."""
    stores, shared = walk.lake.stores, f"{walk.lake.settings.shared_root}/index"
    kept = {found.location.rpartition("/")[2].partition(".")[0] for found in stores.list(shared)}
    latest = walk.ledger.latest(walk.tables[0])
    cached = {sha256(path.read_bytes()).hexdigest() for path in indexes_of(walk.other_host)}
    assert {latest.index_digest, latest.changes_digest} <= cached <= kept
    contents = {digest: stores.read(f"{shared}/{digest}.arrow") for digest in kept}
    for number, digest in enumerate(sorted(kept)):
        location = f"{shared}/{digest}.arrow"
        stores.write(location, b"damaged") if number % 2 else stores.delete(location)
    walk.other_host = walk.other_host.with_name("host 3")
    with walk.reader("orders") as reader:
        same_rows(reader.rows(reader.snapshot()), walk.read[walk.tables[0]][-1])
    for digest, content in contents.items():
        stores.write(f"{shared}/{digest}.arrow", content)


def lost_changes_are_recorded_again(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three losses, the first is one of the store only; the others need the rows of both states."""
    stores, shared = walk.lake.stores, f"{walk.lake.settings.shared_root}/index"
    [first, corrected, rolled_back] = walk.ledger.history(walk.tables[0])[::-1]
    stores.delete(f"{shared}/{first.changes_digest}.arrow")
    own = index_path(walk.lake.settings.index_dir, corrected.changes_digest)
    stores.write(f"{shared}/{own.name}", bytes(own.stat().st_size))
    own.unlink()
    segment = Segment(index_path(walk.lake.settings.index_dir, rolled_back.changes_digest))
    for path in change_files_of(segment, rolled_back.version):
        stores.delete(path)
    walk.other_host = walk.other_host.with_name("host 4")
    with walk.reader("orders") as reader:
        for version, reason in ((1, "its index of changes is lost"), (2, "its change files are lost")):
            asked = f"{reader.path}/changes?startingVersion={version}&endingVersion={version}"
            assert reason in refusal(reader.client.get(asked, headers=reader.headers()), 400)["message"]
        again = "recorded the changes of publication {} again\n"
        assert repaired_by_command(walk, monkeypatch) == "".join(
            f"{walk.tables[0]}: {again.format(version)}" for version in (1, 2)
        )
    walk.require_changes_lead_on("orders")
    assert stores.head(f"{shared}/{first.changes_digest}.arrow") is not None
    assert restore_changes(walk.lake, walk.catalog, walk.contract) == []


def repaired_by_command(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(main, "_open_lake_with_spark", lambda: nullcontext(walk.lake))
        patched.setattr(main, "_open_catalog", lambda: walk.catalog)
        patched.setattr(main, "list_contracts", lambda: (walk.contract,))
        ended = CliRunner().invoke(main.app, ["repair"])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def changes_of_a_state_that_is_gone_stay_lost(walk: Walk, caplog: pytest.LogCaptureFixture) -> None:
    """The others are recorded again, and every publication keeps its row."""
    stores, settings = walk.lake.stores, walk.lake.settings
    [first, corrected, rolled_back] = walk.ledger.history(walk.tables[0])[::-1]
    for row in (first, corrected, rolled_back):
        for digest in {row.index_digest, row.changes_digest}:
            index_path(settings.index_dir, digest).unlink(missing_ok=True)
    shutil.rmtree(settings.index_dir / "cache")
    stores.delete_folder(f"{settings.shared_root}/index")
    stores.delete(corrected.metadata_location)
    restored = restore_changes(walk.lake, walk.catalog, walk.contract)
    assert (first.table, first.version) in {(row.table, row.version) for row in restored}
    assert corrected.version not in {row.version for row in restored if row.table == corrected.table}
    assert f"the changes of {corrected.table} in publication {corrected.version} stay lost" in caplog.text
    assert walk.ledger.at(corrected.table, corrected.version) == corrected
    assert rolled_back.version not in {row.version for row in restored if row.table == rolled_back.table}


def indexes_of(host: Path) -> list[Path]:
    """The indexes on a host that publishes nothing; all are in its cache."""
    assert not list((host / "index").glob("*.arrow"))
    return sorted((host / "index" / "cache").glob("*.arrow"))


@pytest.mark.campaign
@pytest.mark.parametrize("contract", ["iceberg", "delta"] if IS_CAMPAIGN else ["delta"], indirect=True)
def test_discarding_leaves_no_object_and_rejected_rows_are_kept(published_set, s3, tmp_path):
    lake, contract = published_set.lake, published_set.contract
    published_set.deliver(MONDAY, [*orders(MONDAY, 2), an_order("no day", 7)])
    staged = stage(lake, contract, [MONDAY], str(uuid4()))
    [rejected] = read_quarantine(lake.settings, contract.name)
    assert "no day" in str(rejected["raw"])
    # A host of its own state folder knows the same record.
    elsewhere = Lake(lake.settings.model_copy(update={"state_dir": tmp_path / "host 2"}), lambda: lake.spark)
    elsewhere.__dict__["endpoint"] = lake.endpoint
    [found] = list_staging_locations(elsewhere, [contract])
    assert (found.ref, found.state) == (staged.ref, "staged")
    drop_staging_location(elsewhere, contract, staged.ref)
    assert keys_of(s3, f"{lake.settings.shared_root}/runs/{staged.ref}/") == []
    if contract.tables[0].format == "delta":
        assert keys_of(s3, f"{lake.settings.lake_root}/{contract.name}/") == []


def test_the_doctor_names_a_warehouse_that_cannot_be_written(s3_lake, s3, monkeypatch):
    [fine] = [found for found in check_folders(s3_lake.settings) if found.name == "warehouse"]
    assert fine.ok, fine
    assert fine.detail.startswith(f"{s3_lake.settings.lake_root} can be read, written, listed and deleted")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.lister.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.lister.secret_key)
    [refused] = [found for found in check_folders(s3_lake.settings) if found.name == "warehouse"]
    assert not refused.ok
    assert "refuses to write" in refused.detail
    assert "s3:PutObject" in refused.remedy


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
@pytest.mark.usefixtures("s3_keys")
def test_a_contract_may_name_another_warehouse_than_that_of_the_settings(
    table_format, s3, lake, catalog, tmp_path
):
    """The settings have a folder, the contract a bucket: there are its tables, and nothing else."""
    bucket = f"named-{uuid4().hex[:8]}"
    s3.client().create_bucket(Bucket=bucket)
    server = f"type: s3, location: 's3://{bucket}/of sales', endpointUrl: '{s3.endpoint}'"
    contracts = tmp_path / "contracts"
    contract = a_contract(
        contracts, f"elsewhere_{table_format}", table_format, **{"type: local, path: warehouse": server}
    )
    stores = {"s3_endpoint": s3.endpoint, "s3_region": "us-east-1"}
    both = a_lake_with(lake, warehouse=lake.settings.lake_root, contracts_dir=contracts, **stores)
    published_set = PublishedSet(both, catalog, contract)
    for rows in (3, 1):
        published_set.deliver(MONDAY, orders(MONDAY, rows))
        published = published_set.publish(*published_set.staged_and_green(MONDAY))
    assert [(row.version, row.rows) for row in published] == [(1, 1), (1, 1)]
    published_set.require_spark_reads_the_same()
    kept = {key.partition(f"/{contract.name}/")[0] for key in keys_of(s3, f"s3://{bucket}/")}
    assert kept == {"of sales"}
    assert not (Path(lake.settings.lake_root) / contract.name).exists()
    recipients_read(published_set, tmp_path / "server", stores)
    elsewhere = both.settings.model_copy(update={"s3_endpoint": "http://store.corp:9000"})
    with pytest.raises(
        WarehouseError, match=r"has the endpointUrl .*LAKESHARE_S3_ENDPOINT is http://store.corp:9000"
    ):
        stage(Lake(elsewhere, lambda: both.spark), contract, [MONDAY], "run")


def recipients_read(published_set: PublishedSet, state_dir: Path, stores: dict[str, str]) -> None:
    name, settings = published_set.contract.name, published_set.lake.settings
    apply_shares(
        published_set.catalog, [DeclaredShare(name, (SharedTable("shop", "orders", f"{name}.orders"),))]
    )
    _, token = Recipients(published_set.catalog).add(f"{name}-reader", (name,))
    sharing = ServerSettings(
        _env_file=None, state_dir=state_dir, database_url=settings.catalog_url, port=0, **stores
    )
    with a_server(Provider(sharing, published_set.catalog)) as server:
        frame = delta_sharing.load_as_pandas(f"{server.profile(token)}#{name}.shop.orders")
        assert rows_of(frame) == published_set.rows()


@pytest.fixture
def gate(s3: S3Server) -> Iterator[StoreGate]:
    with store_gate(int(s3.endpoint.rpartition(":")[2])) as gate:
        yield gate


@pytest.mark.usefixtures("s3_keys")
def test_a_store_that_is_down_at_any_step_publishes_nothing_and_one_that_asks_to_slow_down_is_asked_again(
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
    first = a_run()
    first.delivered[MONDAY] = orders(MONDAY, 2)
    staged, verdicts = first.staged_and_green(MONDAY)
    fails(lambda: audit_and_save(a_run().lake, contract, staged))
    fails(lambda: a_run().publish(staged, verdicts))
    published = a_run().publish(staged, verdicts)
    assert [(p.version, p.rows) for p in published] == [(0, 2), (0, 1)]
    a_run().require_spark_reads_the_same()
    gate.refuses_every = 20
    slow = a_run()
    slow.deliver(MONDAY, orders(MONDAY, 3))
    staged = stage(slow.lake, contract, [MONDAY], "run2")
    published = slow.publish(staged, green(contract, staged))
    assert [(p.version, p.rows) for p in published] == [(1, 3), (1, 1)]
    slow.require_spark_reads_the_same()
    assert gate.refused >= 3
