"""Tables of awkward types: extremes of every primitive, zoneless time, widened types, variant, deep nesting."""

from tests.builders.hostile.place import Place, hostile

PRIMITIVES = (
    "i BYTE, sh SHORT, n INT, l LONG, f FLOAT, d DOUBLE, b BOOLEAN, s STRING, bin BINARY, day DATE, at TIMESTAMP, "
    "dec0 DECIMAL(38,0), dec38 DECIMAL(38,38), dec2 DECIMAL(5,2)"
)
EXTREMES = (
    "(-128, -32768, -2147483648, -9223372036854775808, FLOAT('-Infinity'), DOUBLE('-Infinity'), false, '', X'',"
    " DATE'0001-01-01', TIMESTAMP'0001-01-01 00:00:00', -99999999999999999999999999999999999999BD,"
    " CAST('-0.99999999999999999999999999999999999999' AS DECIMAL(38,38)), -999.99)",
    "(127, 32767, 2147483647, 9223372036854775807, FLOAT('Infinity'), DOUBLE('Infinity'), true,"
    " '\\u0001 \\\\ \" \\' \\n 漢字 \\U0001F600', X'00FF0A', DATE'9999-12-31', TIMESTAMP'9999-12-31 23:59:59.999999',"
    " 99999999999999999999999999999999999999BD,"
    " CAST('0.99999999999999999999999999999999999999' AS DECIMAL(38,38)), 999.99)",
    "(0, 0, 0, 0, FLOAT('NaN'), DOUBLE('NaN'), NULL, 'x', X'61', DATE'1970-01-01',"
    " TIMESTAMP'1969-12-31 23:59:59.999999',"
    " 0, CAST(0 AS DECIMAL(38,38)), 0)",
    "(1, 1, 16777217, 9007199254740993, FLOAT('1.17549435E-38'), DOUBLE('4.9E-324'), true, 'y', X'62',"
    " DATE'1582-10-15', TIMESTAMP'1582-10-15 00:00:00', 1, CAST('1E-38' AS DECIMAL(38,38)), 0.01)",
)
KERNEL_LISTS = "the client's kernel casts nothing inside of lists: `Cannot cast list to non-list data types`"
UNANNOUNCED = "the client announces deletionVectors and columnMapping only, and timestampNtz for snapshots"
INT96_REACH = (
    "pyarrow, which the client reads parquet by, wraps years that Spark's default INT96 cannot tell in ns"
)


@hostile(versions=(1, 2))
def extremes(at: Place) -> None:
    """Every primitive at its limits, NaN and infinities, strings that need escapes; then a row of nothing but null."""
    at.session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    at.sql(
        f"CREATE TABLE {{t}} ({PRIMITIVES}) USING delta",
        f"INSERT INTO {{t}} VALUES {', '.join(EXTREMES)}",
        f"INSERT INTO {{t}} SELECT {', '.join(['NULL'] * 14)}",
    )


@hostile(versions=(1,), client_cannot={"parquet": INT96_REACH, "delta": INT96_REACH})
def int96_extremes(at: Place) -> None:
    """Instants beyond what nanoseconds can tell, in Spark's INT96."""
    at.session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    at.sql(
        "CREATE TABLE {t} (id INT, at TIMESTAMP) USING delta",
        "INSERT INTO {t} VALUES (1, TIMESTAMP'0001-01-01 00:00:00'), (2, TIMESTAMP'9999-12-31 23:59:59.999999'),"
        "(3, TIMESTAMP'2020-02-29 12:00:00.000001'), (4, NULL)",
    )


@hostile(versions=(1,))
def int96_timestamps(at: Place) -> None:
    """Instants in INT96, the type that Spark writes by default."""
    at.session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    at.sql(
        "CREATE TABLE {t} (id INT, at TIMESTAMP) USING delta",
        "INSERT INTO {t} VALUES (1, TIMESTAMP'1700-01-01 00:00:00'), (2, TIMESTAMP'2250-12-31 23:59:59.999999'),"
        "(3, TIMESTAMP'2020-02-29 12:00:00.000001'), (4, NULL)",
    )


@hostile(versions=(1, 2), needs=("timestampNtz",), on_stores=True)
def zoneless(at: Place) -> None:
    """timestampNtz as a column, inside a struct, and as the partition."""
    at.sql(
        "CREATE TABLE {t} (id INT, at TIMESTAMP_NTZ, s STRUCT<x: TIMESTAMP_NTZ>, p TIMESTAMP_NTZ) "
        "USING delta PARTITIONED BY (p)",
        "INSERT INTO {t} VALUES (1, TIMESTAMP_NTZ'2024-12-10 13:17:40.123456', NULL, TIMESTAMP_NTZ'2020-01-01'),"
        "(2, TIMESTAMP_NTZ'1000-01-01 00:00:00', named_struct('x', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'), NULL)",
        "INSERT INTO {t} VALUES (3, NULL, NULL, TIMESTAMP_NTZ'2020-01-01 00:00:00.5')",
    )


