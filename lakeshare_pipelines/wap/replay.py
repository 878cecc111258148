"""A conflict's answer: stage again from fresh main, judge again, publish; never force."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import Conflict, NotAudited
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.branches import drop
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.records import keep
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdicts

log = logging.getLogger(__name__)

JITTER_S = 2.0

T = TypeVar("T")


class RedReplay(NotAudited):
    """What was audited green was red when it was written and judged again on what main had become."""

    def __init__(self, replayed: Staged, verdicts: Verdicts) -> None:
        super().__init__(replayed.title, f"its audit after a replay failed ({verdicts.blocking_names})")
        self.replayed, self.verdicts = replayed, verdicts


def with_replay(
    lake: Lake,
    contract: SetContract,
    staged: Staged,
    verdicts: Verdicts,
    publish: Callable[[Staged, Verdicts], T],
) -> T:
    """Publish; on a conflict write and judge the same deliveries anew on what main is now, a few times.

    Raises:
        Conflict: main kept moving through every attempt.
        RedReplay: the audit of a replay was red; its staging place stays for inspection.
    """
    while True:
        try:
            return publish(staged, verdicts)
        except Conflict as conflict:
            if staged.attempt + 1 >= lake.settings.replay_attempts:
                raise
            log.warning("%s; replaying %s", conflict, staged.title)
            time.sleep(random.uniform(0, JITTER_S))  # noqa: S311  two writers in step, not a secret
            replayed = stage(lake, contract, staged.partitions, staged.run_id, staged.attempt + 1)
            drop(lake, contract, staged.ref)
            staged, verdicts = replayed, judged(lake, contract, replayed)
            if not verdicts.green:
                raise RedReplay(staged, verdicts) from conflict


def judged(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    """Audit a staged set and keep its verdicts beside it."""
    verdicts = audit(lake, contract, staged)
    keep(lake.settings, staged, verdicts)
    return verdicts
