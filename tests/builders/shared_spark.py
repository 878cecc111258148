"""A Spark driver that several processes of a test use, as a JVM of their own costs each of them ten seconds."""

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark import session as driver_session
from lakeshare_pipelines.spark.jars import AZURE_JARS, GCS_JARS, JDBC_JARS, S3_JARS
from lakeshare_pipelines.spark.session import keep_functions, open_session, stop_session
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.lazy import LazyModule
from tests.builders.shared_folder import folder_of_all_workers
from tests.conftest import SPARK_CLASSES

# The last release, which uses the driver too, has it elsewhere.
file_lock = LazyModule("lakeshare_server.file_lock")

START_S = 300.0
# Collecting young objects took a tenth of its time with the 480 MB for them that a driver of tests has otherwise.
DRIVER_MEMORY, YOUNG_MEMORY = "4g", "-Xmn2g"
# Delta reads the state of a table by a job at each of its versions; those of tests have some lines. By default Spark
# allocates pages of 64 MB for each sort and aggregate, and blocks of 4 MB for each plan that it sends to its tasks:
# both are zeroed, and fill the heap. It also describes each plan for its UI. docs/adr/0092 has the reasons for
# the classes that are before Spark's own.
PROPERTIES = f"""
spark.databricks.delta.snapshotPartitions 1
spark.buffer.pageSize 1m
spark.broadcast.blockSize 64k
spark.sql.ui.explainMode simple
spark.driver.extraClassPath {SPARK_CLASSES}
"""
OF_ALL_TESTS = (*S3_JARS, *GCS_JARS, *AZURE_JARS, *JDBC_JARS)


@dataclass(frozen=True)
class SharedSpark:
    """Port and secret of the gateway of a running driver, and the process id of its JVM."""

    port: int
    secret: str
    pid: int

    @classmethod
    def of(cls, session: SparkSession) -> Self:
        """The driver of a session of this process."""
        gateway = _gateway(session)
        parameters, java = gateway.java_parameters, gateway.jvm.java.lang.ProcessHandle.current()
        return cls(parameters.port, parameters.auth_token, java.pid())

    @classmethod
    def for_runs(cls, lake: Lake) -> Self | None:
        """The driver of a lake for other runs; None on a cluster, where each run has one of its own."""
        return cls.of(lake.spark) if lake.settings.spark_mode == "local" else None

    def attach(self) -> SparkSession:
        """Open a session of its own in the driver. Never stop it."""
        # This process may be attached already: a worker that runs out of other tests takes some of those with Spark.
        context = SparkContext._active_spark_context or self._make_context()
        sessions = SparkSession._get_j_spark_session_class(context._gateway.jvm)
        running = sessions.getDefaultSession().get()
        session = SparkSession(context, jsparkSession=running.newSession())
        # PySpark made the new session the driver's default.
        sessions.setDefaultSession(running)
        return session

    def serve_this_process(self) -> None:
        """Let all work of this process use the driver: its end does not stop it."""
        self.attach()
        SparkSession.stop = lambda _: None

    def make_environment(self, folder: Path, word: str) -> dict[str, str]:
        """Variables of a process whose Python processes with this word in their command line use the driver."""
        lines = [
            "import sys",
            f"if {word!r} in sys.orig_argv:",
            f"    from {__name__} import SharedSpark",
            f"    {self!r}.serve_this_process()",
        ]
        # Python imports the module of this name when it starts.
        (folder / "sitecustomize.py").write_text("\n".join(lines))
        return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}

    def _make_context(self) -> SparkContext:
        with pytest.MonkeyPatch.context() as patch:
            # For this call only: processes that this one starts may have a driver of their own.
            patch.setenv("PYSPARK_GATEWAY_PORT", str(self.port))
            patch.setenv("PYSPARK_GATEWAY_SECRET", self.secret)
            gateway = launch_gateway()
        keep_functions(gateway.jvm)
        SparkContext._ensure_initialized(gateway=gateway)
        # As lakeshare_pipelines.spark.session does: otherwise workers run the first python3 on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        running_context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        java_context = gateway.jvm.JavaSparkContext.fromSparkContext(running_context)
        conf = SparkConf(_jconf=java_context.getConf())
        return SparkContext(gateway=gateway, jsc=java_context, conf=conf)


# What this process does at the end of its tests.
_at_end = ExitStack()
stop_own_driver = _at_end.close


@contextmanager
def driver_of_all_workers(
    settings: LakeSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session in the driver that all workers of a test run share.

    The first worker that needs it starts it by its settings. At the end of its tests (tests/conftest.py) it waits until
    the others do not use it any more, and stops it.
    """
    folder = folder_of_all_workers(tmp_path_factory) / "spark"
    folder.mkdir(exist_ok=True)
    address = folder / "driver.json"
    with (folder / "users").open("a") as users:
        with file_lock.hold_lock(folder / "start.lock", wait_s=START_S):
            if address.exists():
                session = SharedSpark(**json.loads(address.read_text())).attach()
            else:
                with pytest.MonkeyPatch.context() as patch:
                    # Whatever the first worker's settings: tests of other stores and catalogs use this driver, too.
                    patch.setattr(driver_session, "list_store_jars", lambda _locations: OF_ALL_TESTS)
                    # Those of executors on a cluster, for one: the keys of the tests' store.
                    own_lines = settings.spark_conf.read_text() if settings.spark_conf else ""
                    (folder / "spark.properties").write_text(PROPERTIES + own_lines)
                    own = {
                        "spark_driver_memory": DRIVER_MEMORY,
                        "spark_driver_options": f"{settings.spark_driver_options} {YOUNG_MEMORY}",
                        "spark_conf": folder / "spark.properties",
                    }
                    session = open_session(settings.model_copy(update=own))
                address.write_text(json.dumps(asdict(SharedSpark.of(session))))
                _at_end.callback(_stop, folder, session)
            fcntl.flock(users, fcntl.LOCK_SH)
        yield session


def _stop(folder: Path, session: SparkSession) -> None:
    with file_lock.hold_lock(folder / "start.lock", wait_s=START_S):
        (folder / "driver.json").unlink()
    with (folder / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        stop_session(session)


def driver_pid() -> int | None:
    """The process id of the running driver JVM that this process started."""
    driver = driver_session._driver()
    return driver.pid if driver is not None and driver.poll() is None else None


def forget_cached(session: SparkSession) -> None:
    """Drop what the driver holds in memory, as the end of a killed process's own driver would have."""
    session.catalog.clearCache()
    _gateway(session).jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _gateway(session: SparkSession) -> Any:
    return session.sparkContext._gateway
