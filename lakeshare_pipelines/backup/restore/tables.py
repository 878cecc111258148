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
from lakeshare_pipelines.backup.copy.engine import Tell
from lakeshare_pipelines.backup.model import HELD, FoundTable, Point, TableProof
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
    Placed,
    Say,
    Work,
    archived,
    opened_delta,
    placed,
    require_outside_target,
    silent,
    stored_objects,
    unsaid,
)
from lakeshare_pipelines.backup.restore.delta import (
    Add,
    live_adds,
    log_names,
    newest_commit,
    put_commit,
    require_no_hole,
)
from lakeshare_pipelines.backup.restore.selection import Chosen, RestorePlan, RestoreRecord, Way, Wish, chosen
from lakeshare_pipelines.backup.restore.targets import (
    APART,
    brought,
    delta_elsewhere,
    delta_in_place,
    iceberg_elsewhere,
    iceberg_in_place,
    lake_table,
    locked,
    new_places,
    require_free,
    root_of_name,
)
from lakeshare_pipelines.backup.retention import reading
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import storage_options
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import without_spark
from lakeshare_server.catalog import Catalog
from lakeshare_server.errors import LakeshareError
from lakeshare_server.storage import normalised
from lakeshare_server.tables.lines import z85_bytes


@dataclass(frozen=True)
class Restored:
    """What became of several tables: one that failed keeps none of the others."""

    records: tuple[RestoreRecord, ...]
    failures: tuple[str, ...]
    """Sentences, each with the table's name."""


def restore_each(
    names: Iterable[str], restore: Callable[[str], RestoreRecord], say: Say = unsaid
) -> Restored:
    """Restore tables one after the other; what fails is told of, and the next one begun."""
    records, failures = [], []
    for name in names:
        try:
            records.append(restore(name))
        except LakeshareError as error:
            failures.append(f"{name}: {error}")
            say(f"{name} could not be restored: {error}")
    return Restored(tuple(records), tuple(failures))


def tables_of_set(settings: LakeSettings, name: str) -> list[str]:
    """The tables that a contract publishes together.

    Raises:
        BackupError: there is no such set.
    """
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    if name not in contracts:
        raise BackupError(f"set {name}", f"the contracts are {', '.join(contracts)}", "Name one of them.")
    return [table.name for table in contracts[name].tables]


def tables_of_point(point: Point) -> list[str]:
    """The roots of all tables of a point."""
    return [proof.table.root for proof in point.verification.tables]


def restore_other_files(
    settings: LakeSettings, backup: Backup, point: Point, to: StoreAddress | None, say: Say = unsaid
) -> int:
    """Bring back what belongs to no table, in its place or below `to`; returns how many objects were missing.

    What is another object now stays in its place.

    Raises:
        BackupError: a copy is missing or damaged, or something else is at an object's key below `to`.
    """
    if to is not None:
        require_outside_target(backup, to)
    points = Points(backup)
    rows = [batch.filter(pc.is_null(batch.column("table_root"))) for batch in points.held(point)]
    table = FoundTable(bucket=backup.source.bucket, root="", format="delta", stored_root="")
    proof = TableProof(table=table, status="verified", version=0)
    held = pa.Table.from_batches([one.cast(HELD) for one in rows], HELD)
    choice = Chosen(point, proof, 0, held, backup.target_of(point.day))
    address = backup.source if to is None else to
    work = Work(settings, backup, choice, address, address.prefix.rstrip("/"), say, silent)

    def goes(bucket: str, key: str) -> tuple[str, str]:
        if to is None:
            return bucket, key
        return to.bucket, f"{to.prefix}{key.removeprefix(backup.source.prefix)}"

    with reading(points, point.day, work.title, unwritable=say):
        at = placed(choice, address, work.root, goes)
        if at.differing and to is None:
            say(f"{len(at.differing):,} objects of no table are others now and stay, as {at.differing[0]}")
        elif at.differing:
            raise BackupError(
                at.differing[0],
                f"something else is there now, as at {len(at.differing) - 1:,} other keys",
                "Restore to another place with --to.",
            )
        work.bring(at)
    return work.objects


