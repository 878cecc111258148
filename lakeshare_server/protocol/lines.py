"""The file lines of a snapshot: which files of an index answer a request, a batch at a time.

Files come from the index of one version. Memory is bounded by the batch, not by the table.
"""

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.storage.locations import texts
from lakeshare_server.tables.delta.changes import CDC, VersionChanges
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.predicates import EVERYTHING, Predicate
from lakeshare_server.tables.pruning import ZERO, count_live_rows, evaluate
from lakeshare_server.tables.serveability import missing_features, needed_features
from lakeshare_server.tables.snapshot import TableHead, TableProtocol, parquet_format_schema

HEADER = "delta-sharing-capabilities"


@dataclass(frozen=True)
class Capabilities:
    """A client's announcement; unknown keys are dropped. Everything is in lower case."""

    response_formats: frozenset[str] = frozenset()
    reader_features: frozenset[str] = frozenset()
    wants_end_stream_action: bool = False
    wants_async: bool = False


def parse_capabilities(header: str | None) -> Capabilities:
    """`key=v1,v2;key2=v`, in any case; never an error."""
    pairs = _pairs(header or "")
    return Capabilities(
        response_formats=pairs.get("responseformat", frozenset()),
        reader_features=pairs.get("readerfeatures", frozenset()),
        wants_end_stream_action="true" in pairs.get("includeendstreamaction", frozenset()),
        wants_async="true" in pairs.get("asyncquery", frozenset()),
    )


def format_capabilities(response_format: str, capabilities: Capabilities, *, is_pending: bool = False) -> str:
    """The header of an answer in a format; a pending one says that it is asynchronous."""
    parts = [f"responseformat={response_format}"]
    if capabilities.wants_end_stream_action:
        parts.append("includeendstreamaction=true")
    if is_pending:
        parts.append("asyncquery=true")
    return ";".join(parts)


def _pairs(header: str) -> Mapping[str, frozenset[str]]:
    pairs: dict[str, frozenset[str]] = {}
    for part in header.lower().split(";"):
        key, _, values = part.partition("=")
        pairs[key.strip()] = frozenset(value.strip() for value in values.split(",") if value.strip())
    return pairs


ResponseFormat = Literal["parquet", "delta"]
FORMATS = ("parquet", "delta")


def negotiate_format(capabilities: Capabilities, head: TableHead, table: str) -> ResponseFormat:
    """The format of an answer: parquet for what it can carry, unless the client takes delta only.

    Raises:
        BadRequest: the client takes neither of the two formats.
        Unserveable: the table cannot go out in a format the client takes; names the features it lacks.
    """
    asked = capabilities.response_formats or frozenset({"parquet"})
    if not asked.intersection(FORMATS):
        raise BadRequest("responseformat", ",".join(sorted(asked)), "It is parquet, delta or a list of both.")
    if "parquet" in asked and not head.hindrances:
        return "parquet"
    if "delta" in asked:
        _require_features(capabilities, head, table)
        return "delta"
    first = head.hindrances[0]
    # "Unsupported Delta Table Properties" is what clients' tests look for in the text.
    raise Unserveable(
        f"Unsupported Delta Table Properties: {table} {first.reason}, which the parquet response format cannot "
        "carry.",
        f"Ask with {_request(head)}. Provider: {first.fix}",
        first.code,
    )


def negotiate_protocol(capabilities: Capabilities, head: TableHead) -> TableProtocol:
    """The table's protocol without the reader features that this snapshot can do without and the client lacks."""
    protocol = head.protocol
    if protocol.reader_features is None:
        return protocol
    needed = needed_features(head)
    dropped = {
        feature
        for feature in protocol.reader_features
        if feature not in needed and feature.lower() not in capabilities.reader_features
    }
    if not dropped:
        return protocol
    writer = protocol.writer_features
    return TableProtocol(
        protocol.min_reader_version,
        protocol.min_writer_version,
        tuple(feature for feature in protocol.reader_features if feature not in dropped),
        None if writer is None else tuple(feature for feature in writer if feature not in dropped),
    )


