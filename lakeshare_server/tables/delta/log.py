"""The Delta log: which checkpoint, compactions and commits make a version, and the state and files they result in.

Delta's PROTOCOL.md, "File Types" and "Action Reconciliation".
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import chain, pairwise, takewhile
from typing import Any, TypeAlias, TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_server.errors import StoreMissing, TableFilesMissing
from lakeshare_server.storage import StoredObject, Stores
from lakeshare_server.tables.delta.files import (
    Action,
    from_actions,
    from_checkpoint,
    key_of,
    keys_of,
    partition_types,
    stats_texts,
)
from lakeshare_server.tables.lines import PIECE_ROWS, column_of
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import parse_schema

Read = TypeVar("Read")

LOG = "_delta_log"
COMMIT = re.compile(r"(\d{20})\.json")
COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
STAGED_COMMIT = re.compile(r"(\d{20})\.[0-9a-fA-F-]{36}\.json")
# The second is of coordinated commits, the former name of catalog-managed tables.
STAGED_FOLDERS = ("_staged_commits", "_commits")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-fA-F-]{36}))?\.(parquet|json)")
# A commit or compaction with its first and last version.
LogFile: TypeAlias = tuple[int, int, StoredObject]


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint: a file, or all parts of a multi-part one in order."""

    version: int
    parts: tuple[StoredObject, ...]


@dataclass(frozen=True)
class Segment:
    """The files to read for a version: commits and compactions, newest first, then the checkpoint if any."""

    version: int
    checkpoint: Checkpoint | None
    deltas: tuple[LogFile, ...]


@dataclass
class LogListing:
    """The log's files from the version `since` on, as listed by the store."""

    root: str
    since: int = 0
    commits: dict[int, StoredObject] = dataclass_field(default_factory=dict)
    compacted: dict[int, list[tuple[int, StoredObject]]] = dataclass_field(default_factory=dict)
    checkpoints: dict[int, list[Checkpoint]] = dataclass_field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The newest version."""
        versions = [*self.commits, *self.checkpoints]
        if not versions:
            raise TableFilesMissing(self.root, "there is no Delta log")
        return max(versions)

    def grown_by(self, later: "LogListing") -> "LogListing":
        """Returns a new listing with the files of this and a later one."""
        return LogListing(
            self.root,
            self.since,
            {**self.commits, **later.commits},
            {**self.compacted, **later.compacted},
            {**self.checkpoints, **later.checkpoints},
        )

    def segments(self, version: int) -> Iterator[Segment]:
        """Yields the alternatives for reading a version, the smallest first."""
        is_readable = False
        earlier = sorted((at for at in self.checkpoints if at <= version), reverse=True)
        for checkpoint in (*(one for at in earlier for one in self.checkpoints[at]), None):
            start = -1 if checkpoint is None else checkpoint.version
            compacted, single = self._deltas(start, version, self.compacted), self._deltas(start, version, {})
            for deltas in [compacted] if compacted == single else [compacted, single]:
                if deltas is not None:
                    is_readable = True
                    yield Segment(version, checkpoint, deltas)
        if not is_readable:
            raise TableFilesMissing(self.root, f"the log of version {version} is not whole")

    def read(self, version: int, read_segment: Callable[[Segment], Read]) -> Read:
        """Reads a version from the first segment that is complete."""
        refused: TableFilesMissing | None = None
        for segment in self.segments(version):
            try:
                return read_segment(segment)
            except TableFilesMissing as error:
                refused = refused or error
        raise refused or AssertionError("unreachable: a listing without a segment raises")

    def oldest_readable(self) -> int:
        return min([*self.checkpoints, *([0] if 0 in self.commits else [])], default=self.latest)

    def _deltas(
        self, start: int, version: int, compacted: Mapping[int, list[tuple[int, StoredObject]]]
    ) -> tuple[LogFile, ...] | None:
        chosen: list[LogFile] = []
        at = version
        while at > start:
            wider = [(first, file) for first, file in compacted.get(at, ()) if first > start]
            if wider:
                first, file = min(wider, key=lambda entry: entry[0])
            elif at in self.commits:
                first, file = at, self.commits[at]
            else:
                return None
            chosen.append((first, at, file))
            at = first - 1
        return tuple(chosen)


def list_log(stores: Stores, root: str, from_version: int = 0) -> LogListing:
    """Lists the log's files from a version on, without earlier checkpoints."""
    after = f"{root}/{LOG}/{from_version:020d}" if from_version else None
    folder = len(stores.place(f"{root}/{LOG}/").location)
    named = ((file.location[folder:], file) for file in stores.list(f"{root}/{LOG}", after))
    # Names of versions begin with digits; folders and pointers sort after them.
    return sort_log(root, takewhile(lambda entry: entry[0] <= ":", named), from_version)


