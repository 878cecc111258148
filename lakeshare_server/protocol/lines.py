"""The lines of a response: capabilities and formats, head lines, file lines and change lines, in batches."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.storage.location_columns import texts
from lakeshare_server.tables.delta.changes import CDC, VersionChanges
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.lines import total
from lakeshare_server.tables.predicates import EVERYTHING, Predicate
from lakeshare_server.tables.pruning import count_live_rows, evaluate
from lakeshare_server.tables.serveability import missing_features, needed_features
from lakeshare_server.tables.snapshot import TableHead, TableProtocol, parquet_format_schema

HEADER = "delta-sharing-capabilities"


@dataclass(frozen=True)
class Capabilities:
    """The capabilities that a client announced, in lower case; unknown keys are dropped."""

    response_formats: frozenset[str] = frozenset()
    reader_features: frozenset[str] = frozenset()
    wants_end_stream_action: bool = False
    wants_async: bool = False
    # The scheme of file ids that the client asked for, in a header of its own.
    file_ids: "ResponseFormat | None" = None

    def without_end(self) -> "Capabilities":
        """The same for responses without a closing line."""
        return replace(self, wants_end_stream_action=False)


def parse_capabilities(header: str | None) -> Capabilities:
    """Parses `key=v1,v2;key2=v`, in any case; never fails."""
    pairs: dict[str, frozenset[str]] = {}
    for part in (header or "").lower().split(";"):
        key, _, values = part.partition("=")
        pairs[key.strip()] = frozenset(value.strip() for value in values.split(",") if value.strip())
    return Capabilities(
        response_formats=pairs.get("responseformat", frozenset()),
        reader_features=pairs.get("readerfeatures", frozenset()),
        wants_end_stream_action="true" in pairs.get("includeendstreamaction", frozenset()),
        wants_async="true" in pairs.get("asyncquery", frozenset()),
    )


def format_capabilities(response_format: str, capabilities: Capabilities, *, is_pending: bool = False) -> str:
    parts = [f"responseformat={response_format}"]
    if capabilities.wants_end_stream_action:
        parts.append("includeendstreamaction=true")
    if is_pending:
        parts.append("asyncquery=true")
    return ";".join(parts)


ResponseFormat = Literal["parquet", "delta"]
FORMATS = ("parquet", "delta")


def negotiate_format(capabilities: Capabilities, head: TableHead, table: str) -> ResponseFormat:
    """The format of a response: parquet if it can represent the table, unless the client accepts only delta.

    Raises:
        BadRequest: the client accepts neither format.
        Unserveable: the table cannot be sent in a format that the client accepts; names the features it lacks.
    """
    accepted = capabilities.response_formats or frozenset({"parquet"})
    if not accepted.intersection(FORMATS):
        raise BadRequest(
            "responseformat", ",".join(sorted(accepted)), "It is parquet, delta or a list of both."
        )
    if "parquet" in accepted and not head.hindrances:
        return "parquet"
    features = ",".join(feature.lower() for feature in needed_features(head))
    fix = f"Ask with responseformat=delta{f';readerfeatures={features}' if features else ''}."
    if "delta" not in accepted:
        first = head.hindrances[0]

        raise Unserveable(
            f"Unsupported Delta Table Properties: {table} {first.reason}, which the parquet response format cannot "
            "carry.",
            f"{fix} Provider: {first.fix}",
            first.code,
        )
    missing = missing_features(head, capabilities.reader_features)
    if missing:
        lacking = [hindrance for hindrance in head.hindrances if hindrance.feature in missing]
        raise Unserveable(
            f"Unsupported Delta Table Properties: {table} {'; '.join(hindrance.reason for hindrance in lacking)}; the "
            f"client did not announce the reader features {', '.join(missing)}.",
            fix,
            lacking[0].code if lacking else None,
        )
    return "delta"


def negotiate_protocol(capabilities: Capabilities, head: TableHead) -> TableProtocol:
    """The table's protocol without reader features that the client lacks and this snapshot does not need."""
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


def directory_fields(folder: str | None) -> dict[str, Any]:
    """The fields of a table whose folder recipients may read; none for a table without such a folder."""
    return {} if folder is None else {"location": folder, "accessModes": ["url", "dir"]}


