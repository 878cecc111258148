"""All metrics of lakeshare: their definitions, the collectors that count, and the collectors that read a state.

`list_metrics` gives every definition without a server. Of one process are `PROCESS` (services, caches, database, audit
log) and `RequestMetrics` (requests of one application); the others describe a state that all processes share, and are
made of samples when they are scraped.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

WORKERS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

Kind = Literal["counter", "gauge", "histogram"]
# How the gauges of several workers become one.
GaugeMode = Literal["livemax", "livesum"]
# The server, or `lakeshare metrics` beside the pipelines.
Program = Literal["server", "pipelines"]

LABELS: Mapping[str, str] = {
    "action": "The call, like `query_table`; `unknown` for paths that are none.",
    "backup": "A backup of `LAKESHARE_BACKUPS_FILE`.",
    "cache": "What the files hold: `index`, `changes`, `scan`, `evidence` or `equality`.",
    "check": "A check of `/readyz`: `catalog`, `database_writes`, `state_folder` or `indexes`.",
    "credential": "The kind of the caller: `bearer`, `basic`, `oauth`, `oidc`, `impersonation`, `admin` or `none`.",
    "error": "The error code of the response, or the class of the error; empty without an error.",
    "operation": "`read`, `list`, `head`, `write`, `delete`, or `call` for services that are no stores.",
    "outcome": "`hit` or `miss`.",
    "recipient": "The recipient, with `LAKESHARE_TELEMETRY_NAMES` only.",
    "revision": "The migration of the database that this version needs.",
    "scheme": "What is called: `s3`, `gs`, `abfss`, `nessie`, `iceberg`, `https`, `http`, `database` or `other`.",
    "service": "A store, catalog, token service or issuer, like `s3://bucket`.",
    "set": "A set of tables.",
    "source": "What is read: `staged`, `landing`, `catalog`, or a backup, like `backup:lake`.",
    "state": "The state of what is counted, like `red` or `pending`.",
    "status": "The HTTP status, or the status of a backup point.",
    "table": "A table of the lake, like `flights.departures`.",
    "version": "The version of lakeshare.",
}


@dataclass(frozen=True)
class Metric:
    """The definition of a metric; `name` is without the `_total` of counters."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    program: Program = "server"
    mode: GaugeMode = "livemax"

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind == "counter":
            return (f"{self.name}_total",)
        if self.kind == "histogram":
            return tuple(f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
        return (self.name,)

    def counter(self, registry: CollectorRegistry, *more_labels: str) -> Counter:
        return Counter(self.name, self.help, [*self.labels, *more_labels], registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        return Gauge(self.name, self.help, self.labels, registry=registry, multiprocess_mode=self.mode)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        return Histogram(self.name, self.help, self.labels, registry=registry, buckets=BUCKETS_S)


REQUESTS = Metric(
    "lakeshare_requests",
    "counter",
    "Requests, by call and outcome.",
    ("action", "status", "error", "credential"),
)
REQUEST_SECONDS = Metric(
    "lakeshare_request_seconds",
    "histogram",
    "Time from a request's arrival to the end of its reply.",
    ("action",),
)
FILES = Metric(
    "lakeshare_files", "counter", "Files whose URLs were signed, or that were sent (read_file).", ("action",)
)
FILE_BYTES = Metric("lakeshare_file_bytes", "counter", "Bytes of these files, as far as known.", ("action",))
OUTAGES = Metric(
    "lakeshare_service_unavailable",
    "gauge",
    "1 for a store, catalog, token service or issuer that gives a worker no answers.",
    ("service",),
)
SERVICE_SECONDS = Metric(
    "lakeshare_service_call_seconds",
    "histogram",
    "Time of calls of stores and other services, failed ones too.",
    ("scheme", "operation"),
)
SERVICE_ERRORS = Metric(
    "lakeshare_service_call_errors",
    "counter",
    "Calls that gave no result, by the class of their error; missing objects are results.",
    ("scheme", "operation", "error"),
)
CACHE_REQUESTS = Metric(
    "lakeshare_index_cache_requests",
    "counter",
    "Files that were looked up in the cache of indexes.",
    ("cache", "outcome"),
)
CACHE_EVICTIONS = Metric(
    "lakeshare_index_cache_evictions", "counter", "Files that were removed to free space in the cache."
)
CACHE_BYTES = Metric("lakeshare_index_cache_bytes", "gauge", "Size of the files in the cache of indexes.")
DATABASE_ERRORS = Metric(
    "lakeshare_database_errors", "counter", "Transactions that the database did not answer.", ("error",)
)
AUDIT_BACKLOG = Metric(
    "lakeshare_audit_backlog_events",
    "gauge",
    "Audit events in the journals of the workers that are not in the database yet.",
    mode="livesum",
)

BUILD_INFO = Metric("lakeshare_build_info", "gauge", "1, with the version.", ("version", "revision"))
DATABASE_UP = Metric(
    "lakeshare_database_up", "gauge", "1 if the state below was read from the database at the last attempt."
)
STATE_AGE = Metric(
    "lakeshare_state_age_seconds", "gauge", "Time since the state below was read from the database."
)
CHECK_FAILED = Metric("lakeshare_check_failed", "gauge", "1 for a check of /readyz that fails.", ("check",))
PUBLICATION_AGE = Metric(
    "lakeshare_publication_age_seconds",
    "gauge",
    "Time since the last publication of a shared table that brought data.",
    ("table",),
)
FRESHNESS_GOAL = Metric(
    "lakeshare_freshness_goal_seconds",
    "gauge",
    "Greatest age of the last publication that the contract allows: frequency and latency of its slaProperties.",
    ("table",),
)
TABLES_LEFT_OUT = Metric(
    "lakeshare_tables_left_out", "gauge", "Shared tables without these metrics, by LAKESHARE_METRICS_TABLES."
)
PUBLICATIONS = Metric("lakeshare_publications", "counter", "Key of the last publication: it grows with each.")
UNSIGNED = Metric(
    "lakeshare_unsigned_publications",
    "gauge",
    "Audited publications of the last seven days without a signed statement.",
)
DELIVERIES = Metric(
    "lakeshare_webhook_deliveries",
    "gauge",
    "Events for webhooks that are pending, or dead: not sent again.",
    ("state",),
)
OLDEST_DELIVERY = Metric(
    "lakeshare_webhook_oldest_pending_seconds", "gauge", "Age of the oldest pending event; 0 without one."
)
QUERIES = Metric("lakeshare_async_queries", "gauge", "Asynchronous queries.", ("state",))
PUBLISHING = Metric("lakeshare_publishing_sets", "gauge", "Sets that a process is publishing now.")

SOURCE_UP = Metric(
    "lakeshare_source_up", "gauge", "1 if a source was read at the last attempt.", ("source",), "pipelines"
)
SOURCE_AGE = Metric(
    "lakeshare_source_age_seconds", "gauge", "Time since a source was read.", ("source",), "pipelines"
)
STAGED_SETS = Metric(
    "lakeshare_staged_sets",
    "gauge",
    "Staged sets that are not published: unfinished, staged, red or green.",
    ("set", "state"),
    "pipelines",
)
STAGED_AGE = Metric(
    "lakeshare_staged_set_age_seconds",
    "gauge",
    "Age of the oldest staged set of this name and state.",
    ("set", "state"),
    "pipelines",
)
LANDING = Metric(
    "lakeshare_landing_deliveries",
    "gauge",
    "Complete deliveries in landing that no publication has used.",
    ("set",),
    "pipelines",
)
RUN_AGE = Metric(
    "lakeshare_last_run_age_seconds",
    "gauge",
    "Time since the last publication of a set.",
    ("set",),
    "pipelines",
)
RUN_SECONDS = Metric(
    "lakeshare_last_run_seconds",
    "gauge",
    "Time from the begin of the last published run of a set to its publication.",
    ("set",),
    "pipelines",
)
RUN_ROWS = Metric(
    "lakeshare_last_run_rows",
    "gauge",
    "Rows of the tables of a set after its last publication.",
    ("set",),
    "pipelines",
)
POINTS = Metric(
    "lakeshare_backup_points", "gauge", "Backup points, by status.", ("backup", "status"), "pipelines"
)
POINT_AGE = Metric(
    "lakeshare_backup_age_seconds",
    "gauge",
    "Age of the state that the newest good backup point holds.",
    ("backup",),
    "pipelines",
)
POINT_GOAL = Metric(
    "lakeshare_backup_goal_seconds",
    "gauge",
    "Greatest age of the newest good backup point, as declared.",
    ("backup",),
    "pipelines",
)
POINT_BYTES = Metric(
    "lakeshare_backup_bytes",
    "gauge",
    "Size of the objects of the newest good backup point.",
    ("backup",),
    "pipelines",
)
DRILL_FAILED = Metric(
    "lakeshare_drill_failed",
    "gauge",
    "1 if a table could not be restored in the last drill.",
    ("backup",),
    "pipelines",
)
DRILL_AGE = Metric(
    "lakeshare_drill_age_seconds", "gauge", "Time since the last drill began.", ("backup",), "pipelines"
)
DRILL_SECONDS = Metric(
    "lakeshare_drill_seconds", "gauge", "Time that the last drill took (RTO).", ("backup",), "pipelines"
)


def list_metrics() -> list[Metric]:
    """Every metric of the server and of `lakeshare metrics`, in the order of their definition."""
    return [value for value in globals().values() if isinstance(value, Metric)]


@dataclass
class Samples:
    """The samples of metrics at one moment: values by labels."""

    values: dict[Metric, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        self.values.setdefault(metric, {})[labels] = value

    def families(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric, values in self.values.items():
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


class StateCollector(Collector):
    """Collects the samples of a function at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Samples]]) -> None:
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        merged = Samples()
        for samples in self._read():
            for metric, values in samples.values.items():
                merged.values.setdefault(metric, {}).update(values)
        return merged.families()


STORE_SCHEMES = frozenset({"s3", "gs", "abfss", "nessie", "iceberg", "https", "http", "database"})


class ProcessMetrics:
    """The counters of what all parts of a process use."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._seconds, self._errors = SERVICE_SECONDS.histogram(registry), SERVICE_ERRORS.counter(registry)
        self._lookups, self._evictions = CACHE_REQUESTS.counter(registry), CACHE_EVICTIONS.counter(registry)
        self._database, self._backlog = DATABASE_ERRORS.counter(registry), AUDIT_BACKLOG.gauge(registry)

    def note_call(self, service: str, operation: str, elapsed_s: float, error: str | None) -> None:
        """Counts a call of a service by its name, like `s3://bucket`."""
        scheme = service.partition(":")[0]
        labels = (scheme if scheme in STORE_SCHEMES else "other", operation)
        self._seconds.labels(*labels).observe(elapsed_s)
        if error is not None:
            self._errors.labels(*labels, error).inc()

    def note_lookup(self, cache: str, *, is_hit: bool) -> None:
        self._lookups.labels(cache, "hit" if is_hit else "miss").inc()

    def note_eviction(self) -> None:
        self._evictions.inc()

    def note_database_error(self, error: str) -> None:
        self._database.labels(error).inc()

    def note_audit_backlog(self, events: int) -> None:
        self._backlog.set(events)


PROCESS = ProcessMetrics()


# Not frozen: that would take twice the time to create one, for each request.
@dataclass(slots=True)
class FinishedRequest:
    """What is counted of a request; `recipient` is its name, for metrics with names."""

    action: str
    status: int
    error: str
    credential: str
    recipient: str
    elapsed_s: float
    files: int
    size_bytes: int


class RequestMetrics:
    """The counters of one application."""

    def __init__(self, *, names: bool = False) -> None:
        self._names = names
        registry = self.registry = CollectorRegistry()
        who = ("recipient",) if names else ()
        self._requests, self._seconds = REQUESTS.counter(registry, *who), REQUEST_SECONDS.histogram(registry)
        self._files, self._bytes = FILES.counter(registry, *who), FILE_BYTES.counter(registry, *who)
        self._outages = OUTAGES.gauge(registry)

    def note_outage(self, service: str, is_unavailable: bool) -> None:
        self._outages.labels(service).set(int(is_unavailable))

    def count(self, request: FinishedRequest) -> None:
        who = (request.recipient,) if self._names else ()
        labels = (request.action, str(request.status), request.error, request.credential)
        self._requests.labels(*labels, *who).inc()
        self._seconds.labels(request.action).observe(request.elapsed_s)
        if request.files:
            self._files.labels(request.action, *who).inc(request.files)
        if request.size_bytes:
            self._bytes.labels(request.action, *who).inc(request.size_bytes)


def format_metrics(registries: Sequence[CollectorRegistry], state: StateCollector | None) -> bytes:
    """The text of a scrape: the counters of this process, or of all workers together, and a state."""
    texts = []
    if WORKERS_FOLDER in os.environ:
        of_workers = CollectorRegistry()
        MultiProcessCollector(of_workers)  # type: ignore[no-untyped-call]  # it has none
        registries = [of_workers]
    if state is not None:
        of_state = CollectorRegistry()
        of_state.register(state)
        registries = [*registries, of_state]
    texts = [generate_latest(registry) for registry in registries]
    return b"".join(texts)


def forget_worker(pid: int | None) -> None:
    """Removes the gauges of a worker that has ended; counters stay."""
    if pid is not None and WORKERS_FOLDER in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]  # it has none