def sort_log(root: str, files: Iterable[tuple[str, StoredObject]], since: int = 0) -> LogListing:
    """Sorts files by their names below the log's folder; those in subfolders are no files of the log."""
    listing = LogListing(root, since)
    parts: dict[tuple[int, int], dict[int, StoredObject]] = {}
    for name, file in files:
        if commit := COMMIT.fullmatch(name):
            listing.commits[int(commit[1])] = file
        elif compacted := COMPACTED.fullmatch(name):
            listing.compacted.setdefault(int(compacted[2]), []).append((int(compacted[1]), file))
        elif (checkpoint := CHECKPOINT.fullmatch(name)) and (checkpoint[4] or checkpoint[5] != "json"):
            version = int(checkpoint[1])
            if checkpoint[2]:
                parts.setdefault((version, int(checkpoint[3])), {})[int(checkpoint[2])] = file
            else:
                listing.checkpoints.setdefault(version, []).append(Checkpoint(version, (file,)))
    for (version, count), found in parts.items():
        if len(found) == count:
            whole = Checkpoint(version, tuple(found[number] for number in sorted(found)))
            listing.checkpoints.setdefault(version, []).append(whole)
    return listing


def last_checkpoint(stores: Stores, root: str) -> Mapping[str, object]:
    """Reads `_last_checkpoint`, which is only a hint; empty if it is missing or unreadable."""
    try:
        content = orjson.loads(stores.read(f"{root}/{LOG}/_last_checkpoint"))
    except (StoreMissing, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def list_for_latest(stores: Stores, root: str) -> LogListing:
    """Lists enough of the log for its newest version: from the last checkpoint on, if it exists."""
    version = last_checkpoint(stores, root).get("version")
    if isinstance(version, int) and version > 0:
        listing = list_log(stores, root, version)
        if version in listing.checkpoints:
            return listing
    return list_log(stores, root)


def require_published(stores: Stores, root: str, latest: int) -> None:
    """Refuses a catalog-managed table that may be newer than `latest`, the newest version in its log.

    Only the catalog knows which staged commits are ratified ("Reading Catalog-managed Tables"), so any staged commit
    that is newer than the log counts.

    Raises:
        Unserveable: names the staged commit.
    """
    newest = -1
    for folder in STAGED_FOLDERS:
        path = f"{root}/{LOG}/{folder}"
        start = len(stores.place(f"{path}/").location)
        for file in stores.list(path, f"{path}/{latest + 1:020d}"):
            if staged := STAGED_COMMIT.fullmatch(file.location[start:]):
                newest = max(newest, int(staged[1]))
    if newest > latest:
        raise ReasonCode.UNPUBLISHED_COMMITS.error(
            f"The Delta table is managed by a catalog, and a commit of version {newest} is staged: the log ends at "
            f"version {latest}, so the table may be newer than what the log shows."
        )


READERS = 16


@dataclass
class Commit:
    """The changes of the versions `first` to `last`, which are the same for a plain commit."""

    first: int
    last: int
    modified_ms: int
    protocol: Action | None = None
    metadata: Action | None = None
    adds: list[Action] = dataclass_field(default_factory=list)
    removes: list[Action] = dataclass_field(default_factory=list)
    cdc: list[Action] = dataclass_field(default_factory=list)
    info: Action = dataclass_field(default_factory=dict)
    sidecars: list[Action] = dataclass_field(default_factory=list)


def read_commits(stores: Stores, root: str, files: Sequence[LogFile]) -> list[Commit]:
    """Reads commit files, in their order."""
    if len(files) == 1:
        return [_read_commit(stores, root, *files[0])]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _read_commit(stores, root, *file), files))


