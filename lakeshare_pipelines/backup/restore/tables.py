"""Restoring tables of a point: in their original place, or at another one.

Which table and version is chosen.py's, copying copied.py's, the lake's own state lake_table.py's.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import GIB, Backup
from lakeshare_pipelines.backup.copy.engine import ReportProgress
from lakeshare_pipelines.backup.model import POINT_COPIES, FoundTable, Point, TableProof
from lakeshare_pipelines.backup.plan import (
    LOCAL_BYTES_A_S,
    LOCAL_FILES_A_S,
    MILLION,
    S3_BYTES_A_S,
    S3_COPIES_A_S,
    S3_COPY_S,
)
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.copies import (
    DestinationState,
    ReportMessage,
    TableRestore,
    compare_destination,
    head_copies,
    ignore_message,
    ignore_progress,
    open_delta,
    require_outside_target,
    select_archived,
)
from lakeshare_pipelines.backup.restore.delta import (
    Add,
    find_newest_commit,
    list_log_names,
    put_commit,
    read_live_adds,
    require_contiguous_commits,
)
from lakeshare_pipelines.backup.restore.selection import (
    RestoreMode,
    RestorePlan,
    RestoreRecord,
    RestoreRequest,
    SelectedTable,
    select_table,
)
from lakeshare_pipelines.backup.restore.targets import (
    APART,
    find_lake_table,
    find_root,
    map_to_new_keys,
    require_free,
    restore_delta_elsewhere,
    restore_delta_in_place,
    restore_iceberg_elsewhere,
    restore_iceberg_in_place,
    select_copied,
    target_lock_set,
)
from lakeshare_pipelines.backup.retention import hold_point
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import make_storage_options
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import open_lake_without_spark
from lakeshare_server.catalog import Catalog
from lakeshare_server.errors import LakeshareError
from lakeshare_server.storage import normalise_location
from lakeshare_server.tables.lines import decode_z85


@dataclass(frozen=True)
class RestoreResult:
    """What became of several tables: one that failed keeps none of the others."""

    records: tuple[RestoreRecord, ...]
    failures: tuple[str, ...]
    """Sentences, each with the table's name."""


def restore_each(
    names: Iterable[str],
    restore: Callable[[str], RestoreRecord],
    report_message: ReportMessage = ignore_message,
) -> RestoreResult:
    """Restore tables one after the other; what fails is told of, and the next one begun."""
    records, failures = [], []
    for name in names:
        try:
            records.append(restore(name))
        except LakeshareError as error:
            failures.append(f"{name}: {error}")
            report_message(f"{name} could not be restored: {error}")
    return RestoreResult(tuple(records), tuple(failures))


def list_tables_of_set(settings: LakeSettings, name: str) -> list[str]:
    """The tables that a contract publishes together.

    Raises:
        BackupError: there is no such set.
    """
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    if name not in contracts:
        raise BackupError(f"set {name}", f"the contracts are {', '.join(contracts)}", "Name one of them.")
    return [table.name for table in contracts[name].tables]


def list_tables_of_point(point: Point) -> list[str]:
    """The roots of all tables of a point."""
    return [proof.table.root for proof in point.verification.tables]


def restore_other_files(
    settings: LakeSettings,
    backup: Backup,
    point: Point,
    to: StoreAddress | None,
    report_message: ReportMessage = ignore_message,
) -> int:
    """Bring back what belongs to no table, in its place or below `to`; returns how many objects were missing.

    What is another object now stays in its place.

    Raises:
        BackupError: a copy is missing or damaged, or something else is at an object's key below `to`.
    """
    if to is not None:
        require_outside_target(backup, to)
    points = Points(backup)
    rows = [batch.filter(pc.is_null(batch.column("table_root"))) for batch in points.read_copies(point)]
    table = FoundTable(bucket=backup.source.bucket, root="", format="delta", stored_root="")
    proof = TableProof(table=table, status="verified", version=0)
    copies = pa.Table.from_batches([row.cast(POINT_COPIES) for row in rows], POINT_COPIES)
    selected = SelectedTable(point, proof, 0, copies, backup.target_of(point.day))
    address = backup.source if to is None else to
    work = TableRestore(
        settings, backup, selected, address, address.prefix.rstrip("/"), report_message, ignore_progress
    )

    def map_key(bucket: str, key: str) -> tuple[str, str]:
        if to is None:
            return bucket, key
        return to.bucket, f"{to.prefix}{key.removeprefix(backup.source.prefix)}"

    with hold_point(points, point.day, work.title, unwritable=report_message):
        at = compare_destination(selected, address, work.root, map_key)
        if at.differing and to is None:
            report_message(
                f"{len(at.differing):,} objects of no table are others now and stay, as {at.differing[0]}"
            )
        elif at.differing:
            raise BackupError(
                at.differing[0],
                f"something else is there now, as at {len(at.differing) - 1:,} other keys",
                "Restore to another place with --to.",
            )
        work.bring(at)
    return work.objects


