"""Iceberg tables that Spark makes in a catalog of folders, what Spark reads of them, and answers as Delta tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tests.builders.canonical import Rows
from tests.builders.lake_tables import IcebergState
from tests.builders.protocol_reader import Answer, ProtocolReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Filtered: TypeAlias = tuple[str, Rows] | None
"""A condition, and the rows that Spark reads directly under it."""


@dataclass(frozen=True)
class SparkIceberg:
    """A catalog of its own in a running session."""

    spark: "SparkSession"
    name: str

    @classmethod
    def at(cls, spark: "SparkSession", name: str, warehouse: Path) -> "SparkIceberg":
        """The catalog of this name, whose tables are folders below the warehouse."""
        prefix = f"spark.sql.catalog.{name}"
        spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{prefix}.type", "hadoop")
        spark.conf.set(f"{prefix}.warehouse", f"file://{warehouse}")
        spark.conf.set(f"{prefix}.cache-enabled", "false")
        return cls(spark, name)

    def table(self, table: str) -> str:
        """A table's name in SQL."""
        return f"{self.name}.lake.{table}"

    def run(self, table: str, statements: Sequence[str]) -> None:
        """Run statements in which `{t}` is the table, and `{c}` the catalog."""
        for statement in statements:
            self.spark.sql(statement.format(t=self.table(table), c=self.name))

    @property
    def jvm(self) -> Any:
        """Iceberg's package in the JVM."""
        return self.spark._jvm.org.apache.iceberg

    def loaded(self, table: str) -> Any:
        """A table as Iceberg's own classes have it."""
        spark = getattr(self.spark, "_jsparkSession")  # noqa: B009  private, as PySpark's own helpers use it
        return self.jvm.spark.Spark3Util.loadIcebergTable(spark, self.table(table))

    def location(self, table: str) -> str:
        """The folder of a table."""
        return str(self.loaded(table).location()).removeprefix("file:").replace("///", "/")

    def state(self, table: str) -> IcebergState:
        """What a publication of the newest snapshot pins."""
        loaded = self.loaded(table)
        location = str(loaded.operations().current().metadataFileLocation())
        return IcebergState(location, int(loaded.currentSnapshot().snapshotId()))

    def rows(self, table: str) -> Rows:
        """What Spark reads."""
        return frame_rows(self.spark.table(self.table(table)))

    def add_column_with_default(self, table: str, column: str, default: int) -> None:
        """Add a column that older files are to be read with a default for: Spark's SQL has no words for it."""
        kind = getattr(self.jvm.types, "Types$IntegerType").get()
        literal = self.jvm.expressions.Expressions.lit(default)
        self.loaded(table).updateSchema().addColumn(column, kind, literal).commit()

    def add_equality_delete(self, table: str, column: str, value: int, partition: str = "") -> None:
        """Delete by a value, as Flink does: Spark reads such deletes, but writes none."""
        iceberg, loaded = self.jvm, self.loaded(table)
        field = loaded.schema().findField(column)
        kind = {"int": pa.int32(), "long": pa.int64()}[field.type().toString()]
        path = Path(loaded.location().removeprefix("file:")) / "data" / f"equality-{value}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = pa.field(column, kind, metadata={b"PARQUET:field_id": str(field.fieldId()).encode()})
        pq.write_table(pa.table({column: pa.array([value], kind)}, pa.schema([told])), path)
        ids = self.spark.sparkContext._gateway.new_array(self.spark._jvm.int, 1)
        ids[0] = field.fieldId()
        file = (
            iceberg.FileMetadata.deleteFileBuilder(loaded.spec())
            .ofEqualityDeletes(ids)
            .withPath(str(path))
            .withFormat(iceberg.FileFormat.PARQUET)
            .withFileSizeInBytes(path.stat().st_size)
            .withRecordCount(1)
        )
        file = file.withPartitionPath(partition) if partition else file
        loaded.newRowDelta().addDeletes(file.build()).commit()
        self.spark.sql(f"REFRESH TABLE {self.table(table)}")

    def add_file_without(self, table: str, column: str, partition: Any, values: Mapping[str, Any]) -> None:
        """Append a data file of one row that lacks a column; `partition` is its value, in microseconds for times."""
        iceberg, loaded = self.jvm, self.loaded(table)
        kinds = {"int": pa.int32(), "string": pa.string()}
        fields = [loaded.schema().findField(name) for name in values]
        told = [
            pa.field(
                one.name(),
                kinds[one.type().toString()],
                metadata={b"PARQUET:field_id": str(one.fieldId()).encode()},
            )
            for one in fields
        ]
        path = (
            Path(loaded.location().removeprefix("file:")) / "data" / f"without-{column}-{partition}.parquet"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([dict(values)], pa.schema(told)), path)
        partitions = iceberg.PartitionData(loaded.spec().partitionType())
        partitions.set(0, partition)
        file = (
            iceberg.DataFiles.builder(loaded.spec())
            .withPath(str(path))
            .withFileSizeInBytes(path.stat().st_size)
            .withRecordCount(1)
            .withPartition(partitions)
        )
        loaded.newFastAppend().appendFile(file.build()).commit()
        self.spark.sql(f"REFRESH TABLE {self.table(table)}")


def frame_rows(frame: "DataFrame") -> Rows:
    """The rows of a frame in one form."""
    schema = frame.schema.jsonValue()
    if '"variant"' not in json.dumps(schema):
        return Rows.of_arrow(frame.toArrow(), schema)
    # Spark makes no Arrow of variants beside nulls.
    columns = [(field["name"], field["type"]) for field in schema["fields"]]
    return Rows.of(columns, ([_plain(value) for value in row] for row in frame.collect()))


def _plain(value: Any) -> Any:
    """What PySpark collected, with variants by their parts."""
    from pyspark.sql import Row, VariantVal

    if isinstance(value, VariantVal):
        return {"metadata": value.metadata, "value": value.value}
    if isinstance(value, Row):
        return {name: _plain(one) for name, one in value.asDict().items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def as_delta_table(reader: ProtocolReader, answer: Answer, folder: Path) -> Path:
    """An answer in delta format as a Delta table of one commit: what Spark's client makes of it for itself."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    metadata = {key: value for key, value in answer.head.metadata.items() if key not in ("size", "numFiles")}
    actions: list[dict[str, Any]] = [{"protocol": answer.head.protocol}, {"metaData": metadata}]
    for file in answer.files:
        (folder / f"{file.id}.parquet").write_bytes(reader.content(file))
        actions.append({"add": {**file.action, "path": f"{file.id}.parquet"}})
    (log / f"{0:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    return folder
