"""Staging: write a set's deliveries to a location that no reader sees; list, repair and remove such locations."""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.contracts.model import View
from lakeshare_pipelines.errors import ContractError, PipelineError, WarehouseError
from lakeshare_pipelines.ingest import (
    Delivery,
    blame_changed_delivery,
    find_deliveries_of_run,
    require_unchanged,
)
from lakeshare_pipelines.ingest.frame import DeliveredTable, TableFrame, read_delivery
from lakeshare_pipelines.ingest.readable import ReadingLimits
from lakeshare_pipelines.ingest.sources import SourceRead, digest_positions
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.rows import digest_rows
from lakeshare_pipelines.spark.session import set_conf, translate_errors
from lakeshare_pipelines.spark.stores import require_reachable
from lakeshare_pipelines.wap.checks import SHOW_REJECTED, require_expectations
from lakeshare_pipelines.wap.evolution import require_allowed_changes
from lakeshare_pipelines.wap.inputs import (
    Inputs,
    Transform,
    derive_table,
    find_inputs,
    find_source_reads,
    list_in_force,
    load_transforms,
    run_transform,
)
from lakeshare_pipelines.wap.merge import find_key_problems
from lakeshare_pipelines.wap.serveable import ClientMatrix
from lakeshare_pipelines.wap.staged import (
    WHOLE,
    Attempt,
    Finding,
    Lake,
    ReadTable,
    Staged,
    StagedTable,
    Verdicts,
    format_partitions,
    get_begin_time,
    list_attempts,
    list_recorded_names,
    make_staging_name,
    make_staging_prefix,
    record_begin,
    remove_record,
    save_attempt,
    write_quarantine,
)
from lakeshare_server.lazy import LazyModule
from lakeshare_server.telemetry.logs import run_step
from lakeshare_server.telemetry.tracing import add_attributes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    from lakeshare_server.catalog import Ledger, Publication
else:
    F, T = LazyModule("pyspark.sql.functions"), LazyModule("pyspark.sql.types")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Landed:
    """A set that reached main, with the commit or versions it has there."""

    staged: Staged
    evidence: Mapping[str, object]
    nessie_hash: str | None
    versions: Mapping[str, int]  # Delta versions by table; empty for Iceberg
    snapshots: Mapping[str, int] = field(
        default_factory=dict
    )  # of Iceberg tables, where the catalog is not Nessie


class Staging(Protocol):
    """Staging locations of one table format, and the way from there to main."""

    def open(self, ref: str) -> str:
        """Create or empty the staging location; returns the state of main it starts from."""

    def holds(self, base: str, publication: "Publication") -> bool:
        """Whether the state `base` of main has what was published, or was written on top of it."""

    def write(
        self, ref: str, table: Table, frame: "DataFrame", partitions: Sequence[str], run_id: str
    ) -> int:
        """Replace the table's `partitions`, or the whole table, at the staging location by `frame`.

        With the write mode `append`, the rows are added to those of main. Returns their number.
        """

    def merge(self, staged: Staged, table: Table, rows: "DataFrame") -> None:
        """Apply what delivered rows change (see `plan_changes`) to the table at the staging location.

        Raises:
            WarehouseError: the table has features with which the changes cannot be published.
        """

    def record_changes_again(self, staged: Staged, table: Table) -> None:
        """Write what readers of changes get of a merged table again, after a repair of the staging location."""

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        """Rewrite staged files that a promised client cannot read; returns the reason codes that it removed."""

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        """How each client would get the table after publication."""

    def seal(self, ref: str) -> str:
        """The current state of the staging location, as in `Staged.head`."""

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        """The rows that this run wrote: for tables with a key, those that main does not have."""

    def count_written(self, staged: Staged, table: Table) -> int:
        """Number of rows at the staging location that main does not have, in or out of the run's partitions."""

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        """The whole table as it will be on main after publication."""

    def table_around(self, staged: Staged, table: Table, rows: "DataFrame") -> "DataFrame":
        """`table_after` with `rows`, which are those of `rows_of_run`: held ones are not read again."""

    def state_on_main(self, staged: Staged, table: Table) -> int | None:
        """The Delta version or Iceberg snapshot of main at the start of the run; None without any."""

    def select_own(
        self, staged: Staged, table: Table, published: "Sequence[Publication]"
    ) -> "Sequence[Publication]":
        """The publications of the table that main has; others are of one that was dropped, and made again."""

    def rows_since(
        self, staged: Staged, table: Table, published: "Publication", known: "DataFrame"
    ) -> "DataFrame":
        """The rows that main has at the start of the run, and a publication has not; `known` are those that it has."""

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        """The table on main at the start of the run; None before the first publication."""

    def definition(self, staged: Staged, table: Table) -> str | None:
        """The digest of a view's definition at its creation; None when it was not created as a view."""

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        """Make exactly `staged.head` the state of main for every table of the set; completes a partial landing.

        Raises:
            BranchMoved: the staging location is no longer at `staged.head`.
            Conflict: a table of the set changed on main since `staged.base`.
        """

    def find_incomplete(self, is_known: Callable[[str], bool]) -> list[Landed]:
        """Landed sets whose runs are not `is_known` to the ledger, oldest first; completes partial landings."""

    def list_unpublished(self) -> list[tuple[str, datetime]]:
        """Unpublished staging locations of this set, and when each was last written."""

    def discard(self, ref: str) -> None:
        """Remove the staging location; no effect when it is gone, or when its set began to land."""


