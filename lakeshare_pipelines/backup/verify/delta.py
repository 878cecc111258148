"""Delta tables in a copy: complete versions, and the version at which the table opens (Delta's PROTOCOL.md)."""

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import OpenSpark, Status, TableProof
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, make_storage_options
from lakeshare_pipelines.backup.verify.delta_replay import (
    NOT_WHOLE,
    SIDECARS,
    BrokenLogFile,
    Chain,
    Checkpoint,
    LogFiles,
    Read,
    Replayed,
    VersionCount,
    format_commit_name,
    format_compaction_name,
    list_sidecars,
    parse_version,
    read_chain,
    read_checkpoint,
    replay,
    replay_by_spark,
    sort_log_files,
)
from lakeshare_pipelines.backup.verify.objects import (
    MAX_TRIED,
    READ_WHOLE_FILES,
    Need,
    TableCopy,
    count_rows_or_use_spark,
    explain_outside_needs,
    explain_too_small,
)
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.tables.delta.log import LOG, STAGED_COMMIT, STAGED_FOLDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_HOLE = 10_000
Replay = Callable[[TableCopy, Chain, Read], tuple[Replayed, dict[int, int]]]
"""Replays a chain; returns the versions, and the times that commits state, in milliseconds."""


@dataclass
class DeltaAssessment:
    """The versions at which the copy of a table can be opened, and what is missing."""

    wanted: int | None = None
    complete: list[VersionCount] = field(default_factory=list)  # Before as_of, newest first
    needs: list[Need] = field(default_factory=list)  # Of `wanted`: files that are not whole
    reasons: list[str] = field(default_factory=list)
    committed_at: dict[int, dt.datetime] = field(default_factory=dict)
    log: LogFiles = field(default_factory=LogFiles)
    counts: dict[int, VersionCount] = field(
        default_factory=dict
    )  # Of versions that can be made, complete or not
    bases: frozenset[Checkpoint] = frozenset()
    has_hole: bool = False  # The listing lacks files of the log: the source has to be listed
    newest_known: str | None = None  # The newest listed commit: the source must still have it
    has_unpublished: bool = False  # A catalog may have commits that are not in the log


def replay_locally(copy: TableCopy, chain: Chain, read: Read) -> tuple[Replayed, dict[int, int]]:
    events = read_chain(copy.location, chain, read)
    named = pa.chunked_array([*events.events["location"].chunks, *events.events["dv_location"].chunks])
    there = copy.there(named.combine_chunks())
    return replay(events.events, chain.versions, there), events.times_ms


def make_spark_replay(spark: "SparkSession") -> Replay:
    def replay_chain(copy: TableCopy, chain: Chain, read: Read) -> tuple[Replayed, dict[int, int]]:
        log = copy.below(f"{LOG}/")
        log = log.filter(log["is_whole"])
        names = pc.utf8_slice_codeunits(log["key"], len(f"{copy.table.root}/{LOG}/".lstrip("/")))
        stored = log.select(["stored_key", "stored_version_id"]).append_column("name", names)
        return replay_by_spark(spark, copy.store.address, copy.location, chain, stored, copy.there, read)

    return replay_chain


def assess(copy: TableCopy, as_of: dt.datetime, replay_chain: Replay = replay_locally) -> DeltaAssessment:
    reader = LogReader(copy)
    found = DeltaAssessment(log=sort_log_files(reader.whole_names))
    replayed = _replay_chains(copy, reader, found, replay_chain)
    found.committed_at = reader.times | found.committed_at
    known = sort_log_files(reader.names)
    known_versions = {*known.commits, *known.checkpoints, *(last for _, last in known.compacted)}
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
    if count.version in found.log.crcs and (differs := _explain_crc(reader.read(name), count)):
        return f"{LOG}/{name} says {differs}"
    for checkpoint in found.log.newest_checkpoints(count.version):
        if checkpoint in found.bases:
            continue
        try:
            events = read_checkpoint(copy.location, checkpoint, reader.read)
        except BrokenLogFile as error:
            return str(error)
        expected = found.counts.get(checkpoint.version)
        if expected is not None and events.num_rows != expected.files:
            return (
                f"{LOG}/{checkpoint.names[0]} has {events.num_rows} files, the commits make {expected.files}"
            )
    return None