def plan_of(work: Work, *, in_place: bool) -> RestorePlan:
    """The plan of a restore; nothing is written.

    Raises:
        BackupError: a copy is missing or damaged, or the place cannot take the table.
    """
    if in_place:
        at = placed(work.choice, work.to, work.root, lambda bucket, key: (bucket, key))
        steps, rows = _in_place(work, at), at.missing if not at.differing else work.choice.rows
    else:
        at = placed(brought(work), work.to, work.root, new_places(work))
        require_free(work, at)
        steps, rows = _elsewhere(work, at), at.missing
    return told_of(work, rows, at.there, steps, "in_place" if in_place else "elsewhere")


def told_of(work: Work, rows: pa.Table, there: int, steps: list[str], way: Way) -> RestorePlan:
    """The plan of a restore that brings these rows and goes these steps.

    Raises:
        BackupError: a copy is missing or damaged.
    """
    thawed = archived(stored_objects(work.choice, rows))
    size_bytes = int(pc.sum(rows["size_bytes"]).as_py() or 0)
    requests = rows.num_rows + len(thawed)
    if thawed:
        steps = [f"{len(thawed):,} archived copies are asked for first, which takes hours.", *steps]
    return RestorePlan(
        table=work.choice.table,
        day=work.choice.point.day,
        version=work.choice.version,
        place=work.place,
        way=way,
        objects=rows.num_rows,
        size_bytes=size_bytes,
        there=there,
        archived=len(thawed),
        requests=requests,
        usd=round(_usd(work, requests, size_bytes, sum(one.size_bytes or 0 for one in thawed)), 6),
        minutes=round(_minutes(work, rows, size_bytes), 2),
        steps=tuple(steps),
    )


def _in_place(work: Work, at: Placed) -> list[str]:
    """The steps of in_place.py, in the same order."""
    version, table = work.choice.version, work.choice.table
    if at.differing:
        steps = [
            f"{len(at.differing):,} keys are taken by something else, as {at.differing[0]}: nothing is put there.",
            f"The table's {work.choice.rows.num_rows:,} objects go to {work.place}{APART}{work.choice.point.day}.",
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


def _delta_pointer(work: Work) -> str:
    names = log_names(work.store, work.root)
    newest, version = newest_commit(names), work.choice.version
    require_no_hole(work.place, names, version)
    if newest is None or newest <= version:
        return f"The log ends at version {version}, as it did."
    return f"The log went on to version {newest}: a commit shows version {version} again."


def _elsewhere(work: Work, at: Placed) -> list[str]:
    steps = [f"{at.missing.num_rows:,} objects are copied to {work.place}; {at.there:,} are there already."]
    if work.choice.table.format == "iceberg":
        steps.append("Metadata, manifests and deletes are written anew for that place.")
    return [*steps, "The table is opened and its rows counted. Nothing is registered."]


def _usd(work: Work, requests: int, size_bytes: int, thawed_bytes: int) -> float:
    prices, kinds = work.backup.prices, (work.choice.copies.kind, work.to.kind)
    if kinds == ("folder", "folder"):
        return 0.0
    usd = requests / MILLION * prices.per_million_copies if work.to.kind == "s3" else 0.0
    return usd + size_bytes / GIB * prices.per_gib_transferred + thawed_bytes / GIB * prices.per_gib_thawed


def _minutes(work: Work, rows: pa.Table, size_bytes: int) -> float:
    """The slower of the two: requests, and bytes; thawing is not in it."""
    copies, to = work.choice.copies, work.to
    if copies.kind == to.kind == "s3" and copies.endpoint == to.endpoint:
        in_flight = work.backup.in_flight
        by_requests = rows.num_rows / min(S3_COPIES_A_S, in_flight / S3_COPY_S)
        return float(max(by_requests, size_bytes / (S3_BYTES_A_S * in_flight)) / 60)
    return float(max(rows.num_rows / LOCAL_FILES_A_S, size_bytes / LOCAL_BYTES_A_S) / 60)


UUID_CHARS = 20
LEGACY_WRITER = 6
"""Up to this version of writers a protocol has no list of features (Delta PROTOCOL.md, "Protocol Evolution")."""
# What asks nothing of a commit that only brings back files as they were.
BORNE = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "variantType",
}  # fmt: skip
OF_REMOVE = (
    "path",
    "partitionValues",
    "size",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)
