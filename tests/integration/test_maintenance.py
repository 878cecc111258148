"""Maintenance: fewer files with the same rows under a new number, and no file goes that a kept number needs."""

import itertools
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import delta_sharing
import httpx
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from typer.testing import CliRunner, Result

from lakeshare_pipelines.backup.config import load_backups, make_embedded_backup
from lakeshare_pipelines.backup.points import Points, wait_for_point_name
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.run import BackupRun, make_point
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts import SetContract, Table, load_contract
from lakeshare_pipelines.contracts.model import Compaction, Maintenance
from lakeshare_pipelines.defs.maintenance import maintenance_definitions, maintenance_key
from lakeshare_pipelines.errors import Conflict, MaintenanceError, NoSuchPublication
from lakeshare_pipelines.maintenance.compaction import Compacted, compact, measure
from lakeshare_pipelines.maintenance.run import MaintenanceResult, format_plan, maintain, plan_maintenance
from lakeshare_pipelines.share.publication import repair, rollback
from lakeshare_pipelines.wap.stage import drop_staging_location
from lakeshare_pipelines.wap.staged import Staged, Verdicts
from lakeshare_server.catalog import Catalog, DeclaredShare, Ledger, Publication, SharedTable, apply_shares
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import normalise_location
from lakeshare_server.tables.delta.log import LOG, list_log
from lakeshare_server.tables.index import index_path
from tests.builders.campaign import IS_CAMPAIGN, campaign_size
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients
from tests.builders.sets import a_contract, green, orders, staged_without_reading
from tests.builders.sharing import Provider, a_server, lines
from tests.integration.test_publication import PublishedSet
from tests.integration.test_write_modes import read_actions

DAYS = [f"2024-01-0{day}" for day in range(1, 5)]
# Pytest has a conftest.py of its own, whose names would be these again.
NAMES = (f"maintained{number}" for number in itertools.count(1))
IN_SQL = "iceberg in a SQL catalog"
KEPT_OF_A_YEAR = campaign_size(2, 30)
FIRST_DAYS = [str(date(2024, 1, 1) + timedelta(days=number)) for number in range(campaign_size(7, 365))]
BACKUP_EVERY = campaign_size(5, 100)
PARTITIONING = ("partitioning, value: daily", 'firstPartition, value: "2024-01-01"')
MAINTENANCE = "  - {property: maintenance, value: {keep: 2, compaction: {targetMb: 1, sortBy: [id]}}}"


@pytest.fixture
def maintained(request: pytest.FixtureRequest, catalog: Catalog, tmp_path: Path) -> PublishedSet:
    lake = request.getfixturevalue("jdbc_lake" if request.param == IN_SQL else "lake")
    table_format = "delta" if request.param == "delta" else "iceberg"
    maintenance = MAINTENANCE.replace("keep: 2", f"keep: {KEPT_OF_A_YEAR}")
    contract = a_contract(tmp_path / "contracts", next(NAMES), table_format, maintenance)
    return PublishedSet(lake, catalog, orders_alone(contract))


def orders_alone(contract: SetContract) -> SetContract:
    """The set without its derived table, which takes as long as the first one in each publication."""
    return replace(contract, tables=contract.tables[:1])


@dataclass(frozen=True)
class Reader:
    """A recipient of a set's orders, with their history."""

    url: str
    client: httpx.Client
    table: str

    def rows(self, version: int | None = None) -> int:
        return len(delta_sharing.load_as_pandas(self.url, version=version))

    def changes(self, version: int) -> int:
        """The number of files that a stream gets of a version: rows of it changed unless that is 0."""
        window = {"startingVersion": version, "endingVersion": version}
        files = lines(self.client.post(f"{self.table}/query", json=window))
        return sum(not line.keys() & {"protocol", "metaData"} for line in files)

    def refusal(self, version: int) -> str:
        """The text of the refusal of a version."""
        response = self.client.post(f"{self.table}/query", json={"version": version})
        assert response.status_code == 400
        return str(response.json()["message"])

    def file_urls(self, version: int) -> list[str]:
        response = self.client.post(f"{self.table}/query", json={"version": version})
        return [line["file"]["url"] for line in lines(response) if "file" in line]


