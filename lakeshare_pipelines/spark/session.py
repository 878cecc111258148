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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakeshare_pipelines.errors import (
    DeliveryError,
    IcebergCatalogError,
    NessieError,
    PipelineError,
    SparkError,
)
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_pipelines.spark.catalogs import NamedCatalog
from lakeshare_pipelines.spark.jars import (
    SPARK_JARS,
    Java,
    ensure_jars,
    find_java,
    make_archive_options,
    set_variable,
)
from lakeshare_pipelines.spark.stores import (
    FAILURES,
    list_sources,
    list_store_jars,
    list_warehouses,
    make_catalog_io,
    make_hadoop_conf,
    make_java_options,
    make_landing_error,
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


def escape_glob(path: str) -> str:
    """Returns the path as a pattern of Hadoop that fits it alone."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


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
    # As for what is not read as a variant: the last one counts.
    "spark.sql.variant.allowDuplicateKeys": "true",
    # Pandas writes timestamps in nanoseconds, which Spark reads as integers only.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # To name our line in errors, PySpark sends the driver a dozen requests more for each column expression.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

APPLICATION_CONF: Mapping[str, str] = {"spark.app.name": "lakeshare", **SESSION_CONF}

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
    if settings.spark_mode != "connect":
        return make_driver_conf(settings)
    return _add_properties({**APPLICATION_CONF, **_make_hadoop_conf(settings)}, settings.spark_conf)


def make_driver_conf(settings: LakeSettings) -> dict[str, str]:
    """Returns the configuration of a driver: the run's own, or in mode connect that of the Spark Connect server.

    Raises:
        SparkError: the file of Spark properties cannot be used.
    """
    conf, locations = dict(APPLICATION_CONF), _list_locations(settings)
    conf |= DRIVER_CONF
    conf |= {f"spark.hadoop.{name}": value for name, value in _make_hadoop_conf(settings).items()}
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
    options = list(dict.fromkeys(flag for place in locations for flag in make_java_options(*place)))
    conf["spark.driver.extraJavaOptions"] = " ".join([log4j, *options, settings.spark_driver_options]).strip()
    if options:
        conf["spark.executor.extraJavaOptions"] = " ".join(options)
    if settings.spark_mode == "local":
        conf |= LOCAL_CONF
        # Derby and the SQL warehouse are otherwise created in the working directory.
        conf["spark.sql.warehouse.dir"] = f"file://{settings.state_dir / 'spark-warehouse'}"
    return _add_properties(conf, settings.spark_conf)


def _make_hadoop_conf(settings: LakeSettings) -> dict[str, str]:
    found = [make_hadoop_conf(stores, location) for stores, location in _list_locations(settings)]
    # Otherwise a file that was damaged on its way is read with other values. PyArrow writes no checksums by default.
    checked = {"parquet.page.verify-checksum.enabled": "true"}
    return checked | {name: value for conf in found for name, value in conf.items()}


def list_session_jars(settings: LakeSettings) -> tuple[str, ...]:
    """The jars of a session for the stores and the Iceberg catalog of the settings."""
    catalog = NamedCatalog.load(settings)
    stores = list_store_jars(location for _, location in _list_locations(settings))
    driver = ("postgresql",) if any(source.jdbc is not None for source in list_sources(settings)) else ()
    return tuple(dict.fromkeys((*SPARK_JARS, *stores, *(catalog.jars if catalog else ()), *driver)))


def _list_locations(settings: LakeSettings) -> list[tuple[Stores, str]]:
    """The locations of tables and deliveries, each with the stores that reach it."""
    catalog, stores = NamedCatalog.load(settings), Stores(settings)
    sources = [source.location for source in list_sources(settings) if source.location is not None]
    tables = [*list_warehouses(settings), *(catalog.locations if catalog else ()), *sources]
    landing = Stores(settings.landing_stores), settings.landing_root
    return [*((stores, location) for location in tables), landing]


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


SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|account[.]key|connection-string|\bsas\b")
"""The names whose values Spark does not show either (`spark.redaction.regex`), and those of Azure."""


def format_properties(conf: Mapping[str, str]) -> str:
    """Returns lines of a properties file of Java, sorted by name; secrets are left out, as comments."""
    lines = []
    for name, value in sorted(conf.items()):
        # A secret of Kubernetes is named, not given.
        hidden = SECRET.search(name) and ".secretKeyRef." not in name
        escaped = value.replace("\\", "\\\\")
        lines.append(f"# {name}: not printed" if hidden else f"{name} {escaped}")
    return "\n".join(lines)


def prepare_folders(settings: LakeSettings) -> None:
    """Creates the folders of state and tables privately: Spark would make them readable by all."""
    make_private(settings.state_dir)
    if settings.lake_root.startswith("/"):
        make_private(Path(settings.lake_root))


def _add_archive_options(java: Java, settings: LakeSettings, conf: Mapping[str, str]) -> str:
    """The driver's Java options, with those for an archive of its classes.

    Measured on two cores: Spark starts in 4.0 s instead of 6.5, and has made and read its first tables in 14 s instead
    of 20.
    """
    from pyspark.find_spark_home import _find_spark_home

    options = conf.get("spark.driver.extraJavaOptions", "")
    flags = [word for word in options.split() if not word.startswith("-D")]
    if any(word.startswith("-Xshare") or "Archive" in word for word in flags):
        return options
    class_path = conf.get("spark.driver.extraClassPath", "").split(os.pathsep)
    home = Path(_find_spark_home())  # type: ignore[no-untyped-call]  # PySpark's own search, untyped
    files = [*map(Path, class_path), *sorted((home / "jars").iterdir())]
    # Java refuses an archive of files that were changed.
    changed = [(path, path.stat().st_mtime_ns) for path in files if path.exists()]
    contents = (*flags, conf.get("spark.driver.memory"), os.environ.get("SPARK_DIST_CLASSPATH"), *changed)
    archived = make_archive_options(java, settings, "spark", *contents)
    # Spark splits options at blanks outside of quotes.
    return " ".join([*(f'"{option}"' for option in archived), options])


def start_driver(settings: LakeSettings, conf: Mapping[str, str]) -> None:
    """Starts the driver's JVM with its output in `logs/spark.log`; starts it again if it died."""
    if settings.spark_mode == "connect":
        return
    prepare_folders(settings)
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if settings.spark_mode == "local":
        # Otherwise workers run the first python3 on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _forget_dead_driver()
    if (running := SparkContext._active_spark_context) is not None:
        if not running._jsc.sc().isStopped():
            return
        # A cluster that was lost ended it, in the JVM only.
        running.stop()
    spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    log_path = settings.logs_dir / "spark.log"
    try:
        if SparkContext._gateway is None:
            java = find_java("spark", settings)
            home = prepare_java_home(java, settings)
            spark_conf.set("spark.driver.extraJavaOptions", _add_archive_options(java, settings, conf))
            make_private(log_path.parent)
            with log_path.open("ab") as out, set_variable("JAVA_HOME", str(home)):
                gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark's own start, untyped
                    spark_conf, popen_kwargs={"stdout": out, "stderr": subprocess.STDOUT}
                )
            SparkContext(gateway=gateway, conf=spark_conf)
            keep_functions(gateway.jvm)
        else:
            SparkContext(conf=spark_conf)
    except (PySparkRuntimeError, Py4JJavaError) as error:
        fix = f"read the end of {log_path}; `lakeshare doctor` checks Java and the jars"
        reason = error.java_exception if isinstance(error, Py4JJavaError) else error.getErrorClass() or error
        raise SparkError(f"Spark did not start: {reason}", fix) from error


