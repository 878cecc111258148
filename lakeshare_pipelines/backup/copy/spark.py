"""Copying by Spark: each task copies a portion of the plan with the local engine, its ledger and its report.

Portions are stored in the target: executors need neither the driver's disk nor s3a; only numbers and outcomes are sent.
"""

import asyncio
import io
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.async_s3 import PREFIX_PER_S, AsyncS3
from lakeshare_pipelines.backup.copy.engine import (
    NAMES,
    CopyTask,
    Progress,
    ReportProgress,
    compute_plan_digest,
    write_results,
)
from lakeshare_pipelines.backup.copy.local import Capabilities, LocalEngine, probe_capabilities
from lakeshare_pipelines.backup.inventory.list_objects import run_spark_tasks
from lakeshare_pipelines.backup.stores import FOLDER, BackupStore, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.spark.session import count_cores, has_driver_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAVY_BYTES = 64 * 1024**2
MIN_ROWS = 256
MAX_ROWS = 1_000_000
PORTIONS_A_WORKER = 3  # Several, so that a worker that finishes early takes another


class Portions(BaseModel):
    prefix: str  # Prefix in the target of the portions and their results; ends with a slash
    count: int
    objects: int
    size_bytes: int

    def folder(self, number: int) -> str:
        return f"{self.prefix}{number}/"


def load_or_make_portions(store: BackupStore, prefix: str, plan: Path, workers: int) -> Portions:
    """The portions of a plan below a prefix of the target, made now for `workers` if they do not exist."""
    if store.head(f"{prefix}portions.json") is not None:
        return Portions.model_validate_json(store.read(f"{prefix}portions.json"))
    rows, size_bytes = model.count_rows(model.select_rows_to_copy(model.read_rows(plan)))
    portions = Portions(
        prefix=prefix, count=choose_portion_count(rows, workers), objects=rows, size_bytes=size_bytes
    )
    write_portions(store, prefix, portions.count, plan)
    store.put(f"{prefix}portions.json", portions.model_dump_json().encode())
    return portions


