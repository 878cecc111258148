"""A restored table in the lake: its name, its contract, Nessie's main, and the ledger recipients are served from."""

import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress
from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError, NessieError, SparkError
from lakeshare_pipelines.nessie.client import TableContent
from lakeshare_pipelines.share.pin import pinned
from lakeshare_pipelines.share.repair import pay_debts, record_rollbacks, rollback_properties
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Catalog, Lease, Ledger, Publication, set_lock
from lakeshare_server.errors import Unavailable
from lakeshare_server.stores import Stores, normalised
from lakeshare_server.tables import open_index
from lakeshare_server.tables.iceberg.metadata_json import LONGEST_BYTES, unpacked

APART = "/_restored/"
"""Below a table's root: folders of what was restored beside it."""
SEARCHED_PUBLICATIONS = 1000
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LakeTable:
    """A table of the lake; `contract` and `table` are None where no set publishes it, as with followed tables."""

    lake: Lake
    catalog: Catalog
    name: str
    contract: SetContract | None = None
    table: Table | None = None

    @property
    def ledger(self) -> Ledger:
        """All publications."""
        return Ledger(self.catalog)

    @contextmanager
    def locked(self, why: str) -> Iterator[Lease | None]:
        """Nobody publishes the table's set meanwhile; what an earlier run owes the ledger is written first.

        Raises:
            CatalogConflict: a run of the set is publishing and did not end in time.
        """
        if self.contract is None:
            yield None
            return
        with set_lock(self.catalog, self.contract.name, why, self.lake.settings.lock_wait_s) as lease:
            yield lease

    def published_as(self, **state: object) -> Publication | None:
        """The newest publication that pins this state (fields of a publication)."""
        for one in self.ledger.history(self.name, SEARCHED_PUBLICATIONS):
            if all(_same(getattr(one, field), said) for field, said in state.items()):
                return one
        return None

    def pins(self, publication: Publication, metadata_location: str, snapshot_id: int) -> bool:
        """Whether a publication of an Iceberg table is this very state."""
        return publication.snapshot_id == snapshot_id and _same(
            publication.metadata_location, metadata_location
        )

    def properties(self, publication: Publication | None) -> dict[str, str]:
        """What the commit that shows a publication again says of it: enough to give it a new number from storage."""
        if publication is None or self.contract is None or self.table is None:
            return {}
        return rollback_properties(
            self.contract, self.table, publication.version, f"restore-{uuid.uuid4()}", None
        )

    def has_all_files(self, publication: Publication) -> bool:
        """Whether what a publication sends recipients to is there."""
        try:
            index = open_index(self.lake.settings.index_dir, publication.index_digest)
        except Unavailable:
            return False
        stores = Stores(self.lake.settings)
        metadata = publication.metadata_location
        if metadata is not None and stores.head(metadata) is None:
            return False
        there = {one.location for one in stores.list(normalised(index.header.location))}
        paths = (path for batch in index.batches() for path in batch.column("path").to_pylist())
        return all(normalised(path) in there or stores.head(path) is not None for path in paths)

    def append_again(self, publication: Publication, lease: Lease | None) -> Publication:
        """Give main's state a new number, as a publication that comes again after newer ones were lost.

        What it changes is not told: the files it would be compared with are gone.
        """
        if self.table is None or self.contract is None:
            return publication
        row = pinned(
            self.lake,
            self.ledger,
            self.table,
            nessie_hash=self.lake.nessie().reference("main").hash,
            delta_version=None,
            set_name=self.contract.name,
            run_id=f"restore-{uuid.uuid4()}",
            partition=publication.partition,
            contract_digest=publication.contract_digest,
            verdicts=publication.verdicts,
            rollback_of=publication.version,
            tells_changes=False,
        )
        return self.ledger.append([row], lease)[0]

    def number(self, lease: Lease | None) -> Publication | None:
        """Write the numbers that main shows and the ledger lacks; returns the newest publication."""
        if self.contract is not None and lease is not None:
            record_rollbacks(self.lake, self.ledger, self.contract, lease)
        return self.ledger.latest(self.name)

    def pay_debts(self, lease: Lease | None) -> None:
        """Write what earlier runs of the set still owe the ledger.

        Raises:
            BackupError: that takes Spark.
        """
        if self.contract is None or lease is None:
            return
        try:
            pay_debts(self.lake, self.ledger, self.contract, lease)
        except SparkError as error:
            raise BackupError(
                f"table {self.name}",
                "a run of its set reached main but not the ledger, and recording its changes takes Spark",
                "Run the set once, then restore again; files that were missing are back already.",
            ) from error


