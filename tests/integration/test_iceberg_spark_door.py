"""Spark reads through the Iceberg REST door what it reads directly, in every format version, deletes included."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Ledger
from lakeshare_server.catalog.models import AuditRow
from tests.builders.iceberg_door import door_url, rest_catalog
from tests.builders.publications import a_publication
from tests.builders.sharing import Provider, a_provider, a_server

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
        assert plans_of(provider) > len(WHERE)
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
