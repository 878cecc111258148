"""Copying by Spark: each task copies a portion of the plan with the local engine's core, ledger and report.

Portions are in the target, so executors need neither the driver's disk nor s3a; only numbers and outcomes travel.
"""

import asyncio
import heapq
import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup.copy.engine import CopyTask, Progress, ReportProgress, compute_plan_digest
from lakeshare_pipelines.backup.copy.local import Capabilities, LocalEngine, probe_capabilities
from lakeshare_pipelines.backup.model import (
    COPY_RESULTS,
    PLAN,
    CopyRecord,
    read_rows,
    read_table,
    select_rows_to_copy,
    write_rows,
)
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.stores.async_s3 import PREFIX_PER_S, AsyncS3
from lakeshare_pipelines.backup.stores.store import FOLDER
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.spark.session import has_driver_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAVY_BYTES = 64 * 1024**2
BYTES_A_REQUEST = 4 * 1024**2
"""Copying so many bytes takes about as long as one more request."""
MIN_ROWS = 256
MAX_ROWS = 1_000_000
PORTIONS_A_WORKER = 3
"""Several, so that who is done early takes another."""


class Portions(BaseModel):
    """The portions that a plan was divided into; how many there are stays, whoever goes on with them."""

    prefix: str
    """Of everything that belongs to them, in the target; ends with a slash."""
    count: int
    objects: int
    size_bytes: int

    def folder(self, number: int) -> str:
        """The prefix of what belongs to one portion: its ledger, its report, what became of its rows."""
        return f"{self.prefix}{number}/"


def load_or_make_portions(store: BackupStore, prefix: str, plan: Path, workers: int) -> Portions:
    """The portions of a plan below a prefix of the target: as they were made once, or made now for so many workers."""
    if store.head(f"{prefix}portions.json") is not None:
        return Portions.model_validate_json(store.read(f"{prefix}portions.json"))
    rows, size_bytes = _sums(select_rows_to_copy(read_rows(plan)))
    portions = Portions(
        prefix=prefix, count=choose_portion_count(rows, workers), objects=rows, size_bytes=size_bytes
    )
    with tempfile.TemporaryDirectory() as scratch:
        write_portions(
            store, prefix, portions.count, lambda: select_rows_to_copy(read_rows(plan)), Path(scratch)
        )
    store.put(f"{prefix}portions.json", portions.model_dump_json().encode())
    return portions


