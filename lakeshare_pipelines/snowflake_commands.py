"""Commands about Snowflake: print the SQL with which it shows a publication, or have it run."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lakeshare_pipelines.settings import LakeSettings

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
    from lakeshare_pipelines.share.snowflake.names import TableName
    from lakeshare_pipelines.share.snowflake.shown_state import shown_state
    from lakeshare_pipelines.share.snowflake.statements import script
    from lakeshare_pipelines.share.snowflake.target import objects_for, published
    from lakeshare_server.catalog import open_catalog

    settings = _settings(external_volume, catalog_integration, volume_location)
    aimed_at = published(open_catalog(settings.catalog_url), table, version)
    target = TableName(name or table.rpartition(".")[2], schema, database)
    state = shown_state(aimed_at, settings.snowflake_volume_location, settings)
    objects = objects_for(target, aimed_at.publication.format, settings)
    typer.echo(script(state, objects, with_integrations=with_integrations), nl=False)


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
    from lakeshare_pipelines.share.snowflake.follow import follow
    from lakeshare_pipelines.share.snowflake.names import TableName
    from lakeshare_server.catalog import open_catalog

    settings = _settings(external_volume, catalog_integration, volume_location)
    target = TableName(name or table.rpartition(".")[2], schema, database)
    followed = follow(open_catalog(settings.catalog_url), table, target, settings)
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
