"""A merge of 1 % of a table of 10,000,000 rows, beside Spark's own `MERGE INTO`, at most 1.3 times as long.

Run: `python -m bench.merge [ROWS]`, 10,000,000 by default. For Iceberg and Delta, in one Spark: a delivery of updates,
deletes and inserts spread over all files is staged and published by lakeshare, and merged into a copy of the table by
the statement that does the same. Both have the same rows in the end. Reading the delivery and the audit are apart.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

from bench.server.turns import say
from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.stage import add_rows, staging_for
from lakeshare_pipelines.wap.staged import (
    Lake,
    Staged,
    StagedTable,
    make_staging_name,
    open_lake,
    record_begin,
    save_attempt,
)
from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders.sets import green

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS, TURNS, GOAL = 10_000_000, 3, 1.3
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: {name}
name: {name}
version: 1.0.0
status: active
team: {{name: lake}}
servers:
  - {{server: lake, type: local, path: warehouse, format: {format}}}
schema:
  - name: orders
    physicalName: {name}.orders
    customProperties:
      - {{property: source, value: orders}}
      - {{property: write, value: {{mode: merge, sequence: changed_at, deleteWhen: is_deleted}}}}
    properties:
      - {{name: id, logicalType: integer, physicalType: bigint, primaryKey: true}}
      - {{name: customer, logicalType: string}}
      - {{name: amount, logicalType: number, physicalType: double}}
      - {{name: note, logicalType: string}}
      - {{name: changed_at, logicalType: timestamp}}
      - {{name: is_deleted, logicalType: boolean}}
customProperties:
  - {{property: partitioning, value: daily}}
  - {{property: firstPartition, value: "2024-01-01"}}
"""
MERGE = """\
MERGE INTO {table} t USING delivered s ON t.id = s.id
WHEN MATCHED AND s.changed_at >= t.changed_at AND s.is_deleted THEN DELETE
WHEN MATCHED AND s.changed_at >= t.changed_at THEN UPDATE SET *
WHEN NOT MATCHED AND NOT s.is_deleted THEN INSERT *"""