def _sums(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    rows = size_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        size_bytes += pc.sum(batch["size_bytes"]).as_py() or 0
    return rows, size_bytes


def choose_portion_count(rows: int, workers: int) -> int:
    """How many portions to make for so many workers: none is tiny, none is more than fits into memory."""
    wanted = min(workers * PORTIONS_A_WORKER, -(-rows // MIN_ROWS))
    return max(1, wanted, -(-rows // MAX_ROWS))


def estimate_cost(size_bytes: int) -> float:
    """What one object takes, in requests."""
    return 1 + size_bytes / BYTES_A_REQUEST


def write_portions(
    store: BackupStore,
    prefix: str,
    count: int,
    read: Callable[[], Iterable[pa.RecordBatch]],
    scratch: Path,
) -> None:
    """Write the rows of a plan as `<prefix>0.parquet`, …, the same every time; heavy rows come first in each.

    `read` is called twice, and gives rows to copy only. `scratch` is a folder on this host, for rows on their way.
    """
    writers = [
        pq.ParquetWriter(scratch / f"{number}.parquet", PLAN, compression="zstd") for number in range(count)
    ]
    try:
        _write_heavy(writers, read())
        for batch in read():
            light = batch.filter(pc.invert(_is_heavy(batch)))
            _write(writers, light, _assign_portions(light, count))
    finally:
        for writer in writers:
            writer.close()
    for number in range(count):
        path = scratch / f"{number}.parquet"
        store.put(get_portion_key(prefix, number), path.read_bytes())
        path.unlink()


def read_portion(store: BackupStore, prefix: str, number: int) -> pa.Table:
    """The rows of one portion."""
    return pq.read_table(io.BytesIO(store.read(get_portion_key(prefix, number))))


def get_portion_key(prefix: str, number: int) -> str:
    """Where a portion is."""
    return f"{prefix}{number}.parquet"


def _is_heavy(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater_equal(pc.fill_null(batch["size_bytes"], 0), HEAVY_BYTES)


def _write_heavy(writers: list[pq.ParquetWriter], batches: Iterable[pa.RecordBatch]) -> None:
    """The largest first, each to the portion that has least (longest processing time first)."""
    found = [heavy for batch in batches if (heavy := batch.filter(_is_heavy(batch))).num_rows]
    if not found:
        return
    table = pa.Table.from_batches(found).sort_by([("size_bytes", "descending"), ("key", "ascending")])
    loads = [(0.0, number) for number in range(len(writers))]
    places = []
    for size_bytes in table["size_bytes"].to_pylist():
        load, number = heapq.heappop(loads)
        places.append(number)
        heapq.heappush(loads, (load + estimate_cost(size_bytes), number))
    _write(writers, table, np.array(places))


def _assign_portions(batch: pa.RecordBatch, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.fromiter(
        (crc32(key.encode()) % count for key in batch["key"].to_pylist()), np.int64, batch.num_rows
    )


def _write(
    writers: list[pq.ParquetWriter],
    rows: pa.RecordBatch | pa.Table,
    places: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> None:
    for number, writer in enumerate(writers):
        (index,) = np.nonzero(places == number)
        if len(index):
            chosen = rows.take(pa.array(index))
            writer.write_table(chosen if isinstance(chosen, pa.Table) else pa.Table.from_batches([chosen]))


class Refusal(BaseModel):
    """A BackupError on its way to the driver."""

    subject: str
    reason: str
    fix: str

    def error(self) -> BackupError:
        """The error again."""
        return BackupError(self.subject, self.reason, self.fix)


class PortionOutcome(BaseModel):
    """What became of a portion: the record of its copy, or why it was refused."""

    number: int
    record: CopyRecord | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True)
class PortionWork:
    """What is the same for all portions of a task; it travels to executors. Paths in `task` are the driver's."""

    task: CopyTask
    portions: Portions
    engine: LocalEngine

    def mapped(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """For Spark's mapInArrow: numbers of portions in, outcomes as JSON out."""
        for batch in batches:
            outcomes = [self.copy(number) for number in batch["id"].to_pylist()]
            yield pa.RecordBatch.from_pydict({"outcome": [outcome.model_dump_json() for outcome in outcomes]})

    def copy(self, number: int) -> PortionOutcome:
        """Copy one portion, or what is left of it. A refusal is an outcome: who tries again gets the same."""
        store = open_store(self.task.target)
        try:
            record = read_portion_record(store, self.portions, number)
            if record is None or record.failed:
                record = self._copied(store, number)
        except BackupError as error:
            refusal = Refusal(subject=error.subject, reason=error.reason, fix=error.fix)
            return PortionOutcome(number=number, refusal=refusal)
        return PortionOutcome(number=number, record=record)

    def task_of(self, number: int, folder: Path) -> CopyTask:
        """The task that copies one portion, with rows in a folder of this host."""
        prefix = self.portions.folder(number)
        return replace(self.task, plan=folder / "plan", done=folder / "done", work_prefix=prefix)

    def _copied(self, store: BackupStore, number: int) -> CopyRecord:
        with tempfile.TemporaryDirectory(prefix="lakeshare-portion-") as scratch:
            task = self.task_of(number, Path(scratch))
            write_rows(task.plan, PLAN, [read_portion(store, self.portions.prefix, number)])
            record = self.engine.copy(task, _ignore_progress)
            content = io.BytesIO()
            pq.write_table(read_table(task.done, COPY_RESULTS), content, compression="zstd")
        store.put(f"{task.work_prefix}done.parquet", content.getvalue())
        store.put(f"{task.work_prefix}record.json", record.model_dump_json().encode())
        return record


def read_portion_record(store: BackupStore, portions: Portions, number: int) -> CopyRecord | None:
    """The record of a portion that was copied to its end; None while it was not."""
    try:
        return CopyRecord.model_validate_json(store.read(f"{portions.folder(number)}record.json"))
    except ObjectMissing:
        return None


def read_done_rows(store: BackupStore, portions: Portions) -> Iterator[pa.Table]:
    """What became of the rows of all portions, portion by portion; schema DONE."""
    for number in range(portions.count):
        yield pq.read_table(io.BytesIO(store.read(f"{portions.folder(number)}done.parquet")))


def _ignore_progress(_: Progress) -> None:
    """The driver reads the ledgers instead: it sees all portions, and those of executors that died."""


MAX_IN_FLIGHT = 1024
POLL_S = 2.0
ENDING_S = 5.0


class SparkEngine:
    """The engine `spark`. `open_spark` gives the session of the run, which stays open.

    At most `most_in_flight` requests are under way over all workers, and the task's `in_flight` in each of them.
    `workers`: how many tasks run at a time, where the session cannot tell, as with executors that come and go.
    """

    name = "spark"

    def __init__(
        self,
        open_spark: "Callable[[], SparkSession]",
        *,
        most_in_flight: int = MAX_IN_FLIGHT,
        workers: int | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._open_spark = open_spark
        self._most_in_flight, self._workers, self._poll_s = most_in_flight, workers, poll_s
        self._running: SparkSession | None = None

    def copy(self, task: CopyTask, report_progress: ReportProgress) -> CopyRecord:
        """See CopyEngine. Portions that are copied whole are left alone, the others go on by their ledgers.

        Raises:
            BackupError: a portion is refused, or Spark ends before all portions are copied.
        """
        began = time.monotonic()
        if next(select_rows_to_copy(read_rows(task.plan)), None) is None:
            # A day without changes needs no Spark.
            write_rows(task.done, COPY_RESULTS, ())
            return CopyRecord(engine=self.name, succeeded=0, failed=0, size_bytes=0, seconds=0.0, reports=())
        store, spark = open_store(task.target), self._open_spark()
        workers = self._workers or _count_workers(spark)
        prefix = f"{_folder_of(task)}{compute_plan_digest(read_rows(task.plan))}/"
        portions = load_or_make_portions(store, prefix, task.plan, workers)
        at_a_time = min(workers, portions.count)
        in_flight = max(1, min(task.in_flight, self._most_in_flight // at_a_time))
        shared = LocalEngine(capabilities=_probe_target(task), prefix_per_s=PREFIX_PER_S / at_a_time)
        work = PortionWork(replace(task, in_flight=in_flight), portions, shared)
        self._running = spark
        try:
            outcomes = _run(
                spark, task, work, _PortionProgress(store, portions, report_progress, began), self._poll_s
            )
        finally:
            self._running = None
        records = _require_records(outcomes)
        write_rows(task.done, COPY_RESULTS, read_done_rows(store, portions))
        return CopyRecord(
            engine=self.name,
            succeeded=sum(record.succeeded for record in records),
            failed=sum(record.failed for record in records),
            size_bytes=sum(record.size_bytes for record in records),
            seconds=time.monotonic() - began,
            reports=tuple(report for record in records for report in record.reports),
            capabilities=records[0].capabilities,
        )

    def cancel(self, task: CopyTask) -> None:
        """Stop the copying of a task by this engine at once, by others as soon as they look; what is copied stays."""
        store, running = open_store(task.target), self._running
        if running is not None:
            running.interruptTag(_tag(task))
        for one in store.list(_folder_of(task)):
            if one.key.endswith("/portions.json"):
                portions = Portions.model_validate_json(store.read(one.key))
                work = PortionWork(task, portions, LocalEngine())
                for number in range(portions.count):
                    work.engine.cancel(work.task_of(number, Path(tempfile.gettempdir())))


@dataclass
class _PortionProgress:
    """How far all portions are, by their ledgers, those of earlier runs included."""

    store: BackupStore
    portions: Portions
    report_progress: ReportProgress
    began: float
    succeeded: int = 0
    failed: int = 0
    size_bytes: int = 0
    seen: set[str] = field(default_factory=set)

    def poll(self) -> None:
        """Read what was written since the last look, and tell the sum."""
        for one in self.store.list(self.portions.prefix):
            if "/ledger/" in one.key and one.key not in self.seen:
                self.seen.add(one.key)
                self._add(one.key)
        # What failed in an earlier run is told again when it is tried again.
        done = min(self.succeeded + self.failed, self.portions.objects)
        self.report_progress(
            Progress(
                objects=done,
                objects_of=self.portions.objects,
                size_bytes=self.size_bytes,
                size_bytes_of=self.portions.size_bytes,
                failed=done - min(self.succeeded, done),
                seconds=time.monotonic() - self.began,
            )
        )

    def _add(self, key: str) -> None:
        rows = pq.read_table(io.BytesIO(self.store.read(key)), columns=["status", "size_bytes"])
        copied = rows.filter(pc.field("status") == "succeeded")
        self.succeeded += copied.num_rows
        self.failed += rows.num_rows - copied.num_rows
        self.size_bytes += pc.sum(copied["size_bytes"]).as_py() or 0


def _run(
    spark: "SparkSession", task: CopyTask, work: PortionWork, followed: _PortionProgress, poll_s: float
) -> list[PortionOutcome]:
    """Copy all portions, a Spark task each; `followed` is told every `poll_s` and at the end."""
    count = work.portions.count
    # Exactly one number in each partition, in every mode of Spark: nothing is shuffled.
    frame = spark.range(0, count, 1, count).mapInArrow(work.mapped, "outcome string")
    outcomes: list[str] = []
    faults: list[Exception] = []

    def collect() -> None:
        try:
            # Tags belong to a thread.
            spark.addTag(_tag(task))
            outcomes.extend(row.outcome for row in frame.collect())
        except Exception as error:  # raised again below, in the thread of the caller
            faults.append(error)

    thread = threading.Thread(target=collect, name="lakeshare-copy")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(poll_s)
            followed.poll()
    finally:
        if thread.is_alive():
            spark.interruptTag(_tag(task))
            thread.join()
    if faults:
        raise _make_ended_error(task, faults[0]) from faults[0]
    return [PortionOutcome.model_validate_json(one) for one in outcomes]


def _make_ended_error(task: CopyTask, fault: Exception) -> BackupError:
    # A driver that is gone cannot be asked for the text of its exception.
    is_gone = has_driver_ended(wait_s=ENDING_S)
    why = "its driver died" if is_gone else (str(fault).strip().splitlines() or [type(fault).__name__])[0]
    return BackupError(
        f"copy to {task.target}",
        f"Spark ended before everything was copied: {why.rstrip('.')}",
        "Run it again: it goes on where it was. `logs/spark.log` in the state folder says more.",
    )


def _require_records(outcomes: list[PortionOutcome]) -> list[CopyRecord]:
    for outcome in outcomes:
        if outcome.refusal is not None:
            raise outcome.refusal.error()
    return [
        outcome.record
        for outcome in sorted(outcomes, key=lambda found: found.number)
        if outcome.record is not None
    ]


def _probe_target(task: CopyTask) -> Capabilities | None:
    """What the target does, found out once for all executors; a folder is not asked."""

    async def probe() -> Capabilities:
        async with AsyncS3(task.target, 1) as target:
            return await probe_capabilities(target, task.work_prefix)

    return None if task.target.kind == FOLDER else asyncio.run(probe())


def _count_workers(spark: "SparkSession") -> int:
    """How many tasks the session runs at a time."""
    from pyspark.sql.utils import is_remote

    if not is_remote():
        return int(spark.sparkContext.defaultParallelism)
    # Spark Connect does not tell; it divides a range by default as the driver would.
    partitions = spark.range(1_000_000).selectExpr("spark_partition_id() AS number").distinct()
    return max(1, partitions.count())


def _folder_of(task: CopyTask) -> str:
    return f"{task.work_prefix}spark/"


def _tag(task: CopyTask) -> str:
    return f"lakeshare-copy-{task.token()}"
