"""Restores of the tables of a point, in their original place or at another one, their plans, and partitions."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup import plan
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import ReportProgress
from lakeshare_pipelines.backup.model import POINT_COPIES, FoundTable, Point, ReportMessage, TableProof
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore import targets
from lakeshare_pipelines.backup.restore.copies import (
    DestinationState,
    RestorePlan,
    RestoreRecord,
    SelectedTable,
    TableRestore,
    head_copies,
    ignore_message,
    ignore_progress,
    require_outside_target,
    select_archived,
    select_table,
)
from lakeshare_pipelines.backup.retention import hold_point
from lakeshare_pipelines.backup.stores import StoreAddress, make_storage_options, open_store
from lakeshare_pipelines.backup.verify.delta import list_log_names, sort_names
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import open_lake_without_spark
from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.storage import normalise_location
from lakeshare_server.tables.delta.files import vector_name
from lakeshare_server.tables.delta.log import Key

if TYPE_CHECKING:
    from deltalake import DeltaTable


def list_tables_of_set(settings: LakeSettings, name: str) -> list[str]:
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    if name not in contracts:
        raise BackupError(f"set {name}", f"the contracts are {', '.join(contracts)}", "Name one of them.")
    return [table.name for table in contracts[name].tables]


def make_restore_plan(work: TableRestore, rows: pa.Table, there: int, steps: list[str]) -> RestorePlan:
    thawed = select_archived(head_copies(work.selected, rows))
    size_bytes, requests = int(pc.sum(rows["size_bytes"]).as_py() or 0), rows.num_rows + len(thawed)
    ends = work.backup, work.selected.copies, work.to
    usd = plan.estimate_usd(*ends, requests, size_bytes, sum(copy.size_bytes or 0 for copy in thawed))
    minutes = plan.estimate_minutes(*ends, rows.num_rows, size_bytes)
    if thawed:
        steps = [f"{len(thawed):,} archived copies are requested first, which takes hours.", *steps]
    return RestorePlan(
        table=work.selected.table,
        day=work.selected.point.day,
        version=work.selected.version,
        place=work.place,
        objects=rows.num_rows,
        size_bytes=size_bytes,
        there=there,
        archived=len(thawed),
        requests=requests,
        usd=round(usd, 6),
        minutes=round(minutes, 2),
        steps=tuple(steps),
    )


def _plan_in_place(work: TableRestore, at: DestinationState) -> list[str]:
    version, place = work.selected.version, work.place
    if at.differing:
        beside = f"{place}{targets.APART}{work.selected.point.day}"
        steps = [
            f"{len(at.differing):,} keys have other objects, as {at.differing[0]}: nothing is written to them.",
            f"The table's {work.selected.rows.num_rows:,} objects go to {beside}.",
        ]
        commit = "A commit gives the live table those files, and no others."
    else:
        steps = [f"{at.missing.num_rows:,} missing objects are restored; {at.there:,} exist and stay."]
        commit = f"The log ends at version {version}, as in the point."
        if work.selected.table.format == "delta":
            log = sort_names(list_log_names(work.store, work.root))
            newest = targets.find_newest_commit(log)
            targets.require_contiguous_commits(place, log, version)
            if newest is not None and newest > version:
                commit = f"The log has versions to {newest}: a commit shows version {version} again."
    if work.selected.table.format == "iceberg":
        commit = f"Nessie's main shows snapshot {version} again, if a name of the lake belongs to the table."
    return [
        *steps,
        "The table is opened and its rows counted.",
        commit,
        "Recipients read the newest publication again, or a new number if it showed another state.",
    ]


LEGACY_WRITER = 6  # Up to this version of writers there is no list of features (Delta PROTOCOL.md)
# Features that need nothing of a commit that only restores files.
SUPPORTED_FEATURES = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "variantType",
}  # fmt: skip
REMOVE_FIELDS = (
    "path", "partitionValues", "size", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion"
)  # fmt: skip
PartitionValues = Mapping[str, str | None]
Adds = dict[Key, targets.Add]


def _compare_partition(
    work: TableRestore, partition: PartitionValues
) -> tuple[TableRestore, int, DestinationState, list[dict[str, Any]]]:
    """A restore of a partition's files, the live version, the state of the destination, and the actions to commit."""
    now = targets.find_newest_commit(sort_names(list_log_names(work.store, work.root)))
    if now is None:
        raise BackupError(work.place, "there is no table", "Restore the whole table in place.")
    values = _name_physically(_require_like(work, now), partition)
    copies, stored_root = open_store(work.selected.copies), work.selected.table.stored_root
    then = _filter_partition(targets.read_live_adds(copies, stored_root, work.selected.version), values)
    live = _filter_partition(targets.read_live_adds(work.store, work.root, now), values)
    if not then:
        description = ", ".join(f"{name}={value}" for name, value in partition.items())
        raise BackupError(
            f"point {work.selected.point.day}, table {work.selected.table.root}",
            f"it has no files of {description} at version {work.selected.version}",
            "Values are spelt as in the table's log; `lakeshare backup list` shows the other points.",
        )
    part = _restrict_to_files(work, then)
    at = part.compare()
    if at.differing:
        fix = "Restore the table to another place with --to."
        raise BackupError(at.differing[0], "another object is at this key", fix)
    return part, now, at, _make_actions(then, live, work.selected.version)


