"""Spark writes to branches and is refused on main by the catalog; it does so on the Java that comes from PyPI."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nessie_fixtures import a_running_nessie

from lakeshare_pipelines.spark.jars import find_packaged_java

# In a process of its own: a driver's Java cannot be changed once it runs, and other tests have theirs.
PROGRAM = """\
import json, sys
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import ensure_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import attach_catalog
from lakeshare_pipelines.spark.session import spark_session

state_dir, java_home = sys.argv[1:]
settings = LakeSettings(state_dir=state_dir, java_home=java_home)
endpoint = ensure_nessie(settings)
publisher = Nessie.connect(endpoint, "publisher")
base = publisher.reference("main").hash
publisher.create_branch("wap-1", base)

def refusal(spark, statement):
    try:
        spark.sql(statement)
    except Exception as error:
        return str(error)
    return None

with spark_session(settings) as spark:
    wap, main = attach_catalog(spark, settings, endpoint, "wap-1"), attach_catalog(spark, settings, endpoint, "main")
    table = "flights.departures"
    spark.sql(f"CREATE NAMESPACE {wap}.flights")
    spark.sql(f"CREATE TABLE {wap}.{table} (day date, delay int) USING iceberg PARTITIONED BY (day)")
    spark.sql(f"INSERT INTO {wap}.{table} VALUES (DATE'2013-01-01', 5), (DATE'2013-01-02', 7)")
    head = publisher.reference("wap-1").hash
    publisher.merge("wap-1", head, onto_hash=base, message="Publish", author="test", properties={})
    spark.range(4).write.format("delta").save(f"{state_dir}/planes")
    said = {
        "java": spark.sparkContext._jvm.java.lang.System.getProperty("java.version"),
        "published": spark.table(f"{main}.{table}").count(),
        "delta": spark.read.format("delta").load(f"{state_dir}/planes").count(),
        "create": refusal(spark, f"CREATE TABLE {main}.flights.sneaked (a int) USING iceberg"),
        "insert": refusal(spark, f"INSERT INTO {main}.{table} VALUES (DATE'2013-01-03', 9)"),
        "after": spark.table(f"{main}.{table}").count(),
    }
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("spark") / "folder with a blank"
    with a_running_nessie(folder) as nessie:
        command = [sys.executable, "-c", PROGRAM, str(folder), str(find_packaged_java())]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        return {
            **json.loads(run.stdout),
            "tables": nessie.writer.tables("main"),
            "location": nessie.writer.content("flights.departures", "main").metadata_location,
            "warehouse": str(nessie.settings.warehouse),
            "terminal": run.stderr,
        }


def test_spark_runs_with_delta_and_iceberg_on_the_packaged_java(said):
    assert said["java"].startswith("21.")
    assert (said["published"], said["delta"]) == (2, 4)


@pytest.mark.parametrize("statement", ["create", "insert"])
def test_spark_is_refused_on_main(said, statement):
    assert "is not allowed for role 'writer' on reference 'main'" in said[statement]


def test_main_is_as_it_was_published(said):
    assert said["after"] == 2
    assert said["tables"] == ["flights.departures"]


def test_the_metadata_lies_in_the_warehouse_folder(said):
    path = Path(said["location"].removeprefix("file:"))
    assert path.is_file()
    assert path.is_relative_to(said["warehouse"])


def test_spark_is_silent_on_the_terminal(said):
    assert said["terminal"] == ""
