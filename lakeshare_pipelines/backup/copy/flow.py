"""Many copies side by side in one event loop: each begun, done and told of, and a stop when too many fail."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable

from lakeshare_pipelines.backup.copy.ledger import LedgerWriter
from lakeshare_pipelines.backup.copy.objects import Copier
from lakeshare_pipelines.backup.copy.outcomes import NotCopied, Outcome, Wanted
from lakeshare_pipelines.backup.stores.s3 import CREDENTIALS
from lakeshare_pipelines.errors import BackupError, NoAnswer

FAILURES_COUNT_FROM = 1000
MOST_FAILED = 0.5
SPACE = "Free space there, or give the backup another target; what is copied already stays."
ENDS = {
    "InvalidAccessKeyId": CREDENTIALS,
    "InvalidToken": CREDENTIALS,
    "SignatureDoesNotMatch": CREDENTIALS,
    "RequestTimeTooSkewed": "Set the clock of this host.",
    "QuotaExceeded": SPACE,
    "InsufficientStorage": SPACE,
    "XMinioStorageFull": SPACE,
    "HTTP507": SPACE,
}
"""What holds for every other object too, and what to do about it."""
"""As Batch Operations has it: after so many objects, a greater share of failures ends the copying."""


async def copy_all(
    copier: Copier,
    rows: Iterable[Wanted],
    in_flight: int,
    writer: LedgerWriter,
    told: Callable[[Outcome], None],
) -> None:
    """Copy all rows, at most `in_flight` at a time; each outcome goes to the ledger and to `told`.

    Raises:
        BackupError: nothing more can be copied, or `told` had enough; what was done is in the ledger.
    """
    left = iter(rows)

    async def work() -> None:
        for wanted in left:
            await writer.begin()
            outcome = await outcome_of(copier, wanted)
            writer.add(outcome)
            told(outcome)

    async def all_of_it() -> None:
        async with writer, asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(work())

    await with_beside(all_of_it(), writer.keep())


async def with_beside(
    work: Coroutine[object, object, None], *beside: Coroutine[object, object, None]
) -> None:
    """Do `work`; what runs beside it without an end is ended with it, and ends it by a fault of its own.

    Raises:
        Exception: the first fault of either.
    """
    tasks = [asyncio.create_task(one) for one in (work, *beside)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    except* Exception as faults:
        raise _first(faults) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def outcome_of(copier: Copier, wanted: Wanted) -> Outcome:
    """What became of an object; that it cannot be copied is an outcome too.

    Raises:
        BackupError: nothing can be copied.
    """
    try:
        return await copier.copy(wanted)
    except NotCopied as reason:
        return reason.outcome(wanted)
    except NoAnswer as silence:
        return NotCopied("RequestTimeout", None, silence.reason).outcome(wanted)


class FailureBound:
    """Ends a copying of which most fails: `told` of each outcome."""

    def __init__(self, target: str) -> None:
        self._target, self._seen, self._failed = target, 0, Counter[str]()
        self._words: dict[str, str] = {}

    def told(self, outcome: Outcome) -> None:
        """Count one.

        Raises:
            BackupError: it is too many.
        """
        self._seen += 1
        if outcome.error_code is None:
            return
        if outcome.error_code in ENDS:
            reason = f"nothing more can be copied: {(outcome.message or outcome.error_code).rstrip('.')}"
            raise BackupError(self._target, reason, ENDS[outcome.error_code])
        self._failed[outcome.error_code] += 1
        self._words[outcome.error_code] = outcome.message or ""
        failed = self._failed.total()
        if self._seen >= FAILURES_COUNT_FROM and failed > MOST_FAILED * self._seen:
            code, times = self._failed.most_common(1)[0]
            raise BackupError(
                self._target,
                f"{failed} of {self._seen} copies failed, {times} of them with {code} ({self._words[code]})",
                "Remove the cause and run it again: what is copied already stays.",
            )


def _first(faults: BaseExceptionGroup[Exception]) -> Exception:
    first = faults.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
