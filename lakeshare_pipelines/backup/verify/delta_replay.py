"""Replay of Delta logs: adds and removes become intervals of versions, which show every complete version.

A missing file makes exactly the versions of its interval incomplete. `replay` is for logs whose columns fit into
memory, `replay_by_spark` for larger ones. What reads a log raises BrokenLogFile for a missing or damaged file.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.verify.objects import normalize_location
from lakeshare_pipelines.errors import ObjectMissing
from lakeshare_server.errors import LakeshareError, TableFilesMissing
from lakeshare_server.storage.location_columns import resolve_names
from lakeshare_server.tables.delta.files import vector_id, vector_paths
from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT, COMPACTED, LOG, parse_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CRC = re.compile(r"(\d{20})\.crc")
SIDECARS = "_sidecars/"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with all its parts; `names` are its files in order, below the log's folder."""

    version: int
    names: tuple[str, ...]

    @property
    def has_sidecars(self) -> bool:
        """Whether it may name sidecars: it has version 2, by its name."""
        match = CHECKPOINT.fullmatch(self.names[0])
        return match is not None and match[4] is not None


@dataclass(frozen=True)
class Step:
    """A commit, or a compaction in place of several commits of which some are missing."""

    first: int
    last: int
    name: str


@dataclass(frozen=True)
class Chain:
    """Consecutive versions: a base, or commit 0 as the first step, and what follows without a hole."""

    base: Checkpoint | None
    steps: tuple[Step, ...]

    @property
    def versions(self) -> list[int]:
        own = [] if self.base is None else [self.base.version]
        return own + [step.last for step in self.steps]


@dataclass
class LogFiles:
    commits: set[int] = field(default_factory=set)
    compacted: set[tuple[int, int]] = field(default_factory=set)
    checkpoints: dict[int, list[Checkpoint]] = field(default_factory=dict)
    crcs: set[int] = field(default_factory=set)

    def chains(self, without: frozenset[Checkpoint] = frozenset()) -> list[Chain]:
        """All chains, oldest first, except from checkpoints `without`, which are unreadable."""
        chains = [self._make_chain(None, -1)] if 0 in self.commits else []
        for version, checkpoints in sorted(self.checkpoints.items()):
            base = next((checkpoint for checkpoint in checkpoints if checkpoint not in without), None)
            # A checkpoint that a chain reaches adds no version to it.
            if base is not None and version > (chains[-1].versions[-1] if chains else -1):
                chains.append(self._make_chain(base, version))
        return chains

    def newest_checkpoints(self, version: int) -> list[Checkpoint]:
        """All forms of the checkpoint with which a reader of a version begins."""
        newest = max((at for at in self.checkpoints if at <= version), default=None)
        return [] if newest is None else self.checkpoints[newest]

    def _make_chain(self, base: Checkpoint | None, at: int) -> Chain:
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
    """Sort the names of files below a table's `_delta_log/` by kind; other files are left out."""
    log = LogFiles()
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        if commit := COMMIT.fullmatch(name):
            log.commits.add(int(commit[1]))
        elif compacted := COMPACTED.fullmatch(name):
            log.compacted.add((int(compacted[1]), int(compacted[2])))
        elif crc := CRC.fullmatch(name):
            log.crcs.add(int(crc[1]))
        elif checkpoint := CHECKPOINT.fullmatch(name):
            version = int(checkpoint[1])
            if checkpoint[2]:
                parts.setdefault((version, int(checkpoint[3])), {})[int(checkpoint[2])] = name
            elif checkpoint[4] or checkpoint[5] == "parquet":
                log.checkpoints.setdefault(version, []).append(Checkpoint(version, (name,)))
    for (version, count), of_version in parts.items():
        if len(of_version) == count:
            names_in_order = tuple(of_version[number] for number in sorted(of_version))
            log.checkpoints.setdefault(version, []).append(Checkpoint(version, names_in_order))
    return log


def format_commit_name(version: int) -> str:
    return f"{version:020}.json"


def format_compaction_name(first: int, last: int) -> str:
    return f"{first:020}.{last:020}.compacted.json"


def parse_version(name: str) -> int | None:
    """The last version of a file of a log; None for sidecars, pointers and folders."""
    if compacted := COMPACTED.fullmatch(name):
        return int(compacted[2])
    matches = (kind.fullmatch(name) for kind in (COMMIT, CRC, CHECKPOINT))
    return next((int(match[1]) for match in matches if match), None)