LARGE_BYTES = 64 << 20
"""Deliveries from this size on are written by several tasks; smaller ones would become many small files."""

PROPERTY = "lakeshare."
"""Prefix of our properties in Nessie commits, Iceberg snapshots and Delta commits."""

DEFINITION = "view"
"""The property of an Iceberg table with the digest of its view's definition."""


def run_properties(contract: SetContract, run_id: str) -> dict[str, str]:
    """Properties of the commits and snapshots that a run writes at its staging location."""
    return {PROPERTY + "set": contract.name, PROPERTY + "run": run_id, PROPERTY + "contract": contract.digest}


def commit_properties(staged: Staged, evidence: Mapping[str, object]) -> dict[str, str]:
    """Properties of the commit on main: all that is needed to write the ledger from storage."""
    return {
        PROPERTY + "set": staged.set_name,
        PROPERTY + "run": staged.run_id,
        PROPERTY + "ref": staged.ref,
        PROPERTY + "audited": staged.head,
        PROPERTY + "staged": staged.as_json(),
        PROPERTY + "evidence": json.dumps(evidence, separators=(",", ":"), sort_keys=True),
    }


def parse_commit_properties(properties: Mapping[str, Any]) -> tuple[Staged, Mapping[str, object]]:
    staged = Staged.from_record(json.loads(properties[PROPERTY + "staged"]))
    return staged, json.loads(properties[PROPERTY + "evidence"])


def get_landed_run(properties: Mapping[str, Any], set_name: str) -> str | None:
    """The run of a set that landed with a commit; None for other commits and for rollbacks."""
    if properties.get(PROPERTY + "set") != set_name or PROPERTY + "staged" not in properties:
        return None
    return str(properties[PROPERTY + "run"])


def staging_for(lake: Lake, contract: SetContract, size_bytes: int = 0) -> Staging:
    """The staging of the set's format, and for Iceberg of the lake's catalog, for deliveries of a size.

    Raises:
        ContractError: the tables have different formats.
        IcebergCatalogError: the catalog of the settings is not usable.
    """
    from lakeshare_pipelines.wap.branches import BranchStaging
    from lakeshare_pipelines.wap.delta import DeltaStaging
    from lakeshare_pipelines.wap.iceberg import IcebergStaging

    formats = {table.format for table in contract.tables}
    if len(formats) > 1:
        raise ContractError(
            contract.path,
            "schema",
            f"set {contract.name} mixes the formats {', '.join(sorted(formats))}",
            "Tables that are published together have one format; make two sets of it.",
            line=find_line(contract, "schema"),
        )
    if formats != {"iceberg"}:
        return DeltaStaging(lake, contract)
    kind = IcebergStaging if lake.named_catalog is None else BranchStaging
    return kind(lake, contract, is_large=size_bytes >= LARGE_BYTES)


