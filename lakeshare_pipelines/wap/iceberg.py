"""Iceberg staging on Nessie: a branch is the staging location, a merge of the audited hash publishes it."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.column_types import can_widen
from lakeshare_pipelines.errors import (
    BranchMoved,
    Conflict,
    IcebergCatalogError,
    NessieError,
    NoSuchPublication,
)
from lakeshare_pipelines.spark.rows import column_by_name, filter_partitions
from lakeshare_pipelines.spark.session import set_conf, to_hadoop_path
from lakeshare_pipelines.wap import stage
from lakeshare_pipelines.wap.checks import get_types
from lakeshare_pipelines.wap.merge import (
    BEFORE,
    DELETED,
    FILES,
    ROW_FILE,
    find_new_rows,
    list_change_rows,
    plan_changes,
)
from lakeshare_pipelines.wap.serveable import (
    ClientMatrix,
    Rewrite,
    compute_iceberg_matrix,
    find_solvable_codes,
    plan_rewrite,
)
from lakeshare_pipelines.wap.stage import Landed
from lakeshare_pipelines.wap.staged import WHOLE, Lake, Staged, TablePointer, make_staging_prefix
from lakeshare_server.catalog import Publication
from lakeshare_server.lazy import LazyModule
from lakeshare_server.locations import find_root
from lakeshare_server.tables.iceberg.metadata import open_metadata
from lakeshare_server.tables.serveability import Verdict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql import functions as F
else:
    F = LazyModule("pyspark.sql.functions")

log = logging.getLogger(__name__)

SOURCE_PREFIX = "__lakeshare_source_"
FILE = "_file"
"""The metadata column of Iceberg with the file of a row."""
CHANGES_FOLDER = "_changes"
"""The folder beside a table's own files with a folder of change files per publication."""
PLANNED = "_PLANNED"
"""Marks a folder with all rows that a merge planned to change."""
ATTEMPTS = 5
MAX_SENT = "64m"
"""Size of changes that each task of a merge gets whole."""
MAX_UNTOUCHED = 0.1
"""Share of a table that a merge may write again although nothing in it changes."""
MAX_OPEN_FILES = 31
MAX_MERGED_FILES = 200
"""Files, some 1 MB each in memory, that a task of a merge may have open."""
FANOUT = "write.spark.fanout.enabled"


@dataclass(frozen=True)
class MainCommit:
    """A commit that may have changed a table on main: a hash of Nessie, or the snapshot that main was set to."""

    properties: Mapping[str, Any]
    nessie_hash: str | None = None
    snapshot_id: int | None = None


class IcebergTables(Protocol):
    """The lake's Iceberg tables on main and on branches, in Nessie or in another catalog.

    A ref is `main`, a branch, or `branch@state`: a Nessie hash, a snapshot id, or the `head` of a staged set.
    """

    def find(self, table: str, ref: str) -> TablePointer | None:
        """The state of a table at a ref; None if it has none there."""

    def commits(self, table: str) -> Iterator[MainCommit]:
        """The commits of main that may have changed a table, newest first; without Nessie only the last of ours."""

    def is_on_main(self, latest: Publication) -> bool:
        """Whether main is as this publication left it; other writers may have written to the table since."""

    def restore(self, target: Publication, properties: Mapping[str, str]) -> None:
        """Make main show the state of a publication again, in one commit with these properties.

        Raises:
            NoSuchPublication: the catalog no longer has that state.
        """

    def heads(self, table: str) -> Sequence[TablePointer]:
        """The states of a table on main and on all branches and tags; their metadata lists what readers can reach."""

    def advance(
        self, latest: Publication, ref: str | None, state: TablePointer, properties: Mapping[str, str]
    ) -> None:
        """Make main show `state`, of the branch `ref` or of main, which has the rows of the latest publication.

        Raises:
            Conflict: main is not as that publication left it.
        """


def iceberg_tables(lake: Lake) -> IcebergTables:
    from lakeshare_pipelines.wap.branches import BranchTables

    return NessieTables(lake) if lake.named_catalog is None else BranchTables(lake, lake.named_catalog)


def get_state(lake: Lake, table: str, ref: str) -> TablePointer:
    """The state of a table at a ref; raises `NessieError` or `IcebergCatalogError` if it has none there."""
    state = iceberg_tables(lake).find(table, ref)
    if state is not None:
        return state
    if lake.named_catalog is None:
        raise NessieError(404, "CONTENT_NOT_FOUND", f"{table} is not at {ref}")
    fix = "Its snapshot may have been expired; run the partition again"
    raise IcebergCatalogError(lake.named_catalog.name, f"{table} is not at {ref}", fix)


