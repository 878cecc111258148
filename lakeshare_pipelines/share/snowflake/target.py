"""Which publication goes to which objects in Snowflake."""

from lakeshare_pipelines.errors import NoSuchPublication, SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.snowflake.names import TableName
from lakeshare_pipelines.share.snowflake.shown_state import Published
from lakeshare_pipelines.share.snowflake.statements import Objects
from lakeshare_server.catalog import Catalog, FollowedTables, Ledger
from lakeshare_server.catalog.publications import TableFormat
from lakeshare_server.errors import BadRequest


def published(catalog: Catalog, table: str, version: int | None = None) -> Published:
    """A publication of a table of the lake, the newest by default, among all that Snowflake may show.

    As recipients do, Snowflake gets nothing of what was found while a table was followed, once it is followed no more.

    Raises:
        BadRequest: nothing of the table was ever published.
        NoSuchPublication: the table has no such number.
    """
    ledger = Ledger(catalog, audited_only=FollowedTables(catalog).get(table) is None)
    history = ledger.history(table)
    if not history:
        raise BadRequest(
            "TABLE",
            table,
            f"Published are: {', '.join(ledger.tables()) or 'none'}. Publish it, or follow it, first.",
        )
    snapshots = {one.snapshot_id for one in history if one.snapshot_id is not None}
    for one in history:
        if version in (None, one.version):
            return Published(one, snapshots)
    raise NoSuchPublication(table, version or 0)


def objects_for(table: TableName, table_format: TableFormat, settings: LakeSettings) -> Objects:
    """The objects that the settings name, for a table of a format.

    Raises:
        SnowflakeError: a name is not set; says which.
    """
    integration = f"snowflake_{table_format}_integration"
    volume = settings.snowflake_external_volume
    catalog: str | None = getattr(settings, integration)
    if not volume or not catalog:
        missing = "snowflake_external_volume" if not volume else integration
        option = "--external-volume" if not volume else "--catalog-integration"
        raise SnowflakeError(
            f"no name is set for {missing.removeprefix('snowflake_').replace('_', ' ')}",
            f"Set LAKESHARE_{missing.upper()}, or give {option} to the command; "
            "`lakeshare snowflake ddl TABLE --with-integrations` prints the statement that makes one.",
        )
    return Objects(table, volume, catalog)
