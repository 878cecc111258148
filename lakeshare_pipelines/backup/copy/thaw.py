"""Bringing archived objects back to where they can be read, before they are copied: asked once, then waited for.

Nothing of it is kept here: the store itself knows what was asked and what is back, so a second call goes on.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.engine import Progress, Tell
from lakeshare_pipelines.backup.rows import read_rows
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.answers import Answer
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.errors import BackupError

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
    asked: int
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


def archived_in_held(held: Iterable[pa.RecordBatch], target: StoreAddress) -> Iterator[Archived]:
    """The copies that a restore needs, of schema HELD: which of them are archived is asked of the target."""
    for batch in held:
        columns = (batch[name].to_pylist() for name in ("stored_key", "stored_version_id", "size_bytes"))
        for key, version_id, size_bytes in zip(*columns, strict=True):
            yield Archived(target.bucket, key, version_id, size_bytes or 0)


def thaw(
    store: StoreAddress,
    wanted: Iterable[Archived],
    tell: Tell,
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
    thawing = _Thawing(store, list(wanted), tell, days, tier, in_flight, began)
    while True:
        asyncio.run(thawing.look())
        thawing.say()
        if not thawing.frozen:
            seconds = time.monotonic() - began
            return Thawed(len(thawing.wanted), thawing.asked, tuple(thawing.gone), seconds)
        wait(poll_s)


@dataclass
class _Thawing:
    store: StoreAddress
    wanted: list[Archived]
    tell: Tell
    days: int
    tier: Tier
    in_flight: int
    began: float
    asked: int = 0
    frozen: list[Archived] = field(default_factory=list)
    gone: list[Archived] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frozen = self.wanted

    async def look(self) -> None:
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

    def say(self) -> None:
        """How far it is; what is gone counts as failed."""
        left_bytes = sum(one.size_bytes for one in self.frozen)
        all_bytes = sum(one.size_bytes for one in self.wanted)
        self.tell(
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
        said = await s3.request("HEAD", one.key, version)
        if said.status == 404:
            self.gone.append(one)
            return True
        _require(said, s3, one, "it cannot be looked at")
        restore = said.headers.get("x-amz-restore", "")
        if restore:
            return 'ongoing-request="false"' in restore
        is_tiered = bool(said.headers.get("x-amz-archive-status"))
        if not is_tiered and said.headers.get("x-amz-storage-class") not in ARCHIVES:
            return True
        answer = await s3.request("POST", one.key, {"restore": "", **version}, {}, self._order(is_tiered))
        if answer.code not in ASKED_ALREADY:
            _require(answer, s3, one, "it cannot be restored from its archive")
            self.asked += 1
        return False

    def _order(self, is_tiered: bool) -> bytes:
        # Intelligent-Tiering brings an object back for good: it refuses a number of days.
        days = "" if is_tiered else f"<Days>{self.days}</Days>"
        tier = f"<GlacierJobParameters><Tier>{self.tier}</Tier></GlacierJobParameters>"
        namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<RestoreRequest xmlns="{namespace}">{days}{tier}</RestoreRequest>'.encode()


def _require(answer: Answer, s3: AsyncS3, one: Archived, what: str) -> None:
    if not answer.is_success:
        reason = f"{what}: {answer.code}, {answer.message.rstrip('.')}"
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
