"""Random Iceberg tables whose values are hard on statistics, and random predicates on them as SQL and as JSON hints.

Dates are days, times microseconds since 1970.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from random import Random
from typing import Any

import pyarrow as pa

from tests.builders.pruning.casts import date_text, time_text
from tests.builders.pruning.questions import JSON_NAMES, KINDS, json_text
from tests.builders.pruning.tables import number_text
from tests.builders.spark_iceberg import SparkIceberg

WIDE = Context(prec=40)
INF, NAN = float("inf"), float("nan")
DAY_US = 86_400_000_000
# The type in Delta's words, in Arrow's, and values: ends, what is cut, what is rounded, what is before 1970.
POOLS: dict[str, tuple[str, pa.DataType, tuple[Any, ...]]] = {
    "i": ("integer", pa.int32(), (-(2**31), -7, -1, 0, 1, 9, 10, 2**31 - 1)),
    "l": ("long", pa.int64(), (-(2**63), -(2**53) - 1, -1, 0, 1, 2**53 + 1, 2**63 - 1)),
    "f": ("float", pa.float32(), (-INF, -1.5, -0.0, 0.1, NAN, NAN, NAN)),
    "g": ("double", pa.float64(), (-1e300, -0.0, 0.1, 5e-324, 1e300, INF, NAN, NAN, NAN)),
    "p": ("decimal(9,2)", pa.decimal128(9, 2), tuple(map(Decimal, ("-9999999.95", "-0.01", "0.00", "0.01", "128.00")))),
    "q": (
        "decimal(38,10)",
        pa.decimal128(38, 10),
        (Decimal(-(10**38) + 1).scaleb(-10, WIDE), Decimal("-1"), Decimal("1e-10"), Decimal("170")),
    ),
    "s": (
        "string",
        pa.string(),
        (
            *("", " ", "a", "a" * 22, "a" * 21 + "b", "ab\u00fc", "b\U0001f600c"),
            *("\U0010ffff\U0010ffffx", "\ud7ff!", "z%_'\\"),
        ),
    ),
    "d": ("date", pa.date32(), (-719162, -141428, -1, 0, 1, 19782, 2932896)),
    "at": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        (-62135596800000000, -1, -999, -1001, 0, 999, 1_001, 1709164799999999, 1709164800000000, 253402300799999999),
    ),
    "n": (
        "timestamp_ntz",
        pa.timestamp("us"),
        (-62135596800000000, -DAY_US - 1, -1, 0, 1, 1709164799999999, 1709164800000500, 253402300799999999),
    ),
    "b": ("boolean", pa.bool_(), (True, False)),
}  # fmt: skip
TRAPS = ("f", "f", "g", "g", "s", "at", "n")
SPARK_TYPES = {"integer": "INT", "long": "BIGINT"}
PARTITIONS = (
    "", "i", "s", "d", "at", "p", "b", "truncate(10, i)", "truncate(1, s)", "truncate(5, p)", "years(at)",
    "months(n)", "days(at)", "hours(n)", "months(d)", "bucket(2, s)", "truncate(3, s), days(d)",
)  # fmt: skip
MODES = ("none", "counts", "truncate(1)", "truncate(4)", "truncate(16)", "full")


@dataclass(frozen=True)
class Predicate:
    """One predicate as SQL, and as Spark's connector sends it where that has words for it."""

    sql: str
    hint: dict[str, Any] | None

    @property
    def json(self) -> str | None:
        """The hint's text."""
        return None if self.hint is None else json.dumps(self.hint)


