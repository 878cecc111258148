"""What travels between write, audit and publish: small records that fit in a run's storage as JSON."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.file_lock import hold_lock
from lakeshare_pipelines.nessie.client import Nessie, NessieEndpoint
from lakeshare_pipelines.nessie.server import ensure_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import attach_catalog, spark_session
from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakeshare_pipelines.ingest.frame import TableFrame

WHOLE = ("all",)
"""The partitions of a set that is delivered and replaced as a whole."""


@dataclass(frozen=True)
class StagedTable:
    """One table of a staged set: the rows of this run, before anybody judged them.

    `rewritten` are the reason codes of what kept promised clients from the table until staging rewrote its files.
    Of a view `view` is the digest of its definition, and `is_whole` says that the run made it of all that its table
    has, and not of its own rows alone.
    """

    table: str
    rows: int
    rejected: int = 0
    problems: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    view: str | None = None
    is_whole: bool = False

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The table a record was made from; records of earlier versions say nothing of rewrites."""
        lists = {"problems": tuple(record["problems"]), "rewritten": tuple(record.get("rewritten", ()))}
        return cls(**{**record, **lists})


@dataclass(frozen=True)
class Staged:
    """A set written where nobody reads it.

    `ref` is the Nessie branch (Iceberg) or the staging folder's name (Delta). `base` is the state of main it
    was made from: a Nessie hash, or the tables' Delta versions as JSON. `head` is the state to be audited and
    published: a Nessie hash, or the SHA-256 of the staged logs.
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

    @property
    def partition(self) -> str:
        """The partition's name, or `first...last` of a range."""
        return format_partitions(self.partitions)

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"set {self.set_name}, partition {self.partition}, staged at {self.ref}"

    def find_table(self, table: str) -> StagedTable | None:
        """What was staged of a table; None when nothing was."""
        return next((one for one in self.tables if one.table == table), None)

    def partitions_of(self, table: str) -> tuple[str, ...]:
        """The partitions of a table that the run replaces."""
        record = self.find_table(table)
        return WHOLE if record is not None and record.is_whole else self.partitions

    def as_record(self) -> dict[str, Any]:
        """JSON-able form; `from_record` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The staged set a record was made from."""
        tables = tuple(StagedTable.from_record(table) for table in record["tables"])
        return cls(**{**record, "partitions": tuple(record["partitions"]), "tables": tables})

    def as_json(self) -> str:
        """`as_record` as compact text, for commit metadata."""
        return json.dumps(self.as_record(), separators=(",", ":"), sort_keys=True)


def format_partitions(partitions: tuple[str, ...]) -> str:
    """`2013-01-01`, or `2013-01-01...2013-01-31` (Dagster's own form of a range)."""
    return partitions[0] if len(partitions) == 1 else f"{partitions[0]}...{partitions[-1]}"


def make_staging_name(set_name: str, partitions: tuple[str, ...], run_id: str, attempt: int) -> str:
    """`wap-<set>-<partition>-<run>`, with `-r<n>` for the n-th replay; without `/`, which Nessie's paths forbid."""
    label = re.sub(r"[^0-9A-Za-z._-]", "_", format_partitions(partitions).replace("...", "_"))
    replay = f"-r{attempt}" if attempt else ""
    return f"{make_staging_prefix(set_name)}{label}-{run_id[:8]}{replay}"


def make_staging_prefix(set_name: str) -> str:
    """How the staging places of a set begin."""
    return f"wap-{set_name}-"


Severity = Literal["error", "warning"]

TEXT_LIMIT = 300
EVIDENCE_NAMES_BYTES = 1200
CUT_SHORT = "…"
"""Stands for the names that did not fit into a publication's evidence."""
MIN_SHOWN_FRACTION = 0.0001