def get_changes_folder(lake: Lake, table: str, location: str) -> str:
    """The folder of a table's change files: in its own, or in the warehouse when the table is in another store.

    Table buckets take no files but those of Iceberg.
    """
    shared = lake.settings.shared_root
    if shared is None or find_root(location) == find_root(shared):
        return f"{location.rstrip('/')}/{CHANGES_FOLDER}"
    return f"{shared}/changes/{table}"


def get_planned_folder(changes_folder: str, before: int, after: int) -> str:
    """The folder of the rows by which a merge made a snapshot of another one; `drop_abandoned` removes it."""
    return f"{changes_folder}/planned-{before}-{after}"


class NessieTables:
    """The Iceberg tables of a lake in Nessie."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def find(self, table: str, ref: str) -> TablePointer | None:
        content = self.lake.nessie().content(table, ref)
        return None if content is None else TablePointer(content.metadata_location, content.snapshot_id)

    def commits(self, table: str) -> Iterator[MainCommit]:
        for commit in self.lake.nessie().history("main"):
            yield MainCommit(commit.properties, nessie_hash=commit.hash)

    def is_on_main(self, latest: Publication) -> bool:
        state = self.find(latest.table, "main")
        pinned = latest.metadata_location, latest.snapshot_id
        return state is not None and (state.metadata_location, state.snapshot_id) == pinned

    def restore(self, target: Publication, properties: Mapping[str, str]) -> None:
        publisher = self.lake.nessie("publisher")
        main = publisher.reference("main").hash
        old = publisher.content(target.table, f"main@{target.nessie_hash}")
        now = publisher.content(target.table, f"main@{main}")
        if old is None or now is None:
            raise NoSuchPublication(target.table, target.version)
        message = f"Roll {target.table} back to publication {target.version}"
        restored = replace(old, id=now.id)
        publisher.put_table(target.table, restored, "main", main, message=message, properties=properties)

    def heads(self, table: str) -> Sequence[TablePointer]:
        for attempt in range(1, ATTEMPTS + 1):
            refs = [f"{ref.name}@{ref.hash}" for ref in self.lake.nessie().references()]
            try:
                return [state for ref in refs if (state := self.find(table, ref)) is not None]
            except NessieError as error:
                # A branch that was dropped since; its set may be on main now.
                if error.code != "REFERENCE_NOT_FOUND" or attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def advance(
        self, latest: Publication, ref: str | None, state: TablePointer, properties: Mapping[str, str]
    ) -> None:
        publisher = self.lake.nessie("publisher")
        main = publisher.reference("main").hash
        now = publisher.content(latest.table, f"main@{main}")
        content = now if ref is None else publisher.content(latest.table, ref)
        pinned = latest.metadata_location, latest.snapshot_id
        is_as_before = now is not None and (now.metadata_location, now.snapshot_id) == pinned
        # A branch that was written to since is not the state that was compared.
        if now is None or content is None or not is_as_before or content.snapshot_id != state.snapshot_id:
            raise Conflict([latest.table], f"publication {latest.version}", main)
        content = replace(content, id=now.id, metadata_location=state.metadata_location)
        message = f"Maintain {latest.table}: the rows of publication {latest.version}"
        try:
            publisher.put_table(latest.table, content, "main", main, message=message, properties=properties)
        except NessieError as error:
            if error.code == "REFERENCE_CONFLICT":
                raise Conflict([latest.table], f"publication {latest.version}", main) from error
            raise


def rewrite_until_serveable(
    spark: "SparkSession",
    target: str,
    promised: Collection[str],
    verdicts: Callable[[], Iterable[Verdict]],
    branch: str | None = None,
) -> tuple[str, ...]:
    """Rewrite a table, or a branch of it, until promised clients can read it, trying each code once.

    Returns the codes that it removed.
    """
    tried: frozenset[str] = frozenset()
    while new := (codes := find_solvable_codes(promised, verdicts())) - tried:
        _rewrite(spark, target, branch, plan_rewrite(new), new)
        tried |= new
    if codes:
        log.warning("%s was rewritten, and still has %s", target, ", ".join(sorted(codes)))
    return tuple(sorted(str(code) for code in tried - codes))


def _rewrite(
    spark: "SparkSession", target: str, branch: str | None, rewrite: Rewrite, codes: Iterable[str]
) -> None:
    log.info("rewriting files of %s for its clients: %s", target, ", ".join(sorted(codes)))
    began = time.monotonic()
    if rewrite.properties:
        spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({_format_pairs(rewrite.properties, ' = ')})")
    catalog = target.split(".", 1)[0]
    on_branch = f", branch => '{branch}'" if branch else ""
    [done] = spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{target}'{on_branch}, "
        f"options => map({_format_pairs(rewrite.options, ', ')}))"
    ).collect()
    log.info(
        "rewrote %s files of %s, %s bytes, into %s in %.1f s",
        *(done.rewritten_data_files_count, target, done.rewritten_bytes_count),
        *(done.added_data_files_count, time.monotonic() - began),
    )


def _format_pairs(texts: Mapping[str, str], between: str) -> str:
    return ", ".join(f"'{key}'{between}'{value}'" for key, value in texts.items())


class IcebergStaging:
    """The tables of a set on one Nessie branch; those of a day that `is_large` are written by several tasks."""

    def __init__(self, lake: Lake, contract: SetContract, *, is_large: bool = False) -> None:
        self.lake, self.contract, self.is_large = lake, contract, is_large
        self.names = [table.name for table in contract.tables]

    def open(self, ref: str) -> str:
        nessie = self.lake.nessie()
        self.discard(ref)
        base = nessie.reference("main").hash
        nessie.create_branch(ref, base)
        # Spark would make a catalog of the branch to look for namespaces; that of a table exists.
        known = {name.rsplit(".", 1)[0] for name in self.names if nessie.content(name, ref) is not None}
        for namespace in sorted({name.rsplit(".", 1)[0] for name in self.names} - known):
            self.lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.lake.catalog(ref)}.{namespace}")
        return base

    def holds(self, base: str, publication: Publication) -> bool:
        return iceberg_tables(self.lake).find(publication.table, f"main@{base}") is not None

    def write(
        self, ref: str, table: Table, frame: "DataFrame", partitions: Sequence[str], run_id: str
    ) -> int:
        self._prepare(ref, table)
        writer = self._make_writer(ref, table, frame, run_id)
        is_local = self.lake.settings.spark_mode == "local"
        if not _has_few_files(self.contract, table, partitions):
            # By default a task keeps a file of each partition open, some 1 MB each: Spark sorts the rows instead.
            writer = writer.option("fanout-enabled", "false")
        elif self.is_large and is_local and [t for _, t in table.partition_by] == ["identity"]:
            # Otherwise one task writes each day (a cluster's adaptive execution divides such days).
            writer = writer.option("distribution-mode", "none").option("fanout-enabled", "true")
        if table.write.mode == "append":
            writer.append()
        else:
            writer.overwrite(replaced_rows_filter(self.contract, table, partitions))
        state = get_state(self.lake, table.name, ref)
        _, snapshot = open_metadata(self.lake.stores, state.metadata_location, state.snapshot_id)
        # Left out if none were added (Iceberg spec, "Optional Snapshot Summary Fields").
        return 0 if snapshot.summary is None else int(snapshot.summary.get("added-records") or 0)

    def _make_writer(self, ref: str, table: Table, frame: "DataFrame", run_id: str) -> "DataFrameWriterV2":
        writer = frame.writeTo(self.lake.table_at(table.name, ref))
        for name, value in stage.run_properties(self.contract, run_id).items():
            writer = writer.option(f"snapshot-property.{name}", value)
        return writer

    def merge(self, staged: Staged, table: Table, rows: "DataFrame") -> None:
        self._prepare(staged.ref, table)
        before = self.on_main(staged, table)
        with_files = None if before is None else before.select("*", F.col(FILE).alias(ROW_FILE))
        changes = plan_changes(self.contract, table, with_files, rows)
        columns = [column_by_name(column.name) for column in table.columns]
        new, is_merged = changes, False
        if before is not None:
            is_merged = self._merge_known(staged, table, changes.where(F.col(BEFORE).isNotNull()))
            new = changes.where(F.col(BEFORE).isNull())
        # Nessie compares only tables that the branch changed with main when it merges: each gets a snapshot.
        if not is_merged or not new.isEmpty():
            writer = self._make_writer(staged.ref, table, new.select(*columns), staged.run_id)
            writer.option("fanout-enabled", "false").append()
        self._keep_planned(staged, table, changes)

    def _merge_known(self, staged: Staged, table: Table, changes: "DataFrame") -> bool:
        """Update and delete rows of main; False if there are none to change.

        A merge that also inserts is a full outer join, for which Spark sorts the whole table (docs/adr/0065).
        """
        names = [column.name for column in table.columns]
        # Other names than the table's: the columns of both are in the conditions.
        renamed = [column_by_name(name).alias(SOURCE_PREFIX + name) for name in names]
        values = {name: F.col(SOURCE_PREFIX + name) for name in names}
        same = [column_by_name(name) == values[name] for name in table.primary_key]
        # Iceberg takes the properties of a merge's snapshot from the session.
        properties = stage.run_properties(self.contract, staged.run_id)
        conf = {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in properties.items()}
        conf["spark.sql.autoBroadcastJoinThreshold"] = MAX_SENT
        # Spark knows the size of held rows, and sends few to each task instead of sorting the table.
        source = changes.select(*renamed, DELETED).persist()
        try:
            if not (rows := source.count()):
                return False
            # Spark would read the keys of the whole table to find its files again.
            untouched, touched_files = self._measure_untouched(table, changes)
            finds_files = str(untouched > MAX_UNTOUCHED).lower()
            conf["spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"] = finds_files
            one_file: AbstractContextManager[None] = nullcontext()
            if _has_many_partitions(table, source, rows, touched_files):
                one_file = self._set_property(staged.ref, table, FANOUT, "false")
            with set_conf(self.lake.spark, conf), one_file:
                merge = source.mergeInto(self.lake.table_at(table.name, staged.ref), reduce(and_, same))
                merge.whenMatched(F.col(DELETED)).delete().whenMatched().update(values).merge()
            return True
        finally:
            source.unpersist()

    @contextmanager
    def _set_property(self, ref: str, table: Table, name: str, value: str) -> Iterator[None]:
        """Set a property of a table that has none of this name until the block ends without an error."""
        # Properties are the table's, and not a branch's.
        target = self.lake.table_at(table.name, ref if self.lake.named_catalog is None else "main")
        has_one = name in get_properties(self.lake.spark, target)
        if not has_one:
            self.lake.spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ('{name}'='{value}')")
        yield
        if not has_one:
            self.lake.spark.sql(f"ALTER TABLE {target} UNSET TBLPROPERTIES ('{name}')")

    def _measure_untouched(self, table: Table, changes: "DataFrame") -> tuple[float, int]:
        """The share of the bytes of main that is in files without rows to change, and the number of other files."""
        path, is_touched = F.col("file_path"), F.lit(True).alias("is_touched")
        touched = changes.select(F.explode(FILES).alias("file_path")).distinct().select(path, is_touched)
        files = self.lake.spark.table(f"{self.lake.table_at(table.name)}.data_files")
        size = F.col("file_size_in_bytes")
        untouched = F.sum(F.when(F.col("is_touched").isNull(), size))
        aggregates = (untouched, F.sum(size), F.count("is_touched"))
        [sums] = files.join(touched, "file_path", "left").agg(*aggregates).collect()
        return (sums[0] or 0) / sums[1] if sums[1] else 0.0, sums[2]

    def _keep_planned(self, staged: Staged, table: Table, changes: "DataFrame") -> None:
        """Keep the rows of an applied plan, so that publication need not compare the files that the merge wrote again.

        They are of no use, and compared, if other commits follow at the staging location.
        """
        before = iceberg_tables(self.lake).find(table.name, f"main@{staged.base}")
        after = get_state(self.lake, table.name, staged.ref)
        schema = self.lake.table(table.name, staged.ref).schema
        has_more = {name.lower() for name in schema.names} > {column.name.lower() for column in table.columns}
        if before is None or before.snapshot_id == after.snapshot_id or has_more:
            return
        location = open_metadata(self.lake.stores, after.metadata_location, after.snapshot_id)[0].location
        changes_folder = get_changes_folder(self.lake, table.name, location)
        folder = get_planned_folder(changes_folder, before.snapshot_id, after.snapshot_id)
        list_change_rows(table, changes).write.mode("overwrite").parquet(to_hadoop_path(folder))
        self.lake.stores.write(f"{folder}/{PLANNED}", b"")

    def record_changes_again(self, staged: Staged, table: Table) -> None:
        """Changes of Iceberg tables are recorded with their publication."""

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        promise = table.serveable_to
        if not promise.rewrite or not promise.clients:
            return ()
        # Procedures take the branch of a table as an argument.
        is_nessie = self.lake.named_catalog is None
        return rewrite_until_serveable(
            self.lake.spark,
            self.lake.table_at(table.name, ref if is_nessie else "main"),
            promise.clients,
            lambda: self._clients(table, ref).verdicts,
            branch=None if is_nessie else ref,
        )

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        return self._clients(table, f"{staged.ref}@{staged.head}")

    def seal(self, ref: str) -> str:
        return self.lake.nessie().reference(ref).hash

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        if table.write.is_incremental:
            return find_new_rows(self.on_main(staged, table), self.table_after(staged, table), FILE)
        # First, because columns can be named only when Spark runs: an audit may be what starts it.
        rows = self.table_after(staged, table)
        return rows.where(replaced_rows_filter(self.contract, table, staged.partitions_of(table.name)))

    def count_written(self, staged: Staged, table: Table) -> int:
        before, after = self.on_main(staged, table), self.table_after(staged, table)
        replaces = replaced_rows_filter(self.contract, table, staged.partitions_of(table.name))
        kept = before if before is None or table.write.is_incremental else before.where(~replaces)
        unchanged = 0 if kept is None else kept.count()
        return after.count() - unchanged

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        return self.lake.table(table.name, staged.ref)

    def table_around(self, staged: Staged, table: Table, rows: "DataFrame") -> "DataFrame":
        partitions = staged.partitions_of(table.name)
        if table.write.is_incremental:
            return self.table_after(staged, table)
        if not table.partition_by or partitions == WHOLE or table.write.mode == "replace":
            return rows
        # Iceberg skips the files of the run by this filter; rows without the value would be dropped by its first half.
        others = ~replaced_rows_filter(self.contract, table, partitions)
        for column in list_partition_columns(self.contract, table):
            others |= F.col(column).isNull()
        return self.table_after(staged, table).where(others).unionByName(rows)

    def state_on_main(self, staged: Staged, table: Table) -> int | None:
        state = iceberg_tables(self.lake).find(table.name, f"main@{staged.base}")
        return None if state is None else state.snapshot_id

    def select_own(
        self, staged: Staged, table: Table, published: Sequence[Publication]
    ) -> Sequence[Publication]:
        # Snapshots of another table have other numbers, and are read from their own metadata.
        return published

    def rows_since(
        self, staged: Staged, table: Table, published: Publication, known: "DataFrame"
    ) -> "DataFrame":
        return find_new_rows(known, self.on_main(staged, table) or known.limit(0), FILE, "_pos")

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        if iceberg_tables(self.lake).find(table.name, f"main@{staged.base}") is None:
            return None
        namespace, name = table.name.rsplit(".", 1)
        return self.lake.spark.table(f"{self.lake.catalog('main')}.{namespace}.`{name}@main#{staged.base}`")

    def definition(self, staged: Staged, table: Table) -> str | None:
        target = self.lake.table_at(table.name, staged.ref)
        return get_properties(self.lake.spark, target).get(stage.PROPERTY + stage.DEFINITION)

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        publisher = self.lake.nessie("publisher")
        head = publisher.reference(staged.ref).hash
        if head != staged.head:
            raise BranchMoved(staged.ref, staged.head, head)
        main = publisher.reference("main").hash
        # Nessie accepts a merge when the merged tables did not change; the audits read every table of the set.
        changed = [
            name
            for name in self.names
            if publisher.content(name, f"main@{staged.base}") != publisher.content(name, f"main@{main}")
        ]
        if changed:
            raise Conflict(changed, staged.base, main)
        try:
            merge = publisher.merge(
                staged.ref,
                staged.head,
                onto_hash=main,
                message=f"Publish {staged.set_name} {staged.partition}",
                author="lakeshare",
                properties=stage.commit_properties(staged, evidence),
            )
        except NessieError as error:
            if error.code == "REFERENCE_CONFLICT":
                raise Conflict(self.names, staged.base, main) from error
            raise
        if not merge.applied:
            raise NessieError(409, "NOTHING_TO_MERGE", f"{staged.ref} holds nothing that main does not have")
        return Landed(staged, evidence, merge.head, {})

    def find_incomplete(self, is_known: Callable[[str], bool]) -> list[Landed]:
        incomplete = []
        for commit in self.lake.nessie().history("main"):
            run = stage.get_landed_run(commit.properties, self.contract.name)
            if run is None:
                continue
            if is_known(run):
                break
            incomplete.append(Landed(*stage.parse_commit_properties(commit.properties), commit.hash, {}))
        return incomplete[::-1]

    def list_unpublished(self) -> list[tuple[str, datetime]]:
        branches = self.lake.nessie().branches(make_staging_prefix(self.contract.name))
        # A branch without a commit of its own carries main's time; the record of the location has the real one.
        return [(branch.name, branch.committed_at or datetime.now(UTC)) for branch in branches]

    def discard(self, ref: str) -> None:
        nessie = self.lake.nessie()
        try:
            nessie.delete_branch(ref, nessie.reference(ref).hash)
        except NessieError as error:
            if error.code != "REFERENCE_NOT_FOUND":
                raise

    def _clients(self, table: Table, at: str) -> ClientMatrix:
        return compute_iceberg_matrix(self.lake.stores, get_state(self.lake, table.name, at))

    def _prepare(self, ref: str, table: Table) -> None:
        self._prepare_at(self.lake.table_at(table.name, ref), table)

    def _prepare_at(self, target: str, table: Table) -> None:
        """Create a table, or add to it what its contract has more."""
        if self.lake.spark.catalog.tableExists(target):
            self._evolve(target, table)
        else:
            self.lake.spark.sql(format_create_table(target, table))

    def _evolve(self, target: str, table: Table) -> None:
        """Add the contract's new columns and wider types to the table; the audit reports other differences."""
        existing = get_types(self.lake.spark.table(target).schema)
        new = [column for column in table.columns if column.name.lower() not in existing]
        if new:
            added = ", ".join(f"`{column.name}` {column.type}" for column in new)
            self.lake.spark.sql(f"ALTER TABLE {target} ADD COLUMNS ({added})")
        for column in table.columns:
            if can_widen(existing.get(column.name.lower(), column.type), column.type):
                self.lake.spark.sql(f"ALTER TABLE {target} ALTER COLUMN `{column.name}` TYPE {column.type}")


