"""Snowflake's SQL for an external table: the statements that create it and bring it to a publication.

CREATE ICEBERG TABLE, from Iceberg files or from Delta files in object storage; ALTER ICEBERG TABLE … REFRESH;
CREATE EXTERNAL VOLUME; CREATE CATALOG INTEGRATION (object storage), as Snowflake's SQL reference has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lakeshare_pipelines.share.snowflake.names import TableName, identifier, literal, named_in_text
from lakeshare_pipelines.share.snowflake.shown_state import ShownState

# What the person who runs the statements has to put in; no valid value looks like it.
ROLE_ARN, TENANT_ID = "<ARN of the role that Snowflake assumes>", "<tenant id>"
ACCESS = {
    "S3": (f"STORAGE_AWS_ROLE_ARN = {literal(ROLE_ARN)}",),
    "GCS": (),
    "AZURE": (f"AZURE_TENANT_ID = {literal(TENANT_ID)}",),
}
PROVIDERS = {"s3": "S3", "s3a": "S3", "s3n": "S3", "gs": "GCS", "gcs": "GCS"}
SPELT = {"S3": "s3", "GCS": "gcs", "AZURE": "azure"}


@dataclass(frozen=True)
class Objects:
    """The names of the objects in Snowflake: the table, the volume it is read through, the catalog integration."""

    table: TableName
    external_volume: str
    catalog_integration: str


def create_table(state: ShownState, objects: Objects) -> str:
    """The statement that makes the table when there is none of its name."""
    if state.publication.format == "iceberg":
        where = [f"METADATA_FILE_PATH = {literal(state.path)}"]
    else:
        # Of itself Snowflake would follow the log to versions that are not published.
        where = [f"BASE_LOCATION = {literal(state.path)}", "AUTO_REFRESH = FALSE"]
    lines = [
        f"CREATE ICEBERG TABLE IF NOT EXISTS {objects.table.sql}",
        f"EXTERNAL_VOLUME = {named_in_text('external volume', objects.external_volume)}",
        f"CATALOG = {named_in_text('catalog integration', objects.catalog_integration)}",
        *where,
    ]
    return "\n  ".join(lines)


def refresh_table(state: ShownState, objects: Objects) -> str:
    """The statement that brings a table that is there to the publication."""
    path = f" {literal(state.path)}" if state.publication.format == "iceberg" else ""
    return f"ALTER ICEBERG TABLE {objects.table.sql} REFRESH{path}"


def create_volume(state: ShownState, objects: Objects) -> str:
    """The statement that makes the external volume, with placeholders for what only its owner knows."""
    scheme, _, rest = state.volume_location.partition("://")
    provider = PROVIDERS.get(scheme, "AZURE")
    root, _, key = rest.partition("/")
    access = ACCESS[provider]
    if provider == "AZURE":
        container, _, host = root.partition("@")
        root = f"{host.replace('.dfs.', '.blob.')}/{container}"
    base = "/".join(part for part in (f"{SPELT[provider]}://{root}", key.strip("/")) if part) + "/"
    location = [
        "NAME = 'lakeshare'",
        f"STORAGE_PROVIDER = {literal(provider)}",
        f"STORAGE_BASE_URL = {literal(base)}",
        *access,
    ]
    inner = "\n    ".join(location)
    return (
        f"CREATE EXTERNAL VOLUME IF NOT EXISTS {identifier('external volume', objects.external_volume)}\n"
        f"  STORAGE_LOCATIONS = ((\n    {inner}\n  ))\n  ALLOW_WRITES = FALSE"
    )


def create_integration(state: ShownState, objects: Objects) -> str:
    """The statement that makes the catalog integration."""
    return "\n  ".join(
        [
            "CREATE CATALOG INTEGRATION IF NOT EXISTS "
            f"{identifier('catalog integration', objects.catalog_integration)}",
            "CATALOG_SOURCE = OBJECT_STORE",
            f"TABLE_FORMAT = {state.publication.format.upper()}",
            "ENABLED = TRUE",
        ]
    )


def script(state: ShownState, objects: Objects, *, with_integrations: bool = False) -> str:
    """All of it as a script for a worksheet, each statement with the reason it is there."""
    return "\n".join(_script_lines(state, objects, with_integrations)) + "\n"


def _script_lines(state: ShownState, objects: Objects, with_integrations: bool) -> Iterator[str]:
    publication = state.publication
    kind = "" if publication.audited else ", unaudited: followed in storage"
    yield f"-- Publication {publication.version} of {_one_line(publication.table)}{kind}."
    yield f"-- The external volume's STORAGE_BASE_URL is {_one_line(state.volume_location)}/"
    if with_integrations:
        yield "-- Once, as a role that may create them; put in what stands in <angle brackets>."
        yield create_volume(state, objects) + ";\n"
        yield create_integration(state, objects) + ";\n"
    yield create_table(state, objects) + ";\n"
    if publication.format == "iceberg":
        yield "-- Shows this publication and no other, also in a table that was there before."
    else:
        yield "-- Shows the newest version of the Delta log: run it only while that is the published one."
    yield refresh_table(state, objects) + ";"


def _one_line(text: str) -> str:
    return " ".join(text.split())
