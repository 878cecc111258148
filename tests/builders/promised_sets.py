"""Daily sets that promise clients, and tables of theirs as somebody else's Spark leaves them on main on a Monday."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.spark_iceberg import SparkIceberg

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
# What Spark's SQL has no words for: the row of id 4 deleted by value, a column `rate` that older files have 7 in.
EQUALITY_DELETE, DEFAULT = "an equality delete", "a column with a default"


def created(properties: str = "", columns: str = "id INT, name STRING") -> str:
    """The statement that makes a table by day, of version 2 with these properties; `{t}` is its name."""
    return (
        f"CREATE TABLE {{t}} (day DATE, {columns}) USING iceberg PARTITIONED BY (day) "
        f"TBLPROPERTIES ('format-version' = '2'{properties and ', ' + properties})"
    )


def inserted(*more: str) -> str:
    """The statement that writes six rows of Monday: `more` are the columns behind the id, as SQL over it."""
    values = ", ".join((f"DATE'{MONDAY}'", "CAST(id AS INT)", *more))
    return f"INSERT INTO {{t}} SELECT {values} FROM range(6)"


def a_promising_contract(
    folder: Path, name: str, tables: Mapping[str, Mapping[str, str]], promise: Any
) -> SetContract:
    """A daily set of tables of these columns beside day and id, `lake.<set>_<table>` each."""
    document = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": name,
        "name": name,
        "version": "1.0.0",
        "status": "active",
        "team": {"name": "lake"},
        "servers": [{"server": "lake", "type": "local", "format": "iceberg"}],
        "schema": [_of_contract(name, table, columns, promise) for table, columns in tables.items()],
        "customProperties": _properties(partitioning="daily", firstPartition=MONDAY),
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return load_contract(path)


def _of_contract(name: str, table: str, columns: Mapping[str, str], promise: Any) -> dict[str, Any]:
    day = {"name": "day", "logicalType": "date", "partitioned": True, "partitionKeyPosition": 1}
    others = [{"name": name, "physicalType": kind} for name, kind in {"id": "int", **columns}.items()]
    promised = {} if promise is None else {"serveableTo": promise}
    return {
        "name": table,
        "physicalName": f"lake.{name}_{table}",
        "properties": [day, *others],
        "customProperties": _properties(source=table, allowSchemaChanges=True, **promised),
    }


def _properties(**values: Any) -> list[dict[str, Any]]:
    return [{"property": name, "value": value} for name, value in values.items()]


def by_hand(lake: Lake, name: str, stories: Mapping[str, Sequence[str]]) -> None:
    """Tables `lake.<name>_<table>` on main, each as its story leaves it."""
    ref, nessie, publisher = f"by-hand-{uuid4()}", lake.nessie(), lake.nessie("publisher")
    nessie.create_branch(ref, nessie.reference("main").hash)
    iceberg = SparkIceberg(lake.spark, lake.catalog(ref))
    lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {iceberg.name}.lake")
    for table, story in stories.items():
        for statement in story:
            if statement == EQUALITY_DELETE:
                iceberg.add_equality_delete(f"{name}_{table}", "id", 4, f"day={MONDAY}")
            elif statement == DEFAULT:
                iceberg.add_column_with_default(f"{name}_{table}", "rate", 7)
            else:
                iceberg.run(f"{name}_{table}", [statement])
    written = nessie.reference(ref).hash
    publisher.merge(
        *(ref, written),
        onto_hash=nessie.reference("main").hash,
        message="by hand",
        author="tests",
        properties={},
    )
    nessie.delete_branch(ref, written)


def deliver_tuesday(lake: Lake, contract: SetContract) -> None:
    """Two rows for each table on Tuesday."""
    values = {"string": ("a", "b"), "bigint": (5_000_000_000, 1), "double": (1e300, 0.1)}
    folder = Path(lake.settings.landing_root) / contract.name / TUESDAY
    folder.mkdir(parents=True, exist_ok=True)
    for table in contract.tables:
        kinds = {column.name: column.type for column in table.columns[2:]}
        lines = [
            [TUESDAY, 10 + row, *(values.get(kind, (1, 2))[row] for kind in kinds.values())] for row in (0, 1)
        ]
        text = "\n".join(",".join(str(value) for value in line) for line in [["day", "id", *kinds], *lines])
        (folder / f"{table.source}.csv").write_text(text + "\n")
    (folder / "_SUCCESS").touch()
