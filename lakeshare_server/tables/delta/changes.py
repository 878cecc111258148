"""What the versions of a Delta table changed, from an index of changes: a thousand versions are a dozen files.

The index is cut into aligned segments, built on first use. Only the newest segment of a range may be short, and is
kept under its last version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import TableFilesMissing, Unserveable
from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.change_index import (
    CDC,
    HeadTexts,
    RewrittenSegment,
    Segment,
    SegmentVersion,
    SegmentWriter,
    open_segment,
)
from lakeshare_server.tables.delta.files import mapping_mode, parse_partition_values, physical_name
from lakeshare_server.tables.delta.log import NOT_AS_SPECIFIED, LogListing, list_log
from lakeshare_server.tables.delta.snapshot import make_delta_head, require_known
from lakeshare_server.tables.index import CacheFolder
from lakeshare_server.tables.predicates import Predicate, columns_of
from lakeshare_server.tables.restrictions import Undecided, find_undecided, is_within, without_counts
from lakeshare_server.tables.snapshot import Hindrance, TableHead, parse_schema

LAYOUT = 5
LENGTHS = (100, 10)
HEADS_KEPT = 256
VECTORS = '"deletionVectors"'

SegmentCache = CacheFolder[Segment]


@dataclass(frozen=True, kw_only=True)
class VersionChanges:
    """What one version changed.

    `head` is in force after its commit; its hindrances are those of the whole range that was read. `tells_time` says
    that the time stands in the commit; others come from files, and whoever knows better uses `at`. Of Iceberg tables,
    windows and the feed can have hindrances of their own, and `feed_fault` says why the feed cannot be told.
    """

    version: int
    timestamp_ms: int
    tells_time: bool
    head: TableHead
    metadata_text: str = dataclass_field(repr=False)
    protocol_text: str = dataclass_field(repr=False)
    window_rows: int
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int
    first_row: int
    segment: Segment = dataclass_field(repr=False, compare=False)
    window_hindrances: tuple[Hindrance, ...] = ()
    feed_hindrances: tuple[Hindrance, ...] = ()
    feed_fault: str | None = None

    @property
    def has_data_changes(self) -> bool:
        """Whether rows changed, as far as the log tells."""
        return bool(self.window_rows or self.cdc_rows)

    @property
    def end_row(self) -> int:
        """Behind the last of its rows in the segment."""
        return self.first_row + self.window_rows + self.cdc_rows

    @property
    def roots(self) -> tuple[str, ...]:
        """The stores that its files are in, and maybe others; of local files elsewhere, the folders."""
        return self.segment.note.roots

    def at(self, timestamp_ms: int) -> "VersionChanges":
        """The same changes, with another time."""
        return replace(self, timestamp_ms=timestamp_ms)


@dataclass(frozen=True)
class ChangeLog:
    """Where a table's log is; `table_id` tells it from another that was made at the same place before.

    A listing that is at hand saves listing again, and its commits tell the table apart, too.
    """

    stores: Stores
    root: str
    table_id: str = ""
    listing: LogListing | None = None


def segment_cache(folder: Path, max_bytes: int) -> SegmentCache:
    """Segments in a folder of bounded size, which other indexes may share."""
    return CacheFolder(folder, "changes", max_bytes, open_segment)


def read_changes(log: ChangeLog, cache: SegmentCache, first: int, last: int) -> list[VersionChanges]:
    """What the versions from `first` to `last` changed, in order.

    Raises:
        TableFilesMissing: the log does not have one of them any more, or it is not whole.
        Unserveable: a version needs a reader feature that this server does not know.
        Unavailable: the cache folder cannot be written, or the store does not answer.
    """
    found = list(_segments(log, cache, first, last))
    versions = [(version, segment) for segment in found for version in segment.note.versions.values()]
    times = _times([one for one, _ in versions])
    asked = [
        (one, segment, time_ms)
        for (one, segment), time_ms in zip(versions, times, strict=True)
        if first <= one.version <= last
    ]
    for one, _, _ in asked:
        if one.fault is not None:
            raise TableFilesMissing(log.root, one.fault)
    heads = _heads(log.root, [one for one, _, _ in asked])
    return [
        _changes(one, segment, time_ms, head)
        for (one, segment, time_ms), head in zip(asked, heads, strict=True)
    ]


def list_spans(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The segments that hold the versions of a range: whole ones of the greatest length, the last one short."""
    begin = first - first % LENGTHS[0]
    while begin <= last:
        whole = (begin + length - 1 for length in LENGTHS if begin % length == 0)
        end = next((end for end in whole if end <= last), last)
        if end >= first:
            yield begin, end
        begin = end + 1


