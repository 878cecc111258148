"""Requests to a catalog of 100,000 tables, 10,000 recipients and 1,000,000 grants, against a small one.

Run: `python -m bench.large_catalog`; `--postgres` takes PostgreSQL instead of SQLite. A recipient has a hundred grants
in both catalogs, and a share ten tables, but for one share, of a tenth of all tables, which everybody may read. Each
request is sent in turn to a server over either catalog: first after a write to the catalog, when nothing is cached, and
then again. The goal (issue 18): at most 1.3 times.
"""

import argparse
import random
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import httpx
from sqlalchemy import select

from bench.server.catalogs import Connection, TokenHolder, add_recipients, add_rows, named_row, serving
from bench.server.ours import SCHEMA, new_publication
from bench.server.processes import Running
from bench.server.turns import milliseconds, say
from bench.wide_table import many_files_table
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from lakeshare_server.catalog.models import GrantRow, PublicationRow, SchemaRow, SharedTableRow, ShareRow
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import read_delta

GRANTS_EACH, TABLES_EACH, FILES = 100, 10, 10
WIDE, PAGE, LARGEST_PAGE = "wide", 50, 500
WIDE_PAGE = "page of a share with a tenth of all tables"
ROUNDS, REPEATS, GOAL = 60, 10, 1.3


IN_SHARE = f"shares/{{share}}/schemas/{SCHEMA}/tables/t1"
# Paths below the protocol's root, and bodies.
REQUESTS: dict[str, tuple[str, str | None]] = {
    "page of shares": (f"shares?maxResults={PAGE}", None),
    "tables of a share": ("shares/{share}/all-tables", None),
    WIDE_PAGE: (f"shares/{WIDE}/all-tables?maxResults={PAGE}&pageToken={{middle}}", None),
    "poll": (f"{IN_SHARE}/version", None),
    f"query of {FILES} files": (f"{IN_SHARE}/query", "{}"),
}


@dataclass(frozen=True)
class Size:
    """A tenth of the tables is in the wide share, which all recipients are granted."""

    name: str
    tables: int
    recipients: int

    @property
    def wide_tables(self) -> int:
        """The number of tables of the wide share."""
        return self.tables // 10

    @property
    def shares(self) -> int:
        """The number of the other shares."""
        return (self.tables - self.wide_tables) // TABLES_EACH


SMALL = Size("small", 1_100, 10)


@dataclass(frozen=True)
class Side:
    """A server over one of the catalogs; `middle` is the page token of the middle of the wide share."""

    catalog: Catalog
    server: Running
    holders: list[TokenHolder]
    middle: str


