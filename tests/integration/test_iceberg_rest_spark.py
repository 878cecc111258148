"""Spark reads through the Iceberg REST door what it reads directly, in every format version, deletes included."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Ledger
from lakeshare_server.catalog.models import AuditRow
from tests.builders.iceberg_matrix.made import session_of_its_own
from tests.builders.iceberg_rest import door_url, rest_catalog
from tests.builders.publications import a_publication
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.spark_iceberg import SparkIceberg
from tests.builders.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "day DATE, carrier STRING, delay DOUBLE, crew STRUCT<pilots: INT, lead: STRING>"
ROWS = (
    "(DATE'2013-01-01', 'UA', 1.5, named_struct('pilots', 2, 'lead', 'a')), "
    "(DATE'2013-01-02', NULL, double('NaN'), NULL), "
    "(DATE'2013-01-02', 'DL', NULL, named_struct('pilots', 1, 'lead', 'b'))"
)


# Spark leaves those that speak of partitions alone to Iceberg altogether.
WHERE = (
    "day = DATE'2013-01-02'",
    "day IN (DATE'2013-01-01', DATE'2014-01-01')",
    "day > DATE'2013-01-01' AND airline IS NULL",
    "NOT (airline = 'UA')",
    # Not `delay > 1`: Spark takes NaN for greater than all numbers, Iceberg's own planning leaves such files out.
    "airline LIKE 'U%' OR delay < 2",
    "isnan(delay)",
    "crew.pilots = 2",
    "day = DATE'2012-01-01'",
)


HIDDEN = (
    "at >= TIMESTAMP'1970-01-01 00:00:00'",
    "at < TIMESTAMP'1969-12-31 00:00:00'",
    "at >= TIMESTAMP'1969-12-30 00:00:00' AND at < TIMESTAMP'1969-12-31 00:00:00'",
    "id = 7",
    "id IN (1, 2, 3)",
    "{0}.system.days(at) = DATE'1969-12-31'",
    "{0}.system.bucket(4, id) = 2",
    "local = TIMESTAMP_NTZ'1970-01-01 00:00:00'",
    "price = 1.50 OR price > 4.75",
)


@pytest.fixture(scope="module")
def spark(lake: Lake) -> "SparkSession":
    return session_of_its_own(lake.spark)


@pytest.fixture(scope="module")
def direct(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """A catalog of Spark's own on the disk: the judge reads and writes in it."""
    name = "by_hand"
    conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}
    conf[".warehouse"] = tmp_path_factory.mktemp("by_hand").as_uri()
    for key, value in conf.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    return name


def publish(provider: Provider, spark: "SparkSession", name: str) -> int:
    """Append to the ledger what the table's main branch is now, as the step that publishes does: its snapshot."""
    catalog, _, table = name.partition(".")
    state = SparkIceberg(spark, catalog).state(table.removeprefix("lake."))
    Ledger(provider.catalog).append(
        [a_publication(table=table, metadata_location=state.metadata_location, snapshot_id=state.snapshot_id)]
    )
    return state.snapshot_id


def plans_of(provider: Provider) -> int:
    """How often the server planned a scan."""
    with provider.catalog.reading() as session:
        found = session.scalars(
            select(AuditRow).where(AuditRow.action == "plan_scan", AuditRow.status == 200)
        )
        return len(found.all())


def rows(spark: "SparkSession", text: str) -> list[str]:
    return sorted(str(row) for row in spark.sql(text).collect())


