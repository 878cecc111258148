"""What copy engines have in common: tasks, ledgers, results and reports, and the thawing of archived objects."""

import asyncio
import csv
import datetime as dt
import io
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b, md5, sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.async_s3 import AsyncS3, Response
from lakeshare_pipelines.backup.stores import CREDENTIALS, FREE_SPACE, BackupStore, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class CopyTask:
    """Rows of a plan to copy from a source to a target. An equal task is the same work, in any process."""

    source: StoreAddress
    target: StoreAddress
    plan: Path  # Folder of rows of schema COPIES; those of lane `held` are not copied
    done: Path  # Folder of the copied rows with their results; it appears when the copy is complete
    work_prefix: str  # Prefix in the target of the engine's ledger, manifests and reports; ends with a slash
    as_of: dt.datetime  # Copies of objects that were modified later fail
    copy_limit_bytes: int
    in_flight: int

    def token(self, attempt: int = 0) -> str:
        """At most 64 characters that are the same for the same work."""
        content = (
            f"{self.source.url}\n{self.target.url}\n{self.work_prefix}\n{self.as_of.isoformat()}\n{attempt}"
        )
        return sha256(content.encode()).hexdigest()[:40]


@dataclass(frozen=True)
class Progress:
    objects: int
    objects_of: int
    size_bytes: int
    size_bytes_of: int
    failed: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the speed until now; None before the first object."""
        return self.seconds / self.objects * (self.objects_of - self.objects) if self.objects else None


ReportProgress = Callable[[Progress], None]


def compute_plan_digest(batches: Iterable[pa.RecordBatch]) -> str:
    """16 hexadecimal digits, the same for plans that copy the same objects to the same keys in the same order."""
    digest = sha256()
    for batch in batches:
        rows = batch.filter(pc.field("lane") != "held")
        names = ("bucket", "key", "version_id", "size_bytes", "stored_key", "etag")
        texts = [rows[name].cast(pa.string()) for name in names]
        lines = pc.binary_join_element_wise(*texts, "\n", null_handling="replace", null_replacement="")
        for line in lines.to_pylist():
            digest.update(line.encode() + b"\0")
    return digest.hexdigest()[:16]


RESULTS = pa.schema(
    map(
        model.COPIES.field,
        ("bucket", "key", "version_id", "stored_key", "size_bytes", "etag", *model.RESULT_COLUMNS),
    )
)
"""The result of one copy: rows of an engine's ledger, and of a report in AWS's layout."""

NAMES = ("bucket", "key", "version_id", "stored_key")  # The columns that identify a copy of one plan
IS_LEFT = "status IS DISTINCT FROM 'succeeded'"
IDENTITY = (*NAMES, "etag")  # Those that identify a copy of any plan
# Of several results of an object a success counts, else the newest.
_BEST = """
CREATE TEMP TABLE best AS SELECT * FROM given
QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY status = 'succeeded' DESC, place DESC) = 1
"""
_COPIES = """
CREATE TEMP VIEW copies AS SELECT p.* REPLACE ({results})
FROM plan p LEFT JOIN best b ON {identity} WHERE p.lane <> 'held'
"""


@contextmanager
def open_results(
    plan: Path | pa.Table, results: Iterable[pa.Table], identity: Sequence[str] = IDENTITY
) -> "Iterator[duckdb.DuckDBPyConnection]":
    """A database with the view `copies`: the rows of a plan that an engine copies, each with the best of its results
    (columns of RESULTS), which are given oldest first; `status` is null without one."""
    given = (
        model.conform(rows, RESULTS).append_column("place", pa.array([place] * rows.num_rows, pa.int64()))
        for place, rows in enumerate(results)
    )
    with model.open_database() as on:
        if isinstance(plan, Path):
            model.view_rows(on, "plan", plan)
        else:
            on.register("plan", plan)
        first = next(given, None)
        if first is None:
            on.execute("CREATE TEMP VIEW copies AS FROM plan WHERE lane <> 'held'")
        else:
            model.load_rows(on, "given", first.schema, chain((first,), given))
            on.execute(_BEST.format(identity=", ".join(identity)))
            columns = ", ".join(f"b.{name} AS {name}" for name in model.RESULT_COLUMNS)
            is_same = " AND ".join(f"p.{name} IS NOT DISTINCT FROM b.{name}" for name in identity)
            on.execute(_COPIES.format(results=columns, identity=is_same))
        yield on


class CopyEngine(ABC):
    """What engines have in common: a ledger beside the copies, by which a later run continues, and a report."""

    name: str

    def copy(self, task: CopyTask, report_progress: ReportProgress) -> model.CopyRecord:
        """Copy all rows; after a crash, a new call continues and copies nothing twice. An object that cannot be
        copied is a failed row. Raises BackupError if too many fail, or the target refuses all."""
        store = open_store(task.target)
        run, ledger = CopyRun(store, task), Ledger(store, task.work_prefix)
        run.begin()
        with open_results(task.plan, ledger.rows()) as on:
            copying = Copying(task, on, run, ledger, CopyCounter(task, report_progress, on))
            capabilities = self.transfer(copying)
        run.require_not_cancelled()
        copying.counter.report_progress()
        seconds = copying.counter.seconds
        with open_results(task.plan, ledger.rows()) as on:
            rows = on.sql("FROM copies").to_arrow_reader(model.ROWS_A_BATCH)
            objects = model.write_rows(task.done, model.COPIES, _require_results(task, rows))
        written = model.read_rows(task.done, ["status", "size_bytes"])
        succeeded, size_bytes = model.count_rows(
            batch.filter(pc.field("status") == "succeeded") for batch in written
        )
        return model.CopyRecord(
            engine=self.name,
            succeeded=succeeded,
            failed=objects - succeeded,
            size_bytes=size_bytes,
            seconds=seconds,
            reports=tuple(self.write_reports(task, store)),
            capabilities=dict(capabilities),
        )

    @abstractmethod
    def transfer(self, copying: "Copying") -> Mapping[str, bool]:
        """Copy what the ledger lacks, with an entry for each object; returns the features of the target."""

    def write_reports(self, task: CopyTask, store: BackupStore) -> list[str]:
        """The locations of the reports of a complete copy."""
        return [write_report(store, task.work_prefix, task.token(), model.read_rows(task.done))]

    def cancel(self, task: CopyTask) -> None:
        """Stop a task that runs in any process; finished copies stay."""
        CopyRun.cancel(open_store(task.target), task)


def _require_results(task: CopyTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    without = 0
    for batch in batches:
        without += batch["status"].null_count
        yield batch
    if without:
        reason = f"there is no result for {without} objects of the plan"
        fix = "Run the copy again: it copies what is left."
        raise BackupError(task.target.location(task.work_prefix), reason, fix)


@dataclass(frozen=True)
class Copying:
    """A run of an engine: its task, and the database with the view `copies` as it was when the run began."""

    task: CopyTask
    on: "duckdb.DuckDBPyConnection"
    run: "CopyRun"
    ledger: "Ledger"
    counter: "CopyCounter"

    def select_items(self, condition: str = "true") -> "Iterator[CopyItem]":
        """The objects that are not copied yet and meet a condition on the columns of COPIES."""
        rows = self.on.sql(f"FROM copies WHERE {IS_LEFT} AND ({condition})")
        for batch in rows.select(*CopyItem._fields).to_arrow_reader(model.ROWS_A_BATCH):
            yield from make_items(batch)


FAILURES_COUNT_FROM = 1000
MAX_FAILED_FRACTION = 0.5  # A greater share of failures ends the copy, as in Batch Operations
FATAL_CODES = {
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"), CREDENTIALS),
    **dict.fromkeys(("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "HTTP507"), FREE_SPACE),
    "RequestTimeTooSkewed": "Set the clock of this host.",
}
"""Error codes that every other object would have too, and their remedies."""


@dataclass(frozen=True)
class CopyRun:
    store: BackupStore
    task: CopyTask
    id: str = field(default_factory=lambda: uuid4().hex)

    def begin(self) -> None:
        self.store.put(f"{self.task.work_prefix}run", self.id.encode())

    @staticmethod
    def cancel(store: BackupStore, task: CopyTask) -> None:
        try:
            run = store.read(f"{task.work_prefix}run")
        except ObjectMissing:
            return
        store.put(f"{task.work_prefix}cancelled", run)

    def require_not_cancelled(self) -> None:
        try:
            cancelled = self.store.read(f"{self.task.work_prefix}cancelled").decode()
        except ObjectMissing:
            return
        if cancelled == self.id:
            fix = "Run it again to go on: what is copied already stays."
            raise BackupError(str(self.task.target), "the copy was cancelled", fix)


_COUNTS = f"""
SELECT count(*), coalesce(sum(size_bytes), 0), count(*) FILTER (NOT ({IS_LEFT})),
    coalesce(sum(size_bytes) FILTER (NOT ({IS_LEFT})), 0) FROM copies
