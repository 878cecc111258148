"""The interface to the pipelines, which the server never imports: what the console reads there and what it starts.

`lakeshare_pipelines` provides it by the entry point `lakeshare.console`. A server that is installed without the
pipelines has the same pages, which state so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import entry_points
from threading import Lock
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from lakeshare_server.catalog import ShareDiff
from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import Services
from lakeshare_server.routes.context import Pools
from lakeshare_server.settings import StateSettings

ENTRY_POINTS = "lakeshare.console"
INSTALL = "pip install 'lakeshare[pipelines]'"
# How long a page waits for the pipelines, in seconds; LAKESHARE_OUTSIDE_ANSWER_S may be shorter.
STAGED_S, BACKUP_S, EXAMINE_S = 6.0, 10.0, 30.0
STAGED, EXAMINE, CONTRACTS = "pipelines: staged sets", "pipelines: doctor", "pipelines: contracts"

Result = TypeVar("Result")


@dataclass(frozen=True)
class CheckResult:
    """The result of a check; `samples` are masked as the contract demands, `command` shows more of them."""

    table: str
    check: str
    severity: str
    passed: bool
    description: str
    reason: str
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()
    command: str | None = None

    @property
    def blocks(self) -> bool:
        """Whether it keeps the set from being published."""
        return not self.passed and self.severity == "error"


@dataclass(frozen=True)
class StagedTable:
    table: str
    rows: int
    rejected: int
    rewritten: Sequence[str]


@dataclass(frozen=True)
class StagedSet:
    """A set on a branch or in staging tables; `checks` is None before its audit.

    `state` is unfinished, staged, red or green. The fields after `since` are empty for an unfinished one.
    """

    reference: str
    set_name: str
    state: str
    since: datetime
    partition: str = ""
    run_id: str = ""
    head: str = ""
    base: str = ""
    tables: Sequence[StagedTable] = ()
    inputs: Mapping[str, int] = field(default_factory=dict)
    checks: Sequence[CheckResult] | None = None

    @property
    def failed(self) -> Sequence[CheckResult]:
        """Failed checks, blocking ones first."""
        failed = (check for check in self.checks or () if not check.passed)
        return sorted(failed, key=lambda check: not check.blocks)


@dataclass(frozen=True)
class StagedSets:
    """The staged sets, the oldest first; `problem` is why some are known by their records only."""

    sets: Sequence[StagedSet]
    problem: str | None = None


@dataclass(frozen=True)
class DeclaredCheck:
    """A check that a contract announces."""

    table: str
    check: str
    severity: str
    description: str


@dataclass(frozen=True)
class DeclaredBackup:
    name: str
    source: str
    target: str
    engine: str
    layout: str


@dataclass(frozen=True)
class TableProof:
    """A table in a backup point; `level` is 0 to 4, `reasons` are its problems."""

    root: str
    format: str
    status: str
    level: int
    version: int | None
    rows: int | None
    files: int
    size_bytes: int
    compared_at: datetime | None
    reasons: Sequence[str]


@dataclass(frozen=True)
class BackupPoint:
    day: str
    status: str
    is_good: bool
    as_of: datetime
    made_at: datetime
    retention_class: str
    locked_until: datetime | None
    objects: int
    size_bytes: int
    reasons: Sequence[str]
    tables: Sequence[TableProof]

    @property
    def lowest_level(self) -> int | None:
        return min((proof.level for proof in self.tables), default=None)


@dataclass(frozen=True)
class Drill:
    """A restore of one table as a test: `rto_s` is what it took, `rpo_s` the age of the restored state."""

    day: str
    table: str
    passed: bool
    started_at: datetime
    rto_s: float
    rpo_s: float
    rows: int | None
    reasons: Sequence[str]


@dataclass(frozen=True)
class BackupState:
    """The points of a backup, newest first; `damaged` are those whose records cannot be read, with the reasons."""

    backup: DeclaredBackup
    points: Sequence[BackupPoint]
    damaged: Mapping[str, str]
    unfinished: Sequence[str]
    drills: Sequence[Drill]
    read_at: datetime

    @property
    def newest_good(self) -> BackupPoint | None:
        return next((point for point in self.points if point.is_good), None)


@dataclass(frozen=True)
class RestorePlan:
    """What a restore in place would do; `steps` are sentences, `command` would do it."""

    table: str
    day: str
    version: int
    place: str
    objects: int
    size_bytes: int
    existing: int
    archived: int
    usd: float
    minutes: float
    steps: Sequence[str]
    command: str


@dataclass(frozen=True)
class Finding:
    """A finding of `lakeshare doctor`; one with a remedy is a problem."""

    name: str
    detail: str
    remedy: str | None


@dataclass(frozen=True)
class Command:
    """A command of the pipelines for a child process; `text` is how a person types it."""

    text: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


class Pipelines(Protocol):
    """What the console needs of the pipelines. Starts neither Spark nor Nessie; methods raise LakeshareError.

    Methods may wait for Nessie and for stores: callers run them with a deadline (`PipelineCalls`).
    """

    def list_staged(self) -> StagedSets:
        """What is staged now."""

    def find_staged(self, reference: str) -> StagedSet:
        """A staged set by its branch or folder. Raises NotFound."""

    def discard(self, reference: str) -> None:
        """Removes a staged set; published data is unchanged. Raises NotFound."""

    def list_checks(self, set_name: str) -> Sequence[DeclaredCheck]:
        """The checks that the contract of a set announces; none if no contract has that name."""

    def compare_shares(self) -> ShareDiff:
        """How the catalog's shares differ from those that contracts declare."""

    def list_backups(self) -> Sequence[DeclaredBackup]:
        """The declared backups, from their file alone."""

    def read_backup(self, name: str) -> BackupState:
        """The points and drills of a backup, from its store. Raises NotFound."""

    def plan_restore(self, name: str, day: str, table: str) -> RestorePlan:
        """The plan of a restore in place. Raises NotFound."""

    def examine(self) -> Sequence[Finding]:
        """What `lakeshare doctor` finds."""

    def make_command(self, *words: str) -> Command:
        """A `lakeshare` command with the settings of this server."""


