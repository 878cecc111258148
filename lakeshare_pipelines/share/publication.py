"""Publication: an audited state becomes main's state, then a number in the ledger, all tables of the set or none.

The set's lock in the state database is held from the last read of main to the ledger. Publications that an earlier
run left incomplete are completed first.
"""

import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import Conflict, NoSuchPublication, NotAudited
from lakeshare_pipelines.share.changes import (
    ensure_changes,
    get_table_state,
    keep_index,
    record_changes,
    record_changes_since_latest,
    split_recorded_changes,
)
from lakeshare_pipelines.share.lineage import find_code, find_in_force, has_same_inputs
from lakeshare_pipelines.spark.stores import translate_delta_errors
from lakeshare_pipelines.wap.audit import audit_and_save, publish_with_replay
from lakeshare_pipelines.wap.checks import list_checks
from lakeshare_pipelines.wap.delta import DeltaStaging, table_location
from lakeshare_pipelines.wap.evolution import require_allowed_changes
from lakeshare_pipelines.wap.iceberg import get_changes_folder, iceberg_tables
from lakeshare_pipelines.wap.inputs import find_digests, find_inputs, find_position
from lakeshare_pipelines.wap.stage import (
    PROPERTY,
    Landed,
    drop_staging_location,
    find_applied,
    find_staging_location,
    reseal,
    staging_for,
)
from lakeshare_pipelines.wap.staged import (
    CUT_SHORT,
    Lake,
    Staged,
    Verdicts,
    find_trace,
    get_begin_time,
    read_traceparent,
)
from lakeshare_server.catalog import Catalog, Lease, Ledger, NewPublication, Publication, Sign, lock_set
from lakeshare_server.errors import LakeshareError
from lakeshare_server.tables import describe_index, read_delta
from lakeshare_server.tables.delta.log import list_for_latest
from lakeshare_server.tables.evidence import EvidenceWriter
from lakeshare_server.tables.iceberg.changes import change_files_of
from lakeshare_server.telemetry.logs import run_step
from lakeshare_server.telemetry.tracing import add_attributes, span


def pin_publication(
    lake: Lake,
    ledger: Ledger,
    table: Table,
    *,
    nessie_hash: str | None,
    delta_version: int | None,
    snapshot_id: int | None = None,
    changes_digest: str | None = None,
    records_changes: bool = True,
    **evidence: Any,
) -> NewPublication:
    """The table at a Nessie commit of main, a snapshot in another catalog, or a Delta version, with its file index.

    `evidence` are the fields of the publication that do not depend on the table's state: set, run, partition, verdicts.
    `changes_digest` is of the changes recorded before the table came to main; they are recorded again if it is missing
    or starts at another publication. `records_changes` False skips changes, for publications whose files are lost.

    Raises:
        Unserveable: the table's state cannot be served correctly; the ledger is unchanged.
    """
    with span("lakeshare.index", table=table.name):
        if table.format == "iceberg":
            state = get_table_state(lake, table, f"main@{nessie_hash or snapshot_id}")
            snapshot = state.read(lake.settings.vectors_location)
            index = keep_index(lake, snapshot)
            evidence |= {"metadata_location": state.metadata_location, "snapshot_id": state.snapshot_id}
            if records_changes:
                changes_digest = ensure_changes(lake, ledger, table, state, index.digest, changes_digest)
        else:
            snapshot = read_delta(table_location(lake.settings, table), delta_version, lake.stores)
            index = keep_index(lake, snapshot)
        add_attributes(rows=index.header.rows, files=index.header.files)
    return NewPublication(
        table=table.name,
        format=table.format,
        delta_version=delta_version,
        nessie_hash=nessie_hash,
        **describe_index(index.header),
        index_digest=index.digest,
        changes_digest=changes_digest,
        **evidence,
    )


def prepare_evidence(lake: Lake, ledger: Ledger, rows: Sequence[NewPublication]) -> Sign:
    """Signs the statements of publications in the transaction that numbers them: no number is without one.

    The digests of new files are computed here, before the transaction. Raises Unavailable.
    """
    return EvidenceWriter.open(lake.publications, ledger.catalog).prepare(rows)


log = logging.getLogger(__name__)


def repair(lake: Lake, catalog: Catalog, contract: SetContract) -> list[Publication]:
    """Complete publications that crashed runs left unfinished; raises `SparkError` if changes are lost."""
    with lock_set(catalog, contract.name, "repair", lake.settings.lock_wait_s) as lease:
        return complete_publications(lake, Ledger(catalog), contract, lease)


