"""A segment of the index of changes: what a few dozen versions in a row changed, in one Arrow IPC file.

Its last batch has one row with a note about the versions: it is known only when all of them were read.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.storage import StoredObject, Stores
from lakeshare_server.storage.locations import find_outside_files, find_roots, resolve_names
from lakeshare_server.tables.delta.files import WITH_EMPTY_VALUES, partition_types, vector_id, vector_paths
from lakeshare_server.tables.delta.log import (
    NOT_AS_SPECIFIED,
    Commit,
    LogListing,
    head_actions,
    read_commits,
    replay,
)
from lakeshare_server.tables.lines import LINE_COLUMNS, file_ids

Action = dict[str, Any]
ADD, REMOVE, CDC = 0, 1, 2
COLUMNS = (
    ("version", pa.int64()),
    ("kind", pa.int8()),
    ("in_feed", pa.bool_()),
    ("path", pa.string()),
    ("size", pa.int64()),
    *((name, pa.string()) for name in LINE_COLUMNS),
)
PASSED_ON = ("baseRowId", "defaultRowCommitVersion", "tags", "clusteringProvider")
MERGE_COUNTS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True)
class FileChange:
    """One action of a commit; `in_feed` tells whether the change data feed has it, too."""

    version: int
    kind: int
    in_feed: bool
    action: Action
    committed_ms: int


def list_file_changes(commit: Commit, removes: Sequence[Action]) -> Iterator[FileChange]:
    """What a commit did to data; `removes` are its own, as whole as the log can make them."""
    inferred = not commit.cdc and not _is_merge_of_nothing(commit)
    for kind, actions in ((ADD, commit.adds), (REMOVE, removes)):
        for action in actions:
            if has_data_change(action):
                yield FileChange(commit.last, kind, inferred, action, commit.modified_ms)
    for action in commit.cdc:
        yield FileChange(commit.last, CDC, True, action, commit.modified_ms)


def has_data_change(action: Action) -> bool:
    """Whether rows change with a file: those that OPTIMIZE writes anew stay as they are."""
    return action.get("dataChange") is not False


def make_change_table(
    root: str, changes: Sequence[FileChange], partition_types: Mapping[str, str]
) -> pa.Table:
    """The rows of the changes; `partition_types` are by the names the log uses for partition columns.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, TableFilesMissing: an action is not what the specification
            says.
    """
    names = pa.array([change.action["path"] for change in changes], pa.string())
    if names.null_count:
        raise ValueError("a file without a path")
    vectors = [change.action.get("deletionVector") or {} for change in changes]
    columns = [
        pa.array([change.version for change in changes], pa.int64()),
        pa.array([change.kind for change in changes], pa.int8()),
        pa.array([change.in_feed for change in changes], pa.bool_()),
        resolve_names(root, names),
        pa.array([change.action["size"] for change in changes], pa.int64()),
        file_ids(names, hashlib.md5),
        file_ids(names, hashlib.sha256),
        pa.array([_common(change, partition_types) for change in changes], pa.string()),
        pa.array([_rest(change) for change in changes], pa.string()),
        _vector_paths(root, vectors),
        pa.array([_vector_id(vector) for vector in vectors], pa.string()),
        pa.array([_vector_rest(vector) for vector in vectors], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(COLUMNS)))


def _is_merge_of_nothing(commit: Commit) -> bool:
    """A MERGE that rewrote files without touching a row (protocol §1.8)."""
    metrics = commit.info.get("operationMetrics") or {}
    return commit.info.get("operation") == "MERGE" and all(metrics.get(name) == "0" for name in MERGE_COUNTS)


def _common(change: FileChange, partition_types: Mapping[str, str]) -> str:
    """`partitionValues`, `size` and `stats`: what both formats say in the same words."""
    action = change.action
    # Spark leaves nulls out of some actions: clients take a null that is there for sure.
    logged = action.get("partitionValues") or {}
    values = {
        column: None if logged.get(column) == "" and kind not in WITH_EMPTY_VALUES else logged.get(column)
        for column, kind in partition_types.items()
    }
    fields: Action = {"partitionValues": values, "size": action["size"]}
    stats = action.get("stats")
    if change.kind == ADD and stats and _counts_rows(stats):
        fields["stats"] = stats
    return _members(fields)


def _counts_rows(stats: str) -> bool:
    """Whether readers can use statistics; as in snapshots, those without a row count go out with no file."""
    try:
        rows = orjson.loads(stats)["numRecords"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return False
    return isinstance(rows, int) and rows >= 0


def _rest(change: FileChange) -> str:
    """What only the delta format says."""
    action = change.action
    fields: Action = {"dataChange": change.kind != CDC}
    if change.kind == ADD:
        fields["modificationTime"] = action.get("modificationTime", change.committed_ms)
    elif change.kind == REMOVE:
        fields["deletionTimestamp"] = action.get("deletionTimestamp", change.committed_ms)
        fields["extendedFileMetadata"] = True
    fields.update({name: action[name] for name in PASSED_ON if action.get(name) is not None})
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "i":
        inline = {"storageType": "i", "pathOrInlineDv": vector["pathOrInlineDv"], **_vector_size(vector)}
        fields["deletionVector"] = inline
    return "," + _members(fields)


def _vector_paths(root: str, vectors: Sequence[Action]) -> pa.Array:
    described = {
        "dv_storage": pa.array([vector.get("storageType") for vector in vectors], pa.string()),
        "dv_path": pa.array([vector.get("pathOrInlineDv") for vector in vectors], pa.string()),
    }
    return vector_paths(root, pa.table(described))


def _vector_id(vector: Action) -> str | None:
    unique = vector_id(vector) if _is_stored(vector) else None
    return None if unique is None else hashlib.sha256(unique.encode()).hexdigest()


def _vector_rest(vector: Action) -> str | None:
    """What follows the URL of a deletion vector, with the quote that ends the URL."""
    return '",' + _members(_vector_size(vector)) + "}" if _is_stored(vector) else None


def _is_stored(vector: Action) -> bool:
    return bool(vector) and vector["storageType"] != "i"


def _vector_size(vector: Action) -> Action:
    offset = vector.get("offset")
    size: Action = {} if offset is None else {"offset": offset}
    return {**size, "sizeInBytes": vector["sizeInBytes"], "cardinality": vector["cardinality"]}


def _members(fields: Action) -> str:
    """The inside of a JSON object."""
    return orjson.dumps(fields).decode()[1:-1].replace("\x7f", "\\u007f")


FOOTER_KEY = "note"
SCHEMA = pa.schema([*COLUMNS, (FOOTER_KEY, pa.string())])
BATCH_ROWS = 16_000


@dataclass(frozen=True, kw_only=True)
class SegmentVersion:
    """What a segment knows of a version; `protocol` and `metadata` are JSON of the log, in force after its commit.

    `own_time_ms` is the time the commit tells itself; `fault` says why its changes cannot be told. A version of an
    Iceberg table has a `head` of its own, in JSON: what recipients are told. `feed_fault` says why its files are known,
    but not its changed rows.
    """

    version: int
    protocol: str
    metadata: str
    modified_ms: int
    own_time_ms: int | None
    first_row: int
    window_rows: int
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int
    vectors: int
    lacks_row_ids: bool
    fault: str | None = None
    head: str | None = None
    feed_vectors: int = 0
    feed_fault: str | None = None

    @property
    def rows(self) -> int:
        """How many rows of the segment are of this version."""
        return self.window_rows + self.cdc_rows


@dataclass(frozen=True)
class SegmentFooter:
    """The versions of a segment, as far as the log has them, and what `tables.locations` calls their roots.

    `made_of` says of changes of an Iceberg table which layout they have, and between which file indexes they are.
    """

    versions: dict[int, SegmentVersion] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()

    def as_json(self) -> str:
        """The note as text; each protocol and metadata once."""
        texts: dict[str, int] = {}
        versions = []
        for version in self.versions.values():
            places = [texts.setdefault(text, len(texts)) for text in (version.protocol, version.metadata)]
            versions.append({**asdict(version), "protocol": places[0], "metadata": places[1]})
        fields = {"texts": list(texts), "versions": versions, "roots": self.roots, "made_of": self.made_of}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "SegmentFooter":
        """A note that `as_json` wrote."""
        fields = json.loads(text)
        texts: list[str] = fields["texts"]
        versions = [_version(one, texts) for one in fields["versions"]]
        return cls(
            {version.version: version for version in versions},
            tuple(fields["roots"]),
            tuple(fields["made_of"]),
        )


def _version(fields: dict[str, Any], texts: list[str]) -> SegmentVersion:
    return SegmentVersion(
        **{**fields, "protocol": texts[fields["protocol"]], "metadata": texts[fields["metadata"]]}
    )


class Segment:
    """An open segment. Batches are views into the mapped file."""

    def __init__(self, source: pa.MemoryMappedFile) -> None:
        self._reader = pa.ipc.open_file(source)
        last = self._reader.num_record_batches - 1
        self.note = SegmentFooter.from_json(self._reader.get_batch(last).column(FOOTER_KEY)[0].as_py())
        self._starts = [0]
        for number in range(last):
            self._starts.append(self._starts[-1] + self._reader.get_batch(number).num_rows)

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from one place to another, in batches."""
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[number], min(self._starts[number + 1], stop)
            yield self._reader.get_batch(number).slice(start - begin, end - start)
            start, number = end, number + 1


