"""The demo: three good days, a rejected one, its correction, deleted tables and their restore; read throughout.

Every step checks the present state first, so a second start continues where the first one ended.
"""

import json
import logging
import os
import shlex
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import dagster as dg

from lakeshare_pipelines.backup.config import find_backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points, wait_for_point_name
from lakeshare_pipelines.backup.run import BackupRun, make_point
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.demo import processes
from lakeshare_pipelines.demo.processes import ProgressReporter
from lakeshare_pipelines.errors import PipelineError
from lakeshare_pipelines.ingest import find_deliveries
from lakeshare_pipelines.nessie.server import nessie_for, stop_nessie
from lakeshare_pipelines.settings import NESSIE, SHORT_RUNS, LakeSettings
from lakeshare_pipelines.share.publication import deliveries_in_force
from lakeshare_pipelines.share.shares import declared_shares
from lakeshare_pipelines.spark.jars import SPARK_JARS, ensure_jars, find_java
from lakeshare_pipelines.spark.stores import list_store_jars
from lakeshare_pipelines.wap.staged import WHOLE, Lake, open_lake_without_spark
from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog import Catalog, Credentials, Ledger, SharedTable, open_catalog, sharing, states
from lakeshare_server.catalog.credentials import issue_token, rotate_token
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.settings import make_private
from lakeshare_server.storage import Stores

DELETED_TABLES = {
    "flights.departures": "aviation.flights.departures",
    "reference.planes": "aviation.reference.planes",
}
"""An Iceberg and a Delta table, by their names in the lake and in the share."""


# What a recipient reads of a table: the publication's number and the fingerprint of its rows.
Observed = tuple[int, tuple[int, int]]


@dataclass(frozen=True)
class DemoContext:
    """The demo's open resources and contracts."""

    reporter: ProgressReporter
    settings: LakeSettings
    catalog: Catalog
    dagster: dg.DagsterInstance
    contracts: Mapping[str, SetContract]

    @property
    def flights(self) -> SetContract:
        return self.contracts["flights"]

    @property
    def reference(self) -> SetContract:
        return self.contracts["reference"]

    @property
    def profile(self) -> Path:
        return self.settings.state_dir / "demo.share"

    def in_force(self, contract: SetContract) -> dict[str, str]:
        """Returns the digest of the published delivery, by partition."""
        ledger = Ledger(self.catalog)
        history = ledger.history(contract.tables[0].name)
        published = {name for publication in history for name in publication.verdicts["deliveries"]}
        deliveries = deliveries_in_force(ledger, contract, published)
        return {partition: digest for partition, (digest, _) in deliveries.items()}


def _restore_deleted_tables(context: DemoContext) -> None:
    """Restores tables that an earlier, interrupted start deleted."""
    ledger = Ledger(context.catalog)
    publications = [ledger.latest(table) for table in DELETED_TABLES]
    stores = Stores(context.settings)
    deleted = [
        found.table
        for found in publications
        if found is not None and stores.written_between(found.location) is None
    ]
    if not deleted:
        return
    point = Points(find_backup(context.settings, None)).latest_good()
    if point is not None:
        names = " and ".join(deleted)
        context.reporter.chapter(f"{names} are missing since an earlier start: point {point.day} has them")
        _restore(context, point, deleted)


def _delete_and_restore(context: DemoContext) -> list[str]:
    """Makes a point, deletes tables and restores them; returns what is wrong afterwards."""
    lake, chapter = open_lake_without_spark(context.settings), context.reporter.chapter
    chapter("A backup point of everything, from a listing made now")
    point = _make_point(context.reporter, context.settings)
    before = {shared: _observe_table(context.profile, shared) for shared in DELETED_TABLES.values()}
    place = "disk" if context.settings.lake_root.startswith("/") else "store"
    chapter(f"{' and '.join(DELETED_TABLES)} are deleted from the catalog and from the {place}")
    for table in DELETED_TABLES:
        _delete(lake, Ledger(context.catalog), table)
    wrong = _find_readable(context)
    chapter(f"They are restored from point {point.day}")
    _restore(context, point, list(DELETED_TABLES))
    return wrong + _compare_with_before(context, before)


def _make_point(reporter: ProgressReporter, settings: LakeSettings) -> Point:
    backup_run = BackupRun(settings, find_backup(settings, None), wait_for_point_name(), "demo")
    with reporter.working("backup") as report_step:
        point = make_point(backup_run, datetime.now(UTC), report_step, lambda _: None)
    for proof in point.verification.tables:
        rows = "" if proof.rows is None else f"{proof.rows:>7} rows"
        line = f"{proof.table.root:34} {proof.table.format:7} {proof.status}, level {proof.level} {rows}"
        reporter.write_line(line)
    reporter.write_line(f"the points are in {backup_run.backup.target}: `lakeshare backup list`")
    return point