def format_create_table(target: str, table: Table) -> str:
    """The CREATE TABLE of a contract's table. All columns are nullable: the audit checks required ones."""
    columns = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
    fields = ", ".join(
        f"`{column}`" if transform == "identity" else f"{transform}s(`{column}`)"
        for column, transform in table.partition_by
    )
    partitioned = f" PARTITIONED BY ({fields})" if fields else ""
    properties = {"format-version": "2"}
    if table.view is not None:
        properties[stage.PROPERTY + stage.DEFINITION] = table.view.digest
    table_properties = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    located = ""
    if table.warehouse is not None:
        # As the catalogs do: a table that is dropped and made again has a folder of its own.
        located = f"LOCATION '{table.warehouse}/{table.name.replace('.', '/')}_{uuid4()}' "
    return (
        f"CREATE TABLE IF NOT EXISTS {target} ({columns}) USING iceberg{partitioned} "
        f"{located}TBLPROPERTIES ({table_properties})"
    )


def _has_few_files(contract: SetContract, table: Table, partitions: Sequence[str]) -> bool:
    """Whether a run's rows are of few partitions of the table, each one of the set: a task has few files open."""
    if not contract.is_by_partition(table) or tuple(partitions) == WHOLE or len(partitions) > MAX_OPEN_FILES:
        return False
    columns = [column for column, _ in table.partition_by]
    return contract.partitioning.has_one_value_each and columns == list_partition_columns(contract, table)


