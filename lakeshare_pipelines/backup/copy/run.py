"""One run of a copy: it can be found and stopped by others, says how far it is, and ends with its rows and its report.

For any engine that keeps a ledger; how objects are copied is not decided here.
"""

import shutil
import time
from collections.abc import Iterator
from uuid import uuid4

import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.engine import CopyTask, Progress, Tell
from lakeshare_pipelines.backup.copy.ledger import Ledger
from lakeshare_pipelines.backup.copy.outcomes import WANTED_COLUMNS, Outcome, Wanted, digests, wanted_in
from lakeshare_pipelines.backup.copy.report import write_report
from lakeshare_pipelines.backup.records import CopyRecord
from lakeshare_pipelines.backup.rows import DONE, read_rows, to_copy, write_rows
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError, ObjectMissing


class Run:
    """One run of a task, which others can find and stop."""

    def __init__(self, store: BackupStore, task: CopyTask) -> None:
        self._store, self._task, self.id = store, task, uuid4().hex
        store.put(f"{task.work_prefix}run", self.id.encode())

    @staticmethod
    def cancel(store: BackupStore, task: CopyTask) -> None:
        """Ask the newest run to stop; nothing where there is none."""
        try:
            run = store.read(f"{task.work_prefix}run")
        except ObjectMissing:
            return
        store.put(f"{task.work_prefix}cancelled", run)

    def require_wanted(self) -> None:
        """Go on only if nobody stopped this run.

        Raises:
            BackupError: somebody did.
        """
        try:
            cancelled = self._store.read(f"{self._task.work_prefix}cancelled").decode()
        except ObjectMissing:
            return
        if cancelled == self.id:
            raise BackupError(
                str(self._task.target),
                "the copy was cancelled",
                "Run it again to go on: what is copied already stays.",
            )


class Count:
    """How far a copy is."""

    def __init__(self, task: CopyTask, tell: Tell) -> None:
        self._task, self._tell, self._began = task, tell, time.monotonic()
        self.objects = self.size_bytes = self.failed = 0
        self.objects_of = self.size_bytes_of = 0
        for batch in to_copy(read_rows(task.plan, ["lane", "size_bytes"])):
            self.objects_of += batch.num_rows
            self.size_bytes_of += pc.sum(batch.column("size_bytes")).as_py() or 0

    def left(self, before: set[bytes]) -> Iterator[Wanted]:
        """The objects of the task that are still to be copied; the others, whose digests are told, count as done."""
        for wanted in wanted_in(read_rows(self._task.plan, WANTED_COLUMNS)):
            if before and wanted.digest in before:
                self.objects += 1
                self.size_bytes += wanted.size_bytes
            else:
                yield wanted

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        self.objects += 1
        self.failed += not outcome.is_success
        self.size_bytes += outcome.wanted.size_bytes if outcome.is_success else 0

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    def tell(self) -> None:
        """Say how far it is."""
        sizes = (self.size_bytes, self.size_bytes_of)
        self._tell(Progress(self.objects, self.objects_of, *sizes, self.failed, self.seconds))


def finished(
    store: BackupStore,
    task: CopyTask,
    engine: str,
    ledger: Ledger,
    capabilities: dict[str, bool],
    seconds: float,
) -> CopyRecord:
    """Write the report and the rows of a copy that is done, from its ledger.

    Raises:
        BackupError: the ledger does not tell of every row of the plan.
    """
    planned = {digest for batch in to_copy(read_rows(task.plan)) for digest in digests(batch)}
    objects = len(planned)
    for left in (task.done, task.done.with_name(f".{task.done.name}.part")):
        if left.exists():
            shutil.rmtree(left)
    write_rows(task.done, DONE, ledger.done(planned))
    report = write_report(store, task.work_prefix, task.token(), read_rows(task.done))
    succeeded = size_bytes = 0
    for batch in read_rows(task.done):
        done = batch.filter(pc.equal(batch.column("status"), "succeeded"))
        succeeded += done.num_rows
        size_bytes += pc.sum(done.column("size_bytes")).as_py() or 0
    return CopyRecord(
        engine=engine,
        succeeded=succeeded,
        failed=objects - succeeded,
        size_bytes=size_bytes,
        seconds=seconds,
        reports=(report,),
        capabilities=capabilities,
    )
