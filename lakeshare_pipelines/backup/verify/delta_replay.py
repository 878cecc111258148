"""Replay: adds and removes become life intervals [added, removed), and those tell every complete version.

A file that is missing makes exactly the versions of its interval incomplete. This is the form for logs that fit into
memory as columns; spark_replay.py is the one for those that do not, and both behave alike.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.errors import ObjectMissing
from lakeshare_server.errors import BadRequest, LakeshareError, TableFilesMissing
from lakeshare_server.storage.locations import normalise_location, resolve_names
from lakeshare_server.tables.delta.files import vector_id, vector_paths
from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT, COMPACTED, LOG, parse_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CRC = re.compile(r"(\d{20})\.crc")
SIDECARS = "_sidecars/"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with all its parts; `names` are those of its files, in order, below the log's folder."""

    version: int
    names: tuple[str, ...]

    @property
    def has_sidecars(self) -> bool:
        """Whether it may name sidecars: it is one of version 2, by its name."""
        found = CHECKPOINT.fullmatch(self.names[0])
        return found is not None and found[4] is not None


@dataclass(frozen=True)
class Step:
    """A commit, or a compaction that stands for several of which some are not there."""

    first: int
    last: int
    name: str


@dataclass(frozen=True)
class Chain:
    """Versions that are made one from the other: a base, and what follows without a hole.

    Without a base it begins with commit 0, which is then the first step. Versions inside a compaction cannot be made.
    """

    base: Checkpoint | None
    steps: tuple[Step, ...]

    @property
    def versions(self) -> list[int]:
        """The versions that can be made, in order."""
        own = [] if self.base is None else [self.base.version]
        return own + [step.last for step in self.steps]


@dataclass
class LogFiles:
    """The log's files by what they are."""

    commits: set[int] = dataclass_field(default_factory=set)
    compacted: set[tuple[int, int]] = dataclass_field(default_factory=set)
    checkpoints: dict[int, list[Checkpoint]] = dataclass_field(default_factory=dict)
    crcs: set[int] = dataclass_field(default_factory=set)

    def chains(self, without: frozenset[Checkpoint] = frozenset()) -> list[Chain]:
        """All chains, oldest first; `without` are checkpoints that turned out to be unreadable."""
        bases = {
            version: usable
            for version, found in self.checkpoints.items()
            if (usable := [one for one in found if one not in without])
        }
        found: list[Chain] = []
        if 0 in self.commits:
            found.append(self._chain(None, -1))
        last = found[0].versions[-1] if found else -1
        for version in sorted(bases):
            # A checkpoint that a chain reaches adds no version to it.
            if version > last:
                found.append(self._chain(bases[version][0], version))
                last = found[-1].versions[-1]
        return found

    def newest_checkpoints(self, version: int) -> list[Checkpoint]:
        """The checkpoints a reader of a version begins with: all forms of the newest one."""
        at = max((one for one in self.checkpoints if one <= version), default=None)
        return [] if at is None else self.checkpoints[at]

    def _chain(self, base: Checkpoint | None, at: int) -> Chain:
        wider: dict[int, int] = {}
        for first, last in self.compacted:
            wider[first] = max(last, wider.get(first, last))
        steps = []
        while True:
            if at + 1 in self.commits:
                steps.append(Step(at + 1, at + 1, format_commit_name(at + 1)))
            elif at + 1 in wider:
                steps.append(Step(at + 1, wider[at + 1], format_compaction_name(at + 1, wider[at + 1])))
            else:
                return Chain(base, tuple(steps))
            at = steps[-1].last


