"""The files of a Delta log: which checkpoint, compactions and commits together make a version.

Delta's PROTOCOL.md, "File Types". What the files say is read elsewhere.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import pairwise
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_server.errors import StoreMissing, TableFilesMissing, Unserveable
from lakeshare_server.storage import StoredObject, Stores
from lakeshare_server.tables.delta.files import (
    from_actions,
    from_checkpoint,
    key_of,
    keys_of,
    physical_partition_columns,
    stats_texts,
)
from lakeshare_server.tables.lines import column_of
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import parse_schema

Read = TypeVar("Read")

LOG = "_delta_log"
COMMIT = re.compile(r"(\d{20})\.json")
COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
STAGED_COMMIT = re.compile(r"(\d{20})\.[0-9a-fA-F-]{36}\.json")
# The second is of coordinated commits, which is what catalog-managed tables were called before.
STAGED_FOLDERS = ("_staged_commits", "_commits")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-fA-F-]{36}))?\.(parquet|json)")


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint: a file, or all parts of a multi-part one in order."""

    version: int
    parts: tuple[StoredObject, ...]


@dataclass(frozen=True)
class Segment:
    """What has to be read for a version: newest first, then the checkpoint if there is one."""

    version: int
    checkpoint: Checkpoint | None
    # Commits and compactions, each with the first and last version it speaks of.
    deltas: tuple[tuple[int, int, StoredObject], ...]


@dataclass
class LogListing:
    """The log's files from the version `since` on, as the store listed them."""

    root: str
    since: int = 0
    commits: dict[int, StoredObject] = dataclass_field(default_factory=dict)
    compacted: dict[int, list[tuple[int, StoredObject]]] = dataclass_field(default_factory=dict)
    checkpoints: dict[int, list[Checkpoint]] = dataclass_field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The newest version.

        Raises:
            TableFilesMissing: there is no commit and no checkpoint.
        """
        versions = [*self.commits, *self.checkpoints]
        if not versions:
            raise TableFilesMissing(self.root, "there is no Delta log")
        return max(versions)

    def grown_by(self, listed: "LogListing") -> "LogListing":
        """This listing and what a later one found; whoever reads this one meanwhile finds it as it was."""
        return LogListing(
            self.root,
            self.since,
            {**self.commits, **listed.commits},
            {**self.compacted, **listed.compacted},
            {**self.checkpoints, **listed.checkpoints},
        )

    def segments(self, version: int) -> Iterator[Segment]:
        """Ways to read a version, the one of least reading first.

        Raises:
            TableFilesMissing: a file is missing for every way.
        """
        found = False
        for checkpoint in self._candidates(version):
            start = -1 if checkpoint is None else checkpoint.version
            ways = [self._deltas(start, version, self.compacted), self._deltas(start, version, {})]
            for deltas in ways if ways[0] != ways[1] else ways[:1]:
                if deltas is not None:
                    found = True
                    yield Segment(version, checkpoint, deltas)
        if not found:
            raise TableFilesMissing(self.root, f"the log of version {version} is not whole")

    def read(self, version: int, way: Callable[[Segment], Read]) -> Read:
        """What is read of a version by the first way that has all it needs.

        Raises:
            TableFilesMissing: something is missing for every way; it is what the first one missed.
        """
        refused: TableFilesMissing | None = None
        for segment in self.segments(version):
            try:
                return way(segment)
            except TableFilesMissing as error:
                # Another checkpoint, or the commits alone, may tell the same.
                refused = refused or error
        if refused is None:
            raise AssertionError("unreachable: a listing without a way raises")
        raise refused

    def oldest_readable(self) -> int:
        """The oldest version that can be rebuilt."""
        starts = list(self.checkpoints)
        if 0 in self.commits:
            starts.append(0)
        return min(starts, default=self.latest)

    def _candidates(self, version: int) -> Iterator[Checkpoint | None]:
        for at in sorted((at for at in self.checkpoints if at <= version), reverse=True):
            yield from self.checkpoints[at]
        yield None

    def _deltas(
        self, start: int, version: int, compacted: Mapping[int, list[tuple[int, StoredObject]]]
    ) -> tuple[tuple[int, int, StoredObject], ...] | None:
        chosen = []
        at = version
        while at > start:
            wider = [(first, file) for first, file in compacted.get(at, ()) if first > start]
            if wider:
                first, file = min(wider, key=lambda one: one[0])
                chosen.append((first, at, file))
                at = first - 1
            elif at in self.commits:
                chosen.append((at, at, self.commits[at]))
                at -= 1
            else:
                return None
        return tuple(chosen)


def list_log(stores: Stores, root: str, from_version: int = 0) -> LogListing:
    """The log's files from a version on; checkpoints below it are not seen."""
    listing = LogListing(root, from_version)
    parts: dict[tuple[int, int], dict[int, StoredObject]] = {}
    after = f"{root}/{LOG}/{from_version:020d}" if from_version else None
    folder = len(stores.place(f"{root}/{LOG}/").location)
    for file in stores.list(f"{root}/{LOG}", after):
        name = file.location[folder:]
        if name > ":":
            break  # names of versions begin with digits; what sorts behind them are folders and pointers
        # A file in a folder is no file of the log, whatever it is called: its name has a slash here.
        _note(listing, parts, name, file)
    for (version, count), found in parts.items():
        if len(found) == count:
            whole = Checkpoint(version, tuple(found[number] for number in range(1, count + 1)))
            listing.checkpoints.setdefault(version, []).append(whole)
    return listing


