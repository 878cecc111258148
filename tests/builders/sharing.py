"""A state folder with publications, shares and recipients, and a real server over it."""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.wide_table import many_files_table
from lakeshare_server.access.authentication import write_profile
from lakeshare_server.app import make_server
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    FollowedTables,
    IcebergIdentity,
    Ledger,
    Publication,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.catalog.sharing import editing, remove_table
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import SigningSession, Stores
from lakeshare_server.tables import TableSnapshot, describe_index, read_delta, read_iceberg, write_index
from lakeshare_server.tables.index import share_index
from lakeshare_server.versions import normalise_followed_location, read_unfollowed
from tests.builders.database_schema import open_migrated
from tests.builders.lake_tables import IcebergState, a_delta_table
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients

FLIGHTS = "/shares/flights/schemas/lake/tables/flights"
LONG = "/shares/flights/schemas/lake/tables/long"
LONG_FILES = 2500


@dataclass(frozen=True)
class Provider:
    """The providing side: publishes, shares, adds recipients."""

    settings: ServerSettings
    catalog: Catalog

    def publish_delta(self, table: str, location: Path | str, version: int | None = None) -> Publication:
        """Publish a Delta table as it is, or was at a version."""
        return self.publish(table, read_delta(str(location), version, Stores(self.settings)))

    def publish_iceberg(self, table: str, state: IcebergState) -> Publication:
        """Publish an Iceberg table at a snapshot."""
        snapshot = read_iceberg(
            state.metadata_location, state.snapshot_id, self.settings.vectors_dir, Stores(self.settings)
        )
        return self.publish(table, snapshot, metadata_location=state.metadata_location)

    def follow(
        self, table: str, location: Path | str, check_every_s: float = 0.0, start_version: int = 0
    ) -> None:
        """Follow the table at a location; recipients see it once its name is shared."""
        FollowedTables(self.catalog).add(table, str(location), check_every_s, start_version)

    def follow_iceberg(
        self, table: str, location: Path | str, check_every_s: float = 0.0, start_version: int = 0
    ) -> IcebergIdentity:
        """Follow the Iceberg table at a location, in a catalog or in storage, as the command does."""
        place = normalise_followed_location(str(location), self.settings)
        identity = read_unfollowed(place, Stores(self.settings), self.settings)
        assert identity is not None
        FollowedTables(self.catalog).add(table, place, check_every_s, start_version, identity)
        return identity

    def share(self, *tables: str, share: str = "flights", **options: Any) -> None:
        """Share tables of the lake, `schema.table`, under their own names."""
        shared = [SharedTable(*name.split(".", 1), name, **options) for name in tables]
        apply_shares(self.catalog, [DeclaredShare(share, tuple(shared))])

    def recipient(self, name: str = "bob", shares: tuple[str, ...] = ("flights",), **options: Any) -> str:
        """Add a recipient; returns the token."""
        return Recipients(self.catalog).add_token(name, shares, **options)

    def publish(self, table: str, snapshot: TableSnapshot, **pins: Any) -> Publication:
        """Publish what was read of a table."""
        index = write_index(snapshot, self.settings.index_dir)
        share_index(Stores(self.settings), self.settings.shared_root, index.path)
        new = a_publication(
            table=table,
            format=snapshot.format,
            snapshot_id=snapshot.snapshot_id,
            delta_version=snapshot.version,
            **describe_index(index.header),
            index_digest=index.digest,
            **pins,
        )
        return Ledger(self.catalog).append([new])[0]


def a_provider(folder: Path, **settings: Any) -> Provider:
    """An empty state folder, and everything to fill it; also an empty PostgreSQL, if its URL is given."""
    made = ServerSettings(**{"state_dir": folder / "state", "port": 0, **settings})
    is_made = made.database_url is not None
    return Provider(made, open_catalog(made.catalog_url) if is_made else open_migrated(made.catalog_url))


def a_provider_of_flights(folder: Path, **settings: Any) -> Provider:
    """One that shares a published table of three files: `FLIGHTS` to clients."""
    provider = a_provider(folder, **settings)
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    provider.share("lake.flights")
    return provider


def share_long_table(provider: Provider) -> None:
    """Share a table beside the flights whose answer is signed in two pieces: `LONG` to clients."""
    location = provider.settings.state_dir.with_name("long")
    many_files_table(location, LONG_FILES)
    provider.publish_delta("lake.long", location)
    provider.share("lake.flights", "lake.long")


def hold_second_batch(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the signer wait in front of its second piece until the event is set."""
    go_on = threading.Event()
    sign = SigningSession.sign
    signed: list[int] = []

    def sign_slowly(self: SigningSession, *arguments: Any) -> Any:
        signed.append(1)
        assert len(signed) == 1 or go_on.wait(30)
        return sign(self, *arguments)

    monkeypatch.setattr(SigningSession, "sign", sign_slowly)
    return go_on


@dataclass(frozen=True)
class Running:
    """A running server as clients see it."""

    url: str
    folder: Path

    def profile(self, token: str) -> Path:
        """A profile file of the recipient with this token."""
        path = self.folder / f"{uuid.uuid4()}.share"
        write_profile(path, self.url, token, None)
        return path

    def client(self, token: str | None) -> httpx.Client:
        """A plain HTTP client below the protocol's root."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # There is no TLS: the certificates, which take 20 ms to load, are not needed.
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)


@contextmanager
def a_server(provider: Provider) -> Iterator[Running]:
    """A real server on a free port, stopped in order at the end."""
    ready = threading.Event()
    urls: list[str] = []

    def note(url: str) -> None:
        urls.append(url)
        ready.set()

    server, listening = make_server(provider.settings, note)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        assert ready.wait(30), "the server did not become ready"
        yield Running(urls[0], provider.settings.state_dir)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    """The lines of an NDJSON answer."""
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def files(answer: httpx.Response) -> list[dict[str, Any]]:
    """The file lines of an answer."""
    return [line["file"] for line in lines(answer) if "file" in line]


def unshare_table(catalog: Catalog, share: str, schema: str, name: str) -> None:
    """Remove a table that was shared by hand."""
    with editing(catalog, "command line") as edit:
        remove_table(edit, share, schema, name)
