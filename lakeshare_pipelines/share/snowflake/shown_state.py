"""What Snowflake has to open so that it shows one publication and nothing else; refused where that cannot be.

Snowflake reads the table's own metadata in storage: of an Iceberg table one metadata file, of which it shows the
current snapshot; of a Delta table the newest version of the log, whichever that is.
"""

import re
from dataclasses import dataclass

from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_server.catalog import Publication
from lakeshare_server.settings import StoreSettings
from lakeshare_server.tables.own_state import current_snapshot_id, newest_delta_version, path_below

# Snowflake's own spelling of a container.
AZURE = re.compile(r"azure://([^./]+)\.blob\.([^/]+)/([^/]+)/?(.*)", re.DOTALL)
STORE_ROOT = re.compile(r"[a-z0-9]+://[^/]+")


@dataclass(frozen=True)
class ShownState:
    """A publication as Snowflake opens it: by the metadata file of an Iceberg table, the folder of a Delta table.

    `path` is relative to the volume's location; neither has a slash at its end.
    """

    publication: Publication
    path: str
    volume_location: str


def shown_state(publication: Publication, volume_location: str | None, settings: StoreSettings) -> ShownState:
    """The state to open; the volume's location is the root of the table's store when none is given.

    Raises:
        SnowflakeError: Snowflake cannot reach the table, or would show something else than the publication.
    """
    opened = publication.metadata_location if publication.format == "iceberg" else publication.location
    if opened is None:
        raise SnowflakeError(
            f"publication {publication.version} of {publication.table} names no metadata file",
            "Publish the table again.",
        )
    root = STORE_ROOT.match(opened)
    if root is None or opened.startswith("file:"):
        raise SnowflakeError(
            f"{publication.table} is on a local disk, which Snowflake does not reach",
            "Keep the table in S3, Google Cloud Storage or Azure.",
        )
    base = in_our_spelling(volume_location or root[0])
    path = path_below(opened, base, settings)
    if path is None:
        raise SnowflakeError(
            f"{publication.table} is not below the volume's location {volume_location}: it is at {opened}",
            "Give the location that the external volume has as STORAGE_BASE_URL, or another volume.",
        )
    require_shown(publication, settings)
    return ShownState(publication, path, base.rstrip("/"))


def require_shown(publication: Publication, settings: StoreSettings) -> None:
    """Refuse a publication that is not what the table's own metadata shows.

    Raises:
        SnowflakeError: says what is shown instead.
    """
    where = f"publication {publication.version} of {publication.table}"
    if publication.format == "iceberg":
        current = current_snapshot_id(publication.metadata_location or "", settings)
        if current != publication.snapshot_id:
            raise SnowflakeError(
                f"{where} is snapshot {publication.snapshot_id}, but Snowflake would read snapshot {current}, "
                "which is the current one of its metadata file",
                "Publish the table again, so that a metadata file has the published snapshot as its current one.",
            )
        return
    newest = newest_delta_version(publication.location, settings)
    if newest != publication.delta_version:
        raise SnowflakeError(
            f"{where} is Delta version {publication.delta_version}, but Snowflake would read version {newest}, "
            "the newest one of the log",
            "Snowflake cannot be held at an older version of a Delta table: publish the newest one.",
        )


def in_our_spelling(location: str) -> str:
    """A location in Snowflake's spelling of Azure's containers in ours; others stay."""
    spelt = AZURE.fullmatch(location)
    return f"abfss://{spelt[3]}@{spelt[1]}.dfs.{spelt[2]}/{spelt[4]}" if spelt else location
