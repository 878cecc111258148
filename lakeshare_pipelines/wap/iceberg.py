"""Iceberg staging on Nessie: a branch is the staging location, a merge of the audited hash publishes it."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.model import can_widen
from lakeshare_pipelines.errors import BranchMoved, Conflict, NessieError
from lakeshare_pipelines.wap import stage
from lakeshare_pipelines.wap.checks import get_types
from lakeshare_pipelines.wap.serveable import (
    ClientMatrix,
    Rewrite,
    compute_iceberg_matrix,
    find_solvable_codes,
    plan_rewrite,
)
from lakeshare_pipelines.wap.stage import Landed
from lakeshare_pipelines.wap.staged import WHOLE, Lake, Staged, make_staging_prefix
from lakeshare_server.tables.serveability import Verdict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)


def rewrite_until_serveable(
    spark: "SparkSession", target: str, promised: Collection[str], verdicts: Callable[[], Iterable[Verdict]]
) -> tuple[str, ...]:
    """Rewrite a table until promised clients can read it, trying each code once; returns the codes it removed."""
    tried: frozenset[str] = frozenset()
    while new := (codes := find_solvable_codes(promised, verdicts())) - tried:
        _rewrite(spark, target, plan_rewrite(new), new)
        tried |= new
    if codes:
        log.warning("%s was rewritten, and still has %s", target, ", ".join(sorted(codes)))
    return tuple(sorted(str(code) for code in tried - codes))


def _rewrite(spark: "SparkSession", target: str, rewrite: Rewrite, codes: Iterable[str]) -> None:
    log.info("rewriting files of %s for its clients: %s", target, ", ".join(sorted(codes)))
    began = time.monotonic()
    if rewrite.properties:
        spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({_format_pairs(rewrite.properties, ' = ')})")
    catalog = target.split(".", 1)[0]
    [done] = spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{target}', "
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
    """The tables of a set on one Nessie branch."""

    def __init__(self, lake: Lake, contract: SetContract) -> None:
        self.lake, self.contract = lake, contract
        self.names = [table.name for table in contract.tables]

    def open(self, ref: str) -> str:
        nessie = self.lake.nessie()
        self.discard(ref)
        base = nessie.reference("main").hash
        nessie.create_branch(ref, base)
        catalog = self.lake.catalog(ref)
        for namespace in sorted({name.rsplit(".", 1)[0] for name in self.names}):
            self.lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
        return base

    def write(
        self, ref: str, table: Table, frame: "DataFrame", partitions: Sequence[str], run_id: str
    ) -> None:
        target = self._target(ref, table)
        if self.lake.spark.catalog.tableExists(target):
            self._evolve(target, table)
        else:
            self.lake.spark.sql(format_create_table(target, table))
        writer = frame.writeTo(target)
        for name, value in stage.run_properties(self.contract, run_id).items():
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.overwrite(replaced_rows_filter(table, partitions))

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        promise = table.serveable_to
        if not promise.rewrite or not promise.clients:
            return ()
        return rewrite_until_serveable(
            self.lake.spark,
            self._target(ref, table),
            promise.clients,
            lambda: self._clients(table, ref).verdicts,
        )

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        return self._clients(table, f"{staged.ref}@{staged.head}")

    def seal(self, ref: str) -> str:
        return self.lake.nessie().reference(ref).hash

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        replaced = replaced_rows_filter(table, staged.partitions_of(table.name))
        return self.table_after(staged, table).where(replaced)

    def count_written(self, staged: Staged, table: Table) -> int:
        before = self.on_main(staged, table)
        replaces = replaced_rows_filter(table, staged.partitions_of(table.name))
        unchanged = 0 if before is None else before.where(~replaces).count()
        return self.table_after(staged, table).count() - unchanged

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        return self.lake.table(table.name, staged.ref)

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        if self.lake.nessie().content(table.name, f"main@{staged.base}") is None:
            return None
        namespace, name = table.name.rsplit(".", 1)
        return self.lake.spark.table(f"{self.lake.catalog('main')}.{namespace}.`{name}@main#{staged.base}`")

    def definition(self, staged: Staged, table: Table) -> str | None:
        target, name = self._target(staged.ref, table), stage.PROPERTY + stage.DEFINITION
        properties = self.lake.spark.sql(f"SHOW TBLPROPERTIES {target}").collect()
        return next((str(row["value"]) for row in properties if row["key"] == name), None)

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
        content = self.lake.nessie().content(table.name, at)
        if content is None:
            raise NessieError(404, "CONTENT_NOT_FOUND", f"{table.name} is not at {at}")
        return compute_iceberg_matrix(self.lake.stores, content)

    def _target(self, ref: str, table: Table) -> str:
        return f"{self.lake.catalog(ref)}.{table.name}"

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
    return f"CREATE TABLE {target} ({columns}) USING iceberg{partitioned} TBLPROPERTIES ({table_properties})"


def replaced_rows_filter(table: Table, partitions: Sequence[str]) -> "Column":
    """The rows of the table that a run over `partitions` replaces: those days, or all rows."""
    from pyspark.sql import functions as F

    if not table.partition_by or tuple(partitions) == WHOLE:
        return F.lit(True)
    column = table.partition_by[0][0]
    kind = next(c.type for c in table.columns if c.name == column)
    return F.col(column).isin([F.lit(key).cast(kind) for key in partitions])
