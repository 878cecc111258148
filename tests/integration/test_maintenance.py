"""Maintenance: fewer files with the same rows under a new number, and no file goes that a kept number needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import delta_sharing
import httpx
import pytest

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.errors import NoSuchPublication
from lakeshare_pipelines.maintenance.run import MaintenanceResult, format_plan, maintain, plan_maintenance
from lakeshare_pipelines.share.publication import rollback
from lakeshare_pipelines.wap.staged import Lake, Staged, Verdicts
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    Ledger,
    Publication,
    Recipients,
    SharedTable,
    apply_shares,
)
from lakeshare_server.settings import ServerSettings
from tests.builders.sets import a_contract, green, orders, staged_without_reading
from tests.builders.sharing import Provider, a_server, lines
from tests.integration.conftest import NAMES
from tests.integration.test_publication import PublishedSet

DAYS = [f"2024-01-0{day}" for day in range(1, 6)]
MAINTENANCE = "  - {property: maintenance, value: {keep: 2, compaction: {targetMb: 1, sortBy: [id]}}}"


@pytest.fixture
def maintained(request: pytest.FixtureRequest, lake: Lake, catalog: Catalog, tmp_path: Path) -> PublishedSet:
    contract = a_contract(tmp_path / "contracts", next(NAMES), request.param, MAINTENANCE)
    return PublishedSet(lake, catalog, contract)


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
    sharing = ServerSettings(_env_file=None, state_dir=published_set.lake.settings.state_dir, port=0)
    provider = Provider(sharing, published_set.catalog)
    shared = SharedTable("shop", "orders", f"{name}.orders", history=True)
    apply_shares(provider.catalog, [DeclaredShare(f"{name}_all", (shared,))])
    _, token = Recipients(provider.catalog).add(f"{name}-reader", (f"{name}_all",))
    with a_server(provider) as server, server.client(token) as client:
        table = f"/shares/{name}_all/schemas/shop/tables/orders"
        yield Reader(f"{server.profile(token)}#{name}_all.shop.orders", client, table)


def publish(published_set: PublishedSet, day: str, count: int = 6) -> None:
    published_set.deliver(day, orders(day, count))
    lake, contract = published_set.lake, published_set.contract
    staged = staged_without_reading(lake, contract, day, published_set.delivered[day], one_row_files=True)
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
        return "\n".join(format_plan(plan_maintenance(at.lake, at.catalog, at.contract, self.table, now)))

    def maintain(self, now: datetime | None = None) -> MaintenanceResult:
        at = self.published_set
        return maintain(at.lake, at.catalog, at.contract, self.table, now)

    def files(self) -> set[str]:
        found = self.published_set.lake.stores.list(self.latest.location)
        return {file.location.removeprefix(self.latest.location) for file in found}


@pytest.mark.parametrize("maintained", ["iceberg", "delta"], indirect=True)
def test_a_maintained_table_has_the_same_rows_in_fewer_files_and_keeps_what_its_numbers_need(maintained):
    subject = Orders(maintained)
    for day in DAYS[:4]:
        publish(maintained, day)
    maintained.deliver(DAYS[4], orders(DAYS[4], 6))
    waiting = maintained.staged_and_green(DAYS[4])
    with a_reader(maintained) as reader:
        the_plan_tells_what_maintenance_does(subject)
        compaction_is_a_number_without_changes(subject, reader)
        expired_numbers_are_refused_by_name_and_their_urls_work_on(subject, reader)
        files_of_no_number_go_and_others_stay(subject, reader)
        a_run_that_was_staged_before_is_replayed(subject, reader, waiting)
        nothing_is_left_to_do(subject)


def the_plan_tells_what_maintenance_does(subject: Orders) -> None:
    state = subject.published_set.seen()
    plan = subject.plan()
    assert "small files" in plan
    assert "expire the publications below 2" in plan
    assert subject.published_set.seen() == state


def compaction_is_a_number_without_changes(subject: Orders, reader: Reader) -> None:
    rows = subject.published_set.rows()
    result = subject.maintain()
    assert result.before.small_files >= 24
    assert (result.after.small_files, result.after.files < result.before.files) == (0, True)
    assert subject.latest == result.publication
    assert (subject.latest.version, subject.latest.maintenance_of, subject.latest.rows) == (4, 3, 24)
    assert subject.published_set.rows() == rows
    subject.published_set.require_spark_reads_the_same()
    assert [reader.rows(version) for version in (None, 4, 3, 2)] == [24, 24, 24, 18]
    assert [reader.changes(version) > 0 for version in (2, 3, 4)] == [True, True, False]


def expired_numbers_are_refused_by_name_and_their_urls_work_on(subject: Orders, reader: Reader) -> None:
    at = subject.published_set
    assert "since version 2" in reader.refusal(1)
    with pytest.raises(NoSuchPublication, match="oldest one is 2"):
        rollback(at.lake, at.catalog, at.contract, subject.table, 1)
    assert Ledger(at.catalog).at(subject.table.name, 1) is not None


def files_of_no_number_go_and_others_stay(subject: Orders, reader: Reader) -> None:
    before = subject.files()
    data = Path(subject.latest.location) / ("data" if subject.table.format == "iceberg" else "")
    (data / "orphan.parquet").write_bytes(b"of a run that crashed")
    (data.parent / "README").write_text("not of the table")
    urls = reader.file_urls(2)
    result = subject.maintain()
    assert result.publication is None
    assert not result.files_stay
    gone = before - subject.files()
    assert gone
    assert not (data / "orphan.parquet").exists()
    assert (data.parent / "README").exists()
    assert all(httpx.get(url).status_code == 200 for url in urls)
    assert [reader.rows(version) for version in (2, 3, 4)] == [18, 24, 24]
    assert [reader.changes(version) > 0 for version in (2, 3, 4)] == [True, True, False]
    subject.published_set.require_spark_reads_the_same()


def a_run_that_was_staged_before_is_replayed(
    subject: Orders, reader: Reader, waiting: tuple[Staged, Verdicts]
) -> None:
    published = subject.published_set.publish_or_replay(*waiting)
    assert published[0].rows == 30
    assert reader.rows() == 30
    assert reader.changes(published[0].version) > 0
    subject.published_set.require_spark_reads_the_same()


def nothing_is_left_to_do(subject: Orders) -> None:
    files = subject.files()
    subject.maintain()
    subject.maintain()
    assert "nothing to do" in subject.plan()
    assert subject.published_set.places() == []
    assert len(subject.files()) < len(files)