@dataclass(frozen=True, kw_only=True)
class HeadLines:
    response_format: ResponseFormat
    protocol: TableProtocol
    version: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    shares_changes: bool = False
    folder: str | None = None
    # Part of the protocol line if the client requested the protocol's history.
    protocol_version: int | None = None
    # Added to the table's configuration.
    properties: Mapping[str, str] = field(default_factory=dict)

    def of(self, head: TableHead) -> bytes:
        return self.protocol_line() + self.metadata_line(head)

    def protocol_line(self) -> bytes:
        if self.response_format == "parquet":
            return json_line({"protocol": {"minReaderVersion": 1}})
        delta = {
            "minReaderVersion": self.protocol.min_reader_version,
            "minWriterVersion": self.protocol.min_writer_version,
            "readerFeatures": self.protocol.reader_features,
            "writerFeatures": self.protocol.writer_features,
        }
        fields = {"deltaProtocol": _without_none(delta), "version": self.protocol_version}
        return json_line({"protocol": _without_none(fields)})

    def metadata_line(self, head: TableHead) -> bytes:
        """The `metaData` line, always with `size` and `numFiles`: clients fail without them (protocol §0.4)."""
        around = _without_none({"version": self.version, "size": self.size_bytes, "numFiles": self.files})
        around.update(directory_fields(self.folder))
        common = {"id": head.table_id, "name": head.name, "description": head.description}
        if self.response_format == "delta":
            fields = {
                **common,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": head.schema_string,
                "partitionColumns": head.partition_columns,
                "configuration": {**head.configuration, **self.properties},
                "createdTime": head.created_time_ms,
            }
            return json_line({"metaData": {"deltaMetadata": _without_none(fields), **around}})
        shows_changes = self.shares_changes and head.has_change_data_feed
        fields = {
            **common,
            "format": {"provider": "parquet"},
            "schemaString": parquet_format_schema(head.schema_string),
            "partitionColumns": head.partition_columns,
            "configuration": ({"enableChangeDataFeed": "true"} if shows_changes else {})
            | {**self.properties},
        }
        return json_line({"metaData": {**_without_none(fields), **around}})


def end_stream_line(fields: Mapping[str, object]) -> bytes:
    return json_line({"endStreamAction": fields})


