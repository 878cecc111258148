"""Spark reads through the Iceberg REST door what it reads directly, in every format version, deletes included."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Ledger
from lakeshare_server.catalog.models import AuditRow
from tests.builders.iceberg_rest import door_url, rest_catalog
from tests.builders.publications import a_publication
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.waiting import wait_until

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
def direct(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A catalog of Spark's own on the disk: the judge reads and writes in it."""
    name = "by_hand"
    conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}
    conf[".warehouse"] = tmp_path_factory.mktemp("by_hand").as_uri()
    for key, value in conf.items():
        lake.spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    return name


def publish(provider: Provider, lake: Lake, name: str) -> None:
    """Append to the ledger what the table's main branch is now, as the step that publishes does."""
    metadata = lake.spark.sql(f"SELECT file FROM {name}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1")
    snapshot = lake.spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'")
    table = ".".join(name.split(".")[1:])
    Ledger(provider.catalog).append(
        [
            a_publication(
                table=table,
                metadata_location=metadata.first()["file"],
                snapshot_id=snapshot.first()["snapshot_id"],
            )
        ]
    )


def plans_of(provider: Provider) -> int:
    """How often the server planned a scan."""
    with provider.catalog.reading() as session:
        found = session.scalars(
            select(AuditRow).where(AuditRow.action == "plan_scan", AuditRow.status == 200)
        )
        return len(found.all())


def rows(lake: Lake, text: str) -> list[str]:
    return sorted(str(row) for row in lake.spark.sql(text).collect())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_spark_reads_each_format_version_through_the_door(
    lake: Lake, direct: str, tmp_path: Path, version: int
) -> None:
    name, provider = f"{direct}.lake.v{version}", a_provider(tmp_path)
    mode = "merge-on-read" if version > 1 else "copy-on-write"
    spark = lake.spark
    spark.sql(
        f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (day) "
        f"TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='{mode}')"
    )
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
    publish(provider, lake, name)
    spark.sql(f"DELETE FROM {name} WHERE carrier = 'DL'")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN carrier TO airline")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD truncate(1, airline)")
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
    publish(provider, lake, name)
    published = rows(lake, f"SELECT * FROM {name}")
    first = spark.sql(f"SELECT snapshot_id FROM {name}.history ORDER BY made_current_at").first()[0]
    newest = spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").first()[0]
    before = rows(lake, f"SELECT * FROM {name} VERSION AS OF {first}")
    spark.sql(f"DELETE FROM {name}")  # not published
    provider.share(f"lake.v{version}", history=True)
    with a_server(provider) as server:
        token = provider.recipient()
        opened = _opened(spark, server, token, f"door_v{version}")
        through = f"{opened}.lake.v{version}"
        assert rows(lake, f"SHOW TABLES IN {opened}.lake")
        assert rows(lake, f"SELECT * FROM {through}") == published
        assert len(published) == 5
        assert rows(lake, f"SELECT * FROM {through} VERSION AS OF {first}") == before
        assert len(before) == 3
        for where in WHERE:
            # What the published branch was, in the catalog that is the judge.
            direct_rows = rows(lake, f"SELECT * FROM {name} VERSION AS OF {newest} WHERE {where}")
            assert rows(lake, f"SELECT * FROM {through} WHERE {where}") == direct_rows, where
        day = "day = DATE'2013-01-02'"
        assert rows(lake, f"SELECT day FROM {through} VERSION AS OF {first} WHERE {day}") == rows(
            lake, f"SELECT day FROM {name} VERSION AS OF {first} WHERE {day}"
        )
        wait_until(lambda: plans_of(provider) > len(WHERE))
        assert spark.sql(f"SELECT * FROM {through}.snapshots").count() == 2
        assert spark.sql(f"SELECT * FROM {through}.history").count() == 2
        assert [row["name"] for row in spark.sql(f"SELECT * FROM {through}.refs").collect()] == ["main"]
        # What is published next is seen by the catalog that is open.
        spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
        publish(provider, lake, name)
        spark.sql(f"REFRESH TABLE {through}")
        assert len(rows(lake, f"SELECT * FROM {through}")) == 3
        with pytest.raises(Exception, match=r"not offered|UnsupportedOperation|not support"):
            spark.sql(f"INSERT INTO {through} VALUES {ROWS}")
        arrow = rest_catalog(server, token).load_table(f"lake.v{version}").scan().to_arrow()
        assert arrow.num_rows == 3


def test_spark_leaves_filters_on_hidden_partitions_to_the_plan(
    lake: Lake, direct: str, tmp_path: Path
) -> None:
    """It does not filter again what ends where partitions do: planned files and what goes with them have to."""
    name, provider = f"{direct}.lake.hidden", a_provider(tmp_path)
    lake.spark.sql(
        f"CREATE TABLE {name} (id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(9, 2)) USING iceberg "
        "PARTITIONED BY (days(at), bucket(4, id))"
    )
    midnights = "timestampadd(SECOND, (id - 10) * 21600 - id % 2, {}'1970-01-01 00:00:00')"
    lake.spark.sql(
        f"INSERT INTO {name} SELECT id, {midnights.format('TIMESTAMP')}, {midnights.format('TIMESTAMP_NTZ')}, "
        "CAST(id / 4 AS DECIMAL(9, 2)) FROM range(24)"
    )
    publish(provider, lake, name)
    provider.share("lake.hidden")
    with a_server(provider) as server:
        through = f"{_opened(lake.spark, server, provider.recipient(), 'door_hidden')}.lake.hidden"
        for where in HIDDEN:
            wanted = rows(lake, f"SELECT * FROM {name} WHERE {where.format(direct)}")
            assert rows(lake, f"SELECT * FROM {through} WHERE {where.format('door_hidden')}") == wanted, where
            assert 0 < len(wanted) < 24, where
        counted = f"SELECT count(*), min(id), max(price), count(at) FROM {{}} WHERE {HIDDEN[0]}"
        assert rows(lake, counted.format(through)) == rows(lake, counted.format(name))
        assert rows(lake, f"SELECT count(*), min(id), max(at) FROM {through}") == rows(
            lake, f"SELECT count(*), min(id), max(at) FROM {name}"
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