def _note(
    listing: LogListing,
    parts: dict[tuple[int, int], dict[int, StoredObject]],
    name: str,
    file: StoredObject,
) -> None:
    commit = COMMIT.fullmatch(name)
    if commit:
        listing.commits[int(commit[1])] = file
        return
    compacted = COMPACTED.fullmatch(name)
    if compacted:
        listing.compacted.setdefault(int(compacted[2]), []).append((int(compacted[1]), file))
        return
    checkpoint = CHECKPOINT.fullmatch(name)
    if checkpoint is None or (checkpoint[5] == "json" and checkpoint[4] is None):
        return
    version = int(checkpoint[1])
    if checkpoint[2]:
        parts.setdefault((version, int(checkpoint[3])), {})[int(checkpoint[2])] = file
    else:
        listing.checkpoints.setdefault(version, []).append(Checkpoint(version, (file,)))


def last_checkpoint(stores: Stores, root: str) -> Mapping[str, object]:
    """What `_last_checkpoint` says; empty when it is not there or not readable, it is only a hint."""
    import orjson

    try:
        content = orjson.loads(stores.read(f"{root}/{LOG}/_last_checkpoint"))
    except (StoreMissing, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def list_for_latest(stores: Stores, root: str) -> LogListing:
    """Enough of the log for its newest version: from the last checkpoint on, when that is where it should be."""
    version = last_checkpoint(stores, root).get("version")
    if isinstance(version, int) and version > 0:
        listing = list_log(stores, root, version)
        if version in listing.checkpoints:
            return listing
    return list_log(stores, root)


def require_published(stores: Stores, root: str, latest: int) -> None:
    """Refuse a catalog-managed table that may be newer than `latest`, the newest version in its log.

    Which staged commits are ratified is known to the catalog only ("Reading Catalog-managed Tables"), so any that is
    newer than the log counts.

    Raises:
        Unserveable: names the staged commit.
    """
    newest = max((_newest_staged(stores, root, folder, latest) for folder in STAGED_FOLDERS), default=-1)
    if newest > latest:
        code = ReasonCode.UNPUBLISHED_COMMITS
        raise Unserveable(
            f"The Delta table is managed by a catalog, and a commit of version {newest} is staged: the log ends at "
            f"version {latest}, so the table may be newer than what the log shows.",
            code.fix,
            code,
        )


def _newest_staged(stores: Stores, root: str, folder: str, latest: int) -> int:
    """The newest version with a staged commit behind `latest`; -1 when there is none."""
    path = f"{root}/{LOG}/{folder}"
    start = len(stores.place(f"{path}/").location)
    names = (file.location[start:] for file in stores.list(path, f"{path}/{latest + 1:020d}"))
    staged = (STAGED_COMMIT.fullmatch(name) for name in names)
    return max((int(found[1]) for found in staged if found), default=-1)


READERS = 16
Action = dict[str, Any]


@dataclass(frozen=True)
class Commit:
    """What the versions `first` to `last` changed; the two are the same for a plain commit."""

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


def read_commits(stores: Stores, root: str, files: Sequence[tuple[int, int, StoredObject]]) -> "list[Commit]":
    """The commits of these files, in their order.

    Raises:
        TableFilesMissing: a file has vanished, or is not whole.
    """
    if len(files) == 1:
        return [_read(stores, root, files[0])]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _read(stores, root, file), files))


