"""A sweep removes what retention keeps no longer, and never what a point that stays, a reader or a maker needs."""

import datetime as dt
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.backup import retention
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.retention import SweepResult, hold_point, list_readers, sweep_points
from lakeshare_pipelines.backup.stores import FolderStore, open_store
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_plans import Planner, a_planner, an_object
from tests.builders.kept_folder import KeptFolder
from tests.builders.waiting import wait_until

DAYS_ONLY = {"daily": 2, "weekly": 0, "monthly": 0, "yearly": 0}
DAYS = [f"2026-11-{day:02}" for day in range(1, 6)]
ONE, TWO, THREE, FOUR, FIVE = DAYS
NOW = dt.datetime(2026, 11, 6, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """Four points: each day one object goes and one comes; `always` is there each day."""
    folder = tmp_path_factory.mktemp("points")
    planner = a_planner(folder, retention=DAYS_ONLY)
    for number, day in enumerate(DAYS[:4]):
        planner.point(day, objects(number))
    return KeptFolder(folder)


@pytest.fixture
def planner(kept: KeptFolder) -> Planner:
    return a_planner(kept.put_back(), retention=DAYS_ONLY)


def objects(number: int) -> list[dict[str, Any]]:
    return [an_object("always"), an_object(f"k{number}"), an_object(f"k{number + 1}")]


def swept(planner: Planner, *, dry_run: bool = False) -> SweepResult:
    return sweep_points(
        planner.backup, planner.points, NOW, dry_run=dry_run, report_message=lambda sentence: None
    )


def copies(planner: Planner) -> set[str]:
    return {one.key for one in planner.points.store.list("objects/")}


def everything(planner: Planner) -> dict[str, bytes]:
    store = planner.points.store
    return {one.key: store.read(one.key) for one in store.list()}


def test_points_that_are_kept_no_longer_go_with_what_only_they_held(planner: Planner) -> None:
    assert copies(planner) == {"objects/always", *(f"objects/k{number}" for number in range(5))}
    assert swept(planner) == SweepResult((ONE, TWO), 2, 20, ())
    assert planner.points.days() == [THREE, FOUR]
    assert copies(planner) == {"objects/always", "objects/k2", "objects/k3", "objects/k4"}
    assert not list(planner.points.store.list(planner.points.folder(ONE)))
    assert swept(planner) == SweepResult((), 0, 0, ())


def test_a_dry_run_tells_the_same_and_removes_nothing(planner: Planner) -> None:
    before = everything(planner)
    told = swept(planner, dry_run=True)
    assert everything(planner) == before
    assert swept(planner) == told


def test_points_that_stay_hold_all_they_held(planner: Planner) -> None:
    swept(planner)
    store = planner.points.store
    for day in planner.points.days():
        for batch in planner.points.read_copies(planner.points.get(day), ["stored_key"]):
            for key in batch["stored_key"].to_pylist():
                assert store.read(key) == key.encode()


def test_the_newest_good_point_stays_behind_any_number_of_bad_ones(tmp_path: Path) -> None:
    planner = a_planner(tmp_path, retention=DAYS_ONLY | {"daily": 1})
    planner.point(ONE, objects(0))
    for number, day in enumerate(DAYS[1:]):
        planner.point(day, objects(number + 1), "degraded")
    swept(planner)
    assert ONE in planner.points.days()


def test_a_point_that_somebody_reads_stays_until_they_are_done(planner: Planner) -> None:
    with hold_point(planner.points, ONE, "drill of t"):
        told = swept(planner)
        assert told.days == (TWO,)
        assert told.spared == (f"{ONE} stays: drill of t reads it.",)
        assert {"objects/k0", "objects/k1"} <= copies(planner)
    assert swept(planner).days == (ONE,)
    assert "objects/k1" not in copies(planner)


def test_a_lease_is_renewed_while_its_reader_reads(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LEASE", dt.timedelta(seconds=0.2))
    points, began = planner.points, dt.datetime.now(dt.UTC)
    with hold_point(points, ONE, "restore of t"):
        wait_until(lambda: list_readers(points, ONE, began + dt.timedelta(seconds=1)) == ["restore of t"])
    assert list_readers(points, ONE, began) == []


def test_no_day_is_claimed_while_a_sweep_plans_for_longer_than_its_mark_lasts(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP", dt.timedelta(seconds=0.2))
    points = planner.points
    with retention.block_claims(points):
        first = points.swept_until()
        assert first is not None
        wait_until(lambda: (points.swept_until() or first) > first + dt.timedelta(seconds=0.2))
    assert points.swept_until() is None


def test_of_two_sweeps_that_begin_at_once_one_is_refused(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = planner.points
    with retention.block_claims(points):
        with monkeypatch.context() as patch:
            # Read before the other sweep wrote its mark.
            patch.setattr(Points, "swept_until", lambda _: None)
            with pytest.raises(BackupError, match="another sweep is running"):
                swept(planner)
        assert points.swept_until() is not None
        with pytest.raises(BackupError, match="a sweep of old copies is running"):
            points.claim(FIVE, "run 5")


def test_a_sweep_whose_mark_cannot_be_renewed_removes_nothing_after_its_end(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP", dt.timedelta(seconds=0.5))
    points, failed = planner.points, threading.Event()

    def down(*_: object, **__: object) -> bool:
        failed.set()
        raise BackupError("the target", "it does not respond", "Try again.")

    with retention.block_claims(points) as require_blocked, monkeypatch.context() as patch:
        patch.setattr(type(points.store), "put", down)
        require_blocked()
        until = points.swept_until()
        assert until is not None
        wait_until(lambda: failed.is_set() and dt.datetime.now(dt.UTC) > until)
        with pytest.raises(BackupError, match="a new point may be in the making"):
            require_blocked()


def test_a_lease_that_ended_holds_nothing(planner: Planner) -> None:
    leave_lease(planner, ONE, dt.datetime.now(dt.UTC) - dt.timedelta(days=30))
    assert swept(planner).days == (ONE, TWO)


def test_a_point_that_is_being_removed_is_not_being_made(planner: Planner) -> None:
    folder, store = planner.points.folder(ONE), planner.points.store
    store.put(f"{folder}claim.json", b'{"owner": "a run"}')
    store.delete(f"{folder}point.json")
    assert planner.points.unfinished() == [ONE]
    store.put(f"{folder}swept.json", b"{}")
    assert planner.points.unfinished() == []


def leave_lease(planner: Planner, day: str, until: dt.datetime) -> None:
    key = f"{planner.points.folder(day)}leases/left.json"
    planner.points.store.put(key, f'{{"reader": "a restore", "until": "{until.isoformat()}"}}'.encode())


def test_what_is_being_swept_cannot_be_read(planner: Planner) -> None:
    planner.points.store.put(f"{planner.points.folder(ONE)}swept.json", b"{}")
    with pytest.raises(BackupError, match="retention is removing it"), hold_point(planner.points, ONE, "x"):
        pytest.fail("it was read")
    assert not list(planner.points.store.list(f"{planner.points.folder(ONE)}leases/"))


def test_a_locked_point_stays(tmp_path: Path) -> None:
    planner = a_planner(tmp_path, retention=DAYS_ONLY | {"daily": 1})
    planner.point(ONE, objects(0), locked_until=NOW + dt.timedelta(days=1))
    planner.point(TWO, objects(1), locked_until=NOW)
    planner.point(THREE, objects(2))
    told = swept(planner)
    assert told.days == (TWO,)
    assert told.spared == (f"{ONE} stays: it is locked until 2026-11-07.",)


def test_while_a_day_is_made_nothing_goes_from_a_place_without_versions(planner: Planner) -> None:
    planner.points.claim(FIVE, "run 5")
    before = everything(planner)
    with pytest.raises(BackupError, match=f"{FIVE} is being made") as refused:
        swept(planner)
    assert "nothing was removed" in str(refused.value)
    assert everything(planner) == before
    planner.points.release(FIVE)
    assert swept(planner).days == (ONE, TWO)


def test_what_a_day_that_is_made_builds_on_stays(tmp_path: Path) -> None:
    """The day of a backfill builds on a point that retention keeps no longer."""
    planner = a_planner(tmp_path, retention=DAYS_ONLY | {"daily": 1})
    for number, day in enumerate((ONE, TWO, FOUR)):
        planner.point(day, objects(number), made_at=NOW - dt.timedelta(days=9))
    planner.points.claim(THREE, "run 3")
    told = swept(planner, dry_run=True)
    assert told.days == (ONE,)
    assert told.spared == (f"{TWO} stays: {THREE} is being made and builds on it.",)


def test_no_day_is_claimed_while_copies_are_swept(planner: Planner) -> None:
    until = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5)
    planner.points.store.put(planner.points.sweep_key, f'{{"until": "{until.isoformat()}"}}'.encode())
    with pytest.raises(BackupError, match="a sweep of old copies is running"):
        planner.points.claim(FIVE, "run 5")
    with pytest.raises(BackupError, match="another sweep is running"):
        swept(planner)
    past = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    planner.points.store.put(planner.points.sweep_key, f'{{"until": "{past.isoformat()}"}}'.encode())
    planner.points.claim(FIVE, "run 5")


def test_a_sweep_that_is_held_up_until_its_mark_has_ended_removes_no_copy(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copies(planner)
    with monkeypatch.context() as patch:
        # Of a process that is stopped for half an hour.
        patch.setattr(retention, "SWEEP", dt.timedelta(0))
        patch.setattr(retention, "heartbeat", lambda *_: nullcontext())
        with pytest.raises(BackupError, match="a new point may be in the making"):
            swept(planner)
        # It may be of another sweep.
        assert planner.points.swept_until() is not None
    assert copies(planner) == before
    assert swept(planner).days == (ONE, TWO)
    assert planner.points.swept_until() is None


class StoreThatDies(FolderStore):
    """A folder that refuses every deletion after the first few."""

    deletions = 0

    def delete(self, key: str, version_id: str | None = None) -> None:
        self.deletions -= 1
        if self.deletions < 0:
            raise BackupError(key, "the power went", "Wait for it.")
        super().delete(key, version_id)


@pytest.mark.parametrize("deletions", range(9))
def test_a_sweep_that_broke_off_anywhere_is_finished_by_the_next(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    points = planner.points
    dying = StoreThatDies(points.store.address)
    dying.deletions = deletions
    points.store = dying
    monkeypatch.setattr("lakeshare_pipelines.backup.retention.open_store", lambda address: dying)
    with pytest.raises(BackupError, match="the power went"):
        sweep_points(planner.backup, points, NOW, dry_run=False, report_message=lambda sentence: None)
    monkeypatch.undo()
    for day in planner.points.days():
        for batch in planner.points.read_copies(planner.points.get(day), ["stored_key"]):
            assert all(planner.points.store.head(key) is not None for key in batch["stored_key"].to_pylist())
    if open_store(planner.backup.target).head(planner.points.sweep_key) is not None:
        planner.points.store.delete(planner.points.sweep_key)  # As half an hour does.
    swept(planner)
    assert planner.points.days() == [THREE, FOUR]
    assert copies(planner) == {"objects/always", "objects/k2", "objects/k3", "objects/k4"}
    assert not [
        one.key for day in (ONE, TWO) for one in planner.points.store.list(planner.points.folder(day))
    ]


def test_dated_points_go_each_with_its_own_place(tmp_path: Path) -> None:
    planner = a_planner(
        tmp_path,
        retention=DAYS_ONLY,
        layout="dated",
        target={"url": str(tmp_path / "target" / "point-{day}")},
    )
    for day in DAYS[:3]:
        planner.point(day, [an_object("always")])
    assert swept(planner).days == (ONE,)
    places = [path.parent.name for path in (tmp_path / "target").rglob("always")]
    assert sorted(places) == [f"point-{TWO}", f"point-{THREE}"]
