"""What a publication of an Iceberg table changes, recorded before main moves, so that a crash leaves nothing to guess.

Delta tables tell their changes in their own log.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import NessieError, NoSuchPublication
from lakeshare_pipelines.share.table_state import TableState
from lakeshare_pipelines.spark.faults import explained
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.errors import Unavailable
from lakeshare_server.tables import FileIndex, Stores, open_index, write_index
from lakeshare_server.tables.file_difference import all_files, file_difference
from lakeshare_server.tables.iceberg.change_index import (
    FeedSource,
    StateChange,
    open_changes,
    write_change_index,
)
from lakeshare_server.tables.iceberg.lineage import brings_back_columns, keeps_rows
from lakeshare_server.tables.index import index_path

CHANGES = "changes"

log = logging.getLogger(__name__)


def with_changes(
    lake: Lake, ledger: Ledger, contract: SetContract, staged: Staged, evidence: Mapping[str, object]
) -> Mapping[str, object]:
    """The evidence of a set that is about to land, with the digests of what it will change in each table."""
    recorded = {
        table.name: changes_to(lake, ledger, table, state_at(lake, table, f"{staged.ref}@{staged.head}"))
        for table in contract.tables
        if table.format == "iceberg"
    }
    return {**evidence, CHANGES: recorded} if recorded else evidence


def recorded_in(evidence: Mapping[str, object]) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """The evidence without what `with_changes` added, and that: digests by table."""
    said = evidence.get(CHANGES)
    others = {key: value for key, value in evidence.items() if key != CHANGES}
    return others, dict(said) if isinstance(said, Mapping) else {}


def state_at(lake: Lake, table: Table, ref: str) -> TableState:
    """The table at a ref of the catalog, as `branch@hash`.

    Raises:
        NessieError: it is not there.
    """
    content = lake.nessie().content(table.name, ref)
    if content is None:
        raise NessieError(404, "CONTENT_NOT_FOUND", f"{table.name} is not on {ref}")
    return TableState(content.metadata_location, content.snapshot_id, Stores(lake.settings))


def ensured_changes(
    lake: Lake, ledger: Ledger, table: Table, state: TableState, index_digest: str, recorded: str | None
) -> str:
    """The index of changes that was recorded, when it leads from the latest publication to this state; else a new one.

    Raises:
        SparkError: a new one needs Spark, and there is none: the publication stays owed until somebody has it.
    """
    latest = ledger.latest(table.name)
    if recorded is not None:
        path = index_path(lake.settings.index_dir, recorded)
        if open_changes(path, _next_version(latest), (_digest(latest), index_digest)) is not None:
            return recorded
        log.warning("the changes of %s were recorded for other states: recording them anew", table.name)
    return changes_to(lake, ledger, table, state)


def changes_to(lake: Lake, ledger: Ledger, table: Table, state: TableState) -> str:
    """Record what the table's latest publication and a state differ in; returns the digest.

    Raises:
        Unserveable: the state cannot be served.
        SparkError: rows have to be compared, and Spark is not there or died.
    """
    latest = ledger.latest(table.name)
    snapshot = state.read(lake.settings.vectors_dir)
    digest = write_index(snapshot, lake.settings.index_dir).digest
    change = StateChange(
        version=_next_version(latest),
        before=None if latest is None else _files_of(lake, latest),
        after=open_index(lake.settings.index_dir, digest),
        changed_at_ms=state.written_ms(),
        keeps_rows=_keeps_rows(latest, state),
        brings_back_columns=latest is not None and _brings_back_columns(_pinned_by(lake, latest), state),
    )
    if latest is not None:
        change = _with_change_files(lake, table, change, (_pinned_by(lake, latest), state))
    return write_change_index(change, (_digest(latest), digest), lake.settings.index_dir)


def _with_change_files(
    lake: Lake, table: Table, change: StateChange, states: tuple[TableState, TableState]
) -> StateChange:
    """The change with its change files, where the table's own files do not tell which rows changed."""
    # Imports pyarrow and pyiceberg, which take a while: definitions load without them.
    from lakeshare_pipelines.share.change_files import write_change_files

    difference = file_difference(change.before, change.after)
    if change.before is None or change.source(difference) != FeedSource.ROWS:
        return change
    if change.brings_back_columns:
        difference = all_files(change.before, change.after)
    header = change.after.header
    with explained(lake.settings, f"change files of {table.name}"):
        files = write_change_files(
            lake.spark, header.location, states, difference, table.primary_key, header.head.partition_columns
        )
    return replace(change, change_files=files)


def _pinned_by(lake: Lake, publication: Publication) -> TableState:
    if publication.metadata_location is None or publication.snapshot_id is None:
        raise NoSuchPublication(publication.table, publication.version)
    return TableState(publication.metadata_location, publication.snapshot_id, Stores(lake.settings))


def _files_of(lake: Lake, publication: Publication) -> FileIndex:
    """The files of a publication: from its index, or read again where that is lost or of an older layout."""
    folder = lake.settings.index_dir
    try:
        return open_index(folder, publication.index_digest)
    except Unavailable:
        state = _pinned_by(lake, publication)
        snapshot = state.read(lake.settings.vectors_dir)
        return open_index(folder, write_index(snapshot, folder).digest)


def _keeps_rows(latest: Publication | None, state: TableState) -> bool:
    before = None if latest is None else latest.snapshot_id
    return before is not None and keeps_rows(state.stores, state.metadata_location, state.snapshot_id, before)


def _brings_back_columns(before: TableState, after: TableState) -> bool:
    return brings_back_columns(after.stores, before.place, after.place)


def _next_version(latest: Publication | None) -> int:
    return 0 if latest is None else latest.version + 1


def _digest(latest: Publication | None) -> str:
    return "" if latest is None else latest.index_digest
