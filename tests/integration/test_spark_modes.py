"""Spark in the mode of the setting: sets are published behind Spark Connect, and Spark reads what is rendered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import functions
from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import (
    format_properties,
    make_driver_conf,
    make_session_conf,
    open_session,
)
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.forks import start_process
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


def test_a_connect_server_that_does_not_respond_is_an_error_that_names_it(settings):
    [port] = free_ports(1)
    away = settings.model_copy(update={"spark_mode": "connect", "spark_remote": f"sc://127.0.0.1:{port}"})
    assert wait_for_exit(start_process(require_no_response, away)) == 0


def require_no_response(settings: LakeSettings) -> None:
    """In a process of its own, as this one has a driver."""
    from pyspark.sql.connect.client import retries

    # By default fifteen, in eleven minutes.
    start = retries.DefaultPolicy.__init__
    start.__defaults__ = (1, *(start.__defaults__ or ())[1:])
    with (
        pytest.warns(UserWarning, match="RETRIES_EXCEEDED"),
        pytest.raises(SparkError, match=f"{settings.spark_remote} does not respond"),
    ):
        open_session(settings)


def test_connect_without_an_address_names_the_setting(settings):
    with pytest.raises(SparkError, match="LAKESHARE_SPARK_REMOTE"):
        open_session(settings.model_copy(update={"spark_mode": "connect"}))


MASTERS = {"kubernetes": "k8s://https://cluster.example.com:6443", "yarn": "yarn"}
OF_ANY_NAME = (
    "spark.app.name",
    "spark.master",
    "spark.hadoop.",
    "spark.executorEnv.",
    "spark.kubernetes.executor.secretKeyRef.",
)
"""Properties that Spark reads without a definition."""


@pytest.fixture(params=MASTERS)
def rendered(request, settings, lake, tmp_path) -> Any:
    """What `lakeshare spark-conf` prints with deploy/spark/<name>.properties for a lake in S3, as Java's SparkConf."""
    file = Path(__file__).parents[2] / "deploy" / "spark" / f"{request.param}.properties"
    environment = {
        "STATE_DIR": str(settings.state_dir),
        "WAREHOUSE": "s3://lake/tables",
        "S3_ENDPOINT": "https://store.example.com",
        "S3_REGION": "us-east-1",
        "SPARK_MODE": "cluster",
        "SPARK_MASTER": MASTERS[request.param],
        "SPARK_CONF": str(file),
    }
    runner = CliRunner(env={f"LAKESHARE_{name}": value for name, value in environment.items()})
    printed = runner.invoke(app, ["spark-conf"])
    assert printed.exit_code == 0, printed.output
    text = tmp_path / "rendered.properties"
    text.write_text(printed.stdout)
    java = lake.spark.sparkContext._jvm
    conf = java.org.apache.spark.SparkConf(False)
    properties = java.org.apache.spark.util.Utils.getPropertiesFromFile(str(text))
    for name, value in java.scala.jdk.javaapi.CollectionConverters.asJava(properties).items():
        conf.set(name, value)
    return conf


def test_spark_reads_every_property_that_is_rendered_for_kubernetes_and_yarn(rendered, lake):
    java = lake.spark.sparkContext._jvm
    for definitions in ("k8s.Config", "yarn.config.package"):
        java.java.lang.Class.forName(f"org.apache.spark.deploy.{definitions}$")
    properties = {each._1(): each._2() for each in rendered.getAll()}
    assert len(properties) > 30
    for name in properties:
        entry = java.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
        if entry is None:
            assert name.startswith(OF_ANY_NAME), name
        else:
            # Raises for a value that it cannot have.
            rendered.get(entry)


@pytest.mark.parametrize("rendered", ["kubernetes"], indirect=True)
def test_executors_on_kubernetes_reach_the_driver_and_the_store(rendered, lake):
    spark = lake.spark.sparkContext._jvm.org.apache.spark
    nothing, fabric8 = (
        lake.spark.sparkContext._jvm.scala.Option.empty(),
        lake.spark.sparkContext._jvm.io.fabric8,
    )
    executor = spark.deploy.k8s.KubernetesConf.createExecutorConf(rendered, "1", "app", nothing, 0)
    profiles = getattr(getattr(spark.resource, "ResourceProfile$"), "MODULE$")
    client = fabric8.kubernetes.client.KubernetesClientBuilder().build()
    builder = spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    profile, security = profiles.getOrCreateDefaultProfile(rendered), spark.SparkEnv.get().securityManager()
    pod = builder.buildFromFeatures(executor, security, client, profile).pod()
    client.close()
    as_json = fabric8.kubernetes.client.utils.Serialization.asJson
    container = json.loads(as_json(pod.container()))
    variables = {variable["name"]: variable for variable in container["env"]}
    assert json.loads(as_json(pod.pod()))["spec"]["serviceAccountName"] == "lakeshare-executor"
    assert container["image"].endswith(":4.1.4")
    assert variables["SPARK_DRIVER_URL"]["value"].endswith("@lakeshare-run.lake.svc:7078")
    assert variables["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"] == {
        "name": "lake-store",
        "key": "secret-key",
    }
    options = {
        variable["value"] for name, variable in variables.items() if name.startswith("SPARK_JAVA_OPT_")
    }
    assert "-Daws.requestChecksumCalculation=WHEN_REQUIRED" in options


def test_secrets_are_not_rendered_and_what_is_rendered_can_be_read(tmp_path, settings):
    (tmp_path / "own.properties").write_text("spark.executorEnv.MY_TOKEN hush\nspark.yarn.tags a\\b\n")
    own = settings.model_copy(update={"spark_mode": "cluster", "spark_conf": tmp_path / "own.properties"})
    lines = format_properties(make_driver_conf(own)).splitlines()
    assert "# spark.executorEnv.MY_TOKEN: not printed" in lines
    assert r"spark.yarn.tags a\\b" in lines


def test_a_cluster_is_not_given_the_confs_of_a_small_machine(settings):
    cluster = settings.model_copy(update={"spark_mode": "cluster", "spark_master": "spark://master:7077"})
    conf = make_session_conf(cluster)
    assert conf["spark.master"] == "spark://master:7077"
    assert "spark.sql.shuffle.partitions" not in conf
    assert "spark.sql.adaptive.enabled" not in conf
    assert "spark.driver.host" not in conf


def test_a_function_of_columns_is_looked_up_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = lake.spark.sparkContext._gateway._gateway_client, []
    send = client.send_command
    monkeypatch.setattr(
        client,
        "send_command",
        lambda command, *more, **named: sent.append(command) or send(command, *more, **named),
    )

    def count_lookups() -> tuple[int, int]:
        """Look-ups of names (commands of reflection), and calls, for two functions."""
        sent.clear()
        functions.coalesce(functions.col("a"), functions.lit(1))
        return sum(each.startswith("r\n") for each in sent), sum(each.startswith("c\n") for each in sent)

    count_lookups()
    lookups, calls = count_lookups()
    assert lookups == 0
    assert calls > 3
