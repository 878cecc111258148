"""Which versions of a table recipients can read: the ledger's publications, or those found in storage."""

from lakeshare_server.versions.followed_iceberg import read_unfollowed
from lakeshare_server.versions.metadata_sources import (
    list_tables_at,
    normalise_followed_location,
    read_table_name,
)
from lakeshare_server.versions.version import PinnedSnapshot, TableVersions, Version, VersionsUntil
from lakeshare_server.versions.versions import Versions

__all__ = [
    "PinnedSnapshot",
    "TableVersions",
    "Version",
    "Versions",
    "VersionsUntil",
    "list_tables_at",
    "normalise_followed_location",
    "read_table_name",
    "read_unfollowed",
]