def _read(stores: Stores, root: str, file: tuple[int, int, StoredObject]) -> Commit:
    first, last, stored = file
    name = stored.location.rsplit("/", 1)[-1]
    try:
        body = stores.read(stored.location)
    except StoreMissing as error:
        raise TableFilesMissing(root, f"{name} of its log has vanished") from error
    if not body.strip():
        raise TableFilesMissing(root, f"{name} of its log is empty")
    try:
        commit = parse_commit(body, first, last, stored.modified_ms)
        if first < last and not _is_reconciled(commit):
            raise TableFilesMissing(root, f"{name} of its log has several actions of one file")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise TableFilesMissing(root, f"{name} of its log is not whole") from error
    return commit


def _is_reconciled(compaction: Commit) -> bool:
    """Whether it tells one thing of each file, as it has to: which of several is the newest, it does not say."""
    keys = [key_of(action) for action in (*compaction.adds, *compaction.removes)]
    return len(set(keys)) == len(keys)


def parse_commit(body: bytes, first: int, last: int, modified_ms: int) -> Commit:
    """The actions of a commit file; kinds that mean nothing to readers are left out."""
    single: dict[str, Action] = {}
    several: dict[str, list[Action]] = {"add": [], "remove": [], "cdc": [], "sidecar": []}
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        for kind, action in orjson.loads(line).items():
            if action is None:
                continue
            if kind in several:
                several[kind].append(action)
            elif kind in ("protocol", "metaData", "commitInfo"):
                single[kind] = action
    return Commit(
        first=first,
        last=last,
        modified_ms=modified_ms,
        protocol=single.get("protocol"),
        metadata=single.get("metaData"),
        adds=several["add"],
        removes=several["remove"],
        cdc=several["cdc"],
        info=single.get("commitInfo", {}),
        sidecars=several["sidecar"],
    )


# Other actions stand in rows of their own: a checkpoint of hardly any is sliced at them, others are copied.
FEW_NULLS = 8
SMALL = ("protocol", "metaData", "sidecar")
ADD_FIELDS = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "stats_parsed",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)


@dataclass
class CheckpointState:
    """What a checkpoint says: `adds` are columns of `add` structs, `json_adds` actions of a JSON checkpoint."""

    protocol: Action | None = None
    metadata: Action | None = None
    adds: list[pa.StructArray] = dataclass_field(default_factory=list)
    json_adds: list[Action] = dataclass_field(default_factory=list)
    sidecars: list[Action] = dataclass_field(default_factory=list)

    @property
    def files(self) -> int:
        """How many data files it names."""
        return sum(len(adds) for adds in self.adds) + len(self.json_adds)


def read_checkpoint(stores: Stores, root: str, checkpoint: Checkpoint) -> CheckpointState:
    """The state at a checkpoint, sidecars included.

    Raises:
        TableFilesMissing: a file of it is missing or cannot be read.
    """
    state = CheckpointState()
    for part in checkpoint.parts:
        _read_into(stores, root, part.location, state)
    for sidecar in state.sidecars:
        _read_sidecar(stores, root, sidecar, state)
    return _complete_state(root, checkpoint, state)


def read_checkpoint_head(stores: Stores, root: str, checkpoint: Checkpoint) -> CheckpointState:
    """Like `read_checkpoint`, with the protocol and the metadata only; columns of files are not read.

    Raises:
        TableFilesMissing: as `read_checkpoint` says.
    """
    state = CheckpointState()
    for part in checkpoint.parts:
        _read_into(stores, root, part.location, state, with_files=False)
    return _complete_state(root, checkpoint, state)


def _read_sidecar(stores: Stores, root: str, sidecar: Action, state: CheckpointState) -> None:
    """Take over the files it names; anything else that is in it, other sidecars too, does not belong there."""
    path = sidecar.get("path") if isinstance(sidecar, dict) else None
    if not isinstance(path, str):
        raise TableFilesMissing(root, f"a sidecar in its log has the path {path!r}")
    location = path if "/" in path else f"{root}/{LOG}/_sidecars/{path}"
    said = CheckpointState()
    _read_into(stores, root, location, said)
    state.adds += said.adds
    state.json_adds += said.json_adds


