"""Tables as the upstream suites have them (protocol §7.2), where they are not already under what makes them hostile."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from tests.builders.delta_log import read_state
from tests.builders.hostile.place import DELETION_VECTORS, Place, hostile


@hostile(versions=(2,))
def table1(at: Place) -> None:
    """Two files of one row each."""
    at.sql(
        "CREATE TABLE {t} (eventTime TIMESTAMP, date DATE) USING delta",
        "INSERT INTO {t} VALUES (TIMESTAMP'2021-04-28 06:32:22.421', DATE'2021-04-28')",
        "INSERT INTO {t} VALUES (TIMESTAMP'2021-04-28 06:32:02.07', DATE'2021-04-28')",
    )


@hostile(versions=(4,), on_stores=True)
def table3(at: Place) -> None:
    """Partitioned by day; the first file has an older schema."""
    at.sql(
        "CREATE TABLE {t} (eventTime TIMESTAMP, date DATE) USING delta PARTITIONED BY (date)",
        "INSERT INTO {t} VALUES (TIMESTAMP'2021-04-28 23:35:53.156', DATE'2021-04-28')",
        "ALTER TABLE {t} ADD COLUMNS (type STRING)",
        "INSERT INTO {t} VALUES (TIMESTAMP'2021-04-28 23:36:47.599', DATE'2021-04-28', 'foo')",
        "INSERT INTO {t} VALUES (TIMESTAMP'2021-04-28 23:36:51.945', DATE'2021-04-28', 'bar')",
    )


@hostile(versions=(3, 6))
def streaming_table_with_optimize(at: Place) -> None:
    """Three inserts, an OPTIMIZE that a stream never sees, a delete and an update."""
    at.sql(
        "CREATE TABLE {t} (name STRING, age INT, birthday DATE) USING delta",
        *(f"INSERT INTO {{t}} VALUES ('{n}', {n}, DATE'2020-01-0{n}')" for n in (1, 2, 3)),
        "OPTIMIZE {t}",
        "DELETE FROM {t} WHERE name = '3'",
        "UPDATE {t} SET birthday = DATE'2020-02-02' WHERE name = '2'",
    )


@hostile(versions=(1, 4))
def streaming_table_metadata_protocol(at: Place) -> None:
    """Create, insert, two ALTERs (one of them raises the protocol), insert."""
    at.sql(
        "CREATE TABLE {t} (name STRING) USING delta",
        "INSERT INTO {t} VALUES ('1')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.minReaderVersion'='1', 'delta.minWriterVersion'='4')",
        "ALTER TABLE {t} ADD COLUMNS (age INT)",
        "INSERT INTO {t} VALUES ('2', 2)",
    )


@hostile(versions=(1, 3))
def streaming_notnull_to_null(at: Place) -> None:
    """A column may be null from version 2 on."""
    at.sql(
        "CREATE TABLE {t} (name STRING NOT NULL) USING delta",
        "INSERT INTO {t} VALUES ('1')",
        "ALTER TABLE {t} ALTER COLUMN name DROP NOT NULL",
        "INSERT INTO {t} VALUES ('2'), (NULL)",
    )


@hostile(versions=(2,), needs=DELETION_VECTORS)
def deletion_vectors_with_dvs_dv_property_on(at: Place) -> None:
    """Rows 3 to 9 are left of ten in two files."""
    at.sql(
        "CREATE TABLE {t} (id INT, value STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id, concat('value ', id) FROM range(10)",
        "DELETE FROM {t} WHERE id < 3",
    )


@hostile(versions=(15,))
def _12k_rows(at: Place) -> None:
    """Fifteen inserts of 100, 200, … 1500 rows, by deltalake."""
    from deltalake import DeltaTable, Schema, write_deltalake

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("time", pa.timestamp("us", "UTC")),
            ("val", pa.float64()),
        ]
    )
    DeltaTable.create(at.location, Schema.from_arrow(schema))
    first = 0
    for count in range(100, 1600, 100):
        ids = range(first, first + count)
        times = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=n * 100_000) for n in ids]
        columns = [list(ids), [f"str_{n}" for n in ids], times, [n**0.5 for n in ids]]
        write_deltalake(at.location, pa.table(columns, schema=schema), mode="append")
        first += count


@hostile(versions=(2,))
def table4(at: Place) -> None:
    """Columns in another order than in the file."""
    at.sql(
        "CREATE TABLE {t} (date DATE, eventTime TIMESTAMP, type STRING) USING delta PARTITIONED BY (date)",
        "INSERT INTO {t} VALUES (DATE'2021-04-28', TIMESTAMP'2021-04-28 23:35:53.156', NULL)",
        "ALTER TABLE {t} ALTER COLUMN type FIRST",
    )


@hostile(versions=(1, 3))
def streaming_null_to_notnull(at: Place) -> None:
    """A column may not be null from version 2 on; no engine writes that, the upstream suite has it."""
    at.sql("CREATE TABLE {t} (name STRING) USING delta", "INSERT INTO {t} VALUES ('1')")
    metadata = read_state(at.location).metadata
    strict = metadata["schemaString"].replace('"nullable":true', '"nullable":false')
    at.commit(2, [{"metaData": metadata | {"schemaString": strict}}])
    at.sql("INSERT INTO {t} VALUES ('2')")
