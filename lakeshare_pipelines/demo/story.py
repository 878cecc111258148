"""The plot: three good days, a bad one nobody notices, its correction, a loss and its repair; read throughout.

Every step looks at what is there first, so a second start continues where the first left off.
"""

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from lakeshare_pipelines.backup.config import Backup, find_backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points, wait_for_point_name
from lakeshare_pipelines.backup.run import BackupRun, make_point
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.demo import processes
from lakeshare_pipelines.demo.processes import (
    ProgressReporter,
    count_source_rows,
    dagster_ui,
    deliver,
    free_port,
    launch_run,
    open_instance,
    own_dagster_home,
    sharing_server,
    use_dagster_home,
)
from lakeshare_pipelines.errors import PipelineError
from lakeshare_pipelines.ingest import find_deliveries
from lakeshare_pipelines.nessie.server import nessie_for, stop_nessie
from lakeshare_pipelines.settings import SHORT_RUNS, LakeSettings
from lakeshare_pipelines.share.publication import deliveries_in_force
from lakeshare_pipelines.share.shares import declared_shares
from lakeshare_pipelines.spark.jars import SPARK_JARS, ensure_jars, find_java
from lakeshare_pipelines.wap.staged import WHOLE, Lake, open_lake_without_spark
from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog import Catalog, Ledger, Publication, Recipients, SharedTable, open_catalog
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.settings import make_private

DELETED_TABLES = {
    "flights.departures": "aviation.flights.departures",
    "reference.planes": "aviation.reference.planes",
}
"""An Iceberg and a Delta table, by their names in the lake and in the share."""


@dataclass(frozen=True)
class ObservedTable:
    """What a recipient sees of a table: the publication's number, the rows as `reader.fingerprint`."""

    version: int
    rows: tuple[int, int]


def restore_deleted_tables(reporter: ProgressReporter, settings: LakeSettings, catalog: Catalog) -> None:
    """Restore what an earlier start deleted before it was broken off."""
    ledger = Ledger(catalog)
    found = {table: ledger.latest(table) for table in DELETED_TABLES}
    gone = [
        table for table, publication in found.items() if publication is not None and _is_deleted(publication)
    ]
    if not gone:
        return
    backup = find_backup(settings, None)
    point = Points(backup).latest_good()
    if point is None:
        return
    reporter.chapter(f"{' and '.join(gone)} are missing since an earlier start: point {point.day} has them")
    _restore(reporter, settings, catalog, backup, point, gone)


def delete_and_restore(
    reporter: ProgressReporter, settings: LakeSettings, catalog: Catalog, profile: Path
) -> list[str]:
    """Make a point, delete tables, restore them; what is wrong afterwards, if anything."""
    backup, lake = find_backup(settings, None), open_lake_without_spark(settings)
    reporter.chapter("A backup point of everything, from a listing made here")
    point = _make_point(reporter, settings, backup)
    before = {shared: _observe_table(profile, shared) for shared in DELETED_TABLES.values()}
    reporter.chapter(f"Somebody deletes {' and '.join(DELETED_TABLES)}: from the catalog and from the disk")
    for table in DELETED_TABLES:
        _delete(lake, _published(Ledger(catalog), table))
    wrong = _find_unreadable(reporter, profile)
    reporter.chapter(f"They are restored from point {point.day}")
    _restore(reporter, settings, catalog, backup, point, list(DELETED_TABLES))
    return wrong + _compare_with_before(reporter, profile, before)


def _make_point(reporter: ProgressReporter, settings: LakeSettings, backup: Backup) -> Point:
    backup_run = BackupRun(settings, backup, wait_for_point_name(), "demo")
    with reporter.working("backup") as report_step:
        point = make_point(backup_run, datetime.now(UTC), report_step, lambda _: None)
    for proof in point.verification.tables:
        rows = "" if proof.rows is None else f"{proof.rows:>7} rows"
        reporter.write_line(
            f"{proof.table.root:34} {proof.table.format:7} {proof.status}, level {proof.level} {rows}"
        )
    reporter.write_line(f"the points are in {backup.target}: `lakeshare backup list`")
    return point


def _restore(
    reporter: ProgressReporter,
    settings: LakeSettings,
    catalog: Catalog,
    backup: Backup,
    point: Point,
    tables: list[str],
) -> None:
    from lakeshare_pipelines.backup.restore.tables import PointRestore

    with reporter.working("restore") as report_step:
        for table in tables:
            restored = PointRestore(settings, backup, point).in_place(catalog, table)
            report_step(f"{table}: {restored.objects} objects put back")