class PipelineCalls:
    """Calls of the pipelines with deadlines, in threads of their own: a service that does not answer stops no other."""

    def __init__(self, settings: StateSettings, services: Services, pools: Pools) -> None:
        self._settings, self._services, self._pools = settings, services, pools
        self._turn = Lock()
        self._pipelines: Pipelines | None = None
        self._problem: str | None = None

    async def find_problem(self) -> str | None:
        """Why there are no pipelines on this host; None if there are."""
        return await self._pools.run(("pipelines",), self._find_problem)

    async def run(
        self, service: str, within_s: float, work: Callable[[Pipelines], Result], problem: str = ""
    ) -> Result:
        """The result of `work`, which may wait for a service; raises its error.

        Raises:
            Unavailable: the pipelines are not installed, or nothing came in time; `problem` begins the text.
        """
        try:
            return await self._pools.run((service,), self._call, service, within_s, work)
        except Unavailable as error:
            if not problem:
                raise
            raise Unavailable(f"{problem}: {error.what}", error.fix, error.retry_s) from error

    def require(self) -> Pipelines:
        """The pipelines. Raises Unavailable if they are not installed."""
        problem = self._find_problem()
        if self._pipelines is None:
            raise Unavailable(f"this host has no pipelines ({problem})", f"Install them: {INSTALL}")
        return self._pipelines

    def _call(self, service: str, within_s: float, work: Callable[[Pipelines], Result]) -> Result:
        pipelines = self.require()
        return self._services.of(service, within_s).call(lambda: work(pipelines))

    def _find_problem(self) -> str | None:
        with self._turn:
            if self._pipelines is None and self._problem is None:
                try:
                    self._pipelines = load_pipelines(self._settings)
                except ImportError as error:
                    self._problem = str(error)
            return self._problem


def load_pipelines(settings: StateSettings) -> Pipelines:
    """The pipelines of this host. Raises ImportError, or LakeshareError for settings that cannot be used."""
    found = list(entry_points(group=ENTRY_POINTS))
    if not found:
        raise ImportError(f"no package provides {ENTRY_POINTS}")
    try:
        opened: Pipelines = found[0].load()(settings)
    except ValidationError as error:
        # Without the values, which may be secrets.
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise Unavailable("the settings of the pipelines cannot be used", "; ".join(problems)) from error
    return opened
