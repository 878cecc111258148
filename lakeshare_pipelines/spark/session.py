"""The Spark session of a run: its Java, jars, catalogs at a Nessie ref, log file and errors."""

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
from typing import TYPE_CHECKING

from lakeshare_pipelines.errors import (
    DeliveryError,
    IcebergCatalogError,
    NessieError,
    PipelineError,
    SparkError,
)
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_pipelines.spark.catalogs import NamedCatalog
from lakeshare_pipelines.spark.jars import SPARK_JARS, Java, ensure_jars, find_java, set_variable
from lakeshare_pipelines.spark.stores import (
    FAILURES,
    list_store_jars,
    list_warehouses,
    make_catalog_io,
    make_hadoop_conf,
    make_java_options,
    make_warehouse_error,
)
from lakeshare_server.settings import make_private
from lakeshare_server.storage import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeshare_pipelines.nessie.client import NessieEndpoint

MAIN_CATALOG = "lake"


def to_hadoop_path(location: str) -> str:
    """Returns the path of a location for Spark, which takes one without a scheme for one of its default store."""
    # Not as_uri(): Hadoop does not decode a quoted blank.
    return f"file://{location}" if location.startswith("/") else location


def make_catalog_name(ref: str) -> str:
    """Returns the Spark catalog of a ref: `lake` for main, else the ref with `_` for special characters."""
    return MAIN_CATALOG if ref == "main" else re.sub(r"[^0-9A-Za-z]", "_", ref)


def make_catalog_conf(
    settings: LakeSettings, stores: Stores, endpoint: "NessieEndpoint", ref: str
) -> dict[str, str]:
    """Returns the configuration of the Iceberg catalog at `ref`, always with the writer's token."""
    prefix = f"spark.sql.catalog.{make_catalog_name(ref)}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
        f"{prefix}.uri": endpoint.uri,
        f"{prefix}.ref": ref,
        f"{prefix}.warehouse": to_hadoop_path(settings.lake_root),
        f"{prefix}.cache-enabled": "false",
    }
    for name, value in make_catalog_io(stores, list_warehouses(settings)).items():
        conf[f"{prefix}.{name}"] = value
    if endpoint.writer_token:
        conf[f"{prefix}.authentication.type"] = "BEARER"
        conf[f"{prefix}.authentication.token"] = endpoint.writer_token
    return conf


def attach_catalog(
    spark: "SparkSession", settings: LakeSettings, stores: Stores, endpoint: "NessieEndpoint", ref: str
) -> str:
    for key, value in make_catalog_conf(settings, stores, endpoint, ref).items():
        spark.conf.set(key, value)
    return make_catalog_name(ref)


def attach_named_catalog(
    spark: "SparkSession", settings: LakeSettings, stores: Stores, catalog: NamedCatalog
) -> str:
    """Adds the catalog of the settings to the session; returns its name, which is the same for all branches."""
    for key, value in catalog.make_spark_conf(settings, stores).items():
        spark.conf.set(key, value)
    return catalog.name


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
    """Returns the JAVA_HOME for Spark: the Java's own, or a folder whose `java` drops one argument."""
    if has_module(java, VECTOR_MODULE):
        return java.home
    script = SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(java.binary)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = settings.state_dir / "java" / f"spark-{java.version}-{digest}"
    if not (home / "bin" / "java").exists():
        _build(home, java, script)
    return home


def has_module(java: Java, module: str) -> bool:
    listed = subprocess.run([java.binary, "--list-modules"], capture_output=True, text=True, check=True)
    return any(line.split("@")[0] == module for line in listed.stdout.splitlines())


def _build(home: Path, java: Java, script: str) -> None:
    """Builds the folder under another name and renames it: a partial folder is never used."""
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
        # Another process may have built it.
        if not (home / "bin" / "java").exists():
            raise


log = logging.getLogger(__name__)

EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)

# What every session sets; behind Spark Connect nothing else can be set.
SESSION_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # To name our line in errors, PySpark sends the driver a dozen requests more for each column expression.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

