"""Spark is said to have died when the driver this process started has ended, and of no other error."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException

from lakeshare_pipelines.demo.processes import free_port
from lakeshare_pipelines.errors import IcebergCatalogError, SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark import session
from lakeshare_pipelines.spark.session import has_driver_ended, translate_errors
from tests.builders.shared_spark import driver_pid

Driver = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> JavaGateway:
    """PySpark's gateway to a JVM that does not answer."""
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_port(0)))
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    return gateway


@pytest.fixture
def driver(gateway: JavaGateway) -> Iterator[Driver]:
    """Starts the process that the gateway belongs to, which lives for so many seconds."""
    started = []

    def start(seconds: float) -> "subprocess.Popen[bytes]":
        gateway.proc = subprocess.Popen(["sleep", str(seconds)])
        started.append(gateway.proc)
        return gateway.proc

    yield start
    for process in started:
        process.kill()
        process.wait()


def a_call(gateway: JavaGateway) -> None:
    gateway.jvm.java.lang.System.currentTimeMillis()


def a_mistake_in_the_query(gateway: JavaGateway) -> None:
    raise AnalysisException("[UNRESOLVED_COLUMN] a column `carier` cannot be resolved")


def attempt(doing: Callable[[JavaGateway], None], gateway: JavaGateway, settings: LakeSettings) -> None:
    with translate_errors(settings, "staging wap/flights-1"):
        doing(gateway)


@pytest.fixture
def settings(tmp_path) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path)


@pytest.mark.parametrize("doing", [a_call, a_mistake_in_the_query])
def test_a_killed_driver_is_said_to_have_died(gateway, driver, settings, doing):
    driver(60).kill()
    with pytest.raises(SparkError, match="staging wap/flights-1: Spark died") as told:
        # It may not have ended yet: the first call that finds nobody waits for that.
        attempt(a_call, gateway, settings)
    assert str(settings.logs_dir / "spark.log") in str(told.value)
    assert driver_pid() is None
    with pytest.raises(SparkError, match="Spark died"):
        attempt(doing, gateway, settings)


def test_a_driver_that_ends_a_moment_after_its_connections_has_died(gateway, driver, settings):
    driver(0.5)
    with pytest.raises(SparkError, match="Spark died"):
        attempt(a_call, gateway, settings)


@pytest.mark.parametrize(
    ("doing", "passes"), [(a_call, Py4JNetworkError), (a_mistake_in_the_query, AnalysisException)]
)
def test_no_error_is_put_down_to_a_driver_that_lives(gateway, driver, settings, monkeypatch, doing, passes):
    monkeypatch.setattr(session, "ENDING_S", 0.1)
    process = driver(60)
    with pytest.raises(passes):
        attempt(doing, gateway, settings)
    assert driver_pid() == process.pid


@pytest.mark.parametrize(
    ("doing", "passes"), [(a_call, Py4JNetworkError), (a_mistake_in_the_query, AnalysisException)]
)
def test_no_error_is_put_down_to_a_driver_that_spark_submit_started(gateway, settings, doing, passes):
    gateway.proc = None  # as PySpark leaves it when PYSPARK_GATEWAY_PORT says where the JVM is
    with pytest.raises(passes):
        attempt(doing, gateway, settings)
    assert driver_pid() is None


@pytest.mark.usefixtures("gateway")
def test_a_gateway_that_knows_no_process_is_not_asked_for_one():
    assert driver_pid() is None
    assert not has_driver_ended()


def test_without_a_driver_none_has_ended(monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert driver_pid() is None
    assert not has_driver_ended()


def an_exhausted_heap(gateway: JavaGateway) -> None:
    raise RuntimeError("Job aborted: java.lang.OutOfMemoryError: Java heap space at readings-2.csv")


def test_an_exhausted_heap_names_the_file_and_the_setting(gateway, driver, settings, tmp_path):
    files = {"/landing/sensors/all/readings-1.csv": 100, "/landing/sensors/all/readings-2.csv": 1}
    driver(60)
    with (
        pytest.raises(SparkError, match=r"out of memory.*readings-2\.csv.*LAKESHARE_SPARK_DRIVER_MEMORY.*2g"),
        translate_errors(settings, "staging", files),
    ):
        an_exhausted_heap(gateway)


def test_a_driver_that_ended_for_want_of_memory_names_the_largest_file(gateway, driver, settings, tmp_path):
    files = {"/landing/sensors/all/readings-1.csv": 100, "/landing/sensors/all/readings-2.csv": 1}
    gateway.proc = subprocess.Popen(["sh", "-c", "exit 52"])  # Spark's code for an OutOfMemoryError
    with (
        pytest.raises(SparkError, match=r"out of memory.*readings-1\.csv.*LAKESHARE_SPARK_DRIVER_MEMORY"),
        translate_errors(settings, "staging", files),
    ):
        a_call(gateway)


def test_a_catalog_that_does_not_respond_to_spark_is_named(settings):
    there = settings.model_copy(update={"iceberg_catalog": "prod"})
    with (
        pytest.raises(
            IcebergCatalogError, match=r"^Iceberg catalog prod: staging x: it did not respond to Spark"
        ),
        translate_errors(there, "staging x"),
    ):
        raise AnalysisException("org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:…")
