"""`lakeshare admin`, `audit` and `usage`: administrators of the API, and the audit log."""

import csv
import json
import os
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lakeshare_server.cli import console
from lakeshare_server.errors import BadRequest
from lakeshare_server.lazy import LazyModule
from lakeshare_server.settings import StateSettings, make_private

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakeshare_server.catalog import Catalog, audit, credentials, sharing
    from lakeshare_server.catalog.audit import ChainedEvent, maintenance
    from lakeshare_server.settings import ServerSettings
else:
    audit = LazyModule("lakeshare_server.catalog.audit")
    maintenance = LazyModule("lakeshare_server.catalog.audit.maintenance")
    sharing = LazyModule("lakeshare_server.catalog.sharing")
    credentials = LazyModule("lakeshare_server.catalog.credentials")


admin_app = typer.Typer(help="Administrators of the API.", no_args_is_help=True)
key_app = typer.Typer(
    help="Their API keys. Roles: owner (everything), steward (shares, recipients, grants), auditor (read only).",
    no_args_is_help=True,
)
admin_app.add_typer(key_app, name="key")


@key_app.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="The key's name in the audit log.")],
    role: Annotated[str, typer.Option("--role", help="owner, steward or auditor.")],
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires; never by default.")] = None,
) -> None:
    """Create a key and print it; it is stored nowhere."""
    expires_at = None if days is None else console.shift_now("--days", days)
    with console.edit_catalog() as edit:
        added, key = credentials.add_admin_key(edit, name, role, expires_at=expires_at)
    until = _until(added.expires_at)
    typer.echo(f"{added.name} administers as {added.role}{until}; the key is shown only now:\n{key}")


@key_app.command("list")
def list_keys(as_json: console.AsJson = False) -> None:
    """List the keys: name, role, state, creator; never the keys themselves."""
    with console.open_state_catalog().reading() as session:
        keys = credentials.read_admin_keys(session)
    if as_json:
        console.print_json([vars(key) for key in keys])
        return
    now, rows = datetime.now(UTC), []
    for key in keys:
        valid = f"valid{_until(key.expires_at)}"
        state = "revoked" if key.revoked_at else valid if key.is_valid(now) else "expired"
        made = f"made {key.created_at:%Y-%m-%d} by {key.created_by or '-'}"
        rows.append([key.name, key.role, state, made])
    console.print_table(rows)


@key_app.command("revoke")
def revoke_key(name: Annotated[str, typer.Argument(help="The key's name.")]) -> None:
    """Revoke a key at once; its name stays reserved."""
    with console.edit_catalog() as edit:
        revoked = credentials.revoke_admin_key(edit, name)
    typer.echo(f"{revoked.name} administers no more")


def print_first_key(settings: "ServerSettings") -> None:
    """Create the first key of a catalog that never had one; printed on a terminal, else written to a file.

    The output of a service goes into a log, which others read and which is kept.
    """
    from lakeshare_server.catalog import open_catalog

    catalog = open_catalog(settings.catalog_url)
    key = credentials.create_first_admin_key(catalog)
    catalog.close()
    if key is None:
        return
    what = "The first key of the admin API, an owner's"
    if sys.stdout.isatty():
        typer.echo(f"{what}, is shown only now ({credentials.FIRST_KEY_NAME}):\n{key}")
        return
    path = settings.first_key_file
    make_private(settings.state_dir)
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{key}\n")
    what += f" ({credentials.FIRST_KEY_NAME}), is in {path}"
    typer.echo(f"{what}: keep it somewhere safe and remove the file.")


def _until(moment: datetime | None) -> str:
    return "" if moment is None else f" until {moment:%Y-%m-%d %H:%MZ}"


audit_app = typer.Typer(
    help="The audit log: search, follow, export, verify and prune requests and changes.", no_args_is_help=True
)
FOLLOW_S = 0.5
USAGE_DAYS = 30
PROGRESS_EVERY_S = 2.0
Shape = Literal["text", "json", "csv"]


Recipient = Annotated[str | None, typer.Option(help="Only of this recipient.")]
Principal = Annotated[str | None, typer.Option(help="Only of this administrator.")]
Action = Annotated[str | None, typer.Option(help="Only this call or change, like query_table, alter_share.")]
Object = Annotated[str | None, typer.Option("--object", help="Only this share or table, and what is in it.")]
RequestId = Annotated[str | None, typer.Option("--request", help="Only this request: its x-request-id.")]
Address = Annotated[str | None, typer.Option("--ip", help="Only from this address.")]
Refused = Annotated[bool, typer.Option("--refused", help="Only refused and failed requests.")]
Since = Annotated[str | None, typer.Option(help="From 2026-03-01, 2026-03-01T12:00Z, or 2h, 30m, 7d ago on.")]
Until = Annotated[str | None, typer.Option(help="Before this time; formats as for --since.")]
AsLines = Annotated[bool, typer.Option("--json", help="Whole events, as JSON lines.")]


@audit_app.command("tail")
def tail(
    lines: Annotated[int, typer.Option("-n", min=0, help="Number of events.")] = 20,
    follow: Annotated[bool, typer.Option("-f", help="Print new events as they come, until Ctrl-C.")] = False,
    recipient: Recipient = None,
    principal: Principal = None,
    action: Action = None,
    object_name: Object = None,
    refused: Refused = False,
    as_json: AsLines = False,
) -> None:
    """Print the newest events, and new events as they come."""
    catalog = _complete_catalog()
    query = audit.Search(
        recipient=recipient, principal=principal, action=action, object_name=object_name, refused=refused
    )
    number = audit.newest_event_number(catalog)
    found = audit.search(catalog, query, lines) if lines else ()
    _print_events((event for event in found if event.number <= number), as_json=as_json)
    while follow:
        time.sleep(FOLLOW_S)
        newest = audit.newest_event_number(catalog)
        if newest > number:
            events = audit.events_after(catalog, number, query)
            _print_events((event for event in events if event.number <= newest), as_json=as_json)
            number = newest


