"""Delta tables from their assessment to their proof: asked for what was not listed, cut, opened, told."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.records import Status, TableProof
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.backup.verify.delta.cutting import cut
from lakeshare_pipelines.backup.verify.delta.log_files import LOG, commit_name, version_of
from lakeshare_pipelines.backup.verify.delta.opening import opened_rows
from lakeshare_pipelines.backup.verify.delta.replay import VersionCount
from lakeshare_pipelines.backup.verify.delta.table import (
    DeltaAssessment,
    assess,
    log_bytes,
    refused,
    replay_here,
    replay_in,
)
from lakeshare_pipelines.backup.verify.spark_opening import is_beyond, spark_rows
from lakeshare_pipelines.backup.verify.table_copy import Need, TableCopy, outside_reasons, too_small
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_LOG_BYTES = 1 << 30
"""Of some three million adds; columns of them take twice that in memory."""
TRIED = 5
"""So many versions are opened, newest first, before a table is given up."""
SHOWN = 100


def assessed_delta(
    copy: TableCopy, as_of: dt.datetime, backup: Backup, spark: "Callable[[], SparkSession] | None"
) -> "DeltaTable":
    """Replay the copy of a table's log, here or, when it is large, in Spark."""
    is_large = spark is not None and log_bytes(copy) > LARGE_LOG_BYTES
    replay_chain = replay_in(spark()) if is_large and spark is not None else replay_here
    return DeltaTable(copy, assess(copy, as_of, replay_chain), backup, as_of, spark)


@dataclass(frozen=True)
class DeltaTable:
    """A Delta table of a backup (verify/table_copy.py, AssessedTable)."""

    copy: TableCopy
    found: DeltaAssessment
    backup: Backup
    as_of: dt.datetime
    spark: "Callable[[], SparkSession] | None"
    removed: list[str] = field(default_factory=list)

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
            and (version_of(one.key.removeprefix(folder)) is not None or "/_sidecars/" in one.key)
        ]

    def proof(self) -> TableProof:
        copy, assessed = self.copy, self.found
        reasons = list(assessed.reasons)
        for count in assessed.complete[:TRIED]:
            try:
                return self._opened(count, reasons)
            except BackupError as error:
                reasons.append(f"{error.subject}: {error.reason}.")
        missing = _missing(copy, assessed)
        reasons += outside_reasons(copy, self.needs, self.backup)
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
            healed=_healed(copy),
            reasons=tuple(reasons),
        )

    def _opened(self, count: VersionCount, reasons: list[str]) -> TableProof:
        copy, assessed = self.copy, self.found
        version, where = count.version, f"version {count.version}"
        if said := refused(copy, assessed, count):
            raise BackupError(where, said, "")
        if self.backup.layout == "dated":
            self.removed.extend(cut(copy, assessed, version))
        rows, reader = self._rows(count)
        proved = copy.proved(self.backup.scrub.within_days, was_read=rows is not None)
        if None not in (rows, count.rows) and rows != count.rows:
            raise BackupError(where, f"{reader} reads {rows} rows, the log says {count.rows}", "")
        is_wanted = version == assessed.wanted
        missing = [] if is_wanted else _missing(copy, assessed)
        if not is_wanted:
            reasons.append(
                f"Version {assessed.wanted} is the newest before {self.as_of:%Y-%m-%d %H:%M} UTC, but {len(missing)} "
                f"of its files are nowhere; version {version} is whole."
            )
            reasons += outside_reasons(copy, self.needs, self.backup)
        status, newest = (
            self._status(version),
            assessed.counts.get(-1 if assessed.wanted is None else assessed.wanted),
        )
        shrunk = too_small(count.rows if rows is None else rows, None if newest is None else newest.rows)
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
            healed=_healed(copy),
            reasons=(*reasons, *proved.reasons),
        )

    def _status(self, version: int) -> Status:
        if self.found.has_unpublished:
            return "degraded"
        wanted = self.found.counts.get(-1 if self.found.wanted is None else self.found.wanted)
        if version == self.found.wanted:
            return "verified"
        # An older version is no fallback from files that will never be in a copy: the next day lacks them as well.
        lasts = outside_reasons(self.copy, self.needs, self.backup) or (
            wanted is not None and wanted.absolute
        )
        return "degraded" if lasts else "verified_with_fallback"

    def _rows(self, count: VersionCount) -> tuple[int | None, str]:
        address, root = self.copy.store.address, self.copy.table.stored_root
        try:
            return opened_rows(address, root, count.version, count.files)
        except BackupError as error:
            if self.spark is None or not is_beyond(error):
                raise
            return spark_rows(self.spark, "delta", address.location(root), count.version)

    def _went_on(self, folder: str, source: BackupStore) -> bool:
        if self.found.wanted is None:
            return False
        head = source.head(f"{folder}{commit_name(self.found.wanted + 1)}")
        return head is not None and head.last_modified < self.as_of


def _is_same_log(copy: TableCopy, folder: str, assessed: DeltaAssessment, source: BackupStore) -> bool:
    """Whether the source still has the log that was listed: a table that was made anew must not be mixed with it."""
    if assessed.newest_known is None:
        return True
    key = f"{folder}{assessed.newest_known}"
    listed = copy.objects["etag"].filter(pc.equal(copy.objects["key"], key)).to_pylist()
    head = source.head(key)
    return head is not None and [head.etag] == listed


def _missing(copy: TableCopy, assessed: DeltaAssessment) -> list[str]:
    """Keys, or locations outside of the source, that the wanted version needs."""
    inside = copy.source.at(copy.table.bucket).location("")
    return [need.location.removeprefix(inside) for need in assessed.needs]


def _healed(copy: TableCopy) -> tuple[str, ...]:
    healed = copy.objects.filter(copy.objects["is_healed"])
    return tuple(healed["key"].slice(0, SHOWN).to_pylist())
