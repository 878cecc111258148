"""Delta tables in a copy: complete versions, and the version at which the table opens (Delta's PROTOCOL.md).

Adds and removes become intervals of versions: a missing file makes exactly the versions of its interval incomplete.
What reads a log raises BrokenLogFile for a missing or damaged file.
"""

import datetime as dt
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import OpenSpark, Status, TableProof, load_rows
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, make_storage_options
from lakeshare_pipelines.backup.verify.objects import (
    MAX_TRIED,
    READ_WHOLE_FILES,
    Need,
    TableCopy,
    count_rows_or_use_spark,
    explain_outside_needs,
    explain_too_small,
    get_first_line,
    normalize_location,
)
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.errors import LakeshareError, TableFilesMissing
from lakeshare_server.storage.location_columns import resolve_names
from lakeshare_server.storage.remote import StoredObject
from lakeshare_server.tables.delta.files import (
    from_actions,
    from_checkpoint,
    vector_id,
    vector_ids,
    vector_paths,
)
from lakeshare_server.tables.delta.log import (
    CHECKPOINT,
    COMMIT,
    COMPACTED,
    LOG,
    STAGED_COMMIT,
    STAGED_FOLDERS,
    Checkpoint,
    CheckpointState,
    LogListing,
    parse_commit,
    read_checkpoint_file,
    sort_log,
)
from lakeshare_server.tables.lines import column_of

if TYPE_CHECKING:
    import duckdb

CRC = re.compile(r"(\d{20})\.crc")
SIDECARS = "_sidecars/"
POINTER = "_last_checkpoint"
LONGEST_HOLE = 10_000
NOT_WHOLE = (
    orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError, pa.ArrowException, OSError,
    TableFilesMissing,
)  # fmt: skip
Read = Callable[[str], bytes]  # The content of a file below `_delta_log/`, by its name


class BrokenLogFile(LakeshareError):
    """A missing or damaged file of a log; `name` is below the log's folder."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{LOG}/{name}: {reason}")
        self.name, self.reason = name, reason


@contextmanager
def _require_whole(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except NOT_WHOLE as error:
        raise BrokenLogFile(name, f"it is cut off, or no {kind}") from error


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


def sort_names(names: Iterable[str]) -> LogListing:
    """Sort the names of files below a table's `_delta_log/`; the sorted files have the names as locations."""
    return sort_log("", ((name, StoredObject(name, 0, 0, None)) for name in names))


def list_chains(log: LogListing, without: frozenset[Checkpoint] = frozenset()) -> list[Chain]:
    """All chains, oldest first, except from checkpoints `without`, which are unreadable."""
    chains = [_make_chain(log, None, -1)] if 0 in log.commits else []
    for version, checkpoints in sorted(log.checkpoints.items()):
        base = next((checkpoint for checkpoint in checkpoints if checkpoint not in without), None)
        # A checkpoint that a chain reaches adds no version to it.
        if base is not None and version > (chains[-1].versions[-1] if chains else -1):
            chains.append(_make_chain(log, base, version))
    return chains


def _make_chain(log: LogListing, base: Checkpoint | None, at: int) -> Chain:
    wider: dict[int, int] = {}
    for last, compacted in log.compacted.items():
        for first, _ in compacted:
            wider[first] = max(last, wider.get(first, last))
    steps = []
    while True:
        if at + 1 in log.commits:
            steps.append(Step(at + 1, at + 1, format_commit_name(at + 1)))
        elif at + 1 in wider:
            first, last = at + 1, wider[at + 1]
            steps.append(Step(first, last, f"{first:020}.{last:020}.compacted.json"))
        else:
            return Chain(base, tuple(steps))
        at = steps[-1].last


def list_newest_checkpoints(log: LogListing, version: int) -> list[Checkpoint]:
    """All forms of the checkpoint with which a reader of a version begins."""
    newest = max((at for at in log.checkpoints if at <= version), default=None)
    return [] if newest is None else log.checkpoints[newest]


def format_commit_name(version: int) -> str:
    return f"{version:020}.json"


