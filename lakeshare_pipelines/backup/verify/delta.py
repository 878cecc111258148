"""Delta tables in a copy: which versions are complete, at which one it opens (Delta's PROTOCOL.md)."""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import Status, TableProof
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress
from lakeshare_pipelines.backup.stores.store import make_storage_options
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
    Need,
    TableCopy,
    count_rows_by_spark,
    explain_outside_needs,
    explain_too_small,
    is_unsupported,
)
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.tables.delta.log import LOG, STAGED_COMMIT, STAGED_FOLDERS

if TYPE_CHECKING:
    from deltalake import DeltaTable as OpenedTable
    from pyspark.sql import SparkSession

LONGEST_HOLE = 10_000
Replay = Callable[[TableCopy, Chain, Read], tuple[Replayed, dict[int, int]]]
"""One way to replay a chain: what it makes, and the times that its commits have in themselves, in milliseconds."""


@dataclass
class DeltaAssessment:
    """What the copy of a table can be opened at, and what would make it better."""

    wanted: int | None = None
    """The newest version before as_of that anybody told of."""
    complete: list[VersionCount] = dataclass_field(default_factory=list)
    """The versions before as_of that lack nothing, newest first."""
    needs: list[Need] = dataclass_field(default_factory=list)
    """What `wanted` needs and is not whole."""
    reasons: list[str] = dataclass_field(default_factory=list)
    committed_at: dict[int, dt.datetime] = dataclass_field(default_factory=dict)
    log: LogFiles = dataclass_field(default_factory=LogFiles)
    counts: dict[int, VersionCount] = dataclass_field(default_factory=dict)
    """What every version that can be made has, complete or not."""
    bases: frozenset[Checkpoint] = frozenset()
    """The checkpoints that were read already."""
    has_hole: bool = False
    """Its log cannot be told from the listing: the source has to be asked for it."""
    newest_known: str | None = None
    """The name of the newest commit that the listing has: who heals asks whether it is still the same."""
    has_unpublished: bool = False
    """A catalog may count commits that are not in the log: no version of the copy is sure to be the newest."""


def replay_locally(copy: TableCopy, chain: Chain, read: Read) -> tuple[Replayed, dict[int, int]]:
    """Replay in this process."""
    events = read_chain(copy.location, chain, read)
    named = pa.chunked_array([*events.events["location"].chunks, *events.events["dv_location"].chunks])
    there = copy.there(named.combine_chunks())
    return replay(events.events, chain.versions, there), events.times_ms


def make_spark_replay(spark: "SparkSession") -> Replay:
    """Replay in Spark."""

    def replay_chain(copy: TableCopy, chain: Chain, read: Read) -> tuple[Replayed, dict[int, int]]:
        log = copy.below(f"{LOG}/")
        log = log.filter(log["is_whole"])
        names = pc.utf8_slice_codeunits(log["key"], len(f"{copy.table.root}/{LOG}/".lstrip("/")))
        stored = log.select(["stored_key", "stored_version_id"]).append_column("name", names)
        return replay_by_spark(spark, copy.store.address, copy.location, chain, stored, copy.there, read)

    return replay_chain


def compute_log_bytes(copy: TableCopy) -> int:
    """How large a copied log is."""
    log = copy.below(f"{LOG}/")
    return int(pc.sum(log["size_bytes"], min_count=0).as_py())


def assess(copy: TableCopy, as_of: dt.datetime, replay_chain: Replay = replay_locally) -> DeltaAssessment:
    """What the copy of a Delta table can be opened at."""
    reader = LogReader(copy)
    found = DeltaAssessment(log=sort_log_files(reader.whole_names))
    replayed = _replay_chains(copy, reader, found, replay_chain)
    found.committed_at = reader.times | found.committed_at
    known = sort_log_files(reader.names)
    known_versions = {*known.commits, *known.checkpoints, *(last for _, last in known.compacted)}
    before = {at for at in known_versions if _time(reader, known, found, at) < as_of}
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
        found.counts |= {one.version: one for one in chain.versions}
        found.complete += [one for one in chain.versions if not one.lacking and one.version in before]
    found.complete.sort(key=lambda one: one.version, reverse=True)
    if found.wanted is not None:
        _add_needs(copy, reader, found, replayed, found.wanted)
    return found