def _published(ledger: Ledger, table: str) -> Publication:
    publication = ledger.latest(table)
    if publication is None:
        raise LookupError(f"{table} was never published")  # the demo published it
    return publication


def _folder(publication: Publication) -> Path:
    return Path(publication.location.removeprefix("file://"))


def _is_deleted(publication: Publication) -> bool:
    return not _folder(publication).exists()


def _delete(lake: Lake, publication: Publication) -> None:
    if publication.format == "iceberg":
        publisher = lake.nessie("publisher")
        main = publisher.reference("main").hash
        if publisher.content(publication.table, "main") is not None:
            publisher.drop_table(
                publication.table, "main", main, message=f"Drop {publication.table} by mistake"
            )
    if not _is_deleted(publication):
        shutil.rmtree(_folder(publication))


def _observe_table(profile: Path, shared: str) -> ObservedTable:
    return ObservedTable(
        processes.read_version(profile, shared),
        processes.compute_fingerprint(processes.read_table(profile, shared)),
    )


def _find_unreadable(reporter: ProgressReporter, profile: Path) -> list[str]:
    wrong = []
    for shared in DELETED_TABLES.values():
        try:
            processes.read_table(profile, shared)
        # The client tells of a missing file with whatever its parts raise.
        except (OSError, ValueError) as error:
            reporter.write_line(f"{shared}: the recipient's read fails ({type(error).__name__})")
        else:
            wrong.append(f"{shared} is deleted and was read all the same")
    return wrong


def _compare_with_before(
    reporter: ProgressReporter, profile: Path, before: Mapping[str, ObservedTable]
) -> list[str]:
    wrong = []
    for shared, was in before.items():
        now = _observe_table(profile, shared)
        if now.rows == was.rows:
            reporter.write_line(
                f"{shared:34} publication {now.version:<3} {now.rows[0]:>7} rows, the same as before"
            )
        else:
            wrong.append(f"{shared} had {was.rows[0]} rows before it was lost and has {now.rows[0]} now")
    return wrong


GOOD_DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
LAST_DAY = "2013-01-04"
FORBIDDEN_NULLS = "carrier"
WATCHED_TABLE = "aviation.flights.departures"
MARKER = "demo.json"
RECIPIENT = "demo"


class DemoRefused(PipelineError):
    """The demo would touch what it did not make."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} holds a lake that the demo did not make. Set LAKESHARE_STATE_DIR to another folder."
        )


@dataclass(frozen=True)
class DemoContext:
    """What every scene needs."""

    reporter: ProgressReporter
    settings: LakeSettings
    catalog: Catalog
    dagster: dg.DagsterInstance
    contracts: Mapping[str, SetContract]

    @property
    def flights(self) -> SetContract:
        """The daily set, which the story is about."""
        return self.contracts["flights"]

    @property
    def reference(self) -> SetContract:
        """The set of tables that are replaced whole."""
        return self.contracts["reference"]

    @property
    def profile(self) -> Path:
        """Where the recipient's profile is."""
        return self.settings.state_dir / "demo.share"

    def in_force(self, contract: SetContract) -> dict[str, str]:
        """Digest of the delivery recipients read, by partition."""
        shown = deliveries_in_force(Ledger(self.catalog), contract)
        return {partition: delivery for partition, (delivery, _) in shown.items()}


def run_demo(*, once: bool) -> int:
    """Play the demo; 0 when every row count was right."""
    os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", SHORT_RUNS)
    settings, reporter = LakeSettings(), ProgressReporter()
    _claim(settings)
    _log_to_file(settings)
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    use_dagster_home(settings.state_dir)
    with ExitStack() as stack:
        _prepare(reporter, settings)
        stack.enter_context(nessie_for(settings, keep=not once))
        catalog = open_catalog(settings.catalog_url)
        on = stack.enter_context(open_instance())
        context = DemoContext(reporter, settings, catalog, on, contracts)
        _publish_good_days(context)
        server = stack.enter_context(_run_server(context))
        restore_deleted_tables(reporter, settings, catalog)
        wrong = _read_all(context, GOOD_DAYS)
        wrong += _deliver_bad_day(context)
        wrong += _read_all(context, (*GOOD_DAYS, LAST_DAY))
        wrong += delete_and_restore(reporter, settings, catalog, context.profile)
        _print_summary(context, server, wrong)
        if not wrong and not once:
            _wait_for_interrupt(context, stack)
    return 1 if wrong else 0


