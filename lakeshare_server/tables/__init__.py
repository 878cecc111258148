"""From a table's own metadata to the file index of one publication, and from there to the files of an answer.

Delta logs and Iceberg metadata are read when something is published; requests only touch the index.
"""

from lakeshare_server.storage import Stores as Stores
from lakeshare_server.tables.delta.snapshot import read_delta as read_delta
from lakeshare_server.tables.iceberg.metadata import read_iceberg as read_iceberg
from lakeshare_server.tables.index import FileIndex as FileIndex
from lakeshare_server.tables.index import StoredIndex as StoredIndex
from lakeshare_server.tables.index import describe_index as describe_index
from lakeshare_server.tables.index import open_index as open_index
from lakeshare_server.tables.index import write_index as write_index
from lakeshare_server.tables.snapshot import TableHead as TableHead
from lakeshare_server.tables.snapshot import TableProtocol as TableProtocol
from lakeshare_server.tables.snapshot import TableSnapshot as TableSnapshot
