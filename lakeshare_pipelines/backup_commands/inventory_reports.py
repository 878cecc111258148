"""`lakeshare inventory configure|status`: have a store report its objects, and see whether its reports come in time."""

import datetime as dt
import json
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import inventory_app

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.declared import Backup
    from lakeshare_pipelines.backup.listing.columns import ReportFormat
    from lakeshare_pipelines.backup.listing.status import InventoryStatus, ReportStatus

BackupName = Annotated[
    str | None, typer.Argument(metavar="[BACKUP]", help="Name of a declared backup; the only one by default.")
]
FORMATS: "dict[str, ReportFormat]" = {"csv": "CSV", "orc": "ORC", "parquet": "Parquet"}


@inventory_app.command("configure")
def configure(
    name: BackupName = None,
    file_format: Annotated[
        str, typer.Option("--format", help="csv, orc or parquet; Batch Operations take csv only.")
    ] = "parquet",
    weekly: Annotated[bool, typer.Option("--weekly", help="A report a week instead of one a day.")] = False,
    kms_key: Annotated[
        str | None, typer.Option("--kms-key", help="ARN of the key that reports are encrypted with.")
    ] = None,
    with_lock: Annotated[
        bool, typer.Option("--with-lock", help="Ask for the columns of Object Lock as well.")
    ] = False,
    policy: Annotated[
        bool, typer.Option("--policy/--no-policy", help="Let the destination's bucket policy allow it too.")
    ] = True,
    show: Annotated[bool, typer.Option("--show", help="Print both documents and change nothing.")] = False,
) -> None:
    """Ask S3 for the inventory that a backup is declared to be listed by, and let its destination take it."""
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.listing.configuration import (
        Wanted,
        configuration_of,
        put_configuration,
        put_statement,
        statement_of,
    )
    from lakeshare_pipelines.settings import LakeSettings

    if file_format.lower() not in FORMATS:
        raise typer.BadParameter(f"{file_format!r} is none of csv, orc, parquet", param_hint="--format")
    backup = backup_named(LakeSettings(), name)
    wanted = Wanted(FORMATS[file_format.lower()], "Weekly" if weekly else "Daily", kms_key, with_lock)
    if show:
        documents = {"InventoryConfiguration": configuration_of(backup, wanted)}
        if policy:
            documents["Statement"] = statement_of(backup)
        typer.echo(json.dumps(documents, indent=2))
        return
    if policy:
        put_statement(backup)
        typer.echo(f"the bucket policy of the destination lets {backup.source.bucket} report")
    kept = put_configuration(backup, wanted)
    asked = f"{kept['Schedule']['Frequency'].lower()}, {kept['IncludedObjectVersions'].lower()} versions"
    typer.echo(f"{backup.source} has inventory configuration {kept['Id']}: {file_format}, {asked}")
    typer.echo("the first report may take 48 hours; `lakeshare inventory status` shows it")


@inventory_app.command("status")
def status(name: BackupName = None) -> None:
    """Show the newest reports, how old they are and whether they came in time. Exit code 1 if a day's did not."""
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.listing.status import inventory_status
    from lakeshare_pipelines.settings import LakeSettings

    backup = backup_named(LakeSettings(), name)
    typer.echo(f"backup {backup.name}, {backup.listing.kind} of {backup.source}")
    if backup.listing.kind == "generator":
        typer.echo("it is listed when a backup is made: no report is waited for")
        return
    typer.echo(f"at {backup.listing.location}")
    if backup.listing.kind == "s3_metadata":
        typer.echo(_tables(backup))
        return
    if backup.listing.kind == "manifest_csv":
        return
    found = inventory_status(backup, dt.datetime.now(dt.UTC))
    for line in _lines(found):
        typer.echo(line)
    raise typer.Exit(1 if found.late is not None else 0)


def _lines(found: "InventoryStatus") -> list[str]:
    lines = []
    if found.reports:
        lines.append(f"{found.arrived} reports have arrived, the newest are")
        lines.append(
            f"  {'scan began':20} {'age':>7} {'took':>7}  {'format':8} {'files':>6}  newest day   in time"
        )
        lines += [_line(one) for one in found.reports]
    else:
        lines.append("no report has arrived; the first may take 48 hours after it was configured")
    if found.late is not None:
        lines.append(f"day {found.due_day}: {found.late.reason}")
    lines.append(
        f"next: day {found.next_day}, by a report whose scan begins at {found.next_from:%Y-%m-%d %H:%M} UTC or later "
        f"and that comes by {found.next_until:%Y-%m-%d %H:%M} UTC"
    )
    return lines


def _line(one: "ReportStatus") -> str:
    took = one.arrived_at - one.scan_started_at
    began = f"  {one.scan_started_at:%Y-%m-%d %H:%M} UTC {_hours(one.age):>7} {_hours(took):>7}"
    if one.report is None:
        return f"{began}  cannot be used: {one.problem}"
    in_time = "yes" if one.is_in_time else "no"
    return f"{began}  {one.report.file_format:8} {len(one.report.files):6}  {one.day}   {in_time}"


def _hours(span: dt.timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} d"


def _tables(backup: "Backup") -> str:
    from lakeshare_pipelines.backup.listing.metadata_tables import newest_snapshots

    return "\n".join(
        f"{place}: newest snapshot {'none' if made is None else f'{made:%Y-%m-%d %H:%M:%S} UTC'}"
        for place, made in newest_snapshots(backup).items()
    )
