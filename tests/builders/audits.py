"""One-line inputs for audits: a set of flights and carriers, its rows as SQL, staged by the real staging."""

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.contracts import Column, Reference, Rule, SetContract, Table
from lakeshare_pipelines.contracts.partitioning import Partitioning
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.stage import staging_for
from lakeshare_pipelines.wap.staged import (
    Lake,
    Severity,
    Staged,
    StagedTable,
    Verdict,
    Verdicts,
    make_staging_name,
)
from lakeshare_server.catalog import open_catalog
from tests.builders.sets import green

NOT_NULL = "expect_column_values_to_not_be_null"
UNIQUE = "expect_column_values_to_be_unique"
UNIQUE_TOGETHER = "expect_compound_columns_to_be_unique"
BETWEEN = "expect_column_values_to_be_between"
DAY, NEXT_DAY = "2013-01-01", "2013-01-02"
SETS = itertools.count(1)

FLIGHT_COLUMNS = (
    Column("day", "date", required=True),
    Column("id", "bigint", required=True, primary_key=True),
    Column("carrier", "string", required=True),
    Column("delay", "double"),
    Column("passenger", "string", pii=True),
)
CARRIER_COLUMNS = (Column("code", "string", required=True, primary_key=True), Column("name", "string"))


def a_rule(name: str, expectation: str, **more: Any) -> Rule:
    """A rule of that name; what is no field of a rule is an argument of the expectation."""
    own = {key: more.pop(key) for key in ("severity", "scope", "description") if key in more}
    return Rule(name, "", expectation, more, **own)


def flights(*rules: Rule, **changes: Any) -> Table:
    """One row per flight, a partition per day."""
    by_day = {"partition_by": (("day", "identity"),), "source": "flights", "rules": rules}
    return Table(**{"name": "flights", "format": "iceberg", "columns": FLIGHT_COLUMNS, **by_day, **changes})


def carriers(*rules: Rule, **changes: Any) -> Table:
    """One row per carrier, no partitions."""
    whole = {"source": "carriers", "rules": rules}
    return Table(**{"name": "carriers", "format": "iceberg", "columns": CARRIER_COLUMNS, **whole, **changes})


def a_set(
    *tables: Table, partitioning: Literal["daily", "none"] = "daily", name: str | None = None
) -> SetContract:
    """The tables as a set that no other test uses, each as `<set>.<table>`."""
    name = name or f"air{next(SETS)}"
    return SetContract(
        name=name,
        version="1.0.0",
        description="",
        owners=("ops",),
        domain="",
        tables=tuple(_of_set(name, table) for table in tables),
        partitioning=Partitioning(partitioning, DAY if partitioning == "daily" else None),
        shares=(),
        digest="c0ffee",
        path=Path("air.yaml"),
    )


def a_reference(*columns: str, to: str, severity: Severity = "error") -> Reference:
    """A reference of `columns` to `table.column`."""
    table, column = to.split(".")
    return Reference(f"references__{table}__{'_'.join(columns)}", "", columns, table, (column,), severity)


def _of_set(name: str, table: Table) -> Table:
    own = f"{name}.{table.name}"
    return replace(
        table,
        name=own,
        rules=tuple(replace(rule, table=own) for rule in table.rules),
        assertions=tuple(replace(assertion, table=own) for assertion in table.assertions),
        references=tuple(replace(r, table=own, to_table=f"{name}.{r.to_table}") for r in table.references),
    )


def flight_rows(count: int, day: str = DAY, **changed: str) -> str:
    """SQL of `count` good flights of a day; `changed` replaces a column's expression, empty leaves it out."""
    columns = {
        "day": f"date'{day}'",
        "id": f"{day.replace('-', '')} * 100000L + id",
        "carrier": "if(id % 2 = 0, 'UA', 'AA')",
        "delay": "cast(id % 60 as double)",
        "passenger": "concat('Passenger ', id)",
        **changed,
    }
    chosen = ", ".join(f"{value} AS {name}" for name, value in columns.items() if value)
    return f"SELECT {chosen} FROM range({count})"


def carrier_rows(*codes: str) -> str:
    """SQL of carriers."""
    values = ", ".join(f"('{code}', 'Carrier {code}')" for code in codes)
    return f"SELECT col1 AS code, col2 AS name FROM VALUES {values}"


def stage_rows(
    lake: Lake,
    contract: SetContract,
    *,
    partitions: Sequence[str] = (DAY,),
    run_id: str = "run1",
    rejected: int = 0,
    problems: Sequence[str] = (),
    **rows: str,
) -> Staged:
    """Rows, as SQL by table, on a staging place of their own."""
    staging = staging_for(lake, contract)
    ref = make_staging_name(contract.name, tuple(partitions), run_id, 0)
    base = staging.open(ref)
    tables = []
    for table in contract.tables:
        written = staging.write(ref, table, lake.spark.sql(rows[table.short_name]), partitions, run_id)
        tables.append(StagedTable(table.name, written, rejected, tuple(problems)))
    return Staged(
        set_name=contract.name,
        run_id=run_id,
        partitions=tuple(partitions),
        ref=ref,
        base=base,
        head=staging.seal(ref),
        tables=tuple(tables),
        deliveries={},
        contract_digest=contract.digest,
    )


def publish_rows(
    lake: Lake,
    contract: SetContract,
    *,
    partitions: Sequence[str] = (DAY,),
    run_id: str = "run0",
    **rows: str,
) -> None:
    """Rows that are published when a test begins."""
    staged = stage_rows(lake, contract, partitions=partitions, run_id=run_id, **rows)
    staged = replace(staged, deliveries=dict.fromkeys(partitions, run_id))
    with closing(open_catalog(lake.settings.catalog_url)) as catalog:
        publish(lake, catalog, contract, staged, green(contract, staged))


def of(verdicts: Verdicts, check: str, table: str = "flights") -> Verdict:
    """The one verdict on a check."""
    (found,) = [v for v in verdicts.verdicts if v.check == check and v.table.endswith(table)]
    return found
