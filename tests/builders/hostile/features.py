"""Tables with features of writers and with all kinds of statistics: nothing of it may get in a reader's way."""

from tests.builders.hostile.place import Place, hostile


@hostile(versions=(2, 3), cdf=((0, 3),))
def row_tracking(at: Place) -> None:
    """Row tracking on: every file has a base row id, and rewritten files carry the ids of their rows."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRING) USING delta TBLPROPERTIES "
        "('delta.enableRowTracking'='true', 'delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} SELECT id, concat('row ', id) FROM range(5)",
        "UPDATE {t} SET s = 'updated' WHERE id = 2",
        "INSERT INTO {t} VALUES (9, 'nine')",
    )


@hostile(versions=(1, 5))
def row_tracking_later(at: Place) -> None:
    """Row tracking switched on after the first files: a commit gives them their ids."""
    at.sql(
        "CREATE TABLE {t} (id INT) USING delta",
        "INSERT INTO {t} VALUES (1), (2)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking'='true')",
        "INSERT INTO {t} VALUES (3)",
    )


@hostile(versions=(1, 3))
def generated_columns(at: Place) -> None:
    """Generated (also as the partition), identity and default columns, and CHECK constraints."""
    at.sql(
        "CREATE TABLE {t} (id BIGINT GENERATED ALWAYS AS IDENTITY, day DATE, n INT DEFAULT 7, "
        "year INT GENERATED ALWAYS AS (year(day))) USING delta PARTITIONED BY (year) "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults'='supported')",
        "INSERT INTO {t} (day) VALUES (DATE'2020-02-29'), (DATE'2021-01-01')",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (n > 0)",
        "INSERT INTO {t} (day, n) VALUES (NULL, 8)",
    )


@hostile(versions=(2, 3), on_stores=True)
def clustered(at: Place) -> None:
    """Liquid clustering: no partitions, a domain in the log, files that name who clustered them."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRING) USING delta CLUSTER BY (s, id)",
        "INSERT INTO {t} SELECT id, concat('row ', id % 3) FROM range(9)",
        "INSERT INTO {t} SELECT id, concat('row ', id % 3) FROM range(9)",
        "OPTIMIZE {t}",
    )


@hostile(versions=(1,))
def no_statistics(at: Place) -> None:
    """No column is indexed; files tell at most how many rows they have."""
    at.sql(
        "CREATE TABLE {t} (id INT, p INT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.dataSkippingNumIndexedCols'='0')",
        "INSERT INTO {t} VALUES (1, 1), (2, 2), (3, NULL)",
    )


@hostile(versions=(1,))
def no_statistics_at_all(at: Place) -> None:
    """Files without a word about their rows."""
    at.session.conf.set("spark.databricks.delta.stats.collect", "false")
    at.sql("CREATE TABLE {t} (id INT) USING delta", "INSERT INTO {t} VALUES (1), (2)")


@hostile(versions=(1, 3))
def some_statistics(at: Place) -> None:
    """Named columns are indexed, one of them nested; long strings are cut; the first file knows less."""
    at.sql(
        "CREATE TABLE {t} (a INT, s STRING, n STRUCT<x: INT, y: INT>) USING delta "
        "TBLPROPERTIES ('delta.dataSkippingStatsColumns'='n.x')",
        "INSERT INTO {t} VALUES (1, repeat('long', 20), named_struct('x', 1, 'y', 2))",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.dataSkippingStatsColumns'='a,s,n.x')",
        "INSERT INTO {t} VALUES (2, repeat('\\U0010FFFF', 40), NULL), (3, repeat('z', 33), NULL)",
    )


@hostile(versions=(0,))
def never_written(at: Place) -> None:
    """A schema and no files, not even removed ones."""
    at.sql("CREATE TABLE {t} (id INT, s STRUCT<x: ARRAY<DATE>>, p STRING) USING delta PARTITIONED BY (p)")


@hostile(versions=(1, 2), cdf=((0, 2),))
def all_deleted(at: Place) -> None:
    """Every row deleted, and with it every file."""
    at.sql(
        "CREATE TABLE {t} (id INT) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} VALUES (1), (2)",
        "DELETE FROM {t}",
    )


@hostile(versions=(1, 3))
def schema_grown(at: Place) -> None:
    """Columns added at the end, in the middle, in front and in depth: older files do not have them."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRUCT<x: INT>, a ARRAY<STRUCT<k: INT>>) USING delta",
        "INSERT INTO {t} VALUES (1, named_struct('x', 1), array(named_struct('k', 1)))",
        "ALTER TABLE {t} ADD COLUMNS "
        "(first DATE FIRST, middle STRING AFTER id, s.y STRING, a.element.l INT, last DOUBLE)",
        "INSERT INTO {t} VALUES (DATE'2020-01-01', 2, 'm', named_struct('x', 2, 'y', 'y'), "
        "array(named_struct('k', 2, 'l', 3)), 1.5)",
    )


@hostile(versions=(3,))
def table_reader_version_increased(at: Place) -> None:
    """As the upstream suite has it: reader version 2 from commit 2 on, without any mapping."""
    at.sql("CREATE TABLE {t} (id INT) USING delta", "INSERT INTO {t} VALUES (1)")
    at.commit(2, [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}])
    at.sql("INSERT INTO {t} VALUES (2)")


@hostile(versions=(2,))
def other_codecs(at: Place) -> None:
    """Files of several codecs in one table, as the upstream suite's test_gzip has one."""
    at.sql("CREATE TABLE {t} (a BOOLEAN, b INT, c STRING) USING delta")
    for codec in ("gzip", "zstd"):
        at.session.conf.set("spark.sql.parquet.compression.codec", codec)
        at.sql("INSERT INTO {t} VALUES (true, 1, 'Hi')")