def select_view_rows(contract: SetContract, table: Table, view: View, rows: "DataFrame") -> "DataFrame":
    """The rows and columns that a view shows; raises `ContractError` when its definition is not valid Spark SQL."""
    from pyspark.errors import AnalysisException, ParseException

    part = "where"
    try:
        frame = rows if view.where is None else rows.where(_parse_expression(view.where))
        _ = frame.schema  # Spark Connect analyses no earlier
        part = "perRecipient"
        frame = _assign_recipients(frame, view)
        _ = frame.schema
    except (AnalysisException, ParseException) as error:
        raise ContractError(
            contract.path,
            f"{table.short_name}.view.{part}",
            str(error).splitlines()[0].rstrip("."),
            f"It is Spark SQL over the columns of {view.of}.",
            line=find_line(contract, "schema", table.short_name, "customProperties", "view", "value", part),
        ) from error
    return frame.select(*(frame[column.name].cast(column.type) for column in table.columns))


@contextmanager
def open_ledger(settings: LakeSettings) -> "Iterator[Ledger]":
    """The ledger of the settings."""
    from lakeshare_server.catalog import Ledger, open_catalog

    catalog = open_catalog(settings.catalog_url)
    try:
        yield Ledger(catalog)
    finally:
        catalog.close()


def _is_in_sync(settings: LakeSettings, table: Table, view: View) -> bool:
    """Whether the newest publications of a view and of its table are of the same run, repeated ones left out."""
    with open_ledger(settings) as ledger:

        def find_latest_run(name: str) -> str | None:
            publication = ledger.latest(name)
            while publication is not None and publication.repeats is not None:
                publication = ledger.at(name, publication.repeats)
            return None if publication is None else publication.run_id

        run = find_latest_run(table.name)
        return run is not None and run == find_latest_run(view.of)


def _open_staging(lake: Lake, staging: Staging, contract: SetContract, ref: str) -> str:
    """Create or empty the staging location; returns the state of main it starts from.

    Raises `WarehouseError` if a published table is not on main, or older there: a run would begin a new table, and
    recipients would lose the rows of all other partitions.
    """
    with open_ledger(lake.settings) as ledger:
        # Before the state of main is read: another run may publish a first time meanwhile.
        published = [latest for table in contract.tables if (latest := ledger.latest(table.name)) is not None]
    base = staging.open(ref)
    for latest in published:
        if not staging.holds(base, latest):
            raise WarehouseError(
                latest.location,
                f"the {latest.format} table of {latest.table}, publication {latest.version}, is not on main any more",
                "Restore it from a backup (`lakeshare restore table`), or set LAKESHARE_WAREHOUSE and the contract's "
                "format and location as they were; a new table needs another physicalName",
            )
    return base


def check_selection(
    view: View, expected: "DataFrame", rows: "DataFrame", published_as: str | None
) -> Finding:
    """Whether a view's staged rows are those expected; `published_as` is the digest it was created with."""
    [(expected_count, expected_sum)], [(count, row_sum)] = (
        found.values() for found in digest_rows(expected, rows)
    )
    observed = {"of": view.of, "selected_rows": expected_count, "rows": count, "definition": view.digest}
    if published_as != view.digest:
        reason = (
            "the contract defines it otherwise than it was published, and its earlier versions and changes would go on "
            "to show what it leaves out now. Give the changed view another physicalName and share that under the "
            "name recipients know ({table: …, name: …})"
        )
        return Finding.of({**observed, "published_as": published_as}, reason)
    reason = (
        f"{count} rows are staged and {expected_count} of {view.of} are selected, or not the same ones: one of the "
        "two was changed since it was written. `lakeshare wap retry` makes the view again"
    )
    return Finding.of(observed, "" if (expected_count, expected_sum) == (count, row_sum) else reason)