def for_each_set(contracts: Sequence[SetContract], act: Callable[[SetContract], None]) -> dict[str, str]:
    """Calls `act` for each set; returns the sets that failed, and why."""
    reasons = {}
    for contract in contracts:
        try:
            act(contract)
        except LakeshareError as error:
            reasons[contract.name] = f"{contract.name}: {error.for_provider()}"
    return reasons


def complete_publications(
    lake: Lake, ledger: Ledger, contract: SetContract, lease: Lease
) -> list[Publication]:
    """`repair` for a caller that holds the set's lock."""
    repaired = record_repeats(lake, ledger, contract, lease)
    for landed in staging_for(lake, contract).find_incomplete(lambda run_id: bool(ledger.by_run(run_id))):
        log.warning("%s reached main but not the ledger: completing it", landed.staged.title)
        repaired += record_landed(lake, ledger, contract, landed, lease)
        drop_staging_location(lake, contract, landed.staged.ref)
    return repaired


def record_landed(
    lake: Lake, ledger: Ledger, contract: SetContract, landed: Landed, lease: Lease
) -> list[Publication]:
    """Pin, index and number every table of a set at its state on main; all of them or none."""
    evidence, changes = split_recorded_changes(landed.evidence)
    ref = landed.staged.ref
    started_at, traceparent = get_begin_time(lake, ref), read_traceparent(lake, ref)
    rows = [
        pin_publication(
            lake,
            ledger,
            table,
            nessie_hash=landed.nessie_hash,
            delta_version=landed.versions.get(table.name),
            snapshot_id=landed.snapshots.get(table.name),
            set_name=contract.name,
            run_id=landed.staged.run_id,
            partition=landed.staged.partition,
            contract_digest=landed.staged.contract_digest,
            verdicts=evidence,
            changes_digest=changes.get(table.name),
            started_at=started_at,
            traceparent=traceparent,
        )
        for table in contract.tables
    ]
    publications = ledger.append(rows, lease, prepare_evidence(lake, ledger, rows))
    for publication in publications:
        log.info("%s is publication %s: %s rows", publication.table, publication.version, publication.rows)
    return publications


def record_repeats(lake: Lake, ledger: Ledger, contract: SetContract, lease: Lease) -> list[Publication]:
    """Number the rollbacks and maintenance that main has and the ledger lacks; also the last step of each of them."""
    recorded = []
    for table in contract.tables:
        for version, fields in _find_incomplete_repeats(lake, ledger, contract, table):
            target = ledger.at(table.name, version)
            if target is None:
                raise NoSuchPublication(table.name, version)
            row = pin_publication(
                lake,
                ledger,
                table,
                set_name=contract.name,
                partition=target.partition,
                contract_digest=target.contract_digest,
                verdicts=target.verdicts,
                **fields,
            )
            recorded += ledger.append([row], lease, prepare_evidence(lake, ledger, [row]))
    return recorded


Repeat = Literal["rollback", "maintenance"]


def repeat_properties(
    kind: Repeat, contract: SetContract, table: Table, version: int, run_id: str, changes_digest: str | None
) -> dict[str, str]:
    """Properties of the commit on main that repeats a publication: all that the ledger needs."""
    record = json.dumps({"table": table.name, "version": version, "changes": changes_digest})
    return {PROPERTY + "set": contract.name, PROPERTY + "run": run_id, PROPERTY + kind: record}


def _find_incomplete_repeats(
    lake: Lake, ledger: Ledger, contract: SetContract, table: Table
) -> list[tuple[int, dict[str, Any]]]:
    """The publications that main repeats, oldest first, with the fields to pin each repetition."""
    repeats = []
    for properties, pins in _list_commits(lake, contract, table):
        run = properties.get(PROPERTY + "run")
        if run is None or properties.get(PROPERTY + "set") != contract.name:
            continue
        if ledger.by_run(run):
            break
        for kind in get_args(Repeat):
            record = json.loads(properties.get(PROPERTY + kind, "{}"))
            if record.get("table") == table.name:
                fields = {"run_id": run, **pins}
                fields |= {"changes_digest": record.get("changes"), f"{kind}_of": record["version"]}
                repeats.append((record["version"], fields))
    return repeats[::-1]