@dataclass(frozen=True)
class Finding:
    """What a check found, before it has a name. `observed["reason"]` says in a sentence why it failed.

    `severity` is given where the finding weighs more than its check.
    """

    passed: bool
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True)
class Verdict:
    """The answer to one check. `observed` holds counts, fractions and what was expected and found."""

    table: str
    check: str
    severity: Severity
    passed: bool
    description: str
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        # A verdict read back from its record must equal the one that was written, whatever Spark put into it.
        object.__setattr__(self, "observed", to_json_value(self.observed))
        object.__setattr__(self, "samples", tuple(to_json_value(row) for row in self.samples))

    @property
    def name(self) -> str:
        """How messages name it: `flights.departures: required__carrier`."""
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
    """Every verdict on one staged state of a set. They speak of `head` and of no other state."""

    staged_ref: str
    head: str
    verdicts: tuple[Verdict, ...]
    contract_digest: str

    @property
    def green(self) -> bool:
        """Whether the state may be published: it was judged, and no check of severity error failed."""
        return bool(self.verdicts) and not any(verdict.blocks for verdict in self.verdicts)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Failed verdicts, those that block first."""
        return tuple(
            sorted((v for v in self.verdicts if not v.passed), key=lambda verdict: not verdict.blocks)
        )

    @property
    def blocking_names(self) -> str:
        """Names of the failed checks that keep the set from being published, for messages."""
        return ", ".join(verdict.name for verdict in self.failed if verdict.blocks)

    @property
    def digest(self) -> str:
        """SHA-256 of the record in canonical JSON."""
        return hashlib.sha256(to_canonical_json(self.as_record()).encode()).hexdigest()

    def for_table(self, name: str) -> tuple[Verdict, ...]:
        """The verdicts on one table."""
        return tuple(verdict for verdict in self.verdicts if verdict.table == name)

    def as_record(self) -> dict[str, Any]:
        """JSON-able form; `from_record` reads it back."""
        return {
            "staged_ref": self.staged_ref,
            "head": self.head,
            "contract_digest": self.contract_digest,
            "verdicts": [{**asdict(verdict), "samples": list(verdict.samples)} for verdict in self.verdicts],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The verdicts a record was made from."""
        verdicts = tuple(
            Verdict(**{**verdict, "samples": tuple(verdict["samples"])}) for verdict in record["verdicts"]
        )
        return cls(record["staged_ref"], record["head"], verdicts, record["contract_digest"])

    def as_evidence(self) -> dict[str, Any]:
        """What a publication carries in its commit: counts, names of what failed, the digest; under 2 kB."""
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
    """A part of a whole for people: `12.50%`, and never 0% of what is there."""
    if 0 < part < whole * MIN_SHOWN_FRACTION:
        return f"less than {MIN_SHOWN_FRACTION:.2%}"
    return f"{part / whole:.2%}" if whole else "none"


def to_canonical_json(record: object) -> str:
    """JSON with one spelling per value."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def to_json_value(value: Any) -> Any:
    """A value of Spark, numpy or Great Expectations as JSON has it; Any because that is what they give."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else value[: TEXT_LIMIT - 1] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    return _to_json_value_by_type(value)


