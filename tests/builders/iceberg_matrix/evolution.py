"""Tables whose schemas evolved: columns added, dropped, renamed, used again, moved, widened; files without ids."""

from tests.builders.iceberg_matrix.plan import COMPACT, INSERT, Plan, created_again, of, properties
from tests.builders.iceberg_matrix.steps import file_without, imported, with_default

RENAMED = of(
    "id INT, s STRING",
    INSERT.format("(1, 'a'), (2, NULL)"),
    "ALTER TABLE {t} RENAME COLUMN s TO text",
    INSERT.format("(3, 'c')"),
)
STRUCT = of(
    "id INT, st STRUCT<a: INT, b: STRING>",
    INSERT.format("(1, named_struct('a', 1, 'b', 'x'))"),
    "ALTER TABLE {t} RENAME COLUMN st.b TO c",
    "ALTER TABLE {t} ALTER COLUMN st.c FIRST",
    INSERT.format("(2, named_struct('c', 'y', 'a', 2)), (3, NULL)"),
)
USED_AGAIN = of(
    "id INT, s STRING",
    INSERT.format("(1, 'old')"),
    "ALTER TABLE {t} DROP COLUMN s",
    "ALTER TABLE {t} ADD COLUMN s STRING",
    INSERT.format("(2, 'new')"),
)
WIDENED = of(
    "i INT, f FLOAT, d DECIMAL(5, 2)",
    INSERT.format("(1, 1.5, 1.25), (2147483647, 0.1, 999.99)"),
    "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT",
    "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
    "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(20, 2)",
    INSERT.format("(5000000000, 1e300, 123456789012.34)"),
)
TABLES: dict[str, Plan] = {
    "plain": Plan(of("id INT, s STRING", INSERT.format("(1, 'a'), (2, NULL)")), where="id > 1"),
    "added": Plan(
        of("id INT", INSERT.format("(1)"), "ALTER TABLE {t} ADD COLUMN s STRING", INSERT.format("(2, 'b')"))
    ),
    "reordered": Plan(
        of("id INT, s STRING", INSERT.format("(1, 'a')"), "ALTER TABLE {t} ALTER COLUMN s FIRST")
    ),
    "dropped": Plan(
        of("id INT, gone STRING", INSERT.format("(1, 'a')"), "ALTER TABLE {t} DROP COLUMN gone"),
        where="id = 1",
    ),
    "struct_grown": Plan(
        of(
            "id INT, st STRUCT<a: INT>, l ARRAY<STRUCT<x: INT>>",
            INSERT.format("(1, named_struct('a', 1), array(named_struct('x', 1)))"),
            "ALTER TABLE {t} ADD COLUMN st.b STRING FIRST",
            "ALTER TABLE {t} ADD COLUMN l.element.y INT",
            INSERT.format("(2, named_struct('b', 'z', 'a', 2), array(named_struct('x', 2, 'y', 3)))"),
        ),
        where="st.a = 1",
    ),
    "struct_reordered": Plan(
        of(
            "id INT, st STRUCT<a: INT, b: INT>",
            INSERT.format("(1, named_struct('a', 1, 'b', 2))"),
            "ALTER TABLE {t} ALTER COLUMN st.b FIRST",
            INSERT.format("(2, named_struct('b', 4, 'a', 3))"),
        ),
        where="st.b = 2",
    ),
    "struct_shrunk": Plan(
        of(
            "id INT, st STRUCT<a: INT, b: INT>",
            INSERT.format("(1, named_struct('a', 1, 'b', 2))"),
            "ALTER TABLE {t} DROP COLUMN st.b",
        )
    ),
    "imported": Plan(
        of(
            "id INT, s STRING",
            imported("SELECT 1 AS id, 'a' AS s"),
            "ALTER TABLE {t} ADD COLUMN later INT",
            INSERT.format("(2, 'b', 3)"),
        ),
        where="id = 1",
    ),
    "renamed": Plan(RENAMED, where="text = 'c'"),
    "renamed_v1": Plan((RENAMED[0] + properties("format-version=1"), *RENAMED[1:]), where="text = 'a'"),
    "renamed_v3": Plan((RENAMED[0] + properties("format-version=3"), *RENAMED[1:]), where="text = 'a'"),
    "renamed_compacted": Plan((*RENAMED, COMPACT), where="text = 'c'"),
    "swapped": Plan(
        of(
            "a INT, b INT",
            INSERT.format("(1, 2)"),
            "ALTER TABLE {t} RENAME COLUMN a TO x",
            "ALTER TABLE {t} RENAME COLUMN b TO a",
            "ALTER TABLE {t} RENAME COLUMN x TO b",
            INSERT.format("(3, 4)"),
        ),
        where="a = 2",
    ),
    "added_again": Plan(USED_AGAIN, where="s IS NULL"),
    "added_again_all_old": Plan(USED_AGAIN[:-1], where="s IS NULL"),
    "struct": Plan(STRUCT, where="st.c = 'x'"),
    "struct_replaced": Plan(
        of(
            "id INT, v INT",
            INSERT.format("(1, 7)"),
            "ALTER TABLE {t} DROP COLUMN v",
            "ALTER TABLE {t} ADD COLUMN v STRUCT<w: INT>",
            INSERT.format("(2, named_struct('w', 3))"),
        )
    ),
    "in_list_and_map": Plan(
        of(
            "id INT, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<y: INT>>",
            INSERT.format("(1, array(named_struct('x', 1)), map('k', named_struct('y', 2)))"),
            "ALTER TABLE {t} RENAME COLUMN l.element.x TO x2",
            "ALTER TABLE {t} RENAME COLUMN m.value.y TO y2",
            INSERT.format("(2, array(named_struct('x2', 3)), map('k', named_struct('y2', 4)))"),
        )
    ),
    "renamed_partition": Plan(
        of(
            "id INT, day DATE",
            INSERT.format("(1, DATE'2024-01-01'), (2, NULL)"),
            "ALTER TABLE {t} RENAME COLUMN day TO date",
            INSERT.format("(3, DATE'2024-01-02')"),
            options="PARTITIONED BY (day)",
        ),
        where="date = DATE'2024-01-01'",
    ),
    "odd_names": Plan(
        of(
            "`a b` INT, `1st` STRING, `ü` INT, `x-y` INT, `p/q=%` INT, `st r` STRUCT<`in 1`: INT>",
            INSERT.format("(1, 'a', 2, 3, 4, named_struct('in 1', 5))"),
        ),
        fix=(
            "ALTER TABLE {t} RENAME COLUMN `a b` TO a_b",
            "ALTER TABLE {t} RENAME COLUMN `1st` TO first",
            "ALTER TABLE {t} RENAME COLUMN `ü` TO umlaut",
            "ALTER TABLE {t} RENAME COLUMN `x-y` TO x_y",
            "ALTER TABLE {t} RENAME COLUMN `p/q=%` TO p_q",
            "ALTER TABLE {t} RENAME COLUMN `st r`.`in 1` TO in_1",
            "ALTER TABLE {t} RENAME COLUMN `st r` TO st_r",
            COMPACT,
        ),
        where="`a b` = 1",
    ),
    "without_zone": Plan(
        of(
            "id INT, at TIMESTAMP_NTZ",
            INSERT.format("(1, TIMESTAMP_NTZ'2024-01-01 12:00:00.123456'), (2, NULL)"),
            INSERT.format("(3, TIMESTAMP_NTZ'1969-12-31 23:59:59.999999')"),
        ),
        fix=created_again("SELECT id, CAST(at AS TIMESTAMP) AS at FROM {t}"),
        where="at = TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'",
    ),
    "without_zone_partition": Plan(
        of(
            "id INT, at TIMESTAMP_NTZ",
            INSERT.format("(1, TIMESTAMP_NTZ'2024-01-01 12:00:00.5'), (2, NULL)"),
            options="PARTITIONED BY (at)",
        ),
        fix=created_again("SELECT id, CAST(at AS TIMESTAMP) AS at FROM {t}"),
        where="at = TIMESTAMP_NTZ'2024-01-01 12:00:00.5'",
    ),
    "widened": Plan(WIDENED, where="i = 2147483647"),
    "widened_compacted": Plan((*WIDENED, COMPACT), where="f > 1e299"),
    "widened_inside": Plan(
        of(
            "id INT, l ARRAY<INT>, st STRUCT<a: INT>",
            INSERT.format("(1, array(1, 2), named_struct('a', 1))"),
            "ALTER TABLE {t} ALTER COLUMN l.element TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN st.a TYPE BIGINT",
            INSERT.format("(2, array(5000000000), named_struct('a', 5000000000))"),
        )
    ),
    "imported_renamed": Plan(
        of(
            "id INT, s STRING",
            imported("SELECT 1 AS id, 'a' AS s"),
            "ALTER TABLE {t} RENAME COLUMN s TO text",
        )
    ),
    "imported_by_day": Plan(
        of(
            "id INT, s STRING, day DATE",
            imported(
                "SELECT CAST(id AS INT) AS id, 'a/b c%=ü' AS s, DATE'2024-01-01' AS day FROM range(3)",
                by="day",
            ),
            options="PARTITIONED BY (day)",
        ),
        where="day = DATE'2024-01-01'",
    ),
    "adopted_by_time": Plan(
        of(
            "id INT, at TIMESTAMP",
            INSERT.format("(1, TIMESTAMP'2024-01-01 12:00:00.5'), (2, NULL)"),
            file_without("at", 1_704_110_400_123_456, id=3),
            file_without("at", -86_400_000_000_001, id=4),
            options="PARTITIONED BY (at)",
        ),
        where="at = TIMESTAMP'2024-01-01 12:00:00.123456'",
    ),
    "adopted_by_empty_text": Plan(
        of(
            "id INT, s STRING",
            INSERT.format("(1, 'a'), (2, NULL)"),
            file_without("s", "", id=3),
            options="PARTITIONED BY (s)",
        ),
        where="s = ''",
    ),
    "names_differ_by_case": Plan(
        of("id INT, Id2 INT", INSERT.format("(1, 2)"), "ALTER TABLE {t} RENAME COLUMN Id2 TO ID"),
        fix=("ALTER TABLE {t} RENAME COLUMN ID TO other", COMPACT),
        case_sensitive=True,
    ),
    "with_default": Plan(
        of("id INT", INSERT.format("(1)"), with_default("added", 7), options=properties("format-version=3"))
    ),
    "everything": Plan(
        (
            *of("id INT, at TIMESTAMP_NTZ", INSERT.format("(1, TIMESTAMP_NTZ'2024-01-01 00:00:00')")),
            "ALTER TABLE {t} RENAME COLUMN id TO key",
            "ALTER TABLE {t} ALTER COLUMN key TYPE BIGINT",
            INSERT.format("(5000000000, NULL)"),
        ),
        fix=created_again("SELECT key, CAST(at AS TIMESTAMP) AS at FROM {t}"),
        where="key = 1",
    ),
}
