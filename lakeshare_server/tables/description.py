"""What the ledger says of a table's state and of its files: the fields that every publication takes from them."""

from typing import TypedDict

from lakeshare_server.tables.index import IndexHeader
from lakeshare_server.tables.index_writing import StoredIndex
from lakeshare_server.tables.snapshot import TableSnapshot


class Described(TypedDict):
    """Fields of a publication, under the ledger's names."""

    location: str
    table_id: str
    schema_string: str
    rows: int
    files: int
    size_bytes: int


def described(state: TableSnapshot | IndexHeader, index: StoredIndex | IndexHeader) -> Described:
    """A table's state and what its file index adds up to; the header of an index tells both."""
    return Described(
        location=state.location,
        table_id=state.head.table_id,
        schema_string=state.head.schema_string,
        rows=index.rows,
        files=index.files,
        size_bytes=index.size_bytes,
    )
