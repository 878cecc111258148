"""Pruning by partition transforms against brute force: on random tables no file with a match is ever left out.

Files have their statistics in part only, or none: what partitions say has to do then. Partition values are made by
PyIceberg's transforms, and some as Iceberg made them before 0.10, rounded towards 1970.
"""

import operator
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_server.protocol.sql_predicate import parse_sql_predicates
from lakeshare_server.tables import open_index, read_iceberg, write_index
from lakeshare_server.tables.pruning import evaluate
from tests.builders.campaign import campaign_size
from tests.builders.iceberg_manifests import SNAPSHOT, a_told_table, an_entry

TABLES, PREDICATES = 12, 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIGNS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">": operator.gt, ">=": operator.ge}
UNIT_US = {"day": 86_400_000_000, "hour": 3_600_000_000}


def columns() -> dict[str, Any]:
    from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, StringType, TimestamptzType

    return {
        "i": IntegerType(),
        "n": LongType(),
        "s": StringType(),
        "m": DecimalType(9, 2),
        "d": DateType(),
        "at": TimestamptzType(),
    }


def a_row(random: Random) -> dict[str, Any]:
    days = random.choice((3, 40, 900))
    row = {
        "i": random.randint(-30, 30),
        "n": random.choice((1, 10**11)) * random.randint(-20, 20),
        "s": "".join(random.choices("aab\ud7ff\U0010ffffä", k=random.randint(0, 5))),
        "m": Decimal(random.randint(-2000, 2000)).scaleb(-2),
        "d": date(1970, 1, 1) + timedelta(days=random.randint(-days, days)),
        "at": EPOCH
        + timedelta(days=random.randint(-days, days), microseconds=random.choice((0, 1, -1, 7**12))),
    }
    return {name: None if random.random() < 0.1 else value for name, value in row.items()}


def plain(value: Any) -> Any:
    """A value the way Iceberg's transforms and bounds count it."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def some_transforms(random: Random) -> list[tuple[str, Any]]:
    from pyiceberg.transforms import parse_transform

    times = ("identity", "year", "month", "day", "hour", "bucket[4]")
    numbers = ("identity", "bucket[4]", "truncate[7]", "truncate[100]", "void")
    choices = {
        "at": times,
        "d": tuple(one for one in times if one != "hour"),
        "s": (*numbers, "truncate[2]", "truncate[1]"),
        "i": numbers,
        "n": numbers,
        "m": numbers,
    }
    names = random.sample(list(choices), random.randint(1, 2))
    return [(name, parse_transform(random.choice(choices[name]))) for name in names]


def partition_of(row: dict[str, Any], transforms: list[tuple[str, Any]], *, is_old: bool) -> tuple[Any, ...]:
    values = []
    for name, transform in transforms:
        value, unit = plain(row[name]), UNIT_US.get(str(transform))
        if is_old and name == "at" and unit and value is not None and value < 0:
            values.append(-(-value // unit))
        else:
            values.append(transform.transform(columns()[name])(value))
    return tuple(values)


def told_file(
    random: Random, folder: Path, number: int, rows: list[dict[str, Any]], partition: tuple[Any, ...]
) -> Any:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.typedef import Record

    nulls, lower, upper = {}, {}, {}
    for column_id, (name, kind) in enumerate(columns().items(), 1):
        values = [plain(row[name]) for row in rows if row[name] is not None]
        if random.random() < 0.3:
            nulls[column_id] = len(rows) - len(values)
        if values and random.random() < 0.2:
            lower[column_id] = to_bytes(kind, min(values))
        if values and random.random() < 0.2:
            upper[column_id] = to_bytes(kind, max(values))
    return an_entry(
        number + 1,
        file_path=str(folder / f"{number + 1}.parquet"),
        partition=Record(*partition),
        record_count=len(rows),
        null_value_counts=nulls,
        lower_bounds=lower,
        upper_bounds=upper,
    )


def a_table(random: Random, folder: Path) -> tuple[pa.RecordBatch, list[list[dict[str, Any]]]]:
    """A table as recipients' queries prune it, and the rows of its files in the order of the index."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    fields = [NestedField(place, name, kind) for place, (name, kind) in enumerate(columns().items(), 1)]
    schema, transforms = Schema(*fields), some_transforms(random)
    spec = PartitionSpec(
        *(
            PartitionField(schema.find_field(name).field_id, 1000 + place, transform, f"p{place}")
            for place, (name, transform) in enumerate(transforms)
        )
    )
    files, is_old = defaultdict(list), random.random() < 0.3
    for _ in range(60):
        row = a_row(random)
        files[partition_of(row, transforms, is_old=is_old)].append(row)
    folder.mkdir(parents=True, exist_ok=True)
    # Footers say whether files have the columns that they are partitioned by.
    for place in range(len(files)):
        pq.write_table(schema_to_pyarrow(schema).empty_table(), folder / f"{place + 1}.parquet")
    entries = [told_file(random, folder, place, rows, of) for place, (of, rows) in enumerate(files.items())]
    snapshot = read_iceberg(a_told_table(folder, schema, spec, entries), SNAPSHOT)
    [batch] = open_index(folder / "index", write_index(snapshot, folder / "index").digest).batches()
    rows = list(files.values())
    places = [
        int(path.split("/")[-1].removesuffix(".parquet")) - 1 for path in batch.column("path").to_pylist()
    ]
    return batch, [rows[place] for place in places]


