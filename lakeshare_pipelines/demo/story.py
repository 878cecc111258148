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

from lakeshare_pipelines.backup.config import Backup, backup_named
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points, point_of_this_moment
from lakeshare_pipelines.backup.run import Making, make_point
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.demo import processes
from lakeshare_pipelines.demo.processes import (
    Voice,
    dagster_ui,
    deliver,
    free_port,
    instance,
    launch,
    own_dagster_home,
    sharing_server,
    source_rows,
    use_dagster_home,
)
from lakeshare_pipelines.errors import PipelineError
from lakeshare_pipelines.ingest import find_deliveries
from lakeshare_pipelines.nessie.server import nessie_for, stop_nessie
from lakeshare_pipelines.settings import SHORT_RUNS, LakeSettings
from lakeshare_pipelines.share.publication import deliveries_in_force
from lakeshare_pipelines.share.shares import declared_shares
from lakeshare_pipelines.spark.jars import SPARK_JARS, ensure_jars, find_java
from lakeshare_pipelines.wap.staged import WHOLE, Lake, without_spark
from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog import Catalog, Ledger, Publication, Recipients, SharedTable, open_catalog
from lakeshare_server.catalog.listings import all_shared_tables
from lakeshare_server.settings import make_private

LOST = {"flights.departures": "aviation.flights.departures", "reference.planes": "aviation.reference.planes"}
"""An Iceberg and a Delta table, by their names in the lake and in the share."""


@dataclass(frozen=True)
class Seen:
    """What a recipient sees of a table: the publication's number, the rows as `reader.fingerprint`."""

    version: int
    rows: tuple[int, int]


def bring_back_lost(voice: Voice, settings: LakeSettings, catalog: Catalog) -> None:
    """Restore what an earlier start deleted before it was broken off."""
    ledger = Ledger(catalog)
    found = {table: ledger.latest(table) for table in LOST}
    gone = [
        table for table, publication in found.items() if publication is not None and _is_gone(publication)
    ]
    if not gone:
        return
    backup = backup_named(settings, None)
    point = Points(backup).latest_good()
    if point is None:
        return
    voice.chapter(f"{' and '.join(gone)} are missing since an earlier start: point {point.day} has them")
    _restore(voice, settings, catalog, backup, point, gone)


def lose_and_recover(voice: Voice, settings: LakeSettings, catalog: Catalog, profile: Path) -> list[str]:
    """Make a point, delete tables, restore them; what is wrong afterwards, if anything."""
    backup, lake = backup_named(settings, None), without_spark(settings)
    voice.chapter("A backup point of everything, from a listing made here")
    point = _point(voice, settings, backup)
    before = {shared: _seen(profile, shared) for shared in LOST.values()}
    voice.chapter(f"Somebody deletes {' and '.join(LOST)}: from the catalog and from the disk")
    for table in LOST:
        _delete(lake, _published(Ledger(catalog), table))
    wrong = _read_lost(voice, profile)
    voice.chapter(f"They are restored from point {point.day}")
    _restore(voice, settings, catalog, backup, point, list(LOST))
    return wrong + _compared(voice, profile, before)


def _point(voice: Voice, settings: LakeSettings, backup: Backup) -> Point:
    making = Making(settings, backup, point_of_this_moment(), "demo")
    with voice.working("backup") as say:
        point = make_point(making, datetime.now(UTC), say, lambda _: None)
    for proof in point.verification.tables:
        rows = "" if proof.rows is None else f"{proof.rows:>7} rows"
        voice.says(f"{proof.table.root:34} {proof.table.format:7} {proof.status}, level {proof.level} {rows}")
    voice.says(f"the points are in {backup.target}: `lakeshare backup list`")
    return point


def _restore(
    voice: Voice, settings: LakeSettings, catalog: Catalog, backup: Backup, point: Point, tables: list[str]
) -> None:
    from lakeshare_pipelines.backup.restore.tables import Restores

    with voice.working("restore") as say:
        for table in tables:
            restored = Restores(settings, backup, point).in_place(catalog, table)
            say(f"{table}: {restored.objects} objects put back")


