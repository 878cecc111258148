"""What every copy engine takes, says while it works, and leaves behind."""

import asyncio
import csv
import datetime as dt
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b, md5, sha256
from pathlib import Path
from typing import Literal, Protocol, Self
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.model import COPY_RESULTS, LISTING, CopyRecord, read_rows, select_rows_to_copy
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3, Response
from lakeshare_pipelines.errors import BackupError, ObjectMissing


@dataclass(frozen=True)
class CopyTask:
    """Rows of a plan to copy from a source to a target; the same task is the same work, whoever does it again."""

    source: StoreAddress
    target: StoreAddress
    plan: Path
    """Folder of rows of schema PLAN. Those of lane `held` are none of the engine's; `archived` ones were thawed."""
    done: Path
    """Folder that the rows of schema DONE go to, one for each row to copy; it appears when all is told."""
    work_prefix: str
    """Where in the target the engine keeps its ledger, manifests and reports; ends with a slash."""
    as_of: dt.datetime
    """Objects modified later are not what was planned: the copy of one is a failure."""
    copy_limit_bytes: int
    in_flight: int
    overwrite: bool = True
    """False, for restores: what has a key of the target already stays, and its row fails as `AlreadyThere`; where it
    is the very object that was to be copied there, the row succeeds."""

    def token(self, attempt: int = 0) -> str:
        """At most 64 characters that are the same for the same work."""
        content = (
            f"{self.source.url}\n{self.target.url}\n{self.work_prefix}\n{self.as_of.isoformat()}\n{attempt}"
        )
        return sha256(content.encode()).hexdigest()[:40]


@dataclass(frozen=True)
class Progress:
    """How far a copy is."""

    objects: int
    objects_of: int
    size_bytes: int
    size_bytes_of: int
    failed: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before the first object."""
        return self.seconds / self.objects * (self.objects_of - self.objects) if self.objects else None


ReportProgress = Callable[[Progress], None]


class CopyEngine(Protocol):
    """Copies a task, resumes it, and gives it up."""

    name: str

    def copy(self, task: CopyTask, report_progress: ReportProgress) -> CopyRecord:
        """Copy all rows; called again after a crash it goes on where it was, and copies nothing twice.

        An object that cannot be copied is a failed row, not an error.

        Raises:
            BackupError: the target refuses everything, or more fails than the engine bears.
        """
        ...

    def cancel(self, task: CopyTask) -> None:
        """Stop what runs of a task, here or elsewhere; what is copied stays."""
        ...


COPIED = ("bucket", "key", "version_id", "size_bytes", "stored_key", "etag")


def compute_plan_digest(batches: Iterable[pa.RecordBatch]) -> str:
    """16 hexadecimal digits, the same for plans by which the same is copied to the same places, in the same order."""
    digest = sha256()
    for wanted in select_rows_to_copy(batches):
        texts = [wanted[name].cast(pa.string()) for name in COPIED]
        lines = pc.binary_join_element_wise(*texts, "\n", null_handling="replace", null_replacement="")
        for line in lines.to_pylist():
            digest.update(line.encode() + b"\0")
    return digest.hexdigest()[:16]


FORMAT = "Report_CSV_20180820"
SCHEMA = "Bucket, Key, VersionId, TaskStatus, ErrorCode, HTTPStatusCode, ResultMessage"
MANIFESTS = ("manifest.json", "report.json")
"""What the guide calls it, and what the service model does."""
COLUMNS = 7


@dataclass(frozen=True)
class ReportRow:
    """One row of a report; the key is as the report spells it: quoted, where the job's manifest was."""

    bucket: str
    key: str
    version_id: str | None
    is_success: bool
    error_code: str | None
    http_status: int | None
    message: str

    @property
    def decoded_key(self) -> str:
        """The key itself, of a report whose manifest was quoted: try it after the key as it is spelt."""
        return unquote(self.key)


