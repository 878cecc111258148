"""The engine `local`: one event loop of this host copies, from and to buckets and folders; no Spark.

A run that broke off goes on by its ledger; what is told of there is not copied again.
"""

import asyncio
import os

from lakeshare_pipelines.backup.copy.capabilities import Capabilities
from lakeshare_pipelines.backup.copy.engine import CopyTask, Tell
from lakeshare_pipelines.backup.copy.flow import FailureBound, copy_all, with_beside
from lakeshare_pipelines.backup.copy.ledger import Ledger, LedgerWriter
from lakeshare_pipelines.backup.copy.outcomes import Outcome
from lakeshare_pipelines.backup.copy.run import Count, Run, finished
from lakeshare_pipelines.backup.copy.ways import open_way
from lakeshare_pipelines.backup.records import CopyRecord
from lakeshare_pipelines.backup.stores import open_store
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.stores.pace import PREFIX_PER_S

TELL_S = 1.0


class LocalEngine:
    """Copies in this process.

    `capabilities` are the target's, where somebody found them out already; `prefix_per_s` is the share of a prefix's
    requests that this process may make, where others copy beside it.
    """

    name = "local"

    def __init__(
        self, *, capabilities: Capabilities | None = None, prefix_per_s: float = PREFIX_PER_S
    ) -> None:
        self._capabilities, self._prefix_per_s = capabilities, prefix_per_s

    def copy(self, task: CopyTask, tell: Tell) -> CopyRecord:
        """Copy all rows of a task (CopyEngine.copy)."""
        store, count = open_store(task.target), Count(task, tell)
        run, ledger = Run(store, task), Ledger(store, task.work_prefix)
        capabilities = asyncio.run(self._copied(task, ledger, count, run))
        run.require_wanted()
        count.tell()
        return finished(store, task, self.name, ledger, capabilities, count.seconds)

    def cancel(self, task: CopyTask) -> None:
        """Stop the run of a task, in whichever process it is; it ends within seconds."""
        Run.cancel(open_store(task.target), task)

    async def _copied(self, task: CopyTask, ledger: Ledger, count: Count, run: Run) -> dict[str, bool]:
        bound = FailureBound(str(task.target))

        def told(outcome: Outcome) -> None:
            count.add(outcome)
            bound.told(outcome)

        async def watch() -> None:
            while True:
                await asyncio.to_thread(run.require_wanted)
                count.tell()
                await asyncio.sleep(TELL_S)

        # A folder's copies are to be on the disk before the ledger says so.
        settle = os.sync if task.target.kind == FOLDER else None
        writer = LedgerWriter(ledger, count.objects_of, task.in_flight, settle)
        async with open_way(task, capabilities=self._capabilities, prefix_per_s=self._prefix_per_s) as way:
            rows = count.left(await asyncio.to_thread(ledger.copied))
            await with_beside(copy_all(way.copier, rows, task.in_flight, writer, told), watch())
            return dict(way.capabilities)
