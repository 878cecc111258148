"""Archived objects are asked for once, waited for, and then read; whoever is called again goes on where it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.copy.engine import CopyItem, Progress, archived_in_plan, make_items, thaw
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_archive import ASKED, Archive, an_archive, days_of
from tests.builders.backup_plan import plan_batch, plan_folder, planned


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with an_archive() as opened:
        yield opened


def at(archive: Archive) -> StoreAddress:
    return StoreAddress(url="s3://lake", endpoint=archive.endpoint, region="us-east-1")


def wanted(*keys: str) -> list[CopyItem]:
    return [CopyItem("lake", key, None, key, 10, None) for key in keys]


def test_each_object_is_asked_for_once_and_waited_for(archive: Archive) -> None:
    archive.classes = {f"/lake/t/{name} %+": "GLACIER" for name in "abc"} | {"/other/d": "DEEP_ARCHIVE"}
    turns: list[float] = []
    told: list[Progress] = []

    def wait(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 2:
            archive.turn()

    objects = [*wanted(*(f"t/{name} %+" for name in "abc")), CopyItem("other", "d", None, "d", 10, None)]
    assert thaw(at(archive), objects, told.append, days=3, poll_s=60, wait=wait) == []
    assert sorted(path for path, _ in archive.orders) == sorted(archive.classes)
    assert {days_of(body) for _, body in archive.orders} == {3}
    assert turns == [60, 60]
    assert [(one.objects, one.size_bytes, one.objects_of) for one in told] == [
        (0, 0, 4),
        (0, 0, 4),
        (4, 40, 4),
    ]


def test_a_second_call_asks_for_nothing_that_was_asked_for(archive: Archive) -> None:
    archive.classes = dict.fromkeys(("/lake/a", "/lake/b", "/lake/c"), "DEEP_ARCHIVE")
    archive.restores["/lake/a"] = ASKED

    class Killed(Exception):
        pass

    def killed(_: float) -> None:
        raise Killed

    with pytest.raises(Killed):
        thaw(at(archive), wanted("a", "b"), print, wait=killed)
    thaw(at(archive), wanted("a", "b", "c"), print, wait=lambda _: archive.turn())
    thaw(at(archive), wanted("a", "b", "c"), print, wait=killed)
    assert [path for path, _ in archive.orders] == ["/lake/b", "/lake/c"]


def test_what_can_be_read_at_once_is_left_alone(archive: Archive) -> None:
    archive.classes = {"/lake/a": "STANDARD", "/lake/b": "GLACIER_IR"}
    thaw(at(archive), wanted("a", "b"), print)
    assert archive.orders == []


def test_archive_tiers_are_asked_for_without_days(archive: Archive) -> None:
    archive.classes, archive.tiered = {"/lake/a": "INTELLIGENT_TIERING"}, {"/lake/a"}
    thaw(at(archive), wanted("a"), print, wait=lambda _: archive.turn())
    assert [days_of(body) for _, body in archive.orders] == [None]


def test_objects_that_are_gone_are_told(archive: Archive) -> None:
    archive.classes = {"/lake/a": "GLACIER"}
    gone = thaw(at(archive), wanted("a", "vacuumed"), print, wait=lambda _: archive.turn())
    assert [one.key for one in gone] == ["vacuumed"]


def test_a_store_that_refuses_is_told_with_the_remedy(archive: Archive) -> None:
    archive.classes = dict.fromkeys(("/lake/a", "/lake/b"), "GLACIER")
    archive.denied = {"/lake/a"}
    with pytest.raises(
        BackupError, match=r"s3://lake/a: it cannot be restored.*AccessDenied.*s3:RestoreObject"
    ):
        thaw(at(archive), wanted("a", "b"), print)


def test_a_plan_tells_which_objects_are_archived(tmp_path: Path) -> None:
    rows = [planned("a"), planned("b", lane="archived", version_id="v1"), planned("c", lane="held")]
    folder = plan_folder(tmp_path / "plan", rows)
    assert list(archived_in_plan(folder)) == list(make_items(plan_batch(rows[1])))