def _restrict_to_files(work: TableRestore, adds: Adds) -> TableRestore:
    keys = {key for add in adds.values() for key in _list_keys(work.selected.table.root, add)}
    rows = work.selected.rows
    selected = rows.filter(pa.array([key in keys for key in rows["key"].to_pylist()], pa.bool_()))
    if absent := keys - set(selected["key"].to_pylist()):
        subject = f"point {work.selected.point.day}"
        raise BackupError(subject, f"it does not hold {min(absent)}", "Restore from another point.")
    return replace(work, selected=replace(work.selected, rows=selected))


def _list_keys(root: str, add: targets.Add) -> list[str]:
    """Keys of a data file and of the file of its deletion vector (Delta PROTOCOL.md, "Deletion Vector Descriptor")."""
    keys = [f"{root}/{unquote(add['path'])}"]
    vector = add.get("deletionVector")
    if vector is not None and vector["storageType"] == "u":
        keys.append(str(vector_name(root, "u", vector["pathOrInlineDv"])))
    return keys


def _name_physically(table: "DeltaTable", partition: PartitionValues) -> PartitionValues:
    """The values by the names that columns have in the log (Delta PROTOCOL.md, "Column Mapping")."""
    columns = table.metadata().partition_columns
    if unknown := partition.keys() - columns:
        fix = f"The table is partitioned by {', '.join(columns) or 'no column'}."
        raise BackupError(f"partition column {min(unknown)}", "the table has no such partition column", fix)
    physical = {
        field.name: str(field.metadata.get("delta.columnMapping.physicalName", field.name))
        for field in table.schema().fields
    }
    return {physical[name]: value for name, value in partition.items()}


def _filter_partition(adds: Adds, partition: PartitionValues) -> Adds:
    return {
        identity: add
        for identity, add in adds.items()
        if all(add["partitionValues"].get(name, "") == value for name, value in partition.items())
    }