class LogReader:
    def __init__(self, copy: TableCopy) -> None:
        self._copy, self._folder = copy, f"{copy.table.root}/{LOG}/".lstrip("/")
        log = copy.below(f"{LOG}/").select(
            ["key", "stored_key", "stored_version_id", "last_modified", "is_whole"]
        )
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
            for version in sort_log_files(self._rows).commits
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
    copy: TableCopy, reader: LogReader, found: DeltaAssessment, replay_chain: Replay
) -> list[Replayed]:
    """Replay all chains; a broken file is left out, and the chains are made again."""
    without: frozenset[Checkpoint] = frozenset()
    done: dict[Chain, Replayed] = {}
    while True:
        chains = found.log.chains(without)
        try:
            for chain in chains:
                if chain not in done:
                    done[chain], times = replay_chain(copy, chain, reader.read)
                    for at, ms in times.items():
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
                found.log.commits.discard(step.last)
            else:
                found.log.compacted.discard((step.first, step.last))
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
    for checkpoint in found.log.newest_checkpoints(wanted):
        try:
            sidecars = list_sidecars(checkpoint, reader.read)
        except BrokenLogFile as error:
            found.needs.append(Need(reader.location(error.name)))
            continue
        whole = set(reader.whole_names)
        found.needs += [Need(reader.location(name)) for name in sidecars if name not in whole]


def _get_time(reader: LogReader, known: LogFiles, found: DeltaAssessment, version: int) -> dt.datetime:
    """When a version was committed, or when the checkpoint or compaction that alone shows it was written."""
    if version in found.committed_at:
        return found.committed_at[version]
    names = [name for checkpoint in known.checkpoints.get(version, ()) for name in checkpoint.names]
    names += [format_compaction_name(*versions) for versions in known.compacted if versions[1] == version]
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


POINTER = "_last_checkpoint"


def cut_log(copy: TableCopy, assessed: DeltaAssessment, version: int) -> list[str]:
    """Remove the log's files after a version, and unneeded sidecars, from the copy; returns their stored keys."""
    reader = LogReader(copy)
    folder = f"{copy.table.stored_root}/{LOG}/"
    listed = [file.key.removeprefix(folder) for file in copy.store.list(folder)]
    later = [name for name in listed if (of := parse_version(name)) is not None and of > version]
    sidecars: set[str] = set()
    checkpoints = (found for at, found in assessed.log.checkpoints.items() if at <= version)
    for checkpoint in itertools.chain.from_iterable(checkpoints):
        # Readers cannot use a damaged checkpoint, so its sidecars are not needed.
        with suppress(BrokenLogFile):
            sidecars.update(list_sidecars(checkpoint, reader.read))
    later += [name for name in listed if name.startswith(SIDECARS) and name not in sidecars]
    for name in later:
        copy.store.delete(folder + name)
    pointer = _make_pointer(assessed, version)
    if pointer is None:
        copy.store.delete(folder + POINTER)
    else:
        copy.store.put(folder + POINTER, orjson.dumps(pointer))
    return [folder + name for name in later]


def _make_pointer(assessed: DeltaAssessment, version: int) -> dict[str, int] | None:
    """`_last_checkpoint` (PROTOCOL.md, "Last Checkpoint File"), which names the newest classic checkpoint."""
    for at in sorted((at for at in assessed.log.checkpoints if at <= version), reverse=True):
        count = assessed.counts.get(at)
        for checkpoint in assessed.log.checkpoints[at]:
            if not checkpoint.has_sidecars and count is not None:
                parts = {"parts": len(checkpoint.names)} if len(checkpoint.names) > 1 else {}
                # Its actions are the files, the protocol and the metadata; the size is a hint.
                return {"version": at, "size": count.files + 2, **parts}
    return None


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
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            f"{location} at version {version}", f"deltalake cannot open it: {reason}", ""
        ) from error


LARGE_LOG_BYTES = 1 << 30  # About three million adds, whose columns take twice that in memory


def assess_delta_table(
    copy: TableCopy, as_of: dt.datetime, backup: Backup, spark: OpenSpark | None
) -> "DeltaTable":
    log_bytes = int(pc.sum(copy.below(f"{LOG}/")["size_bytes"], min_count=0).as_py())
    replay_chain = (
        make_spark_replay(spark()) if spark is not None and log_bytes > LARGE_LOG_BYTES else replay_locally
    )
    return DeltaTable(copy, assess(copy, as_of, replay_chain), backup, as_of, spark)


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
        folder = f"{copy.table.root}/{LOG}/".lstrip("/")
        is_longer = False
        if assessed.wanted is not None and not assessed.has_hole:
            head = source.head(f"{folder}{format_commit_name(assessed.wanted + 1)}")
            is_longer = head is not None and head.last_modified < self.as_of
        if not (assessed.has_hole or is_longer) or not _is_same_log(copy, folder, assessed, source):
            return []
        known = set(copy.objects["key"].to_pylist())
        return [
            Need(copy.source.at(copy.table.bucket).location(file.key), file.size_bytes, file.etag)
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
            reasons.append(
                f"Version {assessed.wanted} is the newest before {self.as_of:%Y-%m-%d %H:%M} UTC, but {len(missing)} "
                f"of its files were not found; version {version} is whole."
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
    listed = copy.objects["etag"].filter(pc.equal(copy.objects["key"], key)).to_pylist()
    head = source.head(key)
    return head is not None and [head.etag] == listed
