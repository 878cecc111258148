"""Tables with row-level deletes, told as stories of statements: position deletes (v2) and deletion vectors (v3)."""

from tests.builders.iceberg_matrix.plan import COMPACT_DELETES, Plan, Step, of, properties, set_properties
from tests.builders.iceberg_matrix.steps import equality_delete

COMPACT_A_DAY = (
    "CALL {c}.system.rewrite_data_files(table => '{t}', where => \"day = DATE '2024-01-02'\", "
    "options => map('rewrite-all', 'true'))"
)
COMPACT_DELETE_FILES = (
    "CALL {c}.system.rewrite_position_delete_files(table => '{t}', options => map('rewrite-all', 'true'))"
)


def insert(first: int, rows: int) -> str:
    """Rows over three days, in two files for each partition."""
    return (
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id, "
        "date_add(DATE'2024-01-01', CAST(id % 3 AS INT)), concat('n', id) "
        f"FROM range({first}, {first + rows})"
    )


def delete(where: str) -> str:
    return f"DELETE FROM {{t}} WHERE {where}"


DELETE = delete("id % 7 = 3")
UPDATE = "UPDATE {t} SET name = 'changed' WHERE id % 11 = 5"
MERGE = (
    "MERGE INTO {t} t USING (SELECT id FROM range(50, 450, 50)) s ON t.id = s.id "
    "WHEN MATCHED AND t.id % 100 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged' "
    "WHEN NOT MATCHED THEN INSERT (id, day, name) VALUES (s.id, DATE'2024-01-09', 'new')"
)
BY_DAY = "ALTER TABLE {t} ADD PARTITION FIELD day"
BY_BUCKET = "ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)"
BY_FILE = set_properties("write.delete.granularity=file")
UPGRADE = set_properties("format-version=3")

# What is done to a table of 300 rows, of either version.
STORIES: dict[str, list[Step]] = {
    "deleted": [DELETE],
    "updated": [UPDATE],
    "merged": [MERGE],
    "many_generations": [DELETE, insert(300, 200), UPDATE, delete("id % 5 = 1"), MERGE, insert(3, 4)],
    "deleted_and_inserted_again": [delete("id < 100"), insert(0, 100), delete("id = 7")],
    "partitioned": [BY_DAY, insert(300, 300), DELETE, UPDATE],
    "partitioned_anew": [
        BY_DAY, insert(300, 300), DELETE, BY_BUCKET, insert(600, 200), UPDATE, delete("id % 13 = 2"),
    ],
    "deletes_for_each_file": [BY_FILE, BY_DAY, insert(300, 300), DELETE, UPDATE],
    "a_day_compacted": [BY_DAY, insert(300, 300), DELETE, COMPACT_A_DAY],
    "whole_files_gone": [BY_DAY, insert(300, 300), DELETE, delete("day = DATE'2024-01-02'")],
    "nothing_left": [delete("id % 1 = 0")],
}  # fmt: skip
OF_V2: dict[str, list[Step]] = {
    "deletes_compacted": [DELETE, UPDATE, COMPACT_DELETE_FILES],
    "in_avro": [set_properties("write.delete.format.default=avro"), DELETE],
    "in_orc": [set_properties("write.delete.format.default=orc"), DELETE],
    "equality": [equality_delete(77)],
    "equality_and_positions": [DELETE, equality_delete(77), UPDATE],
    "upgraded": [DELETE, BY_DAY, insert(300, 300), UPDATE, UPGRADE, delete("id % 10 = 4")],
}
PARQUET_DELETES = set_properties("write.delete.format.default=parquet")
FIXES = dict.fromkeys(("in_avro", "in_orc"), (PARQUET_DELETES, COMPACT_DELETE_FILES, COMPACT_DELETES))


def told(version: int, *story: Step) -> tuple[Step, ...]:
    """A table of 300 rows with a story."""
    modes = [f"write.{verb}.mode=merge-on-read" for verb in ("delete", "update", "merge")]
    given = properties(f"format-version={version}", "write.delete.granularity=partition", *modes)
    return of("id BIGINT, day DATE, name STRING", insert(0, 300), *story, options=given)


TABLES = {
    **{
        f"v{version}_{name}": Plan(told(version, *story))
        for version in (2, 3)
        for name, story in STORIES.items()
    },
    **{f"v2_{name}": Plan(told(2, *story), fix=FIXES.get(name, ())) for name, story in OF_V2.items()},
    **{f"v{version}_compacted": Plan(told(version, DELETE, UPDATE, COMPACT_DELETES)) for version in (2, 3)},
}
