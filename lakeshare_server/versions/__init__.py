"""Which versions of a table recipients can read: the ledger's publications, or those found in storage."""

from lakeshare_server.versions.followed_place import spelt, table_name_at, tables_at
from lakeshare_server.versions.found_table import found_at
from lakeshare_server.versions.pinned import VersionsUntil
from lakeshare_server.versions.version import PinnedSnapshot, TableVersions, Version
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