@contextmanager
def a_reader(published_set: PublishedSet) -> Iterator[Reader]:
    name = published_set.contract.name
    settings = published_set.lake.settings
    stores = {"s3_endpoint": settings.s3_endpoint, "s3_region": settings.s3_region}
    sharing = ServerSettings(_env_file=None, state_dir=settings.state_dir, port=0, **stores)
    provider = Provider(sharing, published_set.catalog)
    shared = SharedTable("shop", "orders", f"{name}.orders", history=True)
    apply_shares(provider.catalog, [DeclaredShare(f"{name}_all", (shared,))])
    _, token = Recipients(provider.catalog).add(f"{name}-reader", (f"{name}_all",))
    with a_server(provider) as server, server.client(token) as client:
        table = f"/shares/{name}_all/schemas/shop/tables/orders"
        yield Reader(f"{server.profile(token)}#{name}_all.shop.orders", client, table)


def publish(published_set: PublishedSet, day: str, count: int = 6, partition: str | None = None) -> None:
    rows, partition = orders(day, count), partition or day
    published_set.deliver(partition, rows)
    lake, contract = published_set.lake, published_set.contract
    staged = staged_without_reading(lake, contract, partition, rows, one_row_files=True)
    published_set.publish(staged, green(contract, staged))


@dataclass(frozen=True)
class Orders:
    """The table that is maintained."""

    published_set: PublishedSet

    @property
    def table(self) -> Table:
        return self.published_set.contract.tables[0]

    @property
    def latest(self) -> Publication:
        latest = Ledger(self.published_set.catalog).latest(self.table.name)
        assert latest is not None
        return latest

    def plan(self, now: datetime | None = None) -> str:
        at = self.published_set
        return "\n".join(format_plan(plan_maintenance(at.lake, at.catalog, self.table, now)))

    def maintain(self, now: datetime | None = None) -> MaintenanceResult:
        at = self.published_set
        return maintain(at.lake, at.catalog, at.contract, self.table, now)

    def files(self) -> set[str]:
        found = self.published_set.lake.stores.list(self.latest.location)
        return {file.location.removeprefix(self.latest.location) for file in found}


@pytest.mark.parametrize("maintained", ["iceberg", "delta"], indirect=True)
def test_a_maintained_table_has_the_same_rows_in_fewer_files_and_keeps_what_its_numbers_need(
    maintained, monkeypatch
):
    subject = Orders(maintained)
    for day in DAYS[:3]:
        publish(maintained, day)
    maintained.deliver(DAYS[3], orders(DAYS[3], 6))
    waiting = maintained.staged_and_green(DAYS[3])
    with a_reader(maintained) as reader:
        the_plan_lists_the_work(subject)
        compaction_is_a_number_without_changes(subject, reader, monkeypatch)
        expired_numbers_are_refused_by_name_and_their_urls_work_on(subject, reader)
        files_of_no_number_go_and_others_stay(subject, reader)
        a_run_that_was_staged_before_conflicts(subject, waiting)
        the_next_publication_has_its_own_changes_only(subject, reader)
        files_of_expired_numbers_go_and_nothing_is_left_to_do(subject, reader)


def the_plan_lists_the_work(subject: Orders) -> None:
    state = subject.published_set.seen()
    plan = subject.plan()
    assert "small files" in plan
    assert "expire the publications below 1" in plan
    assert subject.published_set.seen() == state