def _restore(context: DemoContext, point: Point, tables: list[str]) -> None:
    from lakeshare_pipelines.backup.restore.tables import PointRestore

    backup = find_backup(context.settings, None)
    with context.reporter.working("restore") as report_step:
        for table in tables:
            restored = PointRestore(context.settings, backup, point).in_place(context.catalog, table)
            report_step(f"{table}: {restored.objects} objects put back")


def _delete(lake: Lake, ledger: Ledger, table: str) -> None:
    publication = ledger.latest(table)
    if publication is None:
        raise LookupError(f"{table} was never published")  # the demo published it
    if publication.format == "iceberg":
        publisher = lake.nessie("publisher")
        if publisher.content(table, "main") is not None:
            head = publisher.reference("main").hash
            publisher.drop_table(table, "main", head, message=f"Drop {table} by mistake")
    lake.stores.delete_folder(publication.location)


def _observe_table(profile: Path, shared: str) -> Observed:
    version = processes.read_version(profile, shared)
    return version, processes.compute_fingerprint(processes.read_table(profile, shared))


def _find_readable(context: DemoContext) -> list[str]:
    wrong = []
    for shared in DELETED_TABLES.values():
        try:
            processes.read_table(context.profile, shared)
        # The client has no error of its own for a missing file.
        except (OSError, ValueError) as error:
            context.reporter.write_line(f"{shared}: the recipient's read fails ({type(error).__name__})")
        else:
            wrong.append(f"{shared} is deleted and was read all the same")
    return wrong


def _compare_with_before(context: DemoContext, before: Mapping[str, Observed]) -> list[str]:
    wrong = []
    for shared, (_, old_rows) in before.items():
        version, rows = _observe_table(context.profile, shared)
        if rows == old_rows:
            line = f"{shared:34} publication {version:<3} {rows[0]:>7} rows, the same as before"
            context.reporter.write_line(line)
        else:
            wrong.append(f"{shared} had {old_rows[0]} rows before it was lost and has {rows[0]} now")
    return wrong


GOOD_DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
LAST_DAY = "2013-01-04"
FORBIDDEN_NULLS = "carrier"
WATCHED_TABLE = "aviation.flights.departures"
MARKER = "demo.json"
RECIPIENT = "demo"


class DemoRefused(PipelineError):
    """The state folder holds a lake that the demo did not make, or made with another store."""

    def __init__(self, folder: Path, made_with: str | None = None) -> None:
        what = (
            "a lake that the demo did not make" if made_with is None else f"a demo with --store {made_with}"
        )
        fix = "Set LAKESHARE_STATE_DIR to another folder"
        fix += "" if made_with is None else ", or remove it with `lakeshare demo --clean`"
        super().__init__(f"{folder} holds {what}. {fix}.")


def run_demo(*, once: bool, store: Literal["disk", "s3"] = "disk") -> int:
    """Runs the demo; returns 0 if every row count was right.

    With the store `s3`, tables are in a bucket, state is in PostgreSQL and Spark is a cluster of two workers; the demo
    starts all of them.
    """
    os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", SHORT_RUNS)
    os.environ["LAKESHARE_ICEBERG_CATALOG"] = NESSIE  # which the demo starts
    settings, reporter = LakeSettings(), ProgressReporter()
    _claim_state(settings, store)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: its servers end with it
    _log_to_file(settings)
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    processes.use_dagster_home(settings.state_dir)
    with ExitStack() as stack:
        reporter.chapter("Preparing: Java, jars, the catalog")
        java = find_java("spark", settings)
        reporter.write_line(f"Java {java.version} for Spark ({java.origin})")
        if store == "s3":
            settings = _start_servers(settings, reporter, stack)
        ensure_jars(settings, (*SPARK_JARS, *list_store_jars([settings.lake_root])))
        stack.enter_context(nessie_for(settings, keep=not once))
        catalog = open_catalog(settings.catalog_url)
        on = stack.enter_context(processes.open_instance())
        context = DemoContext(reporter, settings, catalog, on, contracts)
        _publish_good_days(context)
        log = settings.logs_dir / "server.log"
        server = stack.enter_context(processes.sharing_server(processes.free_port(8765), log))
        shares = sorted({entry.share for entry in (*context.flights.shares, *context.reference.shares)})
        write_recipient_profile(catalog, shares, context.profile, server)
        _restore_deleted_tables(context)
        wrong = _read_all(context, GOOD_DAYS)
        wrong += _deliver_bad_day(context)
        wrong += _read_all(context, (*GOOD_DAYS, LAST_DAY))
        wrong += _delete_and_restore(context)
        _print_summary(context, server, wrong)
        if not wrong and not once:
            _wait_for_interrupt(context, server, stack)
    return 1 if wrong else 0