@audit_app.command("search")
def search_events(
    limit: Annotated[int, typer.Option(min=1, help="Number of events, the newest first to be kept.")] = 100,
    recipient: Recipient = None,
    principal: Principal = None,
    action: Action = None,
    object_name: Object = None,
    request_id: RequestId = None,
    ip: Address = None,
    refused: Refused = False,
    since: Since = None,
    until: Until = None,
    as_json: AsLines = False,
) -> None:
    """Search events: of a recipient, an object, a request, an address, a time.

    Example: lakeshare audit search --recipient bob --refused --since 7d
    """
    query = audit.Search(
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
    _print_events(audit.search(_complete_catalog(), query, limit), as_json=as_json)


@audit_app.command("export")
def export_events(
    file: Annotated[Path, typer.Argument(help="Output file; its suffix is the format: .jsonl or .parquet.")],
    since: Since = None,
    until: Until = None,
    recipient: Recipient = None,
) -> None:
    """Write events to a file of JSON lines or Parquet, with their hashes.

    Example: lakeshare audit export march.parquet --since 2026-03-01 --until 2026-04-01
    """
    query = audit.Search(recipient=recipient, since=_moment("since", since), until=_moment("until", until))
    count = maintenance.export(audit.events_after(_complete_catalog(), 0, query), file)
    typer.echo(f"{count} events are in {file}")


@audit_app.command("verify")
def verify_chain(
    receipt: Annotated[
        str | None, typer.Option(help="Receipt of an earlier run; detects a chain that was rebuilt, too.")
    ] = None,
) -> None:
    """Verify that no event was removed, changed or moved. Exit code 1 if one was.

    Keep the printed receipt where users with write access to the database cannot change it.
    """
    printed_at = time.monotonic()

    def print_progress(done: int, events: int) -> None:
        nonlocal printed_at
        if done < events and time.monotonic() - printed_at > PROGRESS_EVERY_S:
            printed_at = time.monotonic()
            typer.echo(f"{done} of {events} events", err=True)

    earlier = None if receipt is None else audit.parse_receipt(receipt)
    result = audit.verify(_complete_catalog(), earlier, print_progress)
    console.print_table((finding.kind, finding.problem) for finding in result.findings)
    if result.unchained:
        typer.echo(f"{result.unchained} events are from before the chain, and cannot be verified")
    if not result.is_sound:
        found = f"{result.events} events, {len(result.findings)} findings"
        typer.echo(f"{found}: the log is not as it was written")
        raise typer.Exit(1)
    typer.echo(f"{result.events} events, none removed, changed or moved")
    typer.echo(f"receipt: {result.head}")


@audit_app.command("prune")
def prune_events(
    days: Annotated[
        int | None, typer.Option(min=1, help="Days to keep; LAKESHARE_AUDIT_RETENTION_DAYS by default.")
    ] = None,
) -> None:
    """Remove old events. The rest can be verified as before, and usage stays."""
    retention_days = days or StateSettings().audit_retention_days
    if retention_days is None:
        raise BadRequest("--days", None, "Give it, or set LAKESHARE_AUDIT_RETENTION_DAYS.")
    before = console.shift_now("--days", retention_days, -1)
    pruned = audit.prune(_complete_catalog(), before, console.operator_name())
    typer.echo(f"{pruned.events} events of more than {retention_days} days ago are removed")


def usage(
    days: Annotated[int, typer.Option(min=1, help="Number of days, including today.")] = USAGE_DAYS,
    recipient: Recipient = None,
    table: Annotated[str | None, typer.Option(help="Only of this table: SHARE.SCHEMA.TABLE.")] = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="Group by recipient, table, version or day; repeat for more."),
    ] = None,
    shape: Annotated[Shape, typer.Option("--as", help="Output format.")] = "text",
) -> None:
    """Count the requests of recipients: requests, queries, signed files and bytes, refusals, versions read."""
    dimensions = list(dict.fromkeys(by or ["recipient", "table"]))
    for name in dimensions:
        if name not in maintenance.DIMENSIONS:
            raise BadRequest("--by", name, f"It is one of {', '.join(maintenance.DIMENSIONS)}.")
    today = datetime.now(UTC).date()
    first = console.shift_now("--days", days, -1).date() + timedelta(days=1)
    counted = audit.read_usage(_complete_catalog(), first, today, recipient, table)
    rows = audit.group_usage(counted, dimensions)
    names = [*dimensions, *maintenance.COUNTS, "versions"]
    if shape == "json":
        typer.echo(json.dumps(rows, default=date.isoformat, ensure_ascii=False))
    elif shape == "csv":
        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        cells = (["-" if row[name] is None else row[name] for name in names] for row in rows)
        console.print_table(cells, [name.upper() for name in names])


def _print_events(events: "Iterable[ChainedEvent]", *, as_json: bool) -> None:
    for chained in events:
        if as_json:
            sys.stdout.write(maintenance.event_line(chained).decode())
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
    """A time in ISO 8601, or as an age like `2h`; raises `BadRequest` for anything else."""
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
    """The catalog, with the events in the journals of ended processes."""
    catalog = console.open_state_catalog()
    audit.import_orphans(catalog, StateSettings().audit_dir)
    return catalog
