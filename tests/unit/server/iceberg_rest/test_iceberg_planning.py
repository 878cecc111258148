"""Scans planned by the server: PyIceberg reads what it reads directly, and recipients learn of no other files."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from pyiceberg.exceptions import BadRequestError
from sqlalchemy import select

from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.iceberg_rest import scans
from tests.builders.grants import grant_to
from tests.builders.iceberg_projection import ProjectedTable
from tests.builders.iceberg_rest import TABLE, door, rest_catalog
from tests.builders.lake_tables import IcebergState, IcebergTable, an_iceberg_table, some_rows
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.builders.waiting import wait_until

SERVER = {"scan-planning-mode": "server"}
FILTERS = [
    "day = '2013-01-02'",
    "distance > 5000000000000 and day >= '2013-01-02'",
    "airline in ('UA', 'zz')",
    "airline not in ('UA')",
    "airline like 'a%'",
    "not (day = '2013-01-01' or distance < 9000000000000)",
    "departed >= '2013-01-01T09:15:00+00:00'",
    "flight is null",
    "delay is nan",
    "cancelled = true",
    "crew.pilots = 2",
    "distance < 0",
]


@dataclass(frozen=True)
class Planning:
    """A published table, and its server with a client of one recipient."""

    made: IcebergTable
    provider: Provider
    server: Running
    client: httpx.Client
    token: str


def a_table(folder: Path) -> IcebergTable:
    """A table whose partitions evolved and whose columns were renamed, without nulls in partition values."""
    made = an_iceberg_table(folder / "warehouse")
    with made.table.update_spec() as spec:
        spec.add_identity("cancelled")
    made.append(some_rows(days=2))
    with made.table.update_schema() as change:
        change.rename_column("carrier", "airline")
    with made.table.update_spec() as spec:
        spec.remove_field("day").remove_field("cancelled").add_identity("distance")
    renamed = some_rows(days=4).rename_columns(
        ["airline" if name == "carrier" else name for name in some_rows().column_names]
    )
    made.append(renamed)
    return made


@contextmanager
def planning(folder: Path) -> Iterator[Planning]:
    made, provider = a_table(folder), a_provider(folder, page_files=3)
    provider.publish_iceberg("lake.flights", made.state())
    provider.share("lake.flights", history=True)
    token = provider.recipient()
    with a_server(provider) as server, door(server, token) as client:
        yield Planning(made, provider, server, client, token)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    """For the tests that change nothing."""
    with planning(tmp_path_factory.mktemp("shared")) as opened:
        yield opened


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Planning]:
    """For a test that changes the table, its publications or its grants."""
    with planning(tmp_path) as opened:
        yield opened


def sorted_rows(scan: Any) -> list[str]:
    return sorted(str(row) for row in scan.to_arrow().to_pylist())


def planned(client: httpx.Client, **asked: Any) -> list[dict[str, Any]]:
    """The tasks of all pages."""
    answer = client.post(f"{TABLE}/plan", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "completed"
    tasks = []
    while True:
        page = answer.json()
        assert len(page["file-scan-tasks"]) <= 3
        tasks += page["file-scan-tasks"]
        if "plan-tasks" not in page:
            return tasks
        [token] = page["plan-tasks"]
        answer = client.post(f"{TABLE}/tasks", json={"plan-task": token})
        assert answer.status_code == 200, answer.text


def test_pyiceberg_reads_by_plans_what_it_reads_directly(shared: Planning) -> None:
    provider, made = shared.provider, shared.made
    table = rest_catalog(shared.server, shared.token, **SERVER).load_table("lake.flights")
    for text in FILTERS:
        planned, direct = table.scan(row_filter=text), made.table.scan(row_filter=text)
        assert sorted_rows(planned) == sorted_rows(direct), text
        assert planned.count() == direct.count(), text
    assert sorted_rows(table.scan()) == sorted_rows(made.table.scan())
    selected = table.scan(row_filter="day = '2013-01-02'", selected_fields=("flight",))
    assert selected.to_arrow().column_names == ["flight"]

    def plans() -> list[tuple[str | None, str | None]]:
        with provider.catalog.reading() as session:
            rows = session.scalars(select(AuditRow).where(AuditRow.action == "plan_scan"))
            return [(row.recipient, row.object_name) for row in rows]

    wait_until(lambda: len(plans()) > len(FILTERS))
    assert set(plans()) == {("bob", "flights.lake.flights")}


def test_files_without_a_match_are_not_planned(shared: Planning) -> None:
    client = shared.client
    every = planned(client)
    assert len(every) == 3 + 4 + 16
    assert {task["residual-filter"] for task in every} == {True}
    asked = {"type": "eq", "term": "day", "value": "2013-01-02"}
    [first, *_] = some = planned(client, filter=asked)
    assert len(some) == 1 + 2 + 4
    assert all(task["residual-filter"] == asked for task in some)
    assert first["data-file"].keys() == {
        "spec-id", "content", "file-path", "file-format", "partition", "file-size-in-bytes", "record-count"
    }  # fmt: skip
    # As Java says a date, and in any case.
    same = {"type": "eq", "term": {"type": "reference", "term": "DAY"}, "value": 15_707}
    assert len(planned(client, filter=same, **{"case-sensitive": False})) == len(some)
    assert len(planned(client, filter=same)) == len(every)
    assert planned(client, filter=False) == []


@pytest.mark.parametrize("is_lacking", [True, False])
def test_plans_that_pyiceberg_reads_wrongly_are_left_to_it(tmp_path: Path, is_lacking: bool) -> None:
    """PyIceberg takes '2024-01-01' for the value of a date that a file lacks, and loses its rows by a filter."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import DateType, IntegerType, NestedField

    columns = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "day", DateType()))
    table = ProjectedTable(tmp_path / "table", columns, [("day", "identity")])
    table.add_file([{"n": 1, "day": date(2024, 1, 1)}], ["day"] if is_lacking else [])
    provider = a_provider(tmp_path)
    provider.publish_iceberg("lake.flights", table.state())
    provider.share("lake.flights")
    token, wanted = (
        provider.recipient(),
        {"type": "in", "term": "day", "values": ["2024-01-01", "2024-01-02"]},
    )
    with a_server(provider) as server, door(server, token) as client:
        assert len(planned(client, filter=wanted)) == 1
        text = "day in ('2024-01-01', '2024-01-02')"
        in_client, by_server = (
            rest_catalog(server, token, **options).load_table("lake.flights").scan(row_filter=text)
            for options in ({}, SERVER)
        )
        assert sorted_rows(in_client) == [str({"n": 1, "day": date(2024, 1, 1)})]
        if is_lacking:
            with pytest.raises(BadRequestError, match="set scan-planning-mode to client"):
                by_server.to_arrow()
        else:
            assert sorted_rows(by_server) == sorted_rows(in_client)


