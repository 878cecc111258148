"""Spark in the mode of the setting: behind Spark Connect the same set is staged, audited and published."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.spark.session import make_session_conf, open_session
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.killed_run import Run, start_run, wait_for_exit
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_delivery, orders
from tests.integration.processes import free_ports

DAY = "2024-01-01"


@pytest.fixture(scope="module")
def connect_server(lake: Lake) -> Iterator[str]:
    """Spark Connect's server in the driver of these tests, as Spark's plugin for it; yields its sc:// address."""
    (port,), context = free_ports(1), lake.spark.sparkContext
    service = context._jvm.org.apache.spark.sql.connect.service.SparkConnectService
    conf = context._jvm.org.apache.spark.SparkEnv.get().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", str(port))
    service.start(context._jsc.sc())
    yield f"sc://127.0.0.1:{port}"
    nothing = context._jvm.scala.Option.empty()
    service.stop(nothing, nothing)


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
