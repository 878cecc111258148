"""What main already shows and the ledger lacks, after a crash between the two, is written into the ledger.

Every publication and every rollback begins here, under the set's lock: numbers follow the order of main.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import NoSuchPublication
from lakeshare_pipelines.share.changes import recorded_in
from lakeshare_pipelines.share.pin import pinned
from lakeshare_pipelines.wap.branches import drop
from lakeshare_pipelines.wap.delta import DeltaStaging
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.staging import PROPERTY, Landed, staging_for
from lakeshare_server.catalog import Catalog, Lease, Ledger, Publication, set_lock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolledBack:
    """A rollback as its commit on main tells it: `table` shows publication `version` again."""

    run_id: str
    table: str
    version: int
    nessie_hash: str | None
    delta_version: int | None
    changes_digest: str | None


def repair(lake: Lake, catalog: Catalog, contract: SetContract, wait_s: float = 0) -> list[Publication]:
    """Write the ledger entries that crashed runs of this set still owe; needs Spark only where changes are lost.

    Raises:
        SparkError: the changes of a publication have to be recorded anew, which needs Spark.
        CatalogConflict: a run of the set is publishing right now.
    """
    with set_lock(catalog, contract.name, "repair", wait_s) as lease:
        return pay_debts(lake, Ledger(catalog), contract, lease)


def pay_debts(lake: Lake, ledger: Ledger, contract: SetContract, lease: Lease) -> list[Publication]:
    """`repair`, for who holds the set's lock already."""
    repaired = record_rollbacks(lake, ledger, contract, lease)
    for landed in staging_for(lake, contract).owed(lambda run_id: bool(ledger.by_run(run_id))):
        log.warning("%s reached main but not the ledger: writing it now", landed.staged.title)
        repaired += record_landed(lake, ledger, contract, landed, lease)
        drop(lake, contract, landed.staged.ref)
    return repaired


def record_landed(
    lake: Lake, ledger: Ledger, contract: SetContract, landed: Landed, lease: Lease
) -> list[Publication]:
    """Pin, index and number every table of a set that main shows; all of them or none."""
    evidence, changes = recorded_in(landed.evidence)
    rows = [
        pinned(
            lake,
            ledger,
            table,
            nessie_hash=landed.nessie_hash,
            delta_version=landed.versions.get(table.name),
            set_name=contract.name,
            run_id=landed.staged.run_id,
            partition=landed.staged.partition,
            contract_digest=landed.staged.contract_digest,
            verdicts=evidence,
            changes_digest=changes.get(table.name),
        )
        for table in contract.tables
    ]
    publications = ledger.append(rows, lease)
    for publication in publications:
        log.info("%s is publication %s: %s rows", publication.table, publication.version, publication.rows)
    return publications


def record_rollbacks(lake: Lake, ledger: Ledger, contract: SetContract, lease: Lease) -> list[Publication]:
    """Number the rollbacks that main shows and the ledger lacks; a rollback's own last step.

    Raises:
        NoSuchPublication: the ledger does not have the publication that main was rolled back to.
    """
    recorded = []
    for table in contract.tables:
        for owed in _owed_rollbacks(lake, ledger, contract, table):
            target = ledger.at(table.name, owed.version)
            if target is None:
                raise NoSuchPublication(table.name, owed.version)
            row = pinned(
                lake,
                ledger,
                table,
                nessie_hash=owed.nessie_hash,
                delta_version=owed.delta_version,
                set_name=contract.name,
                run_id=owed.run_id,
                partition=target.partition,
                contract_digest=target.contract_digest,
                verdicts=target.verdicts,
                rollback_of=target.version,
                changes_digest=owed.changes_digest,
            )
            recorded += ledger.append([row], lease)
    return recorded


def rollback_properties(
    contract: SetContract, table: Table, version: int, run_id: str, changes_digest: str | None
) -> dict[str, str]:
    """What a rollback's commit on main says of it: enough to write the ledger from storage."""
    note = {"table": table.name, "version": version, "changes": changes_digest}
    return {
        PROPERTY + "set": contract.name,
        PROPERTY + "run": run_id,
        PROPERTY + "rollback": json.dumps(note),
    }


def _owed_rollbacks(lake: Lake, ledger: Ledger, contract: SetContract, table: Table) -> list[RolledBack]:
    """Oldest first."""
    found = []
    for properties, nessie_hash, delta_version in _commits(lake, contract, table):
        run = properties.get(PROPERTY + "run")
        if run is None or properties.get(PROPERTY + "set") != contract.name:
            continue
        if ledger.by_run(run):
            break
        note = json.loads(properties.get(PROPERTY + "rollback", "{}"))
        if note.get("table") == table.name:
            changes = note.get("changes")
            found.append(RolledBack(run, table.name, note["version"], nessie_hash, delta_version, changes))
    return found[::-1]


def _commits(
    lake: Lake, contract: SetContract, table: Table
) -> Iterator[tuple[Mapping[str, Any], str | None, int | None]]:
    """`(properties, Nessie hash, Delta version)` of the commits that may have changed a table, newest first."""
    if table.format == "iceberg":
        for commit in lake.nessie().history("main"):
            yield commit.properties, commit.hash, None
    else:
        for version, info in DeltaStaging(lake, contract).commits(table.name):
            yield info, None, version