def lake_table(lake: Lake, catalog: Catalog, location: str, kind: str) -> LakeTable | None:
    """The lake's table at a location, by the ledger, the contracts or Nessie's main; None when none knows it."""
    name = _by_ledger(Ledger(catalog), location) or _by_contract(lake, location)
    if name is None and kind == "iceberg":
        name = _by_main(lake, location)
    if name is None:
        return None
    for contract in load_contracts(lake.settings.contracts_dir):
        for table in contract.tables:
            if table.name == name:
                return LakeTable(lake, catalog, name, contract, table)
    return LakeTable(lake, catalog, name)


def root_of_name(catalog: Catalog, name: str) -> str | None:
    """Where the ledger says that a table of the lake is; None when it was never published."""
    latest = Ledger(catalog).latest(name)
    return None if latest is None else normalised(latest.location).partition(APART)[0]


def show_on_main(
    table: LakeTable,
    metadata_location: str,
    metadata: Mapping[str, Any],
    snapshot_id: int,
    properties: Mapping[str, str],
) -> bool:
    """Make main show a table's metadata; False when it did already.

    Raises:
        NessieError: the table changed meanwhile, or Nessie refused.
    """
    publisher = table.lake.nessie("publisher")
    head = publisher.reference("main").hash
    now = publisher.content(table.name, f"main@{head}")
    if now is not None and _same(now.metadata_location, metadata_location) and now.snapshot_id == snapshot_id:
        return False
    content = TableContent(
        "" if now is None else now.id,
        metadata_location,
        snapshot_id,
        metadata.get("current-schema-id", 0),
        metadata.get("default-spec-id", 0),
        metadata.get("default-sort-order-id", 0),
    )
    publisher.put_table(
        table.name, content, "main", head, message=f"Restore {table.name}", properties=dict(properties)
    )
    return True


def metadata_at(store: BackupStore, address: StoreAddress, location: str) -> dict[str, Any]:
    """What a metadata.json of a store says."""
    key = location.removeprefix(address.location(""))
    told: dict[str, Any] = json.loads(unpacked(store.read(key), LONGEST_BYTES))
    return told


def spelt(table: LakeTable | None, location: str) -> str:
    """A metadata location as main or the ledger spell it, so that it stays the same text; else as a URI."""
    if table is not None:
        found = [one.metadata_location for one in table.ledger.history(table.name, SEARCHED_PUBLICATIONS)]
        try:
            content = table.lake.nessie().content(table.name, "main")
        except NessieError as error:
            log.warning("Nessie does not tell how it spells %s: %s", location, error)
        else:
            found += [] if content is None else [content.metadata_location]
        for one in found:
            if one is not None and normalised(one) == location:
                return one
    return f"file://{location}" if location.startswith("/") else location


def _by_ledger(ledger: Ledger, location: str) -> str | None:
    for name in ledger.tables():
        latest = ledger.latest(name)
        if latest is not None and _is_at(latest.location, location):
            return name
    return None


def _by_contract(lake: Lake, location: str) -> str | None:
    for contract in load_contracts(lake.settings.contracts_dir):
        for table in contract.tables:
            if table.format == "delta" and str(table_location(lake.settings, table)) == location:
                return table.name
    return None


def _by_main(lake: Lake, location: str) -> str | None:
    nessie = lake.nessie()
    for name in nessie.tables("main"):
        content = nessie.content(name, "main")
        if content is not None and _is_at(content.metadata_location.rpartition("/metadata/")[0], location):
            return name
    return None


def _is_at(found: str, location: str) -> bool:
    place = normalised(found).rstrip("/")
    return place == location or place.startswith(location + APART)


def _same(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and ("/" in one or "/" in other):
        return normalised(one) == normalised(other)
    return one == other
