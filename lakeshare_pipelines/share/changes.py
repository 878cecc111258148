"""The changes of a publication of an Iceberg table, recorded before main moves, so that a crash loses none.

Delta tables have their changes in their own log.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import ChangesDoNotAddUp, NoSuchPublication, PipelineError
from lakeshare_pipelines.spark.rows import column_by_name, to_comparable
from lakeshare_pipelines.spark.session import set_conf, to_hadoop_path, translate_errors
from lakeshare_pipelines.wap.iceberg import PLANNED, get_changes_folder, get_planned_folder, get_state
from lakeshare_pipelines.wap.merge import CHANGE_TYPE
from lakeshare_pipelines.wap.staged import Lake, Staged, read_snapshot
from lakeshare_server.catalog import Catalog, Ledger, Publication, lock_set
from lakeshare_server.errors import StoreError, Unserveable
from lakeshare_server.lazy import LazyModule
from lakeshare_server.settings import make_private
from lakeshare_server.tables import FileIndex, Stores, TableSnapshot, open_index, read_iceberg, write_index
from lakeshare_server.tables.iceberg.changes import (
    FeedSource,
    FileDifference,
    StateChange,
    compare_files,
    differ_in_all_files,
    have_change_files,
    is_made_of,
    write_change_index,
)
from lakeshare_server.tables.iceberg.metadata import keeps_rows, open_metadata, restores_columns, schema_at
from lakeshare_server.tables.index import StoredIndex, index_path, new_file, share_index

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
    from pyspark.sql.types import DataType
else:
    F, T = LazyModule("pyspark.sql.functions"), LazyModule("pyspark.sql.types")

log = logging.getLogger(__name__)

INSERT_TYPES, DELETE_TYPES = ("insert", "update_postimage"), ("delete", "update_preimage")
FIELD_ID = "parquet.field.id"
ROW, KEY, TIMES = "row", "key", "times"


def align_columns(
    then: "DataFrame", then_type: StructType, now: "DataFrame", now_type: StructType
) -> "DataFrame":
    """The rows of an older state in the columns of a newer one: by field id, promoted, null for new columns."""

    row = then.select(F.struct(*(column_by_name(name) for name in then.columns)).alias(ROW))
    return row.select(_convert(F.col(ROW), then_type, now_type, now.schema).alias(ROW)).select(f"{ROW}.*")


def find_changed_rows(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> "DataFrame":
    """The rows that one of two frames with the same columns has more often than the other, with `_change_type`.

    A removed and an added row with the same `key`, unique on both sides, are one updated row.
    """

    row = F.struct(*(column_by_name(name) for name in after.columns))
    rows = row.alias(ROW)
    added = after.select(rows, F.lit(1).alias(TIMES))
    both = before.select(rows, F.lit(-1).alias(TIMES)).unionByName(added)
    counted = (
        both.groupBy(to_comparable(F.col(ROW), both.schema[ROW].dataType).alias(KEY))
        .agg(F.sum(TIMES).alias(TIMES), F.first(ROW).alias(ROW))
        .where(F.col(TIMES) != 0)
    )
    typed = counted.withColumn(CHANGE_TYPE, _change_type(counted, key))
    repeated = typed.withColumn(KEY, F.explode(F.sequence(F.lit(1), F.abs(TIMES).cast("int"))))
    return repeated.select(f"{ROW}.*", CHANGE_TYPE)


def add_field_ids(frame: "DataFrame", kind: StructType) -> "DataFrame":
    """The frame with the table's field ids, for Spark to write into its Parquet files."""
    ids = {field.name: field for field in kind.fields}
    columns = []
    for spark_field in frame.schema:
        column = column_by_name(spark_field.name)
        if field := ids.get(spark_field.name):
            column = column.cast(_with_ids(spark_field.dataType, field.field_type))
            column = column.alias(spark_field.name, metadata={FIELD_ID: field.field_id})
        columns.append(column)
    return frame.select(*columns)


