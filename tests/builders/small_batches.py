"""Local engines for tests with few objects: they write the ledger after few copies, and take their time.

Spark's executors import this module too.
"""

import asyncio
from collections.abc import Mapping
from unittest.mock import patch

from lakeshare_pipelines.backup.copy import engine
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.objects import BucketCopier

BATCH = 8
"""At most so many copies are in no ledger."""


class SmallBatches(LocalEngine):
    """The local engine with a ledger of batches of BATCH copies."""

    def transfer(self, copying: engine.Copying, condition: str = "true") -> Mapping[str, bool]:
        with patch.object(engine, "BATCH", BATCH):
            return super().transfer(copying, condition)


PAUSE_S = 0.2


class SlowCopies(SmallBatches):
    """The same, and before each copy it waits PAUSE_S."""

    def transfer(self, copying: engine.Copying, condition: str = "true") -> Mapping[str, bool]:
        copy_at_once = BucketCopier.copy

        async def copy_slowly(copier: BucketCopier, item: engine.CopyItem) -> engine.Outcome:
            await asyncio.sleep(PAUSE_S)
            return await copy_at_once(copier, item)

        with patch.object(BucketCopier, "copy", copy_slowly):
            return super().transfer(copying, condition)