def compaction_is_a_number_without_changes(
    subject: Orders, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = subject.published_set.rows()
    with monkeypatch.context() as patch:
        # The process ends between main and the ledger. Of three manifests none is too many for a real table.
        patch.setattr("lakeshare_pipelines.maintenance.run.record_repeats", interrupt)
        patch.setattr("lakeshare_pipelines.maintenance.compaction.MIN_MANIFESTS", 3)
        with pytest.raises(Interrupted):
            subject.maintain()
    assert subject.latest.version == 2
    at = subject.published_set
    [completed] = repair(at.lake, at.catalog, at.contract)
    assert subject.latest == completed
    result = subject.maintain()
    assert (result.publication, result.after.small_files, result.after.files) == (None, 0, 3)
    assert result.after.manifests == (1 if subject.table.format == "iceberg" else 0)
    assert (subject.latest.version, subject.latest.maintenance_of, subject.latest.rows) == (3, 2, 18)
    assert subject.published_set.rows() == rows
    subject.published_set.require_spark_reads_the_same()
    assert reader.rows() == 18


class Interrupted(Exception):
    """In place of the end of a process."""


def interrupt(*_: object) -> None:
    raise Interrupted


def expired_numbers_are_refused_by_name_and_their_urls_work_on(subject: Orders, reader: Reader) -> None:
    at = subject.published_set
    assert "since version 1" in reader.refusal(0)
    with pytest.raises(NoSuchPublication, match="oldest one is 1"):
        rollback(at.lake, at.catalog, at.contract, subject.table, 0)
    assert Ledger(at.catalog).at(subject.table.name, 0) is not None


def files_of_no_number_go_and_others_stay(subject: Orders, reader: Reader) -> None:
    location, stores = subject.latest.location, subject.published_set.lake.stores
    is_iceberg = subject.table.format == "iceberg"
    orphan, other = (
        ("/data/orphan.parquet", "/README") if is_iceberg else ("/orphan.parquet", "/_notes/README")
    )
    for name in (orphan, other):
        stores.write(location + name, b"of a run that crashed, or not of the table")
    urls = reader.file_urls(1)
    files_stay_while_a_backup_is_made(subject)
    files_stay_while_one_in_use_is_not_listed(subject)
    result = subject.maintain()
    assert result.publication is None
    assert not result.files_stay
    assert subject.files() & {orphan, other} == {other}
    assert all(httpx.get(url).status_code == 200 for url in urls)
    assert [reader.rows(version) for version in (1, 2, 3)] == [12, 18, 18]
    assert [reader.changes(version) > 0 for version in (1, 2, 3)] == [True, True, False]
    subject.published_set.require_spark_reads_the_same()


def files_stay_while_a_backup_is_made(subject: Orders) -> None:
    files = subject.files()
    [backup] = load_backups(subject.published_set.lake.settings)
    Points(backup).claim("2024-01-05", "a run")
    try:
        assert "making its point 2024-01-05" in subject.maintain().files_stay
    finally:
        Points(backup).release("2024-01-05")
    assert subject.files() == files


def files_stay_while_one_in_use_is_not_listed(subject: Orders) -> None:
    location, stores = subject.latest.location, subject.published_set.lake.stores
    name = min(used_files(subject, subject.latest)).removeprefix(location)
    content = stores.read(location + name)
    stores.delete(location + name)
    try:
        assert "not listed" in subject.maintain().files_stay
    finally:
        stores.write(location + name, content)


def used_files(subject: Orders, publication: Publication) -> set[str]:
    index = subject.published_set.lake.publications.index(publication)
    return {path for batch in index.batches() for path in batch.column("path").to_pylist()}


def a_run_that_was_staged_before_conflicts(subject: Orders, waiting: tuple[Staged, Verdicts]) -> None:
    state = subject.published_set.seen()
    with pytest.raises(Conflict):
        subject.published_set.publish(*waiting)
    assert subject.published_set.seen() == state
    drop_staging_location(subject.published_set.lake, subject.published_set.contract, waiting[0].ref)


def the_next_publication_has_its_own_changes_only(subject: Orders, reader: Reader) -> None:
    published = subject.published_set.publish(*subject.published_set.staged_and_green(DAYS[3]))
    assert (published[0].rows, reader.rows(), reader.changes(published[0].version)) == (24, 24, 1)
    subject.published_set.require_spark_reads_the_same()


def files_of_expired_numbers_go_and_nothing_is_left_to_do(subject: Orders, reader: Reader) -> None:
    subject.published_set.deliver(DAYS[0], orders(DAYS[0], 1))
    subject.published_set.publish(*subject.published_set.staged_and_green(DAYS[0]))
    files = subject.files()
    metadata = maintain_in_dagster(subject)
    assert (metadata["before/files"], metadata["after/files"], metadata["lakeshare/oldest_readable"]) == (
        4,
        4,
        4,
    )
    # LAKESHARE_BRANCH_DAYS is 0 here: files of numbers that expired before this run go.
    assert len(subject.maintain().removed.files) >= 18
    assert "nothing to do" in subject.plan()
    assert subject.published_set.places() == []
    assert len(subject.files()) < len(files)
    assert [reader.rows(version) for version in (4, 5)] == [24, 19]


def maintain_in_dagster(subject: Orders) -> Mapping[str, object]:
    """Materialises the asset on the tests' own lake; returns its metadata."""
    at, key = subject.published_set, maintenance_key(subject.table)
    [assets] = maintenance_definitions(at.contract).assets or ()
    done = dg.materialize([assets], selection=[key], resources={"lakeshare": at.in_dagster()})
    [event] = done.get_asset_materialization_events()
    assert event.asset_key == key
    return {name: value.value for name, value in event.materialization.metadata.items()}


@pytest.mark.parametrize("maintained", ["delta"], indirect=True)
def test_a_table_that_cannot_be_read_fails_the_run_after_the_others_were_maintained(maintained):
    maintained.contract = load_contract(maintained.contract.path)
    orders_table, totals = maintained.contract.tables
    [assets] = maintenance_definitions(maintained.contract).assets or ()

    def run() -> tuple[dg.ExecuteInProcessResult, list[dg.AssetKey]]:
        resources = {"lakeshare": maintained.in_dagster()}
        ran = dg.materialize([assets], resources=resources, raise_on_error=False)
        return ran, [event.asset_key for event in ran.get_asset_materialization_events()]

    before, done = run()
    assert (before.success, done) == (True, [])  # nothing is published yet
    publish(maintained, DAYS[0])
    shutil.rmtree(Orders(maintained).latest.location)
    after, done = run()
    assert (after.success, done) == (False, [maintenance_key(totals)])
    failure = after.failure_data_for_node(f"{maintained.contract.name}_maintenance")
    assert failure is not None
    assert orders_table.name.replace(".", "/") in str(failure.user_failure_data)


@pytest.mark.parametrize(
    ("table_format", "order"), [("iceberg", ""), ("delta", ""), ("delta", ", sortBy: [id]")]
)
def test_a_table_without_partitions_is_compacted_by_command(
    lake, catalog, tmp_path, monkeypatch, table_format, order
):
    is_daily = {f"  - {{property: {name}}}\n": "" for name in PARTITIONING}
    maintenance = f"  - {{property: maintenance, value: {{keep: 2, compaction: {{targetMb: 1{order}}}}}}}"
    parts = {", partitioned: true, partitionKeyPosition: 1": "", **is_daily}
    contract = a_contract(tmp_path / "contracts", next(NAMES), table_format, maintenance, **parts)
    subject = Orders(PublishedSet(lake, catalog, orders_alone(contract)))
    publish(subject.published_set, DAYS[0], partition="all")
    rows = subject.published_set.rows()

    shown = run_command(subject, monkeypatch)

    name, size = subject.table.name, r"[\d,]+ bytes"
    assert shown.exit_code == 0, shown.output
    assert re.search(
        rf"{name}: publication 1 has the rows of 0\n  before: 6 files, {size}, 6 small files.*\n"
        rf"  after:  1 files, {size}, 0 small files.*\n"
        rf"  removed \d files, {size}; readable from number 0 on\n",
        shown.stdout,
    )
    if table_format == "delta":
        removed = read_actions(lake, subject.latest.location, "remove")
        assert [each["partitionValues"] for each in removed] == [{}] * 6
    assert subject.published_set.rows() == rows
    subject.published_set.require_spark_reads_the_same()
    assert f"{name}: as it was\n" in run_command(subject, monkeypatch).stdout


@pytest.mark.parametrize("maintained", ["delta"], indirect=True)
def test_a_publication_that_comes_during_compaction_wins_and_is_compacted_too(maintained, monkeypatch):
    subject, compactions = Orders(maintained), list[int]()

    def compact_while_a_day_is_published(*arguments: Any) -> Compacted:
        compacted = compact(*arguments)
        compactions.append(compacted.publication.version)
        if len(compactions) == 1:
            publish(maintained, DAYS[1])
        return compacted

    publish(maintained, DAYS[0])
    monkeypatch.setattr("lakeshare_pipelines.maintenance.run.compact", compact_while_a_day_is_published)
    result = subject.maintain()
    assert (compactions, subject.latest.version, subject.latest.maintenance_of) == ([0, 1], 2, 1)
    assert (result.after.files, subject.latest.rows, len(maintained.rows())) == (2, 12, 12)
    assert maintained.places() == []


@pytest.mark.parametrize("maintained", ["iceberg"], indirect=True)
def test_a_branch_that_was_written_to_after_the_comparison_is_not_published(maintained, monkeypatch):
    subject, lake = Orders(maintained), maintained.lake
    publish(maintained, DAYS[0])
    state = maintained.seen()

    def compact_and_write(*arguments: Any) -> Compacted:
        compacted = compact(*arguments)
        lake.spark.sql(f"DELETE FROM {lake.table_at(subject.table.name, str(compacted.ref))}")
        return compacted

    monkeypatch.setattr("lakeshare_pipelines.maintenance.run.compact", compact_and_write)
    monkeypatch.setattr("lakeshare_pipelines.maintenance.run.ATTEMPTS", 1)
    with pytest.raises(MaintenanceError, match="main was not at the latest publication"):
        subject.maintain()
    assert (maintained.seen(), maintained.places()) == (state, [])


def reason_why_files_stay(subject: Orders) -> str:
    return plan_maintenance(
        subject.published_set.lake, subject.published_set.catalog, subject.table
    ).files_stay


@pytest.mark.parametrize("maintained", ["delta"], indirect=True)
def test_what_must_not_be_compacted_or_removed_is_left_with_its_reason(maintained):
    subject, ledger = Orders(maintained), Ledger(maintained.catalog)
    with pytest.raises(MaintenanceError, match="has no publication"):
        subject.maintain()
    for day in DAYS[:2]:
        publish(maintained, day)
    files = subject.files()
    kept_as_it_is = replace(subject.table, maintenance=Maintenance(Compaction(is_wanted=False)))
    plan = plan_maintenance(maintained.lake, maintained.catalog, kept_as_it_is)
    assert (plan.rewrites_files, plan.figures.small_files) == (False, 12)
    opened = maintained.lake.open_delta(subject.latest.location)
    assert opened is not None
    opened.create_checkpoint()
    opened.alter.set_table_properties({"delta.appendOnly": "false"})
    with pytest.raises(MaintenanceError, match="main was not at the latest publication"):
        subject.maintain()
    first, inside = ledger.at(subject.table.name, 0), f"{subject.table.name}_inside"
    assert first is not None
    log = f"{first.location}/{LOG}/{0:020d}.json"
    content = maintained.lake.stores.read(log)
    maintained.lake.stores.delete(log)
    index_path(maintained.lake.settings.index_dir, first.index_digest).unlink()
    assert "the files in use cannot be determined" in reason_why_files_stay(subject)
    maintained.lake.stores.write(log, content)
    assert reason_why_files_stay(subject) == ""
    ledger.append([a_publication(table=inside, location=f"{first.location}/inside")])
    assert f"{inside} is in the same folder" in reason_why_files_stay(subject)
    assert files <= subject.files()


@pytest.mark.campaign
@pytest.mark.parametrize(
    "maintained", ["iceberg", "delta", IN_SQL] if IS_CAMPAIGN else [IN_SQL], indirect=True
)
def test_a_year_of_publications_ends_with_the_files_and_metadata_of_those_that_are_kept(
    maintained, monkeypatch, caplog, tmp_path
):
    """Each day is published alone, a row or more; maintenance is weekly, and backups are rare."""
    subject, days, week = Orders(maintained), len(FIRST_DAYS), campaign_size(3, 7)
    monkeypatch.setattr("lakeshare_pipelines.maintenance.run.COMMITS_PER_CHECKPOINT", campaign_size(2, 10))
    restores, backed_up = list[PointRestore](), list[int]()
    # A SQL catalog has its own way to compact a table.
    rows_of_last_day = 6 if maintained.lake.named_catalog else 1
    for number in range(1, days + 1):
        publish(maintained, FIRST_DAYS[number - 1], rows_of_last_day if number == days else 1)
        if number % week == 0:
            subject.maintain()
        if number % BACKUP_EVERY == 0:
            restores.append(back_up(maintained))
            backed_up.append(number)
    subject.maintain()
    ledger, rows = Ledger(maintained.catalog), days - 1 + rows_of_last_day
    latest, oldest = subject.latest.version, ledger.oldest_readable(subject.table.name)
    kept = [each for each in ledger.history(subject.table.name) if each.version >= oldest]
    assert sum(each.maintenance_of is None for each in kept) == KEPT_OF_A_YEAR
    with a_reader(maintained) as reader:
        assert reader.rows() == rows
        # Each read of a year opens a file for each day.
        for each in (kept[0], kept[len(kept) // 2], kept[-1]):
            assert reader.rows(each.version) == each.rows
        assert all(reader.file_urls(each.version) for each in kept)
        assert all(f"since version {oldest}" in reader.refusal(version) for version in range(oldest))
    figures = measure(maintained.lake, subject.table, subject.latest)
    # What is kept, and what was written since the last maintenance but one.
    assert figures.files == days
    assert figures.history <= KEPT_OF_A_YEAR + 5 * week
    stores, location = maintained.lake.stores, subject.latest.location
    if subject.table.format == "delta":
        assert min(list_log(stores, location).commits) > 0
    # LAKESHARE_BRANCH_DAYS is 0 here: data files are those of kept numbers.
    subject.maintain()
    data = {name for name in subject.files() if name.endswith(".parquet") and LOG not in name}
    assert {location + name for name in data} == set().union(*(used_files(subject, each) for each in kept))
    assert latest <= days + days // week + 1
    maintained.require_spark_reads_the_same()
    for restore, number in zip(restores, backed_up, strict=True):
        assert restored_days(subject, restore, tmp_path / f"day {number}") == FIRST_DAYS[:number]
    the_command_shows_the_same_plan(subject, monkeypatch, caplog)


def back_up(maintained: PublishedSet) -> PointRestore:
    """A point of the set's folder, now."""
    settings, name = maintained.lake.settings, maintained.contract.name
    whole = make_embedded_backup(settings)
    part = {
        side: address.model_copy(update={"url": f"{address.url}/{name}"})
        for side, address in (("source", whole.source), ("target", whole.target))
    }
    backup = whole.model_copy(update=part)
    point = make_point(
        BackupRun(settings, backup, wait_for_point_name(), "test"), datetime.now(UTC), print, print
    )
    assert point.status == "verified", point.verification
    return PointRestore(settings, backup, point)


def restored_days(subject: Orders, restore: PointRestore, folder: Path) -> list[str]:
    """The days of the orders that a point restores."""
    root = normalise_location(subject.latest.location).removeprefix(f"{restore.backup.source.url}/")
    location = restore.elsewhere(root, StoreAddress(url=str(folder))).location
    if subject.table.format == "delta":
        rows = DeltaTable(location).to_pyarrow_table()
    else:
        rows = StaticTable.from_metadata(location).scan().to_arrow()
    return sorted(map(str, rows["day"].to_pylist()))


def the_command_shows_the_same_plan(
    subject: Orders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = run_command(subject, monkeypatch, "--plan")
    assert (shown.exit_code, shown.stdout.rstrip()) == (0, subject.plan())
    assert f"listing the files of {subject.table.name}" in caplog.text
    unknown = run_command(subject, monkeypatch, table="no.table")
    assert unknown.exit_code == 2
    assert subject.table.name in unknown.output


def run_command(
    subject: Orders, monkeypatch: pytest.MonkeyPatch, *options: str, table: str | None = None
) -> Result:
    """Runs `lakeshare maintain` on the tests' lake, and on its Spark."""
    lake = subject.published_set.lake
    settings = lake.settings
    monkeypatch.setattr(
        "lakeshare_pipelines.cli.main.list_contracts", lambda: (subject.published_set.contract,)
    )
    monkeypatch.setattr("lakeshare_pipelines.cli.main._open_lake_with_spark", lambda: nullcontext(lake))
    environment = {
        "STATE_DIR": str(settings.state_dir),
        "WAREHOUSE": settings.warehouse,
        "S3_ENDPOINT": settings.s3_endpoint,
        "S3_REGION": settings.s3_region,
        "BRANCH_DAYS": "0",
        "ICEBERG_CATALOG": settings.iceberg_catalog,
    }
    runner = CliRunner(env={f"LAKESHARE_{name}": value for name, value in environment.items()})
    return runner.invoke(app, ["maintain", table or subject.table.name, *options])
