"""Tables by the types of their columns, and tables with little in them."""

from tests.builders.iceberg_matrix.plan import (
    COMPACT,
    INSERT,
    Plan,
    Step,
    created_again,
    of,
    properties,
    set_properties,
)
from tests.builders.iceberg_matrix.steps import column_of, without_column

PRIMITIVES = of(
    "b BOOLEAN, i INT, l BIGINT, f FLOAT, g DOUBLE, d DATE, at TIMESTAMP, s STRING, x BINARY, p DECIMAL(9, 2), "
    "q DECIMAL(18, 4), r DECIMAL(38, 10), o DECIMAL(1, 0), w DECIMAL(38, 38)",
    INSERT.format(
        "(true, 2147483647, 9223372036854775807, float('NaN'), double('Infinity'), DATE'9999-12-31', "
        "TIMESTAMP'9999-12-31 23:59:59.999999', '𐍈 \\\\ \\'\"', X'00FF', 9999999.99, 12345678901234.5678, "
        "9999999999999999999999999999.9999999999, 9, 0.00000000000000000000000000000000000001), "
        "(false, -2147483648, -9223372036854775808, float('-Infinity'), -0.0D, DATE'0001-01-01', "
        "TIMESTAMP'0001-01-01 00:00:00', '', X'', -9999999.99, -0.0001, -0.0000000001, -9, 0), "
        "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    ),
)
NESTED = of(
    "id INT, st STRUCT<a: INT, deep: STRUCT<l: ARRAY<STRUCT<m: MAP<STRING, ARRAY<INT>>>>>>, "
    "m MAP<INT, STRUCT<x: STRING>>, ll ARRAY<ARRAY<BIGINT>>",
    INSERT.format(
        "(1, named_struct('a', 1, 'deep', named_struct('l', array(named_struct('m', "
        "map('k', array(1, NULL))), NULL))), map(1, named_struct('x', 'y'), 2, NULL), "
        "array(array(1), NULL, array())), (3, named_struct('a', NULL, 'deep', NULL), map(), array())"
    ),
)
NULLS = INSERT.format("(2, NULL, NULL, NULL)")
V3 = properties("format-version=3")
VARIANTS = (
    "INSERT INTO {t} SELECT CAST(id AS INT), "
    "IF(id = 2, NULL, parse_json(concat('{{\"a\": ', id, ', \"b\": [1.5, null]}}'))) "
    "FROM range(4)"
)
AS_TEXT = created_again("SELECT id, to_json(v) AS v FROM {t}")


def with_odd_type(odd: Step) -> Plan:
    """A table with a column `odd` of a type that Spark does not read."""
    return Plan(
        of("id INT", INSERT.format("(1)"), odd, options=V3),
        fix=(without_column("odd"), "ALTER TABLE {t} ADD COLUMN odd STRING"),
        is_read_by_spark=False,
    )


TABLES: dict[str, Plan] = {
    **{
        f"primitives_v{version}": Plan(
            (PRIMITIVES[0] + properties(f"format-version={version}"), *PRIMITIVES[1:]), where="i > 0"
        )
        for version in (1, 2, 3)
    },
    **{
        f"without_metrics_{mode}": Plan(
            (PRIMITIVES[0] + properties(f"write.metadata.metrics.default={mode}"), *PRIMITIVES[1:]),
            where="i > 0",
        )
        for mode in ("none", "counts", "full")
    },
    "nested": Plan((*NESTED, NULLS), where="st.a = 1"),
    "nested_renamed": Plan(
        (*NESTED, "ALTER TABLE {t} RENAME COLUMN st.deep.l.element.m TO n"), where="id = 3"
    ),
    "required": Plan(
        of(
            "id INT NOT NULL COMMENT 'never null', st STRUCT<a: INT NOT NULL> NOT NULL",
            INSERT.format("(1, named_struct('a', 1))"),
        ),
        where="st.a = 1",
    ),
    "only_nulls": Plan(
        of("a INT, s STRING, l ARRAY<INT>", INSERT.format("(NULL, NULL, NULL), (NULL, NULL, NULL)")),
        where="a IS NULL",
    ),
    "empty": Plan(of("id INT, s STRING", "INSERT INTO {t} SELECT 1, 'x' WHERE false")),
    "emptied": Plan(of("id INT, s STRING", INSERT.format("(1, 'x')"), "DELETE FROM {t} WHERE id = 1")),
    "time": with_odd_type(column_of("TimeType")),
    "uuid": Plan(
        of(
            "id INT",
            column_of("UUIDType"),
            INSERT.format("(1, 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6')"),
            options=properties("format-version=1"),
        ),
        fix=created_again("SELECT * FROM {t}"),
    ),
    "fixed": Plan(
        of("id INT", column_of("FixedType", "ofLength", 2), INSERT.format("(1, X'00FF')")),
        fix=created_again("SELECT * FROM {t}"),
    ),
    "timestamp_ns": with_odd_type(column_of("TimestampNanoType", "withoutZone")),
    "timestamptz_ns": with_odd_type(column_of("TimestampNanoType", "withZone")),
    "geometry": with_odd_type(column_of("GeometryType", "crs84")),
    "unknown": Plan(
        of("id INT, nothing VOID", INSERT.format("(1, NULL)"), options=V3),
        fix=created_again("SELECT id, CAST(nothing AS STRING) AS nothing FROM {t}"),
    ),
    "variant": Plan(of("id INT, v VARIANT", VARIANTS, options=V3), fix=AS_TEXT, where="id = 1"),
    "variant_inside": Plan(
        of(
            "id INT, st STRUCT<v: VARIANT, l: ARRAY<VARIANT>>",
            "INSERT INTO {t} SELECT 1, named_struct('v', parse_json('1'), 'l', array(parse_json('[true]'), NULL))",
            options=V3,
        ),
        fix=created_again("SELECT id, to_json(st) AS st FROM {t}"),
    ),
    "variant_shredded": Plan(
        of(
            "id INT, v VARIANT",
            VARIANTS,
            options=properties("format-version=3", "write.parquet.shred-variants=true"),
        ),
        fix=(
            set_properties("write.parquet.shred-variants=false", "read.parquet.vectorization.enabled=false"),
            COMPACT,
            *AS_TEXT,
        ),
    ),
    "variant_dropped": Plan(
        of("id INT, v VARIANT", VARIANTS, "ALTER TABLE {t} DROP COLUMN v", options=V3), where="id = 1"
    ),
}