def _parse_expression(text: str) -> "Column":
    # In parentheses no text can end the expression and begin another clause.
    return F.expr(f"({text})")


def _assign_recipients(frame: "DataFrame", view: View) -> "DataFrame":
    """The rows of recipients, once for each recipient of a row, with the column that names the recipient."""

    per = view.per_recipient
    columns = [F.col(f"`{name}`") for name in view.columns]
    if per is not None and per.value is not None:
        recipient = _parse_expression(per.value)
        if isinstance(frame.select(recipient.alias(per.column)).schema[0].dataType, T.ArrayType):
            # Distinct as texts: two values with the same text are the same recipient.
            recipient = F.explode(F.array_distinct(recipient.cast("array<string>")))
        else:
            recipient = recipient.cast("string")
        columns.append(recipient.alias(per.column))
    frame = frame.select(*columns)
    if per is None:
        return frame
    recipient = F.col(f"`{per.column}`")
    # Formats read an empty text in a partition as null.
    return frame.where(recipient.isNotNull() & (recipient.cast("string") != ""))


@dataclass(frozen=True)
class RunInputs:
    """What a run is made of, found before it writes anything: deliveries, pinned publications, transforms by table.

    `sources` are those other than landing, by table, each with the positions that the run reads after and up to.
    """

    deliveries: Sequence[Delivery]
    sources: Mapping[str, SourceRead]
    publications: "Mapping[str, Publication]"
    transforms: Mapping[str, Transform]

    @property
    def digests(self) -> dict[str, str]:
        """The identity of what is read from outside of the lake, by partition."""
        if self.sources:
            return dict.fromkeys(WHOLE, digest_positions(self.sources))
        return {delivery.partition: delivery.digest for delivery in self.deliveries}

    @property
    def size_bytes(self) -> int:
        delivered = sum(file.size_bytes for delivery in self.deliveries for file in delivery.files)
        return delivered + sum(publication.size_bytes for publication in self.publications.values())


def stage(
    lake: Lake,
    contract: SetContract,
    partitions: Sequence[str],
    run_id: str,
    attempt: int = 0,
    pins: Mapping[str, int] = MappingProxyType({}),
) -> Staged:
    """Write the deliveries of `partitions` to a staging location of their own; replaces one of the same name.

    Published tables of other sets are read at the numbers in `pins`, or at their newest ones.

    Raises:
        ContractError: the contract breaks what is published without a new major version, or without a new table.
        DeliveryError: a delivery is missing, incomplete, unreadable, or changed while it was read.
        SourceError: another source cannot be read, or not from where the latest publication ended.
        InputError: a table of another set has no publication, or not the pinned one.
        TransformError: a transform cannot be called, failed, or returned other columns than the contract's.
        SparkError: Spark died, or the disk is full.
        WarehouseError: a published table is not on main any more.
    """
    label = format_partitions(tuple(partitions))
    with run_step("stage", run_id, set=contract.name, partition=label, attempt=attempt):
        staged = _stage(lake, contract, tuple(partitions), run_id, attempt, pins)
        add_attributes(ref=staged.ref, rows=sum(table.rows for table in staged.tables))
        return staged


