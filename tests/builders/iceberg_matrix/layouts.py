"""Tables by how they lie in storage: formats and names of files, catalogs, branches, snapshots of long ago."""

from tests.builders.iceberg_matrix.plan import (
    COMPACT,
    INSERT,
    Plan,
    created_again,
    of,
    properties,
    set_properties,
)
from tests.builders.iceberg_matrix.steps import a_file_twice, manifests_inside

FIRST, SECOND = INSERT.format("(1, 'a'), (2, NULL)"), INSERT.format("(3, 'c')")
COLUMNS = "id INT, s STRING"
PARQUET = set_properties("write.format.default=parquet")
TABLES: dict[str, Plan] = {
    **{
        f"{name}_v{version}": Plan(
            of(
                "id INT, s STRING, l ARRAY<INT>",
                INSERT.format("(1, 'a', array(1)), (2, NULL, NULL)"),
                options=properties(f"write.format.default={name}", f"format-version={version}"),
            ),
            fix=(PARQUET, COMPACT),
        )
        for name, version in (("orc", 1), ("avro", 2))
    },
    "some_in_orc": Plan(
        of(COLUMNS, FIRST, set_properties("write.format.default=orc"), SECOND), fix=(PARQUET, COMPACT)
    ),
    **{
        f"packed_by_{codec}": Plan(
            of(COLUMNS, FIRST, options=properties(f"write.parquet.compression-codec={codec}")), where="id = 1"
        )
        for codec in ("gzip", "snappy", "uncompressed")
    },
    "metadata_in_gzip": Plan(
        of(COLUMNS, FIRST, SECOND, options=properties("write.metadata.compression-codec=gzip")),
        where="id = 3",
    ),
    "metadata_in_gzip_of_a_catalog": Plan(
        of(COLUMNS, FIRST, SECOND, options=properties("write.metadata.compression-codec=gzip")),
        catalog="nessie",
    ),
    "of_a_catalog": Plan(
        of(COLUMNS, FIRST, "DELETE FROM {t} WHERE id = 1", SECOND, options=properties("format-version=3")),
        catalog="nessie",
    ),
    "scattered_over_folders": Plan(
        of(COLUMNS, FIRST, SECOND, options=properties("write.object-storage.enabled=true")), where="id = 3"
    ),
    "manifests_inside": Plan(
        of(
            COLUMNS,
            FIRST,
            SECOND,
            manifests_inside,
            options="PARTITIONED BY (s) " + properties("format-version=1"),
        ),
        where="s = 'c'",
    ),
    "a_file_twice": Plan(of(COLUMNS, FIRST, a_file_twice), fix=created_again("SELECT * FROM {t}")),
    "unpublished_beside_main": Plan(
        of(
            COLUMNS,
            FIRST,
            "ALTER TABLE {t} CREATE BRANCH audit",
            "INSERT INTO {t}.branch_audit VALUES (9, 'unaudited')",
            "ALTER TABLE {t} CREATE TAG kept",
            SECOND,
        ),
        where="id = 3",
    ),
    "upgraded_twice": Plan(
        of(
            COLUMNS,
            FIRST,
            set_properties("format-version=2"),
            SECOND,
            set_properties("format-version=3"),
            SECOND,
            options="PARTITIONED BY (truncate(1, s)) " + properties("format-version=1"),
        ),
        where="s = 'a'",
    ),
    "rolled_back": Plan(
        of(
            COLUMNS,
            FIRST,
            "ALTER TABLE {t} CREATE TAG first",
            "ALTER TABLE {t} ADD COLUMN later INT",
            INSERT.format("(4, 'd', 4)"),
            "CALL {c}.system.set_current_snapshot(table => '{t}', ref => 'first')",
        )
    ),
    "manifests_rewritten": Plan(
        of(COLUMNS, FIRST, SECOND, "CALL {c}.system.rewrite_manifests('{t}')"), where="id = 3"
    ),
    "history_expired": Plan(
        of(
            COLUMNS,
            FIRST,
            "ALTER TABLE {t} RENAME COLUMN s TO text",
            SECOND,
            "CALL {c}.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP'2100-01-01 00:00:00', "
            "retain_last => 1, clean_expired_metadata => true)",
        ),
        where="text = 'c'",
    ),
    "overwritten": Plan(
        of(COLUMNS, FIRST, "INSERT OVERWRITE {t} VALUES (7, 'z')", options="PARTITIONED BY (id)"),
        where="id = 7",
    ),
    "sorted": Plan(of(COLUMNS, "ALTER TABLE {t} WRITE ORDERED BY s DESC", FIRST, SECOND), where="s = 'a'"),
}
