"""Faults of a store while copies run: what passes is waited for, what stays is told, and hopeless copying ends."""

import asyncio
import errno
import os
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakeshare_pipelines.backup import async_s3
from lakeshare_pipelines.backup.copy.engine import Ledger, make_items
from lakeshare_pipelines.backup.copy.local import LocalEngine, open_copy_session
from lakeshare_pipelines.backup.copy.objects import Capabilities
from lakeshare_pipelines.backup.model import COPIES, open_database, read_rows, write_rows
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.verify.objects import load_listed
from lakeshare_pipelines.errors import BackupError
from tests.builders.answering_store import answering_store, said
from tests.builders.backup_copies import WORK, a_plan, a_task, done_of

ETAG = "0123456789abcdef0123456789abcdef"
DONE = said("200 OK", f"<CopyObjectResult><ETag>&quot;{ETAG}&quot;</ETag></CopyObjectResult>")
SLOW = said("503 Slow Down", "<Error><Code>SlowDown</Code></Error>")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(async_s3, "FIRST_WAIT_S", 0.001)


class Bucket:
    """A store that keeps what is written below the work prefix, and answers copies as a test says."""

    def __init__(self, copied: Callable[[str], bytes]) -> None:
        self.copied, self.kept, self.lock = copied, dict[str, str](), threading.Lock()
        self.copies: list[str] = []

    def answer(self, request: str) -> bytes:
        method, target = request.split(" ", 2)[:2]
        key = target.partition("?")[0].removeprefix("/vault/")
        if "x-amz-copy-source:" in request.lower():
            with self.lock:
                self.copies.append(key)
                return self.copied(key)
        if method == "PUT":
            self.kept[key] = request.partition("\r\n\r\n")[2]
            return said("200 OK", "", f'ETag: "{ETAG}"')
        if "list-type" in target:
            return self.listing(re.search(r"prefix=([^&]*)", target)[1].replace("%2F", "/"))  # type: ignore[index]
        if key not in self.kept:
            return said("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>")
        content = self.kept[key].encode("latin-1")
        return (
            f'HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nETag: "{ETAG}"\r\n\r\n'.encode() + content
        )

    def listing(self, prefix: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(body)}</Size><ETag>{ETAG}</ETag>"
            "<LastModified>2030-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, body in sorted(self.kept.items())
            if key.startswith(prefix)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        return said("200 OK", body, "Content-Type: application/xml")


def copy_of(folder: Path, endpoint: str, objects: int) -> "tuple[LocalEngine, object]":
    """An engine, and a task of so many objects of a bucket."""
    row = {
        "bucket": "lake",
        "is_latest": True,
        "is_delete_marker": False,
        "size_bytes": 4,
        "etag": ETAG,
        "lane": "small",
        "first_point": "2026-11-20",
    }
    rows = [{**row, "key": f"t/{number}", "stored_key": f"objects/t/{number}"} for number in range(objects)]
    write_rows(folder / "plan", COPIES, [pa.Table.from_pylist(rows, COPIES)])
    lake, vault = (
        StoreAddress(url=f"s3://{name}", endpoint=endpoint, region="us-east-1") for name in ("lake", "vault")
    )
    return LocalEngine(capabilities=Capabilities()), a_task(folder, lake, vault)


def test_a_storm_of_503_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    chance = random.Random(503)
    # How often each key is refused: less often than it is tried.
    refusals = {f"objects/t/{number}": chance.choice((0, 0, 0, 1, 2, 4)) for number in range(200)}

    def refuse_then_copy(key: str) -> bytes:
        refusals[key] -= 1
        return SLOW if refusals[key] >= 0 else DONE

    bucket = Bucket(refuse_then_copy)
    with answering_store(bucket.answer) as store:
        engine, task = copy_of(tmp_path, store.endpoint, 200)
        record = engine.copy(task, lambda _: None)
    assert (record.succeeded, record.failed) == (200, 0)
    assert len(bucket.copies) > 220
    assert set(bucket.copies) == {f"objects/t/{number}" for number in range(200)}