def _segments(log: ChangeLog, cache: SegmentCache, first: int, last: int) -> Iterator[Segment]:
    listing = log.listing
    before: Segment | None = None
    for begin, end in list_spans(first, last):
        versions = range(max(begin, first), end + 1)
        segment = cache.found(_identity(log, begin, end))
        if segment is None or not _has(segment, versions):
            listing = listing or list_log(log.stores, log.root)
            before = before or _segment_before(log, cache, begin)
            writer = SegmentWriter(log.stores, listing, begin, end, _heads_at(before, begin - 1))
            segment = _build_segment(log, cache, writer, versions)
        before = segment
        yield segment


def _build_segment(log: ChangeLog, cache: SegmentCache, writer: SegmentWriter, versions: range) -> Segment:
    identity = _identity(log, writer.begin, writer.end)
    return cache.get(identity, lambda path: writer.write(path, versions), lambda there: _has(there, versions))


def _identity(log: ChangeLog, begin: int, end: int) -> tuple[object, ...]:
    commit = log.listing.commits.get(end) if log.listing is not None else None
    stamp = None if commit is None else commit.etag or commit.modified_ms
    return "changes", LAYOUT, log.root, log.table_id, begin, end, stamp


def _has(segment: Segment, versions: range) -> bool:
    """Whether a segment tells the versions: a fault may be gone from the log since, so it is looked for again."""
    found = [segment.note.versions.get(version) for version in versions]
    return all(one is not None and one.fault is None for one in found)


def _segment_before(log: ChangeLog, cache: SegmentCache, begin: int) -> Segment | None:
    """The segment that ends where another begins, if it was built."""
    length = LENGTHS[0] if begin % LENGTHS[0] == 0 else LENGTHS[1]
    return cache.found(_identity(log, begin - length, begin - 1)) if begin else None


def _heads_at(segment: Segment | None, version: int) -> HeadTexts | None:
    known = None if segment is None else segment.note.versions.get(version)
    return None if known is None else HeadTexts(known.protocol, known.metadata)


def _times(versions: Sequence[SegmentVersion]) -> list[int]:
    """When each version came about: times of files grow with the versions, whatever clocks and copies did to them."""
    times: list[int] = []
    for version in versions:
        if version.own_time_ms is not None:
            times.append(version.own_time_ms)
        else:
            times.append(max(version.modified_ms, times[-1] + 1) if times else version.modified_ms)
    return times


def _heads(root: str, versions: Sequence[SegmentVersion]) -> list[TableHead]:
    vectors = sum(one.vectors for one in versions)
    lacks_row_ids = any(one.lacks_row_ids for one in versions)
    # Versions before the feature was switched on have a protocol without it, which the protocol's history shows.
    supporting = {one.protocol for one in versions if VECTORS in one.protocol} or {
        one.protocol for one in versions
    }
    try:
        heads = [
            _head(one.protocol, one.metadata, vectors if one.protocol in supporting else 0, lacks_row_ids)
            for one in versions
        ]
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    return share_hindrances(heads)


