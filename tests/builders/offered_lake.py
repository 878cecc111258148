"""A provider whose pages have something to show: two shares, three tables, a history, deleted rows, an agreement."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable

from lakeshare_server.catalog import DeclaredShare, RetiredTable, apply_shares
from lakeshare_server.catalog.credentials import create_link, issue_token
from lakeshare_server.catalog.sharing import add_table, create_recipient, create_share, editing, grant
from lakeshare_server.catalog.states import SharedTable
from lakeshare_server.settings import ServerSettings
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.sharing import Provider, a_provider, a_server

AGREEMENT = "\n\n".join(
    [
        "1. The data is for research within your organisation.",
        "2. You pass it on to nobody, and name the source where you publish results.",
        *(
            f"{number}. Provision {number} of this agreement, as both sides have negotiated it."
            for number in range(3, 12)
        ),
    ]
)
RATHER_LONG = "cargo_declarations_by_commodity_code_and_country_of_origin"
SHARE_COMMENT = "Departures of the three airports, published each morning."
FLIGHTS_COMMENT = "Every departure, with the delay in minutes."


@dataclass(frozen=True)
class Shown:
    """What a recipient was given."""

    link: str
    token: str


@dataclass(frozen=True)
class OfferedLake:
    """The provider, and where its server is."""

    provider: Provider
    root: str

    def invited(
        self, name: str, *, agreement: str | None = None, link_life: timedelta = timedelta(days=3)
    ) -> str:
        """A new recipient's link, as it reaches the server that runs."""
        with editing(self.provider.catalog, "steward") as edit:
            create_recipient(edit, name, agreement=agreement)
            grant(edit, "flights", recipient=name, ends_at=datetime(2031, 6, 30, 22, tzinfo=UTC))
            grant(edit, "trade", recipient=name)
        return self.link(name, link_life=link_life)

    def link(self, name: str, link_life: timedelta = timedelta(days=3)) -> str:
        """One more link of a recipient."""
        with editing(self.provider.catalog, "steward") as edit:
            _, code = create_link(
                edit, name, link_life=link_life, token_expires_at=datetime(2031, 12, 31, 23, tzinfo=UTC)
            )
        return f"{self.root}/activate/{code}"

    def hostile(self, name: str, comment: str) -> "Shown":
        """A recipient, with link and token, of a share whose names and comments are what they are given."""
        with editing(self.provider.catalog, "steward") as edit:
            create_share(edit, name, display_name=comment, comment=comment)
            add_table(edit, name, SharedTable(schema=name, name=name, table="lake.flights", comment=comment))
            create_recipient(edit, name, agreement=comment)
            grant(edit, name, recipient=name)
            token = issue_token(edit, name).secret
        return Shown(self.link(name), token)

    def retire(self, name: str, end: date) -> "Shown":
        """A recipient, with link and token, of a share in which a contract retires the flights."""
        catalog, old = self.provider.catalog, SharedTable("lake", "flights", "lake.flights")
        apply_shares(catalog, [DeclaredShare(name, (old,))])
        new = SharedTable("lake", "flights_v2", "lake.flights_v2")
        retired = [RetiredTable(old.table, end, new.table)]
        apply_shares(catalog, [DeclaredShare(name, (new,))], retired, today=end)
        with editing(catalog, "steward") as edit:
            create_recipient(edit, name)
            grant(edit, name, recipient=name)
            token = issue_token(edit, name).secret
        return Shown(self.link(name), token)

    @property
    def portal(self) -> str:
        return f"{self.root}/portal"


@contextmanager
def an_offered_lake(folder: Path, **settings: object) -> Iterator[OfferedLake]:
    """The lake behind a running server."""
    named = {"provider_name": "Harbour Statistics", "provider_contact": "data@harbour.example", **settings}
    provider = a_provider(folder, **named)
    fill(provider, folder)
    with a_server(provider) as running:
        yield OfferedLake(provider, running.url.removesuffix(ServerSettings().endpoint))


def fill(provider: Provider, folder: Path) -> None:
    """Publish and share the tables."""
    flights = a_delta_table(folder / "flights")
    provider.publish_delta("lake.flights", flights)
    append_delta(flights, some_rows(days=30, per_day=20))
    provider.publish_delta("lake.flights", flights)
    DeltaTable(flights).delete("day = '2013-01-02'")
    provider.publish_delta("lake.flights", flights)
    cargo = an_iceberg_table(folder / "iceberg")
    provider.publish_iceberg("lake.cargo", cargo.state())
    provider.publish_delta("lake.long", a_delta_table(folder / "long", some_rows(days=2)))
    shared = {
        "flights": [
            SharedTable(schema="lake", name="flights", table="lake.flights", comment=FLIGHTS_COMMENT),
            SharedTable(schema="lake", name=RATHER_LONG, table="lake.long", history=False),
        ],
        "trade": [SharedTable(schema="lake", name="cargo", table="lake.cargo")],
    }
    with editing(provider.catalog, "steward") as edit:
        create_share(edit, "flights", display_name="Flights", comment=SHARE_COMMENT)
        create_share(edit, "trade")
        for share, tables in shared.items():
            for table in tables:
                add_table(edit, share, table)