def _published(ledger: Ledger, table: str) -> Publication:
    publication = ledger.latest(table)
    if publication is None:
        raise LookupError(f"{table} was never published")  # the demo published it
    return publication


def _folder(publication: Publication) -> Path:
    return Path(publication.location.removeprefix("file://"))


def _is_gone(publication: Publication) -> bool:
    return not _folder(publication).exists()


def _delete(lake: Lake, publication: Publication) -> None:
    if publication.format == "iceberg":
        publisher = lake.nessie("publisher")
        main = publisher.reference("main").hash
        if publisher.content(publication.table, "main") is not None:
            publisher.drop_table(
                publication.table, "main", main, message=f"Drop {publication.table} by mistake"
            )
    if not _is_gone(publication):
        shutil.rmtree(_folder(publication))


def _seen(profile: Path, shared: str) -> Seen:
    return Seen(processes.version(profile, shared), processes.fingerprint(processes.read(profile, shared)))


def _read_lost(voice: Voice, profile: Path) -> list[str]:
    wrong = []
    for shared in LOST.values():
        try:
            processes.read(profile, shared)
        # The client tells of a missing file with whatever its parts raise.
        except (OSError, ValueError) as error:
            voice.says(f"{shared}: the recipient's read fails ({type(error).__name__})")
        else:
            wrong.append(f"{shared} is deleted and was read all the same")
    return wrong


def _compared(voice: Voice, profile: Path, before: Mapping[str, Seen]) -> list[str]:
    wrong = []
    for shared, was in before.items():
        now = _seen(profile, shared)
        if now.rows == was.rows:
            voice.says(f"{shared:34} publication {now.version:<3} {now.rows[0]:>7} rows, the same as before")
        else:
            wrong.append(f"{shared} had {was.rows[0]} rows before it was lost and has {now.rows[0]} now")
    return wrong


GOOD_DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
LAST_DAY = "2013-01-04"
FORBIDDEN_NULLS = "carrier"
WATCHED = "aviation.flights.departures"
MARKER = "demo.json"
RECIPIENT = "demo"