def _change_type(counted: "DataFrame", key: Sequence[str]) -> "Column":
    from pyspark.sql.window import Window

    came = F.col(TIMES) > 0
    plain = F.when(came, F.lit(INSERT_TYPES[0])).otherwise(F.lit(DELETE_TYPES[0]))
    if not key:
        return plain
    row: Any = counted.schema[ROW].dataType
    kinds = {field.name: field.dataType for field in row}
    values = [F.col(ROW).getField(name) for name in key]
    keys = [to_comparable(value, kinds[name]) for value, name in zip(values, key, strict=True)]
    same = Window.partitionBy(*keys)
    unique = [F.sum(F.when(side, F.abs(TIMES)).otherwise(F.lit(0))).over(same) == 1 for side in (came, ~came)]
    known = [value.isNotNull() for value in values]
    updated = F.when(came, F.lit(INSERT_TYPES[1])).otherwise(F.lit(DELETE_TYPES[1]))
    return F.when(reduce(lambda left, right: left & right, known + unique), updated).otherwise(plain)


def _convert(value: "Column", then: IcebergType, now: IcebergType, kind: "DataType") -> "Column":
    spark: Any = kind
    if then == now:
        return value
    if isinstance(then, StructType) and isinstance(now, StructType):
        older = {field.field_id: field for field in then.fields}
        members = []
        for field, member in zip(now.fields, spark, strict=True):
            was = older.get(field.field_id)
            converted = F.lit(None).cast(member.dataType)
            if was is not None:
                older_value = value.getField(was.name)
                converted = _convert(older_value, was.field_type, field.field_type, member.dataType)
            members.append(converted.alias(field.name))
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(then, ListType) and isinstance(now, ListType):
        return F.transform(value, _each(then.element_type, now.element_type, spark.elementType))
    if isinstance(then, MapType) and isinstance(now, MapType):
        key = _each(then.key_type, now.key_type, spark.keyType)
        item = _each(then.value_type, now.value_type, spark.valueType)
        pairs = F.map_entries(value)
        return F.map_from_entries(F.transform(pairs, lambda e: F.struct(key(e["key"]), item(e["value"]))))
    return value.cast(kind)


def _each(then: IcebergType, now: IcebergType, kind: "DataType") -> "Callable[[Column], Column]":
    return lambda value: _convert(value, then, now, kind)


def _with_ids(kind: "DataType", iceberg: IcebergType) -> "DataType":
    if isinstance(kind, T.StructType) and isinstance(iceberg, StructType):
        fields = [
            T.StructField(
                member.name, _with_ids(member.dataType, f.field_type), member.nullable, {FIELD_ID: f.field_id}
            )
            for member, f in zip(kind, iceberg.fields, strict=True)
        ]
        return T.StructType(fields)
    if isinstance(kind, T.ArrayType) and isinstance(iceberg, ListType):
        return T.ArrayType(_with_ids(kind.elementType, iceberg.element_type), kind.containsNull)
    if isinstance(kind, T.MapType) and isinstance(iceberg, MapType):
        key, value = _with_ids(kind.keyType, iceberg.key_type), _with_ids(kind.valueType, iceberg.value_type)
        return T.MapType(key, value, kind.valueContainsNull)
    return kind


@dataclass(frozen=True)
class TableState:
    """One state of an Iceberg table: a metadata file, and a snapshot that it lists."""

    metadata_location: str
    snapshot_id: int
    stores: Stores

    @property
    def key(self) -> tuple[str, int]:
        return self.metadata_location, self.snapshot_id

    def read(self, vectors_dir: Path | str) -> TableSnapshot:
        """The table as recipients get it, with large deletion vectors in `vectors_dir`; raises `Unserveable`."""
        return read_iceberg(self.metadata_location, self.snapshot_id, vectors_dir, self.stores)

    def columns(self) -> "StructType":
        return schema_at(*open_metadata(self.stores, self.metadata_location, self.snapshot_id)).as_struct()

    def frame(self, spark: "SparkSession") -> "DataFrame":
        return read_snapshot(spark, self.stores, self.metadata_location, self.snapshot_id)


CHANGES = "changes"


def record_changes(lake: Lake, ledger: Ledger, contract: SetContract, staged: Staged) -> dict[str, object]:
    """Evidence for a set that is about to land: per Iceberg table the digest of its changes."""
    recorded = {}
    for table in contract.tables:
        if table.format == "iceberg":
            state = get_table_state(lake, table, f"{staged.ref}@{staged.head}")
            recorded[table.name] = record_changes_since_latest(lake, ledger, table, state)
    return {CHANGES: recorded} if recorded else {}


def split_recorded_changes(evidence: Mapping[str, object]) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """The evidence without the digests of `record_changes`, and those digests by table."""
    changes = evidence.get(CHANGES)
    others = {key: value for key, value in evidence.items() if key != CHANGES}
    return others, dict(changes) if isinstance(changes, Mapping) else {}


