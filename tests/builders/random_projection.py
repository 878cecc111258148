"""Random Iceberg tables by partition specs that evolve, whose files have or lack their columns."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from tests.builders.iceberg_projection import ProjectedTable

DAY = date(2024, 2, 29)
# By type: values that are hard on texts, and the transforms that Iceberg has for the type beside identity.
POOLS: Mapping[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "boolean": ((True, False), ()),
    "int": ((-(2**31) + 8, -1, 0, 7, 2**31 - 1), ("bucket[3]", "truncate[10]")),
    "long": ((-(2**63) + 8, -1, 0, 2**53 + 1, 2**63 - 1), ("bucket[3]", "truncate[10]")),
    "float": ((0.5, -0.0, float("inf"), float("nan")), ()),
    "double": ((0.5, -0.0, -1e300, 5e-324, float("-inf"), float("nan")), ()),
    "decimal(10, 2)": (tuple(map(Decimal, ("0.00", "-9999999.85", "0.01"))), ("bucket[3]", "truncate[10]")),
    "decimal(38, 10)": (tuple(map(Decimal, ("1E-10", "-12345678901234567890.5000000000"))), ("bucket[3]",)),
    "date": ((DAY, date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)), ("month", "year", "day")),
    "timestamp": (
        (
            datetime.fromisoformat("2024-02-29T12:00:00.123456"),
            datetime.fromisoformat("1969-12-31T23:59:59.999999"),
        ),
        ("day", "hour", "bucket[3]"),
    ),
    "timestamptz": (
        (
            datetime(2024, 2, 29, 12, 0, 0, 123456, UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(1, 1, 1, tzinfo=UTC),
        ),
        ("day", "hour", "bucket[3]"),
    ),
    "string": (
        ("a b/c%=ü", "null", "__HIVE_DEFAULT_PARTITION__", " ", 'q"\\\n', "x", "y", ""),
        ("bucket[3]", "truncate[2]"),
    ),
    "binary": ((b"abc", b"\x00\xff", b""), ("bucket[3]", "truncate[2]")),
}
# What has no text is refused where files lack it: drawn less often, so that most tables are served.
RARE = ("binary", "timestamp", "float")
METRICS = ("none", "counts", "full")


def draw_table(random: Random, folder: Path) -> ProjectedTable:
    """A table of one to three states of its schema and spec, with some files each."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

    names = [f"c{number}" for number in range(random.randint(1, 3))]
    kinds = {name: _kind(random) for name in names}
    is_required = {name: random.random() < 0.3 for name in names}
    fields = [NestedField(1, "n", "int", required=False)]
    fields += [
        NestedField(
            number,
            name,
            IcebergType.handle_primitive_type(kinds[name], lambda one: one),
            required=is_required[name],
        )
        for number, name in enumerate(names, 2)
    ]
    table = ProjectedTable(
        folder,
        Schema(*fields),
        **{
            "format-version": random.choice(("1", "2")),
            "write.metadata.metrics.default": random.choice(METRICS),
        },
    )
    has_mapping = random.random() < 0.2
    if has_mapping:
        table.map_names()
    for state in range(random.randint(1, 3)):
        if state and random.random() < 0.2:
            was = random.choice(names)
            names[names.index(was)] = now = f"{was}_{state}"
            kinds[now], is_required[now] = kinds.pop(was), is_required.pop(was)
            table.rename(was, now)
        _evolve(random, table, names, kinds)
        for _ in range(random.randint(1, 3)):
            _add_file(
                random, table, names, kinds, is_required, has_ids=not has_mapping or random.random() < 0.5
            )
    return table


def _kind(random: Random) -> str:
    kind = random.choice(list(POOLS))
    return random.choice(list(POOLS)) if kind in RARE else kind


def _evolve(random: Random, table: ProjectedTable, names: list[str], kinds: Mapping[str, str]) -> None:
    spec, schema = table.table.spec(), table.table.schema()
    # PyIceberg cannot write the void partitions of a required column.
    removable = (
        field
        for field in spec.fields
        if str(field.transform) != "void" and not schema.find_field(field.source_id).required
    )
    without = [field.name for field in removable if random.random() < 0.3]
    taken = {schema.find_column_name(one.source_id) for one in spec.fields if one.name not in without}
    added = []
    for name in names:
        if name not in taken and random.random() < 0.7:
            transforms = POOLS[kinds[name]][1]
            other = random.choice(transforms) if transforms and random.random() < 0.25 else "identity"
            added.append((name, other))
    table.partition_by(*added, without=without)


def _add_file(
    random: Random,
    table: ProjectedTable,
    names: list[str],
    kinds: Mapping[str, str],
    is_required: Mapping[str, bool],
    *,
    has_ids: bool,
) -> None:
    schema = table.table.schema()
    by = {
        schema.find_column_name(field.source_id): str(field.transform)
        for field in table.table.spec().fields
        if str(field.transform) != "void"
    }
    count, lacking = random.randint(1, 3), []
    columns: dict[str, list[Any]] = {"n": [random.randint(0, 9) for _ in range(count)]}
    for name in names:
        pool = list(POOLS[kinds[name]][0]) + ([] if is_required[name] else [None])
        if name in by:
            columns[name] = [random.choice(pool)] * count
            is_lacking = by[name] == "identity" and random.random() < 0.5
        else:
            columns[name] = random.choices(pool, k=count)
            is_lacking = not is_required[name] and random.random() < 0.15
            if is_lacking:
                columns[name] = [None] * count
        if is_lacking:
            lacking.append(name)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    table.add_file(rows, lacking, has_ids=has_ids, has_statistics=random.random() < 0.8)
