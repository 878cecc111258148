"""`lakeshare admin`: who administers over the API. Whoever may run this may open the catalog itself."""

import csv
import io
import json
import os
import sys
import time
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshare_server.cli.console import open_state_catalog, operator_name
from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakeshare_server.catalog import Catalog
    from lakeshare_server.catalog.audit import ChainedEvent

KEY_FILE = "first-admin.key"

admin_app = typer.Typer(help="Administrators of the API.", no_args_is_help=True)
key_app = typer.Typer(
    help="Their API keys. Roles: owner (everything), steward (shares, recipients, grants), auditor (looks only).",
    no_args_is_help=True,
)
admin_app.add_typer(key_app, name="key")


@key_app.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="Whom the audit log is to know by this key.")],
    role: Annotated[str, typer.Option("--role", help="owner, steward or auditor.")],
    days: Annotated[
        int | None, typer.Option("--days", min=1, help="The key ends after this many days; never by default.")
    ] = None,
) -> None:
    """Make a key and print it; it is nowhere else."""
    from lakeshare_server.catalog.sharing import editing
    from lakeshare_server.catalog.sharing.credentials import add_admin_key

    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with editing(open_state_catalog(), operator_name()) as edit:
        made, key = add_admin_key(edit, name, role, expires_at=expires_at)
    typer.echo(f"{made.name} administers as {made.role}{_until(made.expires_at)}; the key is shown only now:")
    typer.echo(key)


@key_app.command("list")
def list_keys() -> None:
    """List the keys: name, role, state, who made them. Never a key itself."""
    from lakeshare_server.catalog.sharing.credentials import read_admin_keys

    with open_state_catalog().reading() as session:
        found = read_admin_keys(session)
    now = datetime.now(UTC)
    for key in found:
        valid = f"valid{_until(key.expires_at)}"
        state = "revoked" if key.revoked_at else valid if key.is_valid(now) else "expired"
        typer.echo(
            f"{key.name}\t{key.role}\t{state}\tmade {key.created_at:%Y-%m-%d} by {key.created_by or '-'}"
        )


@key_app.command("revoke")
def revoke_key(name: str) -> None:
    """End a key at once; its name stays taken."""
    from lakeshare_server.catalog.sharing import editing
    from lakeshare_server.catalog.sharing.credentials import revoke_admin_key

    with editing(open_state_catalog(), operator_name()) as edit:
        revoked = revoke_admin_key(edit, name)
    typer.echo(f"{revoked.name} administers no more")


def print_first_key(catalog_url: str, state_dir: Path) -> None:
    """Make the first key of a catalog that never had one; it is printed on a terminal, and kept in a file elsewhere.

    What a service prints goes into a log, which others read and which is kept.
    """
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.catalog.sharing.credentials import FIRST_KEY_NAME, create_first_admin_key

    catalog = open_catalog(catalog_url)
    key = create_first_admin_key(catalog)
    catalog.close()
    if key is None:
        return
    if sys.stdout.isatty():
        typer.echo(
            f"The first key of the admin API, an owner's, is shown only now ({FIRST_KEY_NAME}):\n{key}"
        )
        return
    path = state_dir / KEY_FILE
    make_private(state_dir)
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{key}\n")
    typer.echo(
        f"The first key of the admin API, an owner's ({FIRST_KEY_NAME}), is in {path}: keep it somewhere "
        "safe and remove the "
        "file."
    )


def _until(moment: datetime | None) -> str:
    return "" if moment is None else f" until {moment:%Y-%m-%d %H:%MZ}"


audit_app = typer.Typer(
    help="The audit log: who asked for what, what came of it, who changed what, and whether all of it is still there.",
    no_args_is_help=True,
)
FOLLOW_S = 0.5
USAGE_DAYS = 30
PROGRESS_EVERY_S = 2.0