def _has_many_partitions(table: Table, source: "DataFrame", rows: int, touched_files: int) -> bool:
    """Whether a merge may write many partitions: rows move to others than those of their files."""
    if not table.partition_by or max(rows, touched_files) <= MAX_MERGED_FILES:
        return False
    columns = [(F.col(SOURCE_PREFIX + name), by) for name, by in table.partition_by]
    values = [column if by == "identity" else F.date_trunc(by, column) for column, by in columns]
    return max(touched_files, source.select(*values).distinct().count()) > MAX_MERGED_FILES


def get_properties(spark: "SparkSession", target: str) -> dict[str, str]:
    """The properties of a table."""
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {target}").collect()}


def list_partition_columns(contract: SetContract, table: Table) -> list[str]:
    """The columns that decide to which partition of the set a row belongs."""
    second = contract.partitioning.second
    return [table.partition_by[0][0], *([] if second is None else [second.column])]


def replaced_rows_filter(contract: SetContract, table: Table, partitions: Sequence[str]) -> "Column":
    """The rows of the table that a run over `partitions` replaces: those, or all rows."""
    if not table.partition_by or tuple(partitions) == WHOLE or table.write.mode == "replace":
        return F.lit(True)
    column = table.partition_column
    return filter_partitions(contract.partitioning, column.name, column.type, partitions)