def _stage(
    lake: Lake,
    contract: SetContract,
    partitions: tuple[str, ...],
    run_id: str,
    attempt: int,
    pins: Mapping[str, int],
) -> Staged:
    require_reachable(lake.stores, contract)
    deliveries = find_deliveries_of_run(lake.settings, contract, partitions)
    with open_ledger(lake.settings) as ledger:
        require_allowed_changes(ledger, contract)
        publications = find_inputs(ledger, contract, pins)
        sources = find_source_reads(lake, ledger, contract)
        _record_contract(ledger, contract)
    require_expectations(contract)
    made_of = RunInputs(deliveries, sources, publications, load_transforms(contract))
    ref = make_staging_name(contract.name, partitions, run_id, attempt)
    files = {file.location: file.size_bytes for delivery in deliveries for file in delivery.files}
    staging = staging_for(lake, contract, made_of.size_bytes)
    with (
        translate_errors(lake.settings, f"staging {ref}", files),
        _discard_on_failure(lake, staging, ref),
        blame_changed_delivery(deliveries),
    ):
        record_begin(lake, ref)
        draft = Staged(
            set_name=contract.name,
            run_id=run_id,
            partitions=partitions,
            ref=ref,
            base=_open_staging(lake, staging, contract, ref),
            head="",
            tables=(),
            deliveries=dict.fromkeys(partitions, "") | made_of.digests,
            contract_digest=contract.digest,
            attempt=attempt,
            pins=dict(pins),
        )
        tables = tuple(
            replace(table, rewritten=staging.make_serveable(ref, contract.table(table.table)))
            for table in _Writer(lake, staging, contract, draft, made_of).write_all()
        )
        for delivery in deliveries:
            require_unchanged(delivery)
        staged = replace(draft, head=staging.seal(ref), tables=tables)
    save_attempt(lake, staged)
    return staged


def _record_contract(ledger: "Ledger", contract: SetContract) -> None:
    """Records the text of the contract, with which later ones are compared once the run is published."""
    from lakeshare_server.catalog import RecordedContract

    if contract.text:
        recorded = RecordedContract(contract.digest, contract.name, contract.version, contract.text)
        ledger.record_contract(recorded)