def test_a_target_that_refuses_to_be_listed_is_an_error_of_the_backup() -> None:
    denied = said("403 Forbidden", "<Error><Code>AccessDenied</Code><Message>No.</Message></Error>")
    with answering_store(lambda _: denied) as store, open_database() as on:
        on.execute("CREATE TEMP VIEW reported AS SELECT 'objects/a' AS stored_key, 'a' AS key")
        address = StoreAddress(url="s3://vault", endpoint=store.endpoint, region="us-east-1")
        with pytest.raises(BackupError, match="s3://vault/objects/"):
            load_listed(on, address)


def test_copies_become_fewer_at_a_time_when_the_store_asks_for_it(tmp_path: Path) -> None:
    bucket = Bucket(lambda _: SLOW if len(bucket.copies) == 1 else DONE)

    async def run() -> float:
        async with open_copy_session(task, capabilities=Capabilities()) as way:
            assert way.pace is not None
            await way.copier.copy(next(make_items(next(read_rows(task.plan)))))
            return way.pace.limit

    with answering_store(bucket.answer) as store:
        _, task = copy_of(tmp_path, store.endpoint, 1)
        assert asyncio.run(run()) < task.in_flight * 0.6


def test_a_copy_of_which_most_fails_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeshare_pipelines.backup.copy.engine.FAILURES_COUNT_FROM", 200)
    denied = said("403 Forbidden", "<Error><Code>AccessDenied</Code><Message>No.</Message></Error>")
    bucket = Bucket(lambda key: denied if int(key.rpartition("/")[2]) % 3 else DONE)
    with answering_store(bucket.answer) as store:
        engine, task = copy_of(tmp_path, store.endpoint, 500)
        with pytest.raises(BackupError, match=r"copies failed, .* with AccessDenied \(No\.\)"):
            engine.copy(task, lambda _: None)
        told = sum(batch.num_rows for batch in Ledger(open_store(task.target), WORK).rows())
    assert 200 <= told <= len(bucket.copies) < 300
    assert not task.done.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("QuotaExceeded", "Free space there, or give the backup another target"),
        ("SignatureDoesNotMatch", "Set AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_holds_for_all_objects_ends_the_copying_at_once(tmp_path: Path, code: str, words: str) -> None:
    refused = said("403 Forbidden", f"<Error><Code>{code}</Code><Message>It is so</Message></Error>")
    bucket = Bucket(lambda _: refused if len(bucket.copies) > 50 else DONE)
    with answering_store(bucket.answer) as store:
        engine, task = copy_of(tmp_path, store.endpoint, 400)
        with pytest.raises(BackupError, match=f"nothing more can be copied: It is so. {words}"):
            engine.copy(task, lambda _: None)
        bucket.copied, before = (lambda _: DONE), len(set(bucket.copies))
        bucket.copies.clear()
        assert engine.copy(task, lambda _: None).succeeded == 400
    # Copies under way when it ended were not told of.
    assert len(bucket.copies) <= 400 - 50 + task.in_flight
    assert before < 400


def test_a_full_disk_ends_the_copying_and_a_run_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = (StoreAddress(url=str(tmp_path / name)) for name in ("source", "target"))
    for number in range(30):
        open_store(source).put(f"t/{number}", os.urandom(10))
    a_plan(tmp_path / "plan", source)
    task, set_time, names = a_task(tmp_path, source, target), os.utime, list[Path]()

    def full(path: Path, *, ns: tuple[int, int]) -> None:
        if len(names) == 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        names.append(path)
        set_time(path, ns=ns)

    monkeypatch.setattr(os, "utime", full)
    with pytest.raises(
        BackupError, match=r"the disk takes nothing more: No space left on device\. Free space"
    ):
        LocalEngine().copy(task, lambda _: None)
    assert not list(Path(target.url).rglob(".lakeshare-unfinished-*"))
    monkeypatch.setattr(os, "utime", set_time)
    assert LocalEngine().copy(task, lambda _: None).succeeded == 30
    assert len(done_of(task)) == 30
