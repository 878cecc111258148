"""Iceberg staging in any catalog: a branch of each table is the staging location, and main is fast-forwarded to it.

A catalog commits one table at a time. The commit of each table carries the record of the whole set in a table property,
so after a crash the tables that are behind are completed from those that landed.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.errors import BranchMoved, Conflict, IcebergCatalogError, NoSuchPublication
from lakeshare_pipelines.spark.catalogs import NamedCatalog, translate_catalog_errors
from lakeshare_pipelines.wap import stage
from lakeshare_pipelines.wap.iceberg import IcebergStaging, MainCommit
from lakeshare_pipelines.wap.stage import PROPERTY, Landed
from lakeshare_pipelines.wap.staged import Lake, Staged, TablePointer, make_staging_prefix
from lakeshare_server.catalog import Publication

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

MAIN = "main"
LANDED = PROPERTY + "landed"
"""The property of a table with the record of the set, or of the rollback, that main was last set by."""
SNAPSHOT = PROPERTY + "snapshot"
"""The snapshot that a rollback set main to, in its record."""
ATTEMPTS = 20
JITTER_S = 0.2


class BranchTables:
    """The Iceberg tables of a lake in a catalog without commits over several tables."""

    def __init__(self, lake: Lake, catalog: NamedCatalog) -> None:
        self.lake, self.catalog = lake, catalog

    def find(self, table: str, ref: str) -> TablePointer | None:
        opened, (branch, _, state) = self.load(table), ref.partition("@")
        if opened is None:
            return None
        if state.startswith("{"):
            # The `head` and `base` of a set have the snapshots of all its tables.
            snapshot = json.loads(state).get(table)
        elif state:
            snapshot = int(state) if state.isdecimal() else None
        else:
            snapshot = get_snapshot_id(opened, branch)
        if snapshot is None or opened.snapshot_by_id(snapshot) is None:
            return None
        return TablePointer(opened.metadata_location, snapshot)

    def commits(self, table: str) -> Iterator[MainCommit]:
        opened = self.load(table)
        record = None if opened is None else get_landing(opened)
        if record is not None:
            yield MainCommit(record, snapshot_id=record.get(SNAPSHOT))

    def is_on_main(self, latest: Publication) -> bool:
        state = self.find(latest.table, MAIN)
        return state is not None and state.snapshot_id == latest.snapshot_id

    def restore(self, target: Publication, properties: Mapping[str, str]) -> None:
        opened = self.require(target.table)
        if target.snapshot_id is None or opened.snapshot_by_id(target.snapshot_id) is None:
            raise NoSuchPublication(target.table, target.version)
        record = {**properties, SNAPSHOT: target.snapshot_id}
        expected = {MAIN: get_snapshot_id(opened, MAIN)}
        self.commit(target.table, expected, set_main(opened, target.snapshot_id, record))

    def heads(self, table: str) -> Sequence[TablePointer]:
        # One metadata file lists the snapshots of all branches and tags.
        opened = self.require(table)
        return [
            TablePointer(opened.metadata_location, ref.snapshot_id) for ref in [*opened.refs().values()][:1]
        ]

    def advance(
        self, latest: Publication, ref: str | None, state: TablePointer, properties: Mapping[str, str]
    ) -> None:
        record = {**properties, SNAPSHOT: state.snapshot_id}
        updates = set_main(self.require(latest.table), state.snapshot_id, record)
        self.commit(latest.table, {MAIN: latest.snapshot_id}, updates)

    def remove_snapshots(self, table: str, snapshots: Collection[int]) -> None:
        """Remove snapshots from the table's metadata, but those that lead from main to a branch; their files stay.

        Without them, a set that is staged on the branch would no longer descend from main.
        """
        from pyiceberg.table.update import RemoveSnapshotsUpdate

        opened = self.require(table)
        main = get_snapshot_id(opened, MAIN)
        history, kept = set(list_ancestors(opened, main)), set[int]()
        for ref in opened.refs().values():
            kept |= {ref.snapshot_id} | (set(list_ancestors(opened, ref.snapshot_id)) - history)
        listed = {snapshot.snapshot_id for snapshot in opened.snapshots()}
        removed = sorted(listed.intersection(snapshots) - kept)
        if removed:
            self.commit(table, {MAIN: main}, (RemoveSnapshotsUpdate(snapshot_ids=removed),))

    def show(
        self, table: str, metadata_location: str, snapshot_id: int, properties: Mapping[str, str]
    ) -> bool:
        """Make main show a restored snapshot; False if it did already. A table that the catalog lacks is registered.

        Raises:
            IcebergCatalogError: the catalog has other metadata of the table, without the snapshot.
        """
        opened, is_new = self.load(table), False
        if opened is None:
            self.create_namespace(table)
            with translate_catalog_errors(self.catalog.name):
                opened, is_new = self.lake.iceberg.register_table(table, metadata_location), True
        if opened.snapshot_by_id(snapshot_id) is None:
            reason = f"its metadata of {table} is without snapshot {snapshot_id}"
            fix = f"Drop the table there without its files, then restore again, which registers {metadata_location}"
            raise IcebergCatalogError(self.catalog.name, reason, fix)
        main = get_snapshot_id(opened, MAIN)
        if main == snapshot_id and not properties:
            return is_new
        record = {**properties, SNAPSHOT: snapshot_id}
        self.commit(table, {MAIN: main}, set_main(opened, snapshot_id, record))
        return True

    def create_namespace(self, table: str) -> None:
        """Create the namespace of a table, unless it exists."""
        with translate_catalog_errors(self.catalog.name):
            self.lake.iceberg.create_namespace_if_not_exists(table.rsplit(".", 1)[0])

    def load(self, table: str) -> "IcebergTable | None":
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            with translate_catalog_errors(self.catalog.name):
                return self.lake.iceberg.load_table(table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def require(self, table: str) -> "IcebergTable":
        opened = self.load(table)
        if opened is None:
            fix = "Run the partition again, which creates it"
            raise IcebergCatalogError(self.catalog.name, f"it has no table {table}", fix)
        return opened

    def commit(
        self, table: str, expected: Mapping[str, int | None], updates: "tuple[TableUpdate, ...]"
    ) -> None:
        """Commit to a table if its refs are at the expected snapshots; changes of other refs in between do not matter.

        Raises:
            Conflict: a ref is at another snapshot.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

        for _ in range(ATTEMPTS):
            opened = self.require(table)
            found = {ref: get_snapshot_id(opened, ref) for ref in expected}
            if found != expected:
                raise Conflict([table], json.dumps(expected), json.dumps(found))
            refs = (AssertRefSnapshotId(ref=ref, snapshot_id=snapshot) for ref, snapshot in expected.items())
            checks: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=opened.metadata.table_uuid), *refs)
            try:
                with translate_catalog_errors(self.catalog.name):
                    self.lake.iceberg.commit_table(opened, checks, updates)
            except NotImplementedError as error:
                reason = (
                    f"pyiceberg does not write {table}, of Iceberg's version {opened.format_version}, there"
                )
                fix = "Keep the table at version 2, or use a REST catalog, which writes it itself, or Nessie"
                raise IcebergCatalogError(self.catalog.name, reason, fix) from error
            except CommitFailedException as error:
                log.info("%s changed during a commit: %s", table, error)
                time.sleep(random.uniform(0, JITTER_S))  # noqa: S311  two writers in step, not a secret
            else:
                return
        reason = f"{table} changed during each of {ATTEMPTS} attempts to commit"
        raise IcebergCatalogError(self.catalog.name, reason, "Run again when fewer writers are at work")