@lru_cache(HEADS_KEPT)
def _head(protocol_text: str, metadata_text: str, vectors: int, lacks_row_ids: bool) -> TableHead:
    """What recipients are told at a version, given what the files of the range have and lack."""
    protocol, metadata = orjson.loads(protocol_text), orjson.loads(metadata_text)
    require_known(protocol)
    rows = max(vectors, 1)
    files = {
        "dv_storage": pa.array(["u"] * vectors + [None] * (rows - vectors), pa.string()),
        "base_row_id": pa.array([None if lacks_row_ids else 0] * rows, pa.int64()),
    }
    return make_delta_head(protocol, metadata, pa.table(files))


def share_hindrances(heads: Sequence[TableHead]) -> list[TableHead]:
    """The heads with whatever hinders one of them: an answer has one format from its first line to its last."""
    different = {id(head): head for head in heads}
    hindrances = tuple(
        dict.fromkeys(hindrance for head in different.values() for hindrance in head.hindrances)
    )
    whole = {key: replace(head, hindrances=hindrances) for key, head in different.items()}
    return [whole[id(head)] for head in heads]


def _changes(one: SegmentVersion, segment: Segment, timestamp_ms: int, head: TableHead) -> VersionChanges:
    return VersionChanges(
        version=one.version,
        timestamp_ms=timestamp_ms,
        tells_time=one.own_time_ms is not None,
        head=head,
        metadata_text=one.metadata,
        protocol_text=one.protocol,
        window_rows=one.window_rows,
        cdc_rows=one.cdc_rows,
        feed_rows=one.feed_rows,
        window_bytes=one.window_bytes,
        feed_bytes=one.feed_bytes,
        first_row=one.first_row,
        segment=segment,
    )


PARTITION_VALUES = r'(?s)^"partitionValues":(?P<values>\{.*\}),"size":\d'
ADVICE = "Ask the provider to share a view of these rows."


class RestrictedSegment(Segment):
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


def restrict_changes(changes: Sequence[VersionChanges], rule: Predicate) -> list[VersionChanges]:
    """What of the changes a rule allows to be told.

    Raises:
        Unserveable: the rule is not decided by the partitions of a version's files.
    """
    found: list[VersionChanges] = []
    for _, versions in groupby(changes, key=lambda one: id(one.segment)):
        found += _of_segment(list(versions), rule)
    return found


@dataclass(frozen=True)
class _RestrictedVersion:
    """The rows of one version that may be told."""

    places: pa.Int64Array
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int


def _of_segment(versions: Sequence[VersionChanges], rule: Predicate) -> Iterator[VersionChanges]:
    chosen = [_restrict_version(version, rule) for version in versions]
    segment = RestrictedSegment(versions[0].segment, pa.concat_arrays([one.places for one in chosen]))
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


def _restrict_version(one: VersionChanges, rule: Predicate) -> _RestrictedVersion:
    segment = one.segment.original if isinstance(one.segment, RewrittenSegment) else one.segment
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
    return _RestrictedVersion(pa.concat_arrays(places), cdc_rows, feed_rows, window_bytes, feed_bytes)


def _mask(one: VersionChanges, batch: pa.RecordBatch, rule: Predicate) -> pa.BooleanArray:
    said = pc.extract_regex(batch.column("common"), pattern=PARTITION_VALUES)
    texts = pc.struct_field(said, [0]).dictionary_encode()
    if texts.indices.null_count:
        raise _refusal(one.version, Undecided("", "a file of it does not tell its partition"))
    partition = _partition(one.head, [orjson.loads(text) for text in texts.dictionary.to_pylist()])
    columns = columns_of(one.head.schema_string, batch.schema)
    found = find_undecided(rule, partition.type, columns)
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
    return parse_partition_values(pa.StructArray.from_arrays(arrays, [name for name, _ in columns]), columns)


def _refusal(version: int, found: Undecided) -> Unserveable:
    return Unserveable(
        f"What you may read of the changes of version {version} cannot be told from partitions: "
        f"{found.column + ': ' if found.column else ''}{found.reason}.",
        ADVICE,
    )


def _sum(values: pa.Array) -> int:
    return int(pc.sum(values, min_count=0).as_py())