Wanted = Mapping[str, str | None]
Adds = dict[tuple[str, str | None], Add]


def restore_partition(work: Work, wanted: Wanted) -> RestoreRecord:
    """Put a partition of a live Delta table back to what it was in the point; `wanted` has a text for each column.

    Files that are missing are put back at their keys first. Publications stay what they are: recipients read the
    partition with the next run.

    Raises:
        BackupError: the point has no such partition, the table's columns or features are others now, something else
            is at a file's key, or somebody committed meanwhile; the table shows what it did before.
    """
    found = _compared(work, wanted)
    found.part.bring(found.at)
    work.objects, work.size_bytes = found.part.objects, found.part.size_bytes
    version = found.now
    if len(found.actions) > 1:
        version = found.now + 1
        put_commit(work.to, work.root, version, found.actions)
        work.say(f"version {version} of {work.place} has the partition as it was")
    opened = opened_delta(work.to, work.root, version)
    work.notes.append("Recipients read the partition with the next publication of the table.")
    return work.record(work.place, opened, is_part=True)


def plan_of_partition(work: Work, wanted: Wanted) -> RestorePlan:
    """What putting a partition back would do and take; nothing is written.

    Raises:
        BackupError: it would be refused.
    """
    found = _compared(work, wanted)
    comes = sum("add" in action for action in found.actions)
    goes = sum("remove" in action for action in found.actions)
    commit = f"A commit takes {goes:,} files out of the partition and brings {comes:,} back into it."
    steps = [
        f"{found.at.missing.num_rows:,} missing objects are put back; {found.at.there:,} are there and stay.",
        commit if comes or goes else "The partition is what it was: there is no commit.",
        "Recipients read it with the next publication of the table.",
    ]
    return told_of(found.part, found.at.missing, found.at.there, steps, "in_place")


@dataclass(frozen=True)
class _Compared:
    now: int
    part: Work
    at: Placed
    actions: list[dict[str, Any]]


def _compared(work: Work, wanted: Wanted) -> _Compared:
    """The partition in the point beside what it is now."""
    now = newest_commit(log_names(work.store, work.root))
    if now is None:
        raise BackupError(work.place, "no table is there", "Restore the whole table in place.")
    _require_like(work, now)
    copies, stored_root = open_store(work.choice.copies), work.choice.table.stored_root
    then = _of_partition(live_adds(copies, stored_root, work.choice.version), wanted)
    live = _of_partition(live_adds(work.store, work.root, now), wanted)
    if not then:
        told = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise BackupError(
            f"point {work.choice.point.day}, table {work.choice.table.root}",
            f"it has no files of {told} at version {work.choice.version}",
            "Values are spelt as in the table's log; `lakeshare backup list` tells the other points.",
        )
    part = _part(work, then)
    at = placed(part.choice, work.to, work.root, lambda bucket, key: (bucket, key))
    if at.differing:
        raise BackupError(
            at.differing[0], "something else is there now", "Restore the table to another place with --to."
        )
    return _Compared(now, part, at, _actions(then, live, work.choice.version))


def _part(work: Work, adds: Adds) -> Work:
    """The restore of these files alone."""
    keys = {key for add in adds.values() for key in _keys(work.choice.table.root, add)}
    rows = work.choice.rows
    mine = rows.filter(pa.array([key in keys for key in rows["key"].to_pylist()], pa.bool_()))
    if absent := keys - set(mine["key"].to_pylist()):
        raise BackupError(
            f"point {work.choice.point.day}", f"it does not hold {min(absent)}", "Restore from another point."
        )
    return replace(work, choice=replace(work.choice, rows=mine))