def _require_features(capabilities: Capabilities, head: TableHead, table: str) -> None:
    missing = missing_features(head, capabilities.reader_features)
    if not missing:
        return
    reasons = "; ".join(hindrance.reason for hindrance in head.hindrances if hindrance.feature in missing)
    raise Unserveable(
        f"Unsupported Delta Table Properties: {table} {reasons}; the client did not announce the reader features "
        f"{', '.join(missing)}.",
        f"Ask with {_request(head)}.",
        next((hindrance.code for hindrance in head.hindrances if hindrance.feature in missing), None),
    )


def _request(head: TableHead) -> str:
    features = ",".join(feature.lower() for feature in needed_features(head))
    return f"responseformat=delta;readerfeatures={features}" if features else "responseformat=delta"


@dataclass(frozen=True)
class DirectoryAccess:
    """How else a recipient may read the files of a table (protocol §1.4); empty when URLs are the only way."""

    location: str | None = None
    auxiliary_locations: Sequence[str] = ()

    def as_fields(self) -> dict[str, Any]:
        """The fields of listings and metadata."""
        if self.location is None:
            return {}
        fields: dict[str, Any] = {"location": self.location, "accessModes": ["url", "dir"]}
        return (
            {**fields, "auxiliaryLocations": list(self.auxiliary_locations)}
            if self.auxiliary_locations
            else fields
        )


URLS_ONLY = DirectoryAccess()


@dataclass(frozen=True, kw_only=True)
class HeadLines:
    """What the head lines of one answer say, beside the table's own head."""

    response_format: ResponseFormat
    protocol: TableProtocol
    version: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    shares_changes: bool = False
    access: DirectoryAccess = URLS_ONLY
    # Told with the protocol line too, for those who asked for the protocol's history.
    protocol_version: int | None = None

    def of(self, head: TableHead) -> bytes:
        """Both lines."""
        return self.protocol_line() + self.metadata_line(head)

    def protocol_line(self) -> bytes:
        """`protocol`."""
        if self.response_format == "parquet":
            return json_line({"protocol": {"minReaderVersion": 1}})
        delta = {
            "minReaderVersion": self.protocol.min_reader_version,
            "minWriterVersion": self.protocol.min_writer_version,
            "readerFeatures": self.protocol.reader_features,
            "writerFeatures": self.protocol.writer_features,
        }
        return json_line(
            {
                "protocol": _without_none(
                    {"deltaProtocol": _without_none(delta), "version": self.protocol_version}
                )
            }
        )

    def metadata_line(self, head: TableHead) -> bytes:
        """`metaData`; `size` and `numFiles` are always there, clients fail without (protocol §0.4)."""
        around = _without_none({"version": self.version, "size": self.size_bytes, "numFiles": self.files})
        around.update(self.access.as_fields())
        if self.response_format == "parquet":
            return json_line({"metaData": {**self._parquet_metadata(head), **around}})
        return json_line({"metaData": {"deltaMetadata": _delta_metadata(head), **around}})

    def _parquet_metadata(self, head: TableHead) -> dict[str, Any]:
        shows_changes = self.shares_changes and head.has_change_data_feed
        return _without_none(
            {
                "id": head.table_id,
                "name": head.name,
                "description": head.description,
                "format": {"provider": "parquet"},
                "schemaString": parquet_format_schema(head.schema_string),
                "partitionColumns": head.partition_columns,
                "configuration": {"enableChangeDataFeed": "true"} if shows_changes else {},
            }
        )


def end_stream_line(fields: Mapping[str, object]) -> bytes:
    """The closing line, for those who asked for it."""
    return json_line({"endStreamAction": fields})