def write_report(store: BackupStore, prefix: str, job: str, done: Iterable[pa.RecordBatch]) -> str:
    """Write rows of schema DONE as a report; returns the location of its manifest, which is written last."""
    folder = f"{prefix}job-{job}/"
    texts = {"succeeded": io.StringIO(), "failed": io.StringIO()}
    writers = {status: csv.writer(text, lineterminator="\n") for status, text in texts.items()}
    for batch in done:
        for row in batch.to_pylist():
            writers[row["status"]].writerow(_make_row(row))
    results = []
    for status, text in texts.items():
        content = text.getvalue().encode()
        if not content:
            continue
        digest = md5(content, usedforsecurity=False).hexdigest()
        key = f"{folder}results/{digest}.csv"
        store.put(key, content)
        bucket = store.address.bucket
        results.append({"TaskExecutionStatus": status, "Bucket": bucket, "MD5Checksum": digest, "Key": key})
    manifest = {
        "Format": FORMAT,
        "ReportCreationDate": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "Results": results,
        "ReportSchema": SCHEMA,
    }
    store.put(f"{folder}manifest.json", json.dumps(manifest).encode())
    return store.address.location(f"{folder}manifest.json")


def read_report(store: BackupStore, prefix: str, job: str) -> Iterator[ReportRow] | None:
    """The rows of a job's report; None where it wrote none, as no task ran.

    Raises:
        BackupError: a file of it is missing, or is not what the manifest says.
    """
    for name in MANIFESTS:
        key = f"{prefix}job-{job}/{name}"
        if store.head(key) is not None:
            return read_results(store, key)
    return None