def a_predicate(random: Random, rows: list[list[dict[str, Any]]]) -> tuple[str, Any]:
    """A predicate as SQL, and what says whether a row matches it."""
    name = random.choice(list(columns()))
    value = random.choice(random.choice(rows))[name]
    if value is None:
        return f"{name} IS NULL", lambda row: row[name] is None
    sign = random.choice(list(SIGNS))
    text = value.isoformat().replace("+00:00", "Z") if isinstance(value, date) else str(value)
    said = text if isinstance(value, int | Decimal) else f"'{text}'"
    return f"{name} {sign} {said}", lambda row: row[name] is not None and SIGNS[sign](row[name], value)


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(campaign_size(in_ci=1, in_campaign=8)))
def test_no_file_with_a_match_is_left_out(number: int, tmp_path: Path) -> None:
    """done-when 3 of the Iceberg door: year, month, day, hour, truncate, identity; bucket and void say nothing"""
    counts: Counter[str] = Counter()
    for seed in range(number * TABLES, (number + 1) * TABLES):
        random = Random(seed)
        batch, files = a_table(random, tmp_path / str(seed))
        for _ in range(PREDICATES):
            text, matches = a_predicate(random, files)
            maybe = evaluate(parse_sql_predicates([text]), batch)
            for place, (kept, sure) in enumerate(
                zip(maybe.true.to_pylist(), maybe.surely_all.to_pylist(), strict=True)
            ):
                found = [bool(matches(row)) for row in files[place]]
                said = f"seed {seed}: {text}\n{batch.slice(place, 1).to_pylist()}\n{files[place]}"
                assert kept or not any(found), f"a match was left out, {said}"
                assert not sure or all(found), f"not every row matches, {said}"
                counts["without a match"] += not any(found)
                counts["left out"] += not kept
    # Statistics are missing in most files, and half of the partitions are of other columns.
    assert counts["left out"] > counts["without a match"] * 0.2, counts


@pytest.mark.parametrize(
    ("name", "transform", "value", "low", "high"),
    [
        (
            "at",
            "day",
            15_706,
            datetime(2013, 1, 1, tzinfo=UTC),
            datetime(2013, 1, 1, 23, 59, 59, 999999, UTC),
        ),
        (
            "at",
            "hour",
            376_950,
            datetime(2013, 1, 1, 6, tzinfo=UTC),
            datetime(2013, 1, 1, 6, 59, 59, 999999, UTC),
        ),
        (
            "at",
            "month",
            516,
            datetime(2013, 1, 1, tzinfo=UTC),
            datetime(2013, 1, 31, 23, 59, 59, 999999, UTC),
        ),
        ("d", "year", 43, date(2013, 1, 1), date(2013, 12, 31)),
        ("d", "month", 0, date(1969, 12, 1), date(1970, 1, 31)),
        ("s", "truncate[2]", "ab", "ab", "ac"),
        ("s", "truncate[3]", "ab", "ab", "ab"),
        ("s", "truncate[1]", "\U0010ffff", "\U0010ffff", None),
        ("s", "truncate[1]", "\ud7ff", "\ud7ff", "\ue000"),
        ("i", "truncate[10]", -10, -10, -1),
        # Of -2147483648, as Java truncates it.
        ("i", "truncate[10]", 2147483646, None, None),
        ("m", "truncate[50]", Decimal("10.00"), Decimal("10.00"), Decimal("10.49")),
        ("n", "bucket[4]", 2, None, None),
        ("n", "void", None, None, None),
    ],
)
def test_a_partition_value_bounds_its_column_where_there_are_no_statistics(
    tmp_path: Path, name: str, transform: str, value: Any, low: Any, high: Any
) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform
    from pyiceberg.typedef import Record
    from pyiceberg.types import NestedField

    schema = Schema(NestedField(1, name, columns()[name]))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"))
    nothing: dict[str, Any] = {"null_value_counts": {}, "lower_bounds": {}, "upper_bounds": {}}
    entries = [
        an_entry(1, partition=Record(value), **nothing),
        an_entry(2, partition=Record(None), **nothing),
    ]
    files = read_iceberg(a_told_table(tmp_path, schema, spec, entries), SNAPSHOT).files
    assert [one[name] for one in files.column("min").to_pylist()] == [low, None]
    assert [one[name] for one in files.column("max").to_pylist()] == [high, None]
    # A null partition value stands for nothing but nulls, unless the transform forgets its values.
    is_telling = transform not in ("void", "bucket[4]")
    assert [one[name] for one in files.column("null_count").to_pylist()] == (
        [0, 20] if is_telling else [None] * 2
    )