class DemoRefused(PipelineError):
    """The demo would touch what it did not make."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} holds a lake that the demo did not make. Set LAKESHARE_STATE_DIR to another folder."
        )


@dataclass(frozen=True)
class Stage:
    """What every scene needs."""

    voice: Voice
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


def tell(*, once: bool) -> int:
    """Play the demo; 0 when every row count was right."""
    os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", SHORT_RUNS)
    settings, voice = LakeSettings(), Voice()
    _claim(settings)
    _log_to_file(settings)
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    use_dagster_home(settings.state_dir)
    with ExitStack() as stack:
        _prepare(voice, settings)
        stack.enter_context(nessie_for(settings, keep=not once))
        catalog = open_catalog(settings.catalog_url)
        on = stack.enter_context(instance())
        scene = Stage(voice, settings, catalog, on, contracts)
        _publish_good_days(scene)
        server = stack.enter_context(_serving(scene))
        bring_back_lost(voice, settings, catalog)
        wrong = _read_all(scene, GOOD_DAYS)
        wrong += _bad_day(scene)
        wrong += _read_all(scene, (*GOOD_DAYS, LAST_DAY))
        wrong += lose_and_recover(voice, settings, catalog, scene.profile)
        _epilogue(scene, server, wrong)
        if not wrong and not once:
            _stay(scene, stack)
    return 1 if wrong else 0


def clean_up() -> int:
    """Stop what the demo started and remove what it made."""
    settings, voice = LakeSettings(), Voice()
    if not settings.state_dir.exists():
        voice.says(f"nothing to remove: {settings.state_dir} is not there")
        return 0
    if not (settings.state_dir / MARKER).exists():
        raise DemoRefused(settings.state_dir)
    stop_nessie(settings)
    home = use_dagster_home(settings.state_dir)
    if home == own_dagster_home(settings.state_dir):
        for made in home.iterdir():
            if made.name != "dagster.yaml":
                shutil.rmtree(made) if made.is_dir() else made.unlink()
        voice.says(f"removed the runs in {home}")
    else:
        voice.says(f"DAGSTER_HOME is {home}, which may hold runs of others too: they stay")
    shutil.rmtree(settings.state_dir)
    voice.says(f"removed {settings.state_dir}; downloaded jars stay in {settings.cache_dir}")
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


def _prepare(voice: Voice, settings: LakeSettings) -> None:
    voice.chapter("Preparing: Java, jars, the catalog")
    java = find_java("spark", settings)
    voice.says(f"Java {java.version} for Spark ({java.origin})")
    ensure_jars(settings, SPARK_JARS)


def _publish_good_days(scene: Stage) -> None:
    scene.voice.chapter("Three days of flights and the reference tables arrive")
    shown = scene.in_force(scene.flights)
    missing = [day for day in GOOD_DAYS if day not in shown]
    if missing:
        for day in missing:
            deliver(scene.settings, scene.flights, partition=day)
        _run_green(scene, "publish_flights", _title(missing), missing)
    if "all" not in scene.in_force(scene.reference):
        deliver(scene.settings, scene.reference, partition="all")
        _run_green(scene, "publish_reference", "the reference tables")
    if not are_shares_applied(scene.catalog, tuple(scene.contracts.values())):
        _run_green(scene, "apply_shares", "the share catalog")
    _tell_publications(scene)


def are_shares_applied(catalog: Catalog, contracts: Sequence[SetContract]) -> bool:
    """Whether the catalog shares what the contracts declare, and nothing else."""
    declared = {(share.name, table) for share in declared_shares(contracts) for table in share.tables}
    found = {
        (at.share.name, SharedTable(at.schema, at.name, at.lake_table, at.comment, at.history))
        for at in all_shared_tables(catalog)
    }
    return found == declared


def _bad_day(scene: Stage) -> list[str]:
    voice, wrong = scene.voice, []
    if LAST_DAY in scene.in_force(scene.flights):
        voice.chapter(f"{LAST_DAY} was delivered badly, stopped, corrected and published by an earlier demo")
        return []
    voice.chapter(f"{LAST_DAY} arrives with {FORBIDDEN_NULLS} missing, which the contract forbids")
    deliver(scene.settings, scene.flights, partition=LAST_DAY, nulls=(FORBIDDEN_NULLS,))
    before = processes.version(scene.profile, WATCHED)
    content = processes.fingerprint(processes.read(scene.profile, WATCHED))
    with processes.watching(scene.profile, WATCHED) as watch:
        ran = launch(voice, scene.dagster, "publish_flights", LAST_DAY, [LAST_DAY])
    if ran.succeeded or not ran.failed_checks:
        wrong.append(f"run {ran.run_id} was to be stopped by its audit")
    for check in ran.failed_checks:
        voice.says(f"stopped by  {check}")
    if watch.saw_only(before, content):
        voice.says(f"meanwhile the recipient asked {watch.looks} times and saw only publication {before}")
    else:
        wrong.append(
            f"while the bad delivery was audited the recipient asked {watch.looks} times and saw publications "
            f"{sorted(watch.versions)} with rows {sorted(watch.contents)}, not only {before} with {content}"
        )
    voice.chapter("The corrected delivery arrives")
    deliver(scene.settings, scene.flights, partition=LAST_DAY)
    _run_green(scene, "publish_flights", f"{LAST_DAY}, corrected", [LAST_DAY])
    _tell_publications(scene)
    return wrong


@contextmanager
def _serving(scene: Stage) -> Iterator[str]:
    port = free_port(8765)
    with sharing_server(port, scene.settings.logs_dir / "server.log") as root:
        shares = sorted({entry.share for entry in (*scene.flights.shares, *scene.reference.shares)})
        hand_out_profile(scene.catalog, shares, scene.profile, root)
        yield root


def hand_out_profile(catalog: Catalog, shares: Sequence[str], path: Path, root: str) -> None:
    """Write the recipient's profile for the server at `root`. While the token in it is good it stays the same."""
    recipients, token = Recipients(catalog), _token_in(path)
    reader = recipients.by_token(token)
    recipient = next((one for one in recipients.list() if one.name == RECIPIENT), None)
    if recipient is None:
        recipient, token = recipients.add(RECIPIENT, shares)
    elif reader is None or reader.id != recipient.id:
        recipient, token = recipients.rotate(RECIPIENT)
    write_profile(path, f"{root}/delta-sharing", token, recipient.expires_at, f"{root}/iceberg")


