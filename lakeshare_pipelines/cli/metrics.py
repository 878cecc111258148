"""`lakeshare metrics`: Prometheus metrics of what only the pipelines can read: staged sets, landing, runs, backups.

It reads and changes nothing, and starts neither Spark nor Nessie. Each source has a thread of its own, so that a scrape
never waits and a dead store hides its own metrics only. The definitions are in `lakeshare_server/metrics.py`.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from lakeshare_pipelines.errors import PipelineError
from lakeshare_server.errors import LakeshareError, Unavailable
from lakeshare_server.lazy import LazyModule, gc_disabled

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.config import Backup
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_server import metrics as defined
    from lakeshare_server.catalog import Catalog
    from lakeshare_server.catalog.monitoring import SetRunState
    from lakeshare_server.metrics import Samples
    from lakeshare_server.pages.console.pipelines import BackupState, StagedSets
else:
    defined = LazyModule("lakeshare_server.metrics")

PORT = 9464
REFRESH_S = 30.0
# A source that is read for longer counts as down until it is read.
READ_S = 60.0
# Points change once a day, and each is a request of the store.
BACKUP_EVERY = 10
Value = TypeVar("Value")
_log = logging.getLogger(__name__)


def metrics(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on. There is no password: keep others away by the network.")
    ] = "127.0.0.1",
    refresh: Annotated[
        float, typer.Option(min=1, help="Seconds between two readings of a source.")
    ] = REFRESH_S,
) -> None:
    """Serve Prometheus metrics of staged sets, landing, runs, backups and drills until Ctrl-C. Changes nothing.

    Example: lakeshare metrics --port 9464
    """
    from lakeshare_pipelines.cli.contract import load_settings

    exporter = Exporter(load_settings(), refresh)
    with exporter.serve(host, port) as url:
        typer.echo(f"lakeshare serves metrics at {url} (Ctrl-C stops it)")
        exporter.wait()


@dataclass(frozen=True)
class Reading(Generic[Value]):
    """What a source had at a moment of the monotonic clock."""

    value: Value
    at: float


class Source(Generic[Value]):
    """One thing that is read again and again in a thread, and shown as it was read last."""

    def __init__(
        self,
        name: str,
        every_s: float,
        read: Callable[[], Value],
        show: Callable[["Samples", Value], None],
        is_whole: Callable[[Value], bool] = lambda _value: True,
    ) -> None:
        self.name, self._every_s, self._read, self._show = name, every_s, read, show
        self._is_whole = is_whole
        self._last: Reading[Value] | None = None
        self._failed = False
        self._began: float | None = None

    def keep_reading(self, stop: threading.Event) -> None:
        while True:
            self.read_once()
            if stop.wait(self._every_s):
                return

    def read_once(self) -> None:
        self._began = time.monotonic()
        try:
            self._last, self._failed = Reading(self._read(), time.monotonic()), False
        # A failure of any kind must not end the thread: the next reading tries again.
        except Exception as error:
            is_foreseen = isinstance(error, LakeshareError | PipelineError)
            if not self._failed or not is_foreseen:
                _log.warning("metrics: %s cannot be read: %s", self.name, error, exc_info=not is_foreseen)
            self._failed = True
        finally:
            self._began = None

    def add_to(self, samples: "Samples") -> None:
        began, last = self._began, self._last
        is_stuck = began is not None and time.monotonic() - began > READ_S
        is_up = last is not None and self._is_whole(last.value) and not self._failed and not is_stuck
        samples.add(defined.SOURCE_UP, is_up, self.name)
        if last is not None:
            samples.add(defined.SOURCE_AGE, time.monotonic() - last.at, self.name)
            self._show(samples, last.value)


class Exporter:
    """The sources of a lake, read in threads while `serve` is open.

    Raises:
        BackupError: the declarations of backups cannot be used.
    """

    def __init__(self, settings: "LakeSettings", refresh_s: float = REFRESH_S) -> None:
        with gc_disabled():
            from lakeshare_pipelines.backup.config import load_backups
            from lakeshare_pipelines.cli.console import ConsolePipelines

        self._settings = settings
        self._pipelines = ConsolePipelines(settings)
        self._stop = threading.Event()
        self.sources: Sequence[Source[Any]] = [
            Source("staged", refresh_s, self._pipelines.list_staged, _show_staged, self._is_complete),
            Source("landing", refresh_s, self._read_landing, _show_landing),
            Source("catalog", refresh_s, self._read_runs, _show_runs),
            *(self._make_backup_source(backup, refresh_s) for backup in load_backups(settings)),
        ]

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[str]:
        """Reads and listens; the context has the URL. Raises Unavailable if the address is not free."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(defined.StateCollector(self.read))
        try:
            server, listener = start_http_server(port, host, registry)
        except OSError as error:
            what = f"cannot listen on {host}:{port}: {error.strerror}"
            raise Unavailable(what, "Give --port a free one; 0 takes any.") from error
        for source in self.sources:
            reading = threading.Thread(
                target=source.keep_reading, args=(self._stop,), name=source.name, daemon=True
            )
            reading.start()
        try:
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            self._stop.set()
            server.shutdown()
            server.server_close()
            listener.join()

    def wait(self) -> None:
        """Waits for Ctrl-C or the end of serving."""
        with suppress(KeyboardInterrupt):
            self._stop.wait()

    def read(self) -> "list[Samples]":
        samples = defined.Samples()
        for source in self.sources:
            source.add_to(samples)
        return [samples]

    def _is_complete(self, staged: "StagedSets") -> bool:
        # An embedded Nessie runs from the first run on: without it there are no branches to see.
        is_embedded = self._settings.iceberg_catalog == "nessie" and self._settings.nessie_uri is None
        return staged.problem is None or is_embedded

    @cached_property
    def _catalog(self) -> "Catalog":
        from lakeshare_server.catalog.database import open_existing_catalog

        found = open_existing_catalog(self._settings.catalog_url)
        if found is None:
            raise Unavailable("there is no catalog yet", "Start the server or a run, which create it.")
        return found

    def _read_runs(self) -> "Sequence[SetRunState]":
        from lakeshare_server.catalog.monitoring import read_last_runs

        with self._catalog.reading() as session:
            return read_last_runs(session)

    def _read_landing(self) -> Mapping[str, int]:
        from lakeshare_pipelines.ingest.delivery import find_deliveries
        from lakeshare_pipelines.share.publication import deliveries_in_force
        from lakeshare_server.catalog import Ledger

        waiting = {}
        for contract in self._pipelines.load_contracts():
            if not contract.takes_deliveries:
                continue
            found = {
                each.partition: each for each in find_deliveries(self._settings, contract) if each.complete
            }
            used = deliveries_in_force(Ledger(self._catalog), contract, list(found)) if found else {}
            waiting[contract.name] = sum(
                used.get(partition, ("",))[0] != each.digest for partition, each in found.items()
            )
        return waiting

    def _make_backup_source(self, backup: "Backup", refresh_s: float) -> "Source[BackupState]":
        return Source(
            f"backup:{backup.name}",
            BACKUP_EVERY * refresh_s,
            lambda: self._pipelines.read_backup(backup.name),
            lambda samples, state: _show_backup(samples, state, backup.max_age.total_seconds()),
        )


