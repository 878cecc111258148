"""The changes that a restriction allows to be told: files, and files of changed rows, of the partitions that it names.

An index of changes has partition values as the lines have them, as texts under physical names. They are read from
there. Places of the allowed rows are kept, eight bytes each; the rows themselves stay where they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.columns import columns_of
from lakeshare_server.tables.delta.change_rows import CDC
from lakeshare_server.tables.delta.change_segment import ChangedWords, Segment
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.delta.mapping import mapping_mode, physical_name
from lakeshare_server.tables.delta.partitions import typed
from lakeshare_server.tables.delta_schema import parse_schema
from lakeshare_server.tables.exact_files import Undecided, is_within, undecided
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.part_of_index import without_counts
from lakeshare_server.tables.predicate import Predicate

# Quotes inside of values are escaped, so that the members are where they seem to be.
PARTITION_VALUES = r'(?s)^"partitionValues":(?P<values>\{.*\}),"size":\d'
ADVICE = "Ask the provider to share a view of these rows."


class ChosenRows(Segment):
    """Some rows of a segment, as if it had no others."""

    def __init__(self, segment: Segment, places: pa.Int64Array) -> None:
        self.note = segment.note
        self._segment, self._places = segment, places

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from one place among the chosen to another, in batches."""
        places = self._places.slice(start, stop - start)
        if not len(places):
            return
        begin, end = places[0].as_py(), places[-1].as_py() + 1
        for batch in self._segment.rows(begin, end):
            is_here = pc.and_(pc.greater_equal(places, begin), pc.less(places, begin + batch.num_rows))
            here = pc.subtract(places.filter(is_here), begin)
            begin += batch.num_rows
            if len(here):
                yield batch.take(here)


def changes_within(changes: Sequence[VersionChanges], rule: Predicate) -> list[VersionChanges]:
    """What of the changes a rule allows to be told.

    Raises:
        Unserveable: the rule is not decided by the partitions of a version's files.
    """
    found: list[VersionChanges] = []
    for _, versions in groupby(changes, key=lambda one: id(one.segment)):
        found += _of_segment(list(versions), rule)
    return found


@dataclass(frozen=True)
class _Chosen:
    """The rows of one version that may be told."""

    places: pa.Int64Array
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int


def _of_segment(versions: Sequence[VersionChanges], rule: Predicate) -> Iterator[VersionChanges]:
    chosen = [_chosen(one, rule) for one in versions]
    segment = ChosenRows(versions[0].segment, pa.concat_arrays([one.places for one in chosen]))
    first_row = 0
    for one, its in zip(versions, chosen, strict=True):
        yield replace(
            one,
            head=without_counts(one.head),
            window_hindrances=without_counts(replace(one.head, hindrances=one.window_hindrances)).hindrances,
            feed_hindrances=without_counts(replace(one.head, hindrances=one.feed_hindrances)).hindrances,
            window_rows=len(its.places) - its.cdc_rows,
            cdc_rows=its.cdc_rows,
            feed_rows=its.feed_rows,
            window_bytes=its.window_bytes,
            feed_bytes=its.feed_bytes,
            first_row=first_row,
            segment=segment,
        )
        first_row += len(its.places)


def _chosen(one: VersionChanges, rule: Predicate) -> _Chosen:
    segment = one.segment.original if isinstance(one.segment, ChangedWords) else one.segment
    places: list[pa.Array] = [pa.array([], pa.int64())]
    cdc_rows = feed_rows = window_bytes = feed_bytes = 0
    begin = one.first_row
    batches = segment.rows(one.first_row, one.end_row) if one.end_row > one.first_row else ()
    for batch in batches:
        mask = _mask(one, batch, rule)
        places.append(pc.add(pc.indices_nonzero(mask).cast(pa.int64()), begin))
        begin += batch.num_rows
        kept = batch.select(["kind", "in_feed", "size"]).filter(mask)
        is_cdc = pc.equal(kept.column("kind"), CDC)
        cdc_rows += _sum(is_cdc)
        feed_rows += _sum(kept.column("in_feed"))
        window_bytes += _sum(kept.column("size").filter(pc.invert(is_cdc)))
        feed_bytes += _sum(kept.column("size").filter(kept.column("in_feed")))
    return _Chosen(pa.concat_arrays(places), cdc_rows, feed_rows, window_bytes, feed_bytes)


def _mask(one: VersionChanges, batch: pa.RecordBatch, rule: Predicate) -> pa.BooleanArray:
    said = pc.extract_regex(batch.column("common"), pattern=PARTITION_VALUES)
    texts = pc.struct_field(said, [0]).dictionary_encode()
    if texts.indices.null_count:
        raise _refusal(one.version, Undecided("", "a file of it does not tell its partition"))
    partition = _partition(one.head, [orjson.loads(text) for text in texts.dictionary.to_pylist()])
    columns = columns_of(one.head.schema_string, batch.schema)
    found = undecided(rule, partition.type, columns)
    if found is not None:
        raise _refusal(one.version, found)
    return pc.take(is_within(rule, partition, columns), texts.indices)


def _partition(head: TableHead, said: Sequence[dict[str, str | None]]) -> pa.StructArray:
    """The values that the texts state, under the table's own names; what one of them leaves out is missing."""
    is_mapped = mapping_mode(head.configuration) != "none"
    arrays, columns = [], []
    for field in parse_schema(head.schema_string):
        name = physical_name({"name": field.name, "metadata": field.metadata}) if is_mapped else field.name
        if said and isinstance(field.type, str) and all(name in values for values in said):
            arrays.append(pa.array([values[name] for values in said], pa.string()))
            columns.append((field.name, field.type))
    if not arrays:
        return pa.nulls(len(said), pa.struct([]))
    return typed(pa.StructArray.from_arrays(arrays, [name for name, _ in columns]), columns)


def _refusal(version: int, found: Undecided) -> Unserveable:
    return Unserveable(
        f"What you may read of the changes of version {version} cannot be told from partitions: "
        f"{found.column + ': ' if found.column else ''}{found.reason}.",
        ADVICE,
    )


def _sum(values: pa.Array) -> int:
    return int(pc.sum(values, min_count=0).as_py())
