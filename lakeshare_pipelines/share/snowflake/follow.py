"""Following: Snowflake's table is brought to the newest publication, and asked what it shows now."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.snowflake.names import TableName
from lakeshare_pipelines.share.snowflake.session import SnowflakeSession, snowflake_session
from lakeshare_pipelines.share.snowflake.shown_state import (
    Published,
    ShownState,
    in_our_spelling,
    require_shown,
    shown_state,
)
from lakeshare_pipelines.share.snowflake.statements import Objects, create_table, refresh_table
from lakeshare_pipelines.share.snowflake.target import objects_for, published
from lakeshare_server.catalog import Catalog, Publication
from lakeshare_server.errors import BadRequest
from lakeshare_server.tables.own_state import path_below

SHOWN = "SELECT SYSTEM$GET_ICEBERG_TABLE_INFORMATION(%s)"
ATTEMPTS = 5


@dataclass(frozen=True)
class Followed:
    """What Snowflake's `table` shows: a publication, by the file or folder that was opened for it."""

    table: str
    publication: Publication
    opened: str
    query_ids: tuple[str, ...]


def follow(catalog: Catalog, table: str, target: TableName, settings: LakeSettings) -> Followed:
    """Make the table `target` in Snowflake if it is missing, and bring it to the newest publication of `table`.

    Two runs at once end at the newest publication both: each looks at the ledger again when it is done.

    Raises:
        SnowflakeError: the publication cannot be shown, or Snowflake refused, did not answer, or shows another state.
        BadRequest: nothing of the table was published yet.
    """
    aimed_at = published(catalog, table)
    state, objects = _aim(aimed_at, target, settings)
    with snowflake_session(settings) as session:
        for _ in range(ATTEMPTS):
            _bring(session, state, objects)
            if state.publication.format == "iceberg":
                _require_opened(session, state, objects, settings)
            else:
                # The log may have grown meanwhile. Asked, Snowflake would write metadata into the table's folder.
                require_shown(aimed_at, settings)
            newest = published(catalog, table)
            if newest.publication.version == state.publication.version:
                return Followed(target.sql, newest.publication, _opened(state), tuple(session.query_ids))
            aimed_at = newest
            state, objects = _aim(aimed_at, target, settings)
    raise SnowflakeError(
        f"{table} was published {ATTEMPTS} times while {target.sql} was brought to it",
        "Run this again when the publications have ended.",
        passing=True,
    )


def _aim(aimed_at: Published, target: TableName, settings: LakeSettings) -> tuple[ShownState, Objects]:
    objects = objects_for(target, aimed_at.publication.format, settings)
    return shown_state(aimed_at, settings.snowflake_volume_location, settings), objects


def _bring(session: SnowflakeSession, state: ShownState, objects: Objects) -> None:
    session.run(create_table(state, objects))
    session.run(refresh_table(state, objects))


def _require_opened(
    session: SnowflakeSession, state: ShownState, objects: Objects, settings: LakeSettings
) -> None:
    """Refuse to say that all is well when a table of that name was there before and reads from another place."""
    location = _metadata_location(session.run(SHOWN, objects.table.sql))
    try:
        path = path_below(in_our_spelling(location), state.volume_location, settings) if location else None
    except BadRequest:
        path = None
    if path != state.path:
        raise SnowflakeError(
            f"{objects.table.sql} shows {location or 'no metadata file'} instead of {_opened(state)}",
            "A table of that name was there before: drop it in Snowflake, or give another name in the contract; or "
            "the volume is another one than LAKESHARE_SNOWFLAKE_VOLUME_LOCATION says.",
        )


def _metadata_location(answer: object) -> str | None:
    """The location in what SYSTEM$GET_ICEBERG_TABLE_INFORMATION answers: a JSON object as text."""
    try:
        told = json.loads(str(answer))
    except ValueError:
        return None
    found = told.get("metadataLocation") if isinstance(told, Mapping) else None
    return found if isinstance(found, str) and found else None


def _opened(state: ShownState) -> str:
    return f"{state.volume_location}/{state.path}"