def find_contradiction(copy: TableCopy, found: DeltaAssessment, count: VersionCount) -> str | None:
    """Why a complete version proves nothing: its checksum file or checkpoint says otherwise; None when they agree."""
    if count.absolute:
        return f"its log names {count.absolute} files by their whole place, so that a copy of it reads the originals"
    reader = LogReader(copy)
    name = f"{count.version:020}.crc"
    if count.version in found.log.crcs and (differs := _differs_from_crc(reader.read(name), count)):
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
    """The files of a copied log, by their names below `_delta_log/`."""

    def __init__(self, copy: TableCopy) -> None:
        self._copy, self._folder = copy, f"{copy.table.root}/{LOG}/".lstrip("/")
        log = copy.below(f"{LOG}/").select(
            ["key", "stored_key", "stored_version_id", "last_modified", "is_whole"]
        )
        self._rows = {row["key"].removeprefix(self._folder): row for row in log.to_pylist()}

    @property
    def names(self) -> list[str]:
        """All files that were listed."""
        return list(self._rows)

    @property
    def whole_names(self) -> list[str]:
        """Those whose copies are whole."""
        return [name for name, row in self._rows.items() if row["is_whole"]]

    @property
    def times(self) -> dict[int, dt.datetime]:
        """When commits were written, as the source's store says."""
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
        """When a file was written, as the source's store says."""
        at: dt.datetime = self._rows[name]["last_modified"]
        return at

    def location(self, name: str) -> str:
        """Where a file of the log is at its source."""
        return f"{self._copy.location}/{LOG}/{name}"

    def read(self, name: str) -> bytes:
        """A file's copy.

        Raises:
            BrokenLogFile: there is none.
        """
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
    """All chains, replayed; a file that turns out to be broken is left out, and the chains are made again."""
    without: frozenset[Checkpoint] = frozenset()
    done: dict[Chain, Replayed] = {}
    while True:
        chains = found.log.chains(without)
        try:
            for chain in chains:
                if chain not in done:
                    done[chain], times = replay_chain(copy, chain, reader.read)
                    found.committed_at |= {
                        at: dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for at, ms in times.items()
                    }
            found.bases = frozenset(chain.base for chain in chains if chain.base is not None)
            return [done[chain] for chain in chains]
        except BrokenLogFile as error:
            without |= _leave_out(found, chain, error)
            found.reasons.append(f"{error}.")
            found.needs.append(Need(reader.location(error.name)))


def _leave_out(found: DeltaAssessment, chain: Chain, error: BrokenLogFile) -> frozenset[Checkpoint]:
    """Take a broken file out of the log; the checkpoint that cannot be used, where it is one."""
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
            sizes = dict(
                zip(
                    chain.missing["location"].to_pylist(),
                    chain.missing["size_bytes"].to_pylist(),
                    strict=True,
                )
            )
            found.needs += [Need(location, sizes[location]) for location in chain.missing_at(wanted)]
            break
    else:
        found.has_hole = True
        last = max(
            (chain.versions[-1].version for chain in replayed if chain.versions[-1].version < wanted),
            default=-1,
        )
        hole = [
            at
            for at in range(max(last + 1, wanted - LONGEST_HOLE), wanted + 1)
            if at not in found.log.commits
        ]
        found.needs += [Need(reader.location(format_commit_name(at))) for at in hole]
    for checkpoint in found.log.newest_checkpoints(wanted):
        try:
            sidecars = list_sidecars(checkpoint, reader.read)
        except BrokenLogFile as error:
            found.needs.append(Need(reader.location(error.name)))
            continue
        whole = set(reader.whole_names)
        found.needs += [Need(reader.location(name)) for name in sidecars if name not in whole]


def _time(reader: LogReader, known: LogFiles, found: DeltaAssessment, version: int) -> dt.datetime:
    """When a version was committed; of one that only a checkpoint or a compaction tells, when that was written."""
    if version in found.committed_at:
        return found.committed_at[version]
    names = [name for one in known.checkpoints.get(version, ()) for name in one.names]
    names += [format_compaction_name(*one) for one in known.compacted if one[1] == version]
    return max(reader.modified(name) for name in names)


def _differs_from_crc(content: bytes, count: VersionCount) -> str | None:
    """What a version's checksum file says otherwise (PROTOCOL.md, "Version Checksum File")."""
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
    """Remove commits, compactions, checkpoints with their sidecars and checksum files after a version from the copy.

    Returns their stored keys.
    """
    reader = LogReader(copy)
    folder = f"{copy.table.stored_root}/{LOG}/"
    listed = [one.key.removeprefix(folder) for one in copy.store.list(folder)]
    later = [name for name in listed if (of := parse_version(name)) is not None and of > version]
    needed = _sidecars(assessed, reader, version)
    later += [name for name in listed if name.startswith(SIDECARS) and name not in needed]
    for name in later:
        copy.store.delete(folder + name)
    pointer = _pointer(assessed, version)
    if pointer is None:
        copy.store.delete(folder + POINTER)
    else:
        copy.store.put(folder + POINTER, orjson.dumps(pointer))
    return [folder + name for name in later]


