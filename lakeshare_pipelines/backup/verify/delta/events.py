"""What the files of a copied log say happened to data files: columns of adds and removes, version by version.

Nothing is reconciled here (replay.py), and statistics count only as far as they tell rows.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.verify.delta.log_files import LOG, SIDECARS, Chain, Checkpoint, Step
from lakeshare_server.errors import BadRequest, LakeshareError, TableFilesMissing
from lakeshare_server.stores.locations import normalised
from lakeshare_server.tables.delta.adds import vector_id
from lakeshare_server.tables.delta.commits import parse_commit
from lakeshare_server.tables.delta.vectors import vector_paths
from lakeshare_server.tables.locations import resolve_names

EVENTS = pa.schema(
    [
        # Of the data file, as a store spells it: a path, or s3://bucket/key.
        pa.field("location", pa.string(), nullable=False),
        # The unique id of the deletion vector; empty without one.
        pa.field("dv_id", pa.string(), nullable=False),
        # Where the vector is; null without one, and where it stands in the log itself.
        pa.field("dv_location", pa.string()),
        pa.field("size_bytes", pa.int64()),
        # Rows that readers get of the file; null where the log does not tell.
        pa.field("rows", pa.int64()),
        # The log has the whole place of the file, or of its vector, so that a copy of the log still names the original.
        pa.field("is_absolute", pa.bool_(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("is_add", pa.bool_(), nullable=False),
    ]
)
"""Adds and removes of one chain of versions; a file's identity is its location and its vector."""

READERS, AHEAD = 16, 64
ROWS = re.compile(r'"numRecords"\s*:\s*(\d+)')
ABSOLUTE = "^(/|[A-Za-z][A-Za-z0-9+.-]*:)"
NOT_WHOLE = (
    orjson.JSONDecodeError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    pa.ArrowException,
    OSError,
)

Read = Callable[[str], bytes]
"""The content of a file below `_delta_log/`, by its name."""


class BrokenLogFile(LakeshareError):
    """A file of a log that is not there or not whole; `name` is below the log's folder."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{LOG}/{name}: {reason}")
        self.name, self.reason = name, reason


@dataclass
class Told:
    """What a chain's files say, and the times that commits have in themselves, in milliseconds."""

    events: pa.Table
    times_ms: dict[int, int] = field(default_factory=dict)


@dataclass
class Columns:
    """Actions of commits, on their way to columns."""

    paths: list[str | None] = field(default_factory=list)
    storages: list[str | None] = field(default_factory=list)
    vectors: list[str | None] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    rows: list[int | None] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    adds: list[bool] = field(default_factory=list)

    def take(self, action: dict[str, Any], version: int, is_add: bool) -> None:
        """Take over an add or a remove."""
        vector = action.get("deletionVector")
        self.paths.append(action["path"])
        self.storages.append(vector["storageType"] if vector else None)
        self.vectors.append(vector["pathOrInlineDv"] if vector else None)
        self.ids.append(vector_id(vector) or "")
        self.sizes.append(action.get("size"))
        self.rows.append(_rows(action.get("stats"), vector) if is_add else None)
        self.versions.append(version)
        self.adds.append(is_add)

    def table(self, root: str) -> pa.Table:
        """Rows of schema EVENTS."""
        storages, paths = pa.array(self.storages, pa.string()), pa.array(self.paths, pa.string())
        described = pa.table({"dv_storage": storages, "dv_path": pa.array(self.vectors, pa.string())})
        columns = {
            "location": locations(root, paths),
            "is_absolute": _absolute(paths, storages),
            "dv_id": pa.array(self.ids, pa.string()),
            "dv_location": vector_paths(root, described),
            "size_bytes": pa.array(self.sizes, pa.int64()),
            "rows": pa.array(self.rows, pa.int64()),
            "version": pa.array(self.versions, pa.int64()),
            "is_add": pa.array(self.adds, pa.bool_()),
        }
        return pa.table(columns).select(EVENTS.names).cast(EVENTS)


def told_by(root: str, chain: Chain, read: Read) -> Told:
    """What a chain says; `root` is the table's location at its source.

    Raises:
        BrokenLogFile: the first of its files that is not whole.
    """
    tables = [] if chain.base is None else [checkpoint_events(root, chain.base, read)]
    times: dict[int, int] = {}
    columns = Columns()
    for step, content in _contents(chain.steps, read):
        at = commit_events(step, content, columns)
        if at is not None:
            times[step.last] = at
    try:
        tables.append(columns.table(root))
    except TableFilesMissing as error:
        raise BrokenLogFile("", str(error)) from error
    return Told(pa.concat_tables(tables), times)


def commit_events(step: Step, content: bytes, into: Columns) -> int | None:
    """Take over the actions of a commit; the time that is told in it, in milliseconds.

    Raises:
        BrokenLogFile: it is empty, cut off, or no commit.
    """
    if not content.strip():
        raise BrokenLogFile(step.name, "it is empty")
    try:
        commit = parse_commit(content, step.first, step.last, 0)
        for action in commit.removes:
            into.take(action, step.last, is_add=False)
        for action in commit.adds:
            into.take(action, step.last, is_add=True)
        at = commit.info.get("inCommitTimestamp")
        return None if at is None else int(at)
    except NOT_WHOLE as error:
        raise BrokenLogFile(step.name, "it is cut off, or no commit") from error


