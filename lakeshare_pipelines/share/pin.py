"""Pinning: one table of main, at one state, with its file index on disk, ready for the ledger."""

from collections.abc import Mapping

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.share.changes import ensured_changes, state_at
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Ledger, NewPublication
from lakeshare_server.tables import Stores, described, read_delta, write_index


def pinned(
    lake: Lake,
    ledger: Ledger,
    table: Table,
    *,
    nessie_hash: str | None,
    delta_version: int | None,
    set_name: str,
    run_id: str,
    partition: str,
    contract_digest: str,
    verdicts: Mapping[str, object],
    rollback_of: int | None = None,
    changes_digest: str | None = None,
    tells_changes: bool = True,
) -> NewPublication:
    """The table at a Nessie commit of main, or at a Delta version, indexed.

    `changes_digest` is of the changes as they were recorded before the table came to main; made now where they were
    not, or against another publication than the latest. Where that one's files are lost, nothing `tells_changes`.

    Raises:
        Unserveable: the table's state cannot be served correctly; the ledger stays as it was.
        Unavailable: the table's store does not answer.
    """
    state = state_at(lake, table, f"main@{nessie_hash}") if table.format == "iceberg" else None
    if state is not None:
        snapshot = state.read(lake.settings.vectors_dir)
    else:
        snapshot = read_delta(str(table_location(lake.settings, table)), delta_version, Stores(lake.settings))
    index = write_index(snapshot, lake.settings.index_dir)
    if state is not None and tells_changes:
        changes_digest = ensured_changes(lake, ledger, table, state, index.digest, changes_digest)
    return NewPublication(
        table=table.name,
        set_name=set_name,
        format=table.format,
        metadata_location=None if state is None else state.metadata_location,
        snapshot_id=None if state is None else state.snapshot_id,
        delta_version=delta_version,
        nessie_hash=nessie_hash,
        **described(snapshot, index),
        index_digest=index.digest,
        contract_digest=contract_digest,
        verdicts=verdicts,
        run_id=run_id,
        partition=partition,
        rollback_of=rollback_of,
        changes_digest=changes_digest,
    )