class KeptClass:
    """A Java class whose static methods are looked up once; Py4J asks the driver for them before each call."""

    def __init__(self, java_class: Any) -> None:
        self._java_class = java_class

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._java_class, name)
        setattr(self, name, method)
        return method


FUNCTIONS = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
"""The classes of static methods that PySpark calls for each column."""


def keep_functions(jvm: Any) -> None:
    """Keeps the classes of column functions: for a short name, Py4J lets the driver search all jars at each use."""
    for name in FUNCTIONS:
        setattr(jvm, name, KeptClass(getattr(jvm, name)))


@contextmanager
def spark_session(settings: LakeSettings) -> Iterator["SparkSession"]:
    """Yields a session that is stopped at the end of the block."""
    session = open_session(settings)
    try:
        yield session
    finally:
        stop_session(session)


def open_session(
    settings: LakeSettings, build: "Callable[[dict[str, str]], SparkSession] | None" = None
) -> "SparkSession":
    """Opens a session in the mode of `settings`, to be ended with `stop_session`.

    With `build` that makes the session of a local or cluster driver from its configuration, else PySpark's builder.

    Raises:
        SparkError: Spark did not start, its master does not respond, or no address of Spark Connect is set.
    """
    conf = make_session_conf(settings)
    if settings.spark_mode == "connect":
        if not settings.spark_remote:
            reason = "LAKESHARE_SPARK_MODE is connect but no address is set"
            raise SparkError(reason, "set LAKESHARE_SPARK_REMOTE")
        with translate_errors(settings, "starting Spark"):
            return _build_session(conf, settings.spark_remote)
    start_driver(settings, conf)
    with translate_errors(settings, "starting Spark"):
        session = (build or _build_session)(conf)
    if settings.spark_mode == "cluster":
        ExecutorWatch(session, settings.spark_wait_s).start()
    return session