def sort_log_files(names: Iterable[str]) -> LogFiles:
    """Sort the names of files below a table's `_delta_log/`; what is no file of a log is left out."""
    found = LogFiles()
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        if commit := COMMIT.fullmatch(name):
            found.commits.add(int(commit[1]))
        elif compacted := COMPACTED.fullmatch(name):
            found.compacted.add((int(compacted[1]), int(compacted[2])))
        elif crc := CRC.fullmatch(name):
            found.crcs.add(int(crc[1]))
        elif checkpoint := CHECKPOINT.fullmatch(name):
            version = int(checkpoint[1])
            if checkpoint[2]:
                parts.setdefault((version, int(checkpoint[3])), {})[int(checkpoint[2])] = name
            elif checkpoint[4] or checkpoint[5] == "parquet":
                found.checkpoints.setdefault(version, []).append(Checkpoint(version, (name,)))
    for (version, count), of_version in parts.items():
        if len(of_version) == count:
            names_in_order = tuple(of_version[number] for number in sorted(of_version))
            found.checkpoints.setdefault(version, []).append(Checkpoint(version, names_in_order))
    return found


def format_commit_name(version: int) -> str:
    """The name of a commit's file."""
    return f"{version:020}.json"


def format_compaction_name(first: int, last: int) -> str:
    """The name of a compaction's file."""
    return f"{first:020}.{last:020}.compacted.json"


def parse_version(name: str) -> int | None:
    """The last version that a file of a log speaks of; None for what is of no version: sidecars, pointers, folders."""
    if compacted := COMPACTED.fullmatch(name):
        return int(compacted[2])
    for kind in (COMMIT, CRC, CHECKPOINT):
        if found := kind.fullmatch(name):
            return int(found[1])
    return None


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
class ChainEvents:
    """What a chain's files say, and the times that commits have in themselves, in milliseconds."""

    events: pa.Table
    times_ms: dict[int, int] = dataclass_field(default_factory=dict)


@dataclass
class EventColumns:
    """Actions of commits, on their way to columns."""

    paths: list[str | None] = dataclass_field(default_factory=list)
    storages: list[str | None] = dataclass_field(default_factory=list)
    vectors: list[str | None] = dataclass_field(default_factory=list)
    ids: list[str] = dataclass_field(default_factory=list)
    sizes: list[int | None] = dataclass_field(default_factory=list)
    rows: list[int | None] = dataclass_field(default_factory=list)
    versions: list[int] = dataclass_field(default_factory=list)
    adds: list[bool] = dataclass_field(default_factory=list)

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
            "location": resolve_locations(root, paths),
            "is_absolute": _absolute(paths, storages),
            "dv_id": pa.array(self.ids, pa.string()),
            "dv_location": vector_paths(root, described),
            "size_bytes": pa.array(self.sizes, pa.int64()),
            "rows": pa.array(self.rows, pa.int64()),
            "version": pa.array(self.versions, pa.int64()),
            "is_add": pa.array(self.adds, pa.bool_()),
        }
        return pa.table(columns).select(EVENTS.names).cast(EVENTS)


def read_chain(root: str, chain: Chain, read: Read) -> ChainEvents:
    """What a chain says; `root` is the table's location at its source.

    Raises:
        BrokenLogFile: the first of its files that is not whole.
    """
    tables = [] if chain.base is None else [read_checkpoint(root, chain.base, read)]
    times: dict[int, int] = {}
    columns = EventColumns()
    for step, content in _contents(chain.steps, read):
        at = read_commit(step, content, columns)
        if at is not None:
            times[step.last] = at
    try:
        tables.append(columns.table(root))
    except TableFilesMissing as error:
        raise BrokenLogFile("", str(error)) from error
    return ChainEvents(pa.concat_tables(tables), times)


def read_commit(step: Step, content: bytes, into: EventColumns) -> int | None:
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


def read_checkpoint(root: str, checkpoint: Checkpoint, read: Read) -> pa.Table:
    """The files that a checkpoint says are there, sidecars included, as adds of its version.

    Raises:
        BrokenLogFile: a file of it is not whole, or a sidecar is not there.
    """
    names = [*checkpoint.names, *list_sidecars(checkpoint, read)]
    try:
        return pa.concat_tables(
            [read_checkpoint_file(root, checkpoint.version, name, read(name)) for name in names]
        )
    except TableFilesMissing as error:
        raise BrokenLogFile(checkpoint.names[0], str(error)) from error