def main() -> int:
    """Prints the medians of both ways for both formats; 1 if a ratio is over the goal."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    ratios = {}
    with tempfile.TemporaryDirectory(prefix="lakeshare-merge-") as folder:
        settings = LakeSettings(_env_file=None, state_dir=Path(folder) / "state")
        catalog = open_catalog(settings.catalog_url)
        with nessie_for(settings, keep=False), open_lake(settings) as lake:
            for table_format in ("iceberg", "delta"):
                ratios[table_format] = compare(lake, catalog, Path(folder), table_format, rows)
    return int(max(ratios.values()) > GOAL)


def compare(lake: Lake, catalog: Catalog, folder: Path, table_format: str, rows: int) -> float:
    """Merges the same deliveries in turn by both ways; returns the ratio of the medians."""
    path = folder / f"{table_format}.yaml"
    path.write_text(CONTRACT.format(name=f"merged_{table_format}", format=table_format))
    contract = load_contract(path)
    [table] = contract.tables
    say(f"{table_format}: a table of {rows:,} rows")
    merge(lake, catalog, contract, "2024-01-01", make_rows(lake, 0, rows, turn=0))
    main = (
        lake.table_at(table.name)
        if table_format == "iceberg"
        else f"delta.`{table_location(lake.settings, table)}`"
    )
    copy = copy_table(lake, folder, main) if table_format == "iceberg" else f"delta.`{folder}/copy`"
    if table_format == "delta":
        lake.spark.sql(f"CREATE TABLE {copy} USING delta AS SELECT * FROM {main}")
    seconds: dict[str, list[float]] = {"lakeshare": [], "MERGE INTO": []}
    for turn in range(1, TURNS + 1):
        say(f"{table_format}: turn {turn} of {TURNS}")
        delivered = make_changes(lake, rows, turn).persist()
        delivered.count()
        delivered.createOrReplaceTempView("delivered")
        merge_ours = partial(merge, lake, catalog, contract, f"2024-01-{turn + 1:02d}", delivered)
        ways: dict[str, Callable[[], object]] = {
            "lakeshare": merge_ours,
            "MERGE INTO": partial(lake.spark.sql, MERGE.format(table=copy)),
        }
        for way in sorted(ways, reverse=bool(turn % 2)):
            began = time.perf_counter()
            ways[way]()
            seconds[way].append(time.perf_counter() - began)
        delivered.unpersist()
    ours, theirs = median(seconds["lakeshare"]), median(seconds["MERGE INTO"])
    differing = lake.spark.sql(f"(SELECT * FROM {main} EXCEPT ALL SELECT * FROM {copy})").count()
    same = lake.spark.sql(f"SELECT (SELECT count(*) FROM {main}) = (SELECT count(*) FROM {copy})").first()
    if differing or same is None or not same[0]:
        raise AssertionError(f"{table_format}: {differing} rows differ from those of MERGE INTO")
    verdict = "met" if ours / theirs <= GOAL else "missed"
    print(
        f"{table_format}, {rows // 100:,} changes of {rows:,} rows: {ours:.1f} s staged and published, MERGE INTO "
        f"{theirs:.1f} s: {ours / theirs:.2f} times (goal: at most {GOAL}: {verdict})",
        flush=True,
    )
    return ours / theirs


def copy_table(lake: Lake, folder: Path, main: str) -> str:
    """Copies an Iceberg table with its properties; returns the name of the copy, which is in a catalog of its own."""
    conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": f"{folder}/copies"}
    for name, value in conf.items():
        lake.spark.conf.set(f"spark.sql.catalog.copies{name}", value)
    set_here = [
        f"'{row['key']}' = '{row['value']}'"
        for row in lake.spark.sql(f"SHOW TBLPROPERTIES {main}").collect()
        if row["key"].startswith("write.")
    ]
    properties = f"TBLPROPERTIES ({', '.join(set_here)})" if set_here else ""
    lake.spark.sql(f"CREATE TABLE copies.orders.copy USING iceberg {properties} AS SELECT * FROM {main}")
    return "copies.orders.copy"


def make_rows(lake: Lake, first: int, count: int, turn: int) -> "DataFrame":
    """Orders with ids from `first`, as they were changed at a turn."""
    return lake.spark.range(first, first + count).selectExpr(
        "id",
        "concat('customer', pmod(hash(id), 900000)) customer",
        f"pmod(hash(id, {turn}), 1000000) / 100D amount",
        "concat('parcel is with neighbour number ', pmod(hash(id, 1), 1000000)) note",
        f"timestamp_seconds(1704067200 + {turn}) changed_at",
        "false is_deleted",
    )


def make_changes(lake: Lake, rows: int, turn: int) -> "DataFrame":
    """1 % of the rows: of 20 changes 18 are updates and one a deletion, spread over all ids, and one is an insert."""
    old = make_rows(lake, 0, rows, turn).where(f"pmod(hash(id, {turn}, 'changed'), 2000) < 19")
    old = old.withColumn("is_deleted", old.id % 19 == 0)
    return old.union(make_rows(lake, rows * (1 + turn), rows // 2000, turn))


def merge(lake: Lake, catalog: Catalog, contract: SetContract, day: str, rows: "DataFrame") -> None:
    """Stages delivered rows and publishes them."""
    staging, run_id = staging_for(lake, contract), str(uuid4())
    ref = make_staging_name(contract.name, (day,), run_id, 0)
    record_begin(lake, ref)
    draft = Staged(
        set_name=contract.name,
        run_id=run_id,
        partitions=(day,),
        ref=ref,
        base=staging.open(ref),
        head="",
        tables=(),
        deliveries={day: run_id},
        contract_digest=contract.digest,
    )
    [table] = contract.tables
    if problems := add_rows(staging, draft, table, rows):
        raise AssertionError(problems)
    staged = replace(draft, head=staging.seal(ref), tables=(StagedTable(table.name, rows.count()),))
    save_attempt(lake, staged)
    publish(lake, catalog, contract, staged, green(contract, staged))


if __name__ == "__main__":
    sys.exit(main())