def get_table_state(lake: Lake, table: Table, ref: str) -> TableState:
    """The table at a ref of the catalog, as in `IcebergTables`."""
    state = get_state(lake, table.name, ref)
    return TableState(state.metadata_location, state.snapshot_id, lake.stores)


def ensure_changes(
    lake: Lake, ledger: Ledger, table: Table, state: TableState, index_digest: str, recorded: str | None
) -> str:
    """The recorded index of changes if it leads from the latest publication to this state, else a new one."""
    latest = ledger.latest(table.name)
    if recorded is not None:
        segment = lake.publications.find_changes(recorded)
        if segment and is_made_of(segment, _next_version(latest), (_get_digest(latest), index_digest)):
            return recorded
        log.warning("the changes of %s were recorded for other states: recording them again", table.name)
    return record_changes_since_latest(lake, ledger, table, state)


def record_changes_since_latest(lake: Lake, ledger: Ledger, table: Table, state: TableState) -> str:
    """Record the differences between the table's latest publication and a state; returns the index digest."""
    digest = keep_index(lake, state.read(lake.settings.vectors_location)).digest
    after = open_index(lake.settings.index_dir, digest)
    return _record(lake, table, ledger.latest(table.name), state, after, digest)


def restore_changes(lake: Lake, catalog: Catalog, contract: SetContract) -> list[Publication]:
    """Record again the changes of publications whose index of changes or change files are lost or damaged.

    They are computed from the two states, which may give other files: the publication then names another index.
    Where a state cannot be read any more, a warning is logged and the publication stays as it is.
    """
    ledger, restored = Ledger(catalog), list[Publication]()
    lost = [(table, *pair) for table in contract.tables for pair in _find_lost(lake, ledger, table)]
    if not lost:
        return []
    with lock_set(catalog, contract.name, "repair", lake.settings.lock_wait_s) as lease:
        for table, before, row in lost:
            try:
                after, state = lake.publications.index(row), get_published_state(lake, row)
                digest = _record(lake, table, before, state, after, row.index_digest)
            except (StoreError, Unserveable, PipelineError) as error:
                message = "the changes of %s in publication %s stay lost: %s"
                log.warning(message, row.table, row.version, error)
                continue
            restored.append(ledger.replace_changes(row, digest, lease))
            log.info("recorded the changes of %s in publication %s again", row.table, row.version)
    return restored


def _find_lost(lake: Lake, ledger: Ledger, table: Table) -> list[tuple[Publication | None, Publication]]:
    """The readable publications without their changes, each after the one before it; found without the set's lock."""
    history, oldest = ledger.history(table.name)[::-1], ledger.oldest_readable(table.name)
    return [
        (before, row)
        for before, row in zip([None, *history[:-1]], history, strict=True)
        if row.version >= oldest and not _has_changes(lake, before, row)
    ]


def _has_changes(lake: Lake, before: Publication | None, row: Publication) -> bool:
    """Whether what was recorded is whole, also for other hosts: uploads this host's index if theirs is not."""
    digest = row.changes_digest
    if digest is None:
        return True
    segment = lake.publications.find_changes(digest)
    if segment is None or not is_made_of(segment, row.version, (_get_digest(before), row.index_digest)):
        return False
    if not have_change_files(lake.stores, segment, row.version):
        return False
    shared, own = lake.settings.shared_root, index_path(lake.settings.index_dir, digest)
    if shared is None:
        return True
    make_private(own.parent)
    with new_file(own.parent) as scratch:
        if lake.publications.fetch(digest, scratch):
            return True
    if own.exists():
        share_index(lake.stores, shared, own, again=True)
    return own.exists()


def _record(
    lake: Lake,
    table: Table,
    before: Publication | None,
    state: TableState,
    after: FileIndex,
    after_digest: str,
) -> str:
    published, stores = None if before is None else get_published_state(lake, before), state.stores
    change = StateChange(
        version=_next_version(before),
        before=None if before is None else lake.publications.index(before),
        after=after,
        changed_at_ms=open_metadata(stores, *state.key)[1].timestamp_ms,
        keeps_rows=published is not None and keeps_rows(stores, *state.key, published.snapshot_id),
        brings_back_columns=published is not None and restores_columns(stores, published.key, state.key),
    )
    if published is not None:
        change = _add_change_files(lake, table, change, (published, state))
    recorded = write_change_index(change, (_get_digest(before), after_digest), lake.settings.index_dir)
    share_index(lake.stores, lake.settings.shared_root, index_path(lake.settings.index_dir, recorded))
    return recorded