@hostile(
    versions=(1, 2), cdf=((0, 2),), needs=("timestampNtz",), client_cannot={"changes delta": UNANNOUNCED}
)
def timestampntz_cdf_table(at: Place) -> None:
    """As the upstream suite has it: zoneless times with CDF."""
    at.sql(
        "CREATE TABLE {t} (id INT, time TIMESTAMP_NTZ) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} VALUES (1, TIMESTAMP_NTZ'2024-12-10 13:17:40'), "
        "(2, TIMESTAMP_NTZ'2024-12-10 13:17:40.123456'), (3, TIMESTAMP_NTZ'1000-01-01 00:00:00')",
        "DELETE FROM {t} WHERE id = 1",
    )


WIDENED = (
    ("n", "BIGINT"), ("b", "SHORT"), ("b", "INT"), ("f", "DOUBLE"), ("d", "TIMESTAMP_NTZ"),
    ("m", "DECIMAL(12,4)"), ("k", "DECIMAL(12,0)"), ("w", "DOUBLE"), ("s.x", "BIGINT"), ("a.element", "INT"),
    ("mm.value", "DOUBLE"), ("p", "BIGINT"),
)  # fmt: skip


@hostile(
    versions=(1, 14), needs_at={14: ("typeWidening", "timestampNtz")}, client_cannot={"delta 14": UNANNOUNCED}
)
def widened(at: Place) -> None:
    """Every widening there is, also of nested types and of the partition: old files keep the narrow types."""
    changes = [f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}" for column, kind in WIDENED]
    at.sql(
        "CREATE TABLE {t} (n INT, b BYTE, f FLOAT, d DATE, m DECIMAL(5,2), k INT, w SHORT, s STRUCT<x: INT>, "
        "a ARRAY<SHORT>, mm MAP<STRING, FLOAT>, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES "
        "('delta.enableTypeWidening'='true', 'delta.feature.timestampNtz'='supported')",
        "INSERT INTO {t} VALUES (2147483647, 127, 1.1, DATE'2020-02-29', 999.99, 5, 32767, named_struct('x', 1), "
        "array(1, NULL, -3), map('k', 0.1), 1), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        *changes,
        "INSERT INTO {t} VALUES (9007199254740993, 2147483647, 1.1, TIMESTAMP_NTZ'2020-02-29 12:00:00', 99999999.9999, "
        "99999999999, 1E300, named_struct('x', 9007199254740993), array(70000), map('k', 1E300), 4294967296)",
    )


@hostile(versions=(1,), needs=("variantType",), client_cannot={"delta": UNANNOUNCED})
def variants(at: Place) -> None:
    """Half-structured values: objects, arrays, decimals, null in JSON and null in SQL."""
    documents = ('{"a":1,"b":[1,2.5,"x",null]}', "null", '"text"', "[]", "123456789012.5")
    values = ", ".join(f"({number}, parse_json('{text}'))" for number, text in enumerate(documents))
    at.sql(
        "CREATE TABLE {t} (id INT, v VARIANT) USING delta", f"INSERT INTO {{t}} VALUES {values}, (9, NULL)"
    )


@hostile(versions=(1,))
def nested(at: Place) -> None:
    """Structs in arrays in maps, nulls on every level, empty collections, names that differ by case in depth."""
    at.session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    at.sql(
        "CREATE TABLE {t} (id INT, a ARRAY<STRUCT<x: INT, `Name`: STRING>>, m MAP<STRING, ARRAY<INT>>, "
        "deep STRUCT<one: STRUCT<two: STRUCT<three: ARRAY<MAP<INT, STRING>>>>>, aa ARRAY<ARRAY<DOUBLE>>, "
        "ms MAP<STRUCT<k: INT>, DECIMAL(10,3)>, days ARRAY<DATE>, times ARRAY<TIMESTAMP>) USING delta",
        "INSERT INTO {t} VALUES "
        "(1, array(named_struct('x', 1, 'Name', 'n'), NULL, named_struct('x', NULL, 'Name', NULL)), "
        "map('k', array(1, NULL), 'l', NULL, '', array()), "
        "named_struct('one', named_struct('two', named_struct('three', array(map(1, 'm', 2, NULL), NULL)))), "
        "array(array(1.5D, NULL), NULL, array()), map(named_struct('k', 1), 1.125), array(DATE'2020-01-01', NULL), "
        "array(TIMESTAMP'2020-01-01 00:00:00.000001')), "
        "(2, array(), map(), named_struct('one', NULL), array(), map(), array(), array()), "
        "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )


@hostile(versions=(1,), client_cannot={"delta": KERNEL_LISTS})
def nested_int96(at: Place) -> None:
    """Instants inside of lists, in INT96: they are cast when they are read."""
    at.session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    at.sql(
        "CREATE TABLE {t} (id INT, times ARRAY<TIMESTAMP>) USING delta",
        "INSERT INTO {t} VALUES (1, array(TIMESTAMP'2020-01-01 00:00:00.000001', NULL)), (2, NULL)",
    )


@hostile(versions=(1,))
def char_and_varchar(at: Place) -> None:
    """Lengths that live in the columns' metadata; to everyone else they are strings."""
    at.sql(
        "CREATE TABLE {t} (id INT, c CHAR(5), v VARCHAR(10)) USING delta COMMENT 'of lengths'",
        "INSERT INTO {t} VALUES (1, 'abcde', 'cd'), (2, NULL, NULL)",
    )
