"""The replay of logs that do not fit into the memory of one process, in Spark: the same answer as replay.py gives.

Executors read the log through the store's own client; no file system of Hadoop's is needed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.verify.delta.events import (
    EVENTS,
    BrokenLogFile,
    Columns,
    Read,
    checkpoint_file_events,
    commit_events,
    sidecars_of,
)
from lakeshare_pipelines.backup.verify.delta.log_files import Chain, Step
from lakeshare_pipelines.backup.verify.delta.replay import INTERVALS, Replayed, counted
from lakeshare_pipelines.errors import ObjectMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_A_TASK = 200
TOLD = pa.schema(
    [
        *(pa.field(field.name, field.type) for field in EVENTS),
        # A row of its own for each commit that has its time in itself, and for each file that is not whole.
        pa.field("time_ms", pa.int64()),
        pa.field("broken", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
_FILES = "first long, last long, name string, stored_key string, stored_version_id string, is_commit boolean"


def spark_replay(
    spark: "SparkSession",
    store: StoreAddress,
    root: str,
    chain: Chain,
    stored: pa.Table,
    there: Callable[[pa.Array], pa.Table],
    read: Read,
) -> tuple[Replayed, dict[int, int]]:
    """Replay a chain; `stored` tells where its files are (`name`, `stored_key`, `stored_version_id`).

    `there` answers with what is whole of the table's own objects and of those that are named besides: columns
    `location` and `size_bytes`.

    Raises:
        BrokenLogFile: one of its files is not whole.
    """
    files = _files(chain, stored, read)
    tasks = max(1, -(-len(files) // FILES_A_TASK))
    rows = spark.createDataFrame(files, _FILES).repartition(tasks, "name")
    told = rows.mapInArrow(_reader(store, root), _ddl()).persist()
    try:
        _require_whole(told)
        times = {row["version"]: row["time_ms"] for row in told.where("time_ms IS NOT NULL").collect()}
        events = told.where("location IS NOT NULL")
        own = there(pa.array([], pa.string()))
        return _replayed(spark, events, chain.versions, there(_others(spark, events, own))), times
    finally:
        told.unpersist()


def _files(chain: Chain, stored: pa.Table, read: Read) -> list[tuple[int, int, str, str, str | None, bool]]:
    places = {row["name"]: (row["stored_key"], row["stored_version_id"]) for row in stored.to_pylist()}
    found = [(step.first, step.last, step.name, *places[step.name], True) for step in chain.steps]
    if chain.base is not None:
        at = chain.base.version
        names = [*chain.base.names, *sidecars_of(chain.base, read)]
        if lost := [name for name in names if name not in places]:
            raise BrokenLogFile(lost[0], "it is not in the copy")
        found += [(at, at, name, *places[name], False) for name in names]
    return found


class _reader:
    """Turns rows of files into what they say."""

    def __init__(self, store: StoreAddress, root: str) -> None:
        self._store, self._root = store, root

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self._store)
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    content = store.read(row["stored_key"], row["stored_version_id"])
                    told = self._told(row, content)
                except (BrokenLogFile, ObjectMissing) as error:
                    told = pa.table({"broken": [row["name"]], "reason": [str(error)]})
                yield from _padded(told).to_batches()

    def _told(self, row: dict[str, object], content: bytes) -> pa.Table:
        name, last = str(row["name"]), int(str(row["last"]))
        if not row["is_commit"]:
            return checkpoint_file_events(self._root, last, name, content)
        columns = Columns()
        at = commit_events(Step(int(str(row["first"])), last, name), content, columns)
        events = columns.table(self._root)
        if at is None:
            return events
        return pa.concat_tables([_padded(events), _padded(pa.table({"version": [last], "time_ms": [at]}))])


def _padded(table: pa.Table) -> pa.Table:
    columns = {
        field.name: table[field.name]
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in TOLD
    }
    return pa.table(columns).cast(TOLD)


def _ddl() -> str:
    kinds = {pa.string(): "string", pa.int64(): "long", pa.bool_(): "boolean"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in TOLD)


def _require_whole(told: "DataFrame") -> None:
    broken = told.where("broken IS NOT NULL").select("broken", "reason").orderBy("broken").first()
    if broken is not None:
        raise BrokenLogFile(broken["broken"], broken["reason"])


def _others(spark: "SparkSession", events: "DataFrame", own: pa.Table) -> pa.Array:
    """What the log names that is not whole among the table's own objects: of nearly all tables little."""
    named = events.selectExpr("location").unionByName(events.selectExpr("dv_location AS location"))
    known = spark.createDataFrame(own.select(["location"]))
    found = named.where("location IS NOT NULL").distinct().join(known, "location", "left_anti").toArrow()
    return found["location"].combine_chunks()


def _replayed(
    spark: "SparkSession", events: "DataFrame", versions: Sequence[int], there: pa.Table
) -> Replayed:
    lives = _lives(events).persist()
    try:
        missing = _missing(lives, spark.createDataFrame(there.select(["location", "size_bytes"])))
        lacking = missing.select("location", "size_bytes", "since", "until").toArrow().cast(INTERVALS)
        changes = _changes(lives, missing).toArrow()
        return Replayed(counted(changes, versions), lacking)
    finally:
        lives.unpersist()


def _lives(events: "DataFrame") -> "DataFrame":
    """The events that begin a life, with the version that ends it; adds come after removes of the same commit."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy("location", "dv_id").orderBy("version", "is_add")
    ended = events.withColumn("until", F.lead("version").over(order))
    return ended.where("is_add AND (until IS NULL OR until <> version)")


def _missing(lives: "DataFrame", there: "DataFrame") -> "DataFrame":
    when = ["version AS since", "until"]
    data = lives.selectExpr("location", "size_bytes", *when)
    vectors = lives.where("dv_location IS NOT NULL").selectExpr(
        "dv_location AS location", "CAST(NULL AS LONG) AS size_bytes", *when
    )
    found = there.selectExpr("location", "size_bytes AS found")
    joined = data.unionByName(vectors).join(found, "location", "left")
    return joined.where("found IS NULL OR NOT (size_bytes IS NULL OR found = size_bytes)")


def _changes(lives: "DataFrame", missing: "DataFrame") -> "DataFrame":
    amounts = ("files", "size_bytes", "rows", "untold", "absolute", "lacking")
    more = lives.selectExpr(
        *("version", "until", "1L AS files", "coalesce(size_bytes, 0L) AS size_bytes"),
        *(
            "coalesce(rows, 0L) AS rows",
            "IF(rows IS NULL, 1L, 0L) AS untold",
            "IF(is_absolute, 1L, 0L) AS absolute",
        ),
        "0L AS lacking",
    )
    lost = missing.selectExpr(
        *("since AS version", "until", "0L AS files", "0L AS size_bytes", "0L AS rows", "0L AS untold"),
        *("0L AS absolute", "1L AS lacking"),
    )
    begun = more.unionByName(lost)
    ended = begun.where("until IS NOT NULL").selectExpr(
        "until AS version", *(f"-{one} AS {one}" for one in amounts)
    )
    every = begun.drop("until").unionByName(ended)
    return every.groupBy("version").sum(*amounts).toDF("version", *amounts)
