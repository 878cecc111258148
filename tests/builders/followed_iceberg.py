"""Iceberg tables that are followed, without Spark: what their owners do to them, and what a recipient sees."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from lakeshare_server.catalog import Ledger, Publication, open_catalog
from lakeshare_server.storage import Stores
from lakeshare_server.versions import TableVersions, Versions
from tests.builders.lake_tables import IcebergTable, some_rows
from tests.builders.sharing import FLIGHTS, Provider, a_server, files

NAME = "lake.flights"
Metadata = dict[str, Any]


class OwnedTable(IcebergTable):
    """An Iceberg table in a folder, and its owner's ways to change it."""

    def __init__(self, warehouse: Path, days: int = 1) -> None:
        rows = some_rows(days=days)
        super().__init__(warehouse, rows.schema)
        self.append(rows)

    @property
    def folder(self) -> Path:
        """The table's own folder."""
        return Path(self.table.location().removeprefix("file://"))

    @property
    def newest_file(self) -> Path:
        """The metadata file that is current."""
        return Path(self.table.metadata_location.removeprefix("file://"))

    @property
    def current(self) -> int:
        """The current snapshot."""
        return int(self.table.current_snapshot().snapshot_id)

    def append_days(self, days: int = 1) -> int:
        """One more snapshot, one file for each day; returns it."""
        columns = [field.name for field in self.table.schema().fields]
        return self.append(some_rows(days=days).select(columns)).snapshot_id

    def roll_back(self, snapshot_id: int) -> None:
        """Make an earlier snapshot the current one."""
        self.table.manage_snapshots().set_current_snapshot(snapshot_id).commit()

    def rewrite(self, change: Callable[[Metadata], object]) -> Path:
        """The next metadata file, made by hand from the newest one; pyiceberg does not know of it."""
        newest = max(self.newest_file.parent.glob("*.metadata.json"))
        metadata = json.loads(newest.read_text())
        change(metadata)
        number = int(newest.name.partition("-")[0]) + 1
        made = newest.with_name(f"{number:05d}-00000000-0000-4000-8000-{number:012d}.metadata.json")
        made.write_text(json.dumps(metadata))
        return made


def log_of(table: OwnedTable) -> list[tuple[int, int]]:
    """The table's own snapshot log: times in milliseconds and snapshot ids."""
    return [(entry.timestamp_ms, entry.snapshot_id) for entry in table.table.history()]


def following(provider: Provider, location: Path | str, **options: Any) -> Provider:
    """Follow and share the table."""
    provider.follow_iceberg(NAME, location, **options)
    provider.share(NAME, history=True)
    return provider


@contextmanager
def a_reader(provider: Provider) -> Iterator[httpx.Client]:
    """A recipient at a running server."""
    with (
        a_server(provider) as server,
        server.client(provider.recipient(f"reader-{uuid.uuid4().hex[:8]}")) as client,
    ):
        yield client


def a_worker(provider: Provider) -> TableVersions:
    """What one more process of the server knows of the table."""
    settings = provider.settings
    return Versions(open_catalog(settings.catalog_url), settings, Stores(settings)).of(NAME)


def numbered(provider: Provider) -> list[Publication]:
    """What the ledger has, oldest first."""
    return Ledger(provider.catalog).history(NAME)[::-1]


def pinned(provider: Provider) -> list[int | None]:
    """The snapshots that the numbers pin, from number 0 on; numbers without a gap."""
    found = numbered(provider)
    assert [one.version for one in found] == list(range(len(found)))
    assert all(not one.audited for one in found)
    assert all(a.published_at < b.published_at for a, b in pairwise(found))
    return [one.snapshot_id for one in found]


def version_of(client: httpx.Client, **asked: str) -> int:
    answer = client.get(f"{FLIGHTS}/version", params=asked)
    assert answer.status_code == 200, answer.text
    return int(answer.headers["delta-table-version"])


def count_of(client: httpx.Client, **body: Any) -> int:
    """How many files an answer has."""
    return len(files(client.post(f"{FLIGHTS}/query", json=body)))


def refused(answer: httpx.Response, *fragments: str, status: int = 400) -> str:
    """The refusal's text, which tells recipients no place."""
    assert answer.status_code == status, answer.text
    message = str(answer.json()["message"])
    for fragment in fragments:
        assert fragment in message
    assert "/" not in message
    return message