def plan_restore(work: TableRestore, *, in_place: bool) -> RestorePlan:
    """The plan of a restore; nothing is written.

    Raises:
        BackupError: a copy is missing or damaged, or the place cannot take the table.
    """
    if in_place:
        at = compare_destination(work.selected, work.to, work.root, lambda bucket, key: (bucket, key))
        steps, rows = _plan_in_place(work, at), at.missing if not at.differing else work.selected.rows
    else:
        at = compare_destination(select_copied(work), work.to, work.root, map_to_new_keys(work))
        require_free(work, at)
        steps, rows = _plan_elsewhere(work, at), at.missing
    return make_restore_plan(work, rows, at.there, steps, "in_place" if in_place else "elsewhere")


def make_restore_plan(
    work: TableRestore, rows: pa.Table, there: int, steps: list[str], way: RestoreMode
) -> RestorePlan:
    """The plan of a restore that brings these rows and goes these steps.

    Raises:
        BackupError: a copy is missing or damaged.
    """
    thawed = select_archived(head_copies(work.selected, rows))
    size_bytes = int(pc.sum(rows["size_bytes"]).as_py() or 0)
    requests = rows.num_rows + len(thawed)
    if thawed:
        steps = [f"{len(thawed):,} archived copies are asked for first, which takes hours.", *steps]
    return RestorePlan(
        table=work.selected.table,
        day=work.selected.point.day,
        version=work.selected.version,
        place=work.place,
        way=way,
        objects=rows.num_rows,
        size_bytes=size_bytes,
        there=there,
        archived=len(thawed),
        requests=requests,
        usd=round(_estimate_usd(work, requests, size_bytes, sum(one.size_bytes or 0 for one in thawed)), 6),
        minutes=round(_estimate_minutes(work, rows, size_bytes), 2),
        steps=tuple(steps),
    )


def _plan_in_place(work: TableRestore, at: DestinationState) -> list[str]:
    """The steps of in_place.py, in the same order."""
    version, table = work.selected.version, work.selected.table
    if at.differing:
        steps = [
            f"{len(at.differing):,} keys are taken by something else, as {at.differing[0]}: nothing is put there.",
            f"The table's {work.selected.rows.num_rows:,} objects go to {work.place}{APART}{work.selected.point.day}.",
        ]
        pointer = "A commit lets the live table have those files, and no others."
    else:
        steps = [f"{at.missing.num_rows:,} missing objects are put back; {at.there:,} are there and stay."]
        pointer = _delta_pointer(work) if table.format == "delta" else ""
    if table.format == "iceberg":
        pointer = (
            f"Nessie's main shows snapshot {version} again, where a name of the lake belongs to the table."
        )
    return [
        *steps,
        "The table is opened and its rows counted.",
        pointer,
        "Recipients read the newest publication again, or a new number where it showed another state.",
    ]


def _delta_pointer(work: TableRestore) -> str:
    names = list_log_names(work.store, work.root)
    newest, version = find_newest_commit(names), work.selected.version
    require_contiguous_commits(work.place, names, version)
    if newest is None or newest <= version:
        return f"The log ends at version {version}, as it did."
    return f"The log went on to version {newest}: a commit shows version {version} again."


def _plan_elsewhere(work: TableRestore, at: DestinationState) -> list[str]:
    steps = [f"{at.missing.num_rows:,} objects are copied to {work.place}; {at.there:,} are there already."]
    if work.selected.table.format == "iceberg":
        steps.append("Metadata, manifests and deletes are written anew for that place.")
    return [*steps, "The table is opened and its rows counted. Nothing is registered."]


def _estimate_usd(work: TableRestore, requests: int, size_bytes: int, thawed_bytes: int) -> float:
    prices, kinds = work.backup.prices, (work.selected.copies.kind, work.to.kind)
    if kinds == ("folder", "folder"):
        return 0.0
    usd = requests / MILLION * prices.per_million_copies if work.to.kind == "s3" else 0.0
    return usd + size_bytes / GIB * prices.per_gib_transferred + thawed_bytes / GIB * prices.per_gib_thawed