class Shape(StrEnum):
    """How rows are printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


Recipient = Annotated[str | None, typer.Option(help="Only of this recipient.")]
Principal = Annotated[str | None, typer.Option(help="Only of this administrator.")]
Action = Annotated[
    str | None, typer.Option(help="Only this call or change, like query_table or alter_share.")
]
Object = Annotated[
    str | None,
    typer.Option("--object", help="Only this object and what is in it: SHARE, SHARE.SCHEMA.TABLE."),
]
RequestId = Annotated[str | None, typer.Option("--request", help="Only this request: its x-request-id.")]
Address = Annotated[str | None, typer.Option("--ip", help="Only from this address.")]
Refused = Annotated[bool, typer.Option("--refused", help="Only what was refused or failed.")]
Since = Annotated[
    str | None, typer.Option(help="Only from then on: 2026-03-01, 2026-03-01T12:00Z, or 2h, 30m, 7d ago.")
]
Until = Annotated[str | None, typer.Option(help="Only from before then; spelt like --since.")]
AsJson = Annotated[bool, typer.Option("--json", help="Whole events, a line of JSON each.")]


@audit_app.command("tail")
def tail(
    lines: Annotated[int, typer.Option("-n", min=0, help="How many of the newest.")] = 20,
    follow: Annotated[
        bool, typer.Option("-f", help="Go on with new ones as they come, until Ctrl-C.")
    ] = False,
    recipient: Recipient = None,
    principal: Principal = None,
    action: Action = None,
    object_name: Object = None,
    refused: Refused = False,
    as_json: AsJson = False,
) -> None:
    """Show the newest events, and new ones as they come."""
    from lakeshare_server.catalog.audit import Search, events_after, newest_event_number, search

    catalog = _complete_catalog()
    query = Search(
        recipient=recipient, principal=principal, action=action, object_name=object_name, refused=refused
    )
    number = newest_event_number(catalog)
    _print_events(search(catalog, query, lines) if lines else (), as_json=as_json)
    while follow:
        time.sleep(FOLLOW_S)
        newest = newest_event_number(catalog)
        if newest > number:
            _print_events(events_after(catalog, number, query), as_json=as_json)
            number = newest


@audit_app.command("search")
def search_events(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    recipient: Recipient = None,
    principal: Principal = None,
    action: Action = None,
    object_name: Object = None,
    request_id: RequestId = None,
    ip: Address = None,
    refused: Refused = False,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Find events: of a recipient, an object, a request, an address, a time.

    Example: lakeshare audit search --recipient bob --refused --since 7d
    """
    from lakeshare_server.catalog.audit import Search, search

    query = Search(
        recipient=recipient,
        principal=principal,
        action=action,
        object_name=object_name,
        request_id=request_id,
        ip=ip,
        refused=refused,
        since=_moment("since", since),
        until=_moment("until", until),
    )
    _print_events(search(_complete_catalog(), query, limit), as_json=as_json)


@audit_app.command("export")
def export_events(
    file: Annotated[Path, typer.Argument(help="Where they go; .jsonl or .parquet says how.")],
    since: Since = None,
    until: Until = None,
    recipient: Recipient = None,
) -> None:
    """Write events to a file of JSON lines or Parquet, with their hashes.

    Example: lakeshare audit export march.parquet --since 2026-03-01 --until 2026-04-01
    """
    from lakeshare_server.catalog.audit import Search, events_after
    from lakeshare_server.catalog.audit.maintenance import export

    query = Search(recipient=recipient, since=_moment("since", since), until=_moment("until", until))
    count = export(events_after(_complete_catalog(), 0, query), file)
    typer.echo(f"{count} events are in {file}")


@audit_app.command("verify")
def verify_chain(
    receipt: Annotated[
        str | None,
        typer.Option(help="What an earlier run printed: tells a chain that was made anew, too."),
    ] = None,
) -> None:
    """Tell whether any event was removed, changed or moved. Exit code 1 if so.

    Keep the receipt that it prints where nobody who can write to the database can change it.
    """
    from lakeshare_server.catalog.audit import parse_receipt, verify

    told_at = time.monotonic()

    def progress(done: int, events: int) -> None:
        nonlocal told_at
        if done < events and time.monotonic() - told_at > PROGRESS_EVERY_S:
            told_at = time.monotonic()
            typer.echo(f"{done} of {events} events", err=True)

    found = verify(_complete_catalog(), None if receipt is None else parse_receipt(receipt), progress)
    for finding in found.findings:
        typer.echo(f"{finding.kind}\t{finding.said}")
    if found.unchained:
        typer.echo(f"{found.unchained} events are from before the chain, and cannot be verified")
    if not found.is_sound:
        typer.echo(f"{found.events} events, {len(found.findings)} findings: the log is not as it was written")
        raise typer.Exit(1)
    typer.echo(f"{found.events} events, none removed, changed or moved")
    typer.echo(f"receipt: {found.head}")