def parse_version(name: str) -> int | None:
    """The last version of a file of a log; None for sidecars, pointers and folders."""
    if compacted := COMPACTED.fullmatch(name):
        return int(compacted[2])
    matches = (kind.fullmatch(name) for kind in (COMMIT, CRC, CHECKPOINT))
    return next((int(match[1]) for match in matches if match), None)


def list_names(checkpoint: Checkpoint) -> list[str]:
    """The names of a checkpoint's parts, in order."""
    return [part.location for part in checkpoint.parts]


def is_classic(checkpoint: Checkpoint) -> bool:
    """Whether its name has no UUID. One in a single file may be of version 2 all the same, and name sidecars."""
    match = CHECKPOINT.fullmatch(checkpoint.parts[0].location)
    return match is None or match[4] is None


EVENTS = pa.schema(
    [
        # Of the data file, as a store names it: a path, or s3://bucket/key.
        pa.field("location", pa.string(), nullable=False),
        # The unique id of the deletion vector; empty without one.
        pa.field("dv_id", pa.string(), nullable=False),
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
ROWS = r'"numRecords"\s*:\s*(?P<rows>\d+)'
ABSOLUTE = "^(/|[A-Za-z][A-Za-z0-9+.-]*:)"
ADD_FIELDS = ("path", "size", "stats", "deletionVector")


def read_chain(root: str, chain: Chain, read: Read, times_ms: dict[int, int]) -> Iterator[pa.Table]:
    """The events of a chain, by the table's location at its source; `times_ms` receives times that commits state."""
    if chain.base is not None:
        yield from read_checkpoint(root, chain.base, read)
    # A remote store answers many requests at once as quickly as one.
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(chain.steps), AHEAD):
            steps = chain.steps[start : start + AHEAD]
            contents = pool.map(lambda step: read(step.name), steps)
            tables = [
                _read_commit(root, step, content, times_ms)
                for step, content in zip(steps, contents, strict=True)
            ]
            yield pa.concat_tables(tables)


def _read_commit(root: str, step: Step, content: bytes, times_ms: dict[int, int]) -> pa.Table:
    if not content.strip():
        raise BrokenLogFile(step.name, "it is empty")
    with _require_whole(step.name, "commit"):
        commit = parse_commit(content, step.first, step.last, 0)
        if (at := commit.info.get("inCommitTimestamp")) is not None:
            times_ms[step.last] = int(at)
        for action in (*commit.adds, *commit.removes):
            vector_id(action.get("deletionVector"))  # It raises KeyError for a vector that is not whole
        adds, removes = (from_actions(actions, ()) for actions in (commit.adds, commit.removes))
        events = (_make_events(root, adds, step.last), _make_events(root, removes, step.last, is_add=False))
        return pa.concat_tables(events)


def read_checkpoint(root: str, checkpoint: Checkpoint, read: Read) -> Iterator[pa.Table]:
    """The files of a checkpoint, sidecars included, as adds of its version."""
    for name, state in read_states(checkpoint, read):
        with _require_whole(name, "checkpoint"):
            adds = [from_actions(state.json_adds, ()), *(from_checkpoint(adds, ()) for adds in state.adds)]
            events = [_make_events(root, table, checkpoint.version) for table in adds]
        yield pa.concat_tables(events)


def read_states(
    checkpoint: Checkpoint, read: Read, add_fields: Sequence[str] = ADD_FIELDS
) -> Iterator[tuple[str, CheckpointState]]:
    """The content of a checkpoint's parts and then of the sidecars that they name, each with its name."""
    names = list_names(checkpoint)
    for number, name in enumerate(names):
        state, sidecars = _read_file(name, read, add_fields)
        if number < len(checkpoint.parts):
            names += sidecars
        yield name, state


def list_sidecars(checkpoint: Checkpoint, read: Read) -> list[str]:
    """The names of a checkpoint's sidecars, below the log's folder (PROTOCOL.md, "Sidecar Files")."""
    first, *others = list_names(checkpoint)
    # Checkpoints in several parts are of version 1.
    return [] if others else _read_file(first, read, ())[1]


def _read_file(name: str, read: Read, add_fields: Sequence[str]) -> tuple[CheckpointState, list[str]]:
    content, state = read(name), CheckpointState()
    with _require_whole(name, "checkpoint"):
        read_checkpoint_file(name, io.BytesIO(content), state, add_fields)
        paths = [str(sidecar["path"]) for sidecar in state.sidecars]
    # An absolute path would be outside of the copied log.
    if outside := [path for path in paths if "/" in path]:
        raise BrokenLogFile(name, f"its sidecar {outside[0]} is outside the log")
    return state, [f"{SIDECARS}{path}" for path in paths]


def _make_events(root: str, actions: pa.Table, version: int, *, is_add: bool = True) -> pa.Table:
    """Rows of schema EVENTS for actions in the form of `from_actions`."""
    count, paths, storage = len(actions), column_of(actions, "path"), column_of(actions, "dv_storage")
    rows = pc.cast(pc.struct_field(pc.extract_regex(column_of(actions, "stats"), ROWS), "rows"), pa.int64())
    deleted = pc.fill_null(column_of(actions, "dv_cardinality"), 0)
    is_absolute = pc.match_substring_regex(paths, ABSOLUTE)
    columns = {
        "location": resolve_locations(root, paths),
        "dv_id": pc.fill_null(vector_ids(actions), ""),
        "dv_location": vector_paths(root, actions),
        "size_bytes": column_of(actions, "size"),
        "rows": pc.subtract(rows, deleted) if is_add else pa.nulls(count, pa.int64()),
        "is_absolute": pc.or_(is_absolute, pc.fill_null(pc.equal(storage, "p"), False)),
        "version": pa.array([version] * count, pa.int64()),
        "is_add": pa.array([is_add] * count, pa.bool_()),
    }
    return pa.table(columns).cast(EVENTS)


def resolve_locations(root: str, paths: pa.Array) -> pa.Array:
    """The locations of files by the paths of a log: URL-encoded, and usually relative to the root."""
    resolved = resolve_names(root, paths)
    if pc.all(pc.starts_with(resolved, f"{root.rstrip('/')}/"), min_count=0).as_py():
        return resolved
    return pa.array(
        [location and normalize_location(location) for location in resolved.to_pylist()], pa.string()
    )


REPLAY = """
CREATE TEMP TABLE lives AS SELECT * FROM (
    -- A commit may remove a file and add it again: then the file is live after it.
    SELECT *, lead(version) OVER (PARTITION BY location, dv_id ORDER BY version, is_add) AS until FROM events
) WHERE is_add AND (until IS NULL OR until <> version);
CREATE TEMP TABLE missing AS SELECT needed.* FROM (
    SELECT location, size_bytes, version AS since, until FROM lives
    UNION ALL SELECT dv_location, NULL, version, until FROM lives WHERE dv_location IS NOT NULL
) needed LEFT JOIN whole ON needed.location = whole.location
WHERE whole.location IS NULL OR (needed.size_bytes IS NOT NULL AND needed.size_bytes IS DISTINCT FROM whole.size_bytes);
"""
COUNTS = """
WITH begun AS (
    SELECT version, until, 1 AS files, coalesce(size_bytes, 0) AS size_bytes, coalesce(rows, 0) AS rows,
        (rows IS NULL)::INT AS unstated, 0 AS lacking, is_absolute::INT AS absolute FROM lives
    UNION ALL SELECT since, until, 0, 0, 0, 0, 1, 0 FROM missing
), changes AS (
    SELECT * EXCLUDE until FROM begun
    UNION ALL SELECT until, -files, -size_bytes, -rows, -unstated, -lacking, -absolute FROM begun
    WHERE until IS NOT NULL
), totals AS (
    SELECT version AS since, sum(sum(COLUMNS(* EXCLUDE version))) OVER (ORDER BY version) FROM changes GROUP BY version
)
SELECT version, coalesce(files, 0), coalesce(size_bytes, 0),
    CASE WHEN coalesce(unstated, 0) = 0 THEN coalesce(rows, 0) END, coalesce(lacking, 0), coalesce(absolute, 0)
FROM wanted ASOF LEFT JOIN totals ON wanted.version >= totals.since ORDER BY version
"""


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
    """A replayed chain: its versions in order, and the versions that need a file which is missing or of another size.

    `missing` has the columns `location`, `size_bytes` (null: of any size), `since` and `until` (the first version
    without it; null if there is none).
    """

    versions: tuple[VersionCount, ...]
    missing: pa.Table

    def at(self, version: int) -> VersionCount | None:
        return next((count for count in self.versions if count.version == version), None)

    def missing_at(self, version: int) -> list[str]:
        until = pc.fill_null(self.missing["until"], version + 1)
        needed = pc.and_(pc.less_equal(self.missing["since"], version), pc.greater(until, version))
        return sorted(set(self.missing["location"].filter(needed).to_pylist()))


def replay(
    copy: TableCopy, chain: Chain, read: Read, times_ms: dict[int, int], database: "duckdb.DuckDBPyConnection"
) -> Replayed:
    """Replay a chain with the whole objects of the copy; what exceeds the database's memory is on the disk."""
    with database.cursor() as on:
        load_rows(on, "events", EVENTS, read_chain(copy.location, chain, read, times_ms))
        names = ("location", "size_bytes")
        whole = copy.select(*names, condition="is_whole")
        on.register("own", whole)
        others = on.sql(
            "SELECT location FROM (SELECT location FROM events UNION SELECT dv_location FROM events) "
            "ANTI JOIN own USING (location) WHERE location IS NOT NULL"
        ).to_arrow_table()
        if others.num_rows:
            found = copy.objects.select_locations((*names, "is_whole"), others["location"].to_pylist())
            whole = pa.concat_tables([whole, found.filter(found["is_whole"]).select(names)])
        on.register("whole", whole)
        on.register("wanted", pa.table({"version": pa.array(chain.versions, pa.int64())}))
        on.execute(REPLAY)
        counts = tuple(VersionCount(*row) for row in on.sql(COUNTS).fetchall())
        return Replayed(counts, on.sql("FROM missing ORDER BY location, since").to_arrow_table())


@dataclass
class DeltaAssessment:
    """The versions at which the copy of a table can be opened, and what is missing."""

    wanted: int | None = None
    complete: list[VersionCount] = field(default_factory=list)  # Before as_of, newest first
    needs: list[Need] = field(default_factory=list)  # Of `wanted`: files that are not whole
    reasons: list[str] = field(default_factory=list)
    committed_at: dict[int, dt.datetime] = field(default_factory=dict)
    log: LogListing = field(default_factory=lambda: LogListing(""))
    # Of versions that can be made, complete or not.
    counts: dict[int, VersionCount] = field(default_factory=dict)
    bases: frozenset[Checkpoint] = frozenset()
    has_hole: bool = False  # The listing lacks files of the log: the source has to be listed
    newest_known: str | None = None  # The newest listed commit: the source must still have it
    has_unpublished: bool = False  # A catalog may have commits that are not in the log


def assess(copy: TableCopy, as_of: dt.datetime, database: "duckdb.DuckDBPyConnection") -> DeltaAssessment:
    reader = LogReader(copy)
    found = DeltaAssessment(log=sort_names(reader.whole_names))
    replayed = _replay_chains(copy, reader, found, database)
    found.committed_at = reader.times | found.committed_at
    known = sort_names(reader.names)
    known_versions = {*known.commits, *known.checkpoints, *known.compacted}
    before = {at for at in known_versions if _get_time(reader, known, found, at) < as_of}
    found.wanted = max(before, default=None)
    found.newest_known = format_commit_name(max(known.commits)) if known.commits else None
    staged = max(reader.staged_before(as_of), default=-1)
    if found.wanted is not None and staged > found.wanted:
        found.has_unpublished = True
        found.reasons.append(
            f"A commit of version {staged} is staged and not in the log, which ends at version {found.wanted}: the "
            "catalog that manages the table may count it. Have the catalog's clients publish it, then back up again."
        )
    for chain in replayed:
        found.counts |= {count.version: count for count in chain.versions}
        found.complete += [count for count in chain.versions if not count.lacking and count.version in before]
    found.complete.sort(key=lambda count: count.version, reverse=True)
    if found.wanted is not None:
        _add_needs(copy, reader, found, replayed, found.wanted)
    return found


def find_contradiction(copy: TableCopy, found: DeltaAssessment, count: VersionCount) -> str | None:
    """Why a complete version is not proved: its checksum file or checkpoint differs; None if they agree."""
    if count.absolute:
        return (
            f"its log names {count.absolute} files by absolute locations, so a copy of it reads the originals"
        )
    reader = LogReader(copy)
    name = f"{count.version:020}.crc"
    if name in reader.whole_names and (differs := _explain_crc(reader.read(name), count)):
        return f"{LOG}/{name} says {differs}"
    for checkpoint in list_newest_checkpoints(found.log, count.version):
        if checkpoint in found.bases:
            continue
        try:
            files = sum(events.num_rows for events in read_checkpoint(copy.location, checkpoint, reader.read))
        except BrokenLogFile as error:
            return str(error)
        expected = found.counts.get(checkpoint.version)
        if expected is not None and files != expected.files:
            name = checkpoint.parts[0].location
            return f"{LOG}/{name} has {files} files, the commits make {expected.files}"
    return None


class LogReader:
    def __init__(self, copy: TableCopy) -> None:
        self._copy, self._folder = copy, get_log_folder(copy.table.root)
        log = copy.below(f"{LOG}/", "key", "stored_key", "stored_version_id", "last_modified", "is_whole")
        self._rows = {row["key"].removeprefix(self._folder): row for row in log.to_pylist()}

    @property
    def names(self) -> list[str]:
        return list(self._rows)

    @property
    def whole_names(self) -> list[str]:
        return [name for name, row in self._rows.items() if row["is_whole"]]

    @property
    def times(self) -> dict[int, dt.datetime]:
        return {
            version: self._rows[format_commit_name(version)]["last_modified"]
            for version in sort_names(self._rows).commits
        }

    def staged_before(self, as_of: dt.datetime) -> Iterator[int]:
        """The versions of commits that a catalog's clients staged (PROTOCOL.md, "Catalog-managed tables")."""
        for name, row in self._rows.items():
            folder, _, file = name.rpartition("/")
            staged = STAGED_COMMIT.fullmatch(file) if folder in STAGED_FOLDERS else None
            if staged and row["last_modified"] < as_of:
                yield int(staged[1])

    def modified(self, name: str) -> dt.datetime:
        at: dt.datetime = self._rows[name]["last_modified"]
        return at

    def location(self, name: str) -> str:
        return f"{self._copy.location}/{LOG}/{name}"

    def read(self, name: str) -> bytes:
        """The content of a file; raises BrokenLogFile without a copy."""
        row = self._rows.get(name)
        if row is None or not row["is_whole"]:
            raise BrokenLogFile(name, "it is not in the copy")
        try:
            return self._copy.store.read(row["stored_key"], row["stored_version_id"])
        except ObjectMissing as error:
            raise BrokenLogFile(name, "it is not in the copy any more") from error


def _replay_chains(
    copy: TableCopy, reader: LogReader, found: DeltaAssessment, database: "duckdb.DuckDBPyConnection"
) -> list[Replayed]:
    """Replay all chains; a broken file is left out, and the chains are made again."""
    without: frozenset[Checkpoint] = frozenset()
    done: dict[Chain, Replayed] = {}
    while True:
        chains, times_ms = list_chains(found.log, without), dict[int, int]()
        try:
            for chain in chains:
                if chain not in done:
                    done[chain] = replay(copy, chain, reader.read, times_ms, database)
                    for at, ms in times_ms.items():
                        found.committed_at[at] = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
            found.bases = frozenset(chain.base for chain in chains if chain.base is not None)
            return [done[chain] for chain in chains]
        except BrokenLogFile as error:
            without |= _leave_out(found, chain, error)
            found.reasons.append(f"{error}.")
            found.needs.append(Need(reader.location(error.name)))


def _leave_out(found: DeltaAssessment, chain: Chain, error: BrokenLogFile) -> frozenset[Checkpoint]:
    """Remove a broken file from the log; returns the checkpoint that cannot be used, if it is one."""
    for step in chain.steps:
        if step.name == error.name:
            if step.name == format_commit_name(step.last):
                del found.log.commits[step.last]
            else:
                others = [entry for entry in found.log.compacted[step.last] if entry[0] != step.first]
                found.log.compacted[step.last] = others
            return frozenset()
    if chain.base is None:
        raise error
    return frozenset({chain.base})


def _add_needs(
    copy: TableCopy, reader: LogReader, found: DeltaAssessment, replayed: list[Replayed], wanted: int
) -> None:
    for chain in replayed:
        if chain.at(wanted) is not None:
            columns = (chain.missing[name].to_pylist() for name in ("location", "size_bytes"))
            sizes = dict(zip(*columns, strict=True))
            found.needs += [Need(location, sizes[location]) for location in chain.missing_at(wanted)]
            break
    else:
        found.has_hole = True
        ends = (chain.versions[-1].version for chain in replayed)
        first = max(max((end for end in ends if end < wanted), default=-1) + 1, wanted - LONGEST_HOLE)
        hole = [at for at in range(first, wanted + 1) if at not in found.log.commits]
        found.needs += [Need(reader.location(format_commit_name(at))) for at in hole]
    for checkpoint in list_newest_checkpoints(found.log, wanted):
        if checkpoint in found.bases:
            continue  # It was read, with its sidecars.
        try:
            sidecars = list_sidecars(checkpoint, reader.read)
        except BrokenLogFile as error:
            found.needs.append(Need(reader.location(error.name)))
            continue
        whole = set(reader.whole_names)
        found.needs += [Need(reader.location(name)) for name in sidecars if name not in whole]


def _get_time(reader: LogReader, known: LogListing, found: DeltaAssessment, version: int) -> dt.datetime:
    """When a version was committed, or when the checkpoint or compaction that alone shows it was written."""
    if version in found.committed_at:
        return found.committed_at[version]
    names = [name for checkpoint in known.checkpoints.get(version, ()) for name in list_names(checkpoint)]
    names += [file.location for _, file in known.compacted.get(version, ())]
    return max(reader.modified(name) for name in names)


def _explain_crc(content: bytes, count: VersionCount) -> str | None:
    """How a version's checksum file differs from the commits (PROTOCOL.md, "Version Checksum File")."""
    try:
        checksums = orjson.loads(content)
        files, size_bytes = checksums["numFiles"], checksums["tableSizeBytes"]
    except NOT_WHOLE:
        return "nothing that can be read"
    if (files, size_bytes) == (count.files, count.size_bytes):
        return None
    return f"{files} files of {size_bytes} bytes, the commits make {count.files} of {count.size_bytes}"


def cut_log(copy: TableCopy, assessed: DeltaAssessment, version: int) -> list[str]:
    """Remove the log's files after a version, and unneeded sidecars, from the copy; returns their stored keys."""
    reader = LogReader(copy)
    folder = get_log_folder(copy.table.stored_root)
    listed = list_log_names(copy.store, copy.table.stored_root)
    later = [name for name in listed if (of := parse_version(name)) is not None and of > version]
    unneeded = {name for name in listed if name.startswith(SIDECARS)}
    checkpoints = (found for at, found in assessed.log.checkpoints.items() if at <= version)
    for checkpoint in itertools.chain.from_iterable(checkpoints) if unneeded else ():
        # Readers cannot use a damaged checkpoint, so its sidecars are not needed.
        with suppress(BrokenLogFile):
            unneeded.difference_update(list_sidecars(checkpoint, reader.read))
    later += sorted(unneeded)
    for name in later:
        copy.store.delete(folder + name)
    write_pointer(copy.store, copy.table.stored_root, version)
    return [folder + name for name in later]


def get_log_folder(root: str) -> str:
    return f"{root}/{LOG}/".lstrip("/")


def list_log_names(store: BackupStore, root: str) -> list[str]:
    """The names of all files below the log of a table."""
    folder = get_log_folder(root)
    return [listed.key.removeprefix(folder) for listed in store.list(folder)]


def write_pointer(store: BackupStore, root: str, version: int) -> None:
    """Write `_last_checkpoint` (PROTOCOL.md, "Last Checkpoint File") unless it names a checkpoint that exists.

    It names the newest classic checkpoint up to a version; without one, a pointer would make the table unreadable.
    """
    names, folder = list_log_names(store, root), get_log_folder(root)
    forms = itertools.chain.from_iterable(sort_names(names).checkpoints.values())
    classic = {form.version: list_names(form) for form in forms if is_classic(form)}
    if POINTER in names:
        with suppress(ValueError, KeyError, TypeError):
            if orjson.loads(store.read(folder + POINTER))["version"] in classic:
                return
    newest = max((at for at in classic if at <= version), default=None)
    if newest is None:
        store.delete(folder + POINTER)
        return
    size = 0
    for name in classic[newest]:
        with store.open(folder + name) as file:
            size += pq.read_metadata(file).num_rows
    parts = {"parts": len(classic[newest])} if len(classic[newest]) > 1 else {}
    store.put(folder + POINTER, json.dumps({"version": newest, "size": size, **parts}).encode())


def count_rows(address: StoreAddress, root: str, version: int, files: int) -> tuple[int | None, str]:
    """Rows of the table at a version, and the name of the reader; None for a table with too many files to read."""
    from deltalake import DeltaTable, QueryBuilder

    location = address.location(root)
    reader = f"deltalake {package_version('deltalake')}"
    try:
        table = DeltaTable(location, version=version, storage_options=make_storage_options(address) or None)
        if files > READ_WHOLE_FILES:
            return None, f"{reader}, the log only"
        # The log alone would answer a plain count.
        partitions = set(table.metadata().partition_columns)
        names = [field.name for field in table.schema().fields]
        name = next((name for name in names if name not in partitions), names[0])
        column = '"' + name.replace('"', '""') + '"'
        query = f"SELECT count(*) AS rows FROM copy WHERE {column} IS NULL OR {column} IS NOT NULL"  # noqa: S608 (quoted)
        counted = QueryBuilder().register("copy", table).execute(query)
        return int(counted.read_all().column(0)[0].as_py()), reader
    # deltalake has no common class for errors of stores and DataFusion.
    except Exception as error:
        reason = f"deltalake cannot open it: {get_first_line(error)}"
        raise BackupError(f"{location} at version {version}", reason, "") from error


@dataclass(frozen=True)
class DeltaTable:
    copy: TableCopy
    found: DeltaAssessment
    backup: Backup
    as_of: dt.datetime
    spark: OpenSpark | None
    removed: list[str] = field(default_factory=list)  # Stored keys of later versions

    def list_unlisted(self, source: BackupStore) -> list[Need]:
        """Files of the log that were not listed: in a hole, or after the newest listed commit."""
        copy, assessed = self.copy, self.found
        folder = get_log_folder(copy.table.root)
        is_longer = False
        if assessed.wanted is not None and not assessed.has_hole:
            head = source.head(f"{folder}{format_commit_name(assessed.wanted + 1)}")
            is_longer = head is not None and head.last_modified < self.as_of
        if not (assessed.has_hole or is_longer) or not _is_same_log(copy, folder, assessed, source):
            return []
        known = set(copy.below(f"{LOG}/", "key")["key"].to_pylist())
        return [
            Need(copy.locate(file.key), file.size_bytes, file.etag)
            for file in source.list(folder)
            if file.key not in known
            and file.last_modified < self.as_of
            and (parse_version(file.key.removeprefix(folder)) is not None or "/_sidecars/" in file.key)
        ]

    def proof(self) -> TableProof:
        copy, assessed = self.copy, self.found
        reasons = list(assessed.reasons)
        for count in assessed.complete[:MAX_TRIED]:
            try:
                return self._open(count, reasons)
            except BackupError as error:
                reasons.append(f"{error.subject}: {error.reason}.")
        missing = copy.relative_locations(assessed.needs)
        reasons += explain_outside_needs(copy, self.found.needs, self.backup)
        status: Status = "degraded" if assessed.wanted is not None else "failed"
        reasons.append(
            f"{len(missing)} files are missing at version {assessed.wanted} and no older version is complete: "
            "look for them in older points, or restore the table from an older point."
            if missing
            else "No version of it can be opened: look at its log at the source."
        )
        return copy.make_proof(status, assessed.wanted, missing, reasons)

    def _open(self, count: VersionCount, reasons: list[str]) -> TableProof:
        copy, assessed = self.copy, self.found
        version, where = count.version, f"version {count.version}"
        if contradiction := find_contradiction(copy, assessed, count):
            raise BackupError(where, contradiction, "")
        if self.backup.layout == "dated":
            self.removed.extend(cut_log(copy, assessed, version))
        rows, reader = self._count_rows(count)
        level, compared_at, limits = copy.prove_level(
            self.backup.scrub.within_days, was_read=rows is not None
        )
        if None not in (rows, count.rows) and rows != count.rows:
            raise BackupError(where, f"{reader} reads {rows} rows, the log says {count.rows}", "")
        is_wanted = version == assessed.wanted
        missing = [] if is_wanted else copy.relative_locations(assessed.needs)
        if not is_wanted:
            problem = f"{len(missing)} of its files were not found" if missing else "no copy of it opens"
            reasons.append(
                f"Version {assessed.wanted} is the newest before {self.as_of:%Y-%m-%d %H:%M} UTC, but {problem}; "
                f"version {version} is whole."
            )
            reasons += explain_outside_needs(copy, self.found.needs, self.backup)
        status, newest = self._get_status(version), self._get_wanted_count()
        rows = count.rows if rows is None else rows
        shrunk = explain_too_small(rows, None if newest is None else newest.rows)
        if not is_wanted and shrunk is not None:
            status = "degraded"
            reasons.append(shrunk)
        return copy.make_proof(
            status,
            assessed.wanted,
            missing,
            [*reasons, *limits],
            version=version,
            oldest_version=min(complete.version for complete in assessed.complete),
            committed_at=assessed.committed_at.get(version),
            files=count.files,
            size_bytes=count.size_bytes,
            rows=rows,
            level=level,
            compared_at=compared_at,
            opened_by=reader,
            mount=copy.store.address.location(copy.table.stored_root),
        )

    def _get_wanted_count(self) -> VersionCount | None:
        return None if self.found.wanted is None else self.found.counts.get(self.found.wanted)

    def _get_status(self, version: int) -> Status:
        if self.found.has_unpublished:
            return "degraded"
        wanted = self._get_wanted_count()
        if version == self.found.wanted:
            return "verified"
        # Files outside of the source will be missing the next day as well: an older version is no fallback.
        lasts = explain_outside_needs(self.copy, self.found.needs, self.backup) or (
            wanted is not None and wanted.absolute
        )
        return "degraded" if lasts else "verified_with_fallback"

    def _count_rows(self, count: VersionCount) -> tuple[int | None, str]:
        address, root = self.copy.store.address, self.copy.table.stored_root
        read = partial(count_rows, address, root, count.version, count.files)
        return count_rows_or_use_spark(read, self.spark, "delta", address.location(root), count.version)


def _is_same_log(copy: TableCopy, folder: str, assessed: DeltaAssessment, source: BackupStore) -> bool:
    """Whether the source still has the listed log: a table that was made anew must not be mixed with it."""
    if assessed.newest_known is None:
        return True
    key = f"{folder}{assessed.newest_known}"
    listed = copy.select("etag", condition="key = $key", key=key)["etag"].to_pylist()
    head = source.head(key)
    return head is not None and [head.etag] == listed
