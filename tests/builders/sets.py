"""Small sets for tests: a contract of two tables in either format, and deliveries for it."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Staged, Verdicts

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
    folder = settings.landing / contract.name / day
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


def as_good_as(audited: Verdicts, staged: Staged) -> Verdicts:
    """The verdicts of another staged set of the contract for this one, for tests that are not about the audit.

    The rows are alike, and an audit takes Spark longer than everything else of a run.
    """
    return replace(audited, staged_ref=staged.ref, head=staged.head)
