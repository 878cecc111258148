"""Pages of the console over a large catalog, each beside an empty route of the same server.

Run: `python -m bench.console`; `--postgres` takes PostgreSQL instead of SQLite. The catalog has 10,000 tables with 4
publications each, 10,000 recipients with tokens, a share with 10,000 tables that is granted to all of them, a thousand
others, groups, and an audit log of 1,000,000 events over 90 days. The goal (issue 21): every page in 300 ms, also the
slowest request. `--keep` leaves the catalog of SQLite in a folder, where the next run finds it.
"""

import argparse
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from bench.large_catalog import new_databases
from bench.server.catalogs import add_recipients, add_rows, named_row, serving
from bench.server.ours import SCHEMA, new_publication
from bench.server.turns import milliseconds, say
from bench.wide_table import many_files_table
from lakeshare_server.catalog import AuditEvent, Catalog, Ledger, append_events, open_catalog
from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.ledger import RecordedContract
from lakeshare_server.catalog.models import (
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    PublicationRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
)
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import read_delta

TABLES, RECIPIENTS, PUBLICATIONS, EVENTS = 10_000, 10_000, 4, 1_000_000
SHARES, TABLES_EACH, GRANTS_EACH, GROUPS, MEMBERS = 1_000, 10, 10, 1_000, 10
DAYS, EVENTS_AT_ONCE, FILES = 90, 20_000, 100
WIDE, EVERYBODY, HEAVY = "wide", "everybody", "r7"
HEAVY_SHARE, CHANGES_SHARE = 0.05, 0.01
DIGEST = "c" * 64
GOAL_S, REQUESTS, COUNTED_WITHIN_S = 0.3, 15, 300.0
EMPTY_ROUTE = "/healthz"

# `n` is another number in each turn: tables and recipients that were not asked for before.
PAGES = {
    "timeline of publications": "publications",
    "timeline, far back": "publications?before=20000",
    "timeline of a set": f"publications?set={SCHEMA}",
    "numbers of a table": f"publications/{SCHEMA}.t{{n}}",
    "a number": f"publications/{SCHEMA}.t{{n}}/2",
    "comparison": f"publications/{SCHEMA}.t{{n}}/compare",
    "comparison with rows": f"publications/{SCHEMA}.t{{n}}/compare?rows=yes",
    "preview of a rollback": f"publications/{SCHEMA}.t{{n}}/1/rollback",
    "contract": f"contracts/{DIGEST}",
    "shares": "shares",
    "shares by a text": "shares?q=9",
    "share with 10,000 tables and grants": f"shares/{WIDE}",
    "tables of a share by a text": f"shares/{WIDE}?q=99",
    "page in a share": f"shares/{WIDE}?after={SCHEMA}.t5&after_reader=r5",
    "share": "shares/s{n}",
    "rule on a share with 10,000 tables": f"shares/{WIDE}/rule?rule=day%20%3E%3D%20'2013-02-01'",
    "tables": "tables",
    "tables by a text": "tables?q=99",
    "tables by a text of none": "tables?q=nowhere",
    "table": f"tables/{SCHEMA}.t{{n}}",
    "recipients": "recipients",
    "recipients by a text": "recipients?q=99",
    "silent recipients": "recipients?show=silent",
    "spiking recipients": "recipients?show=spiking",
    "recipient": "recipients/r{n}",
    "recipient with 5 % of all events": f"recipients/{HEAVY}",
    "groups, one with 10,000 members": "groups",
    "audit": "audit",
    "audit of a recipient": "audit?recipient=r{n}",
    "audit of a recipient's refusals": f"audit?recipient={HEAVY}&refused=yes",
    "audit of an administrator": "audit?principal=steward",
    "audit of a table": f"audit?object={WIDE}.{SCHEMA}.t{{n}}",
    "audit of an action": "audit?action=alter_share",
    "audit by what no event has": "audit?request=none",
    "audit of early days": "audit?until=2000-01-01",
    "audit, far back": "audit?before=500",
    "event": "audit/{n}",
}