def json_line(wrapped: Mapping[str, object]) -> bytes:
    return json.dumps(wrapped, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


Sign = Callable[[pa.StringArray], pa.StringArray]
BEFORE_URL = {"parquet": '","url":"', "delta": '","deltaSingleAction":{"add":{"path":"'}
AFTER_URL = '",'
END = {"parquet": "}}\n", "delta": "}}}}\n"}
VECTOR_URL = ',"deletionVector":{"storageType":"p","pathOrInlineDv":"'
VECTOR_ID = '}},"deletionVectorFileId":"'
VECTOR_END = '"}}\n'


@dataclass(frozen=True, kw_only=True)
class FileLines:
    """The fields of a response's file lines; `ids` is the scheme of the file ids (protocol §2.6)."""

    response_format: ResponseFormat
    ids: ResponseFormat
    expires_at_ms: int

    def join(
        self, heads: str | pa.Array, before_urls: str | pa.Array, files: pa.RecordBatch, sign: Sign
    ) -> memoryview:
        """The lines of files: what is before the id, the id, what is before the URL, the URL, and the rest."""
        ends = [END["parquet"]]
        if self.response_format == "delta":
            ends = [files.column("delta_rest"), _vector_ends(files, sign)]
        urls, ids = sign(files.column("path")), files.column(f"{self.ids}_id")
        parts = heads, ids, before_urls, urls, AFTER_URL, files.column("common"), *ends
        rows = pc.binary_join_element_wise(*parts, "")
        _, offsets, characters = rows.buffers()
        positions = memoryview(offsets).cast("i")
        return memoryview(characters)[positions[rows.offset] : positions[rows.offset + len(rows)]]


@dataclass(frozen=True, kw_only=True)
class SnapshotLines(FileLines):
    # Set if the client requested a version or a time (protocol §2.1).
    version: int | None = None

    @property
    def columns(self) -> Sequence[str]:
        """The columns of an index that the lines need."""
        ends = ["delta_rest", "dv_path", "dv_rest", "dv_file_id"] if self.response_format == "delta" else []
        return [f"{self.ids}_id", "path", "common", *ends]

    def of(self, files: pa.RecordBatch, sign: Sign) -> memoryview:
        version = "" if self.version is None else f'"version":{self.version},'
        head = f'{{"file":{{"expirationTimestamp":{self.expires_at_ms},{version}"id":"'
        return self.join(head, BEFORE_URL[self.response_format], files, sign)


def _vector_ends(files: pa.RecordBatch, sign: Sign) -> str | pa.Array:
    """The end of each line: the same text for all if no file has a deletion vector in a file of its own."""
    paths = files.column("dv_path")
    plain = END["delta"]
    if paths.null_count == len(paths):
        return plain
    has_vector = pc.is_valid(paths)
    vectors = files.filter(has_vector)
    ends = pc.binary_join_element_wise(
        VECTOR_URL,
        sign(vectors.column("dv_path")),
        vectors.column("dv_rest"),
        VECTOR_ID,
        vectors.column("dv_file_id"),
        VECTOR_END,
        "",
    )
    return pc.replace_with_mask(pa.repeat(plain, len(paths)), has_vector, ends)


PIECE_ROWS = 2000
# The first files do not wait long for URLs.
SLOW_PIECE_ROWS = 1000
# Most of a batch was read if more than one file in this many was used.
PARTS = 8
PLACE, SURE_ROWS = "place", "sure_rows"
COUNTED = ("size", "rows", "dv_cardinality")


@dataclass
class Progress:
    """What a response has sent so far; complete at its end. `is_slow`: its URLs take up to a millisecond each."""

    is_slow: bool = False
    files: int = 0
    size_bytes: int = 0
    # None for changes, whose files have rows of several kinds.
    rows: int | None = None
    # The start of the next page, None after the last page; and the rows that it has to find.
    next_place: int | None = None
    rows_wanted: int | None = None

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The files to send at once, counted."""
        rows = SLOW_PIECE_ROWS if self.is_slow else PIECE_ROWS
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            self.files += piece.num_rows
            self.size_bytes += total(piece.column("size"))
            yield piece


@dataclass(frozen=True, kw_only=True)
class SnapshotResponse:
    """The selected files: at most `most` from place `start` of the index, enough for `rows_wanted`."""

    index: FileIndex
    predicate: Predicate = EVERYTHING
    rows_wanted: int | None = None
    start: int = 0
    most: int | None = None

    def render(self, lines: SnapshotLines, sign: Sign, progress: Progress) -> Iterator[bytes | memoryview]:
        """The file lines in pieces; an empty piece for each batch of the index without files."""
        for batch in _gather(self._wanted(lines.columns, progress)):
            if batch is None:
                yield b""
                continue
            for piece in progress.pieces(batch):
                progress.rows = (progress.rows or 0) + total(count_live_rows(piece))
                yield lines.of(piece, sign)

    def _wanted(self, columns: Sequence[str], progress: Progress) -> Iterator[pa.RecordBatch]:
        room, rows_left = self.most, self.rows_wanted
        # A predicate may need any column.
        needed = [*columns, *COUNTED] if self.predicate == EVERYTHING else None
        for begin, batch in self._from_start(needed):
            if rows_left is not None and rows_left <= 0:
                return
            kept = self._kept(begin, batch, columns)
            if rows_left is not None:
                rows = kept.column(SURE_ROWS)
                before = pc.subtract(pc.cumulative_sum(rows), rows)
                kept = kept.slice(0, total(pc.less(before, rows_left)))
            is_full = room is not None and kept.num_rows > room
            if is_full:
                progress.next_place = kept.column(PLACE)[room].as_py()
                kept = kept.slice(0, room)
            rows_left = None if rows_left is None else rows_left - total(kept.column(SURE_ROWS))
            if is_full:
                progress.rows_wanted = rows_left
                yield kept
                return
            yield kept
            self.index.give_back(batch, is_read=kept.num_rows * PARTS > batch.num_rows)
            room = None if room is None else room - kept.num_rows

    def _from_start(self, columns: Sequence[str] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        begin = 0
        # Pages and limits count in the order of the paths.
        is_whole = self.most is None and self.rows_wanted is None
        read = self.index.unordered_batches if is_whole else self.index.batches
        for batch in read(columns):
            skipped = max(self.start - begin, 0)
            if skipped < batch.num_rows:
                yield begin + skipped, batch.slice(skipped)
            begin += batch.num_rows

    def _kept(self, begin: int, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """The selected files of a batch, with their places if they are sent in pages, and rows that surely count."""
        more: dict[str, pa.Array] = {}
        if self.most is not None:
            more[PLACE] = pa.arange(begin, begin + batch.num_rows)
        maybe = None if self.predicate == EVERYTHING else evaluate(self.predicate, batch)
        if self.rows_wanted is not None:
            rows = count_live_rows(batch)
            # Only rows that surely pass the predicate count towards the limit.
            more[SURE_ROWS] = rows if maybe is None else pc.if_else(maybe.surely_all, rows, 0)
        if maybe is not None:
            counted = [name for name in COUNTED if name in batch.schema.names]
            batch = batch.select([*columns, *counted])
        for name, values in more.items():
            batch = batch.append_column(name, values)
        return batch if maybe is None else batch.filter(maybe.true)


def _gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | None]:
    """Combines small batches; None after a batch that is not yet returned, so that the caller can stop in between."""
    small: list[pa.RecordBatch] = []
    for batch in batches:
        if not small and batch.num_rows >= PIECE_ROWS:
            yield batch
            continue
        small.append(batch)
        if sum(part.num_rows for part in small) >= PIECE_ROWS:
            yield _combine(small)
            small = []
        else:
            yield None
    if small:
        yield _combine(small)


def _combine(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.Table.from_batches(batches).combine_chunks()
    return next(iter(whole.to_batches()), batches[0])


PARQUET_WORDS = ("add", "remove", "cdf")
DELTA_WORDS = ("add", "remove", "cdc")


class ChangeLines(FileLines):
    def of(self, changes: pa.RecordBatch, times_ms: Mapping[int, int], sign: Sign) -> memoryview:
        """The lines of a batch of a segment; `times_ms` are the times of its versions."""
        kinds, versions = changes.column("kind").to_pylist(), changes.column("version").to_pylist()
        before: str | pa.Array = BEFORE_URL["parquet"]
        if self.response_format == "delta":
            words = [f'","deltaSingleAction":{{"{word}":{{"path":"'.encode() for word in DELTA_WORDS]
            before = texts([words[kind] for kind in kinds])
        return self.join(texts(list(self._heads(kinds, versions, times_ms))), before, changes, sign)

    def _heads(self, kinds: list[int], versions: list[int], times_ms: Mapping[int, int]) -> Iterator[bytes]:
        known: dict[tuple[int, int], bytes] = {}
        for kind, version in zip(kinds, versions, strict=True):
            head = known.get((kind, version))
            if head is None:
                wrapper = "file" if self.response_format == "delta" else PARQUET_WORDS[kind]
                fields = f'"version":{version},"timestamp":{times_ms[version]}'
                head = f'{{"{wrapper}":{{"expirationTimestamp":{self.expires_at_ms},{fields},"id":"'.encode()
                known[kind, version] = head
            yield head


def require_recorded(changes: Sequence[VersionChanges]) -> None:
    """Refuses a change data feed with a version whose changed rows are unknown or whose feed was off.

    Raises:
        BadRequest: names the range and the version, in the words that clients' tests search for (protocol §1.8).
    """
    first, last = changes[0].version, changes[-1].version
    range_text = (
        f"Error getting change data for range [{first}, {last}] as change data was not recorded for version"
    )
    unknown = [change for change in changes if change.feed_fault is not None]
    if unknown:
        newest = unknown[-1]
        following = newest.version + 1
        remedy = (
            f"The first version from which changes can be read up to {last} is {following}: ask with "
            f"startingVersion={following}"
            if newest.version < last
            else f"No changes can be read up to version {last}: ask for those from startingVersion={following} on "
            "once it is published"
        )
        raise BadRequest(
            "startingVersion",
            first,
            f"{range_text} [{newest.version}]: {newest.feed_fault}. {remedy}, and read a snapshot of version "
            f"{newest.version} for what was before.",
        )
    for change in changes:
        if not change.head.has_change_data_feed:
            raise BadRequest(
                "startingVersion", first, f"{range_text} [{change.version}]. Ask for a range without it."
            )


def require_one_schema(unlike: str | None, first: int, latest: int) -> None:
    """Refuses a feed under the latest schema with BadRequest if the range's files do not fit it."""
    if unlike is not None:
        raise BadRequest(
            "includeHistoricalMetadata",
            "False",
            f"The schema of version {latest} does not fit the changes from version {first} on: {unlike}. Ask with "
            "includeHistoricalMetadata=true, or for versions after that.",
        )


@dataclass(frozen=True, kw_only=True)
class ChangeResponse:
    """The selected changes: at most `most` files from place `start`; `announced` is the client's protocol."""

    changes: Sequence[VersionChanges]
    feed: bool
    historical_metadata: bool
    historical_protocol: bool
    announced: Callable[[TableHead], TableProtocol]
    start: int = 0
    most: int | None = None

    @property
    def files(self) -> int:
        return self._count_files(self.changes)

    @property
    def size_bytes(self) -> int:
        return sum(change.feed_bytes if self.feed else change.window_bytes for change in self.changes)

    def render(
        self, lines: ChangeLines, heads: HeadLines, sign: Sign, progress: Progress
    ) -> Iterator[bytes | memoryview]:
        """The lines in pieces, in the order of the versions; `heads` made the response's first lines."""
        files = self.files
        end = files if self.most is None else self.start + self.most
        progress.next_place = end if end < files else None
        times_ms = {change.version: change.timestamp_ms for change in self.changes}
        for head, batch in self._select(heads, end, is_last=end >= files):
            if head:
                yield head
            if batch is None:
                continue
            for piece in progress.pieces(batch):
                yield lines.of(piece, times_ms, sign)

    def _select(
        self, heads: HeadLines, end: int, *, is_last: bool
    ) -> Iterator[tuple[bytes, pa.RecordBatch | None]]:
        place = 0
        for head, stretch in self._stretches(heads):
            if place >= end and not is_last:
                return
            files = self._count_files(stretch)
            if place >= self.start and head:
                yield head, None
            if place + files > self.start:
                yield from ((b"", batch) for batch in self._page(stretch, place, end))
            place += files

    def _page(self, stretch: Sequence[VersionChanges], place: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in self._rows(stretch):
            skipped = max(self.start - place, 0)
            yield batch.slice(skipped, max(end - place - skipped, 0))
            place += batch.num_rows
            if place >= end:
                return

    def _stretches(self, heads: HeadLines) -> Iterator[tuple[bytes, list[VersionChanges]]]:
        """Versions to render together: neighbours in one segment without a head line in between."""
        stretch: list[VersionChanges] = []
        pending = b""
        for before, change in pairwise([*self.changes[:1], *self.changes]):
            head = self._head_lines(heads, before, change)
            are_neighbours = before.segment is change.segment and before.end_row == change.first_row
            if stretch and (head or not are_neighbours):
                yield pending, stretch
                stretch = []
            if not stretch:
                pending = head
            stretch.append(change)
        if stretch:
            yield pending, stretch

    def _head_lines(self, heads: HeadLines, before: VersionChanges, change: VersionChanges) -> bytes:
        """The head lines of a version whose protocol or metadata differs from the version before."""
        lines = b""
        if self.historical_protocol and change.protocol_text != before.protocol_text:
            protocol = self.announced(change.head)
            lines += replace(heads, protocol=protocol, protocol_version=change.version).protocol_line()
        if self.historical_metadata and change.metadata_text != before.metadata_text:
            own = replace(heads, version=change.version, size_bytes=None, files=None)
            lines += own.metadata_line(change.head)
        return lines

    def _rows(self, stretch: Sequence[VersionChanges]) -> Iterator[pa.RecordBatch]:
        first, last = stretch[0], stretch[-1]
        is_whole = self._count_files(stretch) == last.end_row - first.first_row
        for batch in first.segment.rows(first.first_row, last.end_row):
            if is_whole:
                yield batch
            elif self.feed:
                yield batch.filter(batch.column("in_feed"))
            else:
                yield batch.filter(pc.not_equal(batch.column("kind"), CDC))

    def _count_files(self, changes: Sequence[VersionChanges]) -> int:
        return sum(change.feed_rows if self.feed else change.window_rows for change in changes)
