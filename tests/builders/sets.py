"""Small sets for tests: a contract of two tables in either format, and deliveries for it."""

import csv
import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from deltalake import write_deltalake

from lakeshare_pipelines.contracts import SetContract, Table, load_contract
from lakeshare_pipelines.ingest import find_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.stores import make_delta_options
from lakeshare_pipelines.wap.checks import list_checks
from lakeshare_pipelines.wap.delta import STAGED_FOLDER, table_location
from lakeshare_pipelines.wap.stage import staging_for
from lakeshare_pipelines.wap.staged import (
    Lake,
    Staged,
    StagedTable,
    Verdict,
    Verdicts,
    make_staging_name,
    record_begin,
    save_attempt,
)

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: {name}
name: {name}
version: 1.0.0
status: active
domain: tests
description: {{purpose: Orders and their daily totals.}}
team: {{name: lake}}
servers:
  - {{server: lake, type: local, path: warehouse, format: {format}}}
schema:
  - name: orders
    physicalName: {name}.orders
    description: One row per order.
    customProperties:
      - {{property: source, value: orders}}
      - {{property: maxQuarantinedFraction, value: 0.5}}
    properties:
      - {{name: day, logicalType: date, required: true, partitioned: true, partitionKeyPosition: 1}}
      - {{name: id, logicalType: integer, physicalType: int, primaryKey: true, primaryKeyPosition: 1}}
      - {{name: customer, logicalType: string, required: true}}
      - {{name: email, logicalType: string, classification: pii}}
      - {{name: amount, logicalType: number, physicalType: double, required: true}}
  - name: totals
    physicalName: {name}.totals
    description: Orders per day.
    customProperties:
      - property: derive
        value: SELECT day, count(*) AS orders, sum(amount) AS amount FROM {{orders}} GROUP BY day
    properties:
      - {{name: day, logicalType: date, primaryKey: true, partitioned: true, partitionKeyPosition: 1}}
      - {{name: orders, logicalType: integer, physicalType: bigint, required: true}}
      - {{name: amount, logicalType: number, physicalType: double, required: true}}
customProperties:
  - {{property: partitioning, value: daily}}
  - {{property: firstPartition, value: "2024-01-01"}}
  - property: shares
    value:
      - {{share: {name}_share, schema: shop, tables: [orders, totals]}}
{more}
"""


def a_contract(folder: Path, name: str, table_format: str, more: str = "", **replaced: str) -> SetContract:
    """A daily set `name` of `name.orders` and the derived `name.totals`; `replaced` swaps text in the YAML."""
    text = CONTRACT.format(name=name, format=table_format, more=more)
    for old, new in replaced.items():
        text = text.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load_contract(path)


def an_order(day: str, number: int, **changed: object) -> dict[str, object]:
    """One order; `changed` replaces columns of it."""
    order = {
        "day": day,
        "id": number,
        "customer": f"c{number}",
        "email": f"c{number}@example.org",
        "amount": 1.5 * number,
    }
    return order | changed


def orders(day: str, count: int = 3, first: int | None = None) -> list[dict[str, object]]:
    """`count` orders of a day with ids that no other day has."""
    start = int(day.replace("-", "")) * 100 if first is None else first
    return [an_order(day, start + at) for at in range(count)]


def a_delivery(
    settings: LakeSettings,
    contract: SetContract,
    day: str,
    rows: Sequence[Mapping[str, object]],
    *,
    done: bool = True,
) -> Path:
    """Deliver rows as `orders.csv`, replacing what was there; `done` adds `_SUCCESS`."""
    folder = Path(settings.landing_root) / contract.name / day
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_SUCCESS").unlink(missing_ok=True)
    names = list(rows[0]) if rows else ["day", "id", "customer", "email", "amount"]
    with (folder / "orders.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    if done:
        (folder / "_SUCCESS").touch()
    return folder


def staged_without_reading(
    lake: Lake,
    contract: SetContract,
    day: str,
    rows: Sequence[Mapping[str, object]],
    *,
    one_row_files: bool = False,
) -> Staged:
    """A delivered day at its staging location, for tests that begin at publication.

    The rows do not pass through Spark's reading of the delivery, which takes longer than everything else of a run. With
    `one_row_files` each row is in a file of its own.
    """
    staging, run_id = staging_for(lake, contract), str(uuid4())
    ref = make_staging_name(contract.name, (day,), run_id, 0)
    record_begin(lake, ref)
    base = staging.open(ref)
    amounts = [float(str(row["amount"])) for row in rows]
    totals = [{"day": rows[0]["day"], "orders": len(rows), "amount": sum(amounts)}] if rows else []
    contents = {"orders": rows, "totals": totals}
    for table in contract.tables:
        content = contents[table.short_name]
        files = len(content) if one_row_files else 1
        _write_staged(lake, contract, table, ref, content, day, run_id, files)
    staged = Staged(
        set_name=contract.name,
        run_id=run_id,
        partitions=(day,),
        ref=ref,
        base=base,
        head=staging.seal(ref),
        tables=tuple(StagedTable(t.name, len(contents[t.short_name])) for t in contract.tables),
        deliveries={day: find_delivery(lake.settings, contract, day).digest},
        contract_digest=contract.digest,
    )
    save_attempt(lake, staged)
    return staged


ARROW_TYPES = {"date": pa.date32(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}


def _write_staged(
    lake: Lake,
    contract: SetContract,
    table: Table,
    ref: str,
    rows: Sequence[Mapping[str, object]],
    day: str,
    run_id: str,
    files: int,
) -> None:
    """Write a staged table, a Delta one by deltalake; several files have a row each."""
    if table.format == "delta":
        arrays = {
            column.name: pa.array(
                [_value(row[column.name], column.type) for row in rows],
                ARROW_TYPES.get(column.type, pa.string()),
            )
            for column in table.columns
        }
        folder = f"{table_location(lake.settings, table)}/{STAGED_FOLDER}/{ref}"
        columns = [column for column, _ in table.partition_by]
        options = make_delta_options(lake.stores, folder)
        content = pa.table(arrays)
        for part in [content] if files == 1 else [content.slice(at, 1) for at in range(files)]:
            write_deltalake(folder, part, partition_by=columns, storage_options=options, mode="append")
        return
    columns = ", ".join(
        f"cast(col{at} AS {column.type}) AS {column.name}" for at, column in enumerate(table.columns, 1)
    )
    values = ", ".join(f"({', '.join(repr(row[c.name]) for c in table.columns)})" for row in rows)
    frame = lake.spark.sql(f"SELECT {columns} FROM VALUES {values}")
    if files > 1:
        lake.spark.conf.set("spark.sql.iceberg.distribution-mode", "none")
        frame = frame.repartitionByRange(files, frame.columns[1])
    staging_for(lake, contract).write(ref, table, frame, [day], run_id)
    lake.spark.conf.unset("spark.sql.iceberg.distribution-mode")


def _value(value: object, kind: str) -> object:
    return dt.date.fromisoformat(str(value)) if kind == "date" else value


def green(contract: SetContract, staged: Staged) -> Verdicts:
    """Passed verdicts on a staged set, for tests that are not about the audit."""
    passed = (Verdict(c.table, c.name, c.severity, True, c.description) for c in list_checks(contract))
    return Verdicts(staged.ref, staged.head, tuple(passed), contract.digest)
