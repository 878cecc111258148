"""One Spark session for a run: the right Java, the pinned jars, its noise in a log file.

Catalogs at a Nessie ref are added to a running session by `catalogs.py`; nothing here knows a table.
"""

import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lakeshare_pipelines.errors import DeliveryError, NessieError, PipelineError, SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import SPARK_JARS, Java, ensure_jars, find_java
from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeshare_pipelines.nessie.client import NessieEndpoint

MAIN_CATALOG = "lake"


def make_catalog_name(ref: str) -> str:
    """The Spark catalog of a ref: `lake` for main, the ref with `_` for what SQL forbids otherwise."""
    return MAIN_CATALOG if ref == "main" else re.sub(r"[^0-9A-Za-z]", "_", ref)


def make_catalog_conf(settings: LakeSettings, endpoint: "NessieEndpoint", ref: str) -> dict[str, str]:
    """Configuration of the Iceberg catalog at `ref`; Spark always carries the writer's token."""
    prefix = f"spark.sql.catalog.{make_catalog_name(ref)}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
        f"{prefix}.uri": endpoint.uri,
        f"{prefix}.ref": ref,
        # Not as_uri(): Hadoop takes the %20 of a quoted blank for three characters of the folder's name.
        f"{prefix}.warehouse": f"file://{settings.warehouse}",
        f"{prefix}.cache-enabled": "false",
    }
    if endpoint.writer_token:
        conf[f"{prefix}.authentication.type"] = "BEARER"
        conf[f"{prefix}.authentication.token"] = endpoint.writer_token
    return conf


def attach_catalog(
    spark: "SparkSession", settings: LakeSettings, endpoint: "NessieEndpoint", ref: str
) -> str:
    """Add the catalog of `ref` to the session and return its name."""
    for key, value in make_catalog_conf(settings, endpoint, ref).items():
        spark.conf.set(key, value)
    return make_catalog_name(ref)


VECTOR_MODULE = "jdk.incubator.vector"

SCRIPT = """\
#!/bin/sh
# Made by lakeshare: this Java has no module {module}, and Spark's launcher asks for it.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare_java_home(java: Java, settings: LakeSettings) -> Path:
    """The JAVA_HOME to start Spark with: the Java's own, or a folder whose `java` drops one argument."""
    if has_module(java, VECTOR_MODULE):
        return java.home
    script = SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(java.binary)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = settings.state_dir / "java" / f"spark-{java.version}-{digest}"
    if not (home / "bin" / "java").exists():
        _build(home, java, script)
    return home


def has_module(java: Java, module: str) -> bool:
    """Whether the Java was built with this module."""
    listed = subprocess.run([java.binary, "--list-modules"], capture_output=True, text=True, check=True)
    return any(line.split("@")[0] == module for line in listed.stdout.splitlines())


def _build(home: Path, java: Java, script: str) -> None:
    """Built aside and renamed into place, so that nobody starts from half of it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    for entry in java.home.iterdir():
        if entry.name != "bin":
            (aside / entry.name).symlink_to(entry)
    binary = aside / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(script)
    binary.chmod(0o755)
    try:
        aside.rename(home)
    except OSError:
        shutil.rmtree(aside)
        # Another process may have been first: its folder serves as well.
        if not (home / "bin" / "java").exists():
            raise


log = logging.getLogger(__name__)

EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)

# What any session may set for itself; behind Spark Connect nothing else can be.
SESSION_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
}

DRIVER_CONF: Mapping[str, str] = {
    "spark.sql.extensions": ",".join(EXTENSIONS),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL_CONF: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Delta's defaults are made for clusters: 50-task snapshots, a 10,000-task stage in VACUUM.
    "spark.sql.shuffle.partitions": "2",
    # With two partitions there is little to adapt, and it makes every stage a job: 42 jobs for a small day, not 19.
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


def make_session_conf(settings: LakeSettings) -> dict[str, str]:
    """The session's configuration for the mode in `settings`, without any Nessie catalog."""
    conf = {"spark.app.name": "lakeshare", **SESSION_CONF}
    if settings.spark_mode == "connect":
        return conf
    conf |= DRIVER_CONF
    conf["spark.master"] = settings.spark_master
    conf["spark.driver.memory"] = settings.spark_driver_memory
    jars = ensure_jars(settings, SPARK_JARS)
    conf["spark.jars"] = ",".join(str(path) for path in jars.values())
    # NessieCatalog and the DeltaCatalog are loaded by the driver's own loader.
    conf["spark.driver.extraClassPath"] = os.pathsep.join(str(path) for path in jars.values())
    # As a URI: Java options are split at blanks, and a folder may have one in its name.
    log4j = f"-Dlog4j2.configurationFile={_log4j_file(settings).as_uri()}"
    conf["spark.driver.extraJavaOptions"] = f"{log4j} {settings.spark_driver_options}".strip()
    if settings.spark_mode == "local":
        conf |= LOCAL_CONF
        # Derby and the SQL warehouse would otherwise be made in whichever folder the run was started.
        conf["spark.sql.warehouse.dir"] = f"file://{settings.state_dir / 'spark-warehouse'}"
    return conf