def _sidecars(assessed: DeltaAssessment, reader: LogReader, version: int) -> set[str]:
    needed: set[str] = set()
    for at, checkpoints in assessed.log.checkpoints.items():
        for checkpoint in checkpoints if at <= version else ():
            try:
                needed.update(list_sidecars(checkpoint, reader.read))
            except BrokenLogFile:
                # A reader cannot use it either, so that it needs no sidecars.
                continue
    return needed


def _pointer(assessed: DeltaAssessment, version: int) -> dict[str, int] | None:
    """What `_last_checkpoint` says (PROTOCOL.md, "Last Checkpoint File"): the newest classic checkpoint there is."""
    for at in sorted((at for at in assessed.log.checkpoints if at <= version), reverse=True):
        count = assessed.counts.get(at)
        for checkpoint in assessed.log.checkpoints[at]:
            if not checkpoint.has_sidecars and count is not None:
                parts = {"parts": len(checkpoint.names)} if len(checkpoint.names) > 1 else {}
                # Its actions are the files, the protocol and the metadata; it is a hint.
                return {"version": at, "size": count.files + 2, **parts}
    return None


READ_WHOLE_FILES = 20_000
"""Tables of more files are opened, but their data files are not: those of new ones were compared one by one."""


def count_rows(address: StoreAddress, root: str, version: int, files: int) -> tuple[int | None, str]:
    """How many rows the table has at a version, and who says so; None where it has too many files to read each.

    `root` is the key of the table's copy, `files` how many it has.

    Raises:
        BackupError: it does not open at that version, or a file of it cannot be read.
    """
    from deltalake import DeltaTable

    location = address.location(root)
    reader = f"deltalake {package_version('deltalake')}"
    try:
        table = DeltaTable(location, version=version, storage_options=make_storage_options(address) or None)
        if files > READ_WHOLE_FILES:
            return None, f"{reader}, the log only"
        return _read_all_rows(table), reader
    # What object stores and DataFusion raise through deltalake has no class of its own.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            f"{location} at version {version}", f"deltalake cannot open it: {reason}", ""
        ) from error


def _read_all_rows(table: "OpenedTable") -> int:
    """All rows; a column is looked at, because the log alone would answer a mere count."""
    from deltalake import QueryBuilder

    partitions = set(table.metadata().partition_columns)
    names = [field.name for field in table.schema().fields]
    name = next((one for one in names if one not in partitions), names[0])
    column = '"' + name.replace('"', '""') + '"'
    query = f"SELECT count(*) AS rows FROM copy WHERE {column} IS NULL OR {column} IS NOT NULL"  # noqa: S608 (quoted)
    counted = QueryBuilder().register("copy", table).execute(query)
    return int(counted.read_all().column(0)[0].as_py())


LARGE_LOG_BYTES = 1 << 30
"""Of some three million adds; columns of them take twice that in memory."""
MAX_TRIED = 5
"""So many versions are opened, newest first, before a table is given up."""
SHOWN = 100


def assess_delta_table(
    copy: TableCopy, as_of: dt.datetime, backup: Backup, spark: "Callable[[], SparkSession] | None"
) -> "DeltaTable":
    """Replay the copy of a table's log, here or, when it is large, in Spark."""
    is_large = spark is not None and compute_log_bytes(copy) > LARGE_LOG_BYTES
    replay_chain = make_spark_replay(spark()) if is_large and spark is not None else replay_locally
    return DeltaTable(copy, assess(copy, as_of, replay_chain), backup, as_of, spark)