"""  # noqa: S608  of constants only


class CopyCounter:
    """Counts the copies of a run; what an earlier run copied counts as done. `others` are objects, bytes and failures
    that other processes report."""

    def __init__(self, task: CopyTask, report: ReportProgress, on: "duckdb.DuckDBPyConnection") -> None:
        self._target, self._report, self._began = str(task.target), report, time.monotonic()
        ((counts),) = on.sql(_COUNTS).fetchall()
        self.objects_of, self.size_bytes_of, self.objects, self.size_bytes = map(int, counts)
        self.failed = self._seen = 0
        self.others = (0, 0, 0)
        self._codes, self._messages = Counter[str](), dict[str, str]()

    def add(self, outcome: "Outcome") -> None:
        """Count an outcome. Raises BackupError if too many copies failed, or the fault affects all objects."""
        self.objects += 1
        self._seen += 1
        code, target = outcome.error_code, self._target
        if code is None:
            self.size_bytes += outcome.item.size_bytes
            return
        self.failed += 1
        if code in FATAL_CODES:
            reason = f"nothing more can be copied: {(outcome.message or code).rstrip('.')}"
            raise BackupError(target, reason, FATAL_CODES[code])
        self._codes[code] += 1
        self._messages[code] = outcome.message or ""
        if self._seen >= FAILURES_COUNT_FROM and self.failed > MAX_FAILED_FRACTION * self._seen:
            code, times = self._codes.most_common(1)[0]
            raise BackupError(
                target,
                f"{self.failed} of {self._seen} copies failed, {times} of them with {code} ({self._messages[code]})",
                "Remove the cause and run it again: what is copied already stays.",
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def report_progress(self) -> None:
        objects, size_bytes, failed = self.others
        counts = (self.objects + objects, self.objects_of, self.size_bytes + size_bytes, self.size_bytes_of)
        self._report(Progress(*counts, self.failed + failed, self.seconds))


REPORT_FORMAT = "Report_CSV_20180820"
SCHEMA = "Bucket, Key, VersionId, TaskStatus, ErrorCode, HTTPStatusCode, ResultMessage"
MANIFESTS = ("manifest.json", "report.json")  # The names in the user guide and in the service model
COLUMNS = 7


def write_report(store: BackupStore, prefix: str, job: str, done: Iterable[pa.RecordBatch]) -> str:
    """Write rows of RESULTS as a report; returns the location of its manifest, which is written last."""
    folder, results = f"{prefix}job-{job}/", list[dict[str, str]]()

    def write(status: str, rows: Iterable[dict[str, Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(_format_result, rows))
        content = text.getvalue().encode()
        digest = md5(content, usedforsecurity=False).hexdigest()
        key = f"{folder}results/{digest}.csv"
        store.put(key, content)
        bucket = store.address.bucket
        results.append({"TaskExecutionStatus": status, "Bucket": bucket, "MD5Checksum": digest, "Key": key})

    for group in model.group_batches(done, model.ROWS_A_FILE):
        table = pa.Table.from_batches(group)
        for status in ("succeeded", "failed"):
            if (rows := table.filter(pc.field("status") == status)).num_rows:
                write(
                    status,
                    (row for batch in rows.to_batches(model.ROWS_A_BATCH) for row in batch.to_pylist()),
                )
    manifest = {
        "Format": REPORT_FORMAT,
        "ReportCreationDate": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "Results": results,
        "ReportSchema": SCHEMA,
    }
    store.put(f"{folder}manifest.json", json.dumps(manifest).encode())
    return store.address.location(f"{folder}manifest.json")


def _format_result(row: Mapping[str, Any]) -> list[object]:
    key = quote(str(row["key"]), safe="/-_.~*")
    cells = [row["bucket"], key, row["version_id"] or "", row["status"]]
    if row["status"] == "succeeded":
        return [*cells, 200, row["error_code"] or "", "Successful"]
    return [*cells, row["http_status"] or "", row["error_code"] or "", row["message"]]


def find_report(store: BackupStore, prefix: str, job: str) -> str | None:
    """The key of the manifest of a job's report; None if no task ran."""
    keys = (f"{prefix}job-{job}/{name}" for name in MANIFESTS)
    return next((key for key in keys if store.head(key) is not None), None)


