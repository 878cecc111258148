"""Publication: what was audited becomes main's state, then a number in the ledger, all tables of the set or none.

The set's lock in the state database is held from the last look at main to the ledger. Whatever an earlier run
left between the two is finished first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import NotAudited
from lakeshare_pipelines.ingest import find_delivery
from lakeshare_pipelines.share.changes import with_changes
from lakeshare_pipelines.share.repair import pay_debts, record_landed, repair
from lakeshare_pipelines.wap.branches import drop
from lakeshare_pipelines.wap.checks import checks_of
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.replay import with_replay
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.staging import staging_for
from lakeshare_pipelines.wap.verdicts import CUT_SHORT, Verdicts
from lakeshare_server.catalog import Catalog, Ledger, Publication, set_lock


@dataclass(frozen=True)
class UnchangedRun:
    """A run whose deliveries are in force already, with the names of the checks that warned when they were audited."""

    partitions: tuple[str, ...]
    failed_checks: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """JSON-able form; `from_record` reads it back."""
        return {"partitions": list(self.partitions), "failed_checks": list(self.failed_checks)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The run a record was made from."""
        return cls(tuple(record["partitions"]), tuple(record["failed_checks"]))


def unchanged_run(
    lake: Lake, catalog: Catalog, contract: SetContract, partitions: Sequence[str]
) -> UnchangedRun | None:
    """Whether the deliveries of these partitions are in force already, under this contract; None when one is not.

    Decided before anything is read: Spark starts only where a crashed run left changes to be recorded.

    Raises:
        DeliveryError: a delivery is missing or not whole.
        CatalogConflict: another run held the set's lock for too long.
    """
    digests = {name: find_delivery(lake.settings, contract, name).digest for name in partitions}
    ledger = Ledger(catalog)
    if not _are_in_force(ledger, contract, digests):
        return None
    # What a crashed run brought to main, and not to the ledger, is newer than what the ledger shows.
    repair(lake, catalog, contract, lake.settings.lock_wait_s)
    if not _are_in_force(ledger, contract, digests):
        return None
    failed: set[str] = set()
    for table in contract.tables:
        shown = _in_force_by_partition(ledger.history(table.name))
        for name in partitions:
            names = shown[name].verdicts.get("failed_checks")
            if names is None or CUT_SHORT in names:
                return None  # which checks warned is not known any more
            failed.update(names)
    return UnchangedRun(tuple(partitions), tuple(sorted(failed)))


def latest_publications(catalog: Catalog, contract: SetContract) -> list[Publication]:
    """What recipients read of each table of a set."""
    latest = [Ledger(catalog).latest(table.name) for table in contract.tables]
    return [publication for publication in latest if publication is not None]


def publish_or_replay(
    lake: Lake, catalog: Catalog, contract: SetContract, staged: Staged, verdicts: Verdicts
) -> list[Publication]:
    """`publish`, answering conflicts by replay.

    Raises:
        Conflict, NotAudited: as `with_replay` says.
        CatalogConflict: another run held the set's lock for too long, or took it away.
    """
    return with_replay(
        lake, contract, staged, verdicts, lambda one, its: publish(lake, catalog, contract, one, its)
    )


def publish(
    lake: Lake, catalog: Catalog, contract: SetContract, staged: Staged, verdicts: Verdicts
) -> list[Publication]:
    """Make one staged, audited set visible to everyone; running it twice gives one publication.

    Deliveries that are in force already, under the same contract, get no new number.

    Raises:
        NotAudited: a verdict is missing, red, or speaks of another state than `staged.head`.
        BranchMoved: the staging place was written to after its audit.
        Conflict: a table of the set changed on main since the staging place was made.
    """
    require_green(contract, staged, verdicts)
    ledger = Ledger(catalog)
    with set_lock(catalog, contract.name, staged.run_id, lake.settings.lock_wait_s) as lease:
        pay_debts(lake, ledger, contract, lease)
        publications = _of_run(ledger, contract, staged.run_id) or in_force(ledger, contract, staged)
        if not publications:
            evidence = with_changes(lake, ledger, contract, staged, _evidence(staged, verdicts))
            landed = staging_for(lake, contract).land(staged, evidence)
            publications = record_landed(lake, ledger, contract, landed, lease)
    drop(lake, contract, staged.ref)
    return publications


def require_green(contract: SetContract, staged: Staged, verdicts: Verdicts) -> None:
    """Refuse what no complete, green audit of this very state stands behind.

    Raises:
        NotAudited: says which verdict is missing, red, or of another state.
    """
    if verdicts.head != staged.head:
        raise NotAudited(staged.title, f"its audit speaks of {verdicts.head}, it is at {staged.head}")
    if verdicts.contract_digest != contract.digest:
        raise NotAudited(
            staged.title, "it was audited against another version of its contract; audit it again"
        )
    given = {(verdict.table, verdict.check) for verdict in verdicts.verdicts}
    missing = [check for check in checks_of(contract) if (check.table, check.name) not in given]
    if missing:
        raise NotAudited(staged.title, f"no verdict for {', '.join(f'{c.table}: {c.name}' for c in missing)}")
    if not verdicts.green:
        raise NotAudited(staged.title, f"its audit failed ({verdicts.blocking_names})")


def in_force(ledger: Ledger, contract: SetContract, staged: Staged) -> list[Publication]:
    """The latest publications, when they already show these deliveries under this contract; else nothing."""
    if _are_in_force(ledger, contract, staged.deliveries):
        return latest_publications(ledger.catalog, contract)
    return []


def _are_in_force(ledger: Ledger, contract: SetContract, deliveries: Mapping[str, str]) -> bool:
    shown = deliveries_in_force(ledger, contract)
    return all(shown.get(name) == (digest, contract.digest) for name, digest in deliveries.items())


def deliveries_in_force(ledger: Ledger, contract: SetContract) -> dict[str, tuple[str, str]]:
    """Per partition the digests of the delivery and of the contract that what recipients read was made from."""
    shown: dict[str, tuple[str, str]] = {}
    tables = [table.name for table in contract.tables]
    per_table = [_digests(ledger.history(table)) for table in tables]
    for partition, digests in per_table[0].items():
        if all(other.get(partition) == digests for other in per_table[1:]):
            shown[partition] = digests
    return shown


def _digests(newest_first: Sequence[Publication]) -> dict[str, tuple[str, str]]:
    return {
        partition: (publication.verdicts["deliveries"][partition], publication.contract_digest)
        for partition, publication in _in_force_by_partition(newest_first).items()
    }


def _in_force_by_partition(newest_first: Sequence[Publication]) -> dict[str, Publication]:
    """Which publication the rows of each partition come from."""
    found: dict[str, Publication] = {}
    below: int | None = None
    for publication in newest_first:
        if below is not None and publication.version > below:
            continue
        if publication.rollback_of is not None:
            below = publication.rollback_of
            continue
        for partition in publication.verdicts["deliveries"]:
            found.setdefault(partition, publication)
    return found


def _of_run(ledger: Ledger, contract: SetContract, run_id: str) -> list[Publication]:
    mine = {table.name for table in contract.tables}
    return [publication for publication in ledger.by_run(run_id) if publication.table in mine]


def _evidence(staged: Staged, verdicts: Verdicts) -> Mapping[str, object]:
    return {**verdicts.as_evidence(), "deliveries": dict(staged.deliveries), "attempt": staged.attempt}
