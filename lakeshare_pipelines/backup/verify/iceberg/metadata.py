"""A table's metadata files as far as closures need them: which snapshots there are, and which is the table's own.

Iceberg spec, "Table Metadata".
"""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from lakeshare_server.tables.iceberg.metadata_json import LONGEST_BYTES, MetadataError, unpacked

FOLDER = "metadata"
NAME = re.compile(r".*(\.gz)?\.metadata\.json(\.gz)?")


@dataclass(frozen=True)
class Snapshot:
    """One snapshot; `manifests` are told by the oldest tables, which have no list of them."""

    id: int
    sequence_number: int
    manifest_list: str | None
    manifests: tuple[str, ...]
    rows: int | None = None
    """As its summary says."""


@dataclass(frozen=True)
class TableMetadata:
    """What one metadata file says."""

    key: str
    uuid: str | None
    sequence_number: int
    updated_at: dt.datetime
    current: int | None
    snapshots: Mapping[int, Snapshot]
    statistics: tuple[str, ...]
    """Of all snapshots: they only help to plan."""
    earlier: tuple[str, ...]
    """Locations of the metadata files before it, newest first."""


def read_metadata(key: str, content: bytes) -> TableMetadata:
    """Take a metadata file apart.

    Raises:
        ValueError: it is not whole, or no table's metadata.
    """
    try:
        said = orjson.loads(unpacked(content, LONGEST_BYTES))
        return _metadata(key, said)
    except (MetadataError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{key} is not whole, or no table's metadata") from error


# `said` is what JSON can say.
def _metadata(key: str, said: Mapping[str, Any]) -> TableMetadata:
    current = said.get("current-snapshot-id")
    snapshots = [
        Snapshot(
            int(one["snapshot-id"]),
            int(one.get("sequence-number") or 0),
            one.get("manifest-list"),
            tuple(one.get("manifests") or ()),
            _rows(one.get("summary") or {}),
        )
        for one in said.get("snapshots") or ()
    ]
    statistics = [*(said.get("statistics") or ()), *(said.get("partition-statistics") or ())]
    return TableMetadata(
        key=key,
        uuid=said.get("table-uuid"),
        sequence_number=int(said.get("last-sequence-number") or 0),
        updated_at=dt.datetime.fromtimestamp(said["last-updated-ms"] / 1000, dt.UTC),
        current=None if current in (None, -1) else int(current),
        snapshots={one.id: one for one in snapshots},
        statistics=tuple(one["statistics-path"] for one in statistics),
        earlier=tuple(one["metadata-file"] for one in reversed(said.get("metadata-log") or ())),
    )


def _rows(summary: Mapping[str, Any]) -> int | None:
    """A summary's values are texts (Iceberg spec, "Snapshot Summary"); deletes by row are counted by themselves."""
    told = [summary.get(name, "0") for name in ("total-position-deletes", "total-equality-deletes")]
    total = summary.get("total-records")
    numbers = [str(one) for one in (total, *told)]
    if total is None or not all(number.isdecimal() for number in numbers):
        return None
    records, positions, values = map(int, numbers)
    # Rows that are deleted by value are not counted by anybody.
    return None if values else max(records - positions, 0)
