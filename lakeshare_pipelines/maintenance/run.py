"""Maintenance of one table: expire publications, compact, publish the same rows in fewer files, remove what is unused.

The result is a new number with the rows of the one before: recipients of changes and streams get nothing from it.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import Conflict, MaintenanceError, WarehouseError
from lakeshare_pipelines.maintenance.compaction import Compacted, TableFigures, commit_delta, compact, measure
from lakeshare_pipelines.maintenance.expiry import (
    UnusedFiles,
    find_oldest_kept,
    find_unused_files,
    list_removable_snapshots,
    remove_files,
    write_metadata_without,
)
from lakeshare_pipelines.share.changes import (
    get_published_state,
    get_table_state,
    record_changes_since_latest,
)
from lakeshare_pipelines.share.publication import complete_publications, record_repeats, repeat_properties
from lakeshare_pipelines.spark.catalogs import NamedCatalog
from lakeshare_pipelines.spark.stores import translate_delta_errors
from lakeshare_pipelines.wap.branches import BranchTables
from lakeshare_pipelines.wap.delta import STAGED_FOLDER, DeltaStaging, table_location
from lakeshare_pipelines.wap.iceberg import iceberg_tables
from lakeshare_pipelines.wap.stage import PROPERTY, drop_staging_location
from lakeshare_pipelines.wap.staged import Lake, TablePointer, make_staging_name, record_begin
from lakeshare_server.catalog import Catalog, Ledger, Publication, lock_set
from lakeshare_server.tables.delta.log import list_log

log = logging.getLogger(__name__)

ATTEMPTS = 3
# Fewer snapshots that were never published are left to the next time: their removal is a new number.
MIN_REMOVED_SNAPSHOTS = 10
# The default of `delta.checkpointInterval`.
COMMITS_PER_CHECKPOINT = 10


@dataclass(frozen=True)
class MaintenancePlan:
    """What maintenance would do now; `files_stay` is the reason why no file may be removed, if any."""

    table: str
    version: int
    figures: TableFigures
    rewrites_files: bool
    rewrites_manifests: bool
    removed_snapshots: int
    oldest_readable: int
    oldest_kept: int
    unused: UnusedFiles
    files_stay: str = ""


@dataclass(frozen=True)
class MaintenanceResult:
    """What maintenance did; `publication` is None if no number was needed."""

    table: str
    before: TableFigures
    after: TableFigures
    publication: Publication | None
    oldest_readable: int
    removed: UnusedFiles
    files_stay: str = ""


def plan_maintenance(
    lake: Lake, catalog: Catalog, table: Table, now: datetime | None = None
) -> MaintenancePlan:
    """What `maintain` would do to a table, from metadata and listings only; changes nothing.

    Raises:
        MaintenanceError: the table has no publication.
    """
    ledger, now = Ledger(catalog), now or datetime.now(UTC)
    latest = _require_latest(ledger, table)
    figures, oldest = measure(lake, table, latest), ledger.oldest_readable(table.name)
    kept = max(oldest, find_oldest_kept(ledger, table, now) or 0)
    removable = list[int]()
    if table.format == "iceberg":
        state = get_table_state(lake, table, "main")
        removable = list_removable_snapshots(lake, ledger, table, latest, kept, state)
    unused, files_stay = _find_unused(lake, ledger, table, now)
    compacts = table.maintenance.compaction.is_wanted
    return MaintenancePlan(
        table=table.name,
        version=latest.version,
        figures=figures,
        rewrites_files=compacts and figures.small_files > 0,
        rewrites_manifests=compacts and figures.has_many_manifests and lake.named_catalog is None,
        removed_snapshots=len(removable) if _are_worth_removing(ledger, table, removable) else 0,
        oldest_readable=oldest,
        oldest_kept=kept,
        unused=unused,
        files_stay=files_stay,
    )


def maintain(
    lake: Lake, catalog: Catalog, contract: SetContract, table: Table, now: datetime | None = None
) -> MaintenanceResult:
    """Maintain a table; running it again continues where a crash ended it.

    Raises:
        MaintenanceError: the table has no publication, or it cannot be compacted.
        CatalogConflict: a run of the set held its lock for too long.
    """
    ledger, now = Ledger(catalog), now or datetime.now(UTC)
    _require_latest(ledger, table)
    _expire(lake, catalog, contract, table, now)
    before = measure(lake, table, _require_latest(ledger, table))
    publication = _publish_maintained(lake, catalog, contract, table, before)
    if table.format == "delta":
        _write_checkpoint(lake, table)
    elif lake.named_catalog is not None:
        _remove_snapshots(lake, lake.named_catalog, catalog, contract, table)
    unused, files_stay = _find_unused(lake, ledger, table, now)
    log.info("removing %s files of %s, %s bytes", len(unused.files), table.name, unused.size_bytes)
    remove_files(lake, unused)
    return MaintenanceResult(
        table.name,
        before,
        before if publication is None else measure(lake, table, publication),
        publication,
        ledger.oldest_readable(table.name),
        unused,
        files_stay,
    )


def format_plan(plan: MaintenancePlan) -> list[str]:
    figures = plan.figures
    lines = [f"{plan.table}, publication {plan.version}: {_format_figures(figures)}"]
    if plan.rewrites_files:
        lines.append(f"  rewrite {figures.small_files:,} small files")
    if plan.rewrites_manifests:
        lines.append(f"  rewrite {figures.manifests:,} manifests")
    if plan.removed_snapshots:
        lines.append(f"  remove {plan.removed_snapshots:,} snapshots from the metadata")
    if plan.oldest_kept > plan.oldest_readable:
        lines.append(f"  expire the publications below {plan.oldest_kept}")
    if plan.unused.files or plan.unused.folders:
        removed = f"{len(plan.unused.files):,} files, {plan.unused.size_bytes:,} bytes"
        lines.append(f"  remove what nothing uses: {removed}")
    if plan.files_stay:
        lines.append(f"  remove no file: {plan.files_stay}")
    return lines if len(lines) > 1 else [*lines, "  nothing to do"]


def format_result(result: MaintenanceResult) -> list[str]:
    number = result.publication
    state = (
        "as it was"
        if number is None
        else f"publication {number.version} has the rows of {number.maintenance_of}"
    )
    return [
        f"{result.table}: {state}",
        f"  before: {_format_figures(result.before)}",
        f"  after:  {_format_figures(result.after)}",
        f"  removed {len(result.removed.files):,} files, {result.removed.size_bytes:,} bytes; readable from number "
        f"{result.oldest_readable} on",
        *([f"  no file was removed: {result.files_stay}"] if result.files_stay else []),
    ]


def _format_figures(figures: TableFigures) -> str:
    parts = [
        f"{figures.files:,} files",
        f"{figures.size_bytes:,} bytes",
        f"{figures.small_files:,} small files",
    ]
    if figures.manifests:
        parts.append(f"{figures.manifests:,} manifests")
    return ", ".join(
        [*parts, f"{figures.history:,} {'snapshots' if figures.manifests else 'files in the log'}"]
    )


def _require_latest(ledger: Ledger, table: Table) -> Publication:
    latest = ledger.latest(table.name)
    if latest is None:
        raise MaintenanceError(table.name, "it has no publication", "Publish it first")
    return latest


def _find_unused(lake: Lake, ledger: Ledger, table: Table, now: datetime) -> tuple[UnusedFiles, str]:
    """The unused files, or why none may be removed."""
    try:
        return find_unused_files(lake, ledger, table, now), ""
    except WarehouseError as refusal:
        return UnusedFiles(), str(refusal)


def _expire(lake: Lake, catalog: Catalog, contract: SetContract, table: Table, now: datetime) -> None:
    ledger = Ledger(catalog)
    with lock_set(catalog, contract.name, f"expiry of {table.name}", lake.settings.lock_wait_s) as lease:
        complete_publications(lake, ledger, contract, lease)
        oldest = find_oldest_kept(ledger, table, now)
        if oldest is not None and oldest > ledger.oldest_readable(table.name):
            ledger.expire(table.name, oldest, lease)
            log.info("publications of %s below %s expired", table.name, oldest)


def _publish_maintained(
    lake: Lake, catalog: Catalog, contract: SetContract, table: Table, figures: TableFigures
) -> Publication | None:
    """Compact a table and remove snapshots from its metadata, as a new publication; None if neither is worth it."""
    for attempt in range(1, ATTEMPTS + 1):
        ledger, run_id = Ledger(catalog), f"maintenance-{uuid4()}"
        latest = _require_latest(ledger, table)
        ref = make_staging_name(contract.name, (f"maintenance_{table.short_name}",), run_id, 0)
        try:
            if table.maintenance.compaction.is_wanted and figures.needs_compaction(lake):
                record_begin(lake, ref)
                compacted = compact(lake, contract, table, latest, figures, ref, run_id)
            elif (
                table.format == "iceberg"
                and lake.named_catalog is None
                and _list_old_snapshots(lake, ledger, table, latest)
            ):
                compacted = Compacted(None, latest, get_published_state(lake, latest))
            else:
                return None
            return _land(lake, catalog, contract, table, compacted, run_id)
        except Conflict as conflict:
            if attempt == ATTEMPTS:
                reason = f"{ATTEMPTS} times main was not at the latest publication"
                fix = "Run it between publications; if another program wrote to the table, publish it again first"
                raise MaintenanceError(table.name, reason, fix) from conflict
            log.info("%s Compacting it again.", conflict)
            figures = measure(lake, table, _require_latest(ledger, table))
        finally:
            drop_staging_location(lake, contract, ref)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _land(
    lake: Lake, catalog: Catalog, contract: SetContract, table: Table, compacted: Compacted, run_id: str
) -> Publication:
    ledger, latest = Ledger(catalog), compacted.publication
    with lock_set(catalog, contract.name, run_id, lake.settings.lock_wait_s) as lease:
        complete_publications(lake, ledger, contract, lease)
        if ledger.latest(table.name) != latest:
            raise Conflict([table.name], f"publication {latest.version}", "a newer publication")
        land = _land_iceberg if table.format == "iceberg" else _land_delta
        land(lake, ledger, contract, table, compacted, run_id)
        return record_repeats(lake, ledger, contract, lease)[-1]


def _land_iceberg(
    lake: Lake, ledger: Ledger, contract: SetContract, table: Table, compacted: Compacted, run_id: str
) -> None:
    """Make the compacted state that of main; in Nessie its metadata is without old snapshots."""
    latest, state = compacted.publication, compacted.state
    if state is None:
        raise AssertionError("unreachable: the compaction of an Iceberg table has a state")
    if lake.named_catalog is None:
        oldest = ledger.oldest_readable(table.name)
        removed = list_removable_snapshots(lake, ledger, table, latest, oldest, state)
        location = write_metadata_without(lake.stores, state.metadata_location, removed)
        state = replace(state, metadata_location=location)
    changes = record_changes_since_latest(lake, ledger, table, state)
    properties = repeat_properties("maintenance", contract, table, latest.version, run_id, changes)
    pointer = TablePointer(state.metadata_location, state.snapshot_id)
    iceberg_tables(lake).advance(latest, compacted.ref, pointer, properties)


def _land_delta(
    lake: Lake, ledger: Ledger, contract: SetContract, table: Table, compacted: Compacted, run_id: str
) -> None:
    """Write the commit that replaces small files by the staged ones; it is not tried again."""
    latest, root = compacted.publication, table_location(lake.settings, table)
    properties = repeat_properties("maintenance", contract, table, latest.version, run_id, None)
    properties[PROPERTY + "ref"] = str(compacted.ref)
    if not commit_delta(lake.stores, root, latest.version + 1, compacted.actions, properties):
        raise Conflict([table.name], str(latest.version), str(latest.version + 1))
    DeltaStaging(lake, contract).mark_published(f"{root}/{STAGED_FOLDER}/{compacted.ref}")


def _list_old_snapshots(lake: Lake, ledger: Ledger, table: Table, latest: Publication) -> list[int]:
    """The removable snapshots of main; none while too few are to be worth it."""
    oldest, state = ledger.oldest_readable(table.name), get_table_state(lake, table, "main")
    removable = list_removable_snapshots(lake, ledger, table, latest, oldest, state)
    return removable if _are_worth_removing(ledger, table, removable) else []


def _are_worth_removing(ledger: Ledger, table: Table, snapshots: Collection[int]) -> bool:
    """Whether snapshots are of expired publications, whose files stay as long as the metadata lists them, or many."""
    if len(snapshots) >= MIN_REMOVED_SNAPSHOTS:
        return True
    numbered = {each.snapshot_id for each in ledger.numbered_snapshots(table.name)} if snapshots else set()
    return not numbered.isdisjoint(snapshots)


def _remove_snapshots(
    lake: Lake, named: NamedCatalog, catalog: Catalog, contract: SetContract, table: Table
) -> None:
    """Remove old snapshots from the metadata in a catalog that writes it itself; the publications keep their files."""
    ledger = Ledger(catalog)
    with lock_set(catalog, contract.name, f"expiry of {table.name}", lake.settings.lock_wait_s):
        old = _list_old_snapshots(lake, ledger, table, _require_latest(ledger, table))
        if old:
            BranchTables(lake, named).remove_snapshots(table.name, old)


def _write_checkpoint(lake: Lake, table: Table) -> None:
    root = table_location(lake.settings, table)
    listing = list_log(lake.stores, root)
    if listing.latest - max(listing.checkpoints, default=-1) >= COMMITS_PER_CHECKPOINT:
        opened = lake.open_delta(root)
        if opened is not None:
            with translate_delta_errors(root):
                opened.create_checkpoint()
