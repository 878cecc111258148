"""Compaction: write the small files of a table into larger ones at a staging location, and prove that no row changed.

Iceberg rewrites files and manifests on a branch, Delta in a staging table. Nothing here changes main.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import Conflict, MaintenanceError
from lakeshare_pipelines.share.changes import TableState, get_published_state, get_table_state, select_files
from lakeshare_pipelines.spark.rows import RowDigest, column_by_name, digest_rows
from lakeshare_pipelines.spark.session import to_hadoop_path, translate_errors
from lakeshare_pipelines.wap.delta import (
    STAGED_FOLDER,
    DeltaStaging,
    find_other_features,
    table_location,
    write_commit,
)
from lakeshare_pipelines.wap.stage import run_properties, staging_for
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Publication
from lakeshare_server.lazy import LazyModule
from lakeshare_server.tables import Stores
from lakeshare_server.tables.delta.log import TableState as DeltaState
from lakeshare_server.tables.delta.log import list_log, replay
from lakeshare_server.tables.iceberg.changes import compare_files
from lakeshare_server.tables.iceberg.manifests import list_manifests, live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata
from lakeshare_server.tables.index import FileIndex, write_index_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, DataFrameWriter
    from pyspark.sql import functions as F
else:
    F = LazyModule("pyspark.sql.functions")

log = logging.getLogger(__name__)

MIB = 1 << 20
# Iceberg's own bounds of a file that stays, and the files of a partition from which a rewrite is worth it.
SMALLEST, LARGEST, MIN_FILES = 0.75, 1.8, 5
# The default of `commit.manifest.target-size-bytes`, and the number of manifests that is small anyway.
MANIFEST_BYTES, MIN_MANIFESTS = 8 * MIB, 10


@dataclass(frozen=True)
class TableFigures:
    """The size of a table: `small_files` are those that compaction would rewrite; Delta has no manifests."""

    files: int
    size_bytes: int
    small_files: int
    manifests: int
    manifest_bytes: int
    history: int  # snapshots of an Iceberg table's metadata, or the commits and checkpoints in a Delta log

    @property
    def has_many_manifests(self) -> bool:
        needed = math.ceil(self.manifest_bytes / MANIFEST_BYTES)
        return self.manifests >= max(MIN_MANIFESTS, 2 * needed)

    def needs_compaction(self, lake: Lake) -> bool:
        """Whether files would be rewritten; manifests are in Nessie only, where a branch is a catalog of its own."""
        return self.small_files > 0 or (self.has_many_manifests and lake.named_catalog is None)


@dataclass(frozen=True)
class Compacted:
    """A table at its staging location, proven to have the rows of its latest publication.

    `state` is that of an Iceberg table on its branch, or on main without a `ref`; `actions` are those of the commit
    that a Delta table needs.
    """

    ref: str | None
    publication: Publication
    state: TableState | None = None
    actions: tuple[Mapping[str, Any], ...] = ()


def measure(lake: Lake, table: Table, latest: Publication) -> TableFigures:
    """The figures of a table at its latest publication, from its metadata and without Spark."""
    target_bytes, stores = table.maintenance.compaction.target_mb * MIB, lake.stores
    if table.format == "delta":
        listing = list_log(stores, table_location(lake.settings, table))
        state = replay(stores, listing, _require_delta_version(latest))
        sizes = state.adds.column("size").to_pylist()
        small = sum(_find_small_delta_files(state, target_bytes))
        logged = len(listing.commits) + sum(map(len, listing.checkpoints.values()))
        return TableFigures(len(sizes), sum(sizes), small, 0, 0, logged)
    opened, snapshot = open_metadata(stores, *get_published_state(lake, latest).key)
    files, manifests = live_files(stores, snapshot, latest.location).data, list_manifests(stores, snapshot)
    sizes = files.column("size").to_pylist()
    values = [files.column("spec_id").to_pylist(), *(each.to_pylist() for each in files.partition.values())]
    small = sum(find_small_files(list(zip(*values, strict=True)), sizes, target_bytes))
    manifest_bytes = sum(manifest.size_bytes for manifest in manifests)
    return TableFigures(len(sizes), sum(sizes), small, len(manifests), manifest_bytes, len(opened.snapshots))


def find_small_files(partitions: Sequence[object], sizes: Sequence[int], target_bytes: int) -> list[bool]:
    """Whether each file is too small, and one of at least `MIN_FILES` such files of its partition."""
    limit = SMALLEST * target_bytes
    counts = Counter(key for key, size in zip(partitions, sizes, strict=True) if size < limit)
    return [size < limit and counts[key] >= MIN_FILES for key, size in zip(partitions, sizes, strict=True)]


def compact(
    lake: Lake,
    contract: SetContract,
    table: Table,
    latest: Publication,
    figures: TableFigures,
    ref: str,
    run_id: str,
) -> Compacted:
    """Rewrite a table with these figures at a new staging location `ref`, which the caller removes.

    Raises:
        MaintenanceError: rows would change, or the table needs its own engine.
        Conflict: main is not at the latest publication.
    """
    log.info("compacting %s at %s", table.name, ref)
    staging_for(lake, contract).open(ref)
    began = time.monotonic()
    with translate_errors(lake.settings, f"compaction of {table.name}"):
        if table.format == "iceberg":
            compacted = _compact_iceberg(lake, table, latest, figures, ref)
        else:
            compacted = _compact_delta(lake, contract, table, latest, ref, run_id)
    log.info("%s was compacted at %s in %.1f s", table.name, ref, time.monotonic() - began)
    return compacted


def _compact_iceberg(
    lake: Lake, table: Table, latest: Publication, figures: TableFigures, ref: str
) -> Compacted:
    before = get_table_state(lake, table, ref)
    if before.snapshot_id != latest.snapshot_id:
        raise Conflict([table.name], f"publication {latest.version}", f"snapshot {before.snapshot_id}")
    wanted, catalog, is_nessie = table.maintenance.compaction, lake.catalog(ref), lake.named_catalog is None
    if figures.small_files:
        options = {
            "target-file-size-bytes": wanted.target_mb * MIB,
            "min-file-size-bytes": int(SMALLEST * wanted.target_mb * MIB),
            "max-file-size-bytes": int(LARGEST * wanted.target_mb * MIB),
            "min-input-files": MIN_FILES,
        }
        texts = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        order = ", ".join(wanted.sort_by)
        arguments = [f"table => '{table.name}'", f"options => map({texts})"]
        arguments += [f"strategy => 'sort', sort_order => '{order}'"] if order else []
        arguments += [] if is_nessie else [f"branch => '{ref}'"]
        lake.spark.sql(f"CALL {catalog}.system.rewrite_data_files({', '.join(arguments)})").collect()
    # The procedure for manifests takes no branch.
    if figures.has_many_manifests and is_nessie:
        lake.spark.sql(
            f"CALL {catalog}.system.rewrite_manifests(table => '{table.name}', use_caching => false)"
        ).collect()
    after = get_table_state(lake, table, ref)
    with TemporaryDirectory(prefix="lakeshare-compaction-") as folder:
        path = Path(folder) / "after.arrow"
        write_index_file(after.read(folder), path)
        difference = compare_files(lake.publications.index(latest), FileIndex(path))
        if not difference.is_empty:
            rows = (
                select_files(before.frame(lake.spark), difference.removed),
                select_files(after.frame(lake.spark), difference.added),
            )
            _require_same_rows(table, *digest_rows(*rows, by=_partition_columns(table)))
    return Compacted(ref, latest, after)


def _compact_delta(
    lake: Lake, contract: SetContract, table: Table, latest: Publication, ref: str, run_id: str
) -> Compacted:
    staging, version = DeltaStaging(lake, contract), _require_delta_version(latest)
    root, target_bytes = table_location(lake.settings, table), table.maintenance.compaction.target_mb * MIB
    listing = list_log(lake.stores, root)
    if listing.latest != version:
        raise Conflict([table.name], f"publication {latest.version}", f"version {listing.latest}")
    state = replay(lake.stores, listing, version)
    require_simple(table, state.protocol)
    chosen = state.adds.filter(_find_small_delta_files(state, target_bytes))
    rows = sum(int(json.loads(text)["numRecords"]) for text in chosen.column("stats").to_pylist())
    size_bytes = sum(chosen.column("size").to_pylist())
    names = {path.rpartition("/")[2] for path in chosen.column("path").to_pylist()}
    whole = lake.spark.read.format("delta").option("versionAsOf", version).load(to_hadoop_path(root))
    # Names of data files have no characters that a log or Spark would encode.
    name = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -1)
    small = whole.where(name.isin(sorted(names)))
    location = to_hadoop_path(staging.staged_location(table.name, ref))
    writer = _write_larger(small, table, math.ceil(size_bytes / target_bytes))
    writer = writer.option("maxRecordsPerFile", max(1, math.ceil(rows * target_bytes / max(size_bytes, 1))))
    writer.option("userMetadata", json.dumps(run_properties(contract, run_id))).save(location)
    adds = staging.list_staged_adds(table.name, ref)
    staged = lake.spark.read.format("delta").load(location)
    by = [column_by_name(column) for column, _ in table.partition_by]
    before, after = digest_rows(small, staged, by=by)
    _require_same_rows(table, before, after)
    if staging.list_staged_adds(table.name, ref) != adds:
        raise Conflict([table.name], ref, "a staging location that was written to since")
    if sum(count for count, _ in after.values()) != rows:
        reason = f"the statistics of its small files count {rows} rows, and other rows were read"
        raise MaintenanceError(table.name, reason, "Rewrite the table with right statistics.")
    return Compacted(ref, latest, actions=_make_actions(chosen, adds, ref))


def _write_larger(small: "DataFrame", table: Table, files: int) -> "DataFrameWriter":
    """Returns the writer of the rows in fewer files, by partition and in the order of the contract."""
    columns = [column for column, _ in table.partition_by]
    order = [column_by_name(column) for column in (*columns, *table.maintenance.compaction.sort_by)]
    if columns:
        larger = small.repartition(*map(column_by_name, columns))
    elif order:
        larger = small.repartitionByRange(files, *order)
    else:
        larger = small.repartition(files)
    if order:
        larger = larger.sortWithinPartitions(*order)
    return larger.write.format("delta").mode("error").partitionBy(*columns)


def _make_actions(
    chosen: "pa.Table", adds: Sequence[Mapping[str, Any]], ref: str
) -> tuple[dict[str, Any], ...]:
    """Returns the actions that take the chosen files out of a table and put the staged ones in."""
    now_ms = int(time.time() * 1000)
    removed = {"deletionTimestamp": now_ms, "dataChange": False, "extendedFileMetadata": True}
    removes = [
        {"remove": {"path": path, "partitionValues": values or {}, "size": size, **removed}}
        for path, values, size in zip(
            *(chosen.column(name).to_pylist() for name in ("path", "partition_values", "size")), strict=True
        )
    ]
    added = [
        {"add": {**action, "path": f"{STAGED_FOLDER}/{ref}/{action['path']}", "dataChange": False}}
        for action in adds
    ]
    return (*removes, *added)


def commit_delta(
    stores: Stores,
    root: str,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
) -> bool:
    """Write a commit that changes no rows (Delta's PROTOCOL.md, "Add File and Remove File"); False if it exists."""
    info = {
        "operation": "OPTIMIZE",
        "operationParameters": {},
        "readVersion": version - 1,
        "isBlindAppend": False,
    }
    return write_commit(stores, root, version, actions, {**info, **properties})


def _require_delta_version(publication: Publication) -> int:
    if publication.delta_version is None:
        raise ValueError(f"publication {publication.version} of {publication.table} pins no version")
    return publication.delta_version


def require_simple(table: Table, protocol: Mapping[str, Any]) -> None:
    """Raises MaintenanceError for a table whose commits need more than adds and removes."""
    if others := find_other_features(protocol):
        reason = f"the table uses {', '.join(others)}"
        fix = "Compact it with OPTIMIZE of Spark, or set `compaction: false` in its contract."
        raise MaintenanceError(table.name, reason, fix)


def _find_small_delta_files(state: DeltaState, target_bytes: int) -> list[bool]:
    """Which files to rewrite: no file with a deletion vector or without a number of rows."""
    adds = state.adds
    values = adds.column("partition_values").combine_chunks()
    # Null in a table without partitions.
    partitions = [tuple((value or {}).values()) for value in values.to_pylist()]
    stats, vectors = adds.column("stats").to_pylist(), adds.column("dv_storage").to_pylist()
    plain = [
        vector is None and text is not None and "numRecords" in json.loads(text)
        for text, vector in zip(stats, vectors, strict=True)
    ]
    sizes = [
        size if is_plain else target_bytes
        for size, is_plain in zip(adds.column("size").to_pylist(), plain, strict=True)
    ]
    return find_small_files(partitions, sizes, target_bytes)


def _partition_columns(table: Table) -> "list[Column]":
    """The partition of each row, as its table is partitioned."""
    return [
        column_by_name(column) if transform == "identity" else F.date_trunc(transform, column_by_name(column))
        for column, transform in table.partition_by
    ]


def _require_same_rows(table: Table, before: Mapping[Any, RowDigest], after: Mapping[Any, RowDigest]) -> None:
    different = sorted(str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if different:
        reason = f"compaction would change rows of {len(different)} partitions, such as {different[0]}"
        raise MaintenanceError(
            table.name, reason, "Nothing was published. Report it, with the state of the table."
        )
