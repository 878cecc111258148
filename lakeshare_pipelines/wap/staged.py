"""The records that travel between staging, audit and publication, the lake of a run, and the quarantine table."""

import contextlib
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.partitioning import Kind, Partitioning
from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.nessie.client import Nessie, NessieEndpoint
from lakeshare_pipelines.nessie.server import ensure_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.catalogs import NamedCatalog
from lakeshare_pipelines.spark.session import make_catalog_conf, make_catalog_name, spark_session
from lakeshare_pipelines.spark.stores import make_delta_options, translate_delta_errors
from lakeshare_server.errors import StoreMissing
from lakeshare_server.file_lock import hold_lock
from lakeshare_server.lazy import LazyModule
from lakeshare_server.storage import Stores
from lakeshare_server.telemetry.tracing import current_traceparent, is_exporting, is_recording

if TYPE_CHECKING:
    import deltalake
    from pyiceberg.catalog import Catalog as IcebergCatalog
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    from lakeshare_pipelines.ingest.frame import TableFrame
    from lakeshare_server.tables.publications import PublicationFiles
else:
    deltalake, F = LazyModule("deltalake"), LazyModule("pyspark.sql.functions")

WHOLE = ("all",)
"""The partitions of a set that is delivered and replaced as a whole."""


@dataclass(frozen=True)
class ReadTable:
    """A table that another one was made of: its publication, None for the same run's, and if all of its rows were read.

    `is_whole` is False if only the rows of the run were read, and None if a transform did not read it at all.
    `kinds` are the kinds of partitions of both tables and their time zone, if those of the run were read by time.
    """

    version: int | None
    is_whole: bool | None
    kinds: tuple[Kind, Kind, str] | None = None

    def map_keys(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """The partitions that were read for these partitions of the table that was made."""
        if self.kinds is None:
            return keys
        own, read = (Partitioning(kind, time_zone=self.kinds[2]) for kind in self.kinds[:2])
        return tuple(dict.fromkeys(found for key in keys for found in own.map_key(key, read)))

    def as_record(self) -> dict[str, Any]:
        record = asdict(self)
        return record if self.kinds else {name: record[name] for name in ("version", "is_whole")}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        kinds = record.get("kinds")
        return cls(record["version"], record["is_whole"], None if kinds is None else tuple(kinds))


@dataclass(frozen=True)
class StagedTable:
    """One table of a staged set, before its audit.

    `rewritten`: the reason codes that kept promised clients from the table until staging rewrote its files. Of a view,
    `view` is the digest of its definition; `is_whole`: the run selected it from the whole table, not only its own rows.
    `inputs` are the tables that it was made of, `code` is the SHA-256 of the file with its transform.
    `skipped` are the partitions whose deliveries the table has already; `key_problems` say why rows cannot be merged.
    A source other than landing was read after the position `since` of the publication before, up to `position`.
    """

    table: str
    rows: int
    rejected: int = 0
    problems: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    view: str | None = None
    is_whole: bool = False
    inputs: Mapping[str, ReadTable] = field(default_factory=dict)
    code: str | None = None
    skipped: tuple[str, ...] = ()
    key_problems: tuple[str, ...] = ()
    since: Mapping[str, Any] | None = None
    position: Mapping[str, Any] | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        lists = ("problems", "rewritten", "skipped", "key_problems")
        inputs = {name: ReadTable.from_record(read) for name, read in record.get("inputs", {}).items()}
        return cls(**{**record, **{name: tuple(record.get(name, ())) for name in lists}, "inputs": inputs})


@dataclass(frozen=True)
class Staged:
    """A set written to a staging location.

    `ref` is the branch (Iceberg) or the staging folder's name (Delta). `base` is the state of main it started from: a
    Nessie hash, or the tables' snapshots or Delta versions as JSON. `head` is the state to audit and publish: a Nessie
    hash, the snapshots on the tables' own branches as JSON, or the SHA-256 of the staged logs of Delta. `deliveries`
    are digests by partition, empty texts for a set that takes none; `pins` the numbers of inputs that were requested.
    """

    set_name: str
    run_id: str
    partitions: tuple[str, ...]
    ref: str
    base: str
    head: str
    tables: tuple[StagedTable, ...]
    deliveries: Mapping[str, str]
    contract_digest: str
    attempt: int = 0
    pins: Mapping[str, int] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        return format_partitions(self.partitions)

    @property
    def title(self) -> str:
        return f"set {self.set_name}, partition {self.partition}, staged at {self.ref}"

    @property
    def inputs(self) -> dict[str, int]:
        """The publications of other sets that the run read, by table."""
        reads = ((name, read) for table in self.tables for name, read in table.inputs.items())
        return {name: read.version for name, read in reads if read.version is not None}

    @property
    def code(self) -> dict[str, str]:
        """The SHA-256 of the file with each transform, by table."""
        return {table.table: table.code for table in self.tables if table.code is not None}

    def describe_inputs(self) -> dict[str, Any]:
        """What each table was made of, as the evidence of its publication."""
        inputs = {
            table.table: {name: read.as_record() for name, read in table.inputs.items()}
            for table in self.tables
            if table.inputs
        }
        positions = {table.table: table.position for table in self.tables if table.position is not None}
        parts = ("inputs", inputs), ("code", self.code), ("positions", positions)
        return {name: found for name, found in parts if found}

    def find_table(self, table: str) -> StagedTable | None:
        return next((staged for staged in self.tables if staged.table == table), None)

    def partitions_of(self, table: str) -> tuple[str, ...]:
        """The partitions of a table that the run replaces."""
        record = self.find_table(table)
        return WHOLE if record is not None and record.is_whole else self.partitions

    def as_record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        tables = tuple(StagedTable.from_record(table) for table in record["tables"])
        return cls(**{**record, "partitions": tuple(record["partitions"]), "tables": tables})

    def as_json(self) -> str:
        return json.dumps(self.as_record(), separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True)
class TablePointer:
    """A state of an Iceberg table: a metadata file, and a snapshot that it lists."""

    metadata_location: str
    snapshot_id: int


def format_partitions(partitions: tuple[str, ...]) -> str:
    """`2013-01-01`, or `2013-01-01...2013-01-31` (Dagster's own form of a range)."""
    return partitions[0] if len(partitions) == 1 else f"{partitions[0]}...{partitions[-1]}"


def make_staging_name(set_name: str, partitions: tuple[str, ...], run_id: str, attempt: int) -> str:
    """`wap-<set>-<partition>-<run>`, with `-r<n>` for the n-th replay; Nessie's paths allow no `/`."""
    label = re.sub(r"[^0-9A-Za-z._-]", "_", format_partitions(partitions).replace("...", "_"))
    replay = f"-r{attempt}" if attempt else ""
    return f"{make_staging_prefix(set_name)}{label}-{run_id[:8]}{replay}"


def make_staging_prefix(set_name: str) -> str:
    return f"wap-{set_name}-"


Severity = Literal["error", "warning"]

TEXT_LIMIT = 300
EVIDENCE_NAMES_BYTES = 1200
CUT_SHORT = "…"
"""Stands for the names that did not fit into a publication's evidence."""
MIN_SHOWN_FRACTION = 0.0001


@dataclass(frozen=True)
class Finding:
    """The result of a check. `observed["reason"]` explains a failure in a sentence; `severity` replaces the check's."""

    passed: bool
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()
    severity: Severity | None = None

    @classmethod
    def of(
        cls, observed: Mapping[str, Any], reason: str, samples: tuple[Mapping[str, Any], ...] = ()
    ) -> Self:
        """A failure for `reason`; passed when the reason is empty."""
        return cls(False, {**observed, "reason": reason}, samples) if reason else cls(True, observed)


@dataclass(frozen=True)
class Verdict:
    """The result of one check of a staged set. `observed` holds counts, fractions, and expected and found values."""

    table: str
    check: str
    severity: Severity
    passed: bool
    description: str
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        # A verdict read back from its record must equal the one that was written, with any values from Spark.
        object.__setattr__(self, "observed", to_json_value(self.observed))
        object.__setattr__(self, "samples", tuple(to_json_value(row) for row in self.samples))

    @property
    def name(self) -> str:
        return f"{self.table}: {self.check}"

    @property
    def blocks(self) -> bool:
        """Whether it keeps the set from being published."""
        return not self.passed and self.severity == "error"

    @property
    def reason(self) -> str:
        """Why it failed, in one sentence; empty when it passed."""
        return "" if self.passed else str(self.observed.get("reason") or self.description)


@dataclass(frozen=True)
class Verdicts:
    """All verdicts on the state `head` of a staged set."""

    staged_ref: str
    head: str
    verdicts: tuple[Verdict, ...]
    contract_digest: str

    @property
    def green(self) -> bool:
        """Whether the state may be published: it was audited, and no check of severity error failed."""
        return bool(self.verdicts) and not any(verdict.blocks for verdict in self.verdicts)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Failed verdicts, blocking ones first."""
        return tuple(sorted((v for v in self.verdicts if not v.passed), key=lambda v: not v.blocks))

    @property
    def blocking_names(self) -> str:
        return ", ".join(verdict.name for verdict in self.failed if verdict.blocks)

    @property
    def digest(self) -> str:
        """SHA-256 of the record in canonical JSON."""
        text = json.dumps(
            self.as_record(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def as_record(self) -> dict[str, Any]:
        return {
            "staged_ref": self.staged_ref,
            "head": self.head,
            "contract_digest": self.contract_digest,
            "verdicts": [{**asdict(verdict), "samples": list(verdict.samples)} for verdict in self.verdicts],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        verdicts = tuple(Verdict(**{**row, "samples": tuple(row["samples"])}) for row in record["verdicts"])
        return cls(record["staged_ref"], record["head"], verdicts, record["contract_digest"])

    def as_evidence(self) -> dict[str, Any]:
        """The evidence in a publication's commit: counts, names of failed checks, the digest; under 2 kB."""
        return {
            "digest": self.digest,
            "audited": self.head,
            "contract": self.contract_digest,
            "checks": len(self.verdicts),
            "failed": len(self.failed),
            "blocking": sum(verdict.blocks for verdict in self.verdicts),
            "failed_checks": _fit_names(verdict.name for verdict in self.failed),
        }


def format_percentage(part: int, whole: int) -> str:
    """A percentage for people: `12.50%`, and never 0% for a part above 0."""
    if 0 < part < whole * MIN_SHOWN_FRACTION:
        return f"less than {MIN_SHOWN_FRACTION:.2%}"
    return f"{part / whole:.2%}" if whole else "none"


def to_json_value(value: Any) -> Any:
    """A value of Spark, numpy or Great Expectations as JSON; Any, because those have no types."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str | bytes | bytearray):
        text = value if isinstance(value, str) else bytes(value).hex()
        return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 1] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((to_json_value(item) for item in value), key=str)
    if hasattr(value, "asDict"):
        return to_json_value(value.asDict(recursive=True))
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return to_json_value(value.tolist() if hasattr(value, "tolist") else str(value))


def _fit_names(names: Iterable[str]) -> list[str]:
    fitting: list[str] = []
    room = EVIDENCE_NAMES_BYTES
    for name in names:
        room -= len(json.dumps(name)) + 1
        if room < 0:
            return [*fitting, CUT_SHORT]
        fitting.append(name)
    return fitting


BEGUN, STAGED, VERDICTS = "begun", "staged.json", "verdicts.json"


@dataclass(frozen=True)
class Attempt:
    """The record of a staging location; `verdicts` is None before its audit."""

    staged: Staged
    verdicts: Verdicts | None
    written_at: datetime

    @property
    def state(self) -> str:
        """`staged`, `red` or `green`."""
        if self.verdicts is None:
            return "staged"
        return "green" if self.verdicts.green else "red"


def record_begin(lake: "Lake", ref: str) -> None:
    """Record that a staging location is about to be created: its age counts from now, not from main's last commit.

    The record has the trace of the run, which ends up in its publications.
    """
    traceparent = current_traceparent()
    record = {} if traceparent is None else {"traceparent": traceparent}
    lake.stores.write(f"{_record(lake, ref)}/{BEGUN}", json.dumps(record).encode())


def get_begin_time(lake: "Lake", ref: str) -> datetime | None:
    """When a staging location was created; None without a record of it."""
    found = lake.stores.head(f"{_record(lake, ref)}/{BEGUN}")
    return None if found is None else _time(found.modified_ms)


def read_traceparent(lake: "Lake", ref: str) -> str | None:
    """The trace of the run that created a staging location; None without a trace or a record."""
    try:
        record = json.loads(lake.stores.read(f"{_record(lake, ref)}/{BEGUN}"))
    except StoreMissing:
        return None
    found = record.get("traceparent")
    return found if isinstance(found, str) else None


def find_trace(lake: "Lake", ref: str) -> str | None:
    """The trace of an earlier step; None, without a request, if no traces are sent or a span is open."""
    return read_traceparent(lake, ref) if is_exporting() and not is_recording() else None


def save_attempt(lake: "Lake", staged: Staged, verdicts: Verdicts | None = None) -> None:
    """Write the record of a staging location; after a crash the former record or this one is there, never a part."""
    folder = _record(lake, staged.ref)
    if verdicts is None:
        lake.stores.delete(f"{folder}/{VERDICTS}")
    else:
        _write(lake, f"{folder}/{VERDICTS}", verdicts.as_record())
    _write(lake, f"{folder}/{STAGED}", staged.as_record())


def list_attempts(lake: "Lake") -> list[Attempt]:
    attempts = []
    for ref, files in _list_records(lake).items():
        if STAGED not in files:
            continue
        with contextlib.suppress(StoreMissing):  # removed since it was listed
            folder = _record(lake, ref)
            staged = Staged.from_record(json.loads(lake.stores.read(f"{folder}/{STAGED}")))
            verdicts = None
            if VERDICTS in files:
                verdicts = Verdicts.from_record(json.loads(lake.stores.read(f"{folder}/{VERDICTS}")))
            attempts.append(Attempt(staged, verdicts, _time(files[STAGED])))
    return sorted(attempts, key=lambda attempt: attempt.written_at)


def list_recorded_names(lake: "Lake", prefix: str) -> list[tuple[str, datetime]]:
    """Staging locations with a record, even an unfinished one, and when each record was last changed."""
    records = _list_records(lake)
    return [(ref, _time(max(files.values()))) for ref, files in records.items() if ref.startswith(prefix)]


def remove_record(lake: "Lake", ref: str) -> None:
    lake.stores.delete_folder(_record(lake, ref))


def _record(lake: "Lake", ref: str = "") -> str:
    """The folder of a record: of this host, or beside tables in a store for all hosts. Verdicts hold sample rows."""
    settings = lake.settings
    root = str(settings.runs_dir) if settings.shared_root is None else f"{settings.shared_root}/runs"
    return f"{root}/{ref}" if ref else root


def _list_records(lake: "Lake") -> dict[str, dict[str, int]]:
    """The names of the files of each record, with when each was written, in ms."""
    root, records = _record(lake), dict[str, dict[str, int]]()
    for found in lake.stores.list(root):
        ref, _, name = found.location.removeprefix(f"{root}/").partition("/")
        if name:
            records.setdefault(ref, {})[name] = found.modified_ms
    return records


def _write(lake: "Lake", location: str, record: object) -> None:
    lake.stores.write(location, json.dumps(record, indent=1, sort_keys=True, default=str).encode())


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


class Lake:
    """The lake of one run. Spark and Nessie start at first use, and another Iceberg catalog is opened then."""

    def __init__(self, settings: LakeSettings, open_spark: "Callable[[], SparkSession]") -> None:
        self.settings = settings
        self._open_spark = open_spark

    @cached_property
    def spark(self) -> "SparkSession":
        return self._open_spark()

    @cached_property
    def endpoint(self) -> NessieEndpoint:
        return ensure_nessie(self.settings)

    @cached_property
    def stores(self) -> Stores:
        return Stores(self.settings)

    @cached_property
    def publications(self) -> "PublicationFiles":
        """The indexes that publications name."""
        from lakeshare_server.tables.publications import PublicationFiles

        return PublicationFiles.open(self.stores, self.settings)

    def nessie(self, role: Literal["writer", "publisher"] = "writer") -> Nessie:
        """A Nessie client; only the publish step uses the role `publisher`."""
        return Nessie.connect(self.endpoint, role)

    @cached_property
    def named_catalog(self) -> NamedCatalog | None:
        """The Iceberg catalog of the settings; None for Nessie. Raises `IcebergCatalogError`."""
        return NamedCatalog.load(self.settings)

    @cached_property
    def iceberg(self) -> "IcebergCatalog":
        """The Iceberg catalog of the settings in pyiceberg. Raises `IcebergCatalogError`."""
        if self.named_catalog is None:
            raise ValueError("Nessie is reached by its own client")
        return self.named_catalog.open(self.settings, self.stores)

    def catalog(self, ref: str) -> str:
        """Name of the Spark catalog at `ref`, added to the session; only Nessie has one for each ref."""
        if self.named_catalog is not None:
            name = self.named_catalog.name
            conf = self.named_catalog.make_spark_conf(self.settings, self.stores)
        else:
            name = make_catalog_name(ref)
            conf = make_catalog_conf(self.settings, self.stores, self.endpoint, ref)
        for key, value in conf.items():
            self.spark.conf.set(key, value)
        return name

    def table_at(self, name: str, ref: str = "main") -> str:
        """Name of an Iceberg table on a branch, for Spark."""
        table = f"{self.catalog(ref)}.{name}"
        return table if self.named_catalog is None or ref == "main" else f"{table}.`branch_{ref}`"

    def table(self, name: str, ref: str = "main") -> "DataFrame":
        """An Iceberg table on a branch."""
        return self.spark.table(self.table_at(name, ref))

    def open_delta(self, location: str, version: int | None = None) -> "deltalake.DeltaTable | None":
        """A Delta table by deltalake, at its newest version by default; None if there is none."""
        return open_delta(self.stores, location, version)


def open_delta(stores: Stores, location: str, version: int | None = None) -> "deltalake.DeltaTable | None":
    """A Delta table by deltalake, at its newest version by default; None if there is none."""
    from deltalake.exceptions import TableNotFoundError

    try:
        with translate_delta_errors(location):
            return deltalake.DeltaTable(location, version, make_delta_options(stores, location))
    except TableNotFoundError:  # also a folder alone, which `_staged/` creates before the table exists
        return None


def read_snapshot(
    spark: "SparkSession", stores: Stores, metadata_location: str, snapshot_id: int
) -> "DataFrame":
    """An Iceberg table at a snapshot that one of its metadata files lists, with the columns of that time."""
    from lakeshare_server.tables.iceberg.metadata import open_metadata

    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    reader = spark.read.format("iceberg")
    # Read by id, a snapshot has the columns of its own time; the newest one should have the current columns.
    if snapshot.snapshot_id != table.current_snapshot_id:
        reader = reader.option("versionAsOf", snapshot_id)
    return reader.load(metadata_location)


def open_lake_without_spark(settings: LakeSettings) -> Lake:
    """A lake for work on records and catalogs; its `spark` raises `SparkError`."""
    return Lake(settings, refuse_spark)


def refuse_spark() -> "SparkSession":
    """The Spark of a lake without Spark."""
    raise SparkError("this step was given no Spark", "open the lake with `with_spark`")


@contextmanager
def open_lake(settings: LakeSettings) -> Iterator[Lake]:
    """A lake whose Spark session starts at first use and stops at the end of the block."""
    with ExitStack() as stack:
        yield Lake(settings, lambda: stack.enter_context(spark_session(settings)))


FOLDER = "_quarantine"
COLUMNS = ("set", "table", "run_id", "partition", "file", "line", "reason", "raw", "kept_at")
SHOWN_ROWS = 1000


def write_quarantine(
    lake: "Lake", contract: SetContract, table: Table, read: "TableFrame", run_id: str
) -> int:
    """Write the rows that did not parse, replacing those of the same run and table; returns their number."""
    location = quarantine_location(lake.settings, contract.name)
    # Two runs of a set may write at once; the first creates the table.
    lock = lake.settings.state_dir / "locks" / f"quarantine-{contract.name}"
    with hold_lock(lock, wait_s=lake.settings.lock_wait_s):
        if read.rejected is None or not read.rejected_rows:
            _delete_from_quarantine(lake, location, table.name, run_id)
            return 0
        if lake.settings.spark_mode == "local" and location.startswith("/"):
            # For the owner only: rows as delivered. Executors on other machines may run as another user.
            path = Path(location)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        rows = _select_quarantine_columns(read.rejected, contract, table, run_id)
        writer = rows.write.format("delta").mode("overwrite").partitionBy("run_id", "table")
        writer.option("replaceWhere", _format_partition_filter(table.name, run_id)).save(location)
    return read.rejected_rows


def read_quarantine(
    settings: LakeSettings,
    set_name: str,
    run_id: str | None = None,
    table: str | None = None,
    limit: int = SHOWN_ROWS,
) -> list[Mapping[str, Any]]:
    """At most `limit` rows of the quarantine, of one run and one table when given, by file and line."""
    quarantine = open_delta(Stores(settings), quarantine_location(settings, set_name))
    if quarantine is None:
        return []
    wanted = {"run_id": run_id, "table": table}
    filters = [(name, "=", value) for name, value in wanted.items() if value is not None]
    rows = quarantine.to_pyarrow_table(filters=filters or None)
    ordered = rows.sort_by([(name, "ascending") for name in ("run_id", "table", "file", "line")])
    shown: list[Mapping[str, Any]] = ordered.slice(0, limit).select(list(COLUMNS)).to_pylist()
    return shown


def quarantine_location(settings: LakeSettings, set_name: str) -> str:
    return f"{settings.lake_root}/{FOLDER}/{set_name}"


def _select_quarantine_columns(
    rejected: "DataFrame", contract: SetContract, table: Table, run_id: str
) -> "DataFrame":
    # Files are named `<partition>/<file>`.
    partition = F.when(F.col("file").contains("/"), F.regexp_extract("file", "^(.*)/", 1))
    constants = {"set": contract.name, "table": table.name, "run_id": run_id}
    types = {"file": "string", "line": "bigint", "reason": "string", "raw": "string"}
    return rejected.select(
        *(F.lit(value).alias(name) for name, value in constants.items()),
        partition.alias("partition"),
        *(F.col(name).cast(kind) for name, kind in types.items()),
        F.current_timestamp().alias("kept_at"),
    )


def _delete_from_quarantine(lake: Lake, location: str, table: str, run_id: str) -> None:
    quarantine = lake.open_delta(location)
    replaced = [("run_id", "=", run_id), ("table", "=", table)]
    if quarantine is not None and quarantine.partitions(file_pruning_predicate=replaced):
        quarantine.delete(_format_partition_filter(table, run_id))


def _format_partition_filter(table: str, run_id: str) -> str:
    values = {"run_id": run_id, "table": table}
    return " AND ".join(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in values.items())
