"""Tables with a change data feed: cdc files, inferred changes, no-op merges, gaps, switches, new columns."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tests.builders.hostile.place import Place, hostile

CDF = "'delta.enableChangeDataFeed'='true'"
MERGE = (
    "MERGE INTO {t} t USING (SELECT * FROM VALUES {rows} AS v(id, s, p)) u ON t.id = u.id "
    "WHEN MATCHED AND u.s = 'gone' THEN DELETE WHEN MATCHED AND t.s <> u.s THEN UPDATE SET s = u.s "
    "WHEN NOT MATCHED THEN INSERT (id, s, p) VALUES (u.id, u.s, u.p)"
)


def merged(*rows: str) -> str:
    return MERGE.replace("{rows}", ", ".join(rows))


def every_change(at: Place, partitioned: str) -> None:
    """Inserts, updates, deletes, merges (one of them changes nothing), a new column, OPTIMIZE, an overwrite."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT, s STRING, p STRING) USING delta {partitioned} TBLPROPERTIES ({CDF})",
        "INSERT INTO {t} SELECT id, concat('row ', id), CASE WHEN id < 4 THEN 'a b' END FROM range(6)",  # 1
        "UPDATE {t} SET s = 'updated' WHERE id IN (1, 5)",  # 2
        "DELETE FROM {t} WHERE id = 2",  # 3
        merged("(1, 'gone', 'x')", "(3, 'merged', 'x')", "(7, 'new', 'n%')"),  # 4
        merged("(3, 'merged', 'x')", "(7, 'new', 'n%')"),  # 5: no row changes
        "ALTER TABLE {t} ADD COLUMNS (extra DOUBLE)",  # 6
        "INSERT INTO {t} VALUES (8, 'eight', 'a b', 8.5)",  # 7
        "OPTIMIZE {t}",  # 8
        "DELETE FROM {t} WHERE p = 'a b'",  # 9: whole files, where p is the partition
        "INSERT OVERWRITE {t} VALUES (9, 'over', NULL, NULL)",  # 10
    )


ONE_SCHEMA = "the client's kernel: `Start and end version schemas are different`"
RANGES = ((0, 10), (4, 5), (5, 5), (6, 9), (10, 10))


@hostile(versions=(5, 10), cdf=RANGES, client_cannot={"changes delta 0-10": ONE_SCHEMA})
def cdf_plain(at: Place) -> None:
    """Every kind of change, without partitions."""
    every_change(at, "")


@hostile(versions=(5, 10), cdf=RANGES, client_cannot={"changes delta 0-10": ONE_SCHEMA}, on_stores=True)
def cdf_partitioned(at: Place) -> None:
    """Every kind of change, in partitions: a delete of whole files has no cdc file."""
    every_change(at, "PARTITIONED BY (p)")


PEOPLE = ", ".join(f"('{n}', {n}, DATE'2020-01-0{n}')" for n in (1, 2, 3))


@hostile(versions=(3, 5), cdf=((0, 3), (2, 3), (5, 5)))
def cdf_table_cdf_enabled(at: Place) -> None:
    """As the upstream suite has it: three inserts, a delete, an update; CDF off at version 4, on again at 5."""
    at.sql(
        f"CREATE TABLE {{t}} (name STRING, age INT, birthday DATE) USING delta TBLPROPERTIES ({CDF})",
        f"INSERT INTO {{t}} SELECT /*+ REPARTITION(3) */ * FROM VALUES {PEOPLE}",
        "DELETE FROM {t} WHERE name = '3'",
        "UPDATE {t} SET birthday = DATE'2020-02-02' WHERE name = '2'",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed'='false')",
        f"ALTER TABLE {{t}} SET TBLPROPERTIES ({CDF})",
    )


@hostile(versions=(3,), cdf=((1, 3), (2, 2)))
def cdf_table_with_partition(at: Place) -> None:
    """As the upstream suite has it: adds, cdc files and a remove, by partition; version 0 has no feed."""
    at.sql(
        "CREATE TABLE {t} (name STRING, age INT, birthday DATE) USING delta PARTITIONED BY (birthday)",
        f"ALTER TABLE {{t}} SET TBLPROPERTIES ({CDF})",
    )
    at.sql(
        f"INSERT INTO {{t}} VALUES {PEOPLE}", "UPDATE {t} SET birthday = DATE'2020-03-03' WHERE name = '2'"
    )