def read_results(store: BackupStore, manifest_key: str) -> Iterator[ReportRow]:
    """The rows that a report's manifest tells of; each file's MD5 is verified.

    Raises:
        BackupError: a file is missing, or is not what the manifest says.
    """
    where = store.address.location(manifest_key)
    try:
        manifest = json.loads(store.read(manifest_key))
        files = [(one["Key"], str(one["MD5Checksum"]).lower()) for one in manifest["Results"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(
            where, f"it is no manifest of a completion report: {error!r}", "Run the copy again."
        ) from error
    for key, checksum in files:
        try:
            content = store.read(key)
        except ObjectMissing as missing:
            raise BackupError(
                where, f"its results {key} are not there", "Run the copy again: it writes them anew."
            ) from missing
        if md5(content, usedforsecurity=False).hexdigest() != checksum:
            raise BackupError(
                store.address.location(key),
                f"its MD5 is not {checksum}, which the report's manifest says",
                "Somebody wrote to it: run the copy again.",
            )
        yield from _parse_results(content, store.address.location(key))


def _parse_results(content: bytes, where: str) -> Iterator[ReportRow]:
    rows = csv.reader(io.StringIO(content.decode(), newline=""))
    for number, row in enumerate(rows, start=1):
        if len(row) != COLUMNS:
            raise BackupError(
                where, f"row {number} has {len(row)} columns, not {COLUMNS}", "Run the copy again."
            )
        bucket, key, version, status, one, other, message = row
        # AWS's own rows: the HTTP status first. By the declared schema: second.
        code, http = (other, one) if one.isdigit() else (one, other)
        yield ReportRow(
            bucket,
            key,
            version or None,
            status == "succeeded",
            code or None,
            int(http) if http.isdigit() else None,
            message,
        )


# A row of schema DONE as Python values.
def _make_row(row: dict[str, object]) -> list[object]:
    is_success = row["status"] == "succeeded"
    return [
        row["bucket"],
        quote(str(row["key"]), safe="/-_.~*"),
        row["version_id"] or "",
        row["status"],
        200 if is_success else (row["http_status"] or ""),
        row["error_code"] or "",
        "Successful" if is_success else row["message"],
    ]


LEDGER = COPY_RESULTS.append(LISTING.field("etag"))
"""Rows of an engine's ledger: DONE, and the listed ETag, since another one makes it another object to copy."""
COPY_ITEM_COLUMNS = [
    "bucket",
    "key",
    "version_id",
    "stored_key",
    "size_bytes",
    "etag",
    "last_modified",
    "lane",
]


@dataclass(frozen=True)
class CopyItem:
    """One object to copy, as it was listed."""

    bucket: str
    key: str
    version_id: str | None
    stored_key: str
    size_bytes: int
    etag: str | None
    last_modified: dt.datetime | None = None
    lane: str = "small"

    @property
    def digest(self) -> bytes:
        """16 bytes that are another one's only if it is the same copy."""
        return _compute_digest(self.bucket, self.key, self.version_id, self.stored_key, self.etag)


@dataclass(frozen=True)
class Outcome:
    """What became of an object: copied, or with S3's error code, HTTP status and words."""

    wanted: CopyItem
    error_code: str | None = None
    http_status: int | None = None
    message: str | None = None
    stored_etag: str | None = None
    stored_version_id: str | None = None
    checksum: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether it was copied."""
        return self.error_code is None


class NotCopied(Exception):
    """An object that cannot be copied, and why: a result, not an error of the copying."""

    def __init__(self, code: str, http_status: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.http_status, self.message = code, http_status, message

    @classmethod
    def from_response(cls, response: Response) -> "NotCopied":
        """As the store told it."""
        return cls(response.code, response.status, response.message)

    @classmethod
    def changed(cls, what: str) -> "NotCopied":
        """It is no longer what was listed."""
        return cls("PreconditionFailed", 412, what)

    def outcome(self, item: CopyItem) -> Outcome:
        """The failed row."""
        return Outcome(item, self.code, self.http_status, self.message)


def read_items(batches: Iterable[pa.RecordBatch]) -> Iterator[CopyItem]:
    """The objects to copy of rows of schema PLAN, or of its WANTED_COLUMNS."""
    for batch in select_rows_to_copy(batches):
        columns = (batch.column(name).to_pylist() for name in COPY_ITEM_COLUMNS)
        for bucket, key, version, stored_key, size, etag, modified, lane in zip(*columns, strict=True):
            yield CopyItem(bucket, key, version, stored_key, size or 0, etag, modified, lane)


def make_ledger_batch(outcomes: list[Outcome]) -> pa.RecordBatch:
    """Rows of schema LEDGER."""
    rows = [
        {
            "bucket": outcome.wanted.bucket,
            "key": outcome.wanted.key,
            "version_id": outcome.wanted.version_id,
            "stored_key": outcome.wanted.stored_key,
            "status": "succeeded" if outcome.is_success else "failed",
            "error_code": outcome.error_code,
            "http_status": outcome.http_status,
            "message": outcome.message,
            "stored_etag": outcome.stored_etag,
            "stored_version_id": outcome.stored_version_id,
            "checksum": outcome.checksum,
            "size_bytes": outcome.wanted.size_bytes,
            "etag": outcome.wanted.etag,
        }
        for outcome in outcomes
    ]
    return pa.RecordBatch.from_pylist(rows, LEDGER)


def compute_digests(batch: pa.RecordBatch) -> list[bytes]:
    """The digest of each row of schema LEDGER or PLAN."""
    names = ["bucket", "key", "version_id", "stored_key", "etag"]
    return [
        _compute_digest(*values)
        for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    ]


def _compute_digest(bucket: str, key: str, version: str | None, stored_key: str, etag: str | None) -> bytes:
    content = "\0".join([bucket, key, version or "", stored_key, etag or ""])
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


BATCH = 256
MAX_BATCHES = 4096
EVERY_S = 2.0


class Ledger:
    """What was told so far of one task."""

    def __init__(self, store: BackupStore, work_prefix: str) -> None:
        self._store, self._prefix = store, f"{work_prefix}ledger/"

    def write(self, outcomes: list[Outcome]) -> None:
        """Add rows, all or none."""
        content = io.BytesIO()
        pq.write_table(pa.Table.from_batches([make_ledger_batch(outcomes)]), content, compression="zstd")
        self._store.put(f"{self._prefix}{time.time_ns():020}-{uuid4().hex[:8]}.parquet", content.getvalue())

    def rows(self, *, newest_first: bool = False) -> Iterator[pa.RecordBatch]:
        """All rows, batch by batch."""
        keys = sorted((one.key for one in self._store.list(self._prefix)), reverse=newest_first)
        for key in keys:
            yield from pq.read_table(io.BytesIO(self._store.read(key)), schema=LEDGER).to_batches()

    def copied(self) -> set[bytes]:
        """The digests (Wanted.digest) of what is copied; failed ones are tried again by a rerun."""
        found: set[bytes] = set()
        for batch in self.rows():
            found.update(compute_digests(_filter_by_status(batch, "succeeded")))
        return found

    def done(self, planned: set[bytes]) -> Iterator[pa.RecordBatch]:
        """One row of schema DONE for each digest in `planned`, which is empty afterwards; a success before a failure.

        Raises:
            BackupError: of some nothing is told.
        """
        failed = []
        for batch in self.rows(newest_first=True):
            yield from _take_planned(_filter_by_status(batch, "succeeded"), planned)
            failed.append(_filter_by_status(batch, "failed"))
        for batch in failed:
            yield from _take_planned(batch, planned)
        if planned:
            raise BackupError(
                self._store.address.location(self._prefix),
                f"the ledger tells nothing of {len(planned)} objects of the plan",
                "Run the copy again: it does what is left.",
            )


def _take_planned(rows: pa.RecordBatch, planned: set[bytes]) -> Iterator[pa.RecordBatch]:
    """Those rows that are planned, which they are no longer afterwards."""
    taken = []
    for digest in compute_digests(rows):
        taken.append(digest in planned)
        planned.discard(digest)
    if any(taken):
        yield rows.filter(pa.array(taken)).select(COPY_RESULTS.names)


def _filter_by_status(batch: pa.RecordBatch, status: str) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.filter(pc.equal(batch.column("status"), status))


class LedgerWriter:
    """Collects outcomes and writes them behind the copying: `async with` one, `begin` before a copy, `add` after it."""

    def __init__(
        self, ledger: Ledger, objects: int, in_flight: int, settle: Callable[[], None] | None = None
    ) -> None:
        self._ledger, self._settle = ledger, settle
        self.batch = max(BATCH, 2 * in_flight, objects // MAX_BATCHES)
        self._untold = asyncio.Semaphore(self.batch)
        self._collected: list[Outcome] = []
        self._enough = asyncio.Event()
        self._writing = asyncio.Lock()

    async def begin(self) -> None:
        """Wait until one more copy may be begun."""
        await self._untold.acquire()

    def add(self, outcome: Outcome) -> None:
        """Tell what became of a copy that was begun."""
        self._collected.append(outcome)
        if len(self._collected) >= self.batch // 2:
            self._enough.set()

    async def flush(self) -> None:
        """Write what is collected; the copies are on the disk before the ledger says so."""
        async with self._writing:
            outcomes, self._collected = self._collected, []
            self._enough.clear()
            if not outcomes:
                return
            await asyncio.to_thread(self._write, outcomes)
            for _ in outcomes:
                self._untold.release()

    def _write(self, outcomes: list[Outcome]) -> None:
        if self._settle is not None:
            self._settle()
        self._ledger.write(outcomes)

    async def keep(self) -> None:
        """Write batches until cancelled: a task of its own beside the copies."""
        while True:
            with suppress(TimeoutError):
                # Of wait_for, Python 3.11 loses a cancellation that comes with the event.
                async with asyncio.timeout(EVERY_S):
                    await self._enough.wait()
            await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush()


Tier = Literal["Bulk", "Standard", "Expedited"]
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes whose objects are read after a restore only; GLACIER_IR is read at once."""
DAYS = 7
POLL_S = 300.0
IN_FLIGHT = 64
ASKED_ALREADY = {"RestoreAlreadyInProgress"}
PERMISSION = (
    "Allow these credentials s3:RestoreObject there: `lakeshare backup policies` writes the policies."
)


@dataclass(frozen=True)
class Archived:
    """One object that has to be read later; `version_id` None for the current one."""

    bucket: str
    key: str
    version_id: str | None = None
    size_bytes: int = 0


@dataclass(frozen=True)
class Thawed:
    """What became of the archived objects: all that are not `gone` can be read now."""

    objects: int
    requested: int
    """How many this call asked for; others were asked for before, or are no longer archived."""
    gone: tuple[Archived, ...]
    """Objects that are not there any more: copying them will say so."""
    seconds: float


def archived_in_plan(plan: Path) -> Iterator[Archived]:
    """The rows of a plan that are to be thawed first: those of lane `archived`."""
    columns = ["bucket", "key", "version_id", "size_bytes", "lane"]
    for batch in read_rows(plan, columns):
        for row in batch.filter(pc.field("lane") == "archived").drop_columns(["lane"]).to_pylist():
            yield Archived(row["bucket"], row["key"], row["version_id"], row["size_bytes"] or 0)


def archived_in_held(point_copies: Iterable[pa.RecordBatch], target: StoreAddress) -> Iterator[Archived]:
    """The copies that a restore needs, of schema HELD: which of them are archived is asked of the target."""
    for batch in point_copies:
        columns = (batch[name].to_pylist() for name in ("stored_key", "stored_version_id", "size_bytes"))
        for key, version_id, size_bytes in zip(*columns, strict=True):
            yield Archived(target.bucket, key, version_id, size_bytes or 0)


def thaw(
    store: StoreAddress,
    wanted: Iterable[Archived],
    report_progress: ReportProgress,
    *,
    days: int = DAYS,
    tier: Tier = "Bulk",
    in_flight: int = IN_FLIGHT,
    poll_s: float = POLL_S,
    wait: Callable[[float], None] = time.sleep,
) -> Thawed:
    """Ask for archived objects (S3 API, RestoreObject) and wait until each can be read, for `days` days.

    Objects that can be read already are left alone, so it may be called again at any time, by anyone.

    Raises:
        BackupError: the store refuses to restore, or does not answer.
    """
    began = time.monotonic()
    thawing = _Thawing(store, list(wanted), report_progress, days, tier, in_flight, began)
    while True:
        asyncio.run(thawing.poll())
        thawing.report_state()
        if not thawing.frozen:
            seconds = time.monotonic() - began
            return Thawed(len(thawing.wanted), thawing.requested, tuple(thawing.gone), seconds)
        wait(poll_s)


@dataclass
class _Thawing:
    store: StoreAddress
    wanted: list[Archived]
    report_progress: ReportProgress
    days: int
    tier: Tier
    in_flight: int
    began: float
    requested: int = 0
    frozen: list[Archived] = field(default_factory=list)
    gone: list[Archived] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frozen = self.wanted

    async def poll(self) -> None:
        """Ask the store about everything that is not back yet, and for what nobody asked for."""
        left: list[Archived] = []
        waiting = iter(self.frozen)
        async with _buckets(self.store, self.in_flight) as bucket:

            async def work() -> None:
                for one in waiting:
                    if not await self._is_back(bucket(one.bucket), one):
                        left.append(one)

            workers = [asyncio.create_task(work()) for _ in range(min(self.in_flight, len(self.frozen)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for one in workers:
                    one.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        self.frozen = left

    def report_state(self) -> None:
        """How far it is; what is gone counts as failed."""
        left_bytes = sum(one.size_bytes for one in self.frozen)
        all_bytes = sum(one.size_bytes for one in self.wanted)
        self.report_progress(
            Progress(
                objects=len(self.wanted) - len(self.frozen),
                objects_of=len(self.wanted),
                size_bytes=all_bytes - left_bytes,
                size_bytes_of=all_bytes,
                failed=len(self.gone),
                seconds=time.monotonic() - self.began,
            )
        )

    async def _is_back(self, s3: AsyncS3, one: Archived) -> bool:
        version = {"versionId": one.version_id} if one.version_id else {}
        response = await s3.request("HEAD", one.key, version)
        if response.status == 404:
            self.gone.append(one)
            return True
        _require(response, s3, one, "it cannot be looked at")
        restore = response.headers.get("x-amz-restore", "")
        if restore:
            return 'ongoing-request="false"' in restore
        is_tiered = bool(response.headers.get("x-amz-archive-status"))
        if not is_tiered and response.headers.get("x-amz-storage-class") not in ARCHIVES:
            return True
        response = await s3.request("POST", one.key, {"restore": "", **version}, {}, self._order(is_tiered))
        if response.code not in ASKED_ALREADY:
            _require(response, s3, one, "it cannot be restored from its archive")
            self.requested += 1
        return False

    def _order(self, is_tiered: bool) -> bytes:
        # Intelligent-Tiering brings an object back for good: it refuses a number of days.
        days = "" if is_tiered else f"<Days>{self.days}</Days>"
        tier = f"<GlacierJobParameters><Tier>{self.tier}</Tier></GlacierJobParameters>"
        namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<RestoreRequest xmlns="{namespace}">{days}{tier}</RestoreRequest>'.encode()


def _require(response: Response, s3: AsyncS3, one: Archived, what: str) -> None:
    if not response.is_success:
        reason = f"{what}: {response.code}, {response.message.rstrip('.')}"
        raise BackupError(s3.address.at(one.bucket).location(one.key), reason, PERMISSION)


@asynccontextmanager
async def _buckets(store: StoreAddress, in_flight: int) -> AsyncIterator[Callable[[str], AsyncS3]]:
    """Clients of buckets that are reached the same way, all at one pace."""
    first = AsyncS3(store, in_flight)
    opened = {store.bucket: first}

    def bucket(name: str) -> AsyncS3:
        if name not in opened:
            opened[name] = first.at(name)
        return opened[name]

    try:
        yield bucket
    finally:
        for one in opened.values():
            await one.close()