@audit_app.command("prune")
def prune_events(
    days: Annotated[
        int | None,
        typer.Option(
            min=1, help="Keep the events of so many days; LAKESHARE_AUDIT_RETENTION_DAYS by default."
        ),
    ] = None,
) -> None:
    """Remove old events. The rest can be verified as before, and usage stays."""
    from lakeshare_server.catalog.audit import prune
    from lakeshare_server.errors import BadRequest
    from lakeshare_server.settings import StateSettings

    retention_days = days or StateSettings().audit_retention_days
    if retention_days is None:
        raise BadRequest("--days", None, "Give it, or set LAKESHARE_AUDIT_RETENTION_DAYS.")
    pruned = prune(_complete_catalog(), datetime.now(UTC) - timedelta(days=retention_days), operator_name())
    typer.echo(f"{pruned.events} events of more than {retention_days} days ago are removed")


def usage(
    days: Annotated[int, typer.Option(min=1, help="Of so many days, today included.")] = USAGE_DAYS,
    recipient: Recipient = None,
    table: Annotated[str | None, typer.Option(help="Only of this table: SHARE.SCHEMA.TABLE.")] = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="Counts by recipient, table, version or day; repeat for more."),
    ] = None,
    shape: Annotated[Shape, typer.Option("--as", help="How it is printed.")] = Shape.TEXT,
) -> None:
    """Count what recipients asked for: requests, queries, files and bytes signed for, refusals, versions read.

    Example: lakeshare usage --days 7 --by recipient --by table --as csv
    """
    from lakeshare_server.catalog.audit import group_usage
    from lakeshare_server.catalog.audit import read_usage as usage_of
    from lakeshare_server.catalog.audit.maintenance import COUNTS, DIMENSIONS
    from lakeshare_server.errors import BadRequest

    chosen = list(dict.fromkeys(by or ["recipient", "table"]))
    for name in chosen:
        if name not in DIMENSIONS:
            raise BadRequest("--by", name, f"It is one of {', '.join(DIMENSIONS)}.")
    today = datetime.now(UTC).date()
    found = usage_of(_complete_catalog(), today - timedelta(days=days - 1), today, recipient, table)
    typer.echo(_format_rows(group_usage(found, chosen), [*chosen, *COUNTS, "versions"], shape), nl=False)


def _format_rows(rows: "list[dict[str, Any]]", names: list[str], shape: Shape) -> str:
    if shape is Shape.JSON:
        return json.dumps(rows, default=date.isoformat, ensure_ascii=False) + "\n"
    text = io.StringIO()
    if shape is Shape.CSV:
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
    lines = ["\t".join(name.upper() for name in names)]
    lines += ["\t".join("-" if row[name] is None else str(row[name]) for name in names) for row in rows]
    return "\n".join(lines) + "\n"


def _print_events(events: "Iterable[ChainedEvent]", *, as_json: bool) -> None:
    from lakeshare_server.catalog.audit.maintenance import event_line

    for chained in events:
        if as_json:
            sys.stdout.write(event_line(chained).decode())
            continue
        event = chained.event
        outcome = "changed" if event.kind == "change" else f"{event.status} {event.error_code or ''}".rstrip()
        columns = [f"version {event.version}"] if event.version is not None else []
        columns += [f"{event.files} files"] if event.files is not None else []
        columns += [f"{event.size_bytes} bytes"] if event.size_bytes is not None else []
        columns += ["(ended)"] if event.kind == "end" else []
        who = event.recipient or event.principal or "-"
        when = event.at.strftime("%Y-%m-%d %H:%M:%SZ")
        words = (
            str(chained.number), when, who, event.ip or "-", event.action, event.object_name or "-", outcome,
            " ".join(columns), event.request_id,
        )  # fmt: skip
        typer.echo("\t".join(words))
    sys.stdout.flush()


def _moment(option: str, text: str | None) -> datetime | None:
    """A time as people give it.

    Raises:
        BadRequest: it is none.
    """
    from lakeshare_server.errors import BadRequest

    if text is None:
        return None
    units = {"m": "minutes", "h": "hours", "d": "days"}
    number, unit = text[:-1], text[-1:]
    try:
        if unit in units and number.isascii() and number.isdigit():
            return datetime.now(UTC) - timedelta(**{units[unit]: int(number)})
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        hint = "Give a day or time like 2026-03-01 or 2026-03-01T12:00Z, or 30m, 2h, 7d for so long ago."
        raise BadRequest(f"--{option}", text, hint) from error


def _complete_catalog() -> "Catalog":
    """The catalog, with what ended processes have left in their journals."""
    from lakeshare_server.catalog.audit import import_orphans
    from lakeshare_server.settings import StateSettings

    catalog = open_state_catalog()
    import_orphans(catalog, StateSettings().audit_dir)
    return catalog