def read_results(store: BackupStore, manifest_key: str) -> pa.Table:
    """The rows of a report, by its manifest, as RESULTS without stored keys; keys are spelt as in the job's
    manifest: quoted, or not. Raises BackupError if a file is missing, or its MD5 differs."""
    where = store.address.location(manifest_key)
    try:
        manifest = json.loads(store.read(manifest_key))
        files = [(file["Key"], str(file["MD5Checksum"]).lower()) for file in manifest["Results"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(
            where, f"it is no manifest of a completion report: {error!r}", "Run the copy again."
        ) from error
    rows: list[dict[str, object]] = []
    for key, checksum in files:
        try:
            content = store.read(key)
        except ObjectMissing as missing:
            raise BackupError(
                where, f"its results {key} are not there", "Run the copy again: it writes them again."
            ) from missing
        if md5(content, usedforsecurity=False).hexdigest() != checksum:
            reason = f"its MD5 is not {checksum}, as in the report's manifest"
            fix = "The file was changed: run the copy again."
            raise BackupError(store.address.location(key), reason, fix)
        rows += _parse_results(content, store.address.location(key))
    return pa.Table.from_pylist(rows, RESULTS)


def _parse_results(content: bytes, where: str) -> Iterator[dict[str, object]]:
    rows = csv.reader(io.StringIO(content.decode(), newline=""))
    for number, row in enumerate(rows, start=1):
        if len(row) != COLUMNS:
            reason = f"row {number} has {len(row)} columns, not {COLUMNS}"
            raise BackupError(where, reason, "Run the copy again.")
        bucket, key, version, status, fifth, sixth, message = row
        # AWS writes the HTTP status before the error code; the declared schema has them the other way round.
        code, http = (sixth, fifth) if fifth.isdigit() else (fifth, sixth)
        result = {"bucket": bucket, "key": key, "version_id": version or None}
        if status == "succeeded":
            yield {**result, "status": status}
        else:
            http_status = int(http) if http.isdigit() else None
            failure = {"error_code": code or None, "http_status": http_status, "message": message}
            yield {**result, "status": "failed", **failure}


class CopyItem(NamedTuple):
    bucket: str
    key: str
    version_id: str | None
    stored_key: str
    size_bytes: int
    etag: str | None

    @property
    def digest(self) -> bytes:
        """16 bytes that identify the copy."""
        names = (self.bucket, self.key, self.version_id or "", self.stored_key, self.etag or "")
        return blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True)
class Outcome:
    item: CopyItem
    error_code: str | None = None
    http_status: int | None = None
    message: str | None = None
    stored_etag: str | None = None
    stored_version_id: str | None = None
    checksum: str | None = None

    @property
    def is_success(self) -> bool:
        return self.error_code is None


class NotCopied(Exception):
    """An object that cannot be copied: a result, not an error of the engine."""

    def __init__(self, code: str, http_status: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.http_status, self.message = code, http_status, message

    @classmethod
    def changed(cls, message: str) -> "NotCopied":
        return cls("PreconditionFailed", 412, message)

    def outcome(self, item: CopyItem) -> Outcome:
        return Outcome(item, self.code, self.http_status, self.message)


def require_success(response: Response) -> Response:
    if not response.is_success:
        raise NotCopied(response.code, response.status, response.message)
    return response


def make_items(rows: pa.RecordBatch) -> Iterator[CopyItem]:
    columns = (rows[name].to_pylist() for name in CopyItem._fields)
    for bucket, key, version, stored_key, size_bytes, etag in zip(*columns, strict=True):
        yield CopyItem(bucket, key, version, stored_key, size_bytes or 0, etag)


BATCH = 256
MAX_BATCHES = 4096


class Ledger:
    """The results of a copy, in batches beside the copies; `part` is a folder of it with a slash at its end."""

    def __init__(self, store: BackupStore, work_prefix: str, part: str = "") -> None:
        self.store, self._prefix = store, f"{work_prefix}ledger/{part}"

    def write(self, outcomes: list[Outcome]) -> None:
        rows = [
            outcome.item._asdict()
            | vars(outcome)
            | {"status": "succeeded" if outcome.is_success else "failed"}
            for outcome in outcomes
        ]
        self.put(pa.Table.from_pylist(rows, RESULTS))

    def put(self, rows: pa.Table) -> None:
        content = io.BytesIO()
        pq.write_table(rows, content, compression="zstd")
        self.store.put(f"{self._prefix}{time.time_ns():020}-{uuid4().hex[:8]}.parquet", content.getvalue())

    def rows(self, seen: set[str] | None = None) -> Iterator[pa.Table]:
        """The batches of results, oldest first; those in `seen` are left out, and the others added to it."""
        seen = set() if seen is None else seen
        # SeaweedFS keeps an empty object of a writer that was killed before it sent the content.
        keys = {file.key for file in self.store.list(self._prefix) if file.size_bytes} - seen
        for key in sorted(keys, key=lambda key: key.rpartition("/")[2]):
            seen.add(key)
            yield pq.read_table(io.BytesIO(self.store.read(key)), schema=RESULTS)


class LedgerWriter:
    """Writes outcomes in batches beside the copies: `begin` before a copy, `add` after it, `flush` at any time and at
    the end. `settle` is called before a batch is written."""

    def __init__(
        self, ledger: Ledger, objects: int, in_flight: int, settle: Callable[[], None] | None = None
    ) -> None:
        self._ledger, self._settle = ledger, settle
        self._batch = max(BATCH, 2 * in_flight, objects // MAX_BATCHES)
        self._unwritten = asyncio.Semaphore(self._batch)
        self._outcomes: list[Outcome] = []
        self._writing = asyncio.Lock()

    async def begin(self) -> None:
        await self._unwritten.acquire()

    async def add(self, outcome: "Outcome") -> None:
        self._outcomes.append(outcome)
        if len(self._outcomes) >= self._batch // 2:
            await self.flush()

    async def flush(self) -> None:
        async with self._writing:
            outcomes, self._outcomes = self._outcomes, []
            if outcomes:
                await asyncio.to_thread(self._write, outcomes)
            for _ in outcomes:
                self._unwritten.release()

    def _write(self, outcomes: list[Outcome]) -> None:
        if self._settle is not None:
            self._settle()
        self._ledger.write(outcomes)


async def run_concurrently(
    works: Iterable[Callable[[], Awaitable[None]]],
    most: int,
    watch: Callable[[], Coroutine[object, object, None]] | None = None,
) -> None:
    """Run all, at most `most` at a time, started in order, and meanwhile `watch`, which is endless; the first fault
    cancels the others and is raised."""
    left = iter(works)

    async def work_off() -> None:
        for work in left:
            await work()

    try:
        async with asyncio.TaskGroup() as group:
            watching = None if watch is None else group.create_task(watch())
            async with asyncio.TaskGroup() as workers:
                for _ in range(most):
                    workers.create_task(work_off())
            if watching is not None:
                watching.cancel()
    # Not except*: until Python 3.11.3, what it raises comes wrapped in a group again.
    except ExceptionGroup as faults:
        fault: Exception = faults
        while isinstance(fault, ExceptionGroup):
            fault = fault.exceptions[0]
        raise fault from None


DAYS = 7
POLL_S = 300.0
IN_FLIGHT = 64
PERMISSION = (
    "Allow these credentials s3:RestoreObject there: `lakeshare backup policies` writes the policies."
)


def archived_in_plan(plan: Path) -> Iterator[CopyItem]:
    for batch in model.read_rows(plan, [*CopyItem._fields, "lane"]):
        yield from make_items(batch.filter(pc.field("lane") == "archived"))


def thaw(
    store: StoreAddress,
    wanted: Iterable[CopyItem],
    report_progress: ReportProgress,
    *,
    days: int = DAYS,
    poll_s: float = POLL_S,
    wait: Callable[[float], None] = time.sleep,
) -> list[CopyItem]:
    """Request archived objects (S3 API, RestoreObject) and wait until each can be read, for `days` days. Objects that
    can be read already are skipped: it may be called again at any time, by any process. Returns those that no longer
    exist."""
    began = time.monotonic()
    frozen, gone = list(wanted), list[CopyItem]()
    objects, size_bytes = len(frozen), sum(item.size_bytes for item in frozen)
    while True:
        frozen = asyncio.run(_select_frozen(store, frozen, gone, days))
        thawed, thawed_bytes = objects - len(frozen), size_bytes - sum(item.size_bytes for item in frozen)
        seconds = time.monotonic() - began
        report_progress(Progress(thawed, objects, thawed_bytes, size_bytes, len(gone), seconds))
        if not frozen:
            return gone
        wait(poll_s)


async def _select_frozen(
    store: StoreAddress, items: list[CopyItem], gone: list[CopyItem], days: int
) -> list[CopyItem]:
    """The objects that cannot be read yet, which are requested; those that do not exist are added to `gone`."""
    frozen: list[CopyItem] = []

    async def check(item: CopyItem) -> None:
        if not await _is_readable(s3.at(item.bucket), item, gone, days):
            frozen.append(item)

    async with AsyncS3(store, IN_FLIGHT) as s3:
        await run_concurrently((partial(check, item) for item in items), min(IN_FLIGHT, len(items)))
    return frozen


async def _is_readable(s3: AsyncS3, item: CopyItem, gone: list[CopyItem], days: int) -> bool:
    version = {"versionId": item.version_id} if item.version_id else {}
    response = await s3.request("HEAD", item.key, version)
    if response.status == 404:
        gone.append(item)
        return True
    _require_allowed(response, s3, item, "it cannot be looked at")
    restore = response.headers.get("x-amz-restore", "")
    if restore:
        return 'ongoing-request="false"' in restore
    is_tiered = bool(response.headers.get("x-amz-archive-status"))
    if not is_tiered and response.headers.get("x-amz-storage-class") not in model.ARCHIVES:
        return True
    # Intelligent-Tiering restores an object permanently and refuses a number of days.
    number = "" if is_tiered else f"<Days>{days}</Days>"
    tier = "<GlacierJobParameters><Tier>Bulk</Tier></GlacierJobParameters>"
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    body = f'<RestoreRequest xmlns="{namespace}">{number}{tier}</RestoreRequest>'.encode()
    response = await s3.request("POST", item.key, {"restore": "", **version}, {}, body)
    if response.code != "RestoreAlreadyInProgress":
        _require_allowed(response, s3, item, "it cannot be restored from its archive")
    return False


def _require_allowed(response: Response, s3: AsyncS3, item: CopyItem, problem: str) -> None:
    if not response.is_success:
        reason = f"{problem}: {response.code}, {response.message.rstrip('.')}"
        raise BackupError(s3.address.location(item.key), reason, PERMISSION)