def _show_staged(samples: "Samples", staged: "StagedSets") -> None:
    now = datetime.now(UTC)
    counts = Counter((each.set_name, each.state) for each in staged.sets)
    for labels, count in counts.items():
        samples.add(defined.STAGED_SETS, count, *labels)
        oldest = min(each.since for each in staged.sets if (each.set_name, each.state) == labels)
        samples.add(defined.STAGED_AGE, (now - oldest).total_seconds(), *labels)


def _show_landing(samples: "Samples", waiting: Mapping[str, int]) -> None:
    for name, count in waiting.items():
        samples.add(defined.LANDING, count, name)


def _show_runs(samples: "Samples", runs: "Sequence[SetRunState]") -> None:
    now = datetime.now(UTC)
    for run in runs:
        samples.add(defined.RUN_AGE, (now - run.published_at).total_seconds(), run.set_name)
        samples.add(defined.RUN_ROWS, run.rows, run.set_name)
        if run.started_at is not None:
            seconds = (run.published_at - run.started_at).total_seconds()
            samples.add(defined.RUN_SECONDS, seconds, run.set_name)


def _show_backup(samples: "Samples", state: "BackupState", goal_s: float) -> None:
    now, name, newest = datetime.now(UTC), state.backup.name, state.newest_good
    samples.add(defined.POINT_GOAL, goal_s, name)
    for status, count in Counter(point.status for point in state.points).items():
        samples.add(defined.POINTS, count, name, status)
    if newest is not None:
        samples.add(defined.POINT_AGE, (now - newest.as_of).total_seconds(), name)
        samples.add(defined.POINT_BYTES, newest.size_bytes, name)
    if state.drills:
        drill = max(state.drills, key=lambda each: each.started_at)
        samples.add(defined.DRILL_FAILED, not drill.passed, name)
        samples.add(defined.DRILL_AGE, (now - drill.started_at).total_seconds(), name)
        samples.add(defined.DRILL_SECONDS, drill.rto_s, name)