def make_random_table(random: Random, iceberg: SparkIceberg, table: str) -> None:
    """Some commits of few rows each, with deletes, by random partitions and modes of metrics."""
    version, partition = random.choice((1, 2, 2, 3)), random.choice(PARTITIONS)
    modes = {
        f"write.metadata.metrics.column.{name}": random.choice(MODES)
        for name in random.sample(list(POOLS), 5)
    }
    modes["write.metadata.metrics.default"] = random.choice(MODES)
    modes |= {"format-version": str(version), "write.delete.mode": "merge-on-read"}
    if version == 1:
        modes["write.delete.mode"] = "copy-on-write"
    told = ", ".join(f"'{name}' = '{value}'" for name, value in modes.items())
    columns = ", ".join(
        f"{name} {SPARK_TYPES.get(kind, kind.upper())}" for name, (kind, _, _) in POOLS.items()
    )
    by = f"PARTITIONED BY ({partition})" if partition else ""
    iceberg.run(
        table,
        [
            f"CREATE TABLE {{t}} (id INT, {columns}, st STRUCT<i: INT, s: STRING>) USING iceberg {by} "
            f"TBLPROPERTIES ({told})"
        ],
    )
    for commit in range(4):
        rows = some_rows(random, first=100 * commit, count=random.randint(1, 5))
        iceberg.spark.createDataFrame(rows).coalesce(1).writeTo(iceberg.table(table)).append()
    iceberg.run(table, [f"DELETE FROM {{t}} WHERE id % 5 = {random.randint(0, 4)}"])


def some_rows(random: Random, first: int, count: int) -> pa.Table:
    """Rows of which each column has few different values, so that files differ."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(first, first + count), pa.int32())}
    for name, (_, kind, pool) in POOLS.items():
        columns[name] = pa.array(_values(random, pool, count), kind)
    inner = [_values(random, POOLS[name][2], count) for name in ("i", "s")]
    rows = [None if random.random() < 0.2 else {"i": i, "s": s} for i, s in zip(*inner, strict=True)]
    columns["st"] = pa.array(rows, pa.struct([("i", pa.int32()), ("s", pa.string())]))
    return pa.table(columns)


def _values(random: Random, pool: tuple[Any, ...], count: int) -> list[Any]:
    few = random.sample(pool, min(2, len(pool))) + ([None] if random.random() < 0.4 else [])
    return [random.choice(few) for _ in range(count)]


def predicates(random: Random, count: int) -> Iterator[Predicate]:
    """Random ones of up to two levels."""
    for _ in range(count):
        parts = [_leaf(random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        yield parts[0] if len(parts) == 1 else _joined(random.choice(("and", "or")), parts)


def _joined(word: str, parts: list[Predicate]) -> Predicate:
    hints = [part.hint for part in parts]
    sql = f" {word.upper()} ".join(f"({part.sql})" for part in parts)
    return Predicate(sql, None if None in hints else {"op": word, "children": hints})


def _leaf(random: Random) -> Predicate:
    # Half of them of columns whose statistics have traps.
    path = random.choice([*POOLS, "st.i", "st.s", *TRAPS * 2])
    kind, _, pool = POOLS[path.removeprefix("st.")]
    column = {"op": "column", "name": path, "valueType": KINDS[kind]} if kind in KINDS else None
    if random.random() < 0.15:
        made = Predicate(f"{path} IS NULL", column and {"op": "isNull", "children": [column]})
    else:
        value, sign = _constant(random, kind, pool), random.choice(("=", "=", "<", "<=", ">", ">="))
        hint = column and {
            "op": JSON_NAMES[sign],
            "children": [
                column,
                {"op": "literal", "value": json_text(value, kind), "valueType": KINDS[kind]},
            ],
        }
        made = Predicate(f"{path} {sign} {_sql_constant(value, kind)}", hint)
    if random.random() < 0.2:
        return Predicate(f"NOT ({made.sql})", made.hint and {"op": "not", "children": [made.hint]})
    return made


def _constant(random: Random, kind: str, pool: tuple[Any, ...]) -> Any:
    value = random.choice(pool)
    if kind in ("timestamp", "timestamp_ntz") and abs(value) < 10**16:
        return value + random.choice((0, 0, 1, -1, 500, -500))
    return value


def _sql_constant(value: Any, kind: str) -> str:
    if kind in ("float", "double"):
        names = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
        return f"CAST('{names.get(str(value), number_text(value, kind))}' AS {kind.upper()})"
    if kind == "date":
        return f"DATE '{date_text(value)}'"
    if kind.startswith("timestamp"):
        return f"{kind.upper()} '{time_text(value)}'"
    if kind == "string":
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if kind.startswith("decimal"):
        return f"{value:f}BD"
    return (
        f"{value}L" if kind == "long" and value > -(2**63) else f"({value})" if kind == "long" else str(value)
    )
