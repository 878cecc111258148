"""The console's publications: the timeline, the numbers of a table, comparisons, and the preview of a rollback."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType

from lakeshare_server.catalog import Ledger, SharedTable
from lakeshare_server.catalog.ledger import RecordedContract
from lakeshare_server.catalog.sharing import add_table, create_share, editing
from lakeshare_server.pages.console.comparison import compare_columns, compare_files
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import read_delta
from lakeshare_server.tables.index import FileIndex, SnapshotIndex
from tests.builders.administration import Administered, an_administered_server
from tests.builders.console import Browser, browser
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.publications import a_publication

RUN = "0a1b2c3d-0000-4000-8000-0123456789ab"
HOSTILE = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Published:
    """A server with `lake.flights` at versions 0 and 1, the second under a contract, and its table in storage."""

    administered: Administered
    table: Path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("publications")
    with an_administered_server(folder, dagster_url="http://dagster.example") as running:
        provider, ledger = running.provider, Ledger(running.provider.catalog)
        ledger.record_contract(RecordedContract("d" * 64, "lake", "2.1.0", f"id: {HOSTILE}"))
        append_delta(folder / "table", some_rows(1, 4))
        index = provider.publish_delta("scratch.flights", folder / "table", 1)
        evidence = {
            "checks": 3,
            "failed": 1,
            "failed_checks": [f"lake.flights: {HOSTILE}"],
            "deliveries": {"2013-01-01": "e" * 64},
            "inputs": {"lake.flights": {"scratch.flights": {"version": 1, "is_whole": True}}},
        }
        row = replace(
            a_publication(verdicts=evidence, run_id=RUN, contract_digest="d" * 64),
            **{
                name: getattr(index, name)
                for name in (
                    "format", "location", "table_id", "delta_version", "schema_string", "rows", "files",
                    "size_bytes", "index_digest",
                )
            },
        )  # fmt: skip
        ledger.append([row])
        provider.share("lake.flights")
        provider.recipient("bob")
        yield Published(running, folder / "table")


@pytest.fixture(scope="module")
def console(published: Published) -> Browser:
    return browser(published.administered, "steward")


def test_the_timeline_has_the_publications_of_all_tables_or_of_one(console: Browser) -> None:
    timeline = console.page("/console/publications")
    assert timeline.index("lake.flights number 1") < timeline.index("lake.flights number 0")
    assert "1 of 3 failed" in timeline
    assert "2.1.0" in timeline
    of_table = console.page("/console/publications?table=scratch.flights")
    assert "scratch.flights number 1" in of_table
    assert "lake.flights number" not in of_table
    assert "Nothing is published under this set" in console.page("/console/publications?set=none")
    assert "before is not a valid number" in console.page("/console/publications?before=x", 400)


def test_lists_are_paged_by_keys(published: Published, console: Browser) -> None:
    ledger = Ledger(published.administered.provider.catalog)
    rows = [a_publication(table="paged.table", set_name="paged", rows=number) for number in range(120)]
    ledger.append(rows)
    for path, newest in (
        ("/console/publications?set=paged", 119),
        ("/console/publications/paged.table", 119),
    ):
        seen, url = [], path
        while url:
            page = console.page(url)
            seen += [number for number in range(120) if f'/publications/paged.table/{number}"' in page]
            following = page.partition('rel="next" href="')[2].partition('"')[0]
            url = following.replace("&amp;", "&")
        assert sorted(seen) == list(range(120)), newest


def test_numbers_of_a_table_have_charts_evidence_and_links(console: Browser) -> None:
    page = console.page("/console/publications/lake.flights")
    assert "<title>1: 16 rows</title>" in page
    assert console.page("/console/publications/lake.none", 404)
    assert 'href="/console/tables/lake.flights"' in console.page("/console/tables?q=FLIGHTS")
    number = console.page("/console/publications/lake.flights/1")
    assert f'href="http://dagster.example/runs/{RUN}"' in number
    assert 'href="/console/publications/scratch.flights/1"' in number
    assert "e" * 64 in number
    assert "does not exist" in console.page("/console/publications/lake.flights/7", 404)
    assert "does not exist" in console.page("/console/publications/lake.flights/x", 404)
    for path in ("publications/lake.flights/1", f"contracts/{'d' * 64}"):
        raw = console.client.get(f"/console/{path}").text
        assert HOSTILE not in raw
        assert "&lt;script&gt;" in raw


def test_two_numbers_are_compared_by_files_and_by_sampled_rows(
    published: Published, console: Browser
) -> None:
    path = "/console/publications/lake.flights/compare"
    page = console.page(path)
    assert "Only in number 1: 1, " in page
    assert "Only in number 0: none" in page
    assert "The same columns" in page
    assert "Read a sample" in page
    sampled = console.page(f"{path}?from=0&to=1&rows=yes")
    assert sampled.count('<th scope="row" class="added">1</th>') == 4
    assert 'class="removed">0</th>' not in sampled
    assert "This is a sample" not in sampled
    auditor = browser(published.administered, "auditor").page(f"{path}?from=0&to=1&rows=yes")
    assert "Rows are hidden" in auditor
    assert 'class="added">1</th>' not in auditor
    assert "same number" in console.page(f"{path}?from=1&to=1")
    assert "does not exist" in console.page(f"{path}?from=9", 404)


def test_a_rewritten_file_shows_only_the_rows_that_differ(
    published: Published, console: Browser, tmp_path: Path
) -> None:
    provider = published.administered.provider
    table = an_iceberg_table(tmp_path / "iceberg", partitioned_by=())
    provider.publish_iceberg("lake.events", table.state())
    # Without merge-on-read this writes the other rows of the file again.
    table.table.delete("flight = 1002")
    with table.table.update_schema() as schema:
        schema.add_column("gate", StringType())
    provider.publish_iceberg("lake.events", table.state())
    page = console.page("/console/publications/lake.events/compare?rows=yes")
    assert "Only in number 1: 1, " in page
    assert "Only in number 0: 1, " in page
    assert '<th scope="row">gate</th><td><span class="added">added</span></td>' in page
    assert page.count('class="removed">0</th>') == 1
    assert 'class="added">1</th>' not in page
    assert "<td>1002</td>" in page


def test_versions_of_a_followed_table_are_compared(
    published: Published, console: Browser, tmp_path: Path
) -> None:
    table = a_delta_table(tmp_path / "followed")
    provider = published.administered.provider
    provider.follow("lake.followed", table)
    console.page("/console/tables/lake.followed")
    append_delta(table, some_rows(1, 2))
    console.page("/console/tables/lake.followed")
    page = console.page("/console/publications/lake.followed/compare?rows=yes")
    assert page.count('class="added">1</th>') == 2
    assert "unaudited" in page
    assert "restore it where it is written" in console.page("/console/publications/lake.followed/0/rollback")


def test_a_number_whose_index_is_lost_is_compared_by_its_totals(
    published: Published, console: Browser
) -> None:
    Ledger(published.administered.provider.catalog).append(
        [a_publication(table="lost.table", rows=rows, run_id=f"maintenance-{rows}") for rows in (3, 5)]
    )
    assert "dagster.example" not in console.page("/console/publications/lost.table/1")
    page = console.page("/console/publications/lost.table/compare?rows=yes")
    assert 'class="problem"' in page
    assert "+2" in page


def test_the_preview_of_a_rollback_names_shares_pins_and_recipients(
    published: Published, console: Browser
) -> None:
    with editing(published.administered.provider.catalog, "tests") as edit:
        create_share(edit, "pinned")
        add_table(edit, "pinned", SharedTable("lake", "flights", "lake.flights", publication=0))
    page = console.page("/console/publications/lake.flights/0/rollback")
    assert "flights.lake.flights" in page
    assert "pinned to 0: nothing changes" in page
    assert 'href="/console/recipients/bob"' in page
    assert 'action="/console/publications/lake.flights/0/rollback"' in page
    newest = console.page("/console/publications/lake.flights/1/rollback")
    assert "has these rows already" in newest
    assert "Publish 1 again" not in newest
    auditor = browser(published.administered, "auditor").page("/console/publications/lake.flights/0/rollback")
    assert "Publish 0 again</button>" not in auditor


def test_files_of_two_indexes_are_compared_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeshare_server.tables.index.BATCH_ROWS", 3)
    table = a_delta_table(tmp_path / "table", some_rows(10, 1))
    for day in range(10, 30):
        append_delta(table, some_rows(day + 1, 1).slice(day, 1))
    stores = Stores(ServerSettings(state_dir=tmp_path / "state"))
    first, middle, last = (SnapshotIndex(read_delta(str(table), number, stores)) for number in (0, 7, 20))
    for before, after in ((first, last), (middle, last), (last, first), (last, last)):
        old, new = list_paths(before), list_paths(after)
        changes = compare_files(before, after)
        assert (changes.added.files, changes.removed.files) == (len(new - old), len(old - new))
        assert set(changes.added.paths) <= new - old


def list_paths(index: FileIndex) -> set[str]:
    return {path for batch in index.batches() for path in batch.column("path").to_pylist()}


def test_columns_are_compared_with_the_fields_of_structs() -> None:
    def struct(*fields: tuple[str, Any]) -> dict[str, Any]:
        members = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
        return {"type": "struct", "fields": members}

    def schema(*fields: tuple[str, Any]) -> str:
        return json.dumps(struct(*fields))

    before = schema(("a", "integer"), ("s", struct(("x", "long"), ("y", "string"))), ("gone", "date"))
    after = schema(("a", "long"), ("s", struct(("x", "long"), ("z", "string"))), ("new", "date"))
    found = [(change.name, change.before, change.after) for change in compare_columns(before, after)]
    assert found == [
        ("a", "integer", "long"),
        ("s.z", None, "string"),
        ("new", None, "date"),
        ("s.y", "string", None),
        ("gone", "date", None),
    ]