@dataclass
class _Writer:
    """Writes the tables of a run to its staging location, in the order in which they depend on each other."""

    lake: Lake
    staging: Staging
    contract: SetContract
    draft: Staged
    made_of: RunInputs
    _read: dict[str, DeliveredTable] = field(default_factory=dict)
    """What was read of sources, by table."""
    _frames: "dict[str, DataFrame]" = field(default_factory=dict)
    """The rows of the run, by table; held if another table of the set reads them."""
    _delivered: "dict[str, DataFrame]" = field(default_factory=dict)
    """The delivered rows of tables that they are added to."""

    def write_all(self) -> list[StagedTable]:
        self._read = self._read_deliveries(self.made_of.deliveries)
        try:
            return [self._write(table) for table in self.contract.tables]
        finally:
            for frame in self._frames.values():
                frame.unpersist()
            for name in self.made_of.sources.keys() & self._read.keys():
                self._read[name].release()

    def _write(self, table: Table) -> StagedTable:
        # Spark compares the conversions of each two columns when it looks for constraints: minutes for 400 columns.
        conf = {"spark.sql.constraintPropagation.enabled": "false"} if table.has_source else {}
        with set_conf(self.lake.spark, conf):
            arrived, skipped = self._find_arrived(table)
            if table.has_source and table.write.is_incremental:
                record = self._add_delivery(table, arrived, skipped)
            elif arrived is not None:
                found = arrived.write(partial(self._replace, table))
                record = self._make_record(table, found.rows, found)
            elif table.view is not None:
                record = self._write_view(table, table.view)
            else:
                record = self._write_computed(table)
        read = self.made_of.sources.get(table.name)
        return record if read is None else replace(record, since=read.since, position=read.until)

    def _replace(self, table: Table, frame: "DataFrame", partitions: Sequence[str] | None = None) -> int:
        """Replaces `partitions`, by default those of the run; a frame that replaces another one is held instead."""
        if table.name in self._frames:
            self._frames[table.name].unpersist()
        is_reused = any(table.name in other.depends_on for other in self.contract.tables)
        kept = self._frames[table.name] = frame.cache() if is_reused else frame
        replaced = self.draft.partitions if partitions is None else partitions
        rows = self.staging.write(self.draft.ref, table, kept, replaced, self.draft.run_id)
        log.info("wrote %s rows of %s to %s", rows, table.name, self.draft.ref)
        return rows

    def _write_view(self, table: Table, view: View) -> StagedTable:
        """Selects from the whole table for a view that is new, not in sync, or of a table that keeps other rows."""
        is_whole = not (
            table.write.mode == "replace_partitions"
            and self.staging.on_main(self.draft, table) is not None
            and _is_in_sync(self.lake.settings, table, view)
        )
        base = self.contract.table(view.of)
        of_base = self.staging.table_after(self.draft, base) if is_whole else self._frames[base.name]
        selected = select_view_rows(self.contract, table, view, of_base)
        rows = self._replace(table, selected, WHOLE if is_whole else None)
        inputs = {view.of: ReadTable(None, is_whole)}
        return StagedTable(table.name, rows, view=view.digest, is_whole=is_whole, inputs=inputs)

    def _write_computed(self, table: Table) -> StagedTable:
        transform = self.made_of.transforms.get(table.name)
        inputs = Inputs(
            self.lake,
            self.contract,
            table,
            self.draft.partitions,
            self._frames,
            self._delivered,
            partial(self.staging.table_after, self.draft),
            self.made_of.publications,
        )
        write = partial(self._replace, table)
        if transform is None:
            rows, code = write(derive_table(inputs, self.contract, table)), None
        else:
            rows, code = run_transform(self.lake, transform, inputs, write), transform.code
        return StagedTable(table.name, rows, inputs=inputs.list_read(), code=code)

    def _read_deliveries(self, deliveries: Sequence[Delivery]) -> dict[str, DeliveredTable]:
        limits = ReadingLimits(self.lake.settings.max_line_mb, self.lake.settings.max_unpacked_mb)
        return read_delivery(self.lake.spark, self.contract, deliveries, limits)

    def _find_arrived(self, table: Table) -> tuple[DeliveredTable | None, Collection[str]]:
        """What a run brings for a table with a source, and the partitions of which the table has everything already."""
        is_added = table.has_source and table.write.is_incremental
        of_source = self.made_of.sources.get(table.name)
        if of_source is not None:
            if is_added and of_source.has_nothing_new:
                return None, WHOLE
            self._read[table.name] = of_source.read()
        elif is_added and (skipped := self._list_applied(table)):
            others = [each for each in self.made_of.deliveries if each.partition not in skipped]
            return self._read_deliveries(others)[table.name] if others else None, skipped
        return self._read.get(table.name), ()

    def _list_applied(self, table: Table) -> set[str]:
        with open_ledger(self.lake.settings) as ledger:
            return find_applied(ledger, table.name, self.draft.deliveries)

    def _add_delivery(
        self, table: Table, arrived: DeliveredTable | None, skipped: Collection[str]
    ) -> StagedTable:
        """Append or merge what arrived; None if all of it is in the table already, which then stays as it is."""
        # The rows are written once: a second time they would be there twice.
        found = None if arrived is None else arrived.read()
        columns = [F.lit(None).cast(column.type).alias(column.name) for column in table.columns]
        rows = self.lake.spark.range(0).select(*columns) if found is None else found.frame
        self._delivered[table.name] = rows
        key_problems = add_rows(self.staging, self.draft, table, rows)
        record = self._make_record(table, 0 if found is None else found.rows, found)
        log.info("staged %s delivered rows of %s at %s", record.rows, table.name, self.draft.ref)
        return replace(record, skipped=tuple(sorted(skipped)), key_problems=key_problems)

    def _make_record(self, table: Table, rows: int, found: TableFrame | None) -> StagedTable:
        """The record of delivered rows, of which the rejected ones go to the quarantine."""
        if found is None:
            return StagedTable(table.name, rows)
        rejected = write_quarantine(self.lake, self.contract, table, found, self.draft.run_id)
        return StagedTable(table.name, rows, rejected, tuple(problem.detail for problem in found.problems))


