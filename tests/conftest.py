"""For all tests: Spark compiles little and starts no processes, and garbage is collected of what tests make only."""

import atexit
import gc
import os
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import httpx._transports.default as httpx_transports
import psutil
import pytest
import typer.main
from _pytest.unraisableexception import gc_collect_iterations_key
from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache
from xdist.scheduler import LoadFileScheduling

from lakeshare_pipelines.settings import SHORT_RUNS

if TYPE_CHECKING:
    from tests.integration.postgres_server import PostgresServer
    from tests.integration.s3_server import S3Server

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# Spark's launcher appends it to the class path; LocalFiles.java beside it has the reason.
SPARK_CLASSES = Path(__file__).parent / "builders" / "spark_classes" / "spark_classes.jar"

# By default a heap begins with a sixty-fourth of the memory, and young objects are collected several times as often.
LARGE_YOUNG = "-XX:InitialRAMPercentage=6"

# The jars are pinned by digest: verifying the bytecode of their classes is a fifth of a driver's start.
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

# Drivers of tests differ in their jars and options: each would write an archive of its classes, in 20 seconds of the
# processor, and most would write one only (docs/adr/0091).
NO_ARCHIVE = "-Xshare:auto"

# For many queries on few rows, and many small files.
os.environ.setdefault(
    "LAKESHARE_SPARK_DRIVER_OPTIONS", f"{SHORT_RUNS} {LARGE_YOUNG} {UNVERIFIED} {NO_ARCHIVE} {INTERPRETED}"
)
os.environ.setdefault("SPARK_DIST_CLASSPATH", str(SPARK_CLASSES))

# As in lakeshare_pipelines.cli.main: in a background job, Dagster would let every process of the tests ignore SIGTERM.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A process that runs one command builds the tree of all commands once; so do the tests.
typer.main.get_command = cache(typer.main.get_command)


# Clients of httpx read the certificates of all authorities when they are made, also those that will use no TLS, in a
# fifteenth of the time of the tests. Those of a worker share a context while the environment names the same files.
@cache
def shared_context(*arguments: Any) -> ssl.SSLContext:
    return httpx.create_ssl_context(*arguments[:3])


def ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    named = map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"))
    return shared_context(verify, cert, trust_env, *named)


httpx_transports.create_ssl_context = ssl_context

# A server compiles each statement once for its only database. So do the tests of a worker, for the databases of all:
# compiling took a tenth of the time of the tests with a database. Statements are kept by dialect, which is one object
# for each database; those of SQLite are equal, as a process has one version of it.
COMPILED: LRUCache[Any, Any] = LRUCache(5_000)
Engine._compiled_cache = property(lambda _: COMPILED, lambda _engine, _own: None)
SQLiteDialect_pysqlite.__hash__ = lambda self: hash(type(self))
SQLiteDialect_pysqlite.__eq__ = lambda self, other: type(self) is type(other)

# Modules and collected tests stay to the end. Looking for garbage among them took a third of the collection's time, a
# sixth of the tests' and seconds at the end.
gc.disable()
atexit.register(gc.freeze)


FAILED = pytest.StashKey[bool]()
MEMORY = Path("/dev/shm")
# A run leaves files of 0.8 GB.
NEEDED_BYTES = 8 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the folders of tests into memory where there is room: they make many small files, and commit to databases."""
    config.stash[gc_collect_iterations_key] = 1
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.option.basetemp or not MEMORY.is_dir():
        return
    if min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) < NEEDED_BYTES:
        return
    for left in MEMORY.glob("lakeshare-tests-*"):  # by a run that was killed
        if not psutil.pid_exists(int(left.name.split("-")[2])):
            shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=f"lakeshare-tests-{os.getpid()}-", dir=MEMORY))
    config.option.basetemp = str(folder / "run")
    config.add_cleanup(lambda: _leave_memory(config, folder))


def _leave_memory(config: pytest.Config, folder: Path) -> None:
    """Remove the folders of tests, or move them to the disk if a test failed."""
    if config.stash.get(FAILED, False):
        kept = Path(tempfile.gettempdir(), folder.name)
        shutil.copytree(folder, kept, symlinks=True, ignore=_list_special_files)
        print(f"The folders of the tests: {kept}")
    shutil.rmtree(folder, ignore_errors=True)


def _list_special_files(folder: str, names: list[str]) -> list[str]:
    """Pipes and sockets, which cannot be copied."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if not (path.is_symlink() or path.is_file() or path.is_dir())]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[FAILED] = exitstatus != pytest.ExitCode.OK
    if (shared_spark := sys.modules.get("tests.builders.shared_spark")) is not None:
        shared_spark.stop_own_driver()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    _copy_migrated_databases()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def _copy_migrated_databases() -> None:
    """Runs the migrations once in this process. tests/integration/catalog tests them, and has them run every time."""
    from lakeshare_server.catalog import database
    from tests.builders.database_schema import migrate_by_copy

    database.migrate = migrate_by_copy


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    # pytest collects twice: what was garbage is found by now, and the second search would visit the same objects.
    gc.freeze()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    """The S3 server of this worker; tests use `s3`."""
    from tests.integration.s3_server import running_s3

    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def s3(s3_server: "S3Server") -> "Iterator[S3Server]":
    """The S3 server of this worker, for one file of tests: the buckets that it makes are removed at its end."""
    before = s3_server.buckets()
    yield s3_server
    for bucket in s3_server.buckets() - before:
        s3_server.drop(bucket)


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """The PostgreSQL of this worker."""
    from tests.integration.postgres_server import running_postgres

    with running_postgres() as server:
        yield server


class SparkOnTwoWorkers(LoadFileScheduling):
    """Like `--dist loadfile`, but two workers begin with tests with Spark and further ones with tests without Spark.

    Each worker with Spark starts a Nessie and a session in the driver of all. The longest files with Spark are first,
    by the size of their source: a long one at the end would leave the other workers without work.
    """

    def _assign_work_unit(self, node: Any) -> None:
        is_spark_worker = node in self.nodes[:2]

        def rank(file: str) -> tuple[bool, int]:
            has_spark = file.startswith("tests/integration/test_")
            return has_spark != is_spark_worker, -(self.config.rootpath / file).stat().st_size * has_spark

        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return SparkOnTwoWorkers(config, log) if config.getoption("dist") == "loadfile" else None