def main() -> int:
    """Prints the median and the slowest request of each page; 1 if one is over the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests of each page")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of the audit log")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    parser.add_argument("--keep", type=Path, help="folder for the catalog, which the next run uses again")
    options = parser.parse_args()
    with (
        kept_folder(options.keep) as folder,
        new_databases(folder, postgres=options.postgres) as new_database,
    ):
        database_url = new_database("console")
        settings = ServerSettings(state_dir=folder / "state", database_url=database_url)
        if not (folder / "key").exists():
            (folder / "key").write_text(fill(settings, folder / "table", options.events))
        key = (folder / "key").read_text()
        with (
            serving(settings.state_dir, LAKESHARE_DATABASE_URL=database_url) as server,
            httpx.Client(base_url=server.origin, timeout=60) as client,
        ):
            client.post("/console/sign-in", data={"key": key})
            waited_s = wait_for_count(client)
            times = measure(client, options.requests)
    place = "PostgreSQL" if options.postgres else "SQLite"
    print(f"{TABLES:,} tables, {RECIPIENTS:,} recipients, {options.events:,} events in {place};")
    print(f"usage was counted in {waited_s:.1f} s")
    empty = times.pop(EMPTY_ROUTE)
    print(f"  empty route: median {milliseconds(median(empty))}, slowest {milliseconds(max(empty))}")
    is_met = True
    for name, seconds in times.items():
        is_within = max(seconds) <= GOAL_S
        is_met &= is_within
        print(
            f"  {name}: median {milliseconds(median(seconds))}, slowest {milliseconds(max(seconds))}"
            f"{'' if is_within else ': missed'}"
        )
    print(f"goal: {milliseconds(GOAL_S)} for each request: {'met' if is_met else 'missed'}")
    return int(not is_met)


@contextmanager
def kept_folder(kept: Path | None) -> Iterator[Path]:
    """The folder to keep, or one that is removed at the end."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="lakeshare-console-") as folder:
        yield Path(folder)


def wait_for_count(client: httpx.Client) -> float:
    """Opens a page until usage is counted; the seconds that this took."""
    began = time.monotonic()
    while "being counted" in client.get(f"/console/recipients/{HEAVY}").raise_for_status().text:
        if time.monotonic() - began > COUNTED_WITHIN_S:
            raise RuntimeError("usage was not counted in time")
        time.sleep(0.05)
    return time.monotonic() - began


