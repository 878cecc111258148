"""Tables by partitions: every transform, odd values, and specs that evolved."""

from tests.builders.iceberg_matrix.plan import INSERT, Plan, of, properties

COLUMNS = "id INT, s STRING, d DATE, at TIMESTAMP, n BIGINT, p DECIMAL(10, 2)"
ROWS = INSERT.format(
    "(1, 'a b/c%20=ü.', DATE'2024-02-29', TIMESTAMP'2024-02-29 23:59:59.999999', 5000000000, 1.25), "
    "(2, NULL, NULL, NULL, NULL, NULL), "
    "(3, 'Zürich 😀', DATE'1969-12-31', TIMESTAMP'1969-12-31 23:59:59.999999', -7, -0.01), "
    "(4, '', DATE'1582-10-15', TIMESTAMP'1900-01-01 00:00:00', 0, 99999999.99), "
    "(5, 'a', DATE'9999-12-31', TIMESTAMP'2038-01-19 03:14:08', -9223372036854775808, 0)"
)
MORE = INSERT.format(
    "(6, 'b/../c', DATE'2024-03-01', TIMESTAMP'2024-03-01 00:00:00', 9223372036854775807, -99999900.00), "
    "(7, '__HIVE_DEFAULT_PARTITION__', DATE'2024-03-01', TIMESTAMP'2024-03-01 01:00:00', 1, 1), "
    "(8, 'null', DATE'1970-01-01', TIMESTAMP'1970-01-01 00:00:00', 1, 1)"
)
TRANSFORMS = {
    "identity_of_texts": ("s", "s = 'a b/c%20=ü.'"),
    "identity_of_dates": ("d", "d = DATE'1969-12-31'"),
    "identity_of_times": ("at", "at = TIMESTAMP'1969-12-31 23:59:59.999999'"),
    "identity_of_decimals": ("p", "p = -0.01"),
    "bucket_of_numbers": ("bucket(3, n)", "n = -7"),
    "bucket_of_texts": ("bucket(2, s)", "s = 'a'"),
    "truncate_of_texts": ("truncate(1, s)", "s = 'Zürich 😀'"),
    "truncate_of_numbers": ("truncate(10, n)", "n = -7"),
    "truncate_of_decimals": ("truncate(50, p)", "p = -0.01"),
    "years": ("years(at)", "at < TIMESTAMP'1970-01-01 00:00:00'"),
    "months": ("months(d)", "d = DATE'2024-02-29'"),
    "days": ("days(at)", "at >= TIMESTAMP'2024-02-29 23:59:59.999999'"),
    "hours": ("hours(at)", "at = TIMESTAMP'1969-12-31 23:59:59.999999'"),
    "several": ("s, days(at), bucket(2, id)", "s IS NULL"),
}
V1 = ("identity_of_texts", "truncate_of_numbers", "hours")
TABLES: dict[str, Plan] = {
    f"by_{name}": Plan(
        of(
            COLUMNS,
            ROWS,
            MORE,
            options=f"PARTITIONED BY ({spec}) {properties('format-version=' + ('1' if name in V1 else '2'))}",
        ),
        where=where,
    )
    for name, (spec, where) in TRANSFORMS.items()
} | {
    "by_void": Plan(
        of(
            COLUMNS,
            ROWS,
            "ALTER TABLE {t} DROP PARTITION FIELD s",
            MORE,
            options=f"PARTITIONED BY (s, days(at)) {properties('format-version=1')}",
        ),
        where="s = 'null'",
    ),
    "by_other_specs_each_time": Plan(
        of(
            COLUMNS,
            ROWS,
            "ALTER TABLE {t} REPLACE PARTITION FIELD days(at) WITH hours(at)",
            MORE,
            "ALTER TABLE {t} ADD PARTITION FIELD bucket(2, n)",
            MORE,
            "ALTER TABLE {t} DROP PARTITION FIELD s",
            ROWS,
            options="PARTITIONED BY (s, days(at))",
        ),
        where="s = 'b/../c'",
    ),
    "by_a_column_that_is_gone": Plan(
        of(
            COLUMNS,
            ROWS,
            "ALTER TABLE {t} DROP PARTITION FIELD s",
            "ALTER TABLE {t} DROP COLUMN s",
            INSERT.format("(6, DATE'2024-03-01', NULL, 1, 1)"),
            options="PARTITIONED BY (s)",
        ),
        where="id = 3",
    ),
    "by_what_is_in_a_struct": Plan(
        of(
            "id INT, st STRUCT<day: DATE, s: STRING>",
            INSERT.format(
                "(1, named_struct('day', DATE'2024-01-01', 's', 'x')), (2, NULL), "
                "(3, named_struct('day', NULL, 's', 'y'))"
            ),
            options="PARTITIONED BY (st.day, truncate(1, st.s))",
        ),
        where="st.day = DATE'2024-01-01'",
    ),
    "by_numbers_with_a_fraction": Plan(
        of(
            "id INT, f FLOAT, g DOUBLE",
            INSERT.format(
                "(1, 0.1, -0.0), (2, float('NaN'), double('NaN')), (3, float('-Infinity'), 1e300), (4, NULL, 0.0)"
            ),
            options="PARTITIONED BY (f, g)",
        ),
        where="g = 1e300",
    ),
    "by_bytes_and_flags": Plan(
        of(
            "id INT, b BINARY, flag BOOLEAN",
            INSERT.format("(1, X'00FF', true), (2, X'', false), (3, NULL, NULL)"),
            options="PARTITIONED BY (b, flag)",
        ),
        where="flag",
    ),
}