DRIVER_CONF: Mapping[str, str] = {
    "spark.sql.extensions": ",".join(EXTENSIONS),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Spark's own, and the keys of Azure's accounts.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|account[.]key|shared-key",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL_CONF: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Delta's defaults are for clusters: 50-task snapshots, a 10,000-task stage in VACUUM.
    "spark.sql.shuffle.partitions": "2",
    # Makes every stage a job: 42 jobs instead of 19 for a small day.
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


def make_session_conf(settings: LakeSettings) -> dict[str, str]:
    """Returns the session's configuration for the mode in `settings`, without Nessie catalogs.

    Raises:
        SparkError: the file of Spark properties cannot be used.
    """
    conf, stores = {"spark.app.name": "lakeshare", **SESSION_CONF}, Stores(settings)
    catalog = NamedCatalog.load(settings)
    locations = [*list_warehouses(settings), *(catalog.locations if catalog else ())]
    hadoop = {name: value for place in locations for name, value in make_hadoop_conf(stores, place).items()}
    if settings.spark_mode == "connect":
        return _add_properties(conf | hadoop, settings.spark_conf)
    conf |= DRIVER_CONF
    conf |= {f"spark.hadoop.{name}": value for name, value in hadoop.items()}
    conf["spark.master"] = settings.spark_master
    conf["spark.driver.memory"] = settings.spark_driver_memory
    jars = ensure_jars(settings, list_session_jars(settings))
    conf["spark.jars"] = ",".join(str(path) for path in jars.values())
    # NessieCatalog and the DeltaCatalog are loaded by the driver's own loader.
    conf["spark.driver.extraClassPath"] = os.pathsep.join(str(path) for path in jars.values())
    log4j_file = settings.logs_dir / "log4j2.properties"
    if not log4j_file.exists():
        make_private(log4j_file.parent)
        log4j_file.write_text(LOG4J)
    # As a URI: Java options are split at blanks, which a folder's name may contain.
    log4j = f"-Dlog4j2.configurationFile={log4j_file.as_uri()}"
    options = list(dict.fromkeys(flag for place in locations for flag in make_java_options(stores, place)))
    conf["spark.driver.extraJavaOptions"] = " ".join([log4j, *options, settings.spark_driver_options]).strip()
    if options:
        conf["spark.executor.extraJavaOptions"] = " ".join(options)
    if settings.spark_mode == "local":
        conf |= LOCAL_CONF
        # Derby and the SQL warehouse are otherwise created in the working directory.
        conf["spark.sql.warehouse.dir"] = f"file://{settings.state_dir / 'spark-warehouse'}"
    return _add_properties(conf, settings.spark_conf)


def list_session_jars(settings: LakeSettings) -> tuple[str, ...]:
    """The jars of a session for the stores and the Iceberg catalog of the settings."""
    catalog = NamedCatalog.load(settings)
    locations, own = (catalog.locations, catalog.jars) if catalog else ((), ())
    stores = list_store_jars([*list_warehouses(settings), *locations])
    return tuple(dict.fromkeys((*SPARK_JARS, *stores, *own)))


LISTS = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
}
"""Properties that are lists, with their separator."""
PROPERTY_LINE = re.compile(r"(spark\.\S*?)(?:\s*[=:]\s*|\s+)(.*)")


def _add_properties(conf: dict[str, str], path: Path | None) -> dict[str, str]:
    """Returns the configuration with the properties of a file, as `spark-submit --properties-file` reads it."""
    if path is None:
        return conf
    added = dict(conf)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SparkError(
            f"LAKESHARE_SPARK_CONF: {path} cannot be read: {error}", "Correct or unset it"
        ) from error
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        found = PROPERTY_LINE.fullmatch(text)
        if found is None:
            reason = f"LAKESHARE_SPARK_CONF: {path}:{number}: {text!r} is no Spark property"
            raise SparkError(reason, "Write one on each line, like `spark.executor.memory 4g`")
        name, value = found[1], found[2].strip()
        ours = conf.get(name)
        added[name] = f"{ours}{LISTS[name]}{value}" if ours and name in LISTS else value
    return added


def prepare_folders(settings: LakeSettings) -> None:
    """Creates the folders of state and tables privately: Spark would make them readable by all."""
    make_private(settings.state_dir)
    if settings.lake_root.startswith("/"):
        make_private(Path(settings.lake_root))


def start_driver(settings: LakeSettings, conf: Mapping[str, str]) -> None:
    """Starts the driver's JVM with its output in `logs/spark.log`; starts it again if it died."""
    if settings.spark_mode == "connect":
        return
    prepare_folders(settings)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if settings.spark_mode == "local":
        # Otherwise workers run the first python3 on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _forget_dead_driver()
    if SparkContext._active_spark_context is not None:
        return
    spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    log_path = settings.logs_dir / "spark.log"
    try:
        if SparkContext._gateway is None:
            home = prepare_java_home(find_java("spark", settings), settings)
            make_private(log_path.parent)
            with log_path.open("ab") as out, set_variable("JAVA_HOME", str(home)):
                gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark's own start, untyped
                    spark_conf, popen_kwargs={"stdout": out, "stderr": subprocess.STDOUT}
                )
            SparkContext(gateway=gateway, conf=spark_conf)
        else:
            SparkContext(conf=spark_conf)
    except PySparkRuntimeError as error:
        fix = f"read the end of {log_path}; `lakeshare doctor` checks Java and the jars"
        raise SparkError(f"Spark did not start: {error.getErrorClass() or error}", fix) from error


@contextmanager
def spark_session(settings: LakeSettings) -> Iterator["SparkSession"]:
    """Yields a session that is stopped at the end of the block."""
    session = open_session(settings)
    try:
        yield session
    finally:
        stop_session(session)