def measure(client: httpx.Client, requests: int) -> dict[str, list[float]]:
    """Seconds of each page, by turns, after one request of each that is not counted."""
    paths = {EMPTY_ROUTE: EMPTY_ROUTE} | {name: f"/console/{path}" for name, path in PAGES.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(requests + 1):
        for name, path in paths.items():
            began = time.perf_counter()
            response = client.get(path.format(n=turn * 7 + 3))
            elapsed_s = time.perf_counter() - began
            if response.status_code != 200:
                raise RuntimeError(f"{path}: {response.status_code} {response.text[-500:]}")
            if turn:
                times[name].append(elapsed_s)
    return times


def fill(settings: ServerSettings, table: Path, events: int) -> str:
    """Fills the catalog; returns the key of an administrator."""
    many_files_table(table, FILES)
    with closing(open_catalog(settings.catalog_url)) as catalog:
        say("tables, shares and recipients")
        publish_tables(catalog, settings, table)
        with catalog.writing() as session:
            tokens = add_recipients(session, RECIPIENTS, datetime.now(UTC) - timedelta(days=200))
            share_tables(session, list(tokens))
        add_events(catalog, events)
        with editing(catalog, "bench") as edit:
            return add_admin_key(edit, "steward", "steward")[1]


def publish_tables(catalog: Catalog, settings: ServerSettings, table: Path) -> None:
    """Publishes a table under all names, several times each, in the order of time."""
    ledger = Ledger(catalog)
    ledger.record_contract(RecordedContract(DIGEST, SCHEMA, "1.0.0", "id: bench\n" * 200))
    verdicts = {"checks": 12, "failed": 0, "deliveries": {"2026-01-01": "e" * 64}}
    first = replace(
        new_publication(settings, "t0", read_delta(str(table))), contract_digest=DIGEST, verdicts=verdicts
    )
    ledger.append([first])
    now = datetime.now(UTC) - timedelta(days=DAYS)
    with catalog.writing() as session:
        row = session.scalars(select(PublicationRow)).one()
        names = [column.key for column in PublicationRow.__mapper__.column_attrs if column.key != "key"]
        columns = {name: getattr(row, name) for name in names}
        session.execute(update(PublicationRow).values(published_at=now))
        add_rows(session, PublicationRow, (
            {**columns, "table": f"{SCHEMA}.t{number}", "version": version, "run_id": str(uuid.uuid4()),
             "published_at": now + timedelta(days=version, seconds=number), "rows": columns["rows"] + version}
            for version in range(PUBLICATIONS) for number in range(TABLES) if version or number
        ))  # fmt: skip


def share_tables(session: Session, recipients: list[int]) -> None:
    """A share of all tables for all recipients, many small ones, and groups."""
    now, draw = datetime.now(UTC), random.Random(0)
    names = [WIDE, *(f"s{number}" for number in range(SHARES))]
    groups = [EVERYBODY, *(f"g{number}" for number in range(GROUPS))]
    keys, group_keys = range(1, len(names) + 1), range(1, len(groups) + 1)
    add_rows(session, ShareRow, [
        {**named_row(name, now), "key": key, "declared": False} for key, name in zip(keys, names, strict=True)
    ])  # fmt: skip
    add_rows(session, SchemaRow, [
        {"key": key, "share_key": key, "name": SCHEMA, "name_key": SCHEMA, "declared": False} for key in keys
    ])  # fmt: skip
    shared = [(1, number) for number in range(TABLES)]
    shared += [(key, number) for key in keys[1:] for number in draw.sample(range(TABLES), TABLES_EACH)]
    add_rows(session, SharedTableRow, (
        {"id": str(uuid.uuid4()), "schema_key": key, "name": f"t{number}", "name_key": f"t{number}",
         "lake_table": f"{SCHEMA}.t{number}", "history": True, "declared": False}
        for key, number in shared
    ))  # fmt: skip
    add_rows(session, GrantRow, (
        {"recipient_key": recipient, "share_key": key, "created_at": now}
        for recipient in recipients
        for key in [1, *draw.sample(keys[1:], GRANTS_EACH)]
    ))  # fmt: skip
    add_rows(session, GroupRow, [
        {**named_row(name, now), "key": key} for key, name in zip(group_keys, groups, strict=True)
    ])  # fmt: skip
    members = [(1, recipient) for recipient in recipients]
    members += [(key, recipient) for key in group_keys[1:] for recipient in draw.sample(recipients, MEMBERS)]
    add_rows(session, GroupMemberRow, (
        {"group_key": key, "recipient_key": recipient} for key, recipient in members
    ))  # fmt: skip
    add_rows(session, GroupGrantRow, (
        {"group_key": key, "share_key": draw.choice(keys), "created_at": now} for key in group_keys
    ))  # fmt: skip


def add_events(catalog: Catalog, events: int) -> None:
    """Adds the events of the last months, in the order of time."""
    draw, now = random.Random(1), datetime.now(UTC)
    for start in range(0, events, EVENTS_AT_ONCE):
        say(f"event {start:,} of {events:,}")
        some = range(start, min(start + EVENTS_AT_ONCE, events))
        batch = [make_event(draw, now - timedelta(days=DAYS) * (1 - number / events)) for number in some]
        with catalog.writing(seen=False) as session:
            append_events(session, batch)


def make_event(draw: random.Random, at: datetime) -> AuditEvent:
    """A request of a recipient, or a change."""
    request: dict[str, Any] = {"at": at, "request_id": str(uuid.UUID(int=draw.getrandbits(128)))}
    if draw.random() < CHANGES_SHARE:
        name = f"s{draw.randrange(SHARES)}"
        details = {"before": {"name": name, "comment": None}, "after": {"name": name, "comment": "new"}}
        return AuditEvent(**request, kind="change", action="alter_share", principal="steward", object_name=name,
                          details=details)  # fmt: skip
    recipient = draw.randrange(RECIPIENTS // 10 * 9)
    number = (recipient * 7 + draw.randrange(5)) % TABLES
    return AuditEvent(
        **request,
        action=draw.choice(("query_table", "table_version", "table_metadata")),
        recipient=HEAVY if draw.random() < HEAVY_SHARE else f"r{recipient}",
        object_name=f"{WIDE}.{SCHEMA}.t{number}",
        status=403 if draw.random() < 0.02 else 200,
        version=draw.randrange(PUBLICATIONS),
        files=draw.randrange(100),
        size_bytes=draw.randrange(1 << 30),
        ip=f"192.0.2.{draw.randrange(256)}",
        user_agent="Delta-Sharing-Python/1.4.1",
        elapsed_ms=draw.randrange(50),
    )


if __name__ == "__main__":
    sys.exit(main())