def list_sidecars(checkpoint: Checkpoint, read: Read) -> list[str]:
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


def resolve_locations(root: str, paths: pa.Array) -> pa.Array:
    """Where files are, from the paths of a log: URL-encoded, and mostly relative to the root."""
    resolved = resolve_names(root, paths)
    if not root.startswith("/") and pc.all(pc.starts_with(resolved, f"{root}/"), min_count=0).as_py():
        return resolved
    if pc.all(pc.starts_with(resolved, f"{root.rstrip('/')}/"), min_count=0).as_py():
        return resolved
    return pa.array([_normalize_location(one) for one in resolved.to_pylist()], pa.string())


def _absolute(paths: pa.Array, storages: pa.Array) -> pa.Array:
    return pc.or_(pc.match_substring_regex(paths, ABSOLUTE), pc.fill_null(pc.equal(storages, "p"), False))


def _normalize_location(location: str | None) -> str | None:
    """An absolute location as stores spell it; one of a store that nobody knows stays as it is: it is not copied."""
    try:
        return None if location is None else normalise_location(location)
    except BadRequest:
        return location


def read_checkpoint_file(root: str, version: int, name: str, content: bytes) -> pa.Table:
    """What one file of a checkpoint says.

    Raises:
        BrokenLogFile: it is not whole.
    """
    try:
        if name.endswith(".json"):
            adds, columns = parse_commit(content, version, version, 0).adds, EventColumns()
            for action in adds:
                columns.take(action, version, is_add=True)
            return columns.table(root)
        added = _parquet_adds(content)
    except NOT_WHOLE as error:
        raise BrokenLogFile(name, "it is cut off, or no checkpoint") from error
    return EVENTS.empty_table() if added is None else _make_add_events(root, version, added)


def _parquet_adds(content: bytes) -> pa.StructArray | None:
    """The adds of a checkpoint in Parquet, with what events need of them."""
    with pq.ParquetFile(io.BytesIO(content)) as file:
        if "add" not in file.schema_arrow.names:
            return None
        there = {member.name for member in file.schema_arrow.field("add").type}
        wanted = [one for one in ("path", "size", "stats", "deletionVector") if one in there]
        adds = file.read([f"add.{one}" for one in wanted]).column("add").combine_chunks()
    return adds.filter(pc.is_valid(adds))


def _make_add_events(root: str, version: int, adds: pa.StructArray) -> pa.Table:
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
        "location": resolve_locations(root, paths),
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


