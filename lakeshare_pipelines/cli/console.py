"""What the server's console reads of the pipelines: staged sets, checks, backups, and what `doctor` finds.

The server finds `open_console` by the entry point `lakeshare.console`. Nothing here starts Spark or Nessie.
"""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup, load_backups
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.cli import find_missing_packages
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.contracts.loader import PACKAGED, list_contract_files
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing, PipelineError
from lakeshare_pipelines.nessie.client import Nessie, NessieEndpoint, Reference, nessie_api
from lakeshare_pipelines.nessie.server import find_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.shares import diff_declared_shares
from lakeshare_pipelines.wap import stage
from lakeshare_pipelines.wap.checks import SHOW_REJECTED, list_checks
from lakeshare_pipelines.wap.staged import Lake, Verdict, list_attempts, refuse_spark
from lakeshare_server.catalog import Catalog, ShareDiff, open_catalog
from lakeshare_server.errors import NotFound, Unavailable
from lakeshare_server.pages.console import pipelines as shown
from lakeshare_server.settings import StateSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Staged sets change with each run, points of backups with each day.
STAGED_LIFE_S, BACKUP_LIFE_S = 2.0, 30.0
# How long Nessie may take to answer, and how long it is not asked again after it did not.
NESSIE_S, NESSIE_PAUSE_S = 3.0, 10.0
READERS = 8
MAX_DRILLS = 100
BRANCHES = "wap-"

Value = TypeVar("Value")
Shown = TypeVar("Shown", bound="DataclassInstance")


def open_console(settings: StateSettings) -> shown.Pipelines:
    """The pipelines over the state of a server; their other settings are those of the environment.

    Raises:
        ImportError: only the server is installed.
    """
    if missing := find_missing_packages():
        raise ImportError(f"{', '.join(missing)} are not installed")
    shared = settings.model_dump(include=set(StateSettings.model_fields))
    return ConsolePipelines(LakeSettings(**shared))


