"""Copying by Spark: each task copies a portion of the plan with the local engine's core, ledger and report.

Portions are in the target, so executors need neither the driver's disk nor s3a; only numbers and outcomes travel.
"""

import asyncio
import io
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.copy.capabilities import Capabilities, capabilities_of
from lakeshare_pipelines.backup.copy.engine import CopyTask, Progress, Tell
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.plan_digest import plan_digest
from lakeshare_pipelines.backup.copy.portion_copy import PortionOutcome, PortionWork, done_rows
from lakeshare_pipelines.backup.copy.portions import Portions, portions_of
from lakeshare_pipelines.backup.records import CopyRecord
from lakeshare_pipelines.backup.rows import DONE, read_rows, to_copy, write_rows
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores.pace import PREFIX_PER_S
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.spark.session import has_driver_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_IN_FLIGHT = 1024
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
        most_in_flight: int = MOST_IN_FLIGHT,
        workers: int | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._open_spark = open_spark
        self._most_in_flight, self._workers, self._poll_s = most_in_flight, workers, poll_s
        self._running: SparkSession | None = None

    def copy(self, task: CopyTask, tell: Tell) -> CopyRecord:
        """See CopyEngine. Portions that are copied whole are left alone, the others go on by their ledgers.

        Raises:
            BackupError: a portion is refused, or Spark ends before all portions are copied.
        """
        began = time.monotonic()
        if next(to_copy(read_rows(task.plan)), None) is None:
            # A day without changes needs no Spark.
            write_rows(task.done, DONE, ())
            return CopyRecord(engine=self.name, succeeded=0, failed=0, size_bytes=0, seconds=0.0, reports=())
        store, spark = open_store(task.target), self._open_spark()
        workers = self._workers or _workers(spark)
        prefix = f"{_folder_of(task)}{plan_digest(read_rows(task.plan))}/"
        portions = portions_of(store, prefix, task.plan, workers)
        at_a_time = min(workers, portions.count)
        in_flight = max(1, min(task.in_flight, self._most_in_flight // at_a_time))
        shared = LocalEngine(capabilities=_probed(task), prefix_per_s=PREFIX_PER_S / at_a_time)
        work = PortionWork(replace(task, in_flight=in_flight), portions, shared)
        self._running = spark
        try:
            outcomes = _run(spark, task, work, _Followed(store, portions, tell, began), self._poll_s)
        finally:
            self._running = None
        records = _records(outcomes)
        write_rows(task.done, DONE, done_rows(store, portions))
        return CopyRecord(
            engine=self.name,
            succeeded=sum(one.succeeded for one in records),
            failed=sum(one.failed for one in records),
            size_bytes=sum(one.size_bytes for one in records),
            seconds=time.monotonic() - began,
            reports=tuple(report for one in records for report in one.reports),
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
class _Followed:
    """How far all portions are, by their ledgers, those of earlier runs included."""

    store: BackupStore
    portions: Portions
    tell: Tell
    began: float
    succeeded: int = 0
    failed: int = 0
    size_bytes: int = 0
    seen: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Read what was written since the last look, and tell the sum."""
        for one in self.store.list(self.portions.prefix):
            if "/ledger/" in one.key and one.key not in self.seen:
                self.seen.add(one.key)
                self._add(one.key)
        # What failed in an earlier run is told again when it is tried again.
        done = min(self.succeeded + self.failed, self.portions.objects)
        self.tell(
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
    spark: "SparkSession", task: CopyTask, work: PortionWork, followed: _Followed, poll_s: float
) -> list[PortionOutcome]:
    """Copy all portions, a Spark task each; `followed` is told every `poll_s` and at the end."""
    count = work.portions.count
    # Exactly one number in each partition, in every mode of Spark: nothing is shuffled.
    frame = spark.range(0, count, 1, count).mapInArrow(work.mapped, "outcome string")
    said: list[str] = []
    faults: list[Exception] = []

    def collect() -> None:
        try:
            # Tags belong to a thread.
            spark.addTag(_tag(task))
            said.extend(row.outcome for row in frame.collect())
        except Exception as error:  # raised again below, in the thread of the caller
            faults.append(error)

    thread = threading.Thread(target=collect, name="lakeshare-copy")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(poll_s)
            followed.look()
    finally:
        if thread.is_alive():
            spark.interruptTag(_tag(task))
            thread.join()
    if faults:
        raise _ended(task, faults[0]) from faults[0]
    return [PortionOutcome.model_validate_json(one) for one in said]


def _ended(task: CopyTask, fault: Exception) -> BackupError:
    # A driver that is gone cannot be asked for the text of its exception.
    is_gone = has_driver_ended(wait_s=ENDING_S)
    why = "its driver died" if is_gone else (str(fault).strip().splitlines() or [type(fault).__name__])[0]
    return BackupError(
        f"copy to {task.target}",
        f"Spark ended before everything was copied: {why.rstrip('.')}",
        "Run it again: it goes on where it was. `logs/spark.log` in the state folder says more.",
    )


def _records(outcomes: list[PortionOutcome]) -> list[CopyRecord]:
    for one in outcomes:
        if one.refusal is not None:
            raise one.refusal.error()
    return [one.record for one in sorted(outcomes, key=lambda found: found.number) if one.record is not None]


def _probed(task: CopyTask) -> Capabilities | None:
    """What the target does, found out once for all executors; a folder is not asked."""

    async def probe() -> Capabilities:
        async with AsyncS3(task.target, 1) as target:
            return await capabilities_of(target, task.work_prefix)

    return None if task.target.kind == FOLDER else asyncio.run(probe())


def _workers(spark: "SparkSession") -> int:
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
