"""What Spark's SQL has no words for, done through Iceberg's own classes or to the files of a table."""

import json
from pathlib import Path
from typing import Any

from tests.builders.iceberg_matrix.plan import Step
from tests.builders.spark_iceberg import SparkIceberg


def imported(query: str, by: str | None = None) -> Step:
    """The rows of a query as plain Parquet files, which the table takes over as they are."""

    def run(iceberg: SparkIceberg, table: str) -> None:
        # Beside the table's folder: that is its own store.
        place = f"{iceberg.location(table)}_files"
        writer = iceberg.spark.sql(query).coalesce(1).write
        (writer.partitionBy(by) if by else writer).parquet(f"file://{place}")
        iceberg.run(table, [f"CALL {{c}}.system.add_files('{{t}}', '`parquet`.`{place}`')"])

    return run


def with_default(column: str, default: int) -> Step:
    """A column that older files are to be read with a default for."""
    return lambda iceberg, table: iceberg.add_column_with_default(table, column, default)


def column_of(name: str, factory: str = "get", *arguments: Any) -> Step:
    """A column `odd` of a type of Iceberg's that Spark has no word for, by the name of its class."""

    def run(iceberg: SparkIceberg, table: str) -> None:
        kind = getattr(getattr(iceberg.jvm.types, f"Types${name}"), factory)(*arguments)
        iceberg.loaded(table).updateSchema().addColumn("odd", kind).commit()

    return run


def without_column(name: str) -> Step:
    """Drop a column of a table that Spark does not load."""
    return lambda iceberg, table: iceberg.loaded(table).updateSchema().deleteColumn(name).commit()


def equality_delete(deleted_id: int) -> Step:
    """Delete by a value of the column `id`."""
    return lambda iceberg, table: iceberg.add_equality_delete(table, "id", deleted_id)


def file_without(column: str, partition: Any, **values: Any) -> Step:
    """A data file of one row that lacks the column it is partitioned by, as files adopted from Hive do."""

    def run(iceberg: SparkIceberg, table: str) -> None:
        iceberg.add_file_without(table, column, partition, values)

    return run


def a_file_twice(iceberg: SparkIceberg, table: str) -> None:
    """Append a data file of the table once more: nothing in Iceberg looks for that."""
    loaded = iceberg.loaded(table)
    scanned = loaded.newScan().planFiles().iterator().next()
    loaded.newFastAppend().appendFile(scanned.file()).commit()


def manifests_inside(iceberg: SparkIceberg, table: str) -> None:
    """Name the manifests in the snapshot itself, as the first writers of format version 1 did."""
    snapshot = iceberg.loaded(table).currentSnapshot()
    manifests = [one.path() for one in snapshot.allManifests(iceberg.loaded(table).io())]

    def change(told: dict[str, Any]) -> None:
        [current] = [one for one in told["snapshots"] if one["snapshot-id"] == snapshot.snapshotId()]
        del current["manifest-list"]
        current["manifests"] = manifests

    change_metadata(iceberg, table, change)


def change_metadata(iceberg: SparkIceberg, table: str, change: Any) -> None:
    """Write the newest metadata file of a table anew."""
    path = Path(iceberg.state(table).metadata_location.removeprefix("file:"))
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    # Hadoop's checksum of the file that it wrote.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
