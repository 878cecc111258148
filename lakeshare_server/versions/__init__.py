"""Which versions of a table recipients can read: the ledger's publications, or those found in storage."""

from lakeshare_server.versions.version import TableVersions, Version
from lakeshare_server.versions.versions import Versions

__all__ = ["TableVersions", "Version", "Versions"]
