"""How one snapshot of an Iceberg table came from another, and what became of the columns between them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lakeshare_server.stores import Stores
from lakeshare_server.tables.iceberg.metadata import open_metadata, schema_at

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

REPLACE = "replace"
ColumnsById = Mapping[int, tuple[str, str]]


def keeps_rows(stores: Stores, metadata_location: str, snapshot_id: int, before_id: int) -> bool:
    """Whether every snapshot from one to the other only replaced files by others with the same rows, as compaction
    does (Iceberg's specification, "Snapshots": operation `replace`).

    Raises:
        Unserveable: the metadata cannot be read.
        Unavailable: its store does not answer.
    """
    table, _ = open_metadata(stores, metadata_location, snapshot_id)
    for ancestor, operation in _ancestors(table, snapshot_id):
        if ancestor == before_id:
            return True
        if operation != REPLACE:
            return False
    return False


def brings_back_columns(stores: Stores, before: tuple[str, int], after: tuple[str, int]) -> bool:
    """Whether a later state, given by metadata location and snapshot id, has a column that the table had before, but
    not at the earlier state: files of both then tell other rows in each. Rolling back over a dropped column does that.

    Raises:
        Unserveable: the metadata cannot be read.
        Unavailable: its store does not answer.
    """
    then = open_metadata(stores, *before)
    now = open_metadata(stores, *after)
    new = schema_at(*now).field_ids - schema_at(*then).field_ids
    return any(field_id <= then[0].last_column_id for field_id in new)


def columns_by_id(stores: Stores, metadata_location: str, snapshot_id: int) -> ColumnsById:
    """The name and the type of each column of a snapshot, those inside of others too, by field id.

    Raises:
        Unserveable: the metadata cannot be read.
        Unavailable: its store does not answer.
    """
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    schema = schema_at(table, snapshot)
    names = {field_id: schema.find_column_name(field_id) or "" for field_id in schema.field_ids}
    return {
        field_id: (name, str(kind) if (kind := schema.find_type(field_id)).is_primitive else "")
        for field_id, name in names.items()
    }


def column_conflict(versions: Iterable[ColumnsById]) -> str | None:
    """A column that has another name, another type, or is another one in some version; None when there is none."""
    by_id: dict[int, tuple[str, str]] = {}
    by_name: dict[str, int] = {}
    for columns in versions:
        for field_id, (name, kind) in columns.items():
            if by_id.setdefault(field_id, (name, kind)) != (name, kind):
                return by_id[field_id][0]
            if by_name.setdefault(name.lower(), field_id) != field_id:
                return name
    return None


def _ancestors(table: "TableMetadata", snapshot_id: int) -> Iterator[tuple[int, str | None]]:
    """The snapshot and those it came from, the newest first, with what made them."""
    at: int | None = snapshot_id
    while at is not None:
        snapshot = table.snapshot_by_id(at)
        if snapshot is None:
            return
        summary = snapshot.summary
        yield at, None if summary is None else summary.operation.value
        at = snapshot.parent_snapshot_id