def choose_portion_count(rows: int, workers: int) -> int:
    """The number of portions for so many workers; no portion is tiny, and each fits into memory."""
    wanted = min(workers * PORTIONS_A_WORKER, -(-rows // MIN_ROWS))
    return max(1, wanted, -(-rows // MAX_ROWS))


# Heavy objects in turns by their size, there and back, others by their keys: no prefix belongs to one worker.
_PORTIONS = f"""
CREATE TEMP TABLE portions AS FROM (
    SELECT *, hash(key) % $count AS portion, false AS is_heavy FROM plan
    WHERE lane <> 'held' AND coalesce(size_bytes, 0) < {HEAVY_BYTES}
    UNION ALL SELECT * EXCLUDE (turn), if(turn // $count % 2 = 0, turn % $count, $count - 1 - turn % $count), true
    FROM (SELECT *, row_number() OVER (ORDER BY size_bytes DESC, key) - 1 AS turn FROM plan
        WHERE lane <> 'held' AND size_bytes >= {HEAVY_BYTES})
) ORDER BY portion, is_heavy DESC, key
"""  # noqa: S608  of constants only


def write_portions(store: BackupStore, prefix: str, count: int, plan: Path) -> None:
    """Write the rows to copy as `<prefix>0.parquet`, …, with a deterministic assignment, heavy rows first."""
    with model.open_database() as on:
        model.view_rows(on, "plan", plan)
        on.execute(_PORTIONS, {"count": count})
        for number in range(count):
            rows = on.sql("FROM portions WHERE portion = $number", params={"number": number})
            content = io.BytesIO()
            pq.write_table(model.conform(rows.to_arrow_table(), model.COPIES), content, compression="zstd")
            store.put(f"{prefix}{number}.parquet", content.getvalue())


def read_portion(store: BackupStore, prefix: str, number: int) -> pa.Table:
    return pq.read_table(io.BytesIO(store.read(f"{prefix}{number}.parquet")))


@dataclass(frozen=True)
class PortionWork:
    """The common data of all portions of a task, sent to executors. Paths in `task` are the driver's."""

    task: CopyTask
    portions: Portions
    engine: LocalEngine

    def copy(self, number: int) -> model.CopyRecord:
        store = open_store(self.task.target)
        record = read_portion_record(store, self.portions, number)
        return self._copy(store, number) if record is None or record.failed else record

    def task_of(self, number: int, folder: Path) -> CopyTask:
        prefix = self.portions.folder(number)
        return replace(self.task, plan=folder / "plan", done=folder / "done", work_prefix=prefix)

    def _copy(self, store: BackupStore, number: int) -> model.CopyRecord:
        with tempfile.TemporaryDirectory(prefix="lakeshare-portion-") as scratch:
            task = self.task_of(number, Path(scratch))
            model.write_rows(task.plan, model.COPIES, [read_portion(store, self.portions.prefix, number)])
            # The driver reads the progress from the ledgers, including those of executors that died.
            record = self.engine.copy(task, lambda _: None)
            content = io.BytesIO()
            pq.write_table(model.read_table(task.done, model.COPIES), content, compression="zstd")
        store.put(f"{task.work_prefix}done.parquet", content.getvalue())
        store.put(f"{task.work_prefix}record.json", record.model_dump_json().encode())
        return record


def read_portion_record(store: BackupStore, portions: Portions, number: int) -> model.CopyRecord | None:
    try:
        return model.CopyRecord.model_validate_json(store.read(f"{portions.folder(number)}record.json"))
    except ObjectMissing:
        return None


def read_done_rows(store: BackupStore, portions: Portions) -> Iterator[pa.RecordBatch]:
    for number in range(portions.count):
        content = io.BytesIO(store.read(f"{portions.folder(number)}done.parquet"))
        yield from pq.read_table(content).to_batches()


MAX_IN_FLIGHT = 1024
POLL_S = 2.0


class SparkEngine:
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

    def copy(self, task: CopyTask, report_progress: ReportProgress) -> model.CopyRecord:
        """See CopyEngine. Finished portions are skipped, the others continue by their ledgers."""
        began = time.monotonic()
        if next(model.select_rows_to_copy(model.read_rows(task.plan)), None) is None:
            # A day without changes needs no Spark.
            return write_results(self.name, task, (), 0.0, (), {})
        store, spark = open_store(task.target), self._open_spark()
        workers = self._workers or count_cores(spark)
        prefix = f"{_get_prefix(task)}{compute_plan_digest(model.read_rows(task.plan))}/"
        portions = load_or_make_portions(store, prefix, task.plan, workers)
        at_a_time = min(workers, portions.count)
        in_flight = max(1, min(task.in_flight, MAX_IN_FLIGHT // at_a_time))
        # A bucket is probed once for all executors.
        capabilities = None if task.target.kind == FOLDER else asyncio.run(_probe_target(task))
        engine = LocalEngine(capabilities=capabilities, prefix_per_s=PREFIX_PER_S / at_a_time)
        work = PortionWork(replace(task, in_flight=in_flight), portions, engine)
        progress = _PortionProgress(store, portions, report_progress, began)
        self._running = spark
        try:
            records = _run(spark, task, work, progress, self._poll_s)
        finally:
            self._running = None
        reports = [report for record in records for report in record.reports]
        done = read_done_rows(store, portions)
        seconds = time.monotonic() - began
        return write_results(self.name, task, done, seconds, reports, records[0].capabilities, NAMES)

    def cancel(self, task: CopyTask) -> None:
        """Stop a task: at once in this engine, soon in other processes; finished copies stay."""
        store, running = open_store(task.target), self._running
        if running is not None:
            running.interruptTag(_get_tag(task))
        for file in store.list(_get_prefix(task)):
            if file.key.endswith("/portions.json"):
                portions = Portions.model_validate_json(store.read(file.key))
                work = PortionWork(task, portions, LocalEngine())
                for number in range(portions.count):
                    work.engine.cancel(work.task_of(number, Path(tempfile.gettempdir())))


@dataclass
class _PortionProgress:
    store: BackupStore
    portions: Portions
    report_progress: ReportProgress
    began: float
    succeeded: int = 0
    failed: int = 0
    size_bytes: int = 0
    seen: set[str] = field(default_factory=set)

    def poll(self) -> None:
        for file in self.store.list(self.portions.prefix):
            if "/ledger/" in file.key and file.size_bytes and file.key not in self.seen:
                self.seen.add(file.key)
                content = io.BytesIO(self.store.read(file.key))
                rows = pq.read_table(content, columns=["status", "size_bytes"])
                copied, size_bytes = model.count_rows([rows.filter(pc.field("status") == "succeeded")])
                self.succeeded += copied
                self.failed += rows.num_rows - copied
                self.size_bytes += size_bytes
        # A retry of a failure of an earlier run adds a second row for the object.
        done = min(self.succeeded + self.failed, self.portions.objects)
        counts = (done, self.portions.objects, self.size_bytes, self.portions.size_bytes)
        failed, seconds = done - min(self.succeeded, done), time.monotonic() - self.began
        self.report_progress(Progress(*counts, failed, seconds))


def _run(
    spark: "SparkSession", task: CopyTask, work: PortionWork, progress: _PortionProgress, poll_s: float
) -> list[model.CopyRecord]:
    count = work.portions.count

    def collect() -> list[model.CopyRecord]:
        # Tags belong to a thread.
        spark.addTag(_get_tag(task))
        results = run_spark_tasks(spark, count, lambda number: [[work.copy(number).model_dump_json()]])
        return [model.CopyRecord.model_validate_json(text) for (text,) in results]

    with ThreadPoolExecutor(1, "lakeshare-copy") as pool:
        records = pool.submit(collect)
        try:
            while not wait([records], poll_s).done:
                progress.poll()
            progress.poll()
        finally:
            if not records.done():
                spark.interruptTag(_get_tag(task))
    try:
        return records.result()
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


def _get_prefix(task: CopyTask) -> str:
    return f"{task.work_prefix}spark/"


def _get_tag(task: CopyTask) -> str:
    return f"lakeshare-copy-{task.token()}"