def _token_in(profile: Path) -> str:
    try:
        return str(json.loads(profile.read_text())["bearerToken"])
    except (FileNotFoundError, ValueError, KeyError):
        return ""  # which no recipient has


def _read_all(scene: Stage, days: Sequence[str]) -> list[str]:
    """Read every shared table with the official client; what is wrong with the row counts, if anything.

    Beside `days` there may be others that an earlier start, or somebody who looked around, has published.
    """
    scene.voice.chapter("The recipient reads, with the delta-sharing client")
    wrong = []
    published = sorted({*days, *scene.in_force(scene.flights)})
    partitions = {scene.flights.name: published, scene.reference.name: WHOLE}
    expected = {
        f"{entry.share}.{entry.schema}.{entry.name}": source_rows(
            contract, entry.table, partitions[contract.name]
        )
        for contract in (scene.flights, scene.reference)
        for entry in contract.shares
    }
    found = processes.tables(scene.profile)
    if found != sorted(expected):
        wrong.append(f"the recipient sees {found}, not {sorted(expected)}")
    for table in found:
        rows = len(processes.read(scene.profile, table))
        number = processes.version(scene.profile, table)
        scene.voice.says(f"{table:34} publication {number:<3} {rows:>7} rows")
        if rows != expected.get(table):
            wrong.append(f"{table} has {rows} rows, {expected.get(table)} were delivered")
    return wrong


def _epilogue(scene: Stage, server: str, wrong: Sequence[str]) -> None:
    scene.voice.chapter("What happened")
    _tell_publications(scene)
    landing = sum(len(find_deliveries(scene.settings, one)) for one in (scene.flights, scene.reference))
    scene.voice.says(f"{landing} deliveries are in {scene.settings.landing}")
    scene.voice.says(f"the recipient's profile is {scene.profile}")
    scene.voice.says(f"the sharing server is {server}/delta-sharing")
    scene.voice.says("staged sets that failed: lakeshare wap list")
    for line in wrong:
        scene.voice.says(f"WRONG: {line}")
    scene.voice.says("every row count is right" if not wrong else f"{len(wrong)} things were wrong")


def _stay(scene: Stage, stack: ExitStack) -> None:
    scene.voice.chapter("Look around")
    with scene.voice.working("the Dagster UI"):
        url = stack.enter_context(dagster_ui(free_port(3000), scene.settings.logs_dir / "dagster.log"))
    scene.voice.says(f"open {url}/asset-groups for the path, {url}/runs for the runs")
    scene.voice.says("stop with Ctrl-C; `lakeshare down` then stops Nessie; `make demo-clean` removes it all")
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _run_green(scene: Stage, job: str, title: str, partitions: Sequence[str] = ()) -> None:
    ran = launch(scene.voice, scene.dagster, job, title, partitions)
    if not ran.succeeded:
        checks = ", ".join(ran.failed_checks) or "see the run's log"
        raise DemoRunFailed(ran.run_id, checks, scene.settings.logs_dir)


class DemoRunFailed(PipelineError):
    """A run of the demo that should have been green was not."""

    def __init__(self, run_id: str, why: str, logs: Path) -> None:
        super().__init__(f"run {run_id} failed: {why}. `make dagster` shows it; logs are in {logs}.")


def _tell_publications(scene: Stage) -> None:
    ledger = Ledger(scene.catalog)
    for contract in (scene.flights, scene.reference):
        for table in contract.tables:
            publication = ledger.latest(table.name)
            if publication is not None:
                scene.voice.says(
                    f"{table.name:24} publication {publication.version:<3} {publication.rows:>7} rows, "
                    f"{publication.files} files"
                )


def _title(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]} in one run"