def rows_by_condition(
    spark: "SparkSession", table: str, conditions: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Each condition with the rows that it is true for: read at once without a filter, so nothing is skipped."""
    judged = ", ".join(f"{condition} AS `condition {number}`" for number, condition in enumerate(conditions))
    read = spark.sql(f"SELECT struct(*) AS row, {judged} FROM {table}").collect()
    for number, condition in enumerate(conditions):
        yield condition, sorted(str(found.row) for found in read if found[f"condition {number}"])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_spark_reads_each_format_version_through_the_door(
    spark: "SparkSession", direct: str, tmp_path: Path, version: int
) -> None:
    name, provider = f"{direct}.lake.v{version}", a_provider(tmp_path)
    mode = "merge-on-read" if version > 1 else "copy-on-write"
    spark.sql(
        f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (day) "
        f"TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='{mode}')"
    )
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
    first = publish(provider, spark, name)
    spark.sql(f"DELETE FROM {name} WHERE carrier = 'DL'")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN carrier TO airline")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD truncate(1, airline)")
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
    newest = publish(provider, spark, name)
    published = rows(spark, f"SELECT * FROM {name}")
    before = rows(spark, f"SELECT * FROM {name} VERSION AS OF {first}")
    spark.sql(f"DELETE FROM {name}")  # not published
    provider.share(f"lake.v{version}", history=True)
    with a_server(provider) as server:
        token = provider.recipient()
        opened = _opened(spark, server, token, f"door_v{version}")
        through = f"{opened}.lake.v{version}"
        assert rows(spark, f"SHOW TABLES IN {opened}.lake")
        assert rows(spark, f"SELECT * FROM {through}") == published
        assert len(published) == 5
        assert rows(spark, f"SELECT * FROM {through} VERSION AS OF {first}") == before
        assert len(before) == 3
        # What the published branch was, in the catalog that is the judge.
        conditions = WHERE if version == 2 else WHERE[:3]
        for where, wanted in rows_by_condition(spark, f"{name} VERSION AS OF {newest}", conditions):
            assert rows(spark, f"SELECT * FROM {through} WHERE {where}") == wanted, where
        day = "day = DATE'2013-01-02'"
        assert rows(spark, f"SELECT day FROM {through} VERSION AS OF {first} WHERE {day}") == rows(
            spark, f"SELECT day FROM {name} VERSION AS OF {first} WHERE {day}"
        )
        wait_until(lambda: plans_of(provider) > len(conditions))
        metadata = rows(
            spark,
            f"SELECT 'snapshot' FROM {through}.snapshots UNION ALL SELECT 'history' FROM {through}.history "
            f"UNION ALL SELECT name FROM {through}.refs",
        )
        assert metadata == [
            f"Row(snapshot='{kind}')" for kind in ("history", "history", "main", "snapshot", "snapshot")
        ]
        # What is published next is seen by the catalog that is open.
        spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
        publish(provider, spark, name)
        spark.sql(f"REFRESH TABLE {through}")
        assert len(rows(spark, f"SELECT * FROM {through}")) == 3
        with pytest.raises(Exception, match=r"not offered|UnsupportedOperation|not support"):
            spark.sql(f"INSERT INTO {through} VALUES {ROWS}")
        arrow = rest_catalog(server, token).load_table(f"lake.v{version}").scan().to_arrow()
        assert arrow.num_rows == 3


def test_spark_leaves_filters_on_hidden_partitions_to_the_plan(
    spark: "SparkSession", direct: str, tmp_path: Path
) -> None:
    """It does not filter again what ends where partitions do: planned files and what goes with them have to."""
    name, provider = f"{direct}.lake.hidden", a_provider(tmp_path)
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(9, 2)) USING iceberg "
        "PARTITIONED BY (days(at), bucket(4, id))"
    )
    midnights = "timestampadd(SECOND, (id - 10) * 21600 - id % 2, {}'1970-01-01 00:00:00')"
    spark.sql(
        f"INSERT INTO {name} SELECT id, {midnights.format('TIMESTAMP')}, {midnights.format('TIMESTAMP_NTZ')}, "
        "CAST(id / 4 AS DECIMAL(9, 2)) FROM range(24)"
    )
    publish(provider, spark, name)
    provider.share("lake.hidden")
    with a_server(provider) as server:
        through = f"{_opened(spark, server, provider.recipient(), 'door_hidden')}.lake.hidden"
        judged = rows_by_condition(spark, name, [where.format(direct) for where in HIDDEN])
        for where, (_, wanted) in zip(HIDDEN, judged, strict=True):
            assert rows(spark, f"SELECT * FROM {through} WHERE {where.format('door_hidden')}") == wanted, (
                where
            )
            assert 0 < len(wanted) < 24, where
        counted = f"SELECT count(*), min(id), max(price), count(at) FROM {{}} WHERE {HIDDEN[0]}"
        assert rows(spark, counted.format(through)) == rows(spark, counted.format(name))
        assert rows(spark, f"SELECT count(*), min(id), max(at) FROM {through}") == rows(
            spark, f"SELECT count(*), min(id), max(at) FROM {name}"
        )
        assert plans_of(provider) > len(HIDDEN)


def _opened(spark: Any, server: Any, token: str, name: str) -> str:
    conf = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": door_url(server),
        ".token": token,
        ".warehouse": "flights",
    }
    for key, value in conf.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    return name
