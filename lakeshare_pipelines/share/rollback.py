"""Rolling back: a new publication that shows an old one again, on main and to every recipient.

Numbers only grow (design, publication rule 6): the old number stays what it was.
"""

import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import PipelineError
from lakeshare_pipelines.nessie.client import TableContent
from lakeshare_pipelines.share.pin import pinned
from lakeshare_pipelines.wap.delta import DeltaStaging
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Catalog, Lease, Ledger, Publication, set_lock

log = logging.getLogger(__name__)

ROLLBACK = "lakeshare.rollback"


class NoSuchPublication(PipelineError):
    """A publication number that the ledger does not have."""

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"table {table} has no publication {version}. `lakeshare publications {table}` lists them."
        )
        self.table, self.version = table, version


def rollback(lake: Lake, catalog: Catalog, contract: SetContract, table: Table, version: int) -> Publication:
    """Make publication `version` of a table its newest again, under a new number.

    Raises:
        NoSuchPublication: the ledger does not have that number.
        CatalogConflict: a run of the set is publishing and did not end in time.
    """
    ledger = Ledger(catalog)
    with set_lock(catalog, contract.name, f"rollback of {table.name}", lake.settings.lock_wait_s) as lease:
        repair_rollbacks(lake, ledger, contract, lease)
        target = ledger.at(table.name, version)
        if target is None:
            raise NoSuchPublication(table.name, version)
        run_id = f"rollback-{uuid.uuid4()}"
        note = {"table": table.name, "version": version}
        if table.format == "iceberg":
            _move_main_back(lake, table, target, run_id, note)
        else:
            _restore(lake, contract, table, target, run_id, note)
        return repair_rollbacks(lake, ledger, contract, lease)[-1]


def repair_rollbacks(lake: Lake, ledger: Ledger, contract: SetContract, lease: Lease) -> list[Publication]:
    """Write the ledger entries of rollbacks that reached main; the rollback itself uses this as its last step."""
    repaired = []
    for table in contract.tables:
        for run_id, note, nessie_hash, delta_version in _owed(lake, ledger, contract, table):
            target = ledger.at(table.name, note["version"])
            if target is None:
                raise NoSuchPublication(table.name, note["version"])
            row = pinned(
                lake,
                table,
                nessie_hash=nessie_hash,
                delta_version=delta_version,
                set_name=contract.name,
                run_id=run_id,
                partition=target.partition,
                contract_digest=target.contract_digest,
                verdicts=target.verdicts,
                rollback_of=target.version,
            )
            repaired += ledger.append([row], lease)
    return repaired


def _move_main_back(
    lake: Lake, table: Table, target: Publication, run_id: str, note: dict[str, object]
) -> None:
    publisher = lake.nessie("publisher")
    main = publisher.reference("main").hash
    old = publisher.content(table.name, f"main@{target.nessie_hash}")
    now = publisher.content(table.name, f"main@{main}")
    if old is None or now is None:
        raise NoSuchPublication(table.name, target.version)
    publisher.put_table(
        table.name,
        TableContent(
            now.id, old.metadata_location, old.snapshot_id, old.schema_id, old.spec_id, old.sort_order_id
        ),
        "main",
        main,
        message=f"Roll {table.name} back to publication {target.version}",
        properties=_properties(target, run_id, note),
    )


def _restore(
    lake: Lake, contract: SetContract, table: Table, target: Publication, run_id: str, note: dict[str, object]
) -> None:
    from deltalake import DeltaTable
    from deltalake.transaction import CommitProperties

    location = DeltaStaging(lake, contract).location(table.name)
    if target.delta_version is None:
        raise NoSuchPublication(table.name, target.version)
    properties = CommitProperties(custom_metadata=_properties(target, run_id, note), max_commit_retries=0)
    DeltaTable(location).restore(target.delta_version, commit_properties=properties)


def _properties(target: Publication, run_id: str, note: dict[str, object]) -> dict[str, str]:
    return {"lakeshare.set": target.set_name, "lakeshare.run": run_id, ROLLBACK: json.dumps(note)}


def _owed(
    lake: Lake, ledger: Ledger, contract: SetContract, table: Table
) -> list[tuple[str, dict[str, int], str | None, int | None]]:
    """`(run, note, Nessie hash, Delta version)` of rollbacks on main that the ledger does not have, oldest first."""
    found: list[tuple[str, dict[str, int], str | None, int | None]] = []
    for properties, nessie_hash, version in _history(lake, contract, table):
        run = properties.get("lakeshare.run")
        if run is None or properties.get("lakeshare.set") != contract.name:
            continue
        if ledger.by_run(run):
            break
        note = json.loads(properties.get(ROLLBACK, "{}"))
        if note.get("table") == table.name:
            found.append((run, note, nessie_hash, version))
    return found[::-1]


def _history(
    lake: Lake, contract: SetContract, table: Table
) -> Iterator[tuple[Mapping[str, Any], str | None, int | None]]:
    if table.format == "iceberg":
        for commit in lake.nessie().history("main"):
            yield commit.properties, commit.hash, None
    else:
        for version, info in DeltaStaging(lake, contract).commits(table.name):
            yield info, None, version
