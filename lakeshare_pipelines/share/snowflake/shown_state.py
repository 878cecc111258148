"""What Snowflake has to open so that it shows one publication, and nothing unpublished; refused where that cannot be.

Snowflake reads the table's own metadata in storage. Of an Iceberg table that is one metadata file: the current snapshot
is shown, others to whoever asks by id, branch or tag (`AT (VERSION => …)`, `VERSION_REF`). Of a Delta table it is the
newest version of the log, whichever that is.
"""

import re
from collections.abc import Set
from dataclasses import dataclass

from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_server.catalog import Publication
from lakeshare_server.settings import StoreSettings
from lakeshare_server.tables.own_state import metadata_state, newest_delta_version, path_below

# Snowflake's own spelling of a container.
AZURE = re.compile(r"azure://([^./]+)\.blob\.([^/]+)/([^/]+)/?(.*)", re.DOTALL)
STORE_ROOT = re.compile(r"[a-z0-9]+://[^/]+")
NAMED = 5  # snapshots, in a message


@dataclass(frozen=True)
class Published:
    """A publication, and the Iceberg snapshots of all publications of its table."""

    publication: Publication
    snapshots: Set[int] = frozenset()


@dataclass(frozen=True)
class ShownState:
    """A publication as Snowflake opens it: by the metadata file of an Iceberg table, the folder of a Delta table.

    `path` is relative to the volume's location; neither has a slash at its end.
    """

    publication: Publication
    path: str
    volume_location: str


def shown_state(published: Published, volume_location: str | None, settings: StoreSettings) -> ShownState:
    """The state to open; the volume's location is the root of the table's store when none is given.

    Raises:
        SnowflakeError: Snowflake cannot reach the table, or could show something else than publications.
    """
    publication = published.publication
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
    require_shown(published, settings)
    return ShownState(publication, path, base.rstrip("/"))


def require_shown(published: Published, settings: StoreSettings) -> None:
    """Refuse a publication that is not what the table's own metadata shows, or not all that it shows.

    Raises:
        SnowflakeError: says what else is shown.
    """
    if published.publication.format == "iceberg":
        _require_current_and_published(published, settings)
    else:
        _require_newest(published.publication, settings)


def _require_current_and_published(published: Published, settings: StoreSettings) -> None:
    publication = published.publication
    state = metadata_state(publication.metadata_location or "", settings)
    if state.current != publication.snapshot_id:
        raise SnowflakeError(
            f"{_named(publication)} is snapshot {publication.snapshot_id}, but Snowflake would read snapshot "
            f"{state.current}, which is the current one of its metadata file",
            "Publish the table again, so that a metadata file has the published snapshot as its current one.",
        )
    hidden = sorted((state.snapshots | set(state.refs.values())) - published.snapshots)
    if hidden:
        names = [name for name, snapshot in sorted(state.refs.items()) if snapshot in hidden]
        by_name = f", by the names {', '.join(names)}" if names else ""
        some = ", ".join(str(one) for one in hidden[:NAMED]) + (", …" if len(hidden) > NAMED else "")
        raise SnowflakeError(
            f"the metadata file of {_named(publication)} lists {len(hidden)} snapshots that were never published "
            f"({some}{by_name}), and Snowflake would read them for whoever asks",
            "Drop such branches and tags, run CALL system.expire_snapshots with these snapshot_ids, and publish the "
            "table again.",
        )


def _require_newest(publication: Publication, settings: StoreSettings) -> None:
    newest = newest_delta_version(publication.location, settings)
    if newest != publication.delta_version:
        raise SnowflakeError(
            f"{_named(publication)} is Delta version {publication.delta_version}, but Snowflake would read version "
            f"{newest}, the newest one of the log",
            "Snowflake cannot be held at an older version of a Delta table: publish the newest one.",
        )


def _named(publication: Publication) -> str:
    return f"publication {publication.version} of {publication.table}"


def in_our_spelling(location: str) -> str:
    """A location in Snowflake's spelling of Azure's containers in ours; others stay."""
    spelt = AZURE.fullmatch(location)
    return f"abfss://{spelt[3]}@{spelt[1]}.dfs.{spelt[2]}/{spelt[4]}" if spelt else location