class BranchStaging(IcebergStaging):
    """The tables of a set, each with a branch of the run."""

    @property
    def tables(self) -> BranchTables:
        if self.lake.named_catalog is None:
            raise ValueError("tables of Nessie have IcebergStaging")
        return BranchTables(self.lake, self.lake.named_catalog)

    def open(self, ref: str) -> str:
        self.discard(ref)
        base: dict[str, int | None] = {}
        for name in self.names:
            self.tables.create_namespace(name)
            opened = self.tables.load(name)
            main = base[name] = None if opened is None else get_snapshot_id(opened, MAIN)
            if opened is not None and main is not None:
                self.tables.commit(name, {ref: None}, (set_branch(opened, ref, main),))
        return format_snapshots(base)

    def seal(self, ref: str) -> str:
        heads = {name: get_snapshot_id(self.tables.require(name), ref) for name in self.names}
        missing = [name for name, snapshot in heads.items() if snapshot is None]
        if missing:
            reason = f"{', '.join(missing)} has no branch {ref}"
            raise IcebergCatalogError(self.tables.catalog.name, reason, "Run the partition again")
        return format_snapshots(heads)

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        if not staged.head:
            return self.lake.table(table.name, staged.ref)
        return self._read(table, json.loads(staged.head)[table.name])

    def state_on_main(self, staged: Staged, table: Table) -> int | None:
        snapshot: int | None = json.loads(staged.base).get(table.name)
        return snapshot

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        snapshot = self.state_on_main(staged, table)
        return None if snapshot is None else self._read(table, snapshot)

    def definition(self, staged: Staged, table: Table) -> str | None:
        return self.tables.require(table.name).properties.get(PROPERTY + stage.DEFINITION)

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        # After a crash the audited snapshots land, whatever the branches have by now.
        if not self._find_landed(staged.ref):
            head = self.seal(staged.ref)
            if head != staged.head:
                raise BranchMoved(staged.ref, staged.head, head)
        try:
            return self._land(staged, evidence)
        except Conflict:
            self._revert(staged)
            raise

    def _land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        heads, base = json.loads(staged.head), json.loads(staged.base)
        record = stage.commit_properties(staged, evidence)
        landed = self._find_landed(staged.ref)
        # The contract may have got other tables since a crash.
        waiting = [name for name in heads if name not in landed]
        mains, changed = dict[str, int | None](), list[str]()
        for name in waiting:
            opened = self.tables.require(name)
            mains[name] = get_snapshot_id(opened, MAIN)
            # Each snapshot descends from a table without rows.
            is_based = base[name] is None or base[name] in list_ancestors(opened, heads[name])
            if mains[name] != base[name] or not is_based:
                changed.append(name)
        if changed:
            raise Conflict(changed, staged.base, format_snapshots(mains))
        for name in waiting:
            self._commit(name, base[name], heads[name], record)
        return Landed(staged, evidence, None, {}, heads)

    def _commit(self, name: str, base: int | None, head: int, record: Mapping[str, object]) -> None:
        updates = set_main(self.tables.require(name), head, record)
        self.tables.commit(name, {MAIN: base}, updates)

    def find_incomplete(self, is_known: Callable[[str], bool]) -> list[Landed]:
        incomplete: dict[str, Mapping[str, Any]] = {}
        for name in self.names:
            opened = self.tables.load(name)
            record = None if opened is None else get_landing(opened)
            run = None if record is None else stage.get_landed_run(record, self.contract.name)
            if record is not None and run is not None and not is_known(run):
                incomplete[run] = record
        completed = (self._complete(*stage.parse_commit_properties(record)) for record in incomplete.values())
        return [landed for landed in completed if landed is not None]

    def _complete(self, staged: Staged, evidence: Mapping[str, object]) -> Landed | None:
        """Land the rest of a set that landed in part; if that is impossible, it is reverted: None."""
        try:
            return self.land(staged, evidence)
        except Conflict as obstacle:
            log.warning(
                "%s landed in part and cannot be completed: %s It is reverted; run it again, or `wap retry`.",
                staged.title,
                obstacle,
            )
        return None

    def _revert(self, staged: Staged) -> None:
        """Set main of the tables that landed back. Later commits of other writers stay, and then so do the rows."""
        from pyiceberg.table.update import RemovePropertiesUpdate, RemoveSnapshotRefUpdate

        heads, base = json.loads(staged.head), json.loads(staged.base)
        for name in heads.keys() & self._find_landed(staged.ref):
            opened = self.tables.require(name)
            main = get_snapshot_id(opened, MAIN)
            updates: tuple[TableUpdate, ...] = (RemovePropertiesUpdate(removals=[LANDED]),)
            if main != heads[name]:
                log.warning("%s keeps rows of %s: it was written to since", name, staged.title)
            elif base[name] is None:
                updates = (RemoveSnapshotRefUpdate(ref_name=MAIN), *updates)
            else:
                updates = (set_branch(opened, MAIN, base[name]), *updates)
            self.tables.commit(name, {MAIN: main}, updates)

    def list_unpublished(self) -> list[tuple[str, datetime]]:
        since: dict[str, datetime] = {}
        for name in self.names:
            opened = self.tables.load(name)
            for ref, branch in opened.refs().items() if opened is not None else ():
                if opened is not None and ref.startswith(make_staging_prefix(self.contract.name)):
                    # A branch without a commit of its own has main's; the record of the location has its real time.
                    snapshot = opened.snapshot_by_id(branch.snapshot_id)
                    ms = None if snapshot is None else snapshot.timestamp_ms
                    at = datetime.now(UTC) if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
                    since[ref] = max(since.get(ref, at), at)
        return list(since.items())

    def discard(self, ref: str) -> None:
        from pyiceberg.table.update import RemoveSnapshotRefUpdate

        landed = self._find_landed(ref)
        if landed and len(landed) < len(self.names):
            # A crash came between two tables: the repair still needs the other branches.
            return
        for name in self.names:
            opened = self.tables.load(name)
            if opened is not None and (snapshot := get_snapshot_id(opened, ref)) is not None:
                self.tables.commit(name, {ref: snapshot}, (RemoveSnapshotRefUpdate(ref_name=ref),))

    def _find_landed(self, ref: str) -> list[str]:
        """The tables whose main was last set by the set staged at `ref`."""
        opened = ((name, self.tables.load(name)) for name in self.names)
        records = ((name, get_landing(table)) for name, table in opened if table is not None)
        return [
            name for name, record in records if record is not None and record.get(PROPERTY + "ref") == ref
        ]

    def _prepare(self, ref: str, table: Table) -> None:
        target = self.lake.table_at(table.name)
        # New columns are the table's, not the branch's: readers of main see them at once, without values.
        self._prepare_at(target, table)
        if get_snapshot_id(self.tables.require(table.name), ref) is None:
            # pyiceberg makes no branch in a table without snapshots; Spark does, with an empty snapshot.
            self.lake.spark.sql(f"ALTER TABLE {target} CREATE BRANCH `{ref}`")

    def _read(self, table: Table, snapshot: int) -> "DataFrame":
        reader = self.lake.spark.read.option("versionAsOf", snapshot)
        return reader.table(self.lake.table_at(table.name))