def add_rows(staging: Staging, draft: Staged, table: Table, rows: "DataFrame") -> tuple[str, ...]:
    """Append or merge delivered rows at the staging location; returns why they cannot be merged, as a rule nothing."""
    if not table.write.has_key:
        staging.write(draft.ref, table, rows, draft.partitions, draft.run_id)
        return ()
    rows = rows.persist()
    try:
        # First: Spark then knows how small the rows are, and compares them with main without sorting that.
        problems = find_key_problems(table, rows)
        staging.merge(draft, table, rows)
        return problems
    finally:
        rows.unpersist()


def find_applied(ledger: "Ledger", table: str, deliveries: Mapping[str, str]) -> set[str]:
    """The partitions whose deliveries, by their digests, are in the latest publication of a table."""
    applied = set[str]()
    for publication in list_in_force(ledger, table, deliveries):
        published = publication.verdicts.get("deliveries", {})
        applied |= {name for name, digest in deliveries.items() if published.get(name) == digest}
        if len(applied) == len(deliveries):
            break
    return applied


def _rebuild_views(lake: Lake, staging: Staging, contract: SetContract, staged: Staged) -> None:
    """Write the views of a staged set again, from their tables at the staging location."""
    for table in contract.tables:
        record = staged.find_table(table.name)
        if table.view is None or record is None:
            continue
        base = contract.table(table.view.of)
        with translate_errors(lake.settings, f"rebuilding {table.name} at {staged.ref}"):
            rows = staging.table_after(staged, base) if record.is_whole else staging.rows_of_run(staged, base)
            frame = select_view_rows(contract, table, table.view, rows)
            staging.write(staged.ref, table, frame, staged.partitions_of(table.name), staged.run_id)


@contextmanager
def _discard_on_failure(lake: Lake, staging: Staging, ref: str) -> Iterator[None]:
    """Removes an unfinished staging location; the first error is the one that is raised."""
    try:
        yield
    except BaseException:
        try:
            staging.discard(ref)
            remove_record(lake, ref)
        except Exception:
            log.exception("%s could not be removed; `lakeshare wap discard %s` does it later", ref, ref)
        raise


@dataclass(frozen=True)
class StagingLocation:
    """A branch or staging folder; `attempt` is None when its run ended before it recorded anything."""

    ref: str
    set_name: str
    since: datetime
    attempt: Attempt | None

    @property
    def state(self) -> str:
        """`unfinished`, `staged`, `red` or `green`."""
        return "unfinished" if self.attempt is None else self.attempt.state


class UnknownStagingLocation(PipelineError):
    def __init__(self, ref: str) -> None:
        super().__init__(f"staging location {ref!r} does not exist. `lakeshare wap list` shows all of them.")


def list_staging_locations(lake: Lake, contracts: Sequence[SetContract]) -> list[StagingLocation]:
    """Every staging location of these sets, oldest first."""
    recorded = {attempt.staged.ref: attempt for attempt in list_attempts(lake)}
    locations = []
    for contract in contracts:
        for ref, since in staging_for(lake, contract).list_unpublished():
            attempt = recorded.get(ref)
            latest = attempt.written_at if attempt else get_begin_time(lake, ref) or since
            locations.append(StagingLocation(ref, contract.name, latest, attempt))
    return sorted(locations, key=lambda location: location.since)


def find_staging_location(
    lake: Lake, contracts: Sequence[SetContract], ref: str
) -> tuple[SetContract, StagingLocation]:
    """A staging location by its name. Raises `UnknownStagingLocation`: no set has it."""
    for contract in contracts:
        for location in list_staging_locations(lake, [contract]):
            if location.ref == ref:
                return contract, location
    raise UnknownStagingLocation(ref)


