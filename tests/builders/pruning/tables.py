"""Random Delta tables of a few files: their rows, and a log with statistics as Spark, delta-rs or nobody writes them.

The data files are not written: what prunes never reads them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from tests.builders.pruning.casts import DAY_US, date_text, float32, time_text
from tests.builders.pruning.truth import Column, Row

NAN, INFINITE = float("nan"), float("inf")
FIRST_DAY, LAST_DAY = -719162, 2932896  # 0001-01-01 and 9999-12-31
NEW_YEAR_US = 1_577_836_800_000_000  # 2020
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "é",
    "z'\"\\\n%_",
    "null",
    "5",
    "2020-01-01",
    "zz\ufffd",
    "\U0001f600",
    "\x00",
]
LONG_TEXTS = [
    "a" * 31 + ending
    for ending in ("ab", "a\x7fx", "a\ufffdx", "a\U0001f600x", "a" * 40, "\U0001f600\U0001f600x")
]
# Few different values, so that comparisons meet; and the ends of each type.
POOLS: dict[str, Sequence[Any]] = {
    "byte": [-128, -2, -1, 0, 1, 2, 5, 127],
    "short": [-32768, -2, 0, 1, 5, 32767],
    "integer": [-(2**31), -3, -2, -1, 0, 1, 2, 3, 5, 16777217, 2**31 - 1],
    "long": [-(2**63), -5, -1, 0, 1, 5, 2**40, 2**53, 2**53 + 1, 2**63 - 1],
    "float": [
        float32(one) for one in (-INFINITE, -1e38, -0.5, -0.0, 0.0, 0.1, 0.5, 1, 5, 16777216, INFINITE, NAN)
    ],
    "double": [
        -INFINITE,
        -1e300,
        -0.5,
        -0.0,
        0.0,
        1e-320,
        0.1,
        float32(0.1),
        0.5,
        1.0,
        5.0,
        2.0**53,
        INFINITE,
        NAN,
    ],
    "decimal(10,2)": [
        Decimal(one) for one in ("-99999999.99", "-0.01", "0.00", "0.01", "1.25", "5.00", "99999999.99")
    ],
    "decimal(38,10)": [
        Decimal(one)
        for one in ("-1234567890123456789012345678.0123456789", "0E-10", "0.1000000000", "5.0000000000")
    ],
    "string": TEXTS + LONG_TEXTS,
    "boolean": [False, True],
    "binary": [b"", b"a"],
    "date": [FIRST_DAY, -719000, -1, 0, 18262, 18263, 18264, LAST_DAY],
    "timestamp": [FIRST_DAY * DAY_US + DAY_US, -1500, -1, 0, 999, 1001]
    + [
        NEW_YEAR_US + step
        for step in (-1, 0, 1, 999, 1000, 123_456, DAY_US // 3, DAY_US, 3 * DAY_US, 9 * DAY_US)
    ],
    "timestamp_ntz": [FIRST_DAY * DAY_US + DAY_US, -1500, -1, 0, 999]
    + [NEW_YEAR_US + step for step in (-1, 0, 1, 1000, 123_456, DAY_US, 3 * DAY_US)],
}
PLAIN = {
    "b": "byte",
    "sh": "short",
    "i": "integer",
    "l": "long",
    "f": "float",
    "d": "double",
    "dec": "decimal(10,2)",
}
PLAIN |= {
    "big": "decimal(38,10)",
    "s": "string",
    "Flag": "boolean",
    "bin": "binary",
    "da": "date",
    "ts": "timestamp",
}
PLAIN |= {"nt": "timestamp_ntz", "n.i": "integer", "ü x": "string"}
NESTED: dict[str, Any] = {
    "n": {"x": "integer", "y": "string", "deep": {"v": "double", "Da": "date"}, "i": "integer"}
}
PARTITIONS = {"pi": "integer", "ps": "string", "pd": "date", "pt": "timestamp", "pn": "timestamp_ntz"}
PARTITIONS |= {"pf": "float", "px": "double", "pc": "decimal(10,2)", "pb": "boolean"}
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
FEATURES = ["deletionVectors", "timestampNtz"]


@dataclass(frozen=True)
class File:
    """A data file: all of its rows, and which of them a deletion vector leaves."""

    rows: tuple[Row, ...]
    live: tuple[Row, ...]
    add: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    files: tuple[File, ...]

    def write(self, location: Path) -> None:
        """The table's log, with everything in one commit."""
        fields = [_field(name, kind) for name, kind in (PLAIN | NESTED | self._partitions()).items()]
        schema = json.dumps({"type": "struct", "fields": fields})
        features = {"readerFeatures": FEATURES, "writerFeatures": FEATURES}
        metadata = {"id": "t", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
        metadata |= {"schemaString": schema, "partitionColumns": list(self._partitions())}
        actions: list[Mapping[str, Any]] = [
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
            {"metaData": metadata},
            *({"add": file.add} for file in self.files),
        ]
        log = location / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def _partitions(self) -> dict[str, str]:
        return {column.path[0]: column.type for column in self.columns if column.is_partition}


def a_table(random: Random, files: int = 6) -> Table:
    """A table with a few partition columns and files of up to five rows."""
    partitions = random.sample(sorted(PARTITIONS), random.randint(0, 3))
    columns = [Column((name,), kind) for name, kind in PLAIN.items()] + list(_leaves(NESTED, ()))
    columns += [Column((name,), PARTITIONS[name], is_partition=True) for name in partitions]
    return Table(tuple(columns), tuple(_file(random, number, columns) for number in range(files)))


def _leaves(struct: Mapping[str, Any], above: tuple[str, ...]) -> Sequence[Column]:
    found: list[Column] = []
    for name, kind in struct.items():
        path = (*above, name)
        found += _leaves(kind, path) if isinstance(kind, dict) else [Column(path, kind)]
    return found


def _field(name: str, kind: Any) -> dict[str, Any]:
    if isinstance(kind, dict):
        kind = {"type": "struct", "fields": [_field(inner, of) for inner, of in kind.items()]}
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _file(random: Random, number: int, columns: Sequence[Column]) -> File:
    count = random.choice((0, 1, 2, 3, 5))
    # Each file has a few values of each column, so that files differ.
    few = {
        column.path: random.choices(POOLS[column.type], k=random.choice((1, 1, 2, 4))) for column in columns
    }
    nulls = {column.path: random.choice((0.0, 0.0, 0.3, 1.0)) for column in columns}
    values = {
        column.path: _values(random, column, few[column.path], nulls[column.path], count)
        for column in columns
    }
    rows = [{path: given[place] for path, given in values.items()} for place in range(count)]
    for place, row in enumerate(rows):
        row[("row",)] = number * 100 + place
        if random.random() < 0.1:
            row.update({path: None for path in row if path[0] == "n" and len(path) > 1})
    deleted = random.sample(range(count), random.randint(0, count)) if random.random() < 0.3 else []
    add: dict[str, Any] = {
        "path": f"part-{number}.parquet",
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "partitionValues": {
            column.path[0]: _partition_text(values[column.path][0] if count else None, column.type, random)
            for column in columns
            if column.is_partition
        },
    }
    if deleted:
        add["deletionVector"] = {**VECTOR, "cardinality": len(deleted)}
    stats = _stats(
        random, rows, [column for column in columns if not column.is_partition], wide=bool(deleted)
    )
    if stats is not None:
        add["stats"] = json.dumps(stats)
    return File(tuple(rows), tuple(row for place, row in enumerate(rows) if place not in deleted), add)


def _values(random: Random, column: Column, few: Sequence[Any], nulls: float, count: int) -> list[Any]:
    if not column.is_partition:
        return [None if random.random() < nulls else random.choice(few) for _ in range(count)]
    value = None if random.random() < 0.2 else few[0]
    # In a log the empty text is null; these characters would be escaped in a path, not here.
    return [None if value == "" else value] * count


def _partition_text(value: Any, kind: str, random: Random) -> str | None:
    if value is None:
        return random.choice((None, ""))
    if kind == "boolean":
        return str(value).lower()
    if kind == "date":
        return date_text(value)
    if kind in ("float", "double"):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(
            str(value), number_text(value, kind)
        )
    return time_text(value) if kind.startswith("timestamp") else str(value)


def number_text(value: float, kind: str) -> str:
    """The shortest text that is this float or double."""
    if kind == "double":
        return repr(value)
    return str(pa.scalar(value, pa.float32()).cast(pa.string()).as_py())


def _stats(
    random: Random, rows: Sequence[Row], columns: Sequence[Column], *, wide: bool
) -> dict[str, Any] | None:
    writer = random.choice(("spark", "old", "rust", "partial", "none"))
    if writer == "none":
        return None
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for column in columns:
        values = [row[column.path] for row in rows if row[column.path] is not None]
        if not (writer == "partial" and random.random() < 0.3):
            missing = len(rows) - len(values)
            if wide and 0 < missing < len(rows):
                missing = random.randint(1, len(rows) - 1)  # not more than "some" is known
            _put(nulls, column.path, missing)
        bounds = None if column.type == "binary" else _bounds(values, column.type, writer)
        if bounds is None or (writer == "partial" and random.random() < 0.3):
            continue
        if wide and random.random() < 0.3:
            bounds = (
                _bounds([*values, *random.choices(POOLS[column.type], k=2)], column.type, writer) or bounds
            )
        if not (writer == "partial" and random.random() < 0.3):
            _put(low, column.path, _bound_text(bounds[0], column.type, writer, random))
        _put(high, column.path, _bound_text(bounds[1], column.type, writer, random))
    said = {"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls}
    if writer == "partial":
        said.pop(random.choice([*said, "nothing"]), None)
    return said | ({"tightBounds": False} if wide else {})


def _put(struct: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        struct = struct.setdefault(name, {})
    struct[path[-1]] = value


def _bounds(values: Sequence[Any], kind: str, writer: str) -> tuple[Any, Any] | None:
    if not values:
        return None
    if kind == "string":
        low, high = min(values, key=str.encode), max(values, key=str.encode)
        return (low, high) if writer == "rust" else (low[:32], _cut_above(high, writer))
    if kind in ("float", "double"):
        numbers = [value for value in values if not math.isnan(value)]
        if len(numbers) < len(values) and writer != "rust":
            # Spark takes NaN for the greatest of all.
            return (min(numbers) if numbers else NAN), NAN
        return (min(numbers), max(numbers)) if numbers else None
    return min(values), max(values)


def _cut_above(text: str, writer: str) -> str | None:
    """The upper bound of a long text as Spark makes it: a prefix, and a character greater than what follows."""
    for end in range(32, len(text)):
        if writer == "old":
            # Its last character comes before those that take two places in Java's texts, and it did not see that.
            if text[end] < "\ufffd" or ord(text[end]) > 0xFFFF:
                return text[:end] + "\ufffd"
            continue
        for last in ("\x7f", "\U0010ffff"):
            if text[end] < last:
                return text[:end] + last
    return text


def _bound_text(value: Any, kind: str, writer: str, random: Random) -> Any:
    if value is None:
        return None
    if kind in ("float", "double") and not math.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[str(value)]
    if kind == "float":
        return float(number_text(value, kind)) if writer != "rust" else value
    if kind.startswith("decimal"):
        return float(value)
    if kind == "date":
        return date_text(value)
    if not kind.startswith("timestamp"):
        return value
    if writer == "rust":
        return time_text(value, "T") + ("Z" if kind == "timestamp" else "")
    if kind == "timestamp_ntz":
        return _to_milliseconds(value)
    hours = random.choice((0, 0, -8, 14))
    zone = "Z" if not hours else f"{'-' if hours < 0 else '+'}{abs(hours):02}:00"
    return _to_milliseconds(value + hours * 3_600_000_000) + zone


def _to_milliseconds(local_us: int) -> str:
    whole = local_us // 1000 * 1000
    return time_text(whole - whole % 1_000_000, "T") + f".{whole % 1_000_000 // 1000:03}"
