"""A plan holds what belonged to the source at its moment, and nothing else: the rest is counted by its reason."""

import datetime as dt
from collections import Counter
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.plan import select_rows_of_moment
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_plans import a_marker, a_planner, an_object

DAY = "2026-11-01"
AFTER = dt.datetime(2026, 11, 2, tzinfo=dt.UTC)
LAST = AFTER - dt.timedelta(milliseconds=1)


def test_what_was_written_from_the_days_end_on_is_left_out(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    rows = [an_object("at the end", last_modified=AFTER), an_object("just before", last_modified=LAST)]
    plan = planner.plan(DAY, rows)
    assert set(planner.by_key(DAY)) == {"just before"}
    assert plan.left_out == {"after as_of": 1}
    assert plan.as_of == AFTER


@pytest.mark.parametrize(
    "key",
    [
        "t/_delta_log/_last_checkpoint",
        "t/metadata/version-hint.text",
        "t/.hoodie/hoodie.properties",
        "t/day=1/_SUCCESS",
        "t/.part-0.parquet.crc",
        "t/_delta_log/.00000000000000000000.json.crc",
    ],
)
def test_mutable_names_are_never_copied(tmp_path: Path, key: str) -> None:
    planner = a_planner(tmp_path)
    plan = planner.plan(DAY, [an_object("kept"), an_object(key)])
    assert set(planner.by_key(DAY)) == {"kept"}
    assert plan.left_out == {"mutable": 1}


@pytest.mark.parametrize(
    "key",
    [
        "t/_delta_log/00000000000000000007.crc",
        "t/my_SUCCESS",
        "t/_SUCCESS/part-0",
        "t/_last_checkpoint",
        "a+b c%2F\n.crc",
        ".crc",
    ],
)
def test_names_that_only_look_like_them_are_copied(tmp_path: Path, key: str) -> None:
    planner = a_planner(tmp_path)
    planner.plan(DAY, [an_object(key)])
    assert set(planner.by_key(DAY)) == {key}


@pytest.mark.parametrize(
    ("source", "target", "own"),
    [
        ("s3://lake", "s3://elsewhere", ["_lakeshare/x"]),
        ("s3://lake/sales/", "s3://elsewhere", ["_lakeshare/x", "sales/_lakeshare/x"]),
        ("s3://lake", "s3://lake/backups/", ["backups/objects/a", "backups/x"]),
        ("/lake", "/lake/state/backups", ["state/backups/objects/a"]),
        ("/lake", "/lake/point-{day}", ["point-2026-10-31/a"]),
    ],
)
def test_own_backups_are_never_backed_up(tmp_path: Path, source: str, target: str, own: list[str]) -> None:
    layout = "dated" if "{day}" in target else "incremental"
    planner = a_planner(
        tmp_path, source=StoreAddress(url=source), target=StoreAddress(url=target), layout=layout
    )
    bucket = planner.backup.source.bucket
    rows = [an_object(key, bucket=bucket) for key in [*own, "sales/a", "statement"]]
    planner.leave_listing(DAY, rows)
    folder, left_out = planner.workspace(DAY).rows("listing"), Counter[str]()
    batches = select_rows_of_moment(planner.backup, folder, AFTER, left_out, has_versions=False)
    kept = [key for batch in batches for key in batch["key"].to_pylist()]
    assert "sales/a" in kept
    assert not set(kept) & set(own)
    expected = len([key for key in own if key.startswith(planner.backup.source.prefix)])
    assert left_out["own backup"] == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("s3://lake/a/", "s3://lake/a/"),
        ("s3://lake/a/", "s3://lake"),
        ("/lake/a", "/lake"),
        ("/lake", "/lake"),
    ],
)
def test_a_target_that_holds_its_source_is_refused(tmp_path: Path, source: str, target: str) -> None:
    planner = a_planner(tmp_path, source=StoreAddress(url=source), target=StoreAddress(url=target))
    with pytest.raises(BackupError, match="target of its own"):
        next(select_rows_of_moment(planner.backup, tmp_path, AFTER, Counter(), has_versions=False))


def test_what_another_bucket_or_prefix_has_is_left_out(tmp_path: Path) -> None:
    planner = a_planner(tmp_path, source=StoreAddress(url="s3://lake/sales/"))
    plan = planner.plan(
        DAY, [an_object("sales/a"), an_object("other/a"), an_object("sales/b", bucket="else")]
    )
    assert set(planner.by_key(DAY)) == {"sales/a"}
    assert plan.left_out == {"outside the source": 2}


def test_of_all_versions_each_key_is_taken_as_it_was_at_the_moment(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    early, noon = AFTER - dt.timedelta(hours=20), AFTER - dt.timedelta(hours=12)
    old = {"is_latest": False}
    rows = [
        # Overwritten since: the version of noon was current.
        an_object("a", "new", last_modified=AFTER, version_id="3"),
        an_object("a", "noon", last_modified=noon, version_id="2", **old),
        an_object("a", "early", last_modified=early, version_id="1", **old),
        # Deleted since, as a vacuum does.
        a_marker("b", AFTER, version_id="m"),
        an_object("b", last_modified=early, version_id="b1", **old),
        # Deleted before.
        a_marker("c", noon, version_id="m"),
        an_object("c", last_modified=early, version_id="c1", **old),
        # Deleted before, and there again since.
        an_object("d", last_modified=AFTER, version_id="d2"),
        a_marker("d", noon, version_id="m", **old),
        an_object("d", last_modified=early, version_id="d1", **old),
        # A null version.
        an_object("e", last_modified=early),
        # Only since.
        an_object("f", last_modified=AFTER, version_id="f1"),
    ]
    plan = planner.plan(DAY, rows, has_versions=True)
    assert {key: row["version_id"] for key, row in planner.by_key(DAY).items()} == {
        "a": "2",
        "b": "b1",
        "e": None,
    }
    assert plan.left_out == {"older version": 3, "after as_of": 4, "delete marker": 2}
    assert planner.by_key(DAY)["a"]["etag"] == "noon"


def test_without_versions_delete_markers_are_left_out(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    plan = planner.plan(DAY, [an_object("a"), a_marker("b", LAST)])
    assert set(planner.by_key(DAY)) == {"a"}
    assert plan.left_out == {"delete marker": 1}


def test_a_folder_is_given_no_markers_of_folders(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    rows = [an_object("t/", size_bytes=0), an_object("t/a"), an_object("t/b", size_bytes=0)]
    plan = planner.plan(DAY, rows)
    assert set(planner.by_key(DAY)) == {"t/a", "t/b"}
    assert plan.left_out == {"folder marker": 1}


@pytest.mark.parametrize("rows", [[], [an_object("a", last_modified=AFTER)]])
def test_a_listing_of_nothing_is_refused(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    planner = a_planner(tmp_path)
    with pytest.raises(BackupError, match="nothing in the listing belongs to it"):
        planner.plan(DAY, rows)
    assert not planner.workspace(DAY).rows("plan").exists()