def prepare_folders(settings: LakeSettings) -> None:
    """Make the folders of state and tables for their owner: Spark would make them for everybody to read."""
    for folder in (settings.state_dir, settings.warehouse):
        make_private(folder)


def start_driver(settings: LakeSettings, conf: Mapping[str, str]) -> None:
    """Start the driver's JVM with the chosen Java and its output in `logs/spark.log`; again if it died.

    Raises:
        JavaError: no usable Java.
        SparkError: the JVM did not start; the log file is named.
    """
    if settings.spark_mode == "connect":
        return
    prepare_folders(settings)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if settings.spark_mode == "local":
        # Else workers run whichever python3 is first on the PATH, which may be another version, or none.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _forget_dead_driver()
    if SparkContext._active_spark_context is not None:
        return
    spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    log_path = settings.logs_dir / "spark.log"
    try:
        if SparkContext._gateway is None:
            home = prepare_java_home(find_java("spark", settings), settings)
            with _spark_log(log_path) as out, _java_home(home):
                gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark's own start, untyped
                    spark_conf, popen_kwargs={"stdout": out, "stderr": subprocess.STDOUT}
                )
            SparkContext(gateway=gateway, conf=spark_conf)
        else:
            SparkContext(conf=spark_conf)
    except PySparkRuntimeError as error:
        raise SparkError(
            f"Spark did not start: {error.getErrorClass() or error}",
            f"read the end of {log_path}; `lakeshare doctor` checks Java and the jars",
        ) from error


@contextlib.contextmanager
def spark_session(settings: LakeSettings) -> Iterator["SparkSession"]:
    """A session for the length of a `with` block, stopped at its end."""
    session = open_session(settings)
    try:
        yield session
    finally:
        stop_session(session)