def checkpoint_events(root: str, checkpoint: Checkpoint, read: Read) -> pa.Table:
    """The files that a checkpoint says are there, sidecars included, as adds of its version.

    Raises:
        BrokenLogFile: a file of it is not whole, or a sidecar is not there.
    """
    names = [*checkpoint.names, *sidecars_of(checkpoint, read)]
    try:
        return pa.concat_tables(
            [checkpoint_file_events(root, checkpoint.version, name, read(name)) for name in names]
        )
    except TableFilesMissing as error:
        raise BrokenLogFile(checkpoint.names[0], str(error)) from error


def sidecars_of(checkpoint: Checkpoint, read: Read) -> list[str]:
    """The names of a checkpoint's sidecars, below the log's folder (PROTOCOL.md, "Sidecar Files").

    Raises:
        BrokenLogFile: the checkpoint is not whole.
    """
    if not checkpoint.has_sidecars:
        return []
    name = checkpoint.names[0]
    try:
        if name.endswith(".json"):
            paths = [one["path"] for one in parse_commit(read(name), 0, 0, 0).sidecars]
        else:
            with pq.ParquetFile(io.BytesIO(read(name))) as file:
                if "sidecar" not in file.schema_arrow.names:
                    return []
                column = file.read(["sidecar.path"]).column("sidecar")
                paths = [
                    one["path"] for one in column.to_pylist() if one is not None and one["path"] is not None
                ]
    except NOT_WHOLE as error:
        raise BrokenLogFile(name, "it is cut off, or no checkpoint") from error
    # An absolute one would be somewhere else than the log is copied from.
    if outside := [path for path in paths if "/" in path]:
        raise BrokenLogFile(name, f"its sidecar {outside[0]} is outside the log")
    return [f"{SIDECARS}{path}" for path in paths]


def locations(root: str, paths: pa.Array) -> pa.Array:
    """Where files are, from the paths of a log: URL-encoded, and mostly relative to the root."""
    resolved = resolve_names(root, paths)
    if not root.startswith("/") and pc.all(pc.starts_with(resolved, f"{root}/"), min_count=0).as_py():
        return resolved
    if pc.all(pc.starts_with(resolved, f"{root.rstrip('/')}/"), min_count=0).as_py():
        return resolved
    return pa.array([_normal(one) for one in resolved.to_pylist()], pa.string())


def _absolute(paths: pa.Array, storages: pa.Array) -> pa.Array:
    return pc.or_(pc.match_substring_regex(paths, ABSOLUTE), pc.fill_null(pc.equal(storages, "p"), False))


def _normal(location: str | None) -> str | None:
    """An absolute location as stores spell it; one of a store that nobody knows stays as it is: it is not copied."""
    try:
        return None if location is None else normalised(location)
    except BadRequest:
        return location


def checkpoint_file_events(root: str, version: int, name: str, content: bytes) -> pa.Table:
    """What one file of a checkpoint says.

    Raises:
        BrokenLogFile: it is not whole.
    """
    try:
        if name.endswith(".json"):
            adds, columns = parse_commit(content, version, version, 0).adds, Columns()
            for action in adds:
                columns.take(action, version, is_add=True)
            return columns.table(root)
        added = _parquet_adds(content)
    except NOT_WHOLE as error:
        raise BrokenLogFile(name, "it is cut off, or no checkpoint") from error
    return EVENTS.empty_table() if added is None else _added(root, version, added)


def _parquet_adds(content: bytes) -> pa.StructArray | None:
    """The adds of a checkpoint in Parquet, with what events need of them."""
    with pq.ParquetFile(io.BytesIO(content)) as file:
        if "add" not in file.schema_arrow.names:
            return None
        there = {member.name for member in file.schema_arrow.field("add").type}
        wanted = [one for one in ("path", "size", "stats", "deletionVector") if one in there]
        adds = file.read([f"add.{one}" for one in wanted]).column("add").combine_chunks()
    return adds.filter(pc.is_valid(adds))


def _added(root: str, version: int, adds: pa.StructArray) -> pa.Table:
    count, there = len(adds), {member.name for member in adds.type}
    stats = pc.struct_field(adds, "stats").to_pylist() if "stats" in there else [None] * count
    vectors = (
        pc.struct_field(adds, "deletionVector").to_pylist() if "deletionVector" in there else [None] * count
    )
    storages = pa.array([one and one["storageType"] for one in vectors], pa.string())
    paths = pc.struct_field(adds, "path")
    described = pa.table(
        {
            "dv_storage": storages,
            "dv_path": pa.array([one and one["pathOrInlineDv"] for one in vectors], pa.string()),
        }
    )
    columns = {
        "location": locations(root, paths),
        "is_absolute": _absolute(paths, storages),
        "dv_id": pa.array([vector_id(one) or "" for one in vectors], pa.string()),
        "dv_location": vector_paths(root, described),
        "size_bytes": pc.struct_field(adds, "size"),
        "rows": pa.array([_rows(*one) for one in zip(stats, vectors, strict=True)], pa.int64()),
        "version": pa.array([version] * count, pa.int64()),
        "is_add": pa.array([True] * count, pa.bool_()),
    }
    return pa.table(columns).select(EVENTS.names).cast(EVENTS)


def _rows(stats: str | None, vector: dict[str, Any] | None) -> int | None:
    found = ROWS.search(stats) if stats else None
    if found is None:
        return None
    return int(found[1]) - (vector.get("cardinality") or 0 if vector else 0)


def _contents(steps: Sequence[Step], read: Read) -> Iterator[tuple[Step, bytes]]:
    """Each step's content in order; a store far away answers many at once as quickly as one."""
    with ThreadPoolExecutor(READERS) as pool:
        for some in _batches(steps):
            yield from zip(some, pool.map(lambda step: read(step.name), some), strict=True)


def _batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
    left = iter(steps)
    while some := list(islice(left, AHEAD)):
        yield some