class ConsolePipelines:
    """The implementation of the server's `Pipelines` over the settings of a lake; safe for several threads."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self._staged, self._backups = _Recent[shown.StagedSets](), _Recent[shown.BackupState]()
        self._turn = Lock()
        self._contracts: tuple[object, tuple[SetContract, ...]] = (None, ())

    def list_staged(self) -> shown.StagedSets:
        def find_life(staged: shown.StagedSets) -> float:
            return STAGED_LIFE_S if staged.problem is None else NESSIE_PAUSE_S

        return self._staged.get("", find_life, self._list_staged)

    def _list_staged(self) -> shown.StagedSets:
        with _translate_errors():
            lake, contracts = _RunningLake(self._settings), self.load_contracts()
            of_catalog = [contract for contract in contracts if _is_iceberg(contract)]
            others = [contract for contract in contracts if not _is_iceberg(contract)]
            found = stage.list_staging_locations(lake, others)
            problem = None
            try:
                found += stage.list_staging_locations(lake, of_catalog)
            except PipelineError as error:
                problem = str(error)
                found += _list_recorded(lake, {contract.name for contract in of_catalog})
        sets = sorted(map(_show_location, found), key=lambda each: each.since)
        return shown.StagedSets(sets, problem)

    def find_staged(self, reference: str) -> shown.StagedSet:
        found = next((each for each in self.list_staged().sets if each.reference == reference), None)
        if found is None:
            raise NotFound("Staged set", reference)
        return found

    def discard(self, reference: str) -> None:
        with _translate_errors():
            lake, contracts = _RunningLake(self._settings), self.load_contracts()
            try:
                contract, location = stage.find_staging_location(lake, contracts, reference)
            except stage.UnknownStagingLocation as error:
                raise NotFound("Staged set", reference) from error
            stage.drop_staging_location(lake, contract, location.ref)
        self._staged.clear()

    def list_checks(self, set_name: str) -> Sequence[shown.DeclaredCheck]:
        with _translate_errors():
            contracts = {contract.name: contract for contract in self.load_contracts()}
            specs = list_checks(contracts[set_name]) if set_name in contracts else ()
        return [shown.DeclaredCheck(spec.table, spec.name, spec.severity, spec.description) for spec in specs]

    def compare_shares(self) -> ShareDiff:
        with _translate_errors():
            return diff_declared_shares(self._catalog, self.load_contracts())

    def list_backups(self) -> Sequence[shown.DeclaredBackup]:
        with _translate_errors():
            return [_show_backup(backup) for backup in load_backups(self._settings)]

    def read_backup(self, name: str) -> shown.BackupState:
        return self._backups.get(name, lambda _state: BACKUP_LIFE_S, lambda: self._read_backup(name))

    def _read_backup(self, name: str) -> shown.BackupState:
        from lakeshare_pipelines.backup.run import read_drills

        with _translate_errors():
            backup = self._find_backup(name)
            points = Points(backup)
            damaged = dict[str, str]()

            def read_point(day: str) -> shown.BackupPoint | None:
                try:
                    return _show_point(points.get(day))
                except DamagedRecord as error:
                    damaged[day] = error.reason
                    return None

            with ThreadPoolExecutor(READERS) as pool:
                read = list(pool.map(read_point, reversed(points.days())))
            drills = read_drills(points, MAX_DRILLS)
            unfinished = points.unfinished()
        return shown.BackupState(
            _show_backup(backup),
            [point for point in read if point is not None],
            damaged,
            unfinished,
            [_show(shown.Drill, drill) for drill in drills],
            datetime.now(UTC),
        )

    def plan_restore(self, name: str, day: str, table: str) -> shown.RestorePlan:
        from lakeshare_pipelines.backup.restore.tables import PointRestore

        with _translate_errors():
            backup = self._find_backup(name)
            restore = PointRestore(self._settings, backup, Points(backup).get(day), lambda _sentence: None)
            plan = restore.plan(self._catalog, table, None)
        words = ("restore", "table", table, "--in-place", "--backup", name, "--point", day)
        command = self.make_command(*words).text
        return _show(shown.RestorePlan, plan, table=plan.table.root, existing=plan.there, command=command)

    def examine(self) -> Sequence[shown.Finding]:
        from lakeshare_pipelines.cli.doctor import examine

        return [
            shown.Finding(check.name, check.detail, check.remedy or None) for check in examine(self._settings)
        ]

    def make_command(self, *words: str) -> shown.Command:
        places: dict[str, object] = {
            "LAKESHARE_STATE_DIR": self._settings.state_dir,
            "LAKESHARE_DATABASE_URL": self._settings.database_url,
            "LAKESHARE_WAREHOUSE": self._settings.warehouse,
        }
        environment = {name: str(place) for name, place in places.items() if place is not None}
        arguments = [sys.executable, "-m", "lakeshare_pipelines", *words]
        return shown.Command(shlex.join(("lakeshare", *words)), arguments, environment)

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings.catalog_url)

    def _find_backup(self, name: str) -> Backup:
        found = next((backup for backup in load_backups(self._settings) if backup.name == name), None)
        if found is None:
            raise NotFound("Backup", name)
        return found

    def load_contracts(self) -> tuple[SetContract, ...]:
        """The contracts, parsed again only when a file has changed."""
        with self._turn:
            state = [
                _file_state(path) for path in list_contract_files(self._settings.contracts_dir or PACKAGED)
            ]
            if self._contracts[0] != state or not state:
                self._contracts = state, load_contracts(self._settings.contracts_dir)
            return self._contracts[1]


class _RunningLake(Lake):
    """A lake without Spark whose Nessie is not started."""

    def __init__(self, settings: LakeSettings) -> None:
        super().__init__(settings, refuse_spark)
        self._clients = dict[str, Nessie]()

    @cached_property
    def endpoint(self) -> NessieEndpoint:
        return find_nessie(self.settings)

    def nessie(self, role: Literal["writer", "publisher"] = "writer") -> Nessie:
        return self._clients.setdefault(role, _OneListing.connect(self.endpoint, role))


class _OneListing(Nessie):
    """Lists the branches of all sets at once, and soon or not at all: there may be thousands of sets."""

    def __init__(self, uri: str, token: str | None) -> None:
        super().__init__(uri, token)
        self._api = nessie_api(uri, token, NESSIE_S)

    @cached_property
    def _listed(self) -> list[Reference]:
        return super().branches(BRANCHES)

    def branches(self, prefix: str = "") -> list[Reference]:
        return [branch for branch in self._listed if branch.name.startswith(prefix)]


class _Recent(Generic[Value]):
    """Values by name that were read a short time ago."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Value]] = {}

    def get(self, name: str, find_life: Callable[[Value], float], read: Callable[[], Value]) -> Value:
        known = self._known.get(name)
        if known is not None and time.monotonic() - known[0] < find_life(known[1]):
            return known[1]
        value = read()
        self._known[name] = time.monotonic(), value
        return value

    def clear(self) -> None:
        self._known = {}


