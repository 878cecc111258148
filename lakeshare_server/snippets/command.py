"""The command `lakeshare snippet`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.snippets.shared_table import Door, EngineName

if TYPE_CHECKING:
    from lakeshare_server.catalog import Catalog, TableEntry
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.snippets.doors import Doors


def snippet(
    path: Annotated[
        str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="The table as recipients call it.")
    ],
    engine: Annotated[EngineName, typer.Option(help="What reads the table.")],
    profile: Annotated[
        Path, typer.Option(help="The recipient's profile file, as the snippet is to find it.")
    ] = Path("recipient.share"),
    door: Annotated[
        Door | None,
        typer.Option(
            help="The Iceberg REST catalog or Delta Sharing; what works from most places by default."
        ),
    ] = None,
) -> None:
    """Print how a recipient reads a shared table with an engine, ready to run; the token stays in the profile.

    Example: lakeshare snippet partners.sales.orders --engine polars --profile bob.share > orders.py
    """
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.catalog.listings import shared_table_at
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.snippets.engines import ENGINES
    from lakeshare_server.snippets.engines import snippet as text_of
    from lakeshare_server.snippets.told import snippet_table

    settings = ServerSettings()
    catalog = open_catalog(settings.catalog_url)
    entry = shared_table_at(catalog, path, "SHARE.SCHEMA.TABLE")
    doors = _doors(settings, catalog, entry)
    table = snippet_table(
        entry,
        doors,
        profile=str(profile),
        iceberg_url=_told(profile, "icebergEndpoint", settings.iceberg_url()),
        sharing_url=_told(profile, "endpoint", settings.base_url()),
    )
    typer.echo(text_of(ENGINES[engine], table, doors, door), nl=False)


def _doors(settings: "ServerSettings", catalog: "Catalog", entry: "TableEntry") -> "Doors":
    from lakeshare_server.access.serveability import TableServeability, provider_view
    from lakeshare_server.snippets.doors import doors_of
    from lakeshare_server.stores import Stores
    from lakeshare_server.versions import Versions

    view = provider_view(entry, Versions(catalog, settings, Stores(settings)))
    return doors_of(TableServeability.of(catalog, settings).judge(view))


def _told(profile: Path, name: str, own: str) -> str:
    """Where the profile says a door is, or this server's own when there is no such file here."""
    try:
        told = json.loads(profile.read_text()).get(name)
    except (OSError, ValueError, AttributeError):
        told = None
    return told if isinstance(told, str) else own