def _complete_state(root: str, checkpoint: Checkpoint, state: CheckpointState) -> CheckpointState:
    if state.protocol is None or state.metadata is None:
        raise TableFilesMissing(
            root, f"the checkpoint of version {checkpoint.version} has no protocol or metadata"
        )
    return state


def _read_into(
    stores: Stores, root: str, location: str, state: CheckpointState, *, with_files: bool = True
) -> None:
    name = location.rsplit("/", 1)[-1]
    try:
        if name.endswith(".json"):
            _read_json(stores.read(location), state)
        else:
            _read_parquet(stores, location, state, with_files)
    except StoreMissing as error:
        raise TableFilesMissing(root, f"{name} of its log has vanished") from error
    except (pa.ArrowException, orjson.JSONDecodeError, OSError, AttributeError, TypeError) as error:
        raise TableFilesMissing(root, f"{name} of its log is not whole") from error


def _read_json(body: bytes, state: CheckpointState) -> None:
    said = parse_commit(body, 0, 0, 0)
    state.protocol = said.protocol or state.protocol
    state.metadata = said.metadata or state.metadata
    state.json_adds += said.adds
    state.sidecars += said.sidecars


def _read_parquet(stores: Stores, location: str, state: CheckpointState, with_files: bool) -> None:
    with pq.ParquetFile(stores.open(location)) as file:
        columns = list(_columns(file.schema_arrow, with_files))
        table = file.read(columns)
    for name in SMALL:
        for row in _rows(table, name):
            if name == "sidecar":
                state.sidecars.append(row)
            else:
                setattr(state, "protocol" if name == "protocol" else "metadata", row)
    if "add" in table.column_names:
        for chunk in table.column("add").chunks:
            state.adds += _valid(chunk)


def _valid(adds: pa.StructArray) -> list[pa.StructArray]:
    """The rows that are not null, without copying them where few others are in between."""
    if adds.null_count > FEW_NULLS:
        return [adds.filter(pc.is_valid(adds))] if adds.null_count < len(adds) else []
    between = [-1, *pc.indices_nonzero(pc.is_null(adds)).to_pylist(), len(adds)]
    runs = [adds.slice(before + 1, after - before - 1) for before, after in pairwise(between)]
    return [run for run in runs if len(run)]


def _columns(schema: pa.Schema, with_files: bool) -> Iterator[str]:
    for name in SMALL:
        if name in schema.names:
            yield name
    if with_files and "add" in schema.names:
        there = {member.name for member in schema.field("add").type}
        yield from (f"add.{name}" for name in ADD_FIELDS if name in there)


def _rows(table: pa.Table, name: str) -> Iterator[Action]:
    if name not in table.column_names:
        return
    for chunk in table.column(name).chunks:
        for row in chunk.filter(pc.is_valid(chunk)).to_pylist(maps_as_pydicts="lossy"):
            yield _without_nulls(row)


def _without_nulls(row: Mapping[str, Any]) -> Action:
    """A row as the JSON of a commit would have it: nulls are left out."""
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }


Key = tuple[str, str | None]
# What reading an action ends in that has other fields, or fields of other types.
NOT_AS_SPECIFIED = (
    *(AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError),
    pa.ArrowException,
)


@dataclass(frozen=True)
class TableState:
    """A table at a version: actions as the log has them, live files as `adds` of tables.delta.adds."""

    version: int
    protocol: Action
    metadata: Action
    adds: pa.Table
    # Of the commit of this very version; None when only a checkpoint was read.
    commit: Commit | None


def replay(stores: Stores, listing: LogListing, version: int) -> TableState:
    """The state at a version, by the first way through the log that can be read.

    Raises:
        TableFilesMissing: there is none.
    """
    return listing.read(version, lambda segment: _state(stores, listing.root, segment))


def _state(stores: Stores, root: str, segment: Segment) -> TableState:
    commits = read_commits(stores, root, segment.deltas)
    checkpoint = None
    if segment.checkpoint is not None:
        checkpoint = read_checkpoint(stores, root, segment.checkpoint)
        _require_as_announced(stores, root, segment.checkpoint.version, checkpoint)
    protocol = _newest(
        [commit.protocol for commit in commits], None if checkpoint is None else checkpoint.protocol
    )
    metadata = _newest(
        [commit.metadata for commit in commits], None if checkpoint is None else checkpoint.metadata
    )
    if protocol is None or metadata is None:
        raise TableFilesMissing(root, "its log has no protocol or no metadata")
    _require_head(root, protocol, metadata)
    try:
        adds = _live_files(commits, checkpoint, physical_partition_columns(metadata))
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "a file's entry in its log is not whole") from error
    if adds.column("path").null_count or adds.column("size").null_count:
        raise TableFilesMissing(root, "a file's entry in its log has no path or no size")
    newest = commits[0] if commits and commits[0].first == segment.version else None
    return TableState(segment.version, protocol, metadata, adds, newest)


