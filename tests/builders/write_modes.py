"""A set with a table for each write mode, random deliveries for it, and a model of its tables in plain Python."""

import csv
import datetime as dt
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.ingest import find_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.stage import add_rows, staging_for
from lakeshare_pipelines.wap.staged import (
    Lake,
    Staged,
    StagedTable,
    make_staging_name,
    record_begin,
    save_attempt,
)

MODES = ("append", "merge", "scd2", "replace")
COLUMNS = """\
      - {name: id, logicalType: integer, physicalType: int%s}
      - {name: name, logicalType: string, classification: pii%s}
      - {name: amount, logicalType: number, physicalType: double}
      - {name: at, logicalType: date, required: true}
      - {name: op, logicalType: string}
"""
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
{tables}
customProperties:
  - {{property: partitioning, value: daily}}
  - {{property: firstPartition, value: "2024-01-01"}}
  - property: shares
    value:
      - {{share: {name}_share, schema: shop, tables: [{shared}]}}
"""
TABLE = """\
  - name: {mode}_rows
    physicalName: {name}.{mode}_rows
    customProperties:
      - {{property: source, value: {mode}_rows}}
      - {{property: write, value: {write}}}
    properties:
{columns}"""
ORDERED = {"sequence": "at", "deleteWhen": "op = 'D'"}


def a_set_of_modes(
    folder: Path, name: str, table_format: str, modes: Sequence[str] = MODES, more: str = "", **merge: str
) -> SetContract:
    """A daily set with a table for each of these modes; `merge` replaces sequence and condition of merges."""
    tables = []
    for mode in modes:
        write: dict[str, str] = {"mode": mode}
        if mode in ("merge", "scd2"):
            write |= merge if mode == "merge" and merge else ORDERED
        key = ", primaryKey: true" if mode in ("merge", "scd2") else ""
        # Updates move rows between partitions.
        part = ", partitioned: true" if mode == "merge" else ""
        fields = "{" + ", ".join(f'{key}: "{value}"' for key, value in write.items()) + "}"
        tables.append(TABLE.format(name=name, mode=mode, write=fields, columns=COLUMNS % (key, part)))
    text = CONTRACT.format(
        name=name,
        format=table_format,
        tables="".join(tables) + more,
        shared=", ".join(f"{mode}_rows" for mode in modes),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load_contract(path)


@dataclass(frozen=True)
class Change:
    """A delivered row."""

    id: int | None
    name: str | None
    amount: float
    at: str
    op: str = "U"

    def as_row(self) -> tuple[Any, ...]:
        return (self.id, self.name, self.amount, self.at, self.op)


def deliver(settings: LakeSettings, contract: SetContract, day: str, changes: Iterable[Change]) -> None:
    """Deliver the same rows to all tables of a set."""
    folder = Path(settings.landing_root) / contract.name / day
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_SUCCESS").unlink(missing_ok=True)
    rows = [change.as_row() for change in changes]
    for table in contract.tables:
        if table.source is not None:
            with (folder / f"{table.source}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("id", "name", "amount", "at", "op"), *rows])
    (folder / "_SUCCESS").touch()


def stage_without_reading(
    lake: Lake, contract: SetContract, day: str, changes: Sequence[Change], run_id: str | None = None
) -> Staged:
    """The delivered rows at their staging location, without Spark's reading of the delivery."""
    staging, run_id = staging_for(lake, contract), run_id or str(uuid4())
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
        deliveries={day: find_delivery(lake.settings, contract, day).digest},
        contract_digest=contract.digest,
    )
    values = [(*c.as_row()[:3], dt.date.fromisoformat(c.at), c.op) for c in changes]
    rows = lake.spark.createDataFrame(values, "id int, name string, amount double, at date, op string")
    records = []
    for table in contract.tables:
        frame = rows
        if table.write.mode == "scd2":
            frame = rows.selectExpr("*", "at valid_from", "cast(null as date) valid_to", "true is_current")
        if table.write.is_incremental:
            problems = add_rows(staging, draft, table, frame)
        else:
            problems = ()
            staging.write(ref, table, frame, [day], run_id)
        records.append(StagedTable(table.name, len(values), key_problems=problems))
    staged = Staged(**{**draft.__dict__, "head": staging.seal(ref), "tables": tuple(records)})
    save_attempt(lake, staged)
    return staged


Row = tuple[Any, ...]


@dataclass
class Model:
    """What the tables have after deliveries; dates are texts. A red delivery is never given to the model."""

    appended: list[Row] = field(default_factory=list)
    merged: dict[int | None, Row] = field(default_factory=dict)
    events: dict[int | None, dict[str, Change]] = field(default_factory=dict)
    replaced: list[Row] = field(default_factory=list)

    def apply(self, changes: Sequence[Change]) -> None:
        self.appended += [change.as_row() for change in changes]
        self.replaced = [change.as_row() for change in changes]
        newest: dict[int | None, Change] = {}
        for change in changes:
            if change.id not in newest or newest[change.id].at < change.at:
                newest[change.id] = change
        for key, change in newest.items():
            if key in self.merged and self.merged[key][3] > change.at:
                continue
            if change.op == "D":
                self.merged.pop(key, None)
            else:
                self.merged[key] = change.as_row()
        for change in changes:
            self.events.setdefault(change.id, {})[change.at] = change
        for key, events in self.events.items():
            # A deletion is remembered as the end of the version before it, and by nothing else.
            kept, is_open = {}, False
            for at in sorted(events):
                if events[at].op != "D" or is_open:
                    kept[at] = events[at]
                is_open = events[at].op != "D"
            self.events[key] = kept

    def versions(self) -> list[Row]:
        found = []
        for events in self.events.values():
            order = sorted(events)
            for at, after in zip(order, [*order, None][1:], strict=True):
                if events[at].op != "D":
                    found.append((*events[at].as_row(), at, after, after is None))
        return found

    def rows(self, mode: str) -> list[Row]:
        rows = {
            "append": self.appended,
            "merge": list(self.merged.values()),
            "scd2": self.versions(),
            "replace": self.replaced,
        }
        return sorted(rows[mode], key=str)


def random_changes(draw: random.Random, number: int) -> list[Change]:
    """Inserts, updates and deletes of few keys, also late and repeated ones; no two different rows of a key and day."""
    changes: dict[tuple[int, str], Change] = {}
    for _ in range(draw.randint(1, 7)):
        key, at = draw.randint(1, 6), f"2024-01-{draw.randint(max(1, 2 * number - 4), 2 * number + 3):02d}"
        op = "D" if draw.random() < 0.25 else "U"
        changes[key, at] = Change(key, draw.choice([None, "a", "b"]), float(draw.randint(0, 3)), at, op)
    return list(changes.values())


def read_main(lake: Lake, contract: SetContract, short_name: str) -> list[Row]:
    """The rows of a table on main."""
    table = contract.table(short_name)
    if table.format == "iceberg":
        return rows_of(lake.table(table.name).collect())
    opened = lake.open_delta(table_location(lake.settings, table))
    assert opened is not None
    columns = [column.name for column in table.columns]
    return rows_of(tuple(row[c] for c in columns) for row in opened.to_pyarrow_table().to_pylist())


def rows_of(frame_rows: Iterable[Any]) -> list[Row]:
    """Rows as the model has them, sorted."""
    return sorted(
        (tuple(str(v) if isinstance(v, dt.date) else v for v in row) for row in frame_rows), key=str
    )