def _keys(root: str, add: Add) -> list[str]:
    """Keys of a data file and of the file of its deletion vector (Delta PROTOCOL.md, "Deletion Vector Descriptor")."""
    keys = [f"{root}/{unquote(add['path'])}"]
    vector = add.get("deletionVector")
    if vector is not None and vector["storageType"] == "u":
        prefix, encoded = vector["pathOrInlineDv"][:-UUID_CHARS], vector["pathOrInlineDv"][-UUID_CHARS:]
        name = f"deletion_vector_{UUID(bytes=z85_bytes(encoded))}.bin"
        keys.append("/".join(part for part in (root, prefix, name) if part))
    return keys


def _of_partition(adds: Adds, wanted: Wanted) -> Adds:
    return {
        identity: add
        for identity, add in adds.items()
        if all(add["partitionValues"].get(name, "") == value for name, value in wanted.items())
    }


def _actions(then: Adds, live: Adds, version: int) -> list[dict[str, Any]]:
    """A commit's actions; only the first, which tells of it, where the partition is what it was."""
    now_ms = int(time.time() * 1000)
    told = {
        "operation": "RESTORE",
        "operationParameters": {"version": str(version)},
        "engineInfo": "lakeshare",
    }
    actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": now_ms, "isBlindAppend": False, **told}}]
    for identity in live.keys() - then.keys():
        said = {name: live[identity].get(name) for name in OF_REMOVE}
        said |= {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
        actions.append({"remove": _plain(said)})
    for identity in then.keys() - live.keys():
        actions.append({"add": _plain({**then[identity], "dataChange": True})})
    return actions


def _plain(action: dict[str, Any]) -> dict[str, Any]:
    """As a log's JSON has it: fields without a value are left out, maps of a checkpoint are objects."""
    told = {name: value for name, value in action.items() if value is not None}
    for name in ("partitionValues", "tags"):
        if isinstance(told.get(name), list):
            told[name] = dict(told[name])
    if "deletionVector" in told:
        told["deletionVector"] = {
            name: value for name, value in told["deletionVector"].items() if value is not None
        }
    # Statistics as a structure are a checkpoint's only.
    return {name: value for name, value in told.items() if not name.endswith("_parsed")}


def _require_like(work: Work, now: int) -> None:
    """Refuse a table whose columns changed, or whose features ask more of a commit than files that come back.

    Raises:
        BackupError: says which.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        live = DeltaTable(work.place, now, storage_options(work.to) or None)
        stored = work.choice.copies.location(work.choice.table.stored_root)
        then = DeltaTable(stored, work.choice.version, storage_options(work.choice.copies) or None)
    except (DeltaError, OSError) as error:
        said = str(error).splitlines()[0]
        raise BackupError(
            work.place, f"it does not open: {said}", "Restore the whole table in place."
        ) from error
    if json.loads(live.schema().to_json()) != json.loads(then.schema().to_json()):
        raise BackupError(
            work.place, "its columns changed since", "Restore the whole table to another place."
        )
    if live.metadata().configuration.get("delta.appendOnly") == "true":
        raise BackupError(work.place, "it takes appends only", "Unset delta.appendOnly, then restore.")
    protocol = live.protocol()
    features = set(protocol.writer_features or ())
    strange = features - BORNE if protocol.min_writer_version > LEGACY_WRITER else set()
    if strange:
        raise BackupError(
            work.place,
            f"its features {', '.join(sorted(strange))} ask more of a commit than lakeshare knows",
            "Restore the table to another place, and overwrite the partition from there.",
        )


@dataclass(frozen=True)
class Restores:
    """Tables of one point, on their way back. `say` gets sentences, `tell` how far the copying is."""

    settings: LakeSettings
    backup: Backup
    point: Point
    say: Say = unsaid
    tell: Tell = silent

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
        restore = delta_in_place if work.choice.table.format == "delta" else iceberg_in_place
        with self._reading(work):
            return restore(work, without_spark(self.settings), catalog)

    def elsewhere(self, table: str, to: StoreAddress, version: int | None = None) -> RestoreRecord:
        """Restore a table to a place of its own; `to` is its new root, where nothing else may be.

        Nothing is registered. Called again after a crash it goes on.

        Raises:
            BackupError: the point does not hold the table whole, or something else is at that place.
        """
        return self.work_elsewhere(table, to, version)[1]

    def work_elsewhere(
        self, table: str, to: StoreAddress, version: int | None = None
    ) -> tuple[Work, RestoreRecord]:
        """`elsewhere`, with the work that was done: it knows where each object went."""
        work = self._beside(table, to, version)
        restore = delta_elsewhere if work.choice.table.format == "delta" else iceberg_elsewhere
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
            return plan_of(self._where_it_was(catalog, table, version), in_place=True)
        return plan_of(self._beside(table, to, version), in_place=False)

    def partition(
        self, catalog: Catalog, table: str, partition: Wanted, version: int | None = None
    ) -> RestoreRecord:
        """Put a partition of a live Delta table back to what it was in the point, by one commit.

        Raises:
            BackupError: the table is Iceberg's, or as `restore_partition` says.
            CatalogConflict: a run of the table's set is publishing and did not end in time.
        """
        work = self._of_partitions(catalog, table, version)
        known = lake_table(without_spark(self.settings), catalog, normalised(work.place), "delta")
        with self._reading(work), locked(known, work):
            return restore_partition(work, partition)

    def plan_of_partition(
        self, catalog: Catalog, table: str, partition: Wanted, version: int | None = None
    ) -> RestorePlan:
        """What `partition` would do and take; nothing is written.

        Raises:
            BackupError: it would be refused.
        """
        return plan_of_partition(self._of_partitions(catalog, table, version), partition)

    def _where_it_was(self, catalog: Catalog, table: str, version: int | None) -> Work:
        choice = self._chosen(_root(catalog, self.backup, self.point, table), version)
        return self._work(choice, self.backup.source, choice.table.root)

    def _of_partitions(self, catalog: Catalog, table: str, version: int | None) -> Work:
        work = self._where_it_was(catalog, table, version)
        if work.choice.table.format != "delta":
            raise BackupError(
                f"table {work.choice.table.root}",
                "partitions of Iceberg tables are not put back by themselves",
                "Open the copy with `lakeshare restore table --mount`, and overwrite the partition from there with "
                "Spark.",
            )
        return work

    def _beside(self, table: str, to: StoreAddress, version: int | None) -> Work:
        require_outside_target(self.backup, to)
        choice = self._chosen(table, version)
        if to.kind == "folder":
            # The folder above is the store: what an engine keeps for itself does not belong into a table.
            above, _, name = to.url.rpartition("/")
            return self._work(choice, to.model_copy(update={"url": above or "/"}), name)
        return self._work(choice, to.model_copy(update={"url": f"s3://{to.bucket}"}), to.prefix.rstrip("/"))

    def _chosen(self, table: str, version: int | None) -> Chosen:
        return chosen(Points(self.backup), Wish(table, self.point.day, version))

    def _work(self, choice: Chosen, to: StoreAddress, root: str) -> Work:
        return Work(self.settings, self.backup, choice, to, root, self.say, self.tell)

    def _reading(self, work: Work) -> AbstractContextManager[None]:
        return reading(Points(self.backup), self.point.day, work.title, unwritable=self.say)


def _root(catalog: Catalog, backup: Backup, point: Point, table: str) -> str:
    """The root's key, where the ledger knows the table by that name: its Iceberg tables have an id in their folder."""
    location = root_of_name(catalog, table)
    roots = {proof.table.root for proof in point.verification.tables}
    for root in roots:
        if location is not None and backup.source.location(root) == location:
            return root
    return table
