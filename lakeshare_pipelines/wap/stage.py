"""Write: a set's deliveries become tables where nobody reads."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.ingest import Delivery, find_delivery, still_same, unchanged_while
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.ingest.integrity import ReadingLimits
from lakeshare_pipelines.spark.faults import explained
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.quarantine import keep_rejected
from lakeshare_pipelines.wap.records import begin, forget, keep
from lakeshare_pipelines.wap.staged import WHOLE, Staged, StagedTable, staging_name
from lakeshare_pipelines.wap.staging import Staging, staging_for
from lakeshare_pipelines.wap.views import is_in_step, selected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


def stage(
    lake: Lake, contract: SetContract, partitions: Sequence[str], run_id: str, attempt: int = 0
) -> Staged:
    """Write the deliveries of `partitions` to a place of their own. Running it again starts that place anew.

    Raises:
        DeliveryError: a delivery is missing, not whole, unreadable, or changed while it was read.
        SparkError: Spark died, or the disk is full.
        NessieError: the catalog is not there.
    """
    partitions = tuple(partitions)
    deliveries = [find_delivery(lake.settings, contract, partition) for partition in partitions]
    staging = staging_for(lake, contract)
    ref = staging_name(contract.name, partitions, run_id, attempt)
    with (
        explained(lake.settings, f"staging {ref}", [file for one in deliveries for file in one.files]),
        _dropped_on_failure(lake, staging, ref),
        unchanged_while(deliveries),
    ):
        begin(lake.settings, ref)
        draft = Staged(
            set_name=contract.name,
            run_id=run_id,
            partitions=partitions,
            ref=ref,
            base=staging.open(ref),
            head="",
            tables=(),
            deliveries={delivery.partition: delivery.digest for delivery in deliveries},
            contract_digest=contract.digest,
            attempt=attempt,
        )
        tables = _write_all(lake, staging, contract, draft, deliveries)
        tables = tuple(
            replace(one, rewritten=staging.make_serveable(ref, contract.table(one.table))) for one in tables
        )
        for delivery in deliveries:
            still_same(delivery)
        staged = replace(draft, head=staging.seal(ref), tables=tables)
    keep(lake.settings, staged)
    return staged


def _write_all(
    lake: Lake, staging: Staging, contract: SetContract, draft: Staged, deliveries: Sequence[Delivery]
) -> tuple[StagedTable, ...]:
    properties = {"set": contract.name, "run": draft.run_id, "contract": contract.digest}
    limits = ReadingLimits(lake.settings.max_line_mb, lake.settings.max_unpacked_mb)
    read = read_delivery(lake.spark, contract, deliveries, limits)
    frames: dict[str, DataFrame] = {}
    written = []
    try:
        for table in contract.tables:
            arrived = read.get(table.name)
            # A view that is new, or missed something, shows all of its table from now on.
            is_whole = table.view is not None and not (
                staging.on_main(draft, table) is not None and is_in_step(lake.settings, table, table.view)
            )
            if arrived is not None:
                frame = arrived.frame
            elif table.view is None:
                frame = derive(lake.spark, table, frames)
            else:
                base = contract.table(table.view.of)
                of_base = staging.table_after(draft, base) if is_whole else frames[base.name]
                frame = selected(contract, table, table.view, of_base)
            frames[table.name] = frame.cache()
            rows = frames[table.name].count()
            log.info("writing %s rows of %s to %s", rows, table.name, draft.ref)
            partitions = WHOLE if is_whole else draft.partitions
            staging.write(draft.ref, table, frames[table.name], partitions, properties)
            one = _staged_table(lake, contract, table, rows, arrived, draft.run_id)
            digest = None if table.view is None else table.view.digest
            written.append(replace(one, view=digest, is_whole=is_whole))
    finally:
        for frame in frames.values():
            frame.unpersist()
    return tuple(written)


def make_views_again(lake: Lake, contract: SetContract, staged: Staged) -> None:
    """Write the views of a staged set anew, of their tables as those are on the staging place now.

    Raises:
        SparkError: Spark died, or the disk is full.
    """
    staging = staging_for(lake, contract)
    properties = {"set": contract.name, "run": staged.run_id, "contract": contract.digest}
    for table in contract.tables:
        record = staged.record_of(table.name)
        if table.view is None or record is None:
            continue
        base = contract.table(table.view.of)
        with explained(lake.settings, f"making {table.name} again at {staged.ref}"):
            rows = staging.table_after(staged, base) if record.is_whole else staging.rows_of_run(staged, base)
            frame = selected(contract, table, table.view, rows)
            staging.write(staged.ref, table, frame, staged.partitions_of(table.name), properties)


def derive(spark: "SparkSession", table: Table, frames: "Mapping[str, DataFrame]") -> "DataFrame":
    """A derived table: the contract's SQL over the rows of this run, typed as the contract says."""
    from pyspark.sql import functions as F

    if table.derive is None:
        raise ValueError(f"table {table.name} has neither a source nor a derivation")
    inputs: dict[str, Any] = {name.rsplit(".", 1)[-1]: frames[name] for name in table.depends_on}
    frame = spark.sql(table.derive, **inputs)
    return frame.select(*(F.col(column.name).cast(column.type) for column in table.columns))


def _staged_table(
    lake: Lake, contract: SetContract, table: Table, rows: int, arrived: TableFrame | None, run_id: str
) -> StagedTable:
    if arrived is None:
        return StagedTable(table.name, rows)
    rejected = keep_rejected(lake, contract, table, arrived, run_id)
    return StagedTable(table.name, rows, rejected, tuple(problem.detail for problem in arrived.problems))


@contextmanager
def _dropped_on_failure(lake: Lake, staging: Staging, ref: str) -> Iterator[None]:
    """A staging place that was never finished tells nobody anything: remove it, keep the first error."""
    try:
        yield
    except BaseException:
        try:
            staging.discard(ref)
            forget(lake.settings, ref)
        except Exception:
            log.exception("%s could not be removed; `lakeshare wap discard %s` does it later", ref, ref)
        raise