def _add_change_files(
    lake: Lake, table: Table, change: StateChange, states: tuple[TableState, TableState]
) -> StateChange:
    """The change with its change files, if the table's own files do not show which rows changed."""
    difference = compare_files(change.before, change.after)
    if change.before is None or change.source(difference) != FeedSource.ROWS:
        return change
    if change.brings_back_columns:
        difference = differ_in_all_files(change.before, change.after)
    header = change.after.header
    with translate_errors(lake.settings, f"change files of {table.name}"):
        folder = get_changes_folder(lake, table.name, header.location)
        files = write_change_files(
            lake, folder, states, difference, table.primary_key, header.head.partition_columns
        )
    return replace(change, change_files=files)


def get_published_state(lake: Lake, publication: Publication) -> TableState:
    if publication.metadata_location is None or publication.snapshot_id is None:
        raise NoSuchPublication(publication.table, publication.version)
    return TableState(publication.metadata_location, publication.snapshot_id, lake.stores)


def find_index(lake: Lake, digest: str) -> FileIndex | None:
    return lake.publications.find_index(digest)


def keep_index(lake: Lake, snapshot: TableSnapshot) -> StoredIndex:
    """Write the file index of a snapshot to the state folder and, with tables in a store, for other hosts."""
    index = write_index(snapshot, lake.settings.index_dir)
    share_index(lake.stores, lake.settings.shared_root, index.path)
    return index


def _next_version(latest: Publication | None) -> int:
    return 0 if latest is None else latest.version + 1


def _get_digest(latest: Publication | None) -> str:
    return "" if latest is None else latest.index_digest


PART = "_lakeshare_part"
# Timestamps that other engines read; Spark's default is INT96.
PARQUET_CONF = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# A condition with more names costs more than it saves.
MAX_NAMES = 5000
MODIFIED_MS = "unix_millis(_metadata.file_modification_time)"


def write_change_files(
    lake: Lake,
    changes_folder: str,
    states: tuple[TableState, TableState],
    difference: FileDifference,
    key: Sequence[str],
    partition_columns: Sequence[str],
) -> pa.Table:
    """Find the rows that differ between two states, and write them to a new folder.

    The changes that a merge planned are taken if they add up; otherwise the rows of files that differ are compared.

    Returns a row for each change file: path, size (bytes), modification_time (ms), the struct partition, and
    more_rows, the number of added rows less that of removed rows.

    Raises:
        ChangesDoNotAddUp: the number of rows differs from the files' own counts.
    """
    spark, after, more = lake.spark, states[1], 0
    for changed in _find_changed_rows(lake, changes_folder, states, difference, key):
        folder = f"{changes_folder}/{after.snapshot_id}-{uuid.uuid4().hex}"
        rows = add_field_ids(changed, after.columns())
        with set_conf(spark, PARQUET_CONF):
            _write_parquet(rows, partition_columns, to_hadoop_path(folder))
        written = spark.read.schema(rows.schema).parquet(to_hadoop_path(folder))
        files = _describe_change_files(written, folder, partition_columns)
        more = pc.sum(files.column("more_rows"), min_count=0).as_py()
        adds_up = difference.more_rows in (None, more)
        if not adds_up or not files.num_rows:
            lake.stores.delete_folder(folder)
        if adds_up:
            log.info("%s has %s change files", folder, files.num_rows)
            return files
    raise ChangesDoNotAddUp(changes_folder, more, difference.more_rows)


def _find_changed_rows(
    lake: Lake,
    changes_folder: str,
    states: tuple[TableState, TableState],
    difference: FileDifference,
    key: Sequence[str],
) -> "Iterator[DataFrame]":
    """The changed rows between two states: as a merge planned them, if one did, and by comparing files that differ."""
    spark, (before, after) = lake.spark, states
    planned = get_planned_folder(changes_folder, before.snapshot_id, after.snapshot_id)
    if lake.stores.head(f"{planned}/{PLANNED}") is not None:
        columns = [column_by_name(f.name).cast(f.dataType).alias(f.name) for f in after.frame(spark).schema]
        yield spark.read.parquet(to_hadoop_path(planned)).select(*columns, CHANGE_TYPE)
    then, now = before.columns(), after.columns()
    old = select_files(before.frame(spark), difference.removed)
    new = select_files(after.frame(spark), difference.added)
    yield find_changed_rows(align_columns(old, then, new, now), new, _find_key_columns(key, now))


