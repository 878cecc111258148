"""The part of a file index that a restriction allows: to whoever reads it, the table has no other files.

Counts, places and statistics are those of the part. Which files are in it is worked out once for each restriction.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.columns import columns_of
from lakeshare_server.tables.delta_schema import parse_schema
from lakeshare_server.tables.exact_files import Undecided, column_text, columns_in, is_within, undecided
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.predicate import Predicate
from lakeshare_server.tables.pruning import live_rows

KEPT = 64
ID = "delta.columnMapping.id"
NO_PARTITION = pa.struct([])


class PartOfIndex(FileIndex):
    """Some files of an open index, cut out as they are read."""

    def __init__(self, whole: FileIndex, rule: Predicate) -> None:
        self.schema = whole.schema
        self._whole = whole
        columns = columns_of(whole.header.head.schema_string, whole.schema)
        self._masks = [is_within(rule, _partition(batch), columns) for batch in whole.batches()]
        files = size_bytes = rows = 0
        for mask, batch in zip(self._masks, whole.batches(), strict=True):
            files += _sum(mask)
            size_bytes += _sum(batch.column("size").filter(mask))
            rows += _sum(live_rows(batch).filter(mask))
        head = without_counts(whole.header.head)
        self.header = replace(whole.header, head=head, rows=rows, files=files, size_bytes=size_bytes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in batches, in the order of their paths."""
        for mask, batch in zip(self._masks, self._whole.batches(), strict=True):
            part = batch.filter(mask)
            self._whole.give_back(batch)
            yield part

    def give_back(self, batch: pa.RecordBatch) -> None:
        """Nothing is mapped for a batch that was cut out."""


def part_of(index: FileIndex, rule: Predicate) -> PartOfIndex:
    """The files of an index of which the rule is true for every row."""
    # 1 and True are equal, but not the same constant: what they are tells them apart.
    return _part_of(index, rule, repr(rule))


def undecided_in(index: FileIndex, rule: Predicate) -> Undecided | None:
    """The first part of the rule that the partitions of an index do not decide; None when they decide all."""
    if not index.header.files:
        return None
    place = index.schema.get_field_index("partition")
    partition = NO_PARTITION if place < 0 else index.schema.field(place).type
    return undecided(rule, partition, columns_of(index.header.head.schema_string, index.schema))


def renamed_since(rule: Predicate, head: TableHead, latest: TableHead) -> Undecided | None:
    """The first column of a rule that was another one than at the latest version, by the ids of mapped columns."""
    then, today = _ids(head.schema_string), _ids(latest.schema_string)
    for name in columns_in(rule):
        key = column_text(name).lower()
        if key in then and key in today and then[key] != today[key]:
            return Undecided(column_text(name), "it was the name of another column then")
    return None


def without_counts(head: TableHead) -> TableHead:
    """The head without numbers of files that not everybody may know of."""
    told = (
        replace(one, reason="has deletion vectors") if one.feature == "deletionVectors" else one
        for one in head.hindrances
    )
    return replace(head, hindrances=tuple(dict.fromkeys(told)))


@lru_cache(KEPT)
def _ids(schema_string: str) -> dict[str, int]:
    fields = parse_schema(schema_string)
    return {field.name.lower(): field.metadata[ID] for field in fields if ID in field.metadata}


@lru_cache(KEPT)
def _part_of(index: FileIndex, rule: Predicate, _as_text: str) -> PartOfIndex:
    return PartOfIndex(index, rule)


def _partition(batch: pa.RecordBatch) -> pa.StructArray:
    if "partition" in batch.schema.names:
        return batch.column("partition")
    return pa.nulls(batch.num_rows, NO_PARTITION)


def _sum(values: pa.Array) -> int:
    return int(pc.sum(values, min_count=0).as_py())
