"""Which versions of a table recipients can read: the ledger's publications, or those found in storage."""

from lakeshare_server.versions.followed_iceberg import found_at
from lakeshare_server.versions.metadata_sources import spelt, table_name_at, tables_at
from lakeshare_server.versions.version import PinnedSnapshot, TableVersions, Version, VersionsUntil
from lakeshare_server.versions.versions import Versions

__all__ = [
    "PinnedSnapshot",
    "TableVersions",
    "Version",
    "Versions",
    "VersionsUntil",
    "found_at",
    "spelt",
    "table_name_at",
    "tables_at",
]
