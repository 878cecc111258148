"""Rolling back: a new publication that shows an old one again, on main and to every recipient.

Numbers only grow (design, publication rule 6): the old number stays what it was.
"""

import uuid

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import NoSuchPublication
from lakeshare_pipelines.nessie.client import TableContent
from lakeshare_pipelines.share.changes import changes_to, state_at
from lakeshare_pipelines.share.repair import pay_debts, record_rollbacks, rollback_properties
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Catalog, Ledger, Publication, set_lock


def rollback(lake: Lake, catalog: Catalog, contract: SetContract, table: Table, version: int) -> Publication:
    """Make publication `version` of a table its newest again, under a new number.

    What a crashed run still owes the ledger is written first: the rollback is newer than it. Where the newest number
    shows that publication already, as after a rollback that is run again, it is returned and nothing changes.

    Raises:
        NoSuchPublication: the ledger does not have that number.
        CatalogConflict: a run of the set is publishing and did not end in time.
    """
    ledger = Ledger(catalog)
    with set_lock(catalog, contract.name, f"rollback of {table.name}", lake.settings.lock_wait_s) as lease:
        pay_debts(lake, ledger, contract, lease)
        target = ledger.at(table.name, version)
        if target is None:
            raise NoSuchPublication(table.name, version)
        latest = ledger.latest(table.name)
        if latest and version in (latest.version, latest.rollback_of) and _is_on_main(lake, table, latest):
            return latest
        changes = _changes(lake, ledger, table, target)
        properties = rollback_properties(contract, table, version, f"rollback-{uuid.uuid4()}", changes)
        if table.format == "iceberg":
            _move_main_back(lake, table, target, properties)
        else:
            _restore(lake, table, target, properties)
        return record_rollbacks(lake, ledger, contract, lease)[-1]


def rollback_with_views(
    lake: Lake, catalog: Catalog, contract: SetContract, table: Table, version: int
) -> list[Publication]:
    """`rollback` of a table, and before it of its views to what was published of them with that number.

    A view that was not there yet stays as it is. Returns what was published, the table itself last.

    Raises:
        NoSuchPublication, CatalogConflict: as `rollback` says.
    """
    ledger = Ledger(catalog)
    origin = ledger.at(table.name, version)
    while origin is not None and origin.rollback_of is not None:
        origin = ledger.at(table.name, origin.rollback_of)
    if origin is None:
        raise NoSuchPublication(table.name, version)
    numbers = {published.table: published.version for published in ledger.by_run(origin.run_id)}
    views = [one for one in contract.tables if one.view is not None and one.view.of == table.name]
    # Views first: broken off in between, they show too little and not what the table has no more.
    shown = [
        rollback(lake, catalog, contract, one, numbers[one.name]) for one in views if one.name in numbers
    ]
    return [*shown, rollback(lake, catalog, contract, table, version)]


def _is_on_main(lake: Lake, table: Table, latest: Publication) -> bool:
    """Whether main is as the newest publication left it: somebody else may have written to the table since."""
    if table.format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(table_location(lake.settings, table)).version() == latest.delta_version
    content = lake.nessie().content(table.name, "main")
    return content is not None and (content.metadata_location, content.snapshot_id) == (
        latest.metadata_location,
        latest.snapshot_id,
    )


def _changes(lake: Lake, ledger: Ledger, table: Table, target: Publication) -> str | None:
    """What the rollback will change, recorded before main moves; of a Delta table its log tells."""
    if table.format == "delta":
        return None
    return changes_to(lake, ledger, table, state_at(lake, table, f"main@{target.nessie_hash}"))


def _move_main_back(lake: Lake, table: Table, target: Publication, properties: dict[str, str]) -> None:
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
        properties=properties,
    )


def _restore(lake: Lake, table: Table, target: Publication, properties: dict[str, str]) -> None:
    from deltalake import DeltaTable
    from deltalake.transaction import CommitProperties

    if target.delta_version is None:
        raise NoSuchPublication(table.name, target.version)
    commit = CommitProperties(custom_metadata=properties, max_commit_retries=0)
    location = table_location(lake.settings, table)
    DeltaTable(location).restore(target.delta_version, commit_properties=commit)
