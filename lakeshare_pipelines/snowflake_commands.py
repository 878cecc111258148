"""The command about Snowflake: print the SQL with which it shows a publication."""

from typing import Annotated

import typer

snowflake_app = typer.Typer(
    help="Snowflake: let it show the published state of a table in S3, Google Cloud Storage or Azure.",
    no_args_is_help=True,
)


@snowflake_app.callback()
def snowflake() -> None:
    """Keeps `ddl` a command of its own, as long as there is no other."""


@snowflake_app.command("ddl")
def ddl(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The lake's table, like flights.departures.")],
    external_volume: Annotated[
        str | None,
        typer.Option(
            help="Snowflake's external volume over the table's store (LAKESHARE_SNOWFLAKE_EXTERNAL_VOLUME)."
        ),
    ] = None,
    catalog_integration: Annotated[
        str | None,
        typer.Option(
            help="Catalog integration for files in object storage, of the table's format "
            "(LAKESHARE_SNOWFLAKE_ICEBERG_INTEGRATION, …_DELTA_INTEGRATION)."
        ),
    ] = None,
    volume_location: Annotated[
        str | None,
        typer.Option(
            help="The volume's STORAGE_BASE_URL, like s3://bucket/lake; the root of the table's store by default "
            "(LAKESHARE_SNOWFLAKE_VOLUME_LOCATION)."
        ),
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="Snowflake's database; the session's by default.")
    ] = None,
    schema: Annotated[str | None, typer.Option(help="Its schema; the session's by default.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name for the table; the lake's by default.")] = None,
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
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.share.snowflake.names import TableName
    from lakeshare_pipelines.share.snowflake.shown_state import shown_state
    from lakeshare_pipelines.share.snowflake.statements import script
    from lakeshare_pipelines.share.snowflake.target import objects_for, published
    from lakeshare_server.catalog import Ledger, open_catalog

    given = {
        "snowflake_external_volume": external_volume,
        "snowflake_volume_location": volume_location,
        "snowflake_iceberg_integration": catalog_integration,
        "snowflake_delta_integration": catalog_integration,
    }
    settings = LakeSettings().model_copy(update={key: value for key, value in given.items() if value})
    publication = published(Ledger(open_catalog(settings.catalog_url)), table, version)
    target = TableName(name or table.rpartition(".")[2], schema, database)
    state = shown_state(publication, settings.snowflake_volume_location, settings)
    objects = objects_for(target, publication.format, settings)
    typer.echo(script(state, objects, with_integrations=with_integrations), nl=False)