EVENTS = pa.schema(
    [
        # Of the data file, as a store names it: a path, or s3://bucket/key.
        pa.field("location", pa.string(), nullable=False),
        pa.field(
            "dv_id", pa.string(), nullable=False
        ),  # The unique id of the deletion vector; empty without one
        # Location of the vector; null without one, and if it is in the log itself.
        pa.field("dv_location", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("rows", pa.int64()),  # Live rows of the file; null if the log does not state them
        # The log has an absolute location of the file or its vector: a copy of the log still names the original.
        pa.field("is_absolute", pa.bool_(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("is_add", pa.bool_(), nullable=False),
    ]
)
"""Adds and removes of a chain; a file is identified by its location and its vector."""

READERS, AHEAD = 16, 64
ROWS = re.compile(r'"numRecords"\s*:\s*(\d+)')
ABSOLUTE = "^(/|[A-Za-z][A-Za-z0-9+.-]*:)"
NOT_WHOLE = (
    orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, pa.ArrowException, OSError
)  # fmt: skip

Read = Callable[[str], bytes]  # The content of a file below `_delta_log/`, by its name


class BrokenLogFile(LakeshareError):
    """A missing or damaged file of a log; `name` is below the log's folder."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{LOG}/{name}: {reason}")
        self.name, self.reason = name, reason


@dataclass
class ChainEvents:
    """The events of a chain, and the times that commits state, in milliseconds."""

    events: pa.Table
    times_ms: dict[int, int] = field(default_factory=dict)


@dataclass
class EventColumns:
    paths: list[str | None] = field(default_factory=list)
    storages: list[str | None] = field(default_factory=list)
    vectors: list[str | None] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    rows: list[int | None] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    adds: list[bool] = field(default_factory=list)

    def add(self, action: dict[str, Any], version: int, is_add: bool) -> None:
        vector = action.get("deletionVector")
        self.paths.append(action["path"])
        self.storages.append(vector["storageType"] if vector else None)
        self.vectors.append(vector["pathOrInlineDv"] if vector else None)
        self.ids.append(vector_id(vector) or "")
        self.sizes.append(action.get("size"))
        self.rows.append(_count_rows(action.get("stats"), vector) if is_add else None)
        self.versions.append(version)
        self.adds.append(is_add)

    def make_table(self, root: str) -> pa.Table:
        return _make_events(
            root,
            pa.array(self.paths, pa.string()),
            pa.array(self.storages, pa.string()),
            pa.array(self.vectors, pa.string()),
            {
                "dv_id": pa.array(self.ids, pa.string()),
                "size_bytes": pa.array(self.sizes, pa.int64()),
                "rows": pa.array(self.rows, pa.int64()),
                "version": pa.array(self.versions, pa.int64()),
                "is_add": pa.array(self.adds, pa.bool_()),
            },
        )


def _make_events(
    root: str, paths: pa.Array, storages: pa.Array, vectors: pa.Array, columns: dict[str, pa.Array]
) -> pa.Table:
    is_absolute = pc.match_substring_regex(paths, ABSOLUTE)
    columns |= {
        "location": resolve_locations(root, paths),
        "is_absolute": pc.or_(is_absolute, pc.fill_null(pc.equal(storages, "p"), False)),
        "dv_location": vector_paths(root, pa.table({"dv_storage": storages, "dv_path": vectors})),
    }
    return pa.table(columns).select(EVENTS.names).cast(EVENTS)


def read_chain(root: str, chain: Chain, read: Read) -> ChainEvents:
    """The events of a chain; `root` is the table's location at its source."""
    tables = [] if chain.base is None else [read_checkpoint(root, chain.base, read)]
    times: dict[int, int] = {}
    columns = EventColumns()
    # A remote store answers many requests at once as quickly as one.
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(chain.steps), AHEAD):
            steps = chain.steps[start : start + AHEAD]
            for step, content in zip(steps, pool.map(lambda step: read(step.name), steps), strict=True):
                at = read_commit(step, content, columns)
                if at is not None:
                    times[step.last] = at
    try:
        tables.append(columns.make_table(root))
    except TableFilesMissing as error:
        raise BrokenLogFile("", str(error)) from error
    return ChainEvents(pa.concat_tables(tables), times)


def read_commit(step: Step, content: bytes, into: EventColumns) -> int | None:
    """Add the actions of a commit to `into`; returns the time that it states, in milliseconds."""
    if not content.strip():
        raise BrokenLogFile(step.name, "it is empty")
    try:
        commit = parse_commit(content, step.first, step.last, 0)
        for action in commit.removes:
            into.add(action, step.last, is_add=False)
        for action in commit.adds:
            into.add(action, step.last, is_add=True)
        at = commit.info.get("inCommitTimestamp")
        return None if at is None else int(at)
    except NOT_WHOLE as error:
        raise BrokenLogFile(step.name, "it is cut off, or no commit") from error


def read_checkpoint(root: str, checkpoint: Checkpoint, read: Read) -> pa.Table:
    """The files of a checkpoint, sidecars included, as adds of its version."""
    names = [*checkpoint.names, *list_sidecars(checkpoint, read)]
    try:
        return pa.concat_tables(
            [read_checkpoint_file(root, checkpoint.version, name, read(name)) for name in names]
        )
    except TableFilesMissing as error:
        raise BrokenLogFile(checkpoint.names[0], str(error)) from error


def list_sidecars(checkpoint: Checkpoint, read: Read) -> list[str]:
    """The names of a checkpoint's sidecars, below the log's folder (PROTOCOL.md, "Sidecar Files")."""
    if not checkpoint.has_sidecars:
        return []
    name = checkpoint.names[0]
    try:
        if name.endswith(".json"):
            paths = [sidecar["path"] for sidecar in parse_commit(read(name), 0, 0, 0).sidecars]
        else:
            with pq.ParquetFile(io.BytesIO(read(name))) as file:
                if "sidecar" not in file.schema_arrow.names:
                    return []
                sidecars = file.read(["sidecar.path"]).column("sidecar").to_pylist()
                paths = [sidecar["path"] for sidecar in sidecars if sidecar and sidecar["path"] is not None]
    except NOT_WHOLE as error:
        raise BrokenLogFile(name, "it is cut off, or no checkpoint") from error
    # An absolute path would be outside of the copied log.
    if outside := [path for path in paths if "/" in path]:
        raise BrokenLogFile(name, f"its sidecar {outside[0]} is outside the log")
    return [f"{SIDECARS}{path}" for path in paths]


def resolve_locations(root: str, paths: pa.Array) -> pa.Array:
    """The locations of files by the paths of a log: URL-encoded, and usually relative to the root."""
    resolved = resolve_names(root, paths)
    if not root.startswith("/") and pc.all(pc.starts_with(resolved, f"{root}/"), min_count=0).as_py():
        return resolved
    if pc.all(pc.starts_with(resolved, f"{root.rstrip('/')}/"), min_count=0).as_py():
        return resolved
    return pa.array(
        [location and normalize_location(location) for location in resolved.to_pylist()], pa.string()
    )


def read_checkpoint_file(root: str, version: int, name: str, content: bytes) -> pa.Table:
    try:
        if name.endswith(".json"):
            columns = EventColumns()
            for action in parse_commit(content, version, version, 0).adds:
                columns.add(action, version, is_add=True)
            return columns.make_table(root)
        with pq.ParquetFile(io.BytesIO(content)) as file:
            if "add" not in file.schema_arrow.names:
                return EVENTS.empty_table()
            members = {member.name for member in file.schema_arrow.field("add").type}
            names = [name for name in ("path", "size", "stats", "deletionVector") if name in members]
            adds = file.read([f"add.{name}" for name in names]).column("add").combine_chunks()
        adds = adds.filter(pc.is_valid(adds))
    except NOT_WHOLE as error:
        raise BrokenLogFile(name, "it is cut off, or no checkpoint") from error
    return _make_add_events(root, version, adds)


def _make_add_events(root: str, version: int, adds: pa.StructArray) -> pa.Table:
    count, members = len(adds), {member.name for member in adds.type}
    stats, vectors = (
        pc.struct_field(adds, name).to_pylist() if name in members else [None] * count
        for name in ("stats", "deletionVector")
    )
    rows = [_count_rows(*pair) for pair in zip(stats, vectors, strict=True)]
    return _make_events(
        root,
        pc.struct_field(adds, "path"),
        pa.array([vector and vector["storageType"] for vector in vectors], pa.string()),
        pa.array([vector and vector["pathOrInlineDv"] for vector in vectors], pa.string()),
        {
            "dv_id": pa.array([vector_id(vector) or "" for vector in vectors], pa.string()),
            "size_bytes": pc.struct_field(adds, "size"),
            "rows": pa.array(rows, pa.int64()),
            "version": pa.array([version] * count, pa.int64()),
            "is_add": pa.array([True] * count, pa.bool_()),
        },
    )


def _count_rows(stats: str | None, vector: dict[str, Any] | None) -> int | None:
    found = ROWS.search(stats) if stats else None
    if found is None:
        return None
    return int(found[1]) - (vector.get("cardinality") or 0 if vector else 0)


INTERVALS = pa.schema(
    [
        pa.field("location", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("since", pa.int64(), nullable=False),
        pa.field("until", pa.int64()),  # The first version without it; null if there is none
    ]
)
"""Versions that need a file which is missing or of another size (null: of any size)."""


@dataclass(frozen=True)
class VersionCount:
    """Data files of a version, their bytes, rows as far as the log states them, and missing files."""

    version: int
    files: int
    size_bytes: int
    rows: int | None
    lacking: int
    absolute: int = 0  # Files with absolute locations: a copy of the log still names the originals


@dataclass(frozen=True)
class Replayed:
    """A replayed chain: its versions in order, and the intervals of missing files."""

    versions: tuple[VersionCount, ...]
    missing: pa.Table

    @property
    def complete(self) -> list[int]:
        return [version.version for version in self.versions if not version.lacking]

    def at(self, version: int) -> VersionCount | None:
        return next((count for count in self.versions if count.version == version), None)

    def missing_at(self, version: int) -> list[str]:
        until = pc.fill_null(self.missing["until"], version + 1)
        needed = pc.and_(pc.less_equal(self.missing["since"], version), pc.greater(until, version))
        return sorted(set(self.missing["location"].filter(needed).to_pylist()))


def replay(events: pa.Table, versions: Sequence[int], there: pa.Table) -> Replayed:
    """Replay EVENTS; `there` are the whole objects of the copy: columns `location` and `size_bytes`."""
    lives = _lives(events)
    missing = _missing(lives, there)
    return Replayed(sum_changes(compute_changes(lives, missing), versions), missing)


def compute_changes(lives: pa.Table, missing: pa.Table) -> pa.Table:
    """The differences of each version from the version before it: files, bytes, rows and so on."""
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
    changes_of = {row["version"]: row for row in changes.to_pylist()}
    wanted, counts = set(versions), list[VersionCount]()
    totals = dict.fromkeys(("files", "size_bytes", "rows", "untold", "lacking", "absolute"), 0)
    for version in sorted(wanted | changes_of.keys()):
        change = changes_of.get(version, {})
        totals = {name: total + change.get(name, 0) for name, total in totals.items()}
        if version in wanted:
            rows = None if totals["untold"] else totals["rows"]
            sums = (totals[name] for name in ("lacking", "absolute"))
            counts.append(VersionCount(version, totals["files"], totals["size_bytes"], rows, *sums))
    return tuple(counts)


def _lives(events: pa.Table) -> pa.Table:
    """The adds of live files, each with the version that ends it (`until`; null: it has not ended)."""
    events = events.cast(EVENTS).combine_chunks()
    if events.num_rows == 0:
        return events.append_column("until", pa.array([], pa.int64()))
    identity = pc.binary_join_element_wise(events["location"], events["dv_id"], "\n")
    codes = identity.combine_chunks().dictionary_encode().indices
    keys = pa.table(
        {"code": codes, "version": events["version"], "is_add": pc.cast(events["is_add"], pa.int8())}
    )
    # A commit may remove a file and add it again: then the file is live after it.
    order = pc.sort_indices(keys, [("code", "ascending"), ("version", "ascending"), ("is_add", "ascending")])
    events, codes = events.take(order), codes.take(order)
    last = events.num_rows - 1
    goes_on = pc.equal(codes.slice(0, last), codes.slice(1))
    following = pc.if_else(goes_on, _flat(events["version"]).slice(1), pa.scalar(None, pa.int64()))
    lives = events.append_column("until", pa.concat_arrays([following, pa.nulls(1, pa.int64())]))
    lasts = pc.fill_null(pc.not_equal(lives["until"], lives["version"]), True)
    return lives.filter(pc.and_(lives["is_add"], lasts))


def _missing(lives: pa.Table, there: pa.Table) -> pa.Table:
    """The intervals of data files and vectors that are missing, or of another size."""
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
        pa.field(
            "time_ms", pa.int64()
        ),  # A row for each commit that states its time, and for each damaged file
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
    """Replay a chain in Spark; `stored` has its files (columns `name`, `stored_key`, `stored_version_id`).

    `there` returns the whole objects of the table and of the named locations: columns `location` and `size_bytes`.
    Raises BrokenLogFile if a file is damaged or missing.
    """
    files = _list_files(chain, stored, read)
    tasks = max(1, -(-len(files) // FILES_A_TASK))
    rows = spark.createDataFrame(files, _FILES).repartition(tasks, "name")
    kinds = {pa.string(): "string", pa.int64(): "long", pa.bool_(): "boolean"}
    ddl = ", ".join(f"{field.name} {kinds[field.type]}" for field in EVENTS_OR_FAULT)
    parsed = rows.mapInArrow(partial(_read_files, store, root), ddl).persist()
    try:
        broken = parsed.where("broken IS NOT NULL").select("broken", "reason").orderBy("broken").first()
        if broken is not None:
            raise BrokenLogFile(broken["broken"], broken["reason"])
        times = {row["version"]: row["time_ms"] for row in parsed.where("time_ms IS NOT NULL").collect()}
        events = parsed.where("location IS NOT NULL")
        own = there(pa.array([], pa.string()))
        others = _select_others(spark, events, own)
        return _replay_events(spark, events, chain.versions, there(others)), times
    finally:
        parsed.unpersist()


def _list_files(
    chain: Chain, stored: pa.Table, read: Read
) -> list[tuple[int, int, str, str, str | None, bool]]:
    copies = {row["name"]: (row["stored_key"], row["stored_version_id"]) for row in stored.to_pylist()}
    files = [(step.first, step.last, step.name, *copies[step.name], True) for step in chain.steps]
    if chain.base is not None:
        at = chain.base.version
        names = [*chain.base.names, *list_sidecars(chain.base, read)]
        if lost := [name for name in names if name not in copies]:
            raise BrokenLogFile(lost[0], "it is not in the copy")
        files += [(at, at, name, *copies[name], False) for name in names]
    return files


def _read_files(
    address: StoreAddress, root: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read files of a log in a task of Spark; returns rows of schema EVENTS_OR_FAULT."""
    store = open_store(address)
    for row in (row for batch in batches for row in batch.to_pylist()):
        name, last = row["name"], row["last"]
        try:
            content = store.read(row["stored_key"], row["stored_version_id"])
            if row["is_commit"]:
                columns = EventColumns()
                at = read_commit(Step(row["first"], last, name), content, columns)
                tables = [columns.make_table(root)]
                if at is not None:
                    tables.append(pa.table({"version": [last], "time_ms": [at]}))
            else:
                tables = [read_checkpoint_file(root, last, name, content)]
        except (BrokenLogFile, ObjectMissing) as error:
            tables = [pa.table({"broken": [name], "reason": [str(error)]})]
        for table in tables:
            yield from _pad_columns(table).to_batches()


def _pad_columns(table: pa.Table) -> pa.Table:
    columns = {
        field.name: table[field.name]
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in EVENTS_OR_FAULT
    }
    return pa.table(columns).cast(EVENTS_OR_FAULT)


def _select_others(spark: "SparkSession", events: "DataFrame", own: pa.Table) -> pa.Array:
    """Locations that the log names and that are not among the table's own whole objects: usually few."""
    named = events.selectExpr("location").unionByName(events.selectExpr("dv_location AS location"))
    known = spark.createDataFrame(own.select(["location"]))
    found = named.where("location IS NOT NULL").distinct().join(known, "location", "left_anti").toArrow()
    return found["location"].combine_chunks()


def _replay_events(
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
    """As `_lives`; adds come after removes of the same commit."""
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
    negated = (f"-{name} AS {name}" for name in amounts)
    ended = begun.where("until IS NOT NULL").selectExpr("until AS version", *negated)
    every = begun.drop("until").unionByName(ended)
    return every.groupBy("version").sum(*amounts).toDF("version", *amounts)