def _read_commit(stores: Stores, root: str, first: int, last: int, file: StoredObject) -> Commit:
    name = file.location.rsplit("/", 1)[-1]
    try:
        body = stores.read(file.location)
    except StoreMissing as error:
        raise TableFilesMissing(root, f"{name} of its log has vanished") from error
    if not body.strip():
        raise TableFilesMissing(root, f"{name} of its log is empty")
    try:
        commit = parse_commit(body, first, last, file.modified_ms)
        keys = [key_of(action) for action in (*commit.adds, *commit.removes)] if first < last else []
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise TableFilesMissing(root, f"{name} of its log is not whole") from error
    # The order of actions in a compaction does not show which is the newest.
    if len(set(keys)) < len(keys):
        raise TableFilesMissing(root, f"{name} of its log has several actions of one file")
    return commit


def parse_commit(body: bytes, first: int, last: int, modified_ms: int) -> Commit:
    """Parses a commit file; kinds of actions that readers do not need are left out."""
    commit = Commit(first, last, modified_ms)
    several = {"add": commit.adds, "remove": commit.removes, "cdc": commit.cdc, "sidecar": commit.sidecars}
    single = {"protocol": "protocol", "metaData": "metadata", "commitInfo": "info"}
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        for kind, action in orjson.loads(line).items():
            if action is None:
                continue
            if kind in several:
                several[kind].append(action)
            elif kind in single:
                setattr(commit, single[kind], action)
    return commit


# Arrow decodes the members of a struct in one thread: row groups are decoded in several.
DECODERS = 2
# Rows of other actions: a checkpoint with few of them is sliced without copying.
FEW_NULLS = 8
SMALL = ("protocol", "metaData", "sidecar")
ADD_FIELDS = (
    *("path", "partitionValues", "size", "modificationTime", "stats", "stats_parsed", "tags"),
    *("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider"),
)


@dataclass
class CheckpointState:
    """The content of a checkpoint: `adds` are columns of `add` structs, `json_adds` actions of a JSON checkpoint."""

    protocol: Action | None = None
    metadata: Action | None = None
    adds: list[pa.StructArray] = dataclass_field(default_factory=list)
    json_adds: list[Action] = dataclass_field(default_factory=list)
    sidecars: list[Action] = dataclass_field(default_factory=list)


def read_checkpoint(
    stores: Stores, root: str, checkpoint: Checkpoint, *, with_files: bool = True
) -> CheckpointState:
    """Reads a checkpoint with its sidecars; without files, only the protocol and the metadata."""
    state = CheckpointState()
    for part in checkpoint.parts:
        _read_into(stores, root, part.location, state, with_files)
    for sidecar in state.sidecars if with_files else ():
        path = sidecar.get("path") if isinstance(sidecar, dict) else None
        if not isinstance(path, str):
            raise TableFilesMissing(root, f"a sidecar in its log has the path {path!r}")
        location = path if "/" in path else f"{root}/{LOG}/_sidecars/{path}"
        # Only the files: other actions, such as more sidecars, do not belong in a sidecar.
        content = CheckpointState()
        _read_into(stores, root, location, content, with_files)
        state.adds += content.adds
        state.json_adds += content.json_adds
    if state.protocol is None or state.metadata is None:
        at = f"the checkpoint of version {checkpoint.version}"
        raise TableFilesMissing(root, f"{at} has no protocol or metadata")
    return state


def _read_into(stores: Stores, root: str, location: str, state: CheckpointState, with_files: bool) -> None:
    name = location.rsplit("/", 1)[-1]
    try:
        file = io.BytesIO(stores.read(location)) if name.endswith(".json") else stores.open(location)
        read_checkpoint_file(name, file, state, ADD_FIELDS if with_files else ())
    except StoreMissing as error:
        raise TableFilesMissing(root, f"{name} of its log has vanished") from error
    except (pa.ArrowException, orjson.JSONDecodeError, OSError, AttributeError, TypeError) as error:
        raise TableFilesMissing(root, f"{name} of its log is not whole") from error