def open_session(settings: LakeSettings) -> "SparkSession":
    """A session in the mode of `settings`, to be ended with `stop_session`.

    Raises:
        JavaError, SparkError: as `start_driver`; or no address is set for mode connect.
    """
    from pyspark.sql import SparkSession

    conf = make_session_conf(settings)
    start_driver(settings, conf)
    builder = SparkSession.builder
    if settings.spark_mode == "connect":
        if not settings.spark_remote:
            raise SparkError(
                "LAKESHARE_SPARK_MODE is connect but no address is set", "set LAKESHARE_SPARK_REMOTE"
            )
        builder = builder.remote(settings.spark_remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def stop_session(session: "SparkSession") -> None:
    """Stop the session; a driver that already died has nothing left to stop."""
    from py4j.protocol import Py4JError

    try:
        session.stop()
    except (Py4JError, OSError) as error:
        log.warning("Spark was gone before it was stopped: %s", error)
        _forget_dead_driver()


def driver_pid() -> int | None:
    """Process id of the driver JVM this process started; None when there is none."""
    driver = _driver()
    return driver.pid if driver is not None and driver.poll() is None else None


def has_driver_ended(wait_s: float = 0) -> bool:
    """Whether the driver JVM this process started has ended, or does within `wait_s`.

    Never of a driver that somebody else started: behind Spark Connect, or a spark-submit that started this process.
    """
    driver = _driver()
    if driver is None:
        return False
    try:
        driver.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def driver_exit_code() -> int | None:
    """Exit code of the driver JVM this process started; None while it runs, or when there is none."""
    driver = _driver()
    return None if driver is None else driver.poll()


def _driver() -> "subprocess.Popen[bytes] | None":
    """The process of PySpark's gateway. spark-submit and our stand-in for `java` both exec: it is the JVM itself."""
    from pyspark import SparkContext

    # By vars(): what a gateway itself lacks, as one that PySpark did not start, getattr() looks up in the JVM.
    gateway = SparkContext._gateway
    return None if gateway is None else vars(gateway).get("proc")


def _forget_dead_driver() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if not has_driver_ended():
        return
    # PySpark keeps a killed JVM's gateway for ever; these are the places it keeps it in.
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _java_home(home: Path) -> Iterator[None]:
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


@contextlib.contextmanager
def _spark_log(path: Path) -> Iterator[IO[bytes]]:
    make_private(path.parent)
    with path.open("ab") as out:
        yield out


LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def _log4j_file(settings: LakeSettings) -> Path:
    path = settings.logs_dir / "log4j2.properties"
    if not path.exists():
        make_private(path.parent)
        path.write_text(LOG4J)
    return path


NESSIE_GONE = ("HttpClientException", "NessieServiceException", "NessieBackendThrottled")
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
NO_MEMORY = ("java.lang.OutOfMemoryError", "Java heap space", "GC overhead limit exceeded")
NO_MEMORY_EXIT = 52
"""Exit code of a JVM that Spark ends because of an OutOfMemoryError (SparkExitCode.OOM)."""
VALUE_TOO_LONG = "exceeds the maximum number of characters defined in your parser settings"
ENDING_S = 5


@contextmanager
def translate_errors(settings: LakeSettings, doing: str, files: Sequence[Path] = ()) -> Iterator[None]:
    """Turn Spark's exceptions inside the block into ours, with what to do; what is not known passes unchanged.

    `files` are those that are read in the block: where memory does not suffice, one of them is named.

    Raises:
        SparkError: the driver that this process started has ended, memory did not suffice, or a disk is full.
        DeliveryError: a value of a file is longer than a line may be.
        NessieError: the catalog does not answer.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        known = _translate_error(settings, doing, files, error)
        if known is None:
            raise
        raise known from error


def _translate_error(
    settings: LakeSettings, doing: str, files: Sequence[Path], error: Exception
) -> PipelineError | None:
    # First: PySpark's exceptions ask the driver for their own text.
    if _is_driver_gone(error):
        if driver_exit_code() == NO_MEMORY_EXIT:
            return _make_memory_error(settings, doing, files, "")
        log = settings.logs_dir / "spark.log"
        return SparkError(f"{doing}: Spark died", f"run again; if it happens twice read the end of {log}")
    text = str(error)
    if any(words in text for words in DISK_FULL):
        return SparkError(
            f"{doing}: the disk is full", f"free space below {settings.warehouse}, then run again"
        )
    too_long = [file for file in files if VALUE_TOO_LONG in text and file.name in text]
    if too_long:
        # `<landing>/<set>/<partition>/<file>`
        return DeliveryError(
            "/".join(too_long[0].parts[-3:]),
            f"a value is longer than {settings.max_line_mb} MiB, as where a quote is not closed",
            "Correct the file, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it.",
        )
    if any(words in text for words in NO_MEMORY):
        return _make_memory_error(settings, doing, files, text)
    if any(name in text for name in NESSIE_GONE):
        return NessieError(
            0,
            "UNREACHABLE",
            f"{doing}: the catalog does not answer; run again, `lakeshare doctor` looks at it",
        )
    return None


def _make_memory_error(settings: LakeSettings, doing: str, files: Sequence[Path], text: str) -> SparkError:
    named = [file for file in files if file.name in text]
    there = [file for file in files if file.exists()]
    if named:
        where = f" while it read {named[0].parent.name}/{named[0].name}"
    elif there:
        largest = max(there, key=lambda file: file.stat().st_size)
        where = f"; the largest file it read is {largest.parent.name}/{largest.name}"
    else:
        where = ""
    return SparkError(
        f"{doing}: Spark ran out of memory{where}",
        f"raise LAKESHARE_SPARK_DRIVER_MEMORY (it is {settings.spark_driver_memory}), lower LAKESHARE_MAX_LINE_MB "
        f"(it is {settings.max_line_mb}) so that long lines are refused, or deliver smaller files, then run again",
    )


def _is_driver_gone(error: Exception) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    # A killed JVM's connections close a moment before its process has ended.
    is_cut_off = isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
    return has_driver_ended(wait_s=ENDING_S if is_cut_off else 0)
