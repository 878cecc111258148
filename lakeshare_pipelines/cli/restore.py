"""The commands `lakeshare restore …`; `--plan` shows what a command would do."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.cli.backup import load_backup, print_message, show_progress
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.errors import LakeshareError

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.config import Backup
    from lakeshare_pipelines.backup.model import Point
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.restore.copies import RestorePlan, RestoreRecord
    from lakeshare_pipelines.backup.restore.tables import PointRestore
    from lakeshare_pipelines.backup.stores import StoreAddress
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_server.catalog import Catalog

restore_app = typer.Typer(
    help="Restore tables, sets, partitions or the catalog from a backup point.", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(help="Table of the lake, as flights.departures, or the key of its root.")
]
BackupName = Annotated[str | None, typer.Option("--backup", help="The only declared one by default.")]
Day = Annotated[str | None, typer.Option("--point", help="Day; the newest verified point by default.")]
Version = Annotated[
    int | None, typer.Option(help="Delta version or Iceberg snapshot; the verified one by default.")
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Original location; nothing is overwritten.")]
To = Annotated[str | None, typer.Option(help="Empty location: a folder, or s3://bucket/prefix.")]
Endpoint = Annotated[str | None, typer.Option("--to-endpoint", help="URL of the store of --to.")]
Region = Annotated[str | None, typer.Option("--to-region", help="Region of the bucket of --to.")]
Profile = Annotated[str | None, typer.Option("--to-profile", help="AWS profile that reaches --to.")]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Show steps, size and cost; restore nothing.")]


@dataclass(frozen=True)
class RestoreOptions:
    """The parsed options of a restore, and what it needs opened on first use."""

    settings: "LakeSettings"
    backup: "Backup"
    day: str | None
    to: "StoreAddress | None"

    @cached_property
    def points(self) -> "Points":
        from lakeshare_pipelines.backup.points import Points

        return Points(self.backup)

    @cached_property
    def point(self) -> "Point":
        from lakeshare_pipelines.backup.restore.copies import get_point

        return get_point(self.points, self.day, print_message)

    def locate(self, folder: str) -> "StoreAddress | None":
        """Returns the location of a folder below --to."""
        if self.to is None:
            return None
        return self.to.model_copy(update={"url": f"{self.to.url.rstrip('/')}/{folder}".rstrip("/")})

    @cached_property
    def restores(self) -> "PointRestore":
        from lakeshare_pipelines.backup.restore.tables import PointRestore

        return PointRestore(self.settings, self.backup, self.point, print_message, show_progress())

    @cached_property
    def catalog(self) -> "Catalog":
        from lakeshare_server.catalog import open_catalog

        return open_catalog(self.settings.catalog_url)

    def show_plan(self, table: str, version: int | None, to: "StoreAddress | None") -> None:
        _show_plan(self.restores.plan(self.catalog, table, to, version))

    def restore(self, table: str, version: int | None, to: "StoreAddress | None") -> None:
        if to is None:
            _show_record(self.restores.in_place(self.catalog, table, version))
        else:
            _show_record(self.restores.elsewhere(table, to, version))


@restore_app.command("table")
def table(
    name: Name,
    in_place: InPlace = False,
    to: To = None,
    mount: Annotated[bool, typer.Option("--mount", help="Only print where the copies are.")] = False,
    version: Version = None,
    day: Day = None,
    backup: BackupName = None,
    to_endpoint: Endpoint = None,
    to_region: Region = None,
    to_profile: Profile = None,
    plan: OnlyPlan = False,
) -> None:
    """Restore a table: in place, to another location, or opened at the location of its copies."""
    options = _parse_options(backup, day, to, to_endpoint, to_region, to_profile)
    _require_one_location(in_place, to, mount)
    if mount:
        from lakeshare_pipelines.backup.restore.targets import find_mount

        found = find_mount(options.points, options.point, name, version, print_message)
        typer.echo(f"{found.location} at version {found.version}")
    else:
        (options.show_plan if plan else options.restore)(name, version, options.to)


@restore_app.command("set")
def restore_set(
    name: Annotated[str, typer.Argument(help="A contract's name.")],
    in_place: InPlace = False,
    to: To = None,
    day: Day = None,
    backup: BackupName = None,
    to_endpoint: Endpoint = None,
    to_region: Region = None,
    to_profile: Profile = None,
    plan: OnlyPlan = False,
) -> None:
    """Restore the tables that a contract publishes together."""
    from lakeshare_pipelines.backup.restore.tables import list_tables_of_set

    options = _parse_options(backup, day, to, to_endpoint, to_region, to_profile)
    _require_one_location(in_place, to)
    names = list_tables_of_set(options.settings, name)
    _restore_each(options, {name: name.replace(".", "/") for name in names}, plan=plan)


@restore_app.command("all")
def restore_all(
    in_place: InPlace = False,
    to: To = None,
    day: Day = None,
    backup: BackupName = None,
    to_endpoint: Endpoint = None,
    to_region: Region = None,
    to_profile: Profile = None,
    plan: OnlyPlan = False,
) -> None:
    """Restore everything in a point: every table, and the objects of no table."""
    options = _parse_options(backup, day, to, to_endpoint, to_region, to_profile)
    _require_one_location(in_place, to)
    if not plan:
        typer.echo(f"{options.restores.other_files(options.to):,} objects of no table")
    prefix, tables = options.backup.source.prefix, options.point.verification.tables
    folders = {proof.table.root: f"{proof.table.root}/".removeprefix(prefix) for proof in tables}
    _restore_each(options, folders, plan=plan)


@restore_app.command("partition")
def partition(
    name: Name,
    values: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="As day=2013-01-01.")],
    version: Version = None,
    day: Day = None,
    backup: BackupName = None,
    plan: OnlyPlan = False,
) -> None:
    """Restore a partition of a live Delta table, in one commit."""
    options = _parse_options(backup, day)
    partition_values: dict[str, str | None] = {}
    for text in values:
        column, equals, value = text.partition("=")
        if not column or not equals:
            raise BackupError(f"partition {text}", "it is no COLUMN=VALUE", "Give it as day=2013-01-01.")
        partition_values[column] = value or None
    if plan:
        _show_plan(options.restores.plan_of_partition(options.catalog, name, partition_values, version))
    else:
        _show_record(options.restores.partition(options.catalog, name, partition_values, version))


def _restore_each(options: RestoreOptions, folders: dict[str, str], *, plan: bool) -> None:
    """Restores each table to its folder below --to; a failed restore does not stop the others."""
    work, done = (options.show_plan, "planned") if plan else (options.restore, "restored")
    failures = []
    for name, folder in folders.items():
        try:
            work(name, None, options.locate(folder))
        except LakeshareError as error:
            failures.append(f"{name}: {error}")
    for failure in failures:
        typer.echo(f"NOT {done.upper()}: {failure}", err=True)
    typer.echo(f"{len(folders) - len(failures)} of {len(folders)} tables {done}")
    raise typer.Exit(1 if failures else 0)


def _parse_options(
    backup_name: str | None,
    day: str | None,
    to: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    profile: str | None = None,
) -> RestoreOptions:
    """Parses the options; a bucket of --to has the connection options of the source by default."""
    from pydantic import ValidationError

    from lakeshare_pipelines.backup.stores import StoreAddress

    settings, backup = load_backup(backup_name)
    if to is None:
        return RestoreOptions(settings, backup, day, None)
    like = backup.source if to.startswith("s3://") and backup.source.kind == "s3" else None
    options = {"endpoint": endpoint, "region": region, "profile": profile}
    given = {name: value for name, value in options.items() if value is not None}
    given["url"] = to if to.startswith("s3://") else str(Path(to).expanduser().absolute())
    try:
        address = StoreAddress.model_validate({**(like.model_dump() if like else {}), **given})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BackupError(f"--to {to}", problem, "Correct it.") from error
    return RestoreOptions(settings, backup, day, address)


def _require_one_location(in_place: bool, to: str | None, mount: bool = False) -> None:
    if sum((in_place, to is not None, mount)) != 1:
        fix = "Give --in-place, or --to with an empty location."
        raise BackupError("a restore", "it needs one location", fix)


def _show_plan(plan: "RestorePlan") -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{plan.table.root} of point {plan.day} at version {plan.version}, to {plan.place}")
    for name in ("objects", "bytes", "there already", "archived", "requests", "USD", "minutes"):
        shown.add_column(name, justify="right")
    counts = (plan.objects, plan.size_bytes, plan.there, plan.archived, plan.requests)
    shown.add_row(*(f"{count:,}" for count in counts), f"{plan.usd:,.4f}", f"{plan.minutes:,.2f}")
    Console(width=120).print(shown)
    for number, step in enumerate(plan.steps, 1):
        typer.echo(f"  {number}. {step}")


def _show_record(record: "RestoreRecord") -> None:
    rows = "" if record.rows is None else f", {record.rows:,} rows"
    typer.echo(
        f"{record.table.root} of point {record.day} opens at version {record.version}: {record.location}"
        f"{rows}, {record.files:,} files; {record.objects:,} objects copied in {record.seconds:.1f} s"
    )
    if record.registered_as is not None:
        number = "" if record.publication is None else f", recipients read publication {record.publication}"
        typer.echo(f"  it is {record.registered_as} again{number}")
    for note in record.notes:
        typer.echo(f"  {note}")


@restore_app.command("catalog")
def catalog(
    day: Annotated[
        str | None, typer.Argument(metavar="[DAY]", help="The newest verified by default.")
    ] = None,
    backup_name: BackupName = None,
    contracts_to: Annotated[
        Path | None, typer.Option("--contracts", help="Folder for contracts; nothing is overwritten.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the content; change nothing.")] = False,
) -> None:
    """Restore the catalog of a backup point into the database of LAKESHARE_DATABASE_URL, which must be empty."""
    from lakeshare_pipelines.backup.catalog_dump import read_manifest, restore_catalog

    options = _parse_options(backup_name, None)
    settings, points = options.settings, options.points
    # A dump is complete by itself: it can be restored even if its point was never finished.
    day = day or options.point.day
    manifest = read_manifest(points, day)
    line = f"point {day}: catalog of {manifest.dumped_at:%Y-%m-%d %H:%M:%S} UTC, revision {manifest.revision}"
    typer.echo(line)
    for table in manifest.tables:
        typer.echo(f"  {table.name:20} {table.rows:>9,} rows")
    typer.echo(f"  {'file indexes':20} {len(manifest.indexes):>9,}")
    typer.echo(f"  {'contracts':20} {len(manifest.contracts):>9,}")
    if plan:
        return
    restored = restore_catalog(settings, points, day, contracts_to, typer.echo)
    typer.echo(f"{sum(restored.rows.values()):,} rows and {restored.indexes:,} file indexes are restored")
    if restored.missing_indexes:
        typer.echo(
            f"{len(restored.missing_indexes)} file indexes were missing at the backup: publish those tables again"
        )
    for path in restored.contracts:
        typer.echo(f"contract {path}")
    typer.echo("recipients keep their profiles: the catalog holds the digests of their tokens")
