"""Tables with column mapping: by name and by id, renamed, dropped, added again, partitioned, with vectors and CDF."""

from tests.builders.hostile.place import DELETION_VECTORS, MAPPED, Place, hostile

BY_NAME = "'delta.columnMapping.mode'='name'"
BY_ID = "'delta.columnMapping.mode'='id'"


def evolve(at: Place, mode: str) -> None:
    """A table partitioned by a mapped column whose columns are renamed, dropped and come back under old names."""
    at.sql(
        "CREATE TABLE {t} (id INT, `first name` STRING, born DATE, inner STRUCT<a: INT, b: STRING>, p STRING) "
        f"USING delta PARTITIONED BY (p) TBLPROPERTIES ({mode})",
        "INSERT INTO {t} VALUES (1, 'Ann', DATE'2000-01-01', named_struct('a', 1, 'b', 'x'), 'a b'),"
        "(2, NULL, NULL, NULL, NULL)",
        "ALTER TABLE {t} RENAME COLUMN `first name` TO name",
        "ALTER TABLE {t} RENAME COLUMN p TO `part of`",
        "ALTER TABLE {t} RENAME COLUMN inner.a TO c",
        "ALTER TABLE {t} DROP COLUMN born",
        "INSERT INTO {t} VALUES (3, 'Cid', named_struct('c', 3, 'b', 'z'), 'a b')",
        # Under the name of the dropped column, and under that of a renamed one: other columns, other files.
        "ALTER TABLE {t} ADD COLUMNS (born STRING, `first name` INT)",
        "INSERT INTO {t} VALUES (4, 'Dora', named_struct('c', 4, 'b', 'w'), 'c', 'when?', 44)",
    )


@hostile(versions=(1, 8), needs=MAPPED)
def cm_name(at: Place) -> None:
    """By name: columns renamed (also the partition's, also a nested one), dropped, added under old names."""
    evolve(at, BY_NAME)


@hostile(versions=(6, 8), needs=MAPPED)
def cm_id(at: Place) -> None:
    """By id: the same changes; files are read by their field ids."""
    evolve(at, BY_ID)


@hostile(versions=(1, 2, 5), needs_at={2: MAPPED, 5: MAPPED})
def cm_upgraded(at: Place) -> None:
    """Mapping switched on later: older files and partition folders have logical names for ever."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRING, p INT) USING delta PARTITIONED BY (p)",
        "INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', NULL)",
        f"ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.minReaderVersion'='2','delta.minWriterVersion'='5',{BY_NAME})",
        "ALTER TABLE {t} RENAME COLUMN s TO `a,b;{}=`",
        "ALTER TABLE {t} RENAME COLUMN p TO q",
        "INSERT INTO {t} VALUES (3, 'c', 2)",
    )


@hostile(versions=(1,), needs=MAPPED, on_stores=True)
def cm_odd_names(at: Place) -> None:
    """Names that only a mapping allows: blanks, commas, braces, quotes, dots, unicode, near-twins, and nested."""
    columns = [
        "a b",
        "c,d;e",
        "{f}=(g)",
        'say "hi"',
        "it's",
        "x.y",
        "ünï 漢",
        "100%",
        "tab\there",
        "#",
        "$ref",
    ]
    fields = ", ".join(f"`{name}` INT" for name in columns)
    at.sql(
        f"CREATE TABLE {{t}} ({fields}, `s t` STRUCT<`u v`: INT, `w.x`: ARRAY<STRUCT<`y,z`: STRING>>>, "
        "m MAP<STRING, STRUCT<`k k`: INT>>, `part = %` STRING) "
        f"USING delta PARTITIONED BY (`part = %`) TBLPROPERTIES ({BY_NAME})",
        f"INSERT INTO {{t}} SELECT {', '.join(map(str, range(len(columns))))}, "
        "named_struct('u v', 7, 'w.x', array(named_struct('y,z', 'deep'))), "
        "map('key', named_struct('k k', 8)), explode(array('p%20', 'q=r', 's/t', NULL))",
    )


@hostile(versions=(2, 6), cdf=((0, 3), (5, 6)), needs=(*DELETION_VECTORS, *MAPPED))
def dv_and_cm_table(at: Place) -> None:
    """Vectors and mapping by name together, partitioned, with CDF; a column is renamed between two ranges."""
    at.sql(
        "CREATE TABLE {t} (id INT, rand INT, partition_col INT) USING delta PARTITIONED BY (partition_col) "
        f"TBLPROPERTIES ({BY_NAME}, 'delta.enableDeletionVectors'='true', 'delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} SELECT id, id * 37 % 80, id % 2 FROM range(10)",
        "DELETE FROM {t} WHERE id IN (1, 6)",
        "UPDATE {t} SET rand = -1 WHERE id = 4",
        "ALTER TABLE {t} RENAME COLUMN rand TO `random number`",
        "INSERT INTO {t} VALUES (20, 20, 3)",
        "DELETE FROM {t} WHERE `random number` = 20",
    )


@hostile(versions=(1,), needs=MAPPED)
def table_with_cm_name(at: Place) -> None:
    """As the upstream suite has it: three rows of a day and an instant."""
    _dates(at, BY_NAME)


@hostile(versions=(1,), needs=MAPPED)
def table_with_cm_id(at: Place) -> None:
    """As the upstream suite has it, mapped by id."""
    _dates(at, BY_ID)


def _dates(at: Place, mode: str) -> None:
    at.sql(
        f"CREATE TABLE {{t}} (date DATE, eventTime TIMESTAMP) USING delta TBLPROPERTIES ({mode},"
        "'delta.minReaderVersion'='2','delta.minWriterVersion'='5')",
        "INSERT INTO {t} VALUES (DATE'2021-04-28', TIMESTAMP'2021-04-28 06:32:22.421'),"
        "(DATE'2021-04-28', TIMESTAMP'2021-04-28 06:32:02.07'), (NULL, NULL)",
    )


@hostile(versions=(2,), needs=MAPPED)
def iceberg_compat(at: Place) -> None:
    """Made to be read by Iceberg, too: mapped by name, with ids inside of lists and maps, and without UniForm."""
    at.sql(
        "CREATE TABLE {t} (id INT, a ARRAY<STRUCT<x: INT>>, m MAP<STRING, ARRAY<TIMESTAMP>>, p DATE) USING delta "
        f"PARTITIONED BY (p) TBLPROPERTIES ('delta.enableIcebergCompatV2'='true', {BY_NAME},"
        "'delta.enableDeletionVectors'='false')",
        "INSERT INTO {t} VALUES "
        "(1, array(named_struct('x', 1)), map('k', array(TIMESTAMP'2020-01-01')), DATE'2020-01-01'), "
        "(3, array(), NULL, DATE'2020-01-01')",
        "INSERT INTO {t} VALUES (2, NULL, map(), NULL)",
    )