def _estimate_minutes(work: TableRestore, rows: pa.Table, size_bytes: int) -> float:
    """The slower of the two: requests, and bytes; thawing is not in it."""
    copies, to = work.selected.copies, work.to
    if copies.kind == to.kind == "s3" and copies.endpoint == to.endpoint:
        in_flight = work.backup.in_flight
        by_requests = rows.num_rows / min(S3_COPIES_A_S, in_flight / S3_COPY_S)
        return float(max(by_requests, size_bytes / (S3_BYTES_A_S * in_flight)) / 60)
    return float(max(rows.num_rows / LOCAL_FILES_A_S, size_bytes / LOCAL_BYTES_A_S) / 60)


UUID_CHARS = 20
LEGACY_WRITER = 6
"""Up to this version of writers a protocol has no list of features (Delta PROTOCOL.md, "Protocol Evolution")."""
# What asks nothing of a commit that only brings back files as they were.
SUPPORTED_FEATURES = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "variantType",
}  # fmt: skip
REMOVE_FIELDS = (
    "path",
    "partitionValues",
    "size",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)
PartitionValues = Mapping[str, str | None]
Adds = dict[tuple[str, str | None], Add]


def restore_partition(work: TableRestore, wanted: PartitionValues) -> RestoreRecord:
    """Put a partition of a live Delta table back to what it was in the point; `wanted` has a text for each column.

    Files that are missing are put back at their keys first. Publications stay what they are: recipients read the
    partition with the next run.

    Raises:
        BackupError: the point has no such partition, the table's columns or features are others now, something else
            is at a file's key, or somebody committed meanwhile; the table shows what it did before.
    """
    found = _compare_partition(work, wanted)
    found.part.bring(found.at)
    work.objects, work.size_bytes = found.part.objects, found.part.size_bytes
    version = found.now
    if len(found.actions) > 1:
        version = found.now + 1
        put_commit(work.to, work.root, version, found.actions)
        work.report_message(f"version {version} of {work.place} has the partition as it was")
    opened = open_delta(work.to, work.root, version)
    work.notes.append("Recipients read the partition with the next publication of the table.")
    return work.record(work.place, opened, is_part=True)


def plan_partition_restore(work: TableRestore, wanted: PartitionValues) -> RestorePlan:
    """What putting a partition back would do and take; nothing is written.

    Raises:
        BackupError: it would be refused.
    """
    found = _compare_partition(work, wanted)
    added = sum("add" in action for action in found.actions)
    removed = sum("remove" in action for action in found.actions)
    commit = f"A commit takes {removed:,} files out of the partition and brings {added:,} back into it."
    steps = [
        f"{found.at.missing.num_rows:,} missing objects are put back; {found.at.there:,} are there and stay.",
        commit if added or removed else "The partition is what it was: there is no commit.",
        "Recipients read it with the next publication of the table.",
    ]
    return make_restore_plan(found.part, found.at.missing, found.at.there, steps, "in_place")


@dataclass(frozen=True)
class _PartitionComparison:
    now: int
    part: TableRestore
    at: DestinationState
    actions: list[dict[str, Any]]


def _compare_partition(work: TableRestore, wanted: PartitionValues) -> _PartitionComparison:
    """The partition in the point beside what it is now."""
    now = find_newest_commit(list_log_names(work.store, work.root))
    if now is None:
        raise BackupError(work.place, "no table is there", "Restore the whole table in place.")
    _require_like(work, now)
    copies, stored_root = open_store(work.selected.copies), work.selected.table.stored_root
    then = _filter_partition(read_live_adds(copies, stored_root, work.selected.version), wanted)
    live = _filter_partition(read_live_adds(work.store, work.root, now), wanted)
    if not then:
        description = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise BackupError(
            f"point {work.selected.point.day}, table {work.selected.table.root}",
            f"it has no files of {description} at version {work.selected.version}",
            "Values are spelt as in the table's log; `lakeshare backup list` tells the other points.",
        )
    part = _restrict_to_files(work, then)
    at = compare_destination(part.selected, work.to, work.root, lambda bucket, key: (bucket, key))
    if at.differing:
        raise BackupError(
            at.differing[0], "something else is there now", "Restore the table to another place with --to."
        )
    return _PartitionComparison(now, part, at, _make_actions(then, live, work.selected.version))


def _restrict_to_files(work: TableRestore, adds: Adds) -> TableRestore:
    """The restore of these files alone."""
    keys = {key for add in adds.values() for key in _keys(work.selected.table.root, add)}
    rows = work.selected.rows
    mine = rows.filter(pa.array([key in keys for key in rows["key"].to_pylist()], pa.bool_()))
    if absent := keys - set(mine["key"].to_pylist()):
        raise BackupError(
            f"point {work.selected.point.day}",
            f"it does not hold {min(absent)}",
            "Restore from another point.",
        )
    return replace(work, selected=replace(work.selected, rows=mine))