def read_checkpoint_file(name: str, file: Any, into: CheckpointState, add_fields: Sequence[str]) -> None:
    """Adds the content of a file of a checkpoint, Parquet or JSON, to `into`: of Parquet these fields of `add`.

    Raises ArrowException, ValueError, OSError, AttributeError or TypeError if it is not whole.
    """
    if name.endswith(".json"):
        commit = parse_commit(file.read(), 0, 0, 0)
        into.protocol = commit.protocol or into.protocol
        into.metadata = commit.metadata or into.metadata
        into.json_adds += commit.adds
        into.sidecars += commit.sidecars
        return
    with pq.ParquetFile(file) as parquet:
        schema = parquet.schema_arrow
        columns = [name for name in SMALL if name in schema.names]
        if add_fields and "add" in schema.names:
            members = {member.name for member in schema.field("add").type}
            columns += [f"add.{name}" for name in add_fields if name in members]
        groups = range(parquet.num_row_groups)
        share = max(1, -(-len(groups) // DECODERS))

        def decode(first: int) -> list[pa.RecordBatch]:
            # Arrow reads no struct with more than 2 GiB of texts at once.
            several = list(groups[first : first + share])
            return list(parquet.iter_batches(PIECE_ROWS, several, columns))

        with ThreadPoolExecutor(DECODERS) as pool:
            for batch in chain.from_iterable(pool.map(decode, groups[::share])):
                _add_batch(batch, into)


def _add_batch(batch: pa.RecordBatch, state: CheckpointState) -> None:
    for name in SMALL:
        for row in _rows(batch, name):
            if name == "sidecar":
                state.sidecars.append(row)
            else:
                setattr(state, "protocol" if name == "protocol" else "metadata", row)
    if "add" in batch.schema.names:
        state.adds += _valid(batch.column("add"))


def _valid(adds: pa.StructArray) -> list[pa.StructArray]:
    """The rows that are not null; not copied if few rows are null."""
    if adds.null_count > FEW_NULLS:
        return [adds.filter(pc.is_valid(adds))] if adds.null_count < len(adds) else []
    between = [-1, *pc.indices_nonzero(pc.is_null(adds)).to_pylist(), len(adds)]
    runs = [adds.slice(before + 1, after - before - 1) for before, after in pairwise(between)]
    return [run for run in runs if len(run)]


def _rows(batch: pa.RecordBatch, name: str) -> Iterator[Action]:
    if name in batch.schema.names:
        values = batch.column(name)
        for row in values.filter(pc.is_valid(values)).to_pylist(maps_as_pydicts="lossy"):
            yield _without_nulls(row)


def _without_nulls(row: Mapping[str, Any]) -> Action:
    """A row in the JSON form of a commit: without nulls."""
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }


Key = tuple[str, str | None]
# The errors of reading an action with other fields, or fields of other types.
NOT_AS_SPECIFIED = (
    *(AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError),
    pa.ArrowException,
)


@dataclass(frozen=True)
class TableState:
    """A table at a version: actions as in the log, live files as `adds`, the commit of the version if it was read."""

    version: int
    protocol: Action
    metadata: Action
    adds: pa.Table
    commit: Commit | None


def replay(stores: Stores, listing: LogListing, version: int) -> TableState:
    """Returns the state at a version, from the first readable segment."""
    return listing.read(version, lambda segment: _state(stores, listing.root, segment))


def _state(stores: Stores, root: str, segment: Segment) -> TableState:
    commits = read_commits(stores, root, segment.deltas)
    checkpoint = None
    if segment.checkpoint is not None:
        checkpoint = read_checkpoint(stores, root, segment.checkpoint)
        _require_announced_files(stores, root, segment.checkpoint.version, checkpoint)
    states: list[Commit | CheckpointState] = [*commits, *([checkpoint] if checkpoint else [])]
    protocol = next((state.protocol for state in states if state.protocol is not None), None)
    metadata = next((state.metadata for state in states if state.metadata is not None), None)
    if protocol is None or metadata is None:
        raise TableFilesMissing(root, "its log has no protocol or no metadata")
    _require_head(root, protocol, metadata)
    try:
        adds = _live_files(commits, checkpoint, list(partition_types(metadata)))
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "a file's entry in its log is not whole") from error
    if adds.column("path").null_count or adds.column("size").null_count:
        raise TableFilesMissing(root, "a file's entry in its log has no path or no size")
    newest = commits[0] if commits and commits[0].first == segment.version else None
    return TableState(segment.version, protocol, metadata, adds, newest)