class RewrittenSegment(Segment):
    """A segment whose rows go out in other words than it was written with."""

    def __init__(self, segment: Segment, said: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self.note = segment.note
        self.original, self._said = segment, said

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from one place to another, in batches."""
        return map(self._said, self.original.rows(start, stop))


def open_segment(path: Path) -> Segment:
    """Map a segment."""
    return Segment(pa.memory_map(str(path)))


class SegmentFile:
    """A segment while it is written: rows in batches, the note at the end."""

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
        """Append rows; small pieces wait for others."""
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) >= BATCH_ROWS:
            self._flush()

    def close(self, footer: SegmentFooter) -> None:
        """Write what waits, and the note."""
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


class RemovedFiles:
    """Completes removes, commit after commit; it reads the table's files only when a remove makes it necessary."""

    def __init__(self, stores: Stores, listing: LogListing) -> None:
        self._stores, self._listing = stores, listing
        # The files before the first such remove, and what was added since.
        self._before: pa.Table | None = None
        self._since: dict[str, Action] = {}

    def of(self, commit: Commit, is_partitioned: bool) -> list[Action]:
        """The removes of a commit, each with its size and partition values.

        Raises:
            TableFilesMissing: the log does not have them any more.
        """
        lacking = {
            remove["path"]
            for remove in commit.removes
            if has_data_change(remove) and _lacks(remove, is_partitioned)
        }
        if lacking and self._before is None:
            self._before = replay(self._stores, self._listing, commit.first - 1).adds
        found = self._described(sorted(lacking))
        whole = [
            {**remove, **_merge_remove(remove, found)} if remove["path"] in lacking else remove
            for remove in commit.removes
        ]
        if self._before is not None:
            self._since.update({add["path"]: _description(add) for add in commit.adds})
        return whole

    def _described(self, paths: Sequence[str]) -> dict[str, Action]:
        found = {path: self._since[path] for path in paths if path in self._since}
        left = [path for path in paths if path not in found]
        if left and self._before is not None:
            before = self._before.filter(pc.is_in(self._before.column("path"), pa.array(left, pa.string())))
            for row in before.select(["path", "size", "partition_values"]).to_pylist():
                found[row["path"]] = {"size": row["size"], "partitionValues": row["partition_values"] or {}}
        unknown = [path for path in left if path not in found]
        if unknown:
            raise TableFilesMissing(
                self._listing.root, f"its log removes {unknown[0]} without a size, and never added it"
            )
        return found


def _lacks(remove: Action, is_partitioned: bool) -> bool:
    return remove.get("size") is None or (is_partitioned and remove.get("partitionValues") is None)


def _merge_remove(remove: Action, found: dict[str, Action]) -> Action:
    """What the remove says for itself counts, but null says nothing."""
    said = found[remove["path"]]
    return {name: said[name] if remove.get(name) is None else remove[name] for name in said}


def _description(add: Action) -> Action:
    return {"size": add["size"], "partitionValues": add.get("partitionValues") or {}}


# Commits of one version each may be of any size: so many bytes of them are parsed at once.
BYTES_AT_ONCE = 32_000_000
COMMITS_AT_ONCE = 100


@dataclass(frozen=True)
class HeadTexts:
    """Protocol and metadata as the log has them, in JSON; the same text wherever in the log they were found."""

    protocol: str
    metadata: str

    @cached_property
    def partition_types(self) -> dict[str, str]:
        """The types of the partition columns by the names the log uses for them."""
        return partition_types(orjson.loads(self.metadata))

    def after(self, commit: Commit) -> "HeadTexts":
        """What is in force when a commit was made."""
        if commit.protocol is None and commit.metadata is None:
            return self
        return HeadTexts(
            self.protocol if commit.protocol is None else _text(commit.protocol),
            self.metadata if commit.metadata is None else _text(commit.metadata),
        )


# In force before the first version.
NOTHING_YET = HeadTexts("", "")


class SegmentWriter:
    """Writes the segment of the versions from `begin` to `end`, as far as the log has their commits.

    `before` is what was in force before `begin`, None when that is not known.
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
        """Write the file; the versions in `asked` must be in it.

        Raises:
            TableFilesMissing: the commit of a version that was asked for is missing or not whole, or what was in force
                at it is not known any more.
        """
        self._require(versions)
        with SegmentFile(path) as file:
            for run in self._runs():
                readable, heads = self._readable(run, versions)
                self._write_run(file, readable, heads)
            file.close(SegmentFooter(self._versions, tuple(sorted(self._roots))))

    def _require(self, versions: Collection[int]) -> None:
        for version in sorted(versions):
            if version not in self._listing.commits:
                raise _missing_commit(self._listing, version)

    def _runs(self) -> list[list[int]]:
        """The versions that are there, cut where one is missing."""
        runs: list[list[int]] = []
        for version in range(self.begin, self.end + 1):
            if version in self._listing.commits:
                if version - 1 not in self._listing.commits or not runs:
                    runs.append([])
                runs[-1].append(version)
        return runs

    def _readable(self, run: Sequence[int], versions: Collection[int]) -> tuple[Sequence[int], HeadTexts]:
        """The versions of a run from the first on of which protocol and metadata are known, and those before it."""
        if run[0] == 0:
            return run, NOTHING_YET
        if run[0] == self.begin and self._before is not None:
            return run, self._before
        for place, version in enumerate(run):
            if place == 0 or version in versions or version in self._listing.checkpoints:
                try:
                    # At the version itself: the one before may be gone, and its commit says the same once more.
                    protocol, metadata = head_actions(self._stores, self._listing, version)
                except TableFilesMissing:
                    if version in versions:
                        raise
                else:
                    return run[place:], HeadTexts(_text(protocol), _text(metadata))
        return [], NOTHING_YET

    def _write_run(self, file: SegmentFile, run: Sequence[int], heads: HeadTexts) -> None:
        for files in _bounded([(version, version, self._listing.commits[version]) for version in run]):
            for commit in read_commits(self._stores, self._root, files):
                heads = heads.after(commit)
                if not heads.protocol or not heads.metadata:
                    raise TableFilesMissing(self._root, "its log has no protocol or no metadata")
                self._write_commit(file, commit, heads)

    def _write_commit(self, file: SegmentFile, commit: Commit, heads: HeadTexts) -> None:
        try:
            self._write_changes(file, commit, heads)
        except NOT_AS_SPECIFIED as error:
            raise TableFilesMissing(
                self._root, f"an entry of version {commit.last} in its log is not whole"
            ) from error

    def _write_changes(self, file: SegmentFile, commit: Commit, heads: HeadTexts) -> None:
        fault = None
        try:
            changes = self._changes(commit, heads)
        except TableFilesMissing as error:
            # Only whoever asks for this version has to know.
            fault, changes = error.what, []
        self._versions[commit.last] = _describe_version(commit, heads, changes, self._rows, fault)
        if changes:
            table = make_change_table(self._root, changes, heads.partition_types)
            self._rows += table.num_rows
            self._roots |= find_roots(self._root, find_outside_files(self._root, table))
            file.add(table)

    def _changes(self, commit: Commit, heads: HeadTexts) -> list[FileChange]:
        return list(list_file_changes(commit, self._removed.of(commit, bool(heads.partition_types))))


def _missing_commit(listing: LogListing, version: int) -> TableFilesMissing:
    """The refusal of a version that the log cannot tell any more."""
    oldest = min(listing.commits, default=None)
    kept = "it has no commits at all" if oldest is None else f"its oldest commit is that of version {oldest}"
    return TableFilesMissing(listing.root, f"the log has lost the commit of version {version}; {kept}")


def _bounded(
    files: Sequence[tuple[int, int, StoredObject]],
) -> Iterator[list[tuple[int, int, StoredObject]]]:
    """The files in groups that fit into memory together."""
    group: list[tuple[int, int, StoredObject]] = []
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
    return SegmentVersion(
        version=commit.last,
        protocol=heads.protocol,
        metadata=heads.metadata,
        modified_ms=commit.modified_ms,
        own_time_ms=_own_time_ms(commit, heads),
        first_row=first_row,
        window_rows=len(window),
        cdc_rows=len(changes) - len(window),
        feed_rows=len(feed),
        window_bytes=_size_bytes(window),
        feed_bytes=_size_bytes(feed),
        vectors=sum(bool(change.action.get("deletionVector")) for change in changes),
        lacks_row_ids=any(change.action.get("baseRowId") is None for change in window),
        fault=fault,
    )


def _size_bytes(changes: Sequence[FileChange]) -> int:
    return sum(change.action["size"] for change in changes)


def _own_time_ms(commit: Commit, heads: HeadTexts) -> int | None:
    configuration = orjson.loads(heads.metadata).get("configuration") or {}
    if configuration.get("delta.enableInCommitTimestamps") != "true":
        return None
    said = commit.info.get("inCommitTimestamp")
    return said if isinstance(said, int) and not isinstance(said, bool) else None


def _text(action: Action) -> str:
    return orjson.dumps(_without_empty(action), option=orjson.OPT_SORT_KEYS).decode()


def _without_empty(value: Any) -> Any:
    """The value without members that say nothing: commits and checkpoints differ in nulls and in empty maps."""
    if not isinstance(value, dict):
        return value
    members = {name: _without_empty(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member is not None and member != {}}
