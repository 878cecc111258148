"""From a table's own metadata to the file index of one publication, and from there to the files of an answer.

Delta logs and Iceberg metadata are read when something is published; requests only touch the index.
"""

from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.snapshot import read_delta
from lakeshare_server.tables.iceberg.metadata import read_iceberg
from lakeshare_server.tables.index import FileIndex, StoredIndex, describe_index, open_index, write_index
from lakeshare_server.tables.snapshot import TableHead, TableProtocol, TableSnapshot

__all__ = [
    "FileIndex",
    "StoredIndex",
    "Stores",
    "TableHead",
    "TableProtocol",
    "TableSnapshot",
    "describe_index",
    "open_index",
    "read_delta",
    "read_iceberg",
    "write_index",
]
