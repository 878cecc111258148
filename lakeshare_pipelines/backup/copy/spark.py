"""Copying by Spark: each task copies a portion of what is left with the local engine, into a part of the ledger.

Portions are stored in the target: executors need neither the driver's disk nor s3a; only numbers and outcomes are sent.
"""

import asyncio
import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.async_s3 import PREFIX_PER_S, AsyncS3
from lakeshare_pipelines.backup.copy.engine import (
    IS_LEFT,
    CopyCounter,
    CopyEngine,
    Copying,
    CopyRun,
    CopyTask,
    Ledger,
    open_results,
)
from lakeshare_pipelines.backup.copy.local import LocalEngine, probe_capabilities
from lakeshare_pipelines.backup.copy.objects import Capabilities
from lakeshare_pipelines.backup.inventory.list_objects import run_spark_tasks
from lakeshare_pipelines.backup.stores import FOLDER, BackupStore, open_store
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.spark.session import count_cores, has_driver_ended

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

HEAVY_BYTES = 64 * 1024**2
MIN_ROWS = 256
MAX_ROWS = 1_000_000
PORTIONS_A_WORKER = 3  # Several, so that a worker that finishes early takes another


def choose_portion_count(rows: int, workers: int) -> int:
    """The number of portions for so many workers; no portion is tiny, and each fits into memory."""
    wanted = min(workers * PORTIONS_A_WORKER, -(-rows // MIN_ROWS))
    return max(1, wanted, -(-rows // MAX_ROWS))


# Heavy objects in turns by their size, there and back, others by their keys: no prefix belongs to one worker.
_PORTIONS = f"""
CREATE TEMP TABLE portions AS FROM (
    SELECT *, hash(key) % $count AS portion, false AS is_heavy FROM copies
    WHERE {IS_LEFT} AND coalesce(size_bytes, 0) < {HEAVY_BYTES}
    UNION ALL SELECT * EXCLUDE (turn), if(turn // $count % 2 = 0, turn % $count, $count - 1 - turn % $count), true
    FROM (SELECT *, row_number() OVER (ORDER BY size_bytes DESC, key) - 1 AS turn FROM copies
        WHERE {IS_LEFT} AND size_bytes >= {HEAVY_BYTES})
) ORDER BY portion, is_heavy DESC, key
"""  # noqa: S608  of constants only


def write_portions(store: BackupStore, prefix: str, count: int, on: "duckdb.DuckDBPyConnection") -> None:
    """Write what is left of view `copies` as `<prefix>0.parquet`, …, with a deterministic assignment, heavy rows
    first."""
    on.execute(_PORTIONS, {"count": count})
    for number in range(count):
        rows = on.sql("FROM portions WHERE portion = $number", params={"number": number}).to_arrow_table()
        content = io.BytesIO()
        pq.write_table(model.conform(rows, model.COPIES), content, compression="zstd")
        store.put(f"{prefix}{number}.parquet", content.getvalue())


def read_portion(store: BackupStore, prefix: str, number: int) -> pa.Table:
    return pq.read_table(io.BytesIO(store.read(f"{prefix}{number}.parquet")))


@dataclass(frozen=True)
class PortionWork:
    """The common data of all portions of a run, sent to executors. Paths in `task` are the driver's."""

    task: CopyTask
    run: str
    engine: LocalEngine

    @property
    def prefix(self) -> str:
        """Prefix of the portions in the target."""
        return f"{self.task.work_prefix}spark/{self.run}/"

    def copy(self, number: int) -> None:
        """Copy a portion into a part of the ledger of its own: an attempt continues the one before."""
        store = open_store(self.task.target)
        ledger = Ledger(store, self.task.work_prefix, f"{self.run}/{number}/")
        with open_results(read_portion(store, self.prefix, number), ledger.rows()) as on:
            # The driver reads the progress from the ledger, with that of executors that died.
            counter = CopyCounter(self.task, lambda _: None, on)
            run = CopyRun(store, self.task, self.run)
            self.engine.transfer(Copying(self.task, on, run, ledger, counter))


MAX_IN_FLIGHT = 1024
POLL_S = 2.0


class SparkEngine(CopyEngine):
    """The engine `spark`. `open_spark` returns the session of the run, which stays open.

    At most MAX_IN_FLIGHT requests are concurrent over all workers, and the task's `in_flight` in each of them.
    `workers`: how many tasks run at a time, if the session does not know it, as with dynamic allocation.
    """

    name = "spark"

    def __init__(
        self, open_spark: model.OpenSpark, *, workers: int | None = None, poll_s: float = POLL_S
    ) -> None:
        self._open_spark = open_spark
        self._workers, self._poll_s = workers, poll_s
        self._running: SparkSession | None = None

    def transfer(self, copying: Copying) -> Mapping[str, bool]:
        task, counter = copying.task, copying.counter
        rows = counter.objects_of - counter.objects
        if not rows:
            # A day without changes needs no Spark.
            return {}
        spark = self._open_spark()
        workers = self._workers or count_cores(spark)
        count = choose_portion_count(rows, workers)
        at_a_time = min(workers, count)
        in_flight = max(1, min(task.in_flight, MAX_IN_FLIGHT // at_a_time))
        # A bucket is probed once for all executors.
        capabilities = None if task.target.kind == FOLDER else asyncio.run(_probe_target(task))
        engine = LocalEngine(capabilities=capabilities, prefix_per_s=PREFIX_PER_S / at_a_time)
        work = PortionWork(replace(task, in_flight=in_flight), copying.run.id, engine)
        write_portions(copying.ledger.store, work.prefix, count, copying.on)
        progress = _LedgerProgress(
            Ledger(copying.ledger.store, task.work_prefix, f"{work.run}/"), counter, rows
        )
        self._running = spark
        try:
            _run(spark, work, count, progress, self._poll_s)
        finally:
            self._running = None
        return {} if capabilities is None else capabilities.model_dump()

    def cancel(self, task: CopyTask) -> None:
        """Stop a task: at once in this engine, soon in other processes; finished copies stay."""
        if self._running is not None:
            self._running.interruptTag(_get_tag(task))
        super().cancel(task)


@dataclass
class _LedgerProgress:
    """The progress of `rows` objects by the batches of a ledger."""

    ledger: Ledger
    counter: CopyCounter
    rows: int
    seen: set[str] = field(default_factory=set)

    def poll(self) -> None:
        objects, size_bytes, failed = self.counter.others
        for rows in self.ledger.rows(self.seen):
            copied, copied_bytes = model.count_rows([rows.filter(pc.field("status") == "succeeded")])
            objects, size_bytes = objects + rows.num_rows, size_bytes + copied_bytes
            failed += rows.num_rows - copied
        # An object that two attempts of a task copied has two rows.
        self.counter.others = (min(objects, self.rows), size_bytes, failed)
        self.counter.report_progress()


def _run(
    spark: "SparkSession", work: PortionWork, count: int, progress: _LedgerProgress, poll_s: float
) -> None:
    task = work.task

    def copy(number: int) -> list[list[int]]:
        work.copy(number)
        return [[number]]

    def copy_all() -> None:
        # Tags belong to a thread.
        spark.addTag(_get_tag(task))
        run_spark_tasks(spark, count, copy)

    with ThreadPoolExecutor(1, "lakeshare-copy") as pool:
        copies = pool.submit(copy_all)
        try:
            while not wait([copies], poll_s).done:
                progress.poll()
            progress.poll()
        finally:
            if not copies.done():
                spark.interruptTag(_get_tag(task))
    try:
        copies.result()
    except BackupError:
        raise
    except Exception as error:
        # If the driver is gone, its exception has no text.
        reason = "its driver died"
        if not has_driver_ended(wait_s=5.0):
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BackupError(
            f"copy to {task.target}",
            f"Spark ended before everything was copied: {reason.rstrip('.')}",
            "Run it again: it goes on where it was. See `logs/spark.log` in the state folder.",
        ) from error


async def _probe_target(task: CopyTask) -> Capabilities:
    async with AsyncS3(task.target, 1) as target:
        return await probe_capabilities(target, task.work_prefix)


def _get_tag(task: CopyTask) -> str:
    return f"lakeshare-copy-{task.token()}"
