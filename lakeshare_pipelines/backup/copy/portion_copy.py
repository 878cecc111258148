"""What an executor does with a portion: copy it as the local engine copies a plan, and leave what became of it.

A portion may be begun any number of times, and by two executors at once: each goes on by the same ledger.
"""

import io
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup.copy.engine import CopyTask, Progress
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.portions import Portions, read_portion
from lakeshare_pipelines.backup.records import CopyRecord
from lakeshare_pipelines.backup.rows import DONE, PLAN, whole_table, write_rows
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing


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
            yield pa.RecordBatch.from_pydict({"outcome": [one.model_dump_json() for one in outcomes]})

    def copy(self, number: int) -> PortionOutcome:
        """Copy one portion, or what is left of it. A refusal is an outcome: who tries again gets the same."""
        store = open_store(self.task.target)
        try:
            record = done_record(store, self.portions, number)
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
            record = self.engine.copy(task, _nobody)
            content = io.BytesIO()
            pq.write_table(whole_table(task.done, DONE), content, compression="zstd")
        store.put(f"{task.work_prefix}done.parquet", content.getvalue())
        store.put(f"{task.work_prefix}record.json", record.model_dump_json().encode())
        return record


def done_record(store: BackupStore, portions: Portions, number: int) -> CopyRecord | None:
    """The record of a portion that was copied to its end; None while it was not."""
    try:
        return CopyRecord.model_validate_json(store.read(f"{portions.folder(number)}record.json"))
    except ObjectMissing:
        return None


def done_rows(store: BackupStore, portions: Portions) -> Iterator[pa.Table]:
    """What became of the rows of all portions, portion by portion; schema DONE."""
    for number in range(portions.count):
        yield pq.read_table(io.BytesIO(store.read(f"{portions.folder(number)}done.parquet")))


def _nobody(_: Progress) -> None:
    """The driver reads the ledgers instead: it sees all portions, and those of executors that died."""