def _require_head(root: str, protocol: Action, metadata: Action) -> None:
    try:
        names = {field.name for field in parse_schema(metadata["schemaString"])}
        strays = [name for name in metadata.get("partitionColumns") or () if name not in names]
        versions = [int(protocol.get(name, 1)) for name in ("minReaderVersion", "minWriterVersion")]
        is_whole = isinstance(metadata["id"], str) and not strays and min(versions) >= 1
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    if not is_whole:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole")


def _newest(actions: Sequence[Action | None], otherwise: Action | None) -> Action | None:
    return next((action for action in actions if action is not None), otherwise)


def _require_as_announced(stores: Stores, root: str, version: int, state: CheckpointState) -> None:
    """A checkpoint that names fewer files than its own announcement is not whole."""
    announced: Mapping[str, object] = last_checkpoint(stores, root)
    files = announced.get("numOfAddFiles")
    if announced.get("version") == version and files not in (None, state.files):
        raise TableFilesMissing(
            root, f"the checkpoint of version {version} names {state.files} files, {files} announced"
        )


def _live_files(
    commits: Sequence[Commit], checkpoint: CheckpointState | None, partition_columns: Sequence[str]
) -> pa.Table:
    seen: set[Key] = set()
    parts: list[pa.Table] = []
    for commit in commits:
        # By key: a commit that adds a file twice adds one.
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
            parts.append(_drop_seen(table.set_column(*_stats_of(table, adds)), seen))
    return pa.concat_tables(parts) if parts else from_actions([], partition_columns)


def _stats_of(table: pa.Table, adds: pa.StructArray) -> tuple[int, str, pa.Array]:
    texts = stats_texts(column_of(table, "stats"), adds)
    return table.schema.get_field_index("stats"), "stats", texts


def _drop_seen(table: pa.Table, seen: set[Key]) -> pa.Table:
    if not seen:
        return table
    paths = pa.array(sorted({path for path, _ in seen}), pa.string())
    names = table.column("path")
    # Absolute paths are spelt in several ways: they are looked at one by one.
    suspects = pc.or_(pc.is_in(names, paths), pc.match_substring_regex(names, "^(/|file:)"))
    if not pc.any(suspects, min_count=0).as_py():
        return table
    suspected = table.filter(suspects)
    kept = pa.array([key not in seen for key in keys_of(suspected)], pa.bool_())
    return pa.concat_tables([table.filter(pc.invert(suspects)), suspected.filter(kept)])


def head_actions(stores: Stores, listing: LogListing, version: int) -> tuple[Action, Action]:
    """The `protocol` and the `metaData` in force at a version, by the first way through the log that can be read.

    Raises:
        TableFilesMissing: there is none.
    """
    return listing.read(version, lambda segment: _head(stores, listing.root, segment))


def _head(stores: Stores, root: str, segment: Segment) -> tuple[Action, Action]:
    protocol, metadata = _newest_head(stores, root, segment.deltas)
    if segment.checkpoint is not None and (protocol is None or metadata is None):
        state = read_checkpoint_head(stores, root, segment.checkpoint)
        protocol, metadata = protocol or state.protocol, metadata or state.metadata
    if protocol is None or metadata is None:
        raise TableFilesMissing(root, "its log has no protocol or no metadata")
    return protocol, metadata


def _newest_head(
    stores: Stores, root: str, deltas: Sequence[tuple[int, int, StoredObject]]
) -> tuple[Action | None, Action | None]:
    """What the commits say, newest first; those behind the ones that say both are not read."""
    protocol: Action | None = None
    metadata: Action | None = None
    for start in range(0, len(deltas), READERS):
        for commit in read_commits(stores, root, deltas[start : start + READERS]):
            protocol, metadata = protocol or commit.protocol, metadata or commit.metadata
        if protocol is not None and metadata is not None:
            break
    return protocol, metadata
