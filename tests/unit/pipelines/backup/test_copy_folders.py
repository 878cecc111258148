"""A folder is copied into a folder: every file whole, with its time and checksum, or a failed row that says why."""

import os
import time
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import pytest

from lakeshare_pipelines.backup.copy import local
from lakeshare_pipelines.backup.copy.engine import Ledger, Outcome, Progress, find_report, read_results
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_copies import WORK, a_plan, a_task, done_of


@pytest.fixture
def source(tmp_path: Path) -> StoreAddress:
    folder = tmp_path / "source"
    for key in ("sales/_delta_log/0.json", "sales/day=a b/x.parquet", "ü/ñ %20+.bin", "empty"):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if key == "empty" else key.encode() * 1000)
        os.utime(path, ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    return StoreAddress(url=str(folder))


@pytest.fixture
def target(tmp_path: Path) -> StoreAddress:
    return StoreAddress(url=str(tmp_path / "target"))


def test_every_file_is_copied_with_its_time_and_checksum(
    tmp_path: Path, source: StoreAddress, target: StoreAddress
) -> None:
    keys = a_plan(tmp_path / "plan", source, held=["empty"])
    task, told = a_task(tmp_path, source, target), list[Progress]()
    record = LocalEngine().copy(task, told.append)
    assert (record.succeeded, record.failed) == (len(keys), 0)
    done = done_of(task)
    assert set(done) == set(keys)
    for key in keys:
        here, there = Path(source.url, key), Path(target.url, "objects", key)
        assert there.read_bytes() == here.read_bytes()
        assert there.stat().st_mtime_ns == here.stat().st_mtime_ns
        assert done[key]["checksum"] == f"sha256:{sha256(here.read_bytes()).hexdigest()}"
        head = open_store(target).head(f"objects/{key}")
        assert head is not None
        assert done[key]["stored_etag"] == head.etag
    assert not Path(target.url, "objects", "empty").exists()
    assert (told[-1].objects, told[-1].objects_of, told[-1].failed) == (3, 3, 0)
    assert told[-1].size_bytes == told[-1].size_bytes_of == record.size_bytes > 0


def test_the_report_tells_of_every_object(tmp_path: Path, source: StoreAddress, target: StoreAddress) -> None:
    keys = a_plan(tmp_path / "plan", source)
    Path(source.url, keys[0]).unlink()
    task = a_task(tmp_path, source, target)
    record = LocalEngine().copy(task, lambda _: None)
    store = open_store(target)
    key = find_report(store, WORK, task.token())
    assert key is not None
    results = read_results(store, key).to_pylist()
    assert {unquote(one["key"]): (one["status"], one["error_code"]) for one in results} == {
        key: ("succeeded", None) if key != keys[0] else ("failed", "NoSuchKey") for key in keys
    }
    assert record.reports == (f"{target.url}/{WORK}job-{task.token()}/manifest.json",)


def test_what_vanished_or_changed_is_a_failed_row_and_nothing_of_it_is_there(
    tmp_path: Path, source: StoreAddress, target: StoreAddress
) -> None:
    a_plan(tmp_path / "plan", source)
    Path(source.url, "empty").write_text("no longer")
    Path(source.url, "sales/_delta_log/0.json").unlink()
    task = a_task(tmp_path, source, target)
    record = LocalEngine().copy(task, lambda _: None)
    done = done_of(task)
    assert (record.succeeded, record.failed) == (2, 2)
    assert (done["empty"]["error_code"], done["empty"]["http_status"]) == ("PreconditionFailed", 412)
    assert "changed since it was listed" in done["empty"]["message"]
    assert done["sales/_delta_log/0.json"]["error_code"] == "NoSuchKey"
    assert not list(Path(target.url, "objects").rglob("*0.json")) + list(Path(target.url).rglob("*unfinish*"))


def test_a_run_again_copies_what_is_not_told_of_and_nothing_else(
    tmp_path: Path, source: StoreAddress, target: StoreAddress
) -> None:
    keys = a_plan(tmp_path / "plan", source)
    task = a_task(tmp_path, source, target)
    Path(source.url, "empty").rename(tmp_path / "aside")
    LocalEngine().copy(task, lambda _: None)
    (tmp_path / "aside").rename(Path(source.url, "empty"))
    copies = {path: path.stat().st_ino for path in Path(target.url, "objects").rglob("*") if path.is_file()}
    record = LocalEngine().copy(task, lambda _: None)
    assert (record.succeeded, record.failed) == (len(keys), 0)
    assert {path: path.stat().st_ino for path in copies} == copies
    assert sum(batch.num_rows for batch in Ledger(open_store(target), WORK).rows()) == len(keys) + 1


def test_another_etag_makes_it_another_copy(
    tmp_path: Path, source: StoreAddress, target: StoreAddress
) -> None:
    a_plan(tmp_path / "plan", source)
    LocalEngine().copy(a_task(tmp_path, source, target), lambda _: None)
    Path(source.url, "empty").write_text("grown")
    a_plan(tmp_path / "again" / "plan", source)
    LocalEngine().copy(a_task(tmp_path / "again", source, target), lambda _: None)
    assert Path(target.url, "objects", "empty").read_text() == "grown"


def test_a_copy_ends_after_a_batch_of_the_ledger_that_is_being_written(
    tmp_path: Path, source: StoreAddress, target: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Ledger.write

    def write_slowly(ledger: Ledger, outcomes: list[Outcome]) -> None:
        time.sleep(0.2)
        write(ledger, outcomes)

    monkeypatch.setattr(Ledger, "write", write_slowly)
    monkeypatch.setattr(local, "PROGRESS_S", 0)
    keys = a_plan(tmp_path / "plan", source)
    record = LocalEngine().copy(a_task(tmp_path, source, target), lambda _: None)
    assert (record.succeeded, record.failed) == (len(keys), 0)


def test_a_key_that_no_folder_can_hold_is_a_failed_row(
    tmp_path: Path, source: StoreAddress, target: StoreAddress
) -> None:
    a_plan(tmp_path / "plan", source, stored="../outside/")
    record = LocalEngine().copy(task := a_task(tmp_path, source, target), lambda _: None)
    assert record.succeeded == 0
    assert {row["error_code"] for row in done_of(task).values()} == {"InvalidKey"}
    assert not (tmp_path / "outside").exists()


def test_a_cancelled_run_ends_and_can_go_on(
    tmp_path: Path, source: StoreAddress, target: StoreAddress
) -> None:
    keys = a_plan(tmp_path / "plan", source)
    task, engine = a_task(tmp_path, source, target), LocalEngine()
    engine.cancel(task)  # there is nothing yet
    engine.copy(task, lambda _: None)
    engine.cancel(task)  # a run that has ended: the next one is another
    assert engine.copy(task, lambda _: None).succeeded == len(keys)

    def cancel(_: Progress) -> None:
        engine.cancel(task)

    for number in range(60):
        Path(source.url, f"more-{number}").write_bytes(os.urandom(1 << 20))
    a_plan(tmp_path / "more" / "plan", source)
    slow = a_task(tmp_path / "more", source, target, in_flight=1)
    with pytest.raises(BackupError, match=r"was cancelled\. Run it again to go on"):
        LocalEngine().copy(slow, cancel)
    assert LocalEngine().copy(slow, lambda _: None).succeeded == len(keys) + 60


def test_a_folder_is_listed_in_order_of_keys_from_any_prefix_on(tmp_path: Path) -> None:
    names = ("a-b", "a/b", "a/b c", "a/ü", "ab", "z/a/b")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "z/again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "z/pipe")
    store = open_store(StoreAddress(url=f"{tmp_path}/"))

    def keys(prefix: str = "") -> list[str]:
        return [found.key for found in store.list(prefix)]

    assert keys() == list(names)
    assert keys("a/") == ["a/b", "a/b c", "a/ü"]
    assert keys("a/b") == ["a/b", "a/b c"]
    assert keys("a") == ["a-b", "a/b", "a/b c", "a/ü", "ab"]
    assert keys("none/") == []
