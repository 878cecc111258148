"""Iceberg tables from their assessment to their proof: mounted where their copies are, opened, told."""

import datetime as dt
from dataclasses import dataclass

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Status, TableProof
from lakeshare_pipelines.backup.rewriting.iceberg import MOUNTED, Rewritten, rewrite_table
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.backup.verify.iceberg.closure import CopiedFiles
from lakeshare_pipelines.backup.verify.iceberg.opening import opened_rows
from lakeshare_pipelines.backup.verify.iceberg.table import IcebergAssessment, State, assess
from lakeshare_pipelines.backup.verify.spark_opening import OpenSpark, is_beyond, spark_rows
from lakeshare_pipelines.backup.verify.table_copy import Need, TableCopy, outside_reasons, too_small
from lakeshare_pipelines.errors import BackupError, ObjectMissing

TRIED = 5
"""So many states are opened, newest first, before a table is given up."""
SHOWN = 100


def assessed_iceberg(
    copy: TableCopy,
    as_of: dt.datetime,
    pointer: str | None,
    points: Points,
    day: str,
    spark: OpenSpark | None,
) -> "IcebergTable":
    """Read the copy of a table's metadata."""
    return IcebergTable(copy, assess(copy, as_of, pointer, TRIED), as_of, points, day, spark)


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table of a backup (verify/table_copy.py, AssessedTable)."""

    copy: TableCopy
    found: IcebergAssessment
    as_of: dt.datetime
    points: Points
    day: str
    spark: OpenSpark | None

    @property
    def needs(self) -> list[Need]:
        return self.found.needs

    @property
    def removed(self) -> list[str]:
        return []

    def unlisted(self, source: BackupStore) -> list[Need]:
        """Nothing: names of metadata files are not guessed, and the catalog's pointer is among the needs."""
        return []

    def proof(self) -> TableProof:
        found, reasons = self.found, list(self.found.reasons)
        for state in found.states:
            try:
                return self._opened(state, reasons)
            except BackupError as error:
                reasons.append(f"{error.subject}: {error.reason}.")
        missing = self._missing()
        reasons += outside_reasons(self.copy, self.needs, self.points.backup)
        status: Status = "failed" if found.wanted is None else "degraded"
        reasons.append(
            f"{len(missing)} files are missing and no older state is complete: look for them in older points, or "
            "restore the table from one."
            if missing
            else "No state of it can be opened: look at its metadata at the source."
        )
        return TableProof(
            table=self.copy.table,
            status=status,
            wanted_version=self._wanted_version(),
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=self._healed(),
            reasons=tuple(reasons),
        )

    def _opened(self, state: State, reasons: list[str]) -> TableProof:
        metadata, closure = state.metadata, state.closure
        mount = self._mounted(state)
        rows, reader = self._rows(mount.metadata_location, closure.files)
        proved = self.copy.proved(self.points.backup.scrub.within_days, was_read=rows is not None)
        if None not in (rows, closure.rows) and rows != closure.rows:
            said = f"{reader} reads {rows} rows, the manifests say {closure.rows}"
            raise BackupError(metadata.key, said, "Look at the table at its source.")
        is_wanted = self.found.wanted is metadata and self.found.is_newest_read
        missing = [] if is_wanted else self._missing()
        if not is_wanted:
            reasons.append(
                f"The newest state before {self.as_of:%Y-%m-%d %H:%M} UTC lacks {len(missing)} files that are nowhere; "
                f"the state of {metadata.updated_at:%Y-%m-%d %H:%M:%S} is whole."
            )
        elif state.without_statistics:
            reasons.append(
                f"{len(state.without_statistics)} files of statistics are nowhere; readers do without."
            )
        outside = [] if is_wanted else outside_reasons(self.copy, self.needs, self.points.backup)
        reasons += outside
        status: Status = (
            "verified" if is_wanted and not state.without_statistics else "verified_with_fallback"
        )
        shrunk = (
            None if is_wanted else too_small(closure.rows if rows is None else rows, self.found.wanted_rows)
        )
        if shrunk is not None:
            status = "degraded"
            reasons.append(shrunk)
        if outside:
            # An older state is no fallback from files that will never be in a copy: the next day lacks them as well.
            status = "degraded"
        return TableProof(
            table=self.copy.table,
            status=status,
            version=metadata.sequence_number,
            wanted_version=self._wanted_version(),
            snapshot_id=metadata.current,
            metadata_key=metadata.key,
            oldest_version=min(
                (metadata.snapshots[one].sequence_number for one in state.complete),
                default=metadata.sequence_number,
            ),
            committed_at=metadata.updated_at,
            files=closure.files,
            size_bytes=closure.size_bytes,
            rows=closure.rows if rows is None else rows,
            level=proved.level,
            compared_at=proved.compared_at,
            opened_by=reader,
            mount=mount.metadata_location,
            mount_digest=self.points.mount_digest(mount.metadata_location),
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=self._healed(),
            reasons=(*reasons, *proved.reasons),
        )

    def _wanted_version(self) -> int | None:
        wanted = self.found.wanted if self.found.is_newest_read else None
        return None if wanted is None else wanted.sequence_number

    def _rows(self, mount: str, files: int) -> tuple[int | None, str]:
        try:
            return opened_rows(self.points.store.address, mount, files)
        except BackupError as error:
            if self.spark is None or not is_beyond(error):
                raise
            return spark_rows(self.spark, "iceberg", mount)

    def _mounted(self, state: State) -> Rewritten:
        """Metadata of the point's own that names the copies: paths of Iceberg's are absolute up to version 3."""
        files = CopiedFiles(self.copy)
        target = self.copy.store.address

        def moved(location: str) -> str:
            key = files.stored_key(location)
            # What older snapshots name and is not held is named where it was, and read by nobody.
            return location if key is None else target.location(key)

        try:
            return rewrite_table(
                files.read,
                self.copy.source.at(self.copy.table.bucket).location(state.metadata.key),
                moved,
                self.points.store,
                f"{self.points.folder(self.day)}mounts/{self.copy.table.root}",
                state.complete,
                properties=MOUNTED,
            )
        except ObjectMissing as error:
            raise BackupError(state.metadata.key, f"{error}", "An older state is tried.") from error

    def _missing(self) -> list[str]:
        """Keys, or locations outside of the source, that the wanted state needs."""
        inside = self.copy.source.at(self.copy.table.bucket).location("")
        return sorted({need.location.removeprefix(inside) for need in self.found.needs})

    def _healed(self) -> tuple[str, ...]:
        healed = self.copy.objects.filter(self.copy.objects["is_healed"])
        return tuple(healed["key"].slice(0, SHOWN).to_pylist())