def test_earlier_snapshots_are_planned_where_history_is_shared(own: Planning) -> None:
    provider, made, client = own.provider, own.made, own.client
    before = made.state().snapshot_id
    with made.table.manage_snapshots() as manage:
        manage.create_branch(before, "wap-secret")
    made.table.append(made.table.scan().to_arrow(), branch="wap-secret")
    unpublished = made.table.metadata.refs["wap-secret"].snapshot_id
    made.append(made.table.scan().to_arrow())
    provider.publish_iceberg("lake.flights", made.state())
    table = rest_catalog(own.server, own.token, **SERVER).load_table("lake.flights")
    then = table.scan(snapshot_id=before, row_filter="airline = 'UA'")
    assert sorted_rows(then) == sorted_rows(made.table.scan(snapshot_id=before, row_filter="airline = 'UA'"))
    for snapshot in (unpublished, 1):
        answer = client.post(f"{TABLE}/plan", json={"snapshot-id": snapshot})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException")
        assert "snapshot-id" in answer.json()["error"]["message"]
    provider.share("lake.flights", history=False)
    assert client.post(f"{TABLE}/plan", json={"snapshot-id": before}).status_code == 400


def test_a_plan_goes_on_as_it_began_while_others_are_published(own: Planning) -> None:
    provider, made, client = own.provider, own.made, own.client
    first = client.post(f"{TABLE}/plan", json={}).json()
    made.append(made.table.scan().to_arrow())
    provider.publish_iceberg("lake.flights", made.state())
    found = first["file-scan-tasks"]
    while "plan-tasks" in first:
        first = client.post(f"{TABLE}/tasks", json={"plan-task": first["plan-tasks"][0]}).json()
        found += first["file-scan-tasks"]
    paths = [task["data-file"]["file-path"] for task in found]
    assert len(paths) == len(set(paths)) == 23


