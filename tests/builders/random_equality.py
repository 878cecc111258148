"""Random Iceberg tables with equality deletes: many types of keys, partition specs, files that lack columns.

And which rows of a table the server's reader takes for deleted.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.deletes import deletion_vectors, targets_of
from lakeshare_server.tables.iceberg.equality_deletes import rows_deleted_by_equality
from lakeshare_server.tables.iceberg.manifests import live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata
from tests.builders.deletion_vector import positions
from tests.builders.equality_tables import Column, EqualityTable, statistics_of

NAN = float("nan")
INNER = (Column(21, "a"), Column(22, "b", "string"))
BOX = Column(20, "box", fields=INNER)
COLUMNS = (
    Column(1, "id"),
    Column(2, "name", "string"),
    Column(3, "day", "date"),
    Column(4, "amount", "decimal(9, 2)"),
    Column(5, "ratio", "double"),
    Column(6, "at", "timestamptz"),
    Column(7, "flag", "boolean"),
    Column(8, "grade", "long", default=3),
    BOX,
)
SPECS = (
    {"spec-id": 0, "fields": []},
    {"spec-id": 1, "fields": [{"source-id": 3, "field-id": 1000, "transform": "identity", "name": "day"}]},
    {"spec-id": 2, "fields": [{"source-id": 5, "field-id": 1001, "transform": "identity", "name": "ratio"}]},
    {"spec-id": 3, "fields": [{"source-id": 2, "field-id": 1002, "transform": "void", "name": "name"}]},
    {
        "spec-id": 4,
        "fields": [
            {"source-id": 4, "field-id": 1003, "transform": "identity", "name": "amount"},
            {"source-id": 2, "field-id": 1004, "transform": "bucket[3]", "name": "by_name"},
        ],
    },
)  # fmt: skip
POOLS: Mapping[int, Sequence[Any]] = {
    1: (0, 1, 2, 3, 2**31 - 1, None),
    2: ("", "a", "aa", "b", "\U0010ffff", None),
    3: (-1, 0, 1, None),
    4: (Decimal("-1.00"), Decimal("0.00"), Decimal("9.99"), None),
    5: (0.0, -0.0, NAN, 1.5, None),
    6: (-1, 0, 1709164799999999, None),
    7: (True, False, None),
    8: (3, 4, None),
    9: ("x", "y", None),
    21: (1, 2, None),
    22: ("p", None),
}


def a_random_table(dice: random.Random, folder: Path) -> EqualityTable:
    """A table without files."""
    folder.mkdir(parents=True)
    dropped = [Column(9, "gone", "string")]
    return EqualityTable(folder, COLUMNS, SPECS, dropped, version=dice.choice([2, 2, 3]))


def random_versions(dice: random.Random, table: EqualityTable) -> Iterator[str]:
    """Locations of the metadata of a table that grows, and loses files again."""
    every = (*COLUMNS, *table.dropped)
    keys = [column for column in every if column is not BOX]
    for number in range(1, dice.randint(3, 5)):
        for _ in range(dice.randint(number == 1, 3)):
            own = [column for column in every if dice.random() < 0.85] or list(COLUMNS)
            if BOX in own and dice.random() < 0.3:
                own[own.index(BOX)] = Column(20, "box", fields=INNER[:1])
            spec_id, partition = random_partition(dice)
            same = {1: {3: partition[:1]}, 2: {5: partition[:1]}, 4: {4: partition[:1]}}.get(spec_id, {})
            values = {column: value for column, [value] in same.items()}
            rows = [random_row(dice, own) | values for _ in range(dice.randint(1, 25))]
            statistics = statistics_of(own, rows) if dice.random() < 0.6 else {}
            table.add_rows(
                rows, number, columns=own, narrow=frozenset(one for one in (1, 4, 5) if dice.random() < 0.3),
                spec_id=spec_id, partition=partition, statistics=statistics,
            )  # fmt: skip
        for _ in range(dice.randint(0, 3)):
            by = dice.sample(keys, dice.choice([1, 1, 2, 3]))
            ids = tuple(column.id for column in by)
            if dice.random() < 0.2:
                by, ids = [*by[1:], BOX], (*ids[1:], dice.choice([21, 22]))
            deleted_keys = [random_row(dice, by) for _ in range(dice.choice([1, 2, 40]))]
            spec_id, partition = random_partition(dice)
            table.delete_keys(by, deleted_keys, number, ids=ids, spec_id=spec_id, partition=partition)
        if dice.random() < 0.4:
            file = dice.choice(table.data)
            table.delete_positions(file, [dice.randrange(len(file.rows))], number)
        if table.version == 3 and dice.random() < 0.4:
            file = dice.choice(table.data)
            if not any(one.vector_of == file.path for one in table.deletes):
                table.delete_by_vector(file, [dice.randrange(len(file.rows))], number)
        for files in (table.data, table.deletes):
            if len(files) > 1 and dice.random() < 0.2:
                files.pop(dice.randrange(len(files)))
        yield table.commit()


def random_row(dice: random.Random, columns: Sequence[Column]) -> dict[int, Any]:
    return {
        column.id: random_row(dice, column.fields) if column.fields else dice.choice(POOLS[column.id])
        for column in columns
        if not column.fields or dice.random() < 0.8
    }


def random_partition(dice: random.Random) -> tuple[int, tuple[Any, ...]]:
    spec_id = dice.choice([0, 0, 1, 1, 2, 3, 4])
    return spec_id, {
        0: (),
        1: (dice.choice(POOLS[3]),),
        2: (dice.choice(POOLS[5]),),
        3: (None,),
        4: (dice.choice(POOLS[4]), dice.choice([0, 1])),
    }[spec_id]


def deleted_rows(location: str, stores: Stores) -> dict[str, list[int]]:
    """All deleted rows of a table, by the paths of their files."""
    snapshot_id = json.loads(Path(location).read_text())["current-snapshot-id"]
    table, snapshot = open_metadata(stores, location, snapshot_id)
    live = live_files(stores, snapshot, "/table")
    targets = targets_of(table, live.data)
    by_equality = rows_deleted_by_equality(
        stores, table, snapshot, live.data, targets, live.deletes, "/table"
    )
    vectors = deletion_vectors(stores, targets, live.deletes, "/table", by_equality)
    found = {}
    for number, vector in vectors.items():
        found[targets.files[number].path] = positions(vector.content).tolist()
        assert vector.cardinality == len(found[targets.files[number].path])
    return found