@dataclass(frozen=True)
class DeltaTable:
    """A Delta table of a backup (verify/table_copy.py, AssessedTable)."""

    copy: TableCopy
    found: DeltaAssessment
    backup: Backup
    as_of: dt.datetime
    spark: "Callable[[], SparkSession] | None"
    removed: list[str] = dataclass_field(default_factory=list)

    @property
    def needs(self) -> list[Need]:
        return self.found.needs

    def unlisted(self, source: BackupStore) -> list[Need]:
        """Files of the log that lists and reports did not tell of: in a hole, or behind the newest listed commit."""
        copy, assessed = self.copy, self.found
        folder = f"{copy.table.root}/{LOG}/".lstrip("/")
        if not assessed.has_hole and not self._went_on(folder, source):
            return []
        if not _is_same_log(copy, folder, assessed, source):
            return []
        known = set(copy.objects["key"].to_pylist())
        return [
            Need(copy.source.at(copy.table.bucket).location(one.key), one.size_bytes, one.etag)
            for one in source.list(folder)
            if one.key not in known
            and one.last_modified < self.as_of
            and (parse_version(one.key.removeprefix(folder)) is not None or "/_sidecars/" in one.key)
        ]

    def proof(self) -> TableProof:
        copy, assessed = self.copy, self.found
        reasons = list(assessed.reasons)
        for count in assessed.complete[:MAX_TRIED]:
            try:
                return self._opened(count, reasons)
            except BackupError as error:
                reasons.append(f"{error.subject}: {error.reason}.")
        missing = _list_missing(copy, assessed)
        reasons += explain_outside_needs(copy, self.needs, self.backup)
        status: Status = "degraded" if assessed.wanted is not None else "failed"
        reasons.append(
            f"{len(missing)} files are missing at version {assessed.wanted} and no older version is complete: "
            "look for them in older points, or restore the table from one."
            if missing
            else "No version of it can be opened: look at its log at the source."
        )
        return TableProof(
            table=copy.table,
            status=status,
            wanted_version=assessed.wanted,
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=_list_healed(copy),
            reasons=tuple(reasons),
        )

    def _opened(self, count: VersionCount, reasons: list[str]) -> TableProof:
        copy, assessed = self.copy, self.found
        version, where = count.version, f"version {count.version}"
        if contradiction := find_contradiction(copy, assessed, count):
            raise BackupError(where, contradiction, "")
        if self.backup.layout == "dated":
            self.removed.extend(cut_log(copy, assessed, version))
        rows, reader = self._rows(count)
        proved = copy.proved(self.backup.scrub.within_days, was_read=rows is not None)
        if None not in (rows, count.rows) and rows != count.rows:
            raise BackupError(where, f"{reader} reads {rows} rows, the log says {count.rows}", "")
        is_wanted = version == assessed.wanted
        missing = [] if is_wanted else _list_missing(copy, assessed)
        if not is_wanted:
            reasons.append(
                f"Version {assessed.wanted} is the newest before {self.as_of:%Y-%m-%d %H:%M} UTC, but {len(missing)} "
                f"of its files are nowhere; version {version} is whole."
            )
            reasons += explain_outside_needs(copy, self.needs, self.backup)
        status, newest = (
            self._status(version),
            assessed.counts.get(-1 if assessed.wanted is None else assessed.wanted),
        )
        shrunk = explain_too_small(
            count.rows if rows is None else rows, None if newest is None else newest.rows
        )
        if not is_wanted and shrunk is not None:
            status = "degraded"
            reasons.append(shrunk)
        return TableProof(
            table=copy.table,
            status=status,
            version=version,
            wanted_version=assessed.wanted,
            oldest_version=min(one.version for one in assessed.complete),
            committed_at=assessed.committed_at.get(version),
            files=count.files,
            size_bytes=count.size_bytes,
            rows=count.rows if rows is None else rows,
            level=proved.level,
            compared_at=proved.compared_at,
            opened_by=reader,
            mount=copy.store.address.location(copy.table.stored_root),
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=_list_healed(copy),
            reasons=(*reasons, *proved.reasons),
        )

    def _status(self, version: int) -> Status:
        if self.found.has_unpublished:
            return "degraded"
        wanted = self.found.counts.get(-1 if self.found.wanted is None else self.found.wanted)
        if version == self.found.wanted:
            return "verified"
        # An older version is no fallback from files that will never be in a copy: the next day lacks them as well.
        lasts = explain_outside_needs(self.copy, self.needs, self.backup) or (
            wanted is not None and wanted.absolute
        )
        return "degraded" if lasts else "verified_with_fallback"

    def _rows(self, count: VersionCount) -> tuple[int | None, str]:
        address, root = self.copy.store.address, self.copy.table.stored_root
        try:
            return count_rows(address, root, count.version, count.files)
        except BackupError as error:
            if self.spark is None or not is_unsupported(error):
                raise
            return count_rows_by_spark(self.spark, "delta", address.location(root), count.version)

    def _went_on(self, folder: str, source: BackupStore) -> bool:
        if self.found.wanted is None:
            return False
        head = source.head(f"{folder}{format_commit_name(self.found.wanted + 1)}")
        return head is not None and head.last_modified < self.as_of


def _is_same_log(copy: TableCopy, folder: str, assessed: DeltaAssessment, source: BackupStore) -> bool:
    """Whether the source still has the log that was listed: a table that was made anew must not be mixed with it."""
    if assessed.newest_known is None:
        return True
    key = f"{folder}{assessed.newest_known}"
    listed = copy.objects["etag"].filter(pc.equal(copy.objects["key"], key)).to_pylist()
    head = source.head(key)
    return head is not None and [head.etag] == listed


def _list_missing(copy: TableCopy, assessed: DeltaAssessment) -> list[str]:
    """Keys, or locations outside of the source, that the wanted version needs."""
    inside = copy.source.at(copy.table.bucket).location("")
    return [need.location.removeprefix(inside) for need in assessed.needs]


def _list_healed(copy: TableCopy) -> tuple[str, ...]:
    healed = copy.objects.filter(copy.objects["is_healed"])
    return tuple(healed["key"].slice(0, SHOWN).to_pylist())
