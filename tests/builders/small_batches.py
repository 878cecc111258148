"""Local engines for tests with few objects: they write the ledger after few copies, and take their time.

Spark's executors import this module too.
"""

import asyncio
from unittest.mock import patch

from lakeshare_pipelines.backup.copy import engine
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.objects import ServerSideCopier
from lakeshare_pipelines.backup.model import CopyRecord

BATCH = 8
"""At most so many copies are in no ledger."""


class SmallBatches(LocalEngine):
    """The local engine with a ledger of batches of BATCH copies."""

    def copy(self, task: engine.CopyTask, report_progress: engine.ReportProgress) -> CopyRecord:
        with patch.object(engine, "BATCH", BATCH):
            return super().copy(task, report_progress)


PAUSE_S = 0.2


class SlowCopies(SmallBatches):
    """The same, and before each copy it waits PAUSE_S."""

    def copy(self, task: engine.CopyTask, report_progress: engine.ReportProgress) -> CopyRecord:
        copy_at_once = ServerSideCopier.copy

        async def copy_slowly(copier: ServerSideCopier, item: engine.CopyItem) -> engine.Outcome:
            await asyncio.sleep(PAUSE_S)
            return await copy_at_once(copier, item)

        with patch.object(ServerSideCopier, "copy", copy_slowly):
            return super().copy(task, report_progress)