def _to_json_value_by_type(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return to_json_value(bytes(value).hex())
    if isinstance(value, set | frozenset):
        return sorted((to_json_value(item) for item in value), key=str)
    if hasattr(value, "asDict"):
        return to_json_value(value.asDict(recursive=True))
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if hasattr(value, "tolist"):
        return to_json_value(value.tolist())
    return to_json_value(str(value))


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
    """A staging place as its run left it; `verdicts` is None before its audit."""

    staged: Staged
    verdicts: Verdicts | None
    written_at: datetime

    @property
    def state(self) -> str:
        """`staged`, `red` or `green`."""
        if self.verdicts is None:
            return "staged"
        return "green" if self.verdicts.green else "red"


def record_begin(settings: LakeSettings, ref: str) -> None:
    """Note that a staging place is about to be made: its age counts from here, not from main's last commit."""
    (_folder(settings, ref) / BEGUN).touch(0o600)


def get_begin_time(settings: LakeSettings, ref: str) -> datetime | None:
    """When a staging place was made; None when that was not noted in this state folder."""
    try:
        return datetime.fromtimestamp((settings.runs_dir / ref / BEGUN).stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


def save_attempt(settings: LakeSettings, staged: Staged, verdicts: Verdicts | None = None) -> None:
    """Write the record of a staging place; a crash leaves the former one or this one, never half of it."""
    folder = _folder(settings, staged.ref)
    if verdicts is None:
        (folder / VERDICTS).unlink(missing_ok=True)
    else:
        _write(folder / VERDICTS, verdicts.as_record())
    _write(folder / STAGED, staged.as_record())


def load_attempt(settings: LakeSettings, ref: str) -> Attempt | None:
    """The record of a staging place; None when there is none."""
    folder = settings.runs_dir / ref
    try:
        staged = Staged.from_record(json.loads((folder / STAGED).read_text(encoding="utf-8")))
        written_at = datetime.fromtimestamp((folder / STAGED).stat().st_mtime, UTC)
    except FileNotFoundError:
        return None
    verdicts = folder / VERDICTS
    judged = (
        Verdicts.from_record(json.loads(verdicts.read_text(encoding="utf-8"))) if verdicts.exists() else None
    )
    return Attempt(staged, judged, written_at)


def list_attempts(settings: LakeSettings) -> list[Attempt]:
    """Every record, oldest first."""
    folders = settings.runs_dir.iterdir() if settings.runs_dir.is_dir() else iter(())
    found = (load_attempt(settings, folder.name) for folder in folders)
    return sorted((one for one in found if one is not None), key=lambda one: one.written_at)


def list_recorded_names(settings: LakeSettings, prefix: str) -> list[tuple[str, datetime]]:
    """Staging places with a record, even an unfinished one, by name, and when each record was last changed."""
    folders = settings.runs_dir.glob(f"{prefix}*")
    return [(folder.name, datetime.fromtimestamp(folder.stat().st_mtime, UTC)) for folder in folders]


def remove_record(settings: LakeSettings, ref: str) -> None:
    """Remove the record of a staging place that is published or discarded."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(settings.runs_dir / ref)


def _folder(settings: LakeSettings, ref: str) -> Path:
    """The folder of a staging place's record, for its owner only: verdicts hold sample rows."""
    folder = settings.runs_dir / ref
    make_private(folder)
    return folder


def _write(path: Path, record: object) -> None:
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    scratch.touch(0o600, exist_ok=False)
    scratch.write_text(json.dumps(record, indent=1, sort_keys=True, default=str), encoding="utf-8")
    scratch.replace(path)


class Lake:
    """The lake of one run. Spark and Nessie start when first used."""

    def __init__(self, settings: LakeSettings, open_spark: "Callable[[], SparkSession]") -> None:
        self.settings = settings
        self._open_spark = open_spark

    @cached_property
    def spark(self) -> "SparkSession":
        """The run's Spark session."""
        return self._open_spark()

    @cached_property
    def endpoint(self) -> NessieEndpoint:
        """Where Nessie is; the embedded one is started when nobody has."""
        return ensure_nessie(self.settings)

    def nessie(self, role: Literal["writer", "publisher"] = "writer") -> Nessie:
        """A Nessie client. Only the publish step asks for the publisher."""
        return Nessie.connect(self.endpoint, role)

    def catalog(self, ref: str) -> str:
        """Name of the Spark catalog at `ref`, added to the session."""
        return attach_catalog(self.spark, self.settings, self.endpoint, ref)

    def table(self, name: str, ref: str = "main") -> "DataFrame":
        """An Iceberg table at a ref."""
        return self.spark.table(f"{self.catalog(ref)}.{name}")


def open_lake_without_spark(settings: LakeSettings) -> Lake:
    """A lake for work on records and catalogs; asking it for Spark is a mistake in the caller.

    Raises:
        SparkError: when Spark is asked for.
    """

    def refuse() -> "SparkSession":
        raise SparkError("this step was given no Spark", "open the lake with `with_spark`")

    return Lake(settings, refuse)


@contextmanager
def open_lake(settings: LakeSettings) -> Iterator[Lake]:
    """A lake whose session is started at first use and stopped at the end of the block."""
    with ExitStack() as stack:
        yield Lake(settings, lambda: stack.enter_context(spark_session(settings)))


FOLDER = "_quarantine"
COLUMNS = ("set", "table", "run_id", "partition", "file", "line", "reason", "raw", "kept_at")
SHOWN_ROWS = 1000


def write_quarantine(
    lake: "Lake", contract: SetContract, table: Table, read: "TableFrame", run_id: str
) -> int:
    """Keep the rows that did not parse, in place of what this run kept before; returns how many."""
    path = quarantine_path(lake.settings, contract.name)
    # Two runs of a set may keep rows at once; the first of them makes the table.
    with hold_lock(
        lake.settings.state_dir / "locks" / f"quarantine-{contract.name}", wait_s=lake.settings.lock_wait_s
    ):
        if read.rejected is None or not read.rejected_rows:
            _forget(path, table.name, run_id)
            return 0
        if lake.settings.spark_mode == "local":
            # Rows as they were delivered. Executors on other machines may run as another user.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        _quarantine_write(_record(read.rejected, contract, table, run_id), path, table.name, run_id)
    return read.rejected_rows


def read_quarantine(
    settings: LakeSettings,
    set_name: str,
    run_id: str | None = None,
    table: str | None = None,
    limit: int = SHOWN_ROWS,
) -> list[Mapping[str, Any]]:
    """Rows in quarantine, of one run and one table when given; at most `limit`, by file and line."""
    from deltalake import DeltaTable

    path = quarantine_path(settings, set_name)
    if not DeltaTable.is_deltatable(str(path)):
        return []
    wanted = [
        (name, "=", value) for name, value in (("run_id", run_id), ("table", table)) if value is not None
    ]
    rows = DeltaTable(path).to_pyarrow_table(filters=wanted or None)
    ordered = rows.sort_by([(name, "ascending") for name in ("run_id", "table", "file", "line")])
    shown: list[Mapping[str, Any]] = ordered.slice(0, limit).select(list(COLUMNS)).to_pylist()
    return shown


def quarantine_path(settings: LakeSettings, set_name: str) -> Path:
    """Root folder of a set's quarantine table."""
    return settings.warehouse / FOLDER / set_name


def _record(rejected: "DataFrame", contract: SetContract, table: Table, run_id: str) -> "DataFrame":
    from pyspark.sql import functions as F

    # Files are named `<partition>/<file>`.
    partition = F.when(F.col("file").contains("/"), F.substring_index("file", "/", 1))
    return rejected.select(
        F.lit(contract.name).alias("set"),
        F.lit(table.name).alias("table"),
        F.lit(run_id).alias("run_id"),
        partition.alias("partition"),
        F.col("file").cast("string"),
        F.col("line").cast("bigint"),
        F.col("reason").cast("string"),
        F.col("raw").cast("string"),
        F.current_timestamp().alias("kept_at"),
    )


def _quarantine_write(rows: "DataFrame", path: Path, table: str, run_id: str) -> None:
    writer = rows.write.format("delta").mode("overwrite").partitionBy("run_id", "table")
    writer.option("replaceWhere", _of(table, run_id)).save(str(path))


def _forget(path: Path, table: str, run_id: str) -> None:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return
    quarantine = DeltaTable(path)
    if quarantine.partitions(file_pruning_predicate=[("run_id", "=", run_id), ("table", "=", table)]):
        quarantine.delete(_of(table, run_id))


def _of(table: str, run_id: str) -> str:
    return " AND ".join(
        f"{name} = '{value.replace(chr(39), chr(39) * 2)}'"
        for name, value in (("run_id", run_id), ("table", table))
    )
