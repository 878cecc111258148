"""All tables of a copy: assessed side by side, healed in rounds, proved at the end."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import FoundTable, PlanRecord, TableProof
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress
from lakeshare_pipelines.backup.verify.delta.checks import assessed_delta
from lakeshare_pipelines.backup.verify.healing import Healer, Wanted, bucket_and_key, replaced, wanted_of
from lakeshare_pipelines.backup.verify.iceberg.checks import assessed_iceberg
from lakeshare_pipelines.backup.verify.iceberg.closure import spelt
from lakeshare_pipelines.backup.verify.table_copy import AssessedTable, Need, TableCopy
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 8
ROUNDS = 5
"""A commit that was not listed tells of files that were not, and a manifest list of manifests: each is a round."""


class Tables:
    """The tables of a plan, and the objects they are made of."""

    def __init__(
        self,
        backup: Backup,
        plan: PlanRecord,
        target: BackupStore,
        points: Points,
        objects: pa.Table,
        pointers: Sequence[str],
        spark: "Callable[[], SparkSession] | None",
        tell: Callable[[str], None],
    ) -> None:
        self.objects = objects
        self._backup, self._plan, self._target, self._points = backup, plan, target, points
        self._spark, self._tell = spark, tell
        self._pointers = _by_root(plan.tables, backup.source, pointers)
        self._assessed: dict[str, AssessedTable] = {}
        self._assess(plan.tables)

    def heal(self, healer: Healer) -> None:
        """Copy what is not whole and can be found at the source, until nothing more is found."""
        asked: set[tuple[str, str, int | None]] = set()
        wanted = wanted_of(self.objects)
        for _ in range(ROUNDS):
            wanted += [one for table in self._plan.tables for one in self._wanted_by(table, healer)]
            new = {(one.bucket, one.key, one.size_bytes): one for one in wanted}
            new = {key: one for key, one in new.items() if key not in asked}
            if not new:
                return
            asked |= new.keys()
            self._tell(f"{len(new):,} objects are looked for at the source.")
            healed = healer.heal(list(new.values()))
            if healed.num_rows == 0:
                return
            self.objects = replaced(self.objects, healed)
            touched = set(healed["table_root"].to_pylist())
            # What lacks something may have got it from another table's objects, or from those of none.
            again = [
                one for one in self._plan.tables if one.root in touched or self._assessed[one.root].needs
            ]
            self._assess(again)
            wanted = []

    def proofs(self) -> list[TableProof]:
        """What is proved of each table, in the plan's order; what was taken out of the copy is no object any more."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            proved = []
            for proof in pool.map(self._proof, self._plan.tables):
                proved.append(proof)
                self._tell(f"{len(proved):,} of {len(self._plan.tables):,} tables opened.")
        removed = [key for assessed in self._assessed.values() for key in assessed.removed]
        gone = pc.is_in(self.objects["stored_key"], value_set=pa.array(removed, pa.string()))
        self.objects = self.objects.filter(pc.invert(gone))
        return proved

    def _assess(self, tables: Sequence[FoundTable]) -> None:
        slices = _slices(self.objects)
        nothing = self.objects.slice(0, 0)
        copies = [
            TableCopy(
                one, self._backup.source, self._target, slices.get(one.root, nothing), self._by_location
            )
            for one in tables
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for copy, assessed in zip(copies, pool.map(self._one, copies), strict=True):
                self._assessed[copy.table.root] = assessed
                self._tell(f"{copy.table.root or copy.table.bucket}: read what it says of itself.")

    def _one(self, copy: TableCopy) -> AssessedTable:
        as_of = self._plan.as_of
        if copy.table.format == "iceberg":
            pointer = self._pointers.get(copy.table.root)
            return assessed_iceberg(copy, as_of, pointer, self._points, self._plan.day, self._spark)
        return assessed_delta(copy, as_of, self._backup, self._spark)

    def _by_location(self, locations: Sequence[str]) -> pa.Table:
        wanted = pa.array(locations, pa.string())
        return self.objects.filter(pc.is_in(self.objects["location"], value_set=wanted))

    def _proof(self, table: FoundTable) -> TableProof:
        return self._assessed[table.root].proof()

    def _wanted_by(self, table: FoundTable, healer: Healer) -> list[Wanted]:
        assessed = self._assessed[table.root]
        needs = list(assessed.needs)
        try:
            needs += assessed.unlisted(healer.store(table.bucket))
        except BackupError as error:
            healer.refusals.append(str(error))
        if not needs:
            return []
        rows = self._by_location([need.location for need in needs])
        known = {
            row["location"]: row
            for row in rows.select(["location", "stored_key", "size_bytes", "etag"]).to_pylist()
        }
        found = (self._wanted(assessed.copy, need, known.get(need.location)) for need in needs)
        return [one for one in found if one is not None]

    def _wanted(self, copy: TableCopy, need: Need, row: "dict[str, object] | None") -> Wanted | None:
        place = bucket_and_key(need.location, [self._backup.source.bucket])
        if place is None:
            return None
        bucket, key = place
        if bucket != self._backup.source.bucket:
            if self._backup.external == "refuse":
                return None
            stored_key = f"{self._target.address.prefix}external/{bucket.strip('/')}/{key}"
        elif copy.is_inside(need.location):
            stored_key = copy.stored_key(key)
        else:
            layout = "objects/" if self._backup.layout == "incremental" else ""
            stored_key = (
                f"{self._target.address.prefix}{layout}{key}" if row is None else str(row["stored_key"])
            )
        etag = need.etag
        if row is not None and need.size_bytes in (None, row["size_bytes"]):
            etag = str(row["etag"])
        root = copy.table.root if copy.is_inside(need.location) else None
        return Wanted(bucket, key, stored_key, root, need.size_bytes, etag)


def _by_root(tables: Sequence[FoundTable], source: StoreAddress, pointers: Sequence[str]) -> dict[str, str]:
    """The metadata file that the catalog names for each table, by the table's root."""
    found = {}
    for pointer in map(spelt, pointers):
        for table in tables:
            if pointer.startswith(f"{source.at(table.bucket).location(table.root).rstrip('/')}/"):
                found[table.root] = pointer
    return found


def _slices(objects: pa.Table) -> dict[str | None, pa.Table]:
    """The objects of each table by its root; in one pass, for there may be thousands of tables."""
    rows = objects.sort_by("table_root").combine_chunks()
    if rows.num_rows == 0:
        return {}
    runs = pc.run_end_encode(rows["table_root"].combine_chunks())
    found: dict[str | None, pa.Table] = {}
    start = 0
    for root, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        found[root] = rows.slice(start, end - start)
        start = end
    return found
