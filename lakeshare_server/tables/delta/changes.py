"""The changes of each version of a Delta table, from an index: segments of some dozen versions in Arrow IPC files.

Segments are aligned and built on first use; only the newest of a range may be short, under its last version. The last
batch of a segment is one row with its footer, which is complete only after all versions were read.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from dataclasses import fields as dataclass_fields
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import TableFilesMissing, Unserveable
from lakeshare_server.storage import Stores
from lakeshare_server.storage.location_columns import find_outside_files, find_roots
from lakeshare_server.tables.delta.files import (
    Action,
    empty_as_null,
    from_actions,
    logged_files,
    mapping_mode,
    parse_partition_values,
    partition_types,
)
from lakeshare_server.tables.delta.log import (
    NOT_AS_SPECIFIED,
    Commit,
    LogFile,
    LogListing,
    head_actions,
    list_log,
    read_commits,
    replay,
)
from lakeshare_server.tables.delta.snapshot import make_delta_head, require_known
from lakeshare_server.tables.index import CacheFolder
from lakeshare_server.tables.lines import LINE_COLUMNS, column_of, render_lines, struct_of, total
from lakeshare_server.tables.predicates import Predicate, columns_of
from lakeshare_server.tables.restrictions import Undecided, find_undecided, is_within, without_counts
from lakeshare_server.tables.snapshot import Hindrance, TableHead, parse_schema

ADD, REMOVE, CDC = 0, 1, 2
COLUMNS = (
    *(("version", pa.int64()), ("kind", pa.int8()), ("in_feed", pa.bool_())),
    *(("path", pa.string()), ("size", pa.int64())),
    *((name, pa.string()) for name in LINE_COLUMNS),
)
COUNTED = pa.schema([("kind", pa.int8()), ("in_feed", pa.bool_()), ("size", pa.int64())])
FOOTER_KEY = "note"
SCHEMA = pa.schema([*COLUMNS, (FOOTER_KEY, pa.string())])
BATCH_ROWS = 16_000


@dataclass(frozen=True, kw_only=True)
class VersionTotals:
    """A version in a segment: its first row, and the rows and bytes of its window and its feed."""

    version: int
    first_row: int
    window_rows: int
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int

    @property
    def end_row(self) -> int:
        return self.first_row + self.window_rows + self.cdc_rows


def count_rows(rows: pa.Table) -> dict[str, Any]:
    """The totals of the rows of a version, by the columns of `COUNTED`."""
    is_cdc, in_feed, sizes = pc.equal(rows.column("kind"), CDC), rows.column("in_feed"), rows.column("size")
    cdc_rows = total(is_cdc)
    return {
        "window_rows": rows.num_rows - cdc_rows,
        "cdc_rows": cdc_rows,
        "feed_rows": total(in_feed),
        "window_bytes": total(sizes.filter(pc.invert(is_cdc))),
        "feed_bytes": total(sizes.filter(in_feed)),
    }


@dataclass(frozen=True, kw_only=True)
class SegmentVersion(VersionTotals):
    """A version in a segment; `protocol` and `metadata` are JSON of the log, in force after its commit.

    `own_time_ms` is the in-commit timestamp; `fault` says why the changes are unknown. A version of an Iceberg table
    has a `head` for recipients, in JSON, and `feed_fault` if its changed rows are unknown.
    """

    protocol: str
    metadata: str
    modified_ms: int
    own_time_ms: int | None
    vectors: int
    lacks_row_ids: bool
    fault: str | None = None
    head: str | None = None
    feed_vectors: int = 0
    feed_fault: str | None = None


@dataclass(frozen=True)
class SegmentFooter:
    """The versions of a segment that the log has, and the roots of their files (see `storage.location_columns`).

    For an Iceberg table, `made_of` has the layout and the digests of the two file indexes that were compared.
    """

    versions: dict[int, SegmentVersion] = dataclass_field(default_factory=dict)
    roots: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()

    def as_json(self) -> str:
        texts: dict[str, int] = {}
        versions = []
        for version in self.versions.values():
            numbers = [texts.setdefault(text, len(texts)) for text in (version.protocol, version.metadata)]
            versions.append({**asdict(version), "protocol": numbers[0], "metadata": numbers[1]})
        fields = {"texts": list(texts), "versions": versions, "roots": self.roots, "made_of": self.made_of}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "SegmentFooter":
        footer = json.loads(text)
        versions = {}
        for stored in footer["versions"]:
            texts = {name: footer["texts"][stored[name]] for name in ("protocol", "metadata")}
            versions[stored["version"]] = SegmentVersion(**{**stored, **texts})
        return cls(versions, tuple(footer["roots"]), tuple(footer["made_of"]))


class Segment:
    """An open segment. Batches are views into the mapped file."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        last = self._reader.num_record_batches - 1
        self.note = SegmentFooter.from_json(self._reader.get_batch(last).column(FOOTER_KEY)[0].as_py())
        self._starts = [0]
        for number in range(last):
            self._starts.append(self._starts[-1] + self._reader.get_batch(number).num_rows)

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from `start` to before `stop`, in batches."""
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[number], min(self._starts[number + 1], stop)
            yield self._reader.get_batch(number).slice(start - begin, end - start)
            start, number = end, number + 1


class RewrittenSegment(Segment):
    """A segment whose batches are rewritten when they are read."""

    def __init__(self, segment: Segment, rewrite: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self.note = segment.note
        self.original, self._rewrite = segment, rewrite

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return map(self._rewrite, self.original.rows(start, stop))


SegmentCache = CacheFolder[Segment]


def segment_cache(folder: Path, max_bytes: int) -> SegmentCache:
    """Segments in a folder of bounded size, which other indexes may share."""
    return CacheFolder(folder, "changes", max_bytes, Segment)


class SegmentFile:
    """Writes a segment: rows in batches, then the footer."""

    def __init__(self, path: Path) -> None:
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, SCHEMA)
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> "SegmentFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._sink.close()

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) >= BATCH_ROWS:
            self._flush()

    def close(self, footer: SegmentFooter) -> None:
        self._flush()
        row: dict[str, Any] = {name: pa.nulls(1, kind) for name, kind in COLUMNS}
        row[FOOTER_KEY] = pa.array([footer.as_json()], pa.string())
        self._writer.write_table(pa.table(row, schema=SCHEMA))

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            rows = rows.append_column(FOOTER_KEY, pa.nulls(rows.num_rows, pa.string())).combine_chunks()
            self._writer.write_table(rows, max_chunksize=BATCH_ROWS)
            self._waiting = []


@dataclass(frozen=True)
class FileChange:
    """One action of a commit; `in_feed`: it is part of the change data feed."""

    version: int
    kind: int
    in_feed: bool
    action: Action
    committed_ms: int


def list_file_changes(commit: Commit, removes: Sequence[Action]) -> Iterator[FileChange]:
    """The data changes of a commit; `removes` are its removes, completed from the log."""
    counts = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    metrics = commit.info.get("operationMetrics") or {}
    # A MERGE that rewrote files without changing a row (protocol §1.8) has no rows in the feed.
    is_noop = commit.info.get("operation") == "MERGE" and all(metrics.get(name) == "0" for name in counts)
    for kind, actions in ((ADD, commit.adds), (REMOVE, removes)):
        for action in actions:
            if _has_data_change(action):
                in_feed = not commit.cdc and not is_noop
                yield FileChange(commit.last, kind, in_feed, action, commit.modified_ms)
    for action in commit.cdc:
        yield FileChange(commit.last, CDC, True, action, commit.modified_ms)


def _has_data_change(action: Action) -> bool:
    """Whether rows change with a file: OPTIMIZE rewrites files with the same rows."""
    return action.get("dataChange") is not False


VECTOR_FIELDS = {"storageType", "pathOrInlineDv", "sizeInBytes", "cardinality"}


def make_change_table(
    root: str, changes: Sequence[FileChange], partition_types: Mapping[str, str]
) -> pa.Table:
    """The rows of the changes; `partition_types` are by the names in the log."""
    actions = [change.action for change in changes]
    vectors = (action.get("deletionVector") for action in actions)
    adds = from_actions(actions, list(partition_types))
    is_whole = all(not vector or vector.keys() >= VECTOR_FIELDS for vector in vectors)
    if adds.column("path").null_count or adds.column("size").null_count or not is_whole:
        raise ValueError("a file without a path or a size, or with a part of a deletion vector")
    stats = [change.action.get("stats") if change.kind == ADD else None for change in changes]
    readable = pa.array([text if text and _counts_rows(text) else None for text in stats], pa.string())
    texts = empty_as_null(column_of(adds, "partition_values"), list(partition_types.values()))
    files = pa.table({**logged_files(root, adds, texts, readable), "rest": pa.array(map(_rest, changes))})
    columns = {
        "version": pa.array([change.version for change in changes], pa.int64()),
        "kind": pa.array([change.kind for change in changes], pa.int8()),
        "in_feed": pa.array([change.in_feed for change in changes], pa.bool_()),
        "path": files.column("path"),
        "size": files.column("size"),
        **dict(zip(LINE_COLUMNS, render_lines(files, ()), strict=True)),
    }
    return pa.table(columns, schema=pa.schema(list(COLUMNS)))


def _counts_rows(stats: str) -> bool:
    """Whether readers can use statistics; as in snapshots, those without a row count are left out."""
    try:
        rows = orjson.loads(stats)["numRecords"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return False
    return isinstance(rows, int) and rows >= 0


def _rest(change: FileChange) -> str:
    """The members of a line that depend on the kind of the action."""
    fields: Action = {"dataChange": change.kind != CDC}
    if change.kind == ADD:
        fields["modificationTime"] = change.action.get("modificationTime", change.committed_ms)
    elif change.kind == REMOVE:
        fields["deletionTimestamp"] = change.action.get("deletionTimestamp", change.committed_ms)
        fields["extendedFileMetadata"] = True
    return "," + orjson.dumps(fields).decode()[1:-1]


class RemovedFiles:
    """Completes removes, commit by commit; reads the table's files only if a remove lacks fields."""

    def __init__(self, stores: Stores, listing: LogListing) -> None:
        self._stores, self._listing = stores, listing
        # The files before the first such remove, and the files added since.
        self._before: pa.Table | None = None
        self._since: dict[str, Action] = {}

    def of(self, commit: Commit, is_partitioned: bool) -> list[Action]:
        """The removes of a commit, each with its size and partition values."""

        def is_lacking(remove: Action) -> bool:
            return remove.get("size") is None or (is_partitioned and remove.get("partitionValues") is None)

        changing = filter(_has_data_change, commit.removes)
        lacking = {remove["path"] for remove in changing if is_lacking(remove)}
        if lacking and self._before is None:
            self._before = replay(self._stores, self._listing, commit.first - 1).adds
        known = self._describe(sorted(lacking))
        complete = [
            # The remove's own values take precedence, but not nulls.
            {**remove, **{k: v for k, v in known[remove["path"]].items() if remove.get(k) is None}}
            if remove["path"] in lacking
            else remove
            for remove in commit.removes
        ]
        if self._before is not None:
            for add in commit.adds:
                values = add.get("partitionValues") or {}
                self._since[add["path"]] = {"size": add["size"], "partitionValues": values}
        return complete

    def _describe(self, paths: Sequence[str]) -> dict[str, Action]:
        known = {path: self._since[path] for path in paths if path in self._since}
        left = [path for path in paths if path not in known]
        if left and self._before is not None:
            before = self._before.filter(pc.is_in(self._before.column("path"), pa.array(left, pa.string())))
            for row in before.select(["path", "size", "partition_values"]).to_pylist():
                known[row["path"]] = {"size": row["size"], "partitionValues": row["partition_values"] or {}}
        unknown = [path for path in left if path not in known]
        if unknown:
            what = f"its log removes {unknown[0]} without a size, and never added it"
            raise TableFilesMissing(self._listing.root, what)
        return known