def open_session(settings: LakeSettings) -> "SparkSession":
    """Opens a session in the mode of `settings`, to be ended with `stop_session`."""
    from pyspark.sql import SparkSession

    conf = make_session_conf(settings)
    start_driver(settings, conf)
    builder = SparkSession.builder
    if settings.spark_mode == "connect":
        if not settings.spark_remote:
            reason = "LAKESHARE_SPARK_MODE is connect but no address is set"
            raise SparkError(reason, "set LAKESHARE_SPARK_REMOTE")
        builder = builder.remote(settings.spark_remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def stop_session(session: "SparkSession") -> None:
    """Stops the session; a dead driver is ignored."""
    from py4j.protocol import Py4JError

    try:
        session.stop()
    except (Py4JError, OSError) as error:
        log.warning("Spark was gone before it was stopped: %s", error)
        _forget_dead_driver()


def has_driver_ended(wait_s: float = 0) -> bool:
    """Whether the driver JVM has ended, or does within `wait_s`.

    False for a driver that another process started: behind Spark Connect, or spark-submit.
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
    """Returns the exit code of the driver JVM; None while it runs, or if there is none."""
    driver = _driver()
    return None if driver is None else driver.poll()


def _driver() -> "subprocess.Popen[bytes] | None":
    """Returns the process of PySpark's gateway. spark-submit and our script for `java` exec: it is the JVM itself."""
    from pyspark import SparkContext

    # vars(), because getattr() of a gateway without the attribute asks the JVM.
    gateway = SparkContext._gateway
    return None if gateway is None else vars(gateway).get("proc")


def _forget_dead_driver() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if not has_driver_ended():
        return
    # PySpark keeps the gateway of a killed JVM in these.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


NESSIE_GONE = ("HttpClientException", "NessieServiceException", "NessieBackendThrottled")
CATALOG_GONE = (
    "UncheckedSQLException",
    "PSQLException",
    "SQLiteException",
    "RESTException",
    "ServiceFailureException",
)
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
NO_MEMORY = ("java.lang.OutOfMemoryError", "Java heap space", "GC overhead limit exceeded")
NO_MEMORY_EXIT = 52
"""Exit code of a JVM that Spark ends because of an OutOfMemoryError (SparkExitCode.OOM)."""
VALUE_TOO_LONG = "exceeds the maximum number of characters defined in your parser settings"
ENDING_S = 5


@contextmanager
def translate_errors(settings: LakeSettings, doing: str, files: Sequence[Path] = ()) -> Iterator[None]:
    """Turns Spark's exceptions in the block into PipelineErrors; unknown ones pass unchanged.

    `files` are read in the block: an error about memory names one of them.

    Raises:
        SparkError: the driver that this process started has ended, memory did not suffice, or a disk is full.
        DeliveryError: a value of a file is longer than a line may be.
        NessieError, IcebergCatalogError: the catalog does not respond.
        WarehouseError: the store of the tables refuses a request, or does not respond.
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
    from py4j.protocol import Py4JError, Py4JJavaError

    # First, because PySpark's exceptions request their text from the driver. A killed JVM's connections close a moment
    # before its process ends.
    is_cut_off = isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
    if has_driver_ended(wait_s=ENDING_S if is_cut_off else 0):
        if driver_exit_code() == NO_MEMORY_EXIT:
            return _make_memory_error(settings, doing, files, "")
        log = settings.logs_dir / "spark.log"
        return SparkError(f"{doing}: Spark died", f"run again; if it happens twice read the end of {log}")
    text = str(error)
    if any(words in text for words in DISK_FULL):
        reason = f"{doing}: the disk is full"
        return SparkError(reason, f"free space below {settings.lake_root}, then run again")
    too_long = [file for file in files if VALUE_TOO_LONG in text and file.name in text]
    if too_long:
        # `<landing>/<set>/<partition>/<file>`
        reason = f"a value is longer than {settings.max_line_mb} MiB, as where a quote is not closed"
        fix = "Correct the file, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it."
        return DeliveryError("/".join(too_long[0].parts[-3:]), reason, fix)
    if any(words in text for words in NO_MEMORY):
        return _make_memory_error(settings, doing, files, text)
    stores = [location for location in list_warehouses(settings) if not location.startswith("/")]
    if stores and any(name in text for name in FAILURES):
        return make_warehouse_error(" or ".join(stores), text)
    if settings.iceberg_catalog != NESSIE and any(name in text for name in CATALOG_GONE):
        reason, fix = f"{doing}: it did not respond to Spark", "Run again; `lakeshare doctor` checks it"
        return IcebergCatalogError(settings.iceberg_catalog, reason, fix)
    if any(name in text for name in NESSIE_GONE):
        message = f"{doing}: the catalog does not answer; run again, `lakeshare doctor` checks it"
        return NessieError(0, "UNREACHABLE", message)
    return None


def _make_memory_error(settings: LakeSettings, doing: str, files: Sequence[Path], text: str) -> SparkError:
    where = ""
    if named := [file for file in files if file.name in text]:
        where = f" while it read {named[0].parent.name}/{named[0].name}"
    elif present := [file for file in files if file.exists()]:
        largest = max(present, key=lambda file: file.stat().st_size)
        where = f"; the largest file it read is {largest.parent.name}/{largest.name}"
    return SparkError(
        f"{doing}: Spark ran out of memory{where}",
        f"raise LAKESHARE_SPARK_DRIVER_MEMORY (it is {settings.spark_driver_memory}), lower LAKESHARE_MAX_LINE_MB "
        f"(it is {settings.max_line_mb}) so that long lines are refused, or deliver smaller files, then run again",
    )
