"""A copied Delta table: the versions it can be opened at, and what it needs to be opened at a newer one.

v* is the newest complete version committed before as_of, without a hole between its base checkpoint and itself.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.verify.delta.events import (
    NOT_WHOLE,
    BrokenLogFile,
    Read,
    checkpoint_events,
    sidecars_of,
    told_by,
)
from lakeshare_pipelines.backup.verify.delta.log_files import (
    LOG,
    Chain,
    Checkpoint,
    LogFiles,
    commit_name,
    compaction_name,
    log_files,
)
from lakeshare_pipelines.backup.verify.delta.replay import Replayed, VersionCount, replay
from lakeshare_pipelines.backup.verify.delta.spark_replay import spark_replay
from lakeshare_pipelines.backup.verify.table_copy import Need, TableCopy
from lakeshare_pipelines.errors import ObjectMissing
from lakeshare_server.tables.delta.log import STAGED_COMMIT, STAGED_FOLDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_HOLE = 10_000
Replay = Callable[[TableCopy, Chain, Read], tuple[Replayed, dict[int, int]]]
"""One way to replay a chain: what it makes, and the times that its commits have in themselves, in milliseconds."""


@dataclass
class DeltaAssessment:
    """What the copy of a table can be opened at, and what would make it better."""

    wanted: int | None = None
    """The newest version before as_of that anybody told of."""
    complete: list[VersionCount] = field(default_factory=list)
    """The versions before as_of that lack nothing, newest first."""
    needs: list[Need] = field(default_factory=list)
    """What `wanted` needs and is not whole."""
    reasons: list[str] = field(default_factory=list)
    committed_at: dict[int, dt.datetime] = field(default_factory=dict)
    log: LogFiles = field(default_factory=LogFiles)
    counts: dict[int, VersionCount] = field(default_factory=dict)
    """What every version that can be made has, complete or not."""
    bases: frozenset[Checkpoint] = frozenset()
    """The checkpoints that were read already."""
    has_hole: bool = False
    """Its log cannot be told from the listing: the source has to be asked for it."""
    newest_known: str | None = None
    """The name of the newest commit that the listing has: who heals asks whether it is still the same."""
    has_unpublished: bool = False
    """A catalog may count commits that are not in the log: no version of the copy is sure to be the newest."""


def replay_here(copy: TableCopy, chain: Chain, read: Read) -> tuple[Replayed, dict[int, int]]:
    """Replay in this process."""
    told = told_by(copy.location, chain, read)
    named = pa.chunked_array([*told.events["location"].chunks, *told.events["dv_location"].chunks])
    there = copy.there(named.combine_chunks())
    return replay(told.events, chain.versions, there), told.times_ms


def replay_in(spark: "SparkSession") -> Replay:
    """Replay in Spark."""

    def replay_chain(copy: TableCopy, chain: Chain, read: Read) -> tuple[Replayed, dict[int, int]]:
        log = copy.below(f"{LOG}/")
        log = log.filter(log["is_whole"])
        names = pc.utf8_slice_codeunits(log["key"], len(f"{copy.table.root}/{LOG}/".lstrip("/")))
        stored = log.select(["stored_key", "stored_version_id"]).append_column("name", names)
        return spark_replay(spark, copy.store.address, copy.location, chain, stored, copy.there, read)

    return replay_chain


def log_bytes(copy: TableCopy) -> int:
    """How large a copied log is."""
    log = copy.below(f"{LOG}/")
    return int(pc.sum(log["size_bytes"], min_count=0).as_py())


def assess(copy: TableCopy, as_of: dt.datetime, replay_chain: Replay = replay_here) -> DeltaAssessment:
    """What the copy of a Delta table can be opened at."""
    reader = LogReader(copy)
    found = DeltaAssessment(log=log_files(reader.whole_names))
    replayed = _replayed(copy, reader, found, replay_chain)
    found.committed_at = reader.times | found.committed_at
    known = log_files(reader.names)
    told = {*known.commits, *known.checkpoints, *(last for _, last in known.compacted)}
    before = {at for at in told if _time(reader, known, found, at) < as_of}
    found.wanted = max(before, default=None)
    found.newest_known = commit_name(max(known.commits)) if known.commits else None
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
        _tell_needs(copy, reader, found, replayed, found.wanted)
    return found


def refused(copy: TableCopy, found: DeltaAssessment, count: VersionCount) -> str | None:
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
            events = checkpoint_events(copy.location, checkpoint, reader.read)
        except BrokenLogFile as error:
            return str(error)
        made = found.counts.get(checkpoint.version)
        if made is not None and events.num_rows != made.files:
            return f"{LOG}/{checkpoint.names[0]} has {events.num_rows} files, the commits make {made.files}"
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
            version: self._rows[commit_name(version)]["last_modified"]
            for version in log_files(self._rows).commits
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


def _replayed(
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
            if step.name == commit_name(step.last):
                found.log.commits.discard(step.last)
            else:
                found.log.compacted.discard((step.first, step.last))
            return frozenset()
    if chain.base is None:
        raise error
    return frozenset({chain.base})


def _tell_needs(
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
        found.needs += [Need(reader.location(commit_name(at))) for at in hole]
    for checkpoint in found.log.newest_checkpoints(wanted):
        try:
            sidecars = sidecars_of(checkpoint, reader.read)
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
    names += [compaction_name(*one) for one in known.compacted if one[1] == version]
    return max(reader.modified(name) for name in names)


def _differs_from_crc(content: bytes, count: VersionCount) -> str | None:
    """What a version's checksum file says otherwise (PROTOCOL.md, "Version Checksum File")."""
    try:
        said = orjson.loads(content)
        files, size_bytes = said["numFiles"], said["tableSizeBytes"]
    except NOT_WHOLE:
        return "nothing that can be read"
    if (files, size_bytes) == (count.files, count.size_bytes):
        return None
    return f"{files} files of {size_bytes} bytes, the commits make {count.files} of {count.size_bytes}"
