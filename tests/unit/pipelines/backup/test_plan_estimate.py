"""A plan tells beforehand what it takes, by lanes, and is refused where that is more than is allowed."""

from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.backup.config import GIB
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_plans import Planner, a_planner, an_object

ONE, TWO = "2026-11-01", "2026-11-02"
MIB = 1024**2
S3 = {"target": {"url": "s3://safe"}}
BATCH = {
    "engine": "aws_batch",
    "batch": {"account": "111111111111", "role_arn": "arn:aws:iam::111111111111:role/x"},
}
FREE = {
    "per_million_copies": 0,
    "per_million_listed": 0,
    "per_million_tasks": 0,
    "per_job": 0,
    "per_gib_month": 0,
    "per_gib_thawed": 0,
}


class Unreachable(Planner):
    """A planner whose points are kept in a folder, though its target is a bucket that is not there."""

    @property
    def points(self) -> Any:
        return a_planner(self.folder).points


def a_bucket_planner(folder: Path, **declared: object) -> Planner:
    planner = a_planner(folder, **(S3 | declared))
    return Unreachable(planner.folder, planner.backup)


@pytest.mark.parametrize(
    ("told", "lane"),
    [
        ({}, "small"),
        ({"size_bytes": 5 * MIB}, "small"),
        ({"size_bytes": 5 * MIB + 1}, "large"),
        ({"storage_class": "GLACIER"}, "archived"),
        ({"storage_class": "DEEP_ARCHIVE", "size_bytes": 6 * MIB}, "archived"),
        ({"storage_class": "GLACIER_IR"}, "small"),
        ({"storage_class": None}, "small"),
    ],
)
def test_lanes(tmp_path: Path, told: dict[str, Any], lane: str) -> None:
    planner = a_planner(tmp_path, copy_limit_bytes=5 * MIB)
    plan = planner.plan(ONE, [an_object("a", **told)])
    assert plan.estimate.by_lane == {lane: 1}
    assert planner.by_key(ONE)["a"]["lane"] == lane


@pytest.mark.parametrize(
    ("told", "requests"),
    [
        ([{}, {}], 2),
        # HEAD, create, two parts of 64 MiB, complete.
        ([{"size_bytes": 128 * MIB}], 5),
        ([{"size_bytes": 128 * MIB + 1}], 6),
        # Never more than ten thousand parts.
        ([{"size_bytes": 2 * 1024 * GIB}], 10_003),
        # Thawed, then copied.
        ([{"storage_class": "GLACIER"}], 2),
        ([{"storage_class": "GLACIER", "size_bytes": 128 * MIB}], 6),
    ],
)
def test_requests(tmp_path: Path, told: list[dict[str, Any]], requests: int) -> None:
    planner = a_bucket_planner(tmp_path, copy_limit_bytes=5 * MIB)
    plan = planner.plan(ONE, [an_object(f"k{number}", **one) for number, one in enumerate(told)])
    assert plan.estimate.requests == requests
    assert plan.estimate.size_bytes == sum(one.get("size_bytes", 10) for one in told)


@pytest.mark.parametrize(
    ("prices", "declared", "told", "usd"),
    [
        ({"per_million_copies": 1_000_000}, {}, {}, 2),
        ({"per_gib_transferred": 3}, {}, {}, 6),
        ({"per_gib_thawed": 3}, {}, {}, 3),
        ({"per_million_listed": 1_000_000}, {}, {}, 0),
        ({"per_million_listed": 1_000_000}, {}, {"kind": "s3_inventory"}, 1),
        ({"per_million_tasks": 1_000_000, "per_job": 10}, {}, {}, 0),
        ({"per_million_tasks": 1_000_000, "per_job": 10}, BATCH, {}, 11),
        ({"per_million_copies": 1_000_000}, {"source": {"url": "/lake"}}, {}, 2),
    ],
)
def test_money(
    tmp_path: Path, prices: dict[str, float], declared: dict[str, Any], told: dict[str, Any], usd: float
) -> None:
    """One archived object of one GiB: a request to thaw it and one to copy it."""
    planner = a_bucket_planner(tmp_path, prices=FREE | prices, **declared)
    archived = an_object("a", bucket=planner.backup.source.bucket, storage_class="GLACIER", size_bytes=GIB)
    if "per_gib_transferred" in prices:
        archived = archived | {"size_bytes": 2 * GIB}
    assert planner.plan(ONE, [archived], **told).estimate.usd == usd


def test_copies_between_folders_are_free(tmp_path: Path) -> None:
    planner = a_planner(tmp_path, source={"url": "/lake"})
    assert planner.plan(ONE, [an_object("a", bucket="/lake", size_bytes=GIB)]).estimate.usd == 0


def test_a_measured_copy_tells_more_than_an_assumed_speed(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    measured = {
        "engine": "local",
        "succeeded": 6_000,
        "failed": 0,
        "size_bytes": 6 * MIB,
        "seconds": 60,
        "reports": [],
    }
    planner.point(ONE, [an_object("a")], copied=measured)
    rows = [an_object("a"), *(an_object(f"k{number}") for number in range(600))]
    assert planner.plan(TWO, rows).estimate.minutes == pytest.approx(0.1)
    rows[1] = an_object("k0", size_bytes=60 * MIB)
    assert planner.plan(TWO, rows).estimate.minutes == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ({"objects": 1}, "2 objects where 1 are allowed"),
        ({"bytes": 29}, "30 bytes where 29 are allowed"),
        ({"minutes": 0.0}, "minutes where 0.0 are allowed"),
        ({"objects": 1, "bytes": 1}, "2 objects where 1 are allowed, 30 bytes where 1 are allowed"),
    ],
)
def test_a_plan_beyond_its_bounds_is_refused(tmp_path: Path, bounds: dict[str, float], sentence: str) -> None:
    planner = a_planner(tmp_path, bounds=bounds)
    rows = [an_object("a"), an_object("b", size_bytes=10**9 if "minutes" in bounds else 20)]
    with pytest.raises(BackupError, match=sentence) as refused:
        planner.plan(ONE, rows)
    assert "nothing was copied" in str(refused.value)
    assert planner.plan(ONE, rows, bounded=False).estimate.objects == 2


def test_what_is_held_is_within_any_bounds(tmp_path: Path) -> None:
    a_planner(tmp_path).point(ONE, [an_object("a")])
    planner = a_planner(tmp_path, bounds={"objects": 0, "bytes": 0, "usd": 0, "minutes": 0})
    assert planner.plan(TWO, [an_object("a")]).estimate.objects == 0