def clean_up() -> int:
    """Stop what the demo started and remove what it made."""
    settings, reporter = LakeSettings(), ProgressReporter()
    if not settings.state_dir.exists():
        reporter.write_line(f"nothing to remove: {settings.state_dir} is not there")
        return 0
    if not (settings.state_dir / MARKER).exists():
        raise DemoRefused(settings.state_dir)
    stop_nessie(settings)
    home = use_dagster_home(settings.state_dir)
    if home == own_dagster_home(settings.state_dir):
        for entry in home.iterdir():
            if entry.name != "dagster.yaml":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        reporter.write_line(f"removed the runs in {home}")
    else:
        reporter.write_line(f"DAGSTER_HOME is {home}, which may hold runs of others too: they stay")
    shutil.rmtree(settings.state_dir)
    reporter.write_line(f"removed {settings.state_dir}; downloaded jars stay in {settings.cache_dir}")
    return 0


def _claim(settings: LakeSettings) -> None:
    marker = settings.state_dir / MARKER
    if settings.state_dir.is_dir() and any(settings.state_dir.iterdir()) and not marker.exists():
        raise DemoRefused(settings.state_dir)
    make_private(settings.state_dir)
    marker.write_text(json.dumps({"made_by": "lakeshare demo"}))


def _log_to_file(settings: LakeSettings) -> None:
    """What the steps log goes beside Spark's and Nessie's logs; the terminal is for the story."""
    make_private(settings.logs_dir)
    handler = logging.FileHandler(settings.logs_dir / "demo.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("lakeshare_pipelines")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False


def _prepare(reporter: ProgressReporter, settings: LakeSettings) -> None:
    reporter.chapter("Preparing: Java, jars, the catalog")
    java = find_java("spark", settings)
    reporter.write_line(f"Java {java.version} for Spark ({java.origin})")
    ensure_jars(settings, SPARK_JARS)


def _publish_good_days(context: DemoContext) -> None:
    context.reporter.chapter("Three days of flights and the reference tables arrive")
    shown = context.in_force(context.flights)
    missing = [day for day in GOOD_DAYS if day not in shown]
    if missing:
        for day in missing:
            deliver(context.settings, context.flights, partition=day)
        _run_green(context, "publish_flights", _format_days(missing), missing)
    if "all" not in context.in_force(context.reference):
        deliver(context.settings, context.reference, partition="all")
        _run_green(context, "publish_reference", "the reference tables")
    if not are_shares_applied(context.catalog, tuple(context.contracts.values())):
        _run_green(context, "apply_shares", "the share catalog")
    _print_publications(context)


def are_shares_applied(catalog: Catalog, contracts: Sequence[SetContract]) -> bool:
    """Whether the catalog shares what the contracts declare, and nothing else."""
    declared = {(share.name, table) for share in declared_shares(contracts) for table in share.tables}
    found = {
        (at.share.name, SharedTable(at.schema, at.name, at.lake_table, at.comment, at.history))
        for at in list_all_shared_tables(catalog)
    }
    return found == declared


def _deliver_bad_day(context: DemoContext) -> list[str]:
    reporter, wrong = context.reporter, []
    if LAST_DAY in context.in_force(context.flights):
        reporter.chapter(
            f"{LAST_DAY} was delivered badly, stopped, corrected and published by an earlier demo"
        )
        return []
    reporter.chapter(f"{LAST_DAY} arrives with {FORBIDDEN_NULLS} missing, which the contract forbids")
    deliver(context.settings, context.flights, partition=LAST_DAY, nulls=(FORBIDDEN_NULLS,))
    before = processes.read_version(context.profile, WATCHED_TABLE)
    content = processes.compute_fingerprint(processes.read_table(context.profile, WATCHED_TABLE))
    with processes.watch_table(context.profile, WATCHED_TABLE) as watch:
        ran = launch_run(reporter, context.dagster, "publish_flights", LAST_DAY, [LAST_DAY])
    if ran.succeeded or not ran.failed_checks:
        wrong.append(f"run {ran.run_id} was to be stopped by its audit")
    for check in ran.failed_checks:
        reporter.write_line(f"stopped by  {check}")
    if watch.saw_only(before, content):
        reporter.write_line(
            f"meanwhile the recipient asked {watch.reads} times and saw only publication {before}"
        )
    else:
        wrong.append(
            f"while the bad delivery was audited the recipient asked {watch.reads} times and saw publications "
            f"{sorted(watch.versions)} with rows {sorted(watch.contents)}, not only {before} with {content}"
        )
    reporter.chapter("The corrected delivery arrives")
    deliver(context.settings, context.flights, partition=LAST_DAY)
    _run_green(context, "publish_flights", f"{LAST_DAY}, corrected", [LAST_DAY])
    _print_publications(context)
    return wrong


@contextmanager
def _run_server(context: DemoContext) -> Iterator[str]:
    port = free_port(8765)
    with sharing_server(port, context.settings.logs_dir / "server.log") as root:
        shares = sorted({entry.share for entry in (*context.flights.shares, *context.reference.shares)})
        write_recipient_profile(context.catalog, shares, context.profile, root)
        yield root


def write_recipient_profile(catalog: Catalog, shares: Sequence[str], path: Path, root: str) -> None:
    """Write the recipient's profile for the server at `root`. While the token in it is good it stays the same."""
    recipients, token = Recipients(catalog), _read_token(path)
    reader = recipients.by_token(token)
    recipient = next((one for one in recipients.list() if one.name == RECIPIENT), None)
    if recipient is None:
        recipient, token = recipients.add(RECIPIENT, shares)
    elif reader is None or reader.id != recipient.id:
        recipient, token = recipients.rotate(RECIPIENT)
    write_profile(path, f"{root}/delta-sharing", token, recipient.expires_at, f"{root}/iceberg")


def _read_token(profile: Path) -> str:
    try:
        return str(json.loads(profile.read_text())["bearerToken"])
    except (FileNotFoundError, ValueError, KeyError):
        return ""  # which no recipient has


def _read_all(context: DemoContext, days: Sequence[str]) -> list[str]:
    """Read every shared table with the official client; what is wrong with the row counts, if anything.

    Beside `days` there may be others that an earlier start, or somebody who looked around, has published.
    """
    context.reporter.chapter("The recipient reads, with the delta-sharing client")
    wrong = []
    published = sorted({*days, *context.in_force(context.flights)})
    partitions = {context.flights.name: published, context.reference.name: WHOLE}
    expected = {
        f"{entry.share}.{entry.schema}.{entry.name}": count_source_rows(
            contract, entry.table, partitions[contract.name]
        )
        for contract in (context.flights, context.reference)
        for entry in contract.shares
    }
    found = processes.list_tables(context.profile)
    if found != sorted(expected):
        wrong.append(f"the recipient sees {found}, not {sorted(expected)}")
    for table in found:
        rows = len(processes.read_table(context.profile, table))
        number = processes.read_version(context.profile, table)
        context.reporter.write_line(f"{table:34} publication {number:<3} {rows:>7} rows")
        if rows != expected.get(table):
            wrong.append(f"{table} has {rows} rows, {expected.get(table)} were delivered")
    return wrong


def _print_summary(context: DemoContext, server: str, wrong: Sequence[str]) -> None:
    context.reporter.chapter("What happened")
    _print_publications(context)
    landing = sum(len(find_deliveries(context.settings, one)) for one in (context.flights, context.reference))
    context.reporter.write_line(f"{landing} deliveries are in {context.settings.landing}")
    context.reporter.write_line(f"the recipient's profile is {context.profile}")
    context.reporter.write_line(f"the sharing server is {server}/delta-sharing")
    context.reporter.write_line("staged sets that failed: lakeshare wap list")
    for line in wrong:
        context.reporter.write_line(f"WRONG: {line}")
    context.reporter.write_line(
        "every row count is right" if not wrong else f"{len(wrong)} things were wrong"
    )


def _wait_for_interrupt(context: DemoContext, stack: ExitStack) -> None:
    context.reporter.chapter("Look around")
    with context.reporter.working("the Dagster UI"):
        url = stack.enter_context(dagster_ui(free_port(3000), context.settings.logs_dir / "dagster.log"))
    context.reporter.write_line(f"open {url}/asset-groups for the path, {url}/runs for the runs")
    context.reporter.write_line(
        "stop with Ctrl-C; `lakeshare down` then stops Nessie; `make demo-clean` removes it all"
    )
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _run_green(context: DemoContext, job: str, title: str, partitions: Sequence[str] = ()) -> None:
    ran = launch_run(context.reporter, context.dagster, job, title, partitions)
    if not ran.succeeded:
        checks = ", ".join(ran.failed_checks) or "see the run's log"
        raise DemoRunFailed(ran.run_id, checks, context.settings.logs_dir)


class DemoRunFailed(PipelineError):
    """A run of the demo that should have been green was not."""

    def __init__(self, run_id: str, why: str, logs: Path) -> None:
        super().__init__(f"run {run_id} failed: {why}. `make dagster` shows it; logs are in {logs}.")


def _print_publications(context: DemoContext) -> None:
    ledger = Ledger(context.catalog)
    for contract in (context.flights, context.reference):
        for table in contract.tables:
            publication = ledger.latest(table.name)
            if publication is not None:
                context.reporter.write_line(
                    f"{table.name:24} publication {publication.version:<3} {publication.rows:>7} rows, "
                    f"{publication.files} files"
                )


def _format_days(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]} in one run"
