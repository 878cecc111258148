"""`lakeshare restore table|set|all|partition`: the way back, shown with --plan before it is gone."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.cli.backup import show_progress

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
    help="The way back from a backup point: tables, sets, partitions, the catalog.", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(help="Its name in the lake, as flights.departures, or the key of its root.")
]
BackupName = Annotated[
    str | None, typer.Option("--backup", help="A declared backup; the only one by default.")
]
Day = Annotated[
    str | None, typer.Option("--point", help="The point's day; the newest fully verified one by default.")
]
Version = Annotated[
    int | None,
    typer.Option(help="A Delta version or an Iceberg snapshot inside the point; the proved one by default."),
]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Where it was; nothing that is there is overwritten.")
]
To = Annotated[str | None, typer.Option(help="An empty place instead: a folder, or s3://bucket/prefix.")]
Endpoint = Annotated[str | None, typer.Option("--to-endpoint", help="URL of the store of --to.")]
Region = Annotated[str | None, typer.Option("--to-region", help="Region of the bucket of --to.")]
Profile = Annotated[str | None, typer.Option("--to-profile", help="AWS profile that reaches --to.")]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Tell what it would do and take; do nothing.")]


@dataclass(frozen=True)
class RestoreOptions:
    """What the options of a restore say."""

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

        return get_point(self.points, self.day, _print_message)

    def below(self, name: str) -> "StoreAddress | None":
        """A place of its own for one of several tables."""
        if self.to is None:
            return None
        return self.to.model_copy(update={"url": f"{self.to.url.rstrip('/')}/{name.replace('.', '/')}"})

    @cached_property
    def restores(self) -> "PointRestore":
        from lakeshare_pipelines.backup.restore.tables import PointRestore

        return PointRestore(self.settings, self.backup, self.point, _print_message, show_progress())

    @cached_property
    def catalog(self) -> "Catalog":
        from lakeshare_server.catalog import open_catalog

        return open_catalog(self.settings.catalog_url)

    def planned(self, table: str, version: int | None, to: "StoreAddress | None") -> "RestorePlan":
        return self.restores.plan(self.catalog, table, to, version)

    def restored(self, table: str, version: int | None, to: "StoreAddress | None") -> "RestoreRecord":
        if to is not None:
            return self.restores.elsewhere(table, to, version)
        return self.restores.in_place(self.catalog, table, version)


@restore_app.command("table")
def table(
    name: Name,
    in_place: InPlace = False,
    to: To = None,
    mount: Annotated[
        bool, typer.Option("--mount", help="Copy nothing: tell where the copies open as they are.")
    ] = False,
    version: Version = None,
    day: Day = None,
    backup: BackupName = None,
    to_endpoint: Endpoint = None,
    to_region: Region = None,
    to_profile: Profile = None,
    plan: OnlyPlan = False,
) -> None:
    """Restore a table: in place, to another place, or opened where its copies are."""
    options = _parse_options(backup, day, to, to_endpoint, to_region, to_profile)
    _require_one_place(in_place, to, mount)
    if mount:
        from lakeshare_pipelines.backup.restore.targets import find_mount

        found = find_mount(options.points, options.point, name, version, _print_message)
        typer.echo(f"{found.location} at version {found.version}")
    elif plan:
        _show_plan(options.planned(name, version, options.to))
    else:
        _show_record(options.restored(name, version, options.to))


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
    _require_one_place(in_place, to)
    _restore_each(options, list_tables_of_set(options.settings, name), plan=plan)


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
    """Restore all that a point holds: every table, and what belongs to none."""
    from lakeshare_pipelines.backup.restore.tables import restore_other_files

    options = _parse_options(backup, day, to, to_endpoint, to_region, to_profile)
    _require_one_place(in_place, to)
    if not plan:
        others = restore_other_files(
            options.settings, options.backup, options.point, options.to, _print_message
        )
        typer.echo(f"{others:,} objects of no table")
    _restore_each(options, [proof.table.root for proof in options.point.verification.tables], plan=plan)


@restore_app.command("partition")
def partition(
    name: Name,
    values: Annotated[
        list[str], typer.Argument(metavar="COLUMN=VALUE…", help="The partition, as day=2013-01-01.")
    ],
    version: Version = None,
    day: Day = None,
    backup: BackupName = None,
    plan: OnlyPlan = False,
) -> None:
    """Put a partition of a live Delta table back to what it was, by one commit."""
    options = _parse_options(backup, day, None, None, None, None)
    wanted = dict(_parse_pair(value) for value in values)
    if plan:
        _show_plan(options.restores.plan_of_partition(options.catalog, name, wanted, version))
    else:
        _show_record(options.restores.partition(options.catalog, name, wanted, version))


def _restore_each(options: RestoreOptions, names: list[str], *, plan: bool) -> None:
    from lakeshare_pipelines.backup.restore.tables import restore_each

    if plan:
        for name in names:
            _show_plan(options.planned(name, None, options.below(name)))
        return

    def restore(name: str) -> "RestoreRecord":
        record = options.restored(name, None, options.below(name))
        _show_record(record)
        return record

    restored = restore_each(names, restore)
    for failure in restored.failures:
        typer.echo(f"NOT RESTORED: {failure}", err=True)
    typer.echo(f"{len(restored.records)} of {len(names)} tables restored")
    raise typer.Exit(1 if restored.failures else 0)


def _parse_options(
    backup: str | None,
    day: str | None,
    to: str | None,
    endpoint: str | None,
    region: str | None,
    profile: str | None,
) -> RestoreOptions:
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    found = find_backup(settings, backup)
    return RestoreOptions(
        settings, found, day, None if to is None else _place(found, to, endpoint, region, profile)
    )


def _place(
    backup: "Backup", to: str, endpoint: str | None, region: str | None, profile: str | None
) -> "StoreAddress":
    """The address of --to; a bucket is reached as the source is, where nothing else is told."""
    from pathlib import Path

    from pydantic import ValidationError

    from lakeshare_pipelines.backup.stores import StoreAddress
    from lakeshare_pipelines.errors import BackupError

    like = backup.source if to.startswith("s3://") and backup.source.kind == "s3" else None
    url = to if to.startswith("s3://") else str(Path(to).expanduser().absolute())
    options = {"endpoint": endpoint, "region": region, "profile": profile}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return StoreAddress.model_validate({**(like.model_dump() if like else {}), **given, "url": url})
    except ValidationError as error:
        raise BackupError(f"--to {to}", error.errors()[0]["msg"], "Correct it.") from error


def _require_one_place(in_place: bool, to: str | None, mount: bool = False) -> None:
    from lakeshare_pipelines.errors import BackupError

    if sum((in_place, to is not None, mount)) != 1:
        raise BackupError("a restore", "it needs one place", "Say --in-place, or --to with an empty place.")


def _parse_pair(text: str) -> tuple[str, str | None]:
    from lakeshare_pipelines.errors import BackupError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BackupError(f"partition {text}", "it is no COLUMN=VALUE", "Say it as day=2013-01-01.")
    return name, value or None


def _print_message(sentence: str) -> None:
    typer.echo(f"  {sentence}", err=True)


def _show_plan(plan: "RestorePlan") -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{plan.table.root} of point {plan.day} at version {plan.version}, to {plan.place}")
    for name in ("objects", "bytes", "there already", "archived", "requests", "USD", "minutes"):
        shown.add_column(name, justify="right")
    shown.add_row(
        f"{plan.objects:,}",
        f"{plan.size_bytes:,}",
        f"{plan.there:,}",
        f"{plan.archived:,}",
        f"{plan.requests:,}",
        f"{plan.usd:,.4f}",
        f"{plan.minutes:,.2f}",
    )
    Console(width=120).print(shown)
    for number, step in enumerate(plan.steps, 1):
        typer.echo(f"  {number}. {step}")


def _show_record(record: "RestoreRecord") -> None:
    rows = "" if record.rows is None else f", {record.rows:,} rows"
    typer.echo(
        f"{record.table.root} of point {record.day} opens at version {record.version}: {record.location}"
        f"{rows}, {record.files:,} files; {record.objects:,} objects brought in {record.seconds:.1f} s"
    )
    if record.registered_as is not None:
        number = "" if record.publication is None else f", recipients read publication {record.publication}"
        typer.echo(f"  it is {record.registered_as} again{number}")
    for note in record.notes:
        typer.echo(f"  {note}")


@restore_app.command("catalog")
def catalog(
    day: Annotated[
        str | None, typer.Argument(metavar="[DAY]", help="The point; the newest verified one by default.")
    ] = None,
    backup_name: Annotated[
        str | None, typer.Option("--backup", help="Name of a declared backup; the only one by default.")
    ] = None,
    contracts_to: Annotated[
        Path | None,
        typer.Option("--contracts", help="Folder that the contracts go to; those in it stay as they are."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would come back, and change nothing.")
    ] = False,
) -> None:
    """Bring the catalog of a backup point back into the database of LAKESHARE_DATABASE_URL, which must be empty."""
    from lakeshare_pipelines.backup.catalog_dump import read_manifest, restore_catalog
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.restore.copies import get_point
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    points = Points(find_backup(settings, backup_name))
    # A dump is whole by itself: one that is named comes back even where its point was never finished.
    day = day or get_point(points, None, lambda line: typer.echo(f"  {line}", err=True)).day
    manifest = read_manifest(points, day)
    typer.echo(
        f"point {day}: catalog of {manifest.dumped_at:%Y-%m-%d %H:%M:%S} UTC, revision {manifest.revision}"
    )
    for table in manifest.tables:
        typer.echo(f"  {table.name:20} {table.rows:>9,} rows")
    typer.echo(f"  {'file indexes':20} {len(manifest.indexes):>9,}")
    typer.echo(f"  {'contracts':20} {len(manifest.contracts):>9,}")
    if plan:
        return
    brought = restore_catalog(settings, points, day, contracts_to, typer.echo)
    typer.echo(f"{sum(brought.rows.values()):,} rows and {brought.indexes:,} file indexes are back")
    if brought.missing_indexes:
        typer.echo(
            f"{len(brought.missing_indexes)} file indexes were not there to be backed up: publish those tables again"
        )
    for path in brought.contracts:
        typer.echo(f"contract {path}")
    typer.echo("recipients keep their profiles: their tokens are known by their digests")