def reseal(lake: Lake, contract: SetContract, staged: Staged) -> Staged:
    """The staged set in its current state, with repairs made at the staging location; rebuilds its views."""
    staging = staging_for(lake, contract)
    head = staging.seal(staged.ref)
    if head == staged.head:
        return staged
    log.warning("%s moved from %s to %s since it was written", staged.ref, staged.head, head)
    _rebuild_views(lake, staging, contract, replace(staged, head=head))
    for table in contract.tables:
        if table.write.has_key:
            with translate_errors(lake.settings, f"the changes of {table.name} at {staged.ref}"):
                staging.record_changes_again(replace(staged, head=head), table)
    moved = replace(staged, head=staging.seal(staged.ref))
    return replace(
        moved, tables=tuple(_count_again(staging, contract, moved, each) for each in staged.tables)
    )


def _count_again(staging: Staging, contract: SetContract, staged: Staged, record: StagedTable) -> StagedTable:
    table = contract.table(record.table)
    # The rows of a table with a key are counted as delivered.
    return record if table.write.has_key else replace(record, rows=staging.count_written(staged, table))


def drop_staging_location(lake: Lake, contract: SetContract, ref: str) -> None:
    """Remove a staging location and its record; a published one only loses its record."""
    staging_for(lake, contract).discard(ref)
    remove_record(lake, ref)


def drop_abandoned(lake: Lake, contract: SetContract) -> list[str]:
    """Remove staging locations older than `branch_days`, and old records without a location; returns the former."""
    horizon = datetime.now(UTC) - timedelta(days=lake.settings.branch_days)
    locations = list_staging_locations(lake, [contract])
    for ref, since in list_recorded_names(lake, make_staging_prefix(contract.name)):
        if since <= horizon and ref not in {location.ref for location in locations}:
            remove_record(lake, ref)
    old = [location for location in locations if location.since <= horizon]
    for location in old:
        log.info("dropping %s, unchanged since %s", location.ref, location.since)
        drop_staging_location(lake, contract, location.ref)
    return [location.ref for location in old]


def format_staging_location(location: StagingLocation) -> str:
    since = f"{location.since:%Y-%m-%d %H:%M} UTC"
    lines = [f"{location.ref}: set {location.set_name}, {location.state}, since {since}"]
    if location.attempt is None:
        lines.append("  its run ended before everything was written; run the partition again, or discard it")
        return "\n".join(lines)
    staged = location.attempt.staged
    states = f"at {staged.head}, from main at {staged.base}"
    lines.append(f"  partition {staged.partition}, run {staged.run_id}, {states}")
    for table in staged.tables:
        rejected = f", {table.rejected} rejected (quarantined)" if table.rejected else ""
        rewritten = f", rewritten for {', '.join(table.rewritten)}" if table.rewritten else ""
        lines.append(f"  {table.table}: {table.rows} rows{rejected}{rewritten}")
    if staged.inputs:
        lines.append(f"  made of {', '.join(f'{name}@{version}' for name, version in staged.inputs.items())}")
    if location.attempt.verdicts is None:
        lines.append("  not audited yet: `lakeshare wap retry` does it")
    else:
        lines += format_verdicts(location.attempt.verdicts)
    return "\n".join(lines)


def format_verdicts(verdicts: Verdicts) -> list[str]:
    lines = []
    for verdict in verdicts.verdicts:
        mark = "ok  " if verdict.passed else "FAIL" if verdict.blocks else "warn"
        lines.append(f"  {mark}  {verdict.name}" + ("" if verdict.passed else f": {verdict.reason}"))
        for row in verdict.samples:
            lines.append("          " + "  ".join(f"{name}={value}" for name, value in row.items()))
        if SHOW_REJECTED in verdict.observed:
            lines.append(f"        as delivered: `{verdict.observed[SHOW_REJECTED]}`")
    return [*map(to_printable, lines)]


def format_rejected_rows(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        yield to_printable(f"{row['table']}  {row['file']}:{row['line']}  {row['reason']}")
        yield to_printable(f"    {row['raw']}")


def to_printable(text: str) -> str:
    """The text, of which a terminal interprets nothing that a sender wrote."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