def _list_commits(
    lake: Lake, contract: SetContract, table: Table
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Properties of the commits that may have changed a table, and the fields that pin their state; newest first."""
    if table.format == "iceberg":
        for commit in iceberg_tables(lake).commits(table.name):
            pins = {"nessie_hash": commit.nessie_hash, "snapshot_id": commit.snapshot_id}
            yield commit.properties, {**pins, "delta_version": None}
    else:
        for version, info in DeltaStaging(lake, contract).commits(table.name):
            yield info, {"nessie_hash": None, "delta_version": version}


@dataclass(frozen=True)
class UnchangedRun:
    """A run whose deliveries are already published, with the names of the checks that failed in their audits."""

    partitions: tuple[str, ...]
    failed_checks: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        return {"partitions": list(self.partitions), "failed_checks": list(self.failed_checks)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        return cls(tuple(record["partitions"]), tuple(record["failed_checks"]))


def unchanged_run(
    lake: Lake,
    catalog: Catalog,
    contract: SetContract,
    partitions: Sequence[str],
    pins: Mapping[str, int] = MappingProxyType({}),
) -> UnchangedRun | None:
    """The run if these partitions are already published under this contract, made of the same, else None.

    The same deliveries, inputs as with these pins, and files of transforms. Decided before any file of a delivery is
    read: Spark starts only where a crashed run left changes unrecorded.

    Raises:
        DeliveryError: a delivery is missing or incomplete.
        SourceError: another source cannot be read, or not from where the latest publication ended.
        InputError: a table of another set has no publication, or not the pinned one.
        CatalogConflict: another run held the set's lock for too long.
    """
    ledger = Ledger(catalog)
    digests = find_digests(lake, ledger, contract, partitions)
    inputs = {name: found.version for name, found in find_inputs(ledger, contract, pins).items()}
    made_of = digests, inputs, find_code(contract)
    if not _are_in_force(ledger, contract, *made_of):
        return None
    # An incomplete publication is newer than what the ledger has.
    repair(lake, catalog, contract)
    if not _are_in_force(ledger, contract, *made_of):
        return None
    failed: set[str] = set()
    for table in contract.tables:
        published = find_in_force(ledger, table, partitions)
        for name in partitions:
            names = published[name].verdicts.get("failed_checks")
            if names is None or CUT_SHORT in names:
                return None  # the names of the failed checks were cut
            failed.update(names)
    return UnchangedRun(tuple(partitions), tuple(sorted(failed)))


def latest_publications(catalog: Catalog, contract: SetContract) -> list[Publication]:
    latest = [Ledger(catalog).latest(table.name) for table in contract.tables]
    return [publication for publication in latest if publication is not None]


def publish_or_replay(
    lake: Lake, catalog: Catalog, contract: SetContract, staged: Staged, verdicts: Verdicts
) -> list[Publication]:
    """`publish`, with a replay after each conflict; raises as `publish_with_replay` and `lock_set`."""
    return publish_with_replay(
        lake, contract, staged, verdicts, lambda *audited: publish(lake, catalog, contract, *audited)
    )


def publish(
    lake: Lake, catalog: Catalog, contract: SetContract, staged: Staged, verdicts: Verdicts
) -> list[Publication]:
    """Make one staged, audited set visible to all readers; running it twice gives one publication.

    Deliveries that are already published under the same contract get no new number.

    Raises:
        ContractError: the contract breaks what is published by now.
        NotAudited: a verdict is missing, failed, or is of another state than `staged.head`.
        BranchMoved: the staging location was written to after its audit.
        Conflict: a table of the set changed on main since the staging location was created.
        BadRequest, Unavailable: the key that signs evidence cannot be used.
    """
    with run_step("publish", staged.run_id, find_trace(lake, staged.ref), set=contract.name, ref=staged.ref):
        publications = _publish(lake, catalog, contract, staged, verdicts)
        add_attributes(**{f"version.{row.table}": row.version for row in publications})
        return publications


def _publish(
    lake: Lake, catalog: Catalog, contract: SetContract, staged: Staged, verdicts: Verdicts
) -> list[Publication]:
    require_green(contract, staged, verdicts)
    ledger = Ledger(catalog)
    EvidenceWriter.open(lake.publications, catalog).require_key()
    with lock_set(catalog, contract.name, staged.run_id, lake.settings.lock_wait_s) as lease:
        complete_publications(lake, ledger, contract, lease)
        names = {table.name for table in contract.tables}
        publications = [row for row in ledger.by_run(staged.run_id) if row.table in names]
        made_of = staged.deliveries, staged.inputs, staged.code
        if not publications and _are_in_force(ledger, contract, *made_of):
            publications = latest_publications(catalog, contract)
        if not publications:
            # Another version of the contract may have been published since the set was staged.
            require_allowed_changes(ledger, contract)
            _require_unapplied(ledger, contract, staged)
            evidence = verdicts.as_evidence() | record_changes(lake, ledger, contract, staged)
            evidence |= {"deliveries": dict(staged.deliveries), "attempt": staged.attempt}
            evidence |= staged.describe_inputs()
            with span("lakeshare.land", set=contract.name):
                landed = staging_for(lake, contract).land(staged, evidence)
            publications = record_landed(lake, ledger, contract, landed, lease)
    drop_staging_location(lake, contract, staged.ref)
    return publications


def require_green(contract: SetContract, staged: Staged, verdicts: Verdicts) -> None:
    """Raises `NotAudited` unless a complete, green audit of this very state exists."""
    if verdicts.head != staged.head:
        raise NotAudited(staged.title, f"its audit is of {verdicts.head}, it is at {staged.head}")
    if verdicts.contract_digest != contract.digest:
        why = "it was audited against another version of its contract; audit it again"
        raise NotAudited(staged.title, why)
    given = {(verdict.table, verdict.check) for verdict in verdicts.verdicts}
    missing = [check for check in list_checks(contract) if (check.table, check.name) not in given]
    if missing:
        raise NotAudited(staged.title, f"no verdict for {', '.join(f'{c.table}: {c.name}' for c in missing)}")
    if not verdicts.green:
        raise NotAudited(staged.title, f"its audit failed ({verdicts.blocking_names})")


def _are_in_force(
    ledger: Ledger,
    contract: SetContract,
    deliveries: Mapping[str, str],
    inputs: Mapping[str, int],
    code: Mapping[str, str],
) -> bool:
    published = deliveries_in_force(ledger, contract, deliveries.keys())
    if any(published.get(name) != (digest, contract.digest) for name, digest in deliveries.items()):
        return False
    return all(
        publication.verdicts.get("code", {}).get(table.name) == code.get(table.name)
        and has_same_inputs(ledger, contract, publication, partition, table, inputs)
        for table in contract.tables
        if table.inputs or table.transform is not None
        for partition, publication in find_in_force(ledger, table, deliveries.keys()).items()
    )


def deliveries_in_force(
    ledger: Ledger, contract: SetContract, partitions: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Per partition the digests of the delivery and of the contract behind the latest publications of all tables."""
    first, *others = [
        {
            partition: (publication.verdicts["deliveries"][partition], publication.contract_digest)
            for partition, publication in find_in_force(ledger, table, partitions).items()
        }
        for table in contract.tables
    ]
    return {
        partition: digests
        for partition, digests in first.items()
        if all(other.get(partition) == digests for other in others)
    }


def _require_unapplied(ledger: Ledger, contract: SetContract, staged: Staged) -> None:
    """Raises `Conflict` if a table has a delivery by now that the run applied to it, too."""
    for table in contract.tables:
        record = staged.find_table(table.name)
        if record is None or not table.write.is_incremental:
            continue
        if table.reads is not None:
            if find_position(ledger, table.name) != record.since:
                raise Conflict([table.name], staged.base, "a publication that read its source, or a rollback")
            continue
        twice = find_applied(ledger, table.name, staged.deliveries).difference(record.skipped)
        if twice:
            raise Conflict([table.name], staged.base, f"a publication of {', '.join(sorted(twice))}")


@dataclass(frozen=True)
class RetryResult:
    """The result of a retry; `publications` is empty when the audit failed."""

    verdicts: Verdicts
    publications: tuple[Publication, ...]


def retry(lake: Lake, catalog: Catalog, contracts: Sequence[SetContract], ref: str) -> RetryResult:
    """Audit the staging location `ref` again, with repairs made there, and publish it if it is green.

    Raises:
        UnknownStagingLocation: no location has that name.
        NotAudited: its run ended before it had written everything; run the partition again instead.
    """
    contract, location = find_staging_location(lake, contracts, ref)
    if location.attempt is None:
        raise NotAudited(ref, "its run ended before everything was written; run the partition again")
    staged = reseal(lake, contract, location.attempt.staged)
    verdicts = audit_and_save(lake, contract, staged)
    if not verdicts.green:
        return RetryResult(verdicts, ())
    return RetryResult(verdicts, tuple(publish_or_replay(lake, catalog, contract, staged, verdicts)))


def rollback(lake: Lake, catalog: Catalog, contract: SetContract, table: Table, version: int) -> Publication:
    """Make publication `version` of a table its newest again, under a new number.

    Incomplete publications are completed first. If the newest number already shows that publication, as when a
    rollback is repeated, it is returned and nothing changes.

    Raises:
        NoSuchPublication: the ledger does not have that number.
        CatalogConflict: a run of the set is publishing and did not end in time.
    """
    ledger = Ledger(catalog)
    EvidenceWriter.open(lake.publications, catalog).require_key()
    with lock_set(catalog, contract.name, f"rollback of {table.name}", lake.settings.lock_wait_s) as lease:
        complete_publications(lake, ledger, contract, lease)
        target, oldest = ledger.at(table.name, version), ledger.oldest_readable(table.name)
        if target is None or version < oldest:
            raise NoSuchPublication(table.name, version, 0 if target is None else oldest)
        latest = ledger.latest(table.name)
        if latest and version in (latest.version, latest.repeats) and _is_on_main(lake, table, latest):
            return latest
        changes = None
        if table.format == "iceberg":
            pinned = target.nessie_hash if lake.named_catalog is None else target.snapshot_id
            state = get_table_state(lake, table, f"main@{pinned}")
            changes = record_changes_since_latest(lake, ledger, table, state)
        run_id = f"rollback-{uuid.uuid4()}"
        properties = repeat_properties("rollback", contract, table, version, run_id, changes)
        if table.format == "iceberg":
            iceberg_tables(lake).restore(target, properties)
        else:
            _restore_delta(lake, table, target, properties)
        return record_repeats(lake, ledger, contract, lease)[-1]


def rollback_with_views(
    lake: Lake, catalog: Catalog, contract: SetContract, table: Table, version: int
) -> list[Publication]:
    """`rollback` of a table, and before it of its views, to the publications of the run that made `version`.

    A view that did not exist then stays as it is. Returns the publications, the table's own last; raises as `rollback`.
    """
    ledger = Ledger(catalog)
    origin = ledger.at(table.name, version)
    while origin is not None and origin.repeats is not None:
        origin = ledger.at(table.name, origin.repeats)
    if origin is None:
        raise NoSuchPublication(table.name, version)
    versions = {published.table: published.version for published in ledger.by_run(origin.run_id)}
    views = [view for view in contract.tables if view.view is not None and view.view.of == table.name]
    # Views first: after an interruption they show too few rows, and none that the table no longer has.
    shown = [(view, versions[view.name]) for view in views if view.name in versions]
    return [rollback(lake, catalog, contract, *each) for each in (*shown, (table, version))]


def _is_on_main(lake: Lake, table: Table, latest: Publication) -> bool:
    """Whether main is as the newest publication left it; other writers may have written to the table since."""
    if table.format == "delta":
        return (
            list_for_latest(lake.stores, table_location(lake.settings, table)).latest == latest.delta_version
        )
    return iceberg_tables(lake).is_on_main(latest)


def _restore_delta(lake: Lake, table: Table, target: Publication, properties: dict[str, str]) -> None:
    from deltalake.transaction import CommitProperties

    opened = lake.open_delta(table_location(lake.settings, table))
    if target.delta_version is None or opened is None:
        raise NoSuchPublication(table.name, target.version)
    commit = CommitProperties(custom_metadata=properties, max_commit_retries=0)
    with translate_delta_errors(table_location(lake.settings, table)):
        opened.restore(target.delta_version, commit_properties=commit)


def drop_abandoned(lake: Lake, catalog: Catalog, contract: SetContract) -> list[str]:
    """Remove folders of change files that no publication uses, older than `branch_days`; returns them."""
    dropped = []
    with lock_set(catalog, contract.name, "janitor", lake.settings.lock_wait_s) as lease:
        ledger = Ledger(catalog)
        # Publications that are on main and not yet in the ledger use folders, too.
        complete_publications(lake, ledger, contract, lease)
        for table in contract.tables:
            for folder in _find_abandoned(lake, ledger, table):
                log.info("removing change files that no publication uses: %s", folder)
                lake.stores.delete_folder(folder)
                dropped.append(folder)
    return dropped


def _find_abandoned(lake: Lake, ledger: Ledger, table: Table) -> list[str]:
    horizon = datetime.now(UTC) - timedelta(days=lake.settings.branch_days)
    horizon_ms, oldest = horizon.timestamp() * 1000, ledger.oldest_readable(table.name, horizon)
    history = ledger.history(table.name)
    roots = sorted({get_changes_folder(lake, table.name, row.location) for row in history})
    folders = [f"{root}/{name}" for root in roots for name in lake.stores.folders(root, missing_ok=True)]
    written = {folder: lake.stores.written_between(folder) for folder in folders}
    old = [folder for folder, times_ms in written.items() if times_ms is None or times_ms[1] <= horizon_ms]
    if not old:
        return []
    used: list[str] = []
    for publication in history:
        if publication.changes_digest is not None and publication.version >= oldest:
            segment = lake.publications.find_changes(publication.changes_digest)
            if segment is None:
                log.warning("the change files of %s stay: not all indexes of changes can be read", table.name)
                return []
            used += change_files_of(segment, publication.version)
    return [folder for folder in old if not any(path.startswith(f"{folder}/") for path in used)]