def _claim_state(settings: LakeSettings, store: str) -> None:
    """Marks the state folder as the demo's; raises DemoRefused if it is not, or was made with another store."""
    state, marker = settings.state_dir, settings.state_dir / MARKER
    if state.is_dir() and any(state.iterdir()) and not marker.exists():
        raise DemoRefused(state)
    make_private(state)
    made_with = json.loads(marker.read_text()).get("store", "disk") if marker.exists() else store
    if made_with != store:
        raise DemoRefused(state, made_with)
    marker.write_text(json.dumps({"made_by": "lakeshare demo", "store": store}))


def _start_servers(settings: LakeSettings, reporter: ProgressReporter, stack: ExitStack) -> LakeSettings:
    """Starts the servers of an object store; returns the settings that lead to them."""
    servers = stack.enter_context(processes.object_store_servers(settings, reporter))
    variables = {**servers, "LAKESHARE_LANDING": f"s3://{processes.BUCKET}/landing"}
    path = settings.state_dir / "demo.env"
    path.touch(0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    reporter.write_line(f"for commands in another terminal: set -a; . {shlex.quote(str(path))}")
    os.environ.update(variables)
    return LakeSettings()


def clean_up() -> int:
    settings, reporter = LakeSettings(), ProgressReporter()
    if not settings.state_dir.exists():
        reporter.write_line(f"nothing to remove: {settings.state_dir} does not exist")
        return 0
    if not (settings.state_dir / MARKER).exists():
        raise DemoRefused(settings.state_dir)
    stop_nessie(settings)
    home = processes.use_dagster_home(settings.state_dir)
    if home == processes.own_dagster_home(settings.state_dir):
        for entry in home.iterdir():
            if entry.name != "dagster.yaml":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        reporter.write_line(f"removed the runs in {home}")
    else:
        reporter.write_line(f"DAGSTER_HOME is {home}, which may hold other runs: they stay")
    shutil.rmtree(settings.state_dir)
    shutil.rmtree(processes.postgres_folder(settings), ignore_errors=True)
    reporter.write_line(f"removed {settings.state_dir}; downloaded jars stay in {settings.cache_dir}")
    return 0


def _log_to_file(settings: LakeSettings) -> None:
    """Logs the steps to a file: the terminal shows the progress only."""
    make_private(settings.logs_dir)
    handler = logging.FileHandler(settings.logs_dir / "demo.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("lakeshare_pipelines")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _publish_good_days(context: DemoContext) -> None:
    context.reporter.chapter("Three days of flights and the reference tables arrive")
    shown = context.in_force(context.flights)
    missing = [day for day in GOOD_DAYS if day not in shown]
    if missing:
        for day in missing:
            processes.deliver(context.settings, context.flights, partition=day)
        title = missing[0] if len(missing) == 1 else f"{missing[0]} to {missing[-1]} in one run"
        _run_green(context, "publish_flights", title, missing)
    if "all" not in context.in_force(context.reference):
        processes.deliver(context.settings, context.reference, partition="all")
        _run_green(context, "publish_reference", "the reference tables")
    if not are_shares_applied(context.catalog, tuple(context.contracts.values())):
        _run_green(context, "apply_shares", "the share catalog")
    _print_publications(context)


def are_shares_applied(catalog: Catalog, contracts: Sequence[SetContract]) -> bool:
    """Whether the catalog shares what the contracts declare, and nothing else."""
    declared = {(share.name, table) for share in declared_shares(contracts) for table in share.tables}
    found = set()
    for entry in list_all_shared_tables(catalog):
        table = SharedTable(entry.schema, entry.name, entry.table, entry.comment, entry.history)
        found.add((entry.share, table))
    return found == declared


def _deliver_bad_day(context: DemoContext) -> list[str]:
    reporter, wrong = context.reporter, []
    if LAST_DAY in context.in_force(context.flights):
        reporter.chapter(
            f"{LAST_DAY} was delivered badly, stopped, corrected and published by an earlier demo"
        )
        return []
    reporter.chapter(f"{LAST_DAY} arrives with {FORBIDDEN_NULLS} missing, which the contract forbids")
    processes.deliver(context.settings, context.flights, partition=LAST_DAY, nulls=(FORBIDDEN_NULLS,))
    before, content = _observe_table(context.profile, WATCHED_TABLE)
    with processes.watch_table(context.profile, WATCHED_TABLE) as watch:
        ran = processes.launch_run(reporter, context.dagster, "publish_flights", LAST_DAY, [LAST_DAY])
    if ran.succeeded or not ran.failed_checks:
        wrong.append(f"run {ran.run_id} was not stopped by its audit")
    for check in ran.failed_checks:
        reporter.write_line(f"stopped by  {check}")
    if watch.saw_only(before, content):
        line = f"meanwhile the recipient read {watch.reads} times and saw only publication {before}"
        reporter.write_line(line)
    else:
        wrong.append(
            f"while the bad delivery was audited the recipient read {watch.reads} times and saw publications "
            f"{sorted(watch.versions)} with rows {sorted(watch.contents)}, not only {before} with {content}"
        )
    reporter.chapter("The corrected delivery arrives")
    processes.deliver(context.settings, context.flights, partition=LAST_DAY)
    _run_green(context, "publish_flights", f"{LAST_DAY}, corrected", [LAST_DAY])
    _print_publications(context)
    return wrong


def write_recipient_profile(catalog: Catalog, shares: Sequence[str], path: Path, root: str) -> None:
    """Writes the recipient's profile for the server at `root`; a valid token in it is kept."""
    try:
        token = str(json.loads(path.read_text())["bearerToken"])
    except (FileNotFoundError, ValueError, KeyError):
        token = ""  # no recipient has this token
    access = Credentials(catalog).by_token(token)
    with catalog.reading() as session:
        is_known = any(found.name == RECIPIENT for found in states.list_recipients(session))
    expires_at = None if access is None else access.reader.expires_at
    if access is None or access.reader.name != RECIPIENT:
        with sharing.editing(catalog, sharing.LOCAL_OPERATOR) as edit:
            if not is_known:
                sharing.create_recipient(edit, RECIPIENT)
                for share in shares:
                    sharing.grant(edit, share, recipient=RECIPIENT)
            issued = rotate_token(edit, RECIPIENT) if is_known else issue_token(edit, RECIPIENT)
        token, expires_at = issued.secret, issued.state.expires_at
    write_profile(path, f"{root}/delta-sharing", token, expires_at, f"{root}/iceberg")


def _read_all(context: DemoContext, days: Sequence[str]) -> list[str]:
    """Reads every shared table with the official client; returns wrong row counts.

    Other days than `days` may be published, by an earlier start or by hand.
    """
    context.reporter.chapter("The recipient reads, with the delta-sharing client")
    wrong = []
    published = sorted({*days, *context.in_force(context.flights)})
    partitions = {context.flights.name: published, context.reference.name: WHOLE}
    expected = {
        f"{entry.share}.{entry.schema}.{entry.name}": processes.count_source_rows(
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
    sets = (context.flights, context.reference)
    landing = sum(len(find_deliveries(context.settings, contract)) for contract in sets)
    verified = f"{context.profile}#{WATCHED_TABLE}"
    for line in (
        f"{landing} deliveries are in {context.settings.landing_root}",
        f"the recipient's profile is {context.profile}",
        f"the sharing server is {server}/delta-sharing",
        f"the console is {server}/console; the key to sign in with is in {context.settings.first_key_file}",
        "staged sets that failed: lakeshare wap list",
        "the key that signed the publications: lakeshare evidence export --to provider.pem",
        f"what a recipient proves with it: lakeshare verify {verified} --key provider.pem --files",
        *(f"WRONG: {line}" for line in wrong),
        f"{len(wrong)} checks failed" if wrong else "every row count is right",
    ):
        context.reporter.write_line(line)


def _wait_for_interrupt(context: DemoContext, server: str, stack: ExitStack) -> None:
    context.reporter.chapter("The Dagster UI and the console")
    with context.reporter.working("the Dagster UI"):
        url = stack.enter_context(
            processes.dagster_ui(processes.free_port(3000), context.settings.logs_dir / "dagster.log")
        )
    context.reporter.write_line(f"open {url}/asset-groups for the path, {url}/runs for the runs")
    context.reporter.write_line(f"open {server}/console for publications, shares and recipients")
    line = "stop with Ctrl-C; `lakeshare down` then stops Nessie; `make demo-clean` removes it all"
    context.reporter.write_line(line)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _run_green(context: DemoContext, job: str, title: str, partitions: Sequence[str] = ()) -> None:
    ran = processes.launch_run(context.reporter, context.dagster, job, title, partitions)
    if not ran.succeeded:
        checks = ", ".join(ran.failed_checks) or "see the run's log"
        raise DemoRunFailed(ran.run_id, checks, context.settings.logs_dir)


class DemoRunFailed(PipelineError):
    """A run of the demo failed that should have succeeded."""

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