@hostile(versions=(5,), on_stores=True)
def cdf_table_with_vacuum(at: Place) -> None:
    """As the upstream suite has it: the feed lists files that VACUUM took away."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT) USING delta TBLPROPERTIES ({CDF})",
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id FROM range(20)",
        "UPDATE {t} SET id = -1 WHERE id = 3",
        "UPDATE {t} SET id = -2 WHERE id = 4",
        "VACUUM {t} RETAIN 0 HOURS",
    )


@hostile(versions=(4, 5), cdf=((5, 5),))
def cdf_table_missing_log(at: Place) -> None:
    """As the upstream suite has it: a commit inside of the feed is gone; a checkpoint keeps the newest versions."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT) USING delta TBLPROPERTIES ({CDF}, 'delta.checkpointInterval'='4')",
        *(f"INSERT INTO {{t}} VALUES ({number})" for number in range(5)),
    )
    at.forget(2)


@hostile(
    versions=(6, 8),
    cdf=((0, 8), (3, 5)),
    client_cannot={"changes delta 0-8": ONE_SCHEMA, "changes delta 3-5": ONE_SCHEMA},
)
def add_columns_non_partitioned_cdf(at: Place) -> None:
    """As the upstream suite has it: columns are added between changes, the feed has the newest schema."""
    at.sql(
        f"CREATE TABLE {{t}} (c1 INT) USING delta TBLPROPERTIES ({CDF})",
        "INSERT INTO {t} VALUES (1), (2)",
        "ALTER TABLE {t} ADD COLUMNS (c2 INT)",
        "INSERT INTO {t} VALUES (3, 4)",
        "UPDATE {t} SET c2 = 5 WHERE c1 = 1",
        "ALTER TABLE {t} ADD COLUMNS (c3 FLOAT, c4 FLOAT)",
        "INSERT INTO {t} VALUES (5, 6, 0.1, 0.1), (6, NULL, 0.2, 0.2), (7, 8, NULL, NULL)",
        "DELETE FROM {t} WHERE c1 IN (2, 6)",
        "UPDATE {t} SET c3 = 0 WHERE c1 = 3 OR c2 = 8",
    )


@hostile(versions=(5,), cdf=((0, 5),), client_cannot={"changes delta 0-5": ONE_SCHEMA})
def add_columns_partitioned_cdf(at: Place) -> None:
    """As the upstream suite has it: partitions of a float and a text, null in both, columns added."""
    at.sql(
        "CREATE TABLE {t} (c1 INT, p1 FLOAT, p2 STRING) USING delta PARTITIONED BY (p1, p2) "
        f"TBLPROPERTIES ({CDF})",
        "INSERT INTO {t} VALUES (1, 0.5, 'a'), (2, NULL, 'b'), (3, 0.5, NULL), (4, NULL, NULL)",
        "ALTER TABLE {t} ADD COLUMNS (c2 STRING)",
        "UPDATE {t} SET c2 = 'new' WHERE c1 IN (1, 4)",
        "DELETE FROM {t} WHERE p1 IS NULL AND p2 IS NULL",
        "UPDATE {t} SET p2 = 'moved' WHERE c1 = 3",
    )


COMMITS = 60


@hostile(versions=(35, COMMITS), cdf=((0, COMMITS), (17, 42)))
def many_commits(at: Place) -> None:
    """Sixty small commits by deltalake, with its own cdc files and a checkpoint in between."""
    from deltalake import DeltaTable, Schema, write_deltalake

    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    switched = {"delta.enableChangeDataFeed": "true"}
    table = DeltaTable.create(at.location, Schema.from_arrow(schema), configuration=switched)
    for version in range(1, COMMITS + 1):
        table.update_incremental()
        if version % 10 == 0:
            table.delete(f"id = {version - 4}")
        elif version % 10 == 5:
            table.update(updates={"name": "'updated'"}, predicate=f"id < {version} AND id > {version - 3}")
        else:
            row = {
                "id": version,
                "name": f"name {version}",
                "at": datetime(2025, 1, 1, 0, version % 60, tzinfo=UTC),
            }
            write_deltalake(at.location, pa.Table.from_pylist([row], schema), mode="append")
        if version == 30:
            table.update_incremental()
            table.create_checkpoint()


@hostile(versions=(3, 4), cdf=((0, 4),))
def deltalake_changes(at: Place) -> None:
    """A feed by deltalake: merge, update and delete with its own cdc files, in partitions."""
    from deltalake import DeltaTable, write_deltalake

    def rows(*told: tuple[Any, ...]) -> pa.Table:
        columns = zip(*told, strict=True)
        return pa.table(dict(zip(("id", "s", "p"), map(list, columns), strict=True)))

    first = rows((1, "a", "x y"), (2, "b", "x y"), (3, "c", None), (4, "d", "z%"))
    switched = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(at.location, first, partition_by=["p"], configuration=switched)
    DeltaTable(at.location).update(updates={"s": "'updated'"}, predicate="id = 1")
    DeltaTable(at.location).delete("id = 3")
    news = rows((2, "merged", "x y"), (9, "new", "n"))
    merge = DeltaTable(at.location).merge(news, "t.id = u.id", source_alias="u", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(at.location, rows((10, "ten", "x y")), mode="append")