INTERVALS = pa.schema(
    [
        pa.field("location", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("since", pa.int64(), nullable=False),
        # The first version without it; null while it is still there.
        pa.field("until", pa.int64()),
    ]
)
"""When a version needs a file that is not there, or not with this size (null: of any size)."""


@dataclass(frozen=True)
class VersionCount:
    """What one version has: data files, their bytes, its rows as far as the log tells them, and what it lacks."""

    version: int
    files: int
    size_bytes: int
    rows: int | None
    lacking: int
    absolute: int = 0
    """Files that the log names by their whole place: a copy of the log still names the originals."""


@dataclass(frozen=True)
class Replayed:
    """A replayed chain: its versions in order, and the intervals of what is missing."""

    versions: tuple[VersionCount, ...]
    missing: pa.Table

    @property
    def complete(self) -> list[int]:
        """The versions that lack nothing."""
        return [version.version for version in self.versions if not version.lacking]

    def at(self, version: int) -> VersionCount | None:
        """One version; None when the chain does not make it."""
        return next((one for one in self.versions if one.version == version), None)

    def missing_at(self, version: int) -> list[str]:
        """Locations that a version needs and that are missing."""
        until = pc.fill_null(self.missing["until"], version + 1)
        needed = pc.and_(pc.less_equal(self.missing["since"], version), pc.greater(until, version))
        return sorted(set(self.missing["location"].filter(needed).to_pylist()))


def replay(events: pa.Table, versions: Sequence[int], there: pa.Table) -> Replayed:
    """Replay a chain.

    `events` are of schema EVENTS, `versions` those that the chain makes, `there` what is whole in the copy: columns
    `location` and `size_bytes`.
    """
    lives = _lives(events)
    missing = _missing(lives, there)
    return Replayed(sum_changes(compute_changes(lives, missing), versions), missing)


def compute_changes(lives: pa.Table, missing: pa.Table) -> pa.Table:
    """By how much each version has more or less than the one before it: files, bytes, rows and so on."""
    zeros = pa.array([0] * lives.num_rows, pa.int64())
    ones = pc.add(zeros, 1)
    amounts = {
        "files": ones,
        "size_bytes": pc.fill_null(lives["size_bytes"], 0),
        "rows": pc.fill_null(lives["rows"], 0),
        "untold": pc.cast(pc.is_null(lives["rows"]), pa.int64()),
        "absolute": pc.cast(lives["is_absolute"], pa.int64()),
        "lacking": zeros,
    }
    gone = pc.is_valid(lives["until"])
    tables = [
        pa.table({"version": lives["version"], **amounts}),
        pa.table(
            {"version": lives["until"], **{name: pc.negate(amount) for name, amount in amounts.items()}}
        ).filter(gone),
    ]
    nothing = pa.array([0] * missing.num_rows, pa.int64())
    for column, amount in (("since", 1), ("until", -1)):
        counts = dict.fromkeys(amounts, nothing) | {"lacking": pc.add(nothing, amount)}
        tables.append(pa.table({"version": missing[column], **counts}).filter(pc.is_valid(missing[column])))
    grouped = pa.concat_tables(tables).group_by("version").aggregate([(name, "sum") for name in amounts])
    return grouped.rename_columns(["version", *amounts])


def sum_changes(changes: pa.Table, versions: Sequence[int]) -> tuple[VersionCount, ...]:
    """What each version has, from the changes of all versions."""
    of_version = {row["version"]: row for row in changes.to_pylist()}
    wanted, found = set(versions), list[VersionCount]()
    files = size_bytes = rows = untold = lacking = absolute = 0
    for version in sorted(wanted | of_version.keys()):
        change = of_version.get(version, {})
        files += change.get("files", 0)
        size_bytes += change.get("size_bytes", 0)
        rows += change.get("rows", 0)
        untold += change.get("untold", 0)
        lacking += change.get("lacking", 0)
        absolute += change.get("absolute", 0)
        if version in wanted:
            found.append(
                VersionCount(version, files, size_bytes, None if untold else rows, lacking, absolute)
            )
    return tuple(found)


def _lives(events: pa.Table) -> pa.Table:
    """The events that begin a life, each with the version that ends it (`until`; null: it has not ended)."""
    events = events.cast(EVENTS).combine_chunks()
    if events.num_rows == 0:
        return events.append_column("until", pa.array([], pa.int64()))
    identity = pc.binary_join_element_wise(events["location"], events["dv_id"], "\n")
    codes = identity.combine_chunks().dictionary_encode().indices
    keys = pa.table(
        {"code": codes, "version": events["version"], "is_add": pc.cast(events["is_add"], pa.int8())}
    )
    # A commit may remove a file and add it again: what it adds is there after it.
    order = pc.sort_indices(keys, [("code", "ascending"), ("version", "ascending"), ("is_add", "ascending")])
    events, codes = events.take(order), codes.take(order)
    last = events.num_rows - 1
    goes_on = pc.equal(codes.slice(0, last), codes.slice(1))
    following = pc.if_else(goes_on, _flat(events["version"]).slice(1), pa.scalar(None, pa.int64()))
    lives = events.append_column("until", pa.concat_arrays([following, pa.nulls(1, pa.int64())]))
    lasts = pc.fill_null(pc.not_equal(lives["until"], lives["version"]), True)
    return lives.filter(pc.and_(lives["is_add"], lasts))


def _missing(lives: pa.Table, there: pa.Table) -> pa.Table:
    """The intervals of data files and vectors that are not there, or of another size."""
    when = {"since": lives["version"], "until": lives["until"]}
    data = pa.table({"location": lives["location"], "size_bytes": lives["size_bytes"], **when})
    anything = pa.nulls(lives.num_rows, pa.int64())
    vectors = pa.table({"location": lives["dv_location"], "size_bytes": anything, **when})
    needs = pa.concat_tables([data, vectors.filter(pc.is_valid(vectors["location"]))]).combine_chunks()
    place = pc.index_in(_flat(needs["location"]), _flat(there["location"]))
    found = pc.take(_flat(there["size_bytes"]), place)
    right = pc.or_kleene(pc.is_null(needs["size_bytes"]), pc.equal(found, needs["size_bytes"]))
    whole = pc.and_(pc.is_valid(place), pc.fill_null(right, False))
    return needs.filter(pc.invert(whole)).cast(INTERVALS)


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


FILES_A_TASK = 200
EVENTS_OR_FAULT = pa.schema(
    [
        *(pa.field(field.name, field.type) for field in EVENTS),
        # A row of its own for each commit that has its time in itself, and for each file that is not whole.
        pa.field("time_ms", pa.int64()),
        pa.field("broken", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
_FILES = "first long, last long, name string, stored_key string, stored_version_id string, is_commit boolean"


def replay_by_spark(
    spark: "SparkSession",
    store: StoreAddress,
    root: str,
    chain: Chain,
    stored: pa.Table,
    there: Callable[[pa.Array], pa.Table],
    read: Read,
) -> tuple[Replayed, dict[int, int]]:
    """Replay a chain; `stored` tells where its files are (`name`, `stored_key`, `stored_version_id`).

    `there` answers with what is whole of the table's own objects and of those that are named besides: columns
    `location` and `size_bytes`.

    Raises:
        BrokenLogFile: one of its files is not whole.
    """
    files = _files(chain, stored, read)
    tasks = max(1, -(-len(files) // FILES_A_TASK))
    rows = spark.createDataFrame(files, _FILES).repartition(tasks, "name")
    parsed = rows.mapInArrow(_FileReader(store, root), _make_ddl()).persist()
    try:
        _require_whole(parsed)
        times = {row["version"]: row["time_ms"] for row in parsed.where("time_ms IS NOT NULL").collect()}
        events = parsed.where("location IS NOT NULL")
        own = there(pa.array([], pa.string()))
        return _replayed(spark, events, chain.versions, there(_others(spark, events, own))), times
    finally:
        parsed.unpersist()


def _files(chain: Chain, stored: pa.Table, read: Read) -> list[tuple[int, int, str, str, str | None, bool]]:
    places = {row["name"]: (row["stored_key"], row["stored_version_id"]) for row in stored.to_pylist()}
    found = [(step.first, step.last, step.name, *places[step.name], True) for step in chain.steps]
    if chain.base is not None:
        at = chain.base.version
        names = [*chain.base.names, *list_sidecars(chain.base, read)]
        if lost := [name for name in names if name not in places]:
            raise BrokenLogFile(lost[0], "it is not in the copy")
        found += [(at, at, name, *places[name], False) for name in names]
    return found


class _FileReader:
    """Turns rows of files into what they say."""

    def __init__(self, store: StoreAddress, root: str) -> None:
        self._store, self._root = store, root

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self._store)
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    content = store.read(row["stored_key"], row["stored_version_id"])
                    table = self._told(row, content)
                except (BrokenLogFile, ObjectMissing) as error:
                    table = pa.table({"broken": [row["name"]], "reason": [str(error)]})
                yield from _pad_columns(table).to_batches()

    def _told(self, row: dict[str, object], content: bytes) -> pa.Table:
        name, last = str(row["name"]), int(str(row["last"]))
        if not row["is_commit"]:
            return read_checkpoint_file(self._root, last, name, content)
        columns = EventColumns()
        at = read_commit(Step(int(str(row["first"])), last, name), content, columns)
        events = columns.table(self._root)
        if at is None:
            return events
        return pa.concat_tables(
            [_pad_columns(events), _pad_columns(pa.table({"version": [last], "time_ms": [at]}))]
        )


def _pad_columns(table: pa.Table) -> pa.Table:
    columns = {
        field.name: table[field.name]
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in EVENTS_OR_FAULT
    }
    return pa.table(columns).cast(EVENTS_OR_FAULT)


def _make_ddl() -> str:
    kinds = {pa.string(): "string", pa.int64(): "long", pa.bool_(): "boolean"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in EVENTS_OR_FAULT)


def _require_whole(parsed: "DataFrame") -> None:
    broken = parsed.where("broken IS NOT NULL").select("broken", "reason").orderBy("broken").first()
    if broken is not None:
        raise BrokenLogFile(broken["broken"], broken["reason"])


def _others(spark: "SparkSession", events: "DataFrame", own: pa.Table) -> pa.Array:
    """What the log names that is not whole among the table's own objects: of nearly all tables little."""
    named = events.selectExpr("location").unionByName(events.selectExpr("dv_location AS location"))
    known = spark.createDataFrame(own.select(["location"]))
    found = named.where("location IS NOT NULL").distinct().join(known, "location", "left_anti").toArrow()
    return found["location"].combine_chunks()


def _replayed(
    spark: "SparkSession", events: "DataFrame", versions: Sequence[int], there: pa.Table
) -> Replayed:
    lives = _lives_in_spark(events).persist()
    try:
        missing = _missing_in_spark(lives, spark.createDataFrame(there.select(["location", "size_bytes"])))
        lacking = missing.select("location", "size_bytes", "since", "until").toArrow().cast(INTERVALS)
        changes = _changes(lives, missing).toArrow()
        return Replayed(sum_changes(changes, versions), lacking)
    finally:
        lives.unpersist()


def _lives_in_spark(events: "DataFrame") -> "DataFrame":
    """The events that begin a life, with the version that ends it; adds come after removes of the same commit."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy("location", "dv_id").orderBy("version", "is_add")
    ended = events.withColumn("until", F.lead("version").over(order))
    return ended.where("is_add AND (until IS NULL OR until <> version)")


def _missing_in_spark(lives: "DataFrame", there: "DataFrame") -> "DataFrame":
    when = ["version AS since", "until"]
    data = lives.selectExpr("location", "size_bytes", *when)
    vectors = lives.where("dv_location IS NOT NULL").selectExpr(
        "dv_location AS location", "CAST(NULL AS LONG) AS size_bytes", *when
    )
    found = there.selectExpr("location", "size_bytes AS found")
    joined = data.unionByName(vectors).join(found, "location", "left")
    return joined.where("found IS NULL OR NOT (size_bytes IS NULL OR found = size_bytes)")


def _changes(lives: "DataFrame", missing: "DataFrame") -> "DataFrame":
    amounts = ("files", "size_bytes", "rows", "untold", "absolute", "lacking")
    more = lives.selectExpr(
        *("version", "until", "1L AS files", "coalesce(size_bytes, 0L) AS size_bytes"),
        *(
            "coalesce(rows, 0L) AS rows",
            "IF(rows IS NULL, 1L, 0L) AS untold",
            "IF(is_absolute, 1L, 0L) AS absolute",
        ),
        "0L AS lacking",
    )
    lost = missing.selectExpr(
        *("since AS version", "until", "0L AS files", "0L AS size_bytes", "0L AS rows", "0L AS untold"),
        *("0L AS absolute", "1L AS lacking"),
    )
    begun = more.unionByName(lost)
    ended = begun.where("until IS NOT NULL").selectExpr(
        "until AS version", *(f"-{one} AS {one}" for one in amounts)
    )
    every = begun.drop("until").unionByName(ended)
    return every.groupBy("version").sum(*amounts).toDF("version", *amounts)