def select_files(frame: "DataFrame", files: pa.Table) -> "DataFrame":
    """The rows of some files. Bounds let Iceberg skip other files unread."""

    columns = [column_by_name(name) for name in frame.columns]
    for condition in _within_bounds(frame, files):
        frame = frame.where(condition)
    paths = files.column("path").to_pylist()
    if len(paths) <= MAX_NAMES and "_file" not in frame.columns:
        frame = frame.where(F.regexp_replace("_file", "^file:/+", "/").isin(paths))
    return frame.select(*columns)


def _within_bounds(frame: "DataFrame", files: pa.Table) -> "Iterator[Column]":
    if not {"min", "max"} <= set(files.column_names) or not files.num_rows:
        return
    lower, upper = (files.column(name).combine_chunks() for name in ("min", "max"))
    for name in frame.columns:
        least, most = (_values(struct, name) for struct in (lower, upper))
        if least is not None and most is not None:
            bounds = F.lit(pc.min(least).as_py()), F.lit(pc.max(most).as_py())
            yield column_by_name(name).isNull() | column_by_name(name).between(*bounds)


def _values(struct: pa.StructArray, name: str) -> pa.Array | None:
    """The bounds of a column, if they are known for each file and exact."""
    position = struct.type.get_field_index(name)
    if position < 0:
        return None
    kind = struct.type.field(position).type
    values = pc.struct_field(struct, [position])
    is_exact = pa.types.is_integer(kind) or pa.types.is_date(kind)
    return values if is_exact and not values.null_count else None


def _find_key_columns(key: Sequence[str], columns: StructType) -> list[str]:
    """The key in the table's spelling; empty when the table lacks one of its columns."""
    names = {field.name.lower(): field.name for field in columns.fields}
    spelt = [names.get(column.lower()) for column in key]
    return [name for name in spelt if name is not None] if None not in spelt else []


def _write_parquet(rows: "DataFrame", partition_columns: Sequence[str], folder: str) -> None:
    if not partition_columns:
        rows.write.mode("error").parquet(folder)
        return
    kinds = {field.name: field.dataType for field in rows.schema}
    columns = {name: column_by_name(name) for name in partition_columns}
    values = [
        (F.hex(column) if isinstance(kinds[name], T.BinaryType) else column.cast("string")).alias(name)
        for name, column in columns.items()
    ]
    # All rows of a file have the same values, and no folder has a name that must be escaped.
    parted = rows.withColumn(PART, F.sha1(F.to_json(F.struct(*values)))).repartition(F.col(PART))
    parted.write.mode("error").partitionBy(PART).parquet(folder)


def _describe_change_files(written: "DataFrame", folder: str, partition_columns: Sequence[str]) -> pa.Table:
    described = written.groupBy(F.col("_metadata.file_path").alias("written_to")).agg(
        F.first("_metadata.file_size").alias("size"),
        F.first(F.expr(MODIFIED_MS)).alias("modification_time"),
        F.sum(F.when(F.col(CHANGE_TYPE).isin(*INSERT_TYPES), 1).otherwise(-1)).alias("more_rows"),
        *(F.first(column_by_name(name)).alias(f"p{n}") for n, name in enumerate(partition_columns)),
    )
    files = described.orderBy("written_to").toArrow()
    # Spark spells locations its own way, but not what is below our folder.
    run = folder.rpartition("/")[2]
    names = [path.partition(f"/{run}/")[2] for path in files.column("written_to").to_pylist()]
    partition: Any = pa.array([{}] * files.num_rows, pa.struct([]))
    if partition_columns:
        values = [files.column(f"p{n}").combine_chunks() for n in range(len(partition_columns))]
        partition = pa.StructArray.from_arrays(values, list(partition_columns))
    paths = pa.array([f"{folder}/{name}" for name in names], pa.string())
    numbers = {name: files.column(name).cast(pa.int64()) for name in ("size", "modification_time")}
    more_rows = files.column("more_rows")
    return pa.table({"path": paths, **numbers, "partition": partition, "more_rows": more_rows})