def _is_iceberg(contract: SetContract) -> bool:
    return any(table.format == "iceberg" for table in contract.tables)


def _file_state(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path), found.st_mtime_ns, found.st_size


def _list_recorded(lake: Lake, sets: Set[str]) -> list[stage.StagingLocation]:
    """The staging locations of sets by their records alone, where the catalog cannot be asked."""
    return [
        stage.StagingLocation(attempt.staged.ref, attempt.staged.set_name, attempt.written_at, attempt)
        for attempt in list_attempts(lake)
        if attempt.staged.set_name in sets
    ]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Makes errors of the pipelines those that the console has pages for."""
    try:
        yield
    except ObjectMissing as error:
        raise NotFound("Object", error.subject) from error
    except BackupError as error:
        raise Unavailable(f"{error.subject}: {error.reason}", error.fix) from error
    except PipelineError as error:
        raise Unavailable(str(error).rstrip("."), "Correct it, then open the page again.") from error


def _show_location(location: stage.StagingLocation) -> shown.StagedSet:
    attempt = location.attempt
    if attempt is None:
        return shown.StagedSet(location.ref, location.set_name, location.state, location.since)
    staged, verdicts = attempt.staged, attempt.verdicts
    checks = None if verdicts is None else [_show_verdict(verdict) for verdict in verdicts.verdicts]
    of_location = {name: getattr(location, name) for name in ("set_name", "state", "since")}
    tables = [_show(shown.StagedTable, table) for table in staged.tables]
    return _show(shown.StagedSet, staged, reference=location.ref, tables=tables, checks=checks, **of_location)


def _show_verdict(verdict: Verdict) -> shown.CheckResult:
    # The samples were masked by the audit: no other rows are read here.
    others = {
        name: value for name, value in verdict.observed.items() if name not in ("reason", SHOW_REJECTED)
    }
    return _show(shown.CheckResult, verdict, observed=others, command=verdict.observed.get(SHOW_REJECTED))


def _show_backup(backup: Backup) -> shown.DeclaredBackup:
    return shown.DeclaredBackup(
        backup.name, str(backup.source), str(backup.target), backup.engine, backup.layout
    )


def _show_point(point: model.Point) -> shown.BackupPoint:
    proof = point.verification
    proved = {name: getattr(proof, name) for name in ("objects", "size_bytes", "reasons")}
    tables = [
        _show(shown.TableProof, table, root=table.table.root, format=table.table.format)
        for table in proof.tables
    ]
    is_good = point.status in model.GOOD_STATUSES
    return _show(shown.BackupPoint, point, is_good=is_good, tables=tables, **proved)


def _show(kind: type[Shown], record: object, **others: object) -> Shown:
    """A record as the console shows it: its fields of the same names, and others."""
    names = {field.name for field in fields(kind)} - others.keys()
    return kind(**{name: getattr(record, name) for name in names}, **others)
