"""Which rows differ between two states of a table: an exact difference of multisets, in Spark's words.

Iceberg's changelog scans refuse delete files (1.12) and know only states of one line of descent; see the ADR about
changes.
Nothing here reads or writes a table.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyiceberg.types import IcebergType, ListType, MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

CHANGE_TYPE = "_change_type"
CAME, WENT = ("insert", "update_postimage"), ("delete", "update_preimage")
FIELD_ID = "parquet.field.id"
ROW, KEY, TIMES = "row", "key", "times"


def as_columns_of(
    then: "DataFrame", then_type: StructType, now: "DataFrame", now_type: StructType
) -> "DataFrame":
    """The rows of an older state under the columns of a newer one: by field id, promoted, null where there was none."""
    from pyspark.sql import functions as F

    whole = F.struct(*(named(name) for name in then.columns))
    row = then.select(whole.alias(ROW))
    return row.select(_converted(F.col(ROW), then_type, now_type, now.schema).alias(ROW)).select(f"{ROW}.*")


def changed_rows(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> "DataFrame":
    """The rows that are in one of two frames of the same columns, or more often in one of them, with `_change_type`.

    A row that came and one that went with the same `key`, when they are the only ones with it, are one updated row.
    """
    from pyspark.sql import functions as F

    row = F.struct(*(named(name) for name in after.columns))
    sides = [
        frame.select(row.alias(ROW), F.lit(times).alias(TIMES)) for frame, times in ((before, -1), (after, 1))
    ]
    both = sides[0].unionByName(sides[1])
    counted = (
        both.groupBy(comparable(F.col(ROW), both.schema[ROW].dataType).alias(KEY))
        .agg(F.sum(TIMES).alias(TIMES), F.first(ROW).alias(ROW))
        .where(F.col(TIMES) != 0)
    )
    typed = counted.withColumn(CHANGE_TYPE, _change_type(counted, key))
    repeated = typed.withColumn(KEY, F.explode(F.sequence(F.lit(1), F.abs(TIMES).cast("int"))))
    return repeated.select(f"{ROW}.*", CHANGE_TYPE)


def comparable(value: "Column", kind: "DataType") -> "Column":
    """A value in a form that is equal for equal values only, and can be grouped by.

    Maps have no equality, and grouping takes the two zeros of floating point for one.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if not _has(kind, T.MapType, T.FloatType, T.DoubleType):
        return value
    if isinstance(kind, T.StructType):
        members = (comparable(value.getField(one.name), one.dataType).alias(one.name) for one in kind)
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda item: comparable(item, kind.elementType))
    if isinstance(kind, T.MapType):
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.struct(
                comparable(entry["key"], kind.keyType).alias("key"),
                comparable(entry["value"], kind.valueType).alias("value"),
            ),
        )
        return F.array_sort(entries)
    return value.cast("string")


def with_field_ids(frame: "DataFrame", kind: StructType) -> "DataFrame":
    """The frame with the table's field ids, which Spark writes into its Parquet files."""
    ids = {field.name: field for field in kind.fields}
    columns = []
    for one in frame.schema:
        column = named(one.name)
        if one.name in ids:
            field = ids[one.name]
            column = column.cast(_with_ids(one.dataType, field.field_type))
            column = column.alias(one.name, metadata={FIELD_ID: field.field_id})
        columns.append(column)
    return frame.select(*columns)


def named(name: str) -> "Column":
    """A column by its name, whatever is in it."""
    from pyspark.sql import functions as F

    return F.col(f"`{name.replace('`', '``')}`")


def _change_type(counted: "DataFrame", key: Sequence[str]) -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    came = F.col(TIMES) > 0
    plain = F.when(came, F.lit(CAME[0])).otherwise(F.lit(WENT[0]))
    if not key:
        return plain
    row: Any = counted.schema[ROW].dataType
    kinds = {field.name: field.dataType for field in row}
    values = [F.col(ROW).getField(name) for name in key]
    same = Window.partitionBy(
        *(comparable(value, kinds[name]) for value, name in zip(values, key, strict=True))
    )
    alone = [F.sum(F.when(side, F.abs(TIMES)).otherwise(F.lit(0))).over(same) == 1 for side in (came, ~came)]
    known = [value.isNotNull() for value in values]
    updated = F.when(came, F.lit(CAME[1])).otherwise(F.lit(WENT[1]))
    return F.when(reduce(lambda one, other: one & other, known + alone), updated).otherwise(plain)


def _converted(value: "Column", then: IcebergType, now: IcebergType, kind: "DataType") -> "Column":
    from pyspark.sql import functions as F

    spark: Any = kind
    if then == now:
        return value
    if isinstance(then, StructType) and isinstance(now, StructType):
        older = {field.field_id: field for field in then.fields}
        members = []
        for field, member in zip(now.fields, spark, strict=True):
            was = older.get(field.field_id)
            converted = (
                F.lit(None).cast(member.dataType)
                if was is None
                else _converted(value.getField(was.name), was.field_type, field.field_type, member.dataType)
            )
            members.append(converted.alias(field.name))
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(then, ListType) and isinstance(now, ListType):
        return F.transform(value, _each(then.element_type, now.element_type, spark.elementType))
    if isinstance(then, MapType) and isinstance(now, MapType):
        key = _each(then.key_type, now.key_type, spark.keyType)
        item = _each(then.value_type, now.value_type, spark.valueType)
        entries = F.transform(F.map_entries(value), lambda one: F.struct(key(one["key"]), item(one["value"])))
        return F.map_from_entries(entries)
    return value.cast(kind)


def _each(then: IcebergType, now: IcebergType, kind: "DataType") -> "Callable[[Column], Column]":
    return lambda value: _converted(value, then, now, kind)


def _with_ids(kind: "DataType", iceberg: IcebergType) -> "DataType":
    """The type with the ids of fields inside of it."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType) and isinstance(iceberg, StructType):
        return T.StructType(
            [
                T.StructField(
                    one.name,
                    _with_ids(one.dataType, field.field_type),
                    one.nullable,
                    {FIELD_ID: field.field_id},
                )
                for one, field in zip(kind, iceberg.fields, strict=True)
            ]
        )
    if isinstance(kind, T.ArrayType) and isinstance(iceberg, ListType):
        return T.ArrayType(_with_ids(kind.elementType, iceberg.element_type), kind.containsNull)
    if isinstance(kind, T.MapType) and isinstance(iceberg, MapType):
        key, value = _with_ids(kind.keyType, iceberg.key_type), _with_ids(kind.valueType, iceberg.value_type)
        return T.MapType(key, value, kind.valueContainsNull)
    return kind


def _has(kind: "DataType", *wanted: type) -> bool:
    """Whether a type is, or has inside of it, one of some types."""
    inner: Any = kind
    if isinstance(kind, wanted):
        return True
    if hasattr(inner, "fields"):
        return any(_has(field.dataType, *wanted) for field in inner.fields)
    parts = (getattr(inner, name, None) for name in ("elementType", "keyType", "valueType"))
    return any(_has(part, *wanted) for part in parts if part is not None)
