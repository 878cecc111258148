"""Pinning: one table of main, at one state, with its file index on disk, ready for the ledger."""

from collections.abc import Mapping

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import NewPublication
from lakeshare_server.tables import Stores, described, read_delta, read_iceberg, write_index


def pinned(
    lake: Lake,
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
) -> NewPublication:
    """The table at a Nessie commit of main, or at a Delta version, indexed.

    Raises:
        Unserveable: the table's state cannot be served correctly; the ledger stays as it was.
        Unavailable: the table's store does not answer.
    """
    stores = Stores(lake.settings)
    if table.format == "iceberg":
        metadata_location, snapshot_id = _iceberg_state(lake, table, nessie_hash)
        snapshot = read_iceberg(metadata_location, snapshot_id, lake.settings.vectors_dir, stores)
    else:
        metadata_location, snapshot_id = None, None
        snapshot = read_delta(str(table_location(lake.settings, table)), delta_version, stores)
    index = write_index(snapshot, lake.settings.index_dir)
    return NewPublication(
        table=table.name,
        set_name=set_name,
        format=table.format,
        metadata_location=metadata_location,
        snapshot_id=snapshot_id,
        delta_version=delta_version,
        nessie_hash=nessie_hash,
        **described(snapshot, index),
        index_digest=index.digest,
        contract_digest=contract_digest,
        verdicts=verdicts,
        run_id=run_id,
        partition=partition,
        rollback_of=rollback_of,
    )


def _iceberg_state(lake: Lake, table: Table, nessie_hash: str | None) -> tuple[str, int]:
    content = lake.nessie().content(table.name, f"main@{nessie_hash}")
    if content is None:
        raise NessieError(404, "CONTENT_NOT_FOUND", f"{table.name} is not on main at {nessie_hash}")
    return content.metadata_location, content.snapshot_id