def _require_announced_files(stores: Stores, root: str, version: int, state: CheckpointState) -> None:
    """Refuses a checkpoint with another number of files than `_last_checkpoint` announces."""
    announced = last_checkpoint(stores, root)
    count = sum(len(adds) for adds in state.adds) + len(state.json_adds)
    expected = announced.get("numOfAddFiles")
    if announced.get("version") == version and expected not in (None, count):
        at = f"the checkpoint of version {version}"
        raise TableFilesMissing(root, f"{at} names {count} files, {expected} announced")


def _require_head(root: str, protocol: Action, metadata: Action) -> None:
    cause: Exception | None = None
    try:
        names = {field.name for field in parse_schema(metadata["schemaString"])}
        strays = [name for name in metadata.get("partitionColumns") or () if name not in names]
        versions = [int(protocol.get(name, 1)) for name in ("minReaderVersion", "minWriterVersion")]
        is_whole = isinstance(metadata["id"], str) and not strays and min(versions) >= 1
    except NOT_AS_SPECIFIED as error:
        is_whole, cause = False, error
    if not is_whole:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from cause


def _live_files(
    commits: Sequence[Commit], checkpoint: CheckpointState | None, partition_columns: Sequence[str]
) -> pa.Table:
    seen: set[Key] = set()
    parts: list[pa.Table] = []
    for commit in commits:
        # By key: a commit that adds a file twice adds one file.
        added = {key_of(add): add for add in commit.adds}
        new = [add for key, add in added.items() if key not in seen]
        seen.update(added, (key_of(remove) for remove in commit.removes))
        if new:
            parts.append(from_actions(new, partition_columns))
    if checkpoint is not None:
        left = [add for add in checkpoint.json_adds if key_of(add) not in seen]
        parts += [from_actions(left, partition_columns)] if left else []
        for adds in checkpoint.adds:
            table = from_checkpoint(adds, partition_columns)
            texts = stats_texts(column_of(table, "stats"), adds)
            table = table.set_column(table.schema.get_field_index("stats"), "stats", texts)
            parts.append(_drop_seen(table, seen))
    return pa.concat_tables(parts) if parts else from_actions([], partition_columns)


def _drop_seen(table: pa.Table, seen: set[Key]) -> pa.Table:
    if not seen:
        return table
    paths = pa.array(sorted({path for path, _ in seen}), pa.string())
    names = table.column("path")
    # Absolute paths have several spellings: they are compared one by one.
    is_absolute = pc.or_(pc.starts_with(names, "/"), pc.starts_with(names, "file:"))
    suspects = pc.or_(pc.is_in(names, paths), is_absolute)
    if not pc.any(suspects, min_count=0).as_py():
        return table
    suspected = table.filter(suspects)
    kept = pa.array([key not in seen for key in keys_of(suspected)], pa.bool_())
    return pa.concat_tables([table.filter(pc.invert(suspects)), suspected.filter(kept)])


def head_actions(stores: Stores, listing: LogListing, version: int) -> tuple[Action, Action]:
    """Returns the `protocol` and the `metaData` in force at a version, from the first readable segment."""

    def head(segment: Segment) -> tuple[Action, Action]:
        protocol: Action | None = None
        metadata: Action | None = None
        # Newest first: earlier commits are not read once both actions are known.
        for start in range(0, len(segment.deltas), READERS):
            for commit in read_commits(stores, listing.root, segment.deltas[start : start + READERS]):
                protocol, metadata = protocol or commit.protocol, metadata or commit.metadata
            if protocol is not None and metadata is not None:
                break
        if segment.checkpoint is not None and (protocol is None or metadata is None):
            state = read_checkpoint(stores, listing.root, segment.checkpoint, with_files=False)
            protocol, metadata = protocol or state.protocol, metadata or state.metadata
        if protocol is None or metadata is None:
            raise TableFilesMissing(listing.root, "its log has no protocol or no metadata")
        return protocol, metadata

    return listing.read(version, head)