def get_snapshot_id(opened: "IcebergTable", ref: str) -> int | None:
    found = opened.refs().get(ref)
    return None if found is None else found.snapshot_id


def get_landing(opened: "IcebergTable") -> Mapping[str, Any] | None:
    """The record of the set or rollback that main was last set by; None before the first."""
    text = opened.properties.get(LANDED)
    return None if text is None else json.loads(text)


def list_ancestors(opened: "IcebergTable", snapshot_id: int | None) -> list[int]:
    """A snapshot and those that it descends from, newest first, as far as the metadata lists them."""
    found = list[int]()
    while snapshot_id is not None and (snapshot := opened.snapshot_by_id(snapshot_id)) is not None:
        found.append(snapshot_id)
        snapshot_id = snapshot.parent_snapshot_id
    return found


def format_snapshots(snapshots: Mapping[str, int | None]) -> str:
    return json.dumps(snapshots, separators=(",", ":"), sort_keys=True)


def set_branch(opened: "IcebergTable", ref: str, snapshot: int) -> "TableUpdate":
    """The update that creates a branch, or sets it to another snapshot and keeps its retention."""
    from pyiceberg.table.update import SetSnapshotRefUpdate

    now = opened.refs().get(ref)
    return SetSnapshotRefUpdate(
        ref_name=ref,
        type="branch",
        snapshot_id=snapshot,
        max_ref_age_ms=None if now is None else now.max_ref_age_ms,
        max_snapshot_age_ms=None if now is None else now.max_snapshot_age_ms,
        min_snapshots_to_keep=None if now is None else now.min_snapshots_to_keep,
    )


def set_main(
    opened: "IcebergTable", snapshot: int, record: Mapping[str, object]
) -> "tuple[TableUpdate, ...]":
    """The updates of one commit that sets main to a snapshot and leaves a record of why."""
    from pyiceberg.table.update import SetPropertiesUpdate

    text = json.dumps(record, separators=(",", ":"), sort_keys=True)
    return set_branch(opened, MAIN, snapshot), SetPropertiesUpdate(updates={LANDED: text})