def json_line(wrapped: Mapping[str, object]) -> bytes:
    """One line of NDJSON."""
    return json.dumps(wrapped, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _delta_metadata(head: TableHead) -> dict[str, Any]:
    return _without_none(
        {
            "id": head.table_id,
            "name": head.name,
            "description": head.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": head.schema_string,
            "partitionColumns": head.partition_columns,
            "configuration": dict(head.configuration),
            "createdTime": head.created_time_ms,
        }
    )


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


Sign = Callable[[pa.StringArray], list[bytes]]


BEFORE_URL = {"parquet": '","url":"', "delta": '","deltaSingleAction":{"add":{"path":"'}
AFTER_URL = '",'
END = {"parquet": "}}\n", "delta": "}}}}\n"}
VECTOR_URL = ',"deletionVector":{"storageType":"p","pathOrInlineDv":"'
VECTOR_ID = '}},"deletionVectorFileId":"'
VECTOR_END = '"}}\n'


@dataclass(frozen=True, kw_only=True)
class SnapshotLines:
    """The words of one answer; `ids` is the scheme of the files' ids (protocol §2.6)."""

    response_format: ResponseFormat
    ids: ResponseFormat
    expires_at_ms: int
    # Told to those who asked for a version or a time (protocol §2.1).
    version: int | None = None

    @property
    def columns(self) -> Sequence[str]:
        """The columns of an index that its lines are made of."""
        ends = ["delta_rest", "dv_path", "dv_rest", "dv_file_id"] if self.response_format == "delta" else []
        return [f"{self.ids}_id", "path", "common", *ends]

    def of(self, files: pa.RecordBatch, sign: Sign) -> memoryview:
        """The lines of a batch of an index."""
        asked = "" if self.version is None else f'"version":{self.version},'
        parts: list[str | pa.Array] = [
            f'{{"file":{{"expirationTimestamp":{self.expires_at_ms},{asked}"id":"',
            files.column(f"{self.ids}_id"),
            BEFORE_URL[self.response_format],
            sign_paths(files.column("path"), sign),
            AFTER_URL,
            files.column("common"),
        ]
        if self.response_format == "delta":
            parts += [files.column("delta_rest"), vector_ends(files, sign)]
        else:
            parts.append(END["parquet"])
        return join_rows(parts)


def sign_paths(paths: pa.StringArray, sign: Sign) -> pa.StringArray:
    """The URLs of locations, as a column."""
    return texts(sign(paths))


def vector_ends(files: pa.RecordBatch, sign: Sign) -> str | pa.Array:
    """How each line ends: the same for all, unless some have a deletion vector in a file of its own."""
    paths = files.column("dv_path")
    plain = END["delta"]
    if paths.null_count == len(paths):
        return plain
    has_vector = pc.is_valid(paths)
    vectors = files.filter(has_vector)
    ends = pc.binary_join_element_wise(
        VECTOR_URL,
        sign_paths(vectors.column("dv_path"), sign),
        vectors.column("dv_rest"),
        VECTOR_ID,
        vectors.column("dv_file_id"),
        VECTOR_END,
        "",
    )
    return pc.replace_with_mask(pa.repeat(plain, len(paths)), has_vector, ends)


def join_rows(parts: Sequence[str | pa.Array]) -> memoryview:
    """The rows of joined columns, one after the other."""
    rows = pc.binary_join_element_wise(*parts, "")
    _, offsets, characters = rows.buffers()
    ends = memoryview(offsets).cast("i")
    return memoryview(characters)[ends[rows.offset] : ends[rows.offset + len(rows)]]


PIECE_ROWS = 1000
# Of a batch of which less than one file in so many is wanted, little was read.
PARTS = 8


@dataclass
class Progress:
    """How far an answer has come; complete when the answer is."""

    files: int = 0
    size_bytes: int = 0
    # None where they are not counted: changes are told by files that hold rows of several kinds.
    rows: int | None = None
    # Where the next page begins, None when this was the last; and the rows it still has to find.
    next_place: int | None = None
    rows_wanted: int | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotResponse:
    """Which files are wanted: from the place `start` of the index, at most `most`, and enough for `rows_wanted`."""

    index: FileIndex
    predicate: Predicate = EVERYTHING
    rows_wanted: int | None = None
    start: int = 0
    most: int | None = None

    def render(self, lines: SnapshotLines, sign: Sign, progress: Progress) -> Iterator[bytes | memoryview]:
        """The file lines in pieces; an empty one for each batch of the index that made none."""
        for batch in _gather(self._wanted(lines.columns, progress)):
            if batch is None:
                yield b""
                continue
            for start in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(start, PIECE_ROWS)
                progress.files += piece.num_rows
                progress.size_bytes += pc.sum(piece.column("size"), min_count=0).as_py()
                progress.rows = (progress.rows or 0) + pc.sum(count_live_rows(piece), min_count=0).as_py()
                yield lines.of(piece, sign)

    def _wanted(self, columns: Sequence[str], progress: Progress) -> Iterator[pa.RecordBatch]:
        room, wanted = self.most, self.rows_wanted
        for begin, batch in self._from_start():
            if wanted is not None and wanted <= 0:
                return
            kept = self._kept(begin, batch, columns)
            if wanted is not None:
                kept = kept.filling(wanted)
            if room is not None and kept.files > room:
                progress.next_place = kept.place(room)
                kept = kept.first(room)
                progress.rows_wanted = None if wanted is None else wanted - kept.rows
                yield kept.batch
                return
            yield kept.batch
            if kept.files * PARTS > batch.num_rows:
                self.index.give_back(batch)
            room = None if room is None else room - kept.files
            wanted = None if wanted is None else wanted - kept.rows

    def _from_start(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        begin = 0
        for batch in self.index.batches():
            skipped = max(self.start - begin, 0)
            if skipped < batch.num_rows:
                yield begin + skipped, batch.slice(skipped)
            begin += batch.num_rows

    def _kept(self, begin: int, batch: pa.RecordBatch, columns: Sequence[str]) -> "_SelectedFiles":
        places = _numbers(begin, batch.num_rows) if self.most is not None else None
        if self.predicate == EVERYTHING:
            return _SelectedFiles(
                batch, places, count_live_rows(batch) if self.rows_wanted is not None else None
            )
        maybe = evaluate(self.predicate, batch)
        rows = None
        if self.rows_wanted is not None:
            # Only rows that surely pass the predicate fill the limit.
            rows = pc.if_else(maybe.surely_all, count_live_rows(batch), ZERO).filter(maybe.true)
        return _SelectedFiles(
            batch.select([*columns, *_count_rows(batch)]).filter(maybe.true),
            None if places is None else places.filter(maybe.true),
            rows,
        )


@dataclass(frozen=True)
class _SelectedFiles:
    """Files with their places in the index and the rows they surely add; both only when somebody asks."""

    batch: pa.RecordBatch
    places: pa.Array | None
    surely: pa.Array | None

    @property
    def files(self) -> int:
        return int(self.batch.num_rows)

    def place(self, number: int) -> int:
        """The place in the index of one of the files."""
        if self.places is None:
            raise AssertionError("places are kept when an answer is cut into pages")
        return int(self.places[number].as_py())

    @property
    def rows(self) -> int:
        return 0 if self.surely is None else pc.sum(self.surely, min_count=0).as_py()

    def first(self, files: int) -> "_SelectedFiles":
        return _SelectedFiles(
            self.batch.slice(0, files),
            None if self.places is None else self.places.slice(0, files),
            None if self.surely is None else self.surely.slice(0, files),
        )

    def filling(self, rows: int) -> "_SelectedFiles":
        """The files up to the one that fills a limit."""
        before = pc.subtract(pc.cumulative_sum(self.surely), self.surely)
        return self.first(pc.sum(pc.less(before, rows), min_count=0).as_py())


def _gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | None]:
    """The files with small batches put together: what a predicate leaves of each is not worth a piece of its own.

    None where more is to be put to it first, so that looking through a large index can be left off on the way.
    """
    small: list[pa.RecordBatch] = []
    for batch in batches:
        if not small and batch.num_rows >= PIECE_ROWS:
            yield batch
            continue
        small.append(batch)
        if sum(one.num_rows for one in small) >= PIECE_ROWS:
            yield _combine(small)
            small = []
        else:
            yield None
    if small:
        yield _combine(small)


def _combine(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.Table.from_batches(batches).combine_chunks()
    return next(iter(whole.to_batches()), batches[0])


def _count_rows(batch: pa.RecordBatch) -> list[str]:
    """The columns that say how much is signed for."""
    return [name for name in ("size", "rows", "dv_cardinality") if name in batch.schema.names]


def _numbers(first: int, count: int) -> pa.Array:
    return pa.Int64Array.from_buffers(
        pa.int64(), count, [None, pa.py_buffer(array("q", range(first, first + count)))]
    )


PARQUET_WORDS = ("add", "remove", "cdf")
DELTA_WORDS = ("add", "remove", "cdc")


@dataclass(frozen=True, kw_only=True)
class ChangeLines:
    """The words of one answer; `ids` is the scheme of the files' ids (protocol §2.6)."""

    response_format: ResponseFormat
    ids: ResponseFormat
    expires_at_ms: int

    def of(self, changes: pa.RecordBatch, times_ms: Mapping[int, int], sign: Sign) -> memoryview:
        """The lines of a batch of a segment; `times_ms` are those of its versions."""
        is_delta = self.response_format == "delta"
        kinds, versions = changes.column("kind").to_pylist(), changes.column("version").to_pylist()
        before = _before_urls(self.response_format)
        parts: list[str | pa.Array] = [
            texts(list(self._heads(kinds, versions, times_ms))),
            changes.column(f"{self.ids}_id"),
            texts([before[kind] for kind in kinds]),
            sign_paths(changes.column("path"), sign),
            AFTER_URL,
            changes.column("common"),
        ]
        parts += [changes.column("delta_rest"), vector_ends(changes, sign)] if is_delta else [END["parquet"]]
        return join_rows(parts)

    def _heads(self, kinds: list[int], versions: list[int], times_ms: Mapping[int, int]) -> Iterator[bytes]:
        """How each line begins: the same for all changes of a kind at a version."""
        known: dict[tuple[int, int], bytes] = {}
        for kind, version in zip(kinds, versions, strict=True):
            head = known.get((kind, version))
            if head is None:
                wrapper = "file" if self.response_format == "delta" else PARQUET_WORDS[kind]
                said = f'"version":{version},"timestamp":{times_ms[version]}'
                head = f'{{"{wrapper}":{{"expirationTimestamp":{self.expires_at_ms},{said},"id":"'.encode()
                known[kind, version] = head
            yield head


def _before_urls(response_format: ResponseFormat) -> list[bytes]:
    if response_format == "parquet":
        return [b'","url":"'] * len(PARQUET_WORDS)
    return [f'","deltaSingleAction":{{"{word}":{{"path":"'.encode() for word in DELTA_WORDS]


def require_recorded(changes: Sequence[VersionChanges]) -> None:
    """Refuse a change data feed with a version at which it was switched off, or whose changed rows are not known.

    Raises:
        BadRequest: names the range and the version, in the words that clients' tests look for (protocol §1.8).
    """
    _require_known(changes)
    for change in changes:
        if not change.head.has_change_data_feed:
            first, last = changes[0].version, changes[-1].version
            raise BadRequest(
                "startingVersion",
                first,
                f"Error getting change data for range [{first}, {last}] as change data was not recorded for version "
                f"[{change.version}]. Ask for a range without it.",
            )


def require_one_schema(unlike: str | None, first: int, latest: int) -> None:
    """Refuse a feed under the latest schema when that does not fit the files of the range.

    Raises:
        BadRequest: says what does not fit.
    """
    if unlike is not None:
        raise BadRequest(
            "includeHistoricalMetadata",
            "False",
            f"The schema of version {latest} does not tell the changes from version {first} on: {unlike}. Ask with "
            "includeHistoricalMetadata=true, or for versions after that.",
        )


def _require_known(changes: Sequence[VersionChanges]) -> None:
    unknown = [change for change in changes if change.feed_fault is not None]
    if not unknown:
        return
    newest, last = unknown[-1], changes[-1].version
    following = newest.version + 1
    remedy = (
        f"The first version from which changes can be read up to {last} is {following}: ask with "
        f"startingVersion={following}"
        if newest.version < last
        else f"No changes can be read up to version {last}: ask for those from startingVersion={following} on once "
        "it is published"
    )
    raise BadRequest(
        "startingVersion",
        changes[0].version,
        f"Error getting change data for range [{changes[0].version}, {last}] as change data was not recorded for "
        f"version [{newest.version}]: {newest.feed_fault}. {remedy}, and read a snapshot of version {newest.version} "
        "for what was before.",
    )


@dataclass(frozen=True, kw_only=True)
class ChangeResponse:
    """Which changes are wanted: of the `feed` or of a window, from the place `start` of their files, at most `most`.

    `announced` says which protocol this client is told at a version.
    """

    changes: Sequence[VersionChanges]
    feed: bool
    historical_metadata: bool
    historical_protocol: bool
    announced: Callable[[TableHead], TableProtocol]
    start: int = 0
    most: int | None = None

    @property
    def files(self) -> int:
        """How many file lines all pages have together."""
        return sum(map(self._files_of, self.changes))

    @property
    def size_bytes(self) -> int:
        """How many bytes the files of all pages have together."""
        return sum(change.feed_bytes if self.feed else change.window_bytes for change in self.changes)

    def render(
        self, lines: ChangeLines, heads: HeadLines, sign: Sign, progress: Progress
    ) -> Iterator[bytes | memoryview]:
        """The lines in pieces, in the order of the versions; `heads` are those of the answer's first lines."""
        files = self.files
        end = files if self.most is None else self.start + self.most
        progress.next_place = end if end < files else None
        times_ms = {change.version: change.timestamp_ms for change in self.changes}
        for later, batch in self._wanted(heads, end, is_last=end >= files):
            if later:
                yield later
            for piece in _pieces(batch):
                progress.files += piece.num_rows
                progress.size_bytes += pc.sum(piece.column("size"), min_count=0).as_py()
                yield lines.of(piece, times_ms, sign)

    def _wanted(
        self, heads: HeadLines, end: int, *, is_last: bool
    ) -> Iterator[tuple[bytes, pa.RecordBatch | None]]:
        """The page's head lines and batches of files, in the order of the versions."""
        place = 0
        for later, stretch in self._stretches(heads):
            if place >= end and not is_last:
                # A head line at the very end of a page is the first of the next one.
                return
            files = sum(map(self._files_of, stretch))
            if place >= self.start and later:
                yield later, None
            if place + files > self.start:
                yield from ((b"", batch) for batch in self._page(stretch, place, end))
            place += files

    def _page(self, stretch: Sequence[VersionChanges], place: int, end: int) -> Iterator[pa.RecordBatch]:
        """What of a stretch that begins at a place is between the page's start and its end."""
        for batch in self._rows(stretch):
            skipped = max(self.start - place, 0)
            yield batch.slice(skipped, max(end - place - skipped, 0))
            place += batch.num_rows
            if place >= end:
                return

    def _stretches(self, heads: HeadLines) -> Iterator[tuple[bytes, list[VersionChanges]]]:
        """Versions whose files are told together: neighbours in one segment with no head line in between."""
        stretch: list[VersionChanges] = []
        pending = b""
        for before, one in pairwise([*self.changes[:1], *self.changes]):
            later = self._later(heads, before, one)
            if stretch and (later or not _are_neighbours(before, one)):
                yield pending, stretch
                stretch = []
            if not stretch:
                pending = later
            stretch.append(one)
        if stretch:
            yield pending, stretch

    def _later(self, heads: HeadLines, before: VersionChanges, one: VersionChanges) -> bytes:
        """The head lines of a version that is not the first: of what it changed, or the versions left out before it."""
        said = b""
        if self.historical_protocol and one.protocol_text != before.protocol_text:
            told = replace(heads, protocol=self.announced(one.head), protocol_version=one.version)
            said += told.protocol_line()
        if self.historical_metadata and one.metadata_text != before.metadata_text:
            said += replace(heads, version=one.version, size_bytes=None, files=None).metadata_line(one.head)
        return said

    def _rows(self, stretch: Sequence[VersionChanges]) -> Iterator[pa.RecordBatch]:
        first, last = stretch[0], stretch[-1]
        told, there = sum(map(self._files_of, stretch)), last.end_row - first.first_row
        for batch in first.segment.rows(first.first_row, last.end_row):
            if told == there:
                yield batch
            elif self.feed:
                yield batch.filter(batch.column("in_feed"))
            else:
                yield batch.filter(pc.not_equal(batch.column("kind"), CDC))

    def _files_of(self, one: VersionChanges) -> int:
        return one.feed_rows if self.feed else one.window_rows


def _are_neighbours(one: VersionChanges, following: VersionChanges) -> bool:
    return one.segment is following.segment and one.end_row == following.first_row


def _pieces(batch: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    if batch is not None:
        for start in range(0, batch.num_rows, PIECE_ROWS):
            yield batch.slice(start, PIECE_ROWS)
