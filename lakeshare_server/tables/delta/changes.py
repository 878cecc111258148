"""What the versions of a Delta table changed, from an index of changes: a thousand versions are a dozen files.

The index is cut into aligned segments, built on first use. Only the newest segment of a range may be short, and is
kept under its last version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import orjson
import pyarrow as pa

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import Stores
from lakeshare_server.tables.cache_folder import CacheFolder
from lakeshare_server.tables.delta.change_segment import Segment, SegmentVersion, open_segment
from lakeshare_server.tables.delta.change_writing import HeadTexts, SegmentWriter
from lakeshare_server.tables.delta.features import delta_head, require_known
from lakeshare_server.tables.delta.log import LogListing, list_log
from lakeshare_server.tables.delta.replay import NOT_AS_SPECIFIED
from lakeshare_server.tables.head import Hindrance, TableHead

# Grows whenever columns, notes or rendering change; segments of another layout are not found.
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
    metadata_text: str = field(repr=False)
    protocol_text: str = field(repr=False)
    window_rows: int
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int
    first_row: int
    segment: Segment = field(repr=False, compare=False)
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
    versions = [(one, segment) for segment in found for one in segment.note.versions.values()]
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


def spans(first: int, last: int) -> Iterator[tuple[int, int]]:
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
    for begin, end in spans(first, last):
        asked = range(max(begin, first), end + 1)
        segment = cache.found(_identity(log, begin, end))
        if segment is None or not _has(segment, asked):
            listing = listing or list_log(log.stores, log.root)
            before = before or _segment_before(log, cache, begin)
            writer = SegmentWriter(log.stores, listing, begin, end, _heads_at(before, begin - 1))
            segment = _built(log, cache, writer, asked)
        before = segment
        yield segment


def _built(log: ChangeLog, cache: SegmentCache, writer: SegmentWriter, asked: range) -> Segment:
    identity = _identity(log, writer.begin, writer.end)
    return cache.get(identity, lambda path: writer.write(path, asked), lambda there: _has(there, asked))


def _identity(log: ChangeLog, begin: int, end: int) -> tuple[object, ...]:
    commit = log.listing.commits.get(end) if log.listing is not None else None
    stamp = None if commit is None else commit.etag or commit.modified_ms
    return "changes", LAYOUT, log.root, log.table_id, begin, end, stamp


def _has(segment: Segment, asked: range) -> bool:
    """Whether a segment tells the versions: a fault may be gone from the log since, so it is looked for again."""
    found = [segment.note.versions.get(version) for version in asked]
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
    for one in versions:
        if one.own_time_ms is not None:
            times.append(one.own_time_ms)
        else:
            times.append(max(one.modified_ms, times[-1] + 1) if times else one.modified_ms)
    return times


def _heads(root: str, asked: Sequence[SegmentVersion]) -> list[TableHead]:
    vectors = sum(one.vectors for one in asked)
    lacks_row_ids = any(one.lacks_row_ids for one in asked)
    # Versions before the feature was switched on have a protocol without it, which the protocol's history shows.
    supporting = {one.protocol for one in asked if VECTORS in one.protocol} or {one.protocol for one in asked}
    try:
        heads = [
            _head(one.protocol, one.metadata, vectors if one.protocol in supporting else 0, lacks_row_ids)
            for one in asked
        ]
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    return with_all_hindrances(heads)


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
    return delta_head(protocol, metadata, pa.table(files))


def with_all_hindrances(heads: Sequence[TableHead]) -> list[TableHead]:
    """The heads with whatever hinders one of them: an answer has one format from its first line to its last."""
    different = {id(head): head for head in heads}
    hindrances = tuple(dict.fromkeys(one for head in different.values() for one in head.hindrances))
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