def test_statistics_are_given_of_the_columns_that_are_asked_for(shared: Planning) -> None:
    [task] = planned(shared.client, **{"stats-fields": ["distance", "nothing"]}, filter=None)[:1]
    file, field_id = task["data-file"], 4
    assert file["value-counts"] == {"keys": [field_id], "values": [1]}
    assert file["null-value-counts"] == {"keys": [field_id], "values": [0]}
    low, high = (bytes.fromhex(file[name]["values"][0]) for name in ("lower-bounds", "upper-bounds"))
    assert low == high == task["data-file"]["partition"][0].to_bytes(8, "little")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"start-snapshot-id": 1, "end-snapshot-id": 2}, "start-snapshot-id"),
        ({"snapshot-id": "1"}, "snapshot-id"),
        ({"filter": "day = 1"}, "filter"),
        ({"select": "day"}, "select"),
        ({"stats-fields": [1]}, "stats-fields"),
        ({"case-sensitive": "no"}, "case-sensitive"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_its_field(
    shared: Planning, asked: dict[str, Any], field: str
) -> None:
    answer = shared.client.post(f"{TABLE}/plan", json=asked)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException")
    assert answer.json()["error"]["message"].startswith(f"{field}: ")


def test_tokens_are_good_for_their_recipient_only(shared: Planning) -> None:
    client = shared.client
    [token] = client.post(f"{TABLE}/plan", json={}).json()["plan-tasks"]
    with door(shared.server, shared.provider.recipient("eve")) as other:
        for wrong in (token, token[:-2], "a"):
            answer = other.post(f"{TABLE}/tasks", json={"plan-task": wrong})
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchPlanTaskException")
    for method in ("GET", "DELETE"):
        answer = client.request(method, f"{TABLE}/plan/none")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchPlanIdException")


def test_a_long_filter_makes_short_pages_and_one_that_no_token_carries_is_refused(
    shared: Planning, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, long = shared.client, ["x" * 10_000] * 10
    monkeypatch.setattr(scans, "PAGE_BYTES", 250_000)
    filter_of = {"type": "not-in", "term": "airline", "values": long}
    first = client.post(f"{TABLE}/plan", json={"filter": filter_of}).json()
    assert len(first["file-scan-tasks"]) == 2
    assert len(planned(client, filter=filter_of)) == 23
    # It cannot be compressed below half of what a body may have.
    random = Random(1)
    filter_of["values"] = [f"{random.getrandbits(256):x}" for _ in range(30_000)]
    answer = client.post(f"{TABLE}/plan", json={"filter": filter_of})
    assert (answer.status_code, "too long for a plan" in answer.text) == (400, True)
    assert len(answer.text) < 1000
    nothing = {"type": "lt", "term": "distance", "value": -1}
    short = {"type": "and", "left": nothing, "right": filter_of}
    assert client.post(f"{TABLE}/plan", json={"filter": short}).json()["file-scan-tasks"] == []


def test_tables_say_where_to_plan_unless_it_is_left_to_clients(tmp_path: Path, shared: Planning) -> None:
    for mode, told in (("server", {"scan-planning-mode": "server"}), ("client", {})):
        provider = a_provider(tmp_path / mode, iceberg_planning=mode)
        provider.publish_iceberg("lake.flights", shared.made.state())
        provider.share("lake.flights")
        with a_server(provider) as server, door(server, provider.recipient()) as client:
            assert client.get(TABLE).json()["config"] == told
            assert client.post(f"{TABLE}/plan", json={}).status_code == 200


def test_a_restricted_recipient_learns_of_its_own_files_only(own: Planning) -> None:
    provider, made, client = own.provider, own.made, own.client
    grant_to(provider, "bob", rule="day = DATE '2013-01-02'")
    # Of the newest files the partition tells no day: that their statistics do proves nothing.
    undecided = client.post(f"{TABLE}/plan", json={})
    assert undecided.status_code == 400
    assert "cannot be determined from partitions. day" in undecided.text
    metadata = made.table.metadata
    provider.publish_iceberg(
        "lake.flights", IcebergState(made.table.metadata_location, metadata.snapshots[-2].snapshot_id)
    )
    tasks = planned(client)
    assert len(tasks) == 1 + 2
    for task in tasks:
        assert "day=2013-01-02" in task["data-file"]["file-path"]
    assert planned(client, filter={"type": "eq", "term": "day", "value": "2013-01-01"}) == []
    # On a disk that the client shares nobody could keep the other files from it.
    refused = client.get(TABLE)
    assert refused.status_code == 400
    assert "2013" not in refused.text


def test_a_table_that_cannot_be_planned_is_refused_without_its_places(
    own: Planning, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, client = own.made, own.client
    assert client.get(TABLE).status_code == 200
    [manifest, *_] = made.table.current_snapshot().manifests(made.table.io)
    Path(manifest.manifest_path.removeprefix("file://")).unlink()
    answer = client.post(f"{TABLE}/plan", json={})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException")
    assert "scan-planning-mode" in answer.text
    assert str(tmp_path) not in answer.text
    assert f"{manifest.manifest_path.removeprefix('file://')} of snapshot" in caplog.text


def test_answers_are_those_of_the_specification(shared: Planning) -> None:
    """PyIceberg's models of the REST specification are strict about members that have another type."""
    from pyiceberg.catalog.rest.scan_planning import PlanCompleted

    answer = shared.client.post(f"{TABLE}/plan", json={"stats-fields": ["distance", "airline"]})
    read = PlanCompleted.model_validate_json(answer.text)
    assert len(read.file_scan_tasks) == 3
    assert read.plan_id is None
    assert json.loads(answer.text).keys() == {"status", "file-scan-tasks", "plan-tasks"}