# Limits of the commits parsed at once: a commit may be of any size.
BYTES_AT_ONCE = 32_000_000
COMMITS_AT_ONCE = 100


@dataclass(frozen=True)
class HeadTexts:
    """Protocol and metadata of the log as JSON, normalized: the same text from commits and from checkpoints."""

    protocol: str
    metadata: str

    @cached_property
    def partition_types(self) -> dict[str, str]:
        return partition_types(orjson.loads(self.metadata))

    def after(self, commit: Commit) -> "HeadTexts":
        if commit.protocol is None and commit.metadata is None:
            return self
        return HeadTexts(
            self.protocol if commit.protocol is None else _text(commit.protocol),
            self.metadata if commit.metadata is None else _text(commit.metadata),
        )


# In force before the first version.
NO_HEAD = HeadTexts("", "")


def _text(action: Action) -> str:
    return orjson.dumps(_without_empty(action), option=orjson.OPT_SORT_KEYS).decode()


def _without_empty(value: Any) -> Any:
    """The value without null and empty members: commits and checkpoints differ in them."""
    if not isinstance(value, dict):
        return value
    members = {name: _without_empty(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member is not None and member != {}}


class SegmentWriter:
    """Writes the segment of the versions from `begin` to `end` whose commits the log has.

    `before` is the head in force before `begin`, None if unknown.
    """

    def __init__(
        self, stores: Stores, listing: LogListing, begin: int, end: int, before: HeadTexts | None
    ) -> None:
        self._stores, self._listing, self._root = stores, listing, listing.root
        self.begin, self.end, self._before = begin, end, before
        self._removed = RemovedFiles(stores, listing)
        self._versions: dict[int, SegmentVersion] = {}
        self._roots: set[str] = set()
        self._rows = 0

    def write(self, path: Path, versions: Collection[int]) -> None:
        """Writes the file, which has to contain `versions`."""
        commits = self._listing.commits
        lost = min(set(versions) - commits.keys(), default=None)
        if lost is not None:
            kept = "it has no commits at all"
            if commits:
                kept = f"its oldest commit is that of version {min(commits)}"
            raise TableFilesMissing(self._root, f"the log has lost the commit of version {lost}; {kept}")
        # Runs of existing versions without a gap.
        runs: list[list[int]] = []
        for version in range(self.begin, self.end + 1):
            if version in commits:
                if version - 1 not in commits or not runs:
                    runs.append([])
                runs[-1].append(version)
        with SegmentFile(path) as file:
            for run in runs:
                readable, heads = self._readable(run, versions)
                self._write_run(file, readable, heads)
            file.close(SegmentFooter(self._versions, tuple(sorted(self._roots))))

    def _readable(self, run: Sequence[int], versions: Collection[int]) -> tuple[Sequence[int], HeadTexts]:
        """The versions of a run from the first with a known head, and the head before them."""
        if run[0] == 0:
            return run, NO_HEAD
        if run[0] == self.begin and self._before is not None:
            return run, self._before
        for number, version in enumerate(run):
            if number == 0 or version in versions or version in self._listing.checkpoints:
                try:
                    # Of the version itself: the one before may be gone, and the commit repeats changes of the head.
                    protocol, metadata = head_actions(self._stores, self._listing, version)
                except TableFilesMissing:
                    if version in versions:
                        raise
                else:
                    return run[number:], HeadTexts(_text(protocol), _text(metadata))
        return [], NO_HEAD

    def _write_run(self, file: SegmentFile, run: Sequence[int], heads: HeadTexts) -> None:
        for files in _group_by_size([(version, version, self._listing.commits[version]) for version in run]):
            for commit in read_commits(self._stores, self._root, files):
                heads = heads.after(commit)
                if not heads.protocol or not heads.metadata:
                    raise TableFilesMissing(self._root, "its log has no protocol or no metadata")
                try:
                    self._write_commit(file, commit, heads)
                except NOT_AS_SPECIFIED as error:
                    what = f"an entry of version {commit.last} in its log is not whole"
                    raise TableFilesMissing(self._root, what) from error

    def _write_commit(self, file: SegmentFile, commit: Commit, heads: HeadTexts) -> None:
        fault = None
        try:
            removes = self._removed.of(commit, bool(heads.partition_types))
            changes = list(list_file_changes(commit, removes))
        except TableFilesMissing as error:
            # Raised only for requests of this version.
            fault, changes = error.what, []
        self._versions[commit.last] = _describe_version(commit, heads, changes, self._rows, fault)
        if changes:
            table = make_change_table(self._root, changes, heads.partition_types)
            self._rows += table.num_rows
            self._roots |= find_roots(self._root, find_outside_files(self._root, table))
            file.add(table)


def _group_by_size(files: Sequence[LogFile]) -> Iterator[list[LogFile]]:
    """The files in groups that fit into memory together."""
    group: list[LogFile] = []
    size_bytes = 0
    for file in files:
        if group and (size_bytes + file[2].size_bytes > BYTES_AT_ONCE or len(group) == COMMITS_AT_ONCE):
            yield group
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file[2].size_bytes
    if group:
        yield group


def _describe_version(
    commit: Commit, heads: HeadTexts, changes: Sequence[FileChange], first_row: int, fault: str | None
) -> SegmentVersion:
    window = [change for change in changes if change.kind != CDC]
    feed = [change for change in changes if change.in_feed]
    configuration = orjson.loads(heads.metadata).get("configuration") or {}
    time_ms = None
    if configuration.get("delta.enableInCommitTimestamps") == "true":
        time_ms = commit.info.get("inCommitTimestamp")
    return SegmentVersion(
        version=commit.last,
        protocol=heads.protocol,
        metadata=heads.metadata,
        modified_ms=commit.modified_ms,
        own_time_ms=time_ms if isinstance(time_ms, int) and not isinstance(time_ms, bool) else None,
        first_row=first_row,
        window_rows=len(window),
        cdc_rows=len(changes) - len(window),
        feed_rows=len(feed),
        window_bytes=sum(change.action["size"] for change in window),
        feed_bytes=sum(change.action["size"] for change in feed),
        vectors=sum(bool(change.action.get("deletionVector")) for change in changes),
        lacks_row_ids=any(change.action.get("baseRowId") is None for change in window),
        fault=fault,
    )


LAYOUT = 5
LENGTHS = (100, 10)


@dataclass(frozen=True, kw_only=True)
class VersionChanges(VersionTotals):
    """The changes of one version.

    `head` is in force after its commit; its hindrances are those of the whole range that was read. `has_own_time`: the
    time is an in-commit timestamp; other times come from files and can be replaced with `at`. The window and the feed
    of an Iceberg table can have hindrances of their own, and `feed_fault` says why the feed is unknown.
    """

    timestamp_ms: int
    has_own_time: bool
    head: TableHead
    metadata_text: str = dataclass_field(repr=False)
    protocol_text: str = dataclass_field(repr=False)
    segment: Segment = dataclass_field(repr=False, compare=False)
    window_hindrances: tuple[Hindrance, ...] = ()
    feed_hindrances: tuple[Hindrance, ...] = ()
    feed_fault: str | None = None

    @property
    def has_data_changes(self) -> bool:
        return bool(self.window_rows or self.cdc_rows)

    @property
    def roots(self) -> tuple[str, ...]:
        """The stores of its files, or folders of local files outside of the table; possibly more."""
        return self.segment.note.roots

    @classmethod
    def of(cls, version: SegmentVersion, **fields: Any) -> "VersionChanges":
        """The changes of a version in a segment; `fields` are those that the segment's footer does not have."""
        totals = {field.name: getattr(version, field.name) for field in dataclass_fields(VersionTotals)}
        return cls(**totals, metadata_text=version.metadata, protocol_text=version.protocol, **fields)

    def at(self, timestamp_ms: int) -> "VersionChanges":
        return replace(self, timestamp_ms=timestamp_ms)


@dataclass(frozen=True)
class ChangeLog:
    """The log of a table; `table_id` or the commits of `listing` distinguish it from an earlier table at the path."""

    stores: Stores
    root: str
    table_id: str = ""
    listing: LogListing | None = None


def read_changes(log: ChangeLog, cache: SegmentCache, first: int, last: int) -> list[VersionChanges]:
    """Returns the changes of the versions from `first` to `last`, in order.

    Raises:
        TableFilesMissing: the log no longer has one of them, or it is damaged.
        Unserveable: a version needs an unknown reader feature.
        Unavailable: the cache folder cannot be written, or the store does not answer.
    """
    requested = [
        (version, segment)
        for segment in _segments(log, cache, first, last)
        for version in segment.note.versions.values()
        if first <= version.version <= last
    ]
    for version, _ in requested:
        if version.fault is not None:
            raise TableFilesMissing(log.root, version.fault)
    heads = _heads(log.root, [version for version, _ in requested])
    return [
        VersionChanges.of(
            version,
            timestamp_ms=version.modified_ms if version.own_time_ms is None else version.own_time_ms,
            has_own_time=version.own_time_ms is not None,
            head=head,
            segment=segment,
        )
        for (version, segment), head in zip(requested, heads, strict=True)
    ]


def list_spans(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The segments of a range of versions: as long as possible, the last one short."""
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
        segment = cache.find(_identity(log, begin, end))
        if segment is None or not _has(versions, segment):
            listing = listing or list_log(log.stores, log.root)
            if before is None and begin:
                length = LENGTHS[0] if begin % LENGTHS[0] == 0 else LENGTHS[1]
                before = cache.find(_identity(log, begin - length, begin - 1))
            known = None if before is None else before.note.versions.get(begin - 1)
            heads = None if known is None else HeadTexts(known.protocol, known.metadata)
            writer = SegmentWriter(log.stores, listing, begin, end, heads)
            segment = cache.get(
                _identity(log, begin, end), partial(writer.write, versions=versions), partial(_has, versions)
            )
        before = segment
        yield segment


def _identity(log: ChangeLog, begin: int, end: int) -> tuple[object, ...]:
    commit = log.listing.commits.get(end) if log.listing is not None else None
    stamp = None if commit is None else commit.etag or commit.modified_ms
    return "changes", LAYOUT, log.root, log.table_id, begin, end, stamp


def _has(versions: range, segment: Segment) -> bool:
    """Whether a segment has the versions without a fault: faulty ones are read again, the log may be repaired."""
    known = [segment.note.versions.get(version) for version in versions]
    return all(version is not None and version.fault is None for version in known)


def _heads(root: str, versions: Sequence[SegmentVersion]) -> list[TableHead]:
    vectors = sum(version.vectors for version in versions)
    lacks_row_ids = any(version.lacks_row_ids for version in versions)
    # Versions before the feature was enabled have a protocol without it, which the protocol's history shows.
    protocols = {version.protocol for version in versions}
    supporting = {protocol for protocol in protocols if '"deletionVectors"' in protocol} or protocols
    try:
        counts = ((one, vectors if one.protocol in supporting else 0) for one in versions)
        heads = [_head(one.protocol, one.metadata, count, lacks_row_ids) for one, count in counts]
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    return share_hindrances(heads)


@lru_cache(256)
def _head(protocol_text: str, metadata_text: str, vectors: int, lacks_row_ids: bool) -> TableHead:
    """The head at a version, given deletion vectors and row ids of the files in the range."""
    protocol, metadata = orjson.loads(protocol_text), orjson.loads(metadata_text)
    require_known(protocol)
    rows = max(vectors, 1)
    files = {
        "dv_storage": pa.array(["u"] * vectors + [None] * (rows - vectors), pa.string()),
        "base_row_id": pa.array([None if lacks_row_ids else 0] * rows, pa.int64()),
    }
    return make_delta_head(protocol, metadata, pa.table(files))


def share_hindrances(heads: Sequence[TableHead]) -> list[TableHead]:
    """Returns the heads, each with the hindrances of all: all lines of a response have one format."""
    different = {id(head): head for head in heads}
    hindrances = tuple(dict.fromkeys(chain.from_iterable(head.hindrances for head in different.values())))
    shared = {key: replace(head, hindrances=hindrances) for key, head in different.items()}
    return [shared[id(head)] for head in heads]


PARTITION_VALUES = r'(?s)^"partitionValues":(?P<values>\{.*\}),"size":\d'
ADVICE = "Ask the provider to share a view of these rows."


class RestrictedSegment(Segment):
    """The rows of a segment with these numbers."""

    def __init__(self, segment: Segment, numbers: pa.Int64Array) -> None:
        self.note = segment.note
        self._segment, self._numbers = segment, numbers

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        numbers = self._numbers.slice(start, stop - start)
        if not len(numbers):
            return
        begin, end = numbers[0].as_py(), numbers[-1].as_py() + 1
        for batch in self._segment.rows(begin, end):
            is_inside = pc.and_(pc.greater_equal(numbers, begin), pc.less(numbers, begin + batch.num_rows))
            inside = pc.subtract(numbers.filter(is_inside), begin)
            begin += batch.num_rows
            if len(inside):
                yield batch.take(inside)


def restrict_changes(changes: Sequence[VersionChanges], rule: Predicate) -> list[VersionChanges]:
    """Returns the part of the changes that a rule allows."""
    restricted: list[VersionChanges] = []
    for _, group in groupby(changes, key=lambda version: id(version.segment)):
        versions = [_restrict_version(version, rule) for version in group]
        segment = RestrictedSegment(versions[0][0].segment, pa.concat_arrays([rows for _, rows in versions]))
        first_row = 0
        for version, rows in versions:
            restricted.append(replace(version, first_row=first_row, segment=segment))
            first_row += len(rows)
    return restricted


def _restrict_version(version: VersionChanges, rule: Predicate) -> tuple[VersionChanges, pa.Int64Array]:
    """The version with the totals of its allowed rows, and the numbers of these rows."""
    segment = version.segment.original if isinstance(version.segment, RewrittenSegment) else version.segment
    numbers: list[pa.Array] = [pa.array([], pa.int64())]
    kept: list[pa.RecordBatch] = []
    begin = version.first_row
    batches = segment.rows(version.first_row, version.end_row) if version.end_row > version.first_row else ()
    for batch in batches:
        mask = _mask(version, batch, rule)
        numbers.append(pc.add(pc.indices_nonzero(mask).cast(pa.int64()), begin))
        begin += batch.num_rows
        kept.append(batch.select(COUNTED.names).filter(mask))
    restricted = replace(
        version,
        head=without_counts(version.head),
        window_hindrances=_without_counts(version.head, version.window_hindrances),
        feed_hindrances=_without_counts(version.head, version.feed_hindrances),
        **count_rows(pa.Table.from_batches(kept, COUNTED)),
    )
    return restricted, pa.concat_arrays(numbers)


def _without_counts(head: TableHead, hindrances: tuple[Hindrance, ...]) -> tuple[Hindrance, ...]:
    return without_counts(replace(head, hindrances=hindrances)).hindrances


def _mask(version: VersionChanges, batch: pa.RecordBatch, rule: Predicate) -> pa.BooleanArray:
    values = pc.extract_regex(batch.column("common"), pattern=PARTITION_VALUES)
    texts = pc.struct_field(values, [0]).dictionary_encode()
    if texts.indices.null_count:
        raise _refusal(version.version, Undecided("", "a file of the version has no partition values"))
    partition = _partition(version.head, [orjson.loads(text) for text in texts.dictionary.to_pylist()])
    columns = columns_of(version.head.schema_string, batch.schema)
    undecided = find_undecided(rule, partition.type, columns)
    if undecided is not None:
        raise _refusal(version.version, undecided)
    return pc.take(is_within(rule, partition, columns), texts.indices)


def _partition(head: TableHead, files: Sequence[dict[str, str | None]]) -> pa.StructArray:
    """The partition values of files under the table's own names; a column that a file lacks is left out."""
    is_mapped = mapping_mode(head.configuration) != "none"
    texts: dict[str, pa.Array] = {}
    columns: list[tuple[str, str]] = []
    for field in parse_schema(head.schema_string):
        name = field.physical if is_mapped else field.name
        if files and isinstance(field.type, str) and all(name in values for values in files):
            texts[field.name] = pa.array([values[name] for values in files], pa.string())
            columns.append((field.name, field.type))
    return parse_partition_values(struct_of(texts, len(files)), columns)


def _refusal(version: int, undecided: Undecided) -> Unserveable:
    column = undecided.column + ": " if undecided.column else ""
    return Unserveable(
        f"What you may read of the changes of version {version} cannot be decided from partitions: "
        f"{column}{undecided.reason}.",
        ADVICE,
    )