def _keys(root: str, add: Add) -> list[str]:
    """Keys of a data file and of the file of its deletion vector (Delta PROTOCOL.md, "Deletion Vector Descriptor")."""
    keys = [f"{root}/{unquote(add['path'])}"]
    vector = add.get("deletionVector")
    if vector is not None and vector["storageType"] == "u":
        prefix, encoded = vector["pathOrInlineDv"][:-UUID_CHARS], vector["pathOrInlineDv"][-UUID_CHARS:]
        name = f"deletion_vector_{UUID(bytes=decode_z85(encoded))}.bin"
        keys.append("/".join(part for part in (root, prefix, name) if part))
    return keys


def _filter_partition(adds: Adds, wanted: PartitionValues) -> Adds:
    return {
        identity: add
        for identity, add in adds.items()
        if all(add["partitionValues"].get(name, "") == value for name, value in wanted.items())
    }


def _make_actions(then: Adds, live: Adds, version: int) -> list[dict[str, Any]]:
    """A commit's actions; only the first, which tells of it, where the partition is what it was."""
    now_ms = int(time.time() * 1000)
    commit_info = {
        "operation": "RESTORE",
        "operationParameters": {"version": str(version)},
        "engineInfo": "lakeshare",
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now_ms, "isBlindAppend": False, **commit_info}}
    ]
    for identity in live.keys() - then.keys():
        remove = {name: live[identity].get(name) for name in REMOVE_FIELDS}
        remove |= {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
        actions.append({"remove": _to_log_json(remove)})
    for identity in then.keys() - live.keys():
        actions.append({"add": _to_log_json({**then[identity], "dataChange": True})})
    return actions


def _to_log_json(action: dict[str, Any]) -> dict[str, Any]:
    """As a log's JSON has it: fields without a value are left out, maps of a checkpoint are objects."""
    fields = {name: value for name, value in action.items() if value is not None}
    for name in ("partitionValues", "tags"):
        if isinstance(fields.get(name), list):
            fields[name] = dict(fields[name])
    if "deletionVector" in fields:
        fields["deletionVector"] = {
            name: value for name, value in fields["deletionVector"].items() if value is not None
        }
    # Statistics as a structure are a checkpoint's only.
    return {name: value for name, value in fields.items() if not name.endswith("_parsed")}


def _require_like(work: TableRestore, now: int) -> None:
    """Refuse a table whose columns changed, or whose features ask more of a commit than files that come back.

    Raises:
        BackupError: says which.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        live = DeltaTable(work.place, now, make_storage_options(work.to) or None)
        stored = work.selected.copies.location(work.selected.table.stored_root)
        then = DeltaTable(stored, work.selected.version, make_storage_options(work.selected.copies) or None)
    except (DeltaError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise BackupError(
            work.place, f"it does not open: {reason}", "Restore the whole table in place."
        ) from error
    if json.loads(live.schema().to_json()) != json.loads(then.schema().to_json()):
        raise BackupError(
            work.place, "its columns changed since", "Restore the whole table to another place."
        )
    if live.metadata().configuration.get("delta.appendOnly") == "true":
        raise BackupError(work.place, "it takes appends only", "Unset delta.appendOnly, then restore.")
    protocol = live.protocol()
    features = set(protocol.writer_features or ())
    strange = features - SUPPORTED_FEATURES if protocol.min_writer_version > LEGACY_WRITER else set()
    if strange:
        raise BackupError(
            work.place,
            f"its features {', '.join(sorted(strange))} ask more of a commit than lakeshare knows",
            "Restore the table to another place, and overwrite the partition from there.",
        )


@dataclass(frozen=True)
class PointRestore:
    """Tables of one point, on their way back. `say` gets sentences, `tell` how far the copying is."""

    settings: LakeSettings
    backup: Backup
    point: Point
    report_message: ReportMessage = ignore_message
    report_progress: ReportProgress = ignore_progress

    def in_place(self, catalog: Catalog, table: str, version: int | None = None) -> RestoreRecord:
        """Bring a table back where it was, and let the lake and its recipients see it again.

        What is missing is put back at its key; nothing that is there is overwritten or removed. Where the table went
        on since, it shows the restored state by a new commit; where other things lie at its keys, the restored table
        lies below `_restored/` beside them. Called again after a crash it goes on.

        Raises:
            BackupError: the point does not hold the table whole, or the place refuses; the lake shows what it did
                before.
            CatalogConflict: a run of the table's set is publishing and did not end in time.
        """
        work = self._where_it_was(catalog, table, version)
        restore = (
            restore_delta_in_place if work.selected.table.format == "delta" else restore_iceberg_in_place
        )
        with self._reading(work):
            return restore(work, open_lake_without_spark(self.settings), catalog)

    def elsewhere(self, table: str, to: StoreAddress, version: int | None = None) -> RestoreRecord:
        """Restore a table to a place of its own; `to` is its new root, where nothing else may be.

        Nothing is registered. Called again after a crash it goes on.

        Raises:
            BackupError: the point does not hold the table whole, or something else is at that place.
        """
        return self.work_elsewhere(table, to, version)[1]

    def work_elsewhere(
        self, table: str, to: StoreAddress, version: int | None = None
    ) -> tuple[TableRestore, RestoreRecord]:
        """`elsewhere`, with the work that was done: it knows where each object went."""
        work = self._beside(table, to, version)
        restore = (
            restore_delta_elsewhere if work.selected.table.format == "delta" else restore_iceberg_elsewhere
        )
        with self._reading(work):
            return work, restore(work)

    def plan(
        self, catalog: Catalog, table: str, to: StoreAddress | None, version: int | None = None
    ) -> RestorePlan:
        """What restoring a table would do and take, in place where `to` is None; nothing is written.

        Raises:
            BackupError: it would be refused.
        """
        if to is None:
            return plan_restore(self._where_it_was(catalog, table, version), in_place=True)
        return plan_restore(self._beside(table, to, version), in_place=False)

    def partition(
        self, catalog: Catalog, table: str, partition: PartitionValues, version: int | None = None
    ) -> RestoreRecord:
        """Put a partition of a live Delta table back to what it was in the point, by one commit.

        Raises:
            BackupError: the table is Iceberg's, or as `restore_partition` says.
            CatalogConflict: a run of the table's set is publishing and did not end in time.
        """
        work = self._of_partitions(catalog, table, version)
        known = find_lake_table(
            open_lake_without_spark(self.settings), catalog, normalise_location(work.place), "delta"
        )
        with self._reading(work), target_lock_set(known, work):
            return restore_partition(work, partition)

    def plan_of_partition(
        self, catalog: Catalog, table: str, partition: PartitionValues, version: int | None = None
    ) -> RestorePlan:
        """What `partition` would do and take; nothing is written.

        Raises:
            BackupError: it would be refused.
        """
        return plan_partition_restore(self._of_partitions(catalog, table, version), partition)

    def _where_it_was(self, catalog: Catalog, table: str, version: int | None) -> TableRestore:
        selected = self._chosen(_root(catalog, self.backup, self.point, table), version)
        return self._work(selected, self.backup.source, selected.table.root)

    def _of_partitions(self, catalog: Catalog, table: str, version: int | None) -> TableRestore:
        work = self._where_it_was(catalog, table, version)
        if work.selected.table.format != "delta":
            raise BackupError(
                f"table {work.selected.table.root}",
                "partitions of Iceberg tables are not put back by themselves",
                "Open the copy with `lakeshare restore table --mount`, and overwrite the partition from there with "
                "Spark.",
            )
        return work

    def _beside(self, table: str, to: StoreAddress, version: int | None) -> TableRestore:
        require_outside_target(self.backup, to)
        selected = self._chosen(table, version)
        if to.kind == "folder":
            # The folder above is the store: what an engine keeps for itself does not belong into a table.
            above, _, name = to.url.rpartition("/")
            return self._work(selected, to.model_copy(update={"url": above or "/"}), name)
        return self._work(selected, to.model_copy(update={"url": f"s3://{to.bucket}"}), to.prefix.rstrip("/"))

    def _chosen(self, table: str, version: int | None) -> SelectedTable:
        return select_table(Points(self.backup), RestoreRequest(table, self.point.day, version))

    def _work(self, selected: SelectedTable, to: StoreAddress, root: str) -> TableRestore:
        return TableRestore(
            self.settings, self.backup, selected, to, root, self.report_message, self.report_progress
        )

    def _reading(self, work: TableRestore) -> AbstractContextManager[None]:
        return hold_point(Points(self.backup), self.point.day, work.title, unwritable=self.report_message)


def _root(catalog: Catalog, backup: Backup, point: Point, table: str) -> str:
    """The root's key, where the ledger knows the table by that name: its Iceberg tables have an id in their folder."""
    location = find_root(catalog, table)
    roots = {proof.table.root for proof in point.verification.tables}
    for root in roots:
        if location is not None and backup.source.location(root) == location:
            return root
    return table