def _make_actions(then: Adds, live: Adds, version: int) -> list[dict[str, Any]]:
    commit_info = targets.make_commit_info(version)
    now_ms = commit_info["timestamp"]
    actions: list[dict[str, Any]] = [{"commitInfo": commit_info}]
    for identity in live.keys() - then.keys():
        remove = {name: live[identity].get(name) for name in REMOVE_FIELDS}
        remove |= {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
        actions.append({"remove": _to_log_json(remove)})
    for identity in then.keys() - live.keys():
        actions.append({"add": _to_log_json({**then[identity], "dataChange": True})})
    return actions


def _to_log_json(action: dict[str, Any]) -> dict[str, Any]:
    """An action as in a log's JSON: without fields that have no value, maps of a checkpoint as objects."""
    fields = {name: value for name, value in action.items() if value is not None}
    for name in ("partitionValues", "tags"):
        if isinstance(fields.get(name), list):
            fields[name] = dict(fields[name])
    if "deletionVector" in fields:
        vector = fields["deletionVector"]
        fields["deletionVector"] = {name: value for name, value in vector.items() if value is not None}
    # Parsed statistics are in checkpoints only.
    return {name: value for name, value in fields.items() if not name.endswith("_parsed")}


def _require_like(work: TableRestore, now: int) -> "DeltaTable":
    """The live table; refused if its columns changed, or its features need more than files in a commit."""
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
    protocol, reason, fix = live.protocol(), "", "Restore the whole table to another place."
    features = set(protocol.writer_features or ()) if protocol.min_writer_version > LEGACY_WRITER else set()
    if json.loads(live.schema().to_json()) != json.loads(then.schema().to_json()):
        reason = "its columns changed since"
    elif live.metadata().configuration.get("delta.appendOnly") == "true":
        reason, fix = "it takes appends only", "Unset delta.appendOnly, then restore."
    elif unsupported := features - SUPPORTED_FEATURES:
        names = ", ".join(sorted(unsupported))
        reason = f"its features {names} need more in a commit than lakeshare supports"
        fix = "Restore the table to another place, and overwrite the partition from there."
    if reason:
        raise BackupError(work.place, reason, fix)
    return live


@dataclass(frozen=True)
class PointRestore:
    settings: LakeSettings
    backup: Backup
    point: Point
    report_message: ReportMessage = ignore_message
    report_progress: ReportProgress = ignore_progress

    def in_place(self, catalog: Catalog, table: str, version: int | None = None) -> RestoreRecord:
        """Restore a table in its original place, for the lake and its recipients.

        Missing objects are restored at their keys; no existing object is overwritten or removed. A table with newer
        versions shows the restored state by a new commit; if other objects are at its keys, the restored table is put
        below `_restored/` beside them. Called again after a crash it continues. Raises BackupError if the point does
        not hold the table whole, or the destination refuses (the lake is unchanged), and CatalogConflict if a run of
        the table's set is publishing and did not end in time.
        """
        work = self._make_in_place(catalog, table, version)
        is_delta = work.selected.table.format == "delta"
        restore = targets.restore_delta_in_place if is_delta else targets.restore_iceberg_in_place
        with self._hold(work):
            return restore(work, open_lake_without_spark(self.settings), catalog)

    def elsewhere(self, table: str, to: StoreAddress, version: int | None = None) -> RestoreRecord:
        """Restore a table to a new root `to` without registering it; called again after a crash it continues. Raises
        BackupError if the point does not hold the table whole, or another object is at the destination."""
        return self.work_elsewhere(table, to, version)[1]

    def work_elsewhere(
        self, table: str, to: StoreAddress, version: int | None = None
    ) -> tuple[TableRestore, RestoreRecord]:
        """As `elsewhere`, with the finished `TableRestore`, which has the new keys."""
        work = self._make_elsewhere(table, to, version)
        with self._hold(work):
            if work.selected.table.format == "delta":
                targets.copy_delta(work)
                return work, work.record(work.place, work.open_delta(work.selected.version))
            location = targets.copy_iceberg(work).metadata_location
            return work, work.record(location, work.open_iceberg(location))

    def other_files(self, to: StoreAddress | None) -> int:
        """Restore files of no table, in their place or below `to`; returns how many objects were missing. Objects that
        were replaced since stay unchanged in their place; below `to` they are an error."""
        if to is not None:
            require_outside_target(self.backup, to)
        batches = Points(self.backup).read_copies(self.point)
        rows = [batch.filter(pc.is_null(batch.column("table_root"))).cast(POINT_COPIES) for batch in batches]
        source, copies = self.backup.source, self.backup.target_of(self.point.day)
        table = FoundTable(bucket=source.bucket, root="", format="delta", stored_root="")
        proof = TableProof(table=table, status="verified", version=0)
        selected = SelectedTable(self.point, proof, 0, pa.Table.from_batches(rows, POINT_COPIES), copies)
        address = to or source
        work = self._make(selected, address, address.prefix.rstrip("/"))

        def map_key(bucket: str, key: str) -> tuple[str, str]:
            return (bucket, key) if to is None else (to.bucket, to.prefix + key.removeprefix(source.prefix))

        with self._hold(work):
            at = work.compare(map_key)
            if at.differing and to is None:
                first = at.differing[0]
                self.report_message(
                    f"{len(at.differing):,} objects of no table were replaced and stay, as {first}"
                )
            elif at.differing:
                others = len(at.differing) - 1
                reason = f"another object is at this key, as at {others:,} other keys"
                raise BackupError(at.differing[0], reason, "Restore to another place with --to.")
            work.bring(at)
        return work.objects

    def plan(
        self, catalog: Catalog, table: str, to: StoreAddress | None, version: int | None = None
    ) -> RestorePlan:
        """The plan of a restore, in place if `to` is None; nothing is written."""
        if to is None:
            work = self._make_in_place(catalog, table, version)
            at = work.compare()
            rows = at.missing if not at.differing else work.selected.rows
            return make_restore_plan(work, rows, at.there, _plan_in_place(work, at))
        work = self._make_elsewhere(table, to, version)
        at = targets.compare_new_place(work)
        steps = [f"{at.missing.num_rows:,} objects are copied to {work.place}; {at.there:,} exist already."]
        if work.selected.table.format == "iceberg":
            steps.append("Metadata, manifests and deletes are rewritten for that place.")
        steps.append("The table is opened and its rows counted. Nothing is registered.")
        return make_restore_plan(work, at.missing, at.there, steps)

    def partition(
        self, catalog: Catalog, table: str, partition: PartitionValues, version: int | None = None
    ) -> RestoreRecord:
        """Restore a partition of a live Delta table by one commit; `partition` has a text for each partition column.

        Missing files are restored at their keys first. Recipients read the partition with the next publication.
        Raises BackupError if the point has no such partition, the table cannot take its files, or another writer
        committed, and CatalogConflict if a run of the table's set is publishing and did not end in time.
        """
        work = self._make_of_partitions(catalog, table, version)
        known = targets.find_lake_table(
            open_lake_without_spark(self.settings), catalog, normalise_location(work.place), "delta"
        )
        with self._hold(work), targets.target_lock_set(known, work):
            part, version, at, actions = _compare_partition(work, partition)
            part.bring(at)
            work.objects, work.size_bytes = part.objects, part.size_bytes
            if len(actions) > 1:
                version += 1
                targets.put_commit(work.to, work.root, version, actions)
                work.report_message(f"version {version} of {work.place} has the partition as it was")
            opened = work.open_delta(version)
        work.notes.append("Recipients read the partition with the next publication of the table.")
        return work.record(work.place, opened, is_part=True)

    def plan_of_partition(
        self, catalog: Catalog, table: str, partition: PartitionValues, version: int | None = None
    ) -> RestorePlan:
        part, _, at, actions = _compare_partition(
            self._make_of_partitions(catalog, table, version), partition
        )
        added, removed = (sum(kind in action for action in actions) for kind in ("add", "remove"))
        commit = f"A commit removes {removed:,} files of the partition and adds {added:,}."
        steps = [
            f"{at.missing.num_rows:,} missing objects are restored; {at.there:,} exist and stay.",
            commit if added or removed else "The partition is unchanged: there is no commit.",
            "Recipients read it with the next publication of the table.",
        ]
        return make_restore_plan(part, at.missing, at.there, steps)

    def _make_in_place(self, catalog: Catalog, table: str, version: int | None) -> TableRestore:
        # The folder of an Iceberg table has an id in its name: the ledger knows its location.
        latest = Ledger(catalog).latest(table)
        if latest is not None:
            location = normalise_location(latest.location).partition(targets.APART)[0]
            roots = (proof.table.root for proof in self.point.verification.tables)
            table = next((root for root in roots if self.backup.source.location(root) == location), table)
        selected = self._select(table, version)
        return self._make(selected, self.backup.source, selected.table.root)

    def _make_of_partitions(self, catalog: Catalog, table: str, version: int | None) -> TableRestore:
        work = self._make_in_place(catalog, table, version)
        if work.selected.table.format != "delta":
            raise BackupError(
                f"table {work.selected.table.root}",
                "single partitions of Iceberg tables cannot be restored",
                "Open the copy with `lakeshare restore table --mount`, and overwrite the partition from there with "
                "Spark.",
            )
        return work

    def _make_elsewhere(self, table: str, to: StoreAddress, version: int | None) -> TableRestore:
        require_outside_target(self.backup, to)
        selected = self._select(table, version)
        if to.kind == "folder":
            # The store is the folder above: files of an engine must not be in a table.
            above, _, name = to.url.rpartition("/")
            return self._make(selected, to.model_copy(update={"url": above or "/"}), name)
        return self._make(selected, to.model_copy(update={"url": f"s3://{to.bucket}"}), to.prefix.rstrip("/"))

    def _select(self, table: str, version: int | None) -> SelectedTable:
        return select_table(Points(self.backup), table, self.point.day, version)

    def _make(self, selected: SelectedTable, to: StoreAddress, root: str) -> TableRestore:
        return TableRestore(
            self.settings, self.backup, selected, to, root, self.report_message, self.report_progress
        )

    def _hold(self, work: TableRestore) -> AbstractContextManager[None]:
        return hold_point(Points(self.backup), self.point.day, work.title, unwritable=self.report_message)