def _build_session(conf: Mapping[str, str], remote: str | None = None) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder if remote is None else SparkSession.builder.remote(remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class ExecutorWatch(threading.Thread):
    """Cancels jobs that have waited too long for an executor: Spark itself waits for a lost master without an end."""

    def __init__(self, session: "SparkSession", wait_s: float) -> None:
        super().__init__(name="executor-watch", daemon=True)
        self._context, self._wait_s = session.sparkContext._jsc.sc(), wait_s

    def run(self) -> None:
        from py4j.protocol import Py4JError

        since: float | None = None
        try:
            while not self._context.isStopped():
                now = time.monotonic()
                is_over = since is not None and now - since > self._wait_s
                # The driver is one of them.
                if self._context.getExecutorMemoryStatus().size() > 1:
                    since = None
                elif jobs := self._context.statusTracker().getActiveJobIds():
                    since = since or now
                    for job in jobs if is_over else ():
                        self._context.cancelJob(job, f"{NO_EXECUTOR} within {self._wait_s} s")
                elif not is_over:
                    since = None
                time.sleep(EXECUTOR_POLL_S)
        except (Py4JError, OSError) as error:
            log.info("the driver has ended, and the watch for its executors with it: %s", error)


def is_connect(session: "SparkSession") -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def set_conf(session: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """Sets properties of a session for the block, and back to what they were."""
    before = {key: session.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


def count_cores(session: "SparkSession") -> int:
    """The number of tasks that Spark takes itself to run at a time."""
    if not is_connect(session):
        return int(session.sparkContext.defaultParallelism)
    # Spark Connect has no such property, but divides a range by default like the driver.
    partitions = session.range(1_000_000).selectExpr("spark_partition_id() AS number").distinct()
    return max(1, partitions.count())


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
NO_FILES: Mapping[str, int] = {}
NO_MEMORY_EXIT = 52
"""Exit code of a JVM that Spark ends because of an OutOfMemoryError (SparkExitCode.OOM)."""
NO_EXECUTOR = "the cluster had no executor for this run"
CONTEXT_STOPPED = ("SparkContext was shut down", "stopped SparkContext", "All masters are unresponsive")
EXECUTOR_POLL_S = 1.0
TOO_LONG = ("exceeds the maximum number of characters defined in your parser", "Index 20480 out of bounds")
UNREADABLE = "[FAILED_READ_FILE.NO_HINT]"
REWRITE = "Transfer it again, or write it with another program"
ENDING_S = 5


@contextmanager
def translate_errors(
    settings: LakeSettings, doing: str, files: Mapping[str, int] = NO_FILES
) -> Iterator[None]:
    """Turns Spark's exceptions in the block into PipelineErrors; unknown ones pass unchanged.

    `files` are read in the block, by location with their sizes in bytes: an error about memory names one of them.

    Raises:
        SparkError: the driver that this process started has ended, memory did not suffice, or a disk is full.
        DeliveryError: a file is damaged, or a value of it is longer than a line may be.
        NessieError, IcebergCatalogError: the catalog does not respond.
        WarehouseError, StoreError: the store of the tables, or of deliveries, refuses a request, or does not respond.
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
    settings: LakeSettings, doing: str, files: Mapping[str, int], error: Exception
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
    if (lost := _find_cluster_error(settings, doing, text)) is not None:
        return lost
    if any(words in text for words in DISK_FULL):
        reason = f"{doing}: the disk is full"
        return SparkError(reason, f"free space below {settings.lake_root}, then run again")
    if any(words in text for words in NO_MEMORY):
        return _make_memory_error(settings, doing, files, text)
    if any(name in text for name in FAILURES) and (failed := _find_failed_store(settings, text)):
        return failed
    if settings.iceberg_catalog != NESSIE and any(name in text for name in CATALOG_GONE):
        reason, fix = f"{doing}: it did not respond to Spark", "Run again; `lakeshare doctor` checks it"
        return IcebergCatalogError(settings.iceberg_catalog, reason, fix)
    if any(name in text for name in NESSIE_GONE):
        message = f"{doing}: the catalog does not answer; run again, `lakeshare doctor` checks it"
        return NessieError(0, "UNREACHABLE", message)
    # `<landing>/<set>/<partition>/<file>`; Spark names a URI.
    named = ["/".join(file.split("/")[-3:]) for file in files if _get_name(file) in unquote(text)]
    return _find_file_error(settings, named[0], text) if named else None


def _find_file_error(settings: LakeSettings, file: str, text: str) -> DeliveryError | None:
    if any(words in text for words in TOO_LONG):
        reason = f"a value is longer than {settings.max_line_mb} MiB or a row than 20,480 fields, as with an open quote"
        fix = "Correct the file, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it."
        return DeliveryError(file, reason, fix)
    damage = explain_damage(text)
    return None if damage is None else DeliveryError(file, damage, f"{REWRITE}.")


def explain_damage(text: str) -> str | None:
    """Why Spark cannot read the values of a file whose footer it can read; None for another error."""
    if UNREADABLE not in text:
        return None
    causes = re.findall(r"^Caused by: (?:\w+[.$])*(.*)", text, re.MULTILINE)
    return f"Spark cannot read its values: {causes[-1] if causes else 'it gives no cause'}"


def _find_cluster_error(settings: LakeSettings, doing: str, text: str) -> SparkError | None:
    if NO_EXECUTOR in text:
        fix = "check that its master and workers run and have cores and memory to give, then run again"
        return SparkError(f"{doing}: {NO_EXECUTOR} within {settings.spark_wait_s} s", fix)
    if any(words in text for words in CONTEXT_STOPPED):
        fix = f"check {settings.spark_master}, read the end of {settings.logs_dir / 'spark.log'}, then run again"
        return SparkError(f"{doing}: Spark lost its cluster", fix)
    if settings.spark_mode == "connect" and "StatusCode.UNAVAILABLE" in text:
        return SparkError(f"{doing}: {settings.spark_remote} does not respond", "start it, then run again")
    return None


def _find_failed_store(settings: LakeSettings, text: str) -> PipelineError | None:
    landing = settings.landing_root
    warehouses = [location for location in list_warehouses(settings) if not location.startswith("/")]
    if not landing.startswith("/") and (not warehouses or f"{landing}/" in text):
        return make_landing_error(landing, text)
    return make_warehouse_error(" or ".join(warehouses), text) if warehouses else None


def _get_name(location: str) -> str:
    return location.rpartition("/")[2]


def _make_memory_error(settings: LakeSettings, doing: str, files: Mapping[str, int], text: str) -> SparkError:
    where = ""
    if named := [file for file in files if _get_name(file) in text]:
        where = f" while it read {'/'.join(named[0].split('/')[-2:])}"
    elif files:
        largest = max(files, key=files.__getitem__)
        where = f"; the largest file it read is {'/'.join(largest.split('/')[-2:])}"
    return SparkError(
        f"{doing}: Spark ran out of memory{where}",
        f"raise LAKESHARE_SPARK_DRIVER_MEMORY (it is {settings.spark_driver_memory}), lower LAKESHARE_MAX_LINE_MB "
        f"(it is {settings.max_line_mb}) so that long lines are refused, or deliver smaller files, then run again",
    )