def main() -> int:
    """Prints the medians of each request and their ratios; 1 if one is over the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_catalog", description=__doc__)
    parser.add_argument("--tables", type=int, default=100_000, help="tables of the large catalog")
    parser.add_argument("--recipients", type=int, default=10_000, help="recipients of the large catalog")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    options = parser.parse_args()
    large = Size("large", options.tables, options.recipients)
    with (
        tempfile.TemporaryDirectory(prefix="lakeshare-large-catalog-") as folder,
        new_databases(Path(folder), postgres=options.postgres) as new_database,
    ):
        many_files_table(Path(folder) / "table", FILES)
        opened = [opened_side(Path(folder), size, new_database(size.name)) for size in (SMALL, large)]
        with (
            opened[0] as few,
            opened[1] as many,
            # Opened last: a server cuts connections that are idle while a catalog is filled.
            closing(Connection(few.server)) as to_few,
            closing(Connection(many.server)) as to_many,
        ):
            times = measure((few, many), (to_few, to_many))
    place = "PostgreSQL" if options.postgres else "SQLite"
    grants = large.recipients * GRANTS_EACH
    print(f"{large.tables:,} tables, {large.recipients:,} recipients, {grants:,} grants in {place}, against")
    print(
        f"{SMALL.tables:,} tables, {SMALL.recipients} recipients, {SMALL.recipients * GRANTS_EACH:,} grants:"
    )
    is_met = True
    for what, (few_s, many_s) in times.items():
        ratio = median(many_s) / median(few_s)
        is_met &= ratio <= GOAL
        verdict = "met" if ratio <= GOAL else "missed"
        print(
            f"  {what}: {milliseconds(median(few_s))} and {milliseconds(median(many_s))}: {ratio:.2f} times "
            f"(goal: at most {GOAL}: {verdict})"
        )
    return int(not is_met)


@contextmanager
def new_databases(folder: Path, *, postgres: bool) -> Iterator[Any]:
    """A function that returns the URL of a new database by its name."""
    if not postgres:
        yield lambda name: f"sqlite:///{folder / name}.db"
        return
    from tests.integration.postgres_server import running_postgres

    with running_postgres() as server:
        yield lambda _: server.new_database()


@contextmanager
def opened_side(folder: Path, size: Size, database_url: str) -> Iterator[Side]:
    """Fills a catalog, and starts a server over it."""
    say(f"the {size.name} catalog")
    state_dir = folder / size.name
    with closing(open_catalog(database_url)) as catalog:
        holders = fill(catalog, ServerSettings(state_dir=state_dir), folder / "table", size)
        environment = {"LAKESHARE_DATABASE_URL": database_url}
        with serving(state_dir, **environment) as server:
            middle = page_token_of_middle(server, holders[0].token, size.wide_tables)
            yield Side(catalog, server, holders, middle)


def fill(catalog: Catalog, settings: ServerSettings, table: Path, size: Size) -> list[TokenHolder]:
    """Publishes a table under all names, shares them, and grants each recipient a hundred shares."""
    Ledger(catalog).append([new_publication(settings, "t0", read_delta(str(table)))])
    now, draw = datetime.now(UTC), random.Random(0)
    numbers = range(size.shares * TABLES_EACH + size.wide_tables)
    names = [f"s{number}" for number in range(size.shares)] + [WIDE]
    folder_of = {"name": SCHEMA, "name_key": SCHEMA, "declared": False}
    with catalog.writing() as session:
        row = session.scalars(select(PublicationRow)).one()
        columns = [column.key for column in PublicationRow.__mapper__.column_attrs if column.key != "key"]
        first = {column: getattr(row, column) for column in columns}
        add_rows(session, PublicationRow, ({**first, "table": lake_name(number)} for number in numbers[1:]))
        add_rows(session, ShareRow, [
            {**named_row(name, now), "key": key, "declared": False} for key, name in enumerate(names, 1)
        ])  # fmt: skip
        add_rows(session, SchemaRow, [
            {**folder_of, "key": key, "share_key": key} for key, _ in enumerate(names, 1)
        ])  # fmt: skip
        add_rows(session, SharedTableRow, (table_row(number, size.shares) for number in numbers))
        tokens = add_recipients(session, size.recipients, now)
        granted = {key: draw.sample(range(1, size.shares + 1), GRANTS_EACH - 1) for key in tokens}
        add_rows(session, GrantRow, (
            {"recipient_key": key, "share_key": share, "created_at": now}
            for key, of_it in granted.items()
            for share in [*of_it, size.shares + 1]
        ))  # fmt: skip
    return [TokenHolder(token, names[granted[key][0] - 1]) for key, token in tokens.items()]


def lake_name(number: int) -> str:
    """The name of a table in the ledger."""
    return f"{SCHEMA}.t{number}"


def table_row(number: int, shares: int) -> dict[str, Any]:
    """Ten tables to a share, and the rest in the last one."""
    share = min(number // TABLES_EACH, shares)
    name = f"t{number % TABLES_EACH}" if share < shares else f"w{number}"
    return {
        "id": str(uuid.uuid4()),
        "schema_key": share + 1,
        "name": name,
        "name_key": name,
        "lake_table": lake_name(number),
        "history": True,
        "declared": False,
    }


def page_token_of_middle(server: Running, token: str, tables: int) -> str:
    """The page token after half of the wide share's tables."""
    page_token, left = "", tables // 2
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        while left > 0:
            query: dict[str, str | int] = {"maxResults": min(left, LARGEST_PAGE), "pageToken": page_token}
            response = client.get(f"{server.origin}{server.prefix}shares/{WIDE}/all-tables", params=query)
            page = response.raise_for_status().json()
            page_token, left = page["nextPageToken"], left - len(page["items"])
    return str(page_token)


def measure(
    both: tuple[Side, Side], connections: tuple[Connection, Connection]
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds of each request, of the small and of the large catalog."""
    draw = random.Random(1)
    times: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(ROUNDS):
        # Each request has a recipient of its own between two writes: the first one finds nothing in a cache. A page
        # token is valid for its recipient only.
        holders = [
            dict(zip(REQUESTS, draw.sample(side.holders[1:], len(REQUESTS)), strict=True))
            | {WIDE_PAGE: side.holders[0]}
            for side in both
        ]
        for side in both:
            with side.catalog.writing():
                pass  # begins the next generation
        for what, (path, body) in REQUESTS.items():
            for repeat in range(REPEATS + 1):
                for which in (0, 1) if turn % 2 else (1, 0):
                    holder = holders[which][what]
                    at = path.format(share=holder.share, middle=quote(both[which].middle))
                    seconds = connections[which].seconds(at, holder.token, body)
                    name = what if repeat else f"{what}, the first after a write"
                    times.setdefault(name, ([], []))[which].append(seconds)
    return times


if __name__ == "__main__":
    sys.exit(main())
