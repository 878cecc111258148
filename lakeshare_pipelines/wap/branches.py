"""Staging places that are still there: listed, resealed, dropped, and cleaned up when nobody came back."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import PipelineError
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.records import Attempt, attempts, begun, forget, recorded
from lakeshare_pipelines.wap.stage import make_views_again
from lakeshare_pipelines.wap.staged import Staged, staging_prefix
from lakeshare_pipelines.wap.staging import staging_for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StagingPlace:
    """A branch or staging folder; `attempt` is None when its run ended before it had anything to record."""

    ref: str
    set_name: str
    since: datetime
    attempt: Attempt | None

    @property
    def state(self) -> str:
        """`unfinished`, `staged`, `red` or `green`."""
        return "unfinished" if self.attempt is None else self.attempt.state


class UnknownStagingPlace(PipelineError):
    """No staging place of that name."""

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"there is no staging place {ref!r}. `lakeshare wap list` shows those that are there."
        )
        self.ref = ref


def places(lake: Lake, contracts: Sequence[SetContract]) -> list[StagingPlace]:
    """Every staging place of these sets, oldest first."""
    recorded = {attempt.staged.ref: attempt for attempt in attempts(lake.settings)}
    found = [place for contract in contracts for place in _of_set(lake, contract, recorded)]
    return sorted(found, key=lambda place: place.since)


def find(lake: Lake, contracts: Sequence[SetContract], ref: str) -> tuple[SetContract, StagingPlace]:
    """A staging place by its name.

    Raises:
        UnknownStagingPlace: there is none.
    """
    for contract in contracts:
        for place in places(lake, [contract]):
            if place.ref == ref:
                return contract, place
    raise UnknownStagingPlace(ref)


def resealed(lake: Lake, contract: SetContract, staged: Staged) -> Staged:
    """The staged set as it stands now: what somebody repaired on the branch is part of the next audit.

    Views are made again, of what their tables have now.
    """
    staging = staging_for(lake, contract)
    head = staging.seal(staged.ref)
    if head == staged.head:
        return staged
    log.warning("%s moved from %s to %s since it was written", staged.ref, staged.head, head)
    make_views_again(lake, contract, dataclasses.replace(staged, head=head))
    moved = dataclasses.replace(staged, head=staging.seal(staged.ref))
    tables = tuple(
        dataclasses.replace(table, rows=staging.count_written(moved, contract.table(table.table)))
        for table in staged.tables
    )
    return dataclasses.replace(moved, tables=tables)


def drop(lake: Lake, contract: SetContract, ref: str) -> None:
    """Remove a staging place and its record; a published one only loses its record."""
    staging_for(lake, contract).discard(ref)
    forget(lake.settings, ref)


def drop_abandoned(
    lake: Lake, contracts: Sequence[SetContract], now: datetime | None = None
) -> list[StagingPlace]:
    """Remove staging places older than `branch_days`, and records as old that a crash left without one.

    Returns the places.
    """
    horizon = (now or datetime.now(UTC)) - timedelta(days=lake.settings.branch_days)
    dropped = []
    for contract in contracts:
        there = places(lake, [contract])
        for ref, since in recorded(lake.settings, staging_prefix(contract.name)):
            if since <= horizon and ref not in {place.ref for place in there}:
                forget(lake.settings, ref)
        for place in there:
            if place.since <= horizon:
                log.info("dropping %s, untouched since %s", place.ref, place.since)
                drop(lake, contract, place.ref)
                dropped.append(place)
    return dropped


def _of_set(lake: Lake, contract: SetContract, recorded: dict[str, Attempt]) -> Iterator[StagingPlace]:
    for ref, since in staging_for(lake, contract).waiting():
        attempt = recorded.get(ref)
        latest = attempt.written_at if attempt is not None else begun(lake.settings, ref) or since
        yield StagingPlace(ref, contract.name, latest, attempt)
