"""Spark where the setting says: behind Spark Connect the same set is staged, audited and published."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyspark
import pytest

from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import find_java
from lakeshare_pipelines.spark.session import make_session_conf, open_session, prepare_java_home
from tests.builders.killed_run import Run, start_run, wait_for_exit
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_delivery, orders
from tests.integration.processes import connect, free_ports, running

DAY = "2024-01-01"
READY_S = 120
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def connect_server(settings: LakeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server with the pinned jars; yields its sc:// address."""
    (port,), log = free_ports(1), tmp_path_factory.mktemp("connect") / "connect.log"
    conf = make_session_conf(settings) | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [f"{Path(pyspark.__file__).parent}/bin/spark-submit", "--class", CLASS]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    command += ["spark-internal"]
    home = prepare_java_home(find_java("spark", settings), settings)
    environment = {**os.environ, "JAVA_HOME": str(home)}
    with running(command, log, partial(connect, port), start_s=READY_S, env=environment):
        yield f"sc://127.0.0.1:{port}"


def test_a_set_is_published_through_spark_connect(lake, ledger, contract, connect_server, tmp_path):
    a_delivery(lake.settings, contract, DAY, orders(DAY))
    connected = lake.settings.model_copy(update={"spark_mode": "connect", "spark_remote": connect_server})

    run = start_run(tmp_path, Run(connected, contract, DAY, str(uuid4())))

    assert wait_for_exit(run) == 0
    assert ledger.latest(f"{contract.name}.orders").rows == 3
    assert len(rows_on_main(lake, contract, "orders")) == 3


def test_connect_without_an_address_names_the_setting(settings):
    with pytest.raises(SparkError, match="LAKESHARE_SPARK_REMOTE"):
        open_session(settings.model_copy(update={"spark_mode": "connect"}))


def test_a_cluster_is_not_given_the_confs_of_a_small_machine(settings):
    cluster = settings.model_copy(update={"spark_mode": "cluster", "spark_master": "spark://master:7077"})
    conf = make_session_conf(cluster)
    assert conf["spark.master"] == "spark://master:7077"
    assert "spark.sql.shuffle.partitions" not in conf
    assert "spark.sql.adaptive.enabled" not in conf
    assert "spark.driver.host" not in conf
