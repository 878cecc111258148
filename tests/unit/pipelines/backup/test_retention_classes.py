"""A point gets its class when it is made; of each class the newest periods stay, and always the newest good point."""

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_pipelines.backup.config import Retention
from lakeshare_pipelines.backup.model import GOOD_STATUSES, Point, Status
from lakeshare_pipelines.backup.points import get_point_time
from lakeshare_pipelines.backup.retention import (
    CLASSES,
    RetentionClass,
    choose_class,
    compute_lock_end,
    get_period,
    select_kept_days,
)

USUAL = Retention(daily=7, weekly=5, monthly=12, yearly=3)
DAYS_ONLY = Retention(daily=3, weekly=0, monthly=0, yearly=0)


def a_point(day: str, status: Status, retention_class: RetentionClass) -> Point:
    """A point with what retention reads of it."""
    return Point.model_construct(
        day=day, as_of=get_point_time(day), status=status, retention_class=retention_class
    )


def made(days: list[str], retention: Retention, status: dict[str, Status] | None = None) -> list[Point]:
    """Points of these days, each with the class it gets when it is made in this order."""
    points: list[Point] = []
    for day in days:
        said = (status or {}).get(day, "verified")
        points.append(a_point(day, said, choose_class(get_point_time(day), said, points, retention)))
    return points


def all_days(first: str, count: int) -> list[str]:
    start = dt.date.fromisoformat(first)
    return [(start + dt.timedelta(days=number)).isoformat() for number in range(count)]


@pytest.mark.parametrize(
    ("days", "retention", "classes"),
    [
        (["2026-11-22"], USUAL, ["yearly"]),
        (["2026-11-22"], DAYS_ONLY, ["daily"]),
        # The 22nd is a Sunday, the 23rd begins an ISO week.
        (["2026-11-22", "2026-11-23", "2026-11-24"], USUAL, ["yearly", "weekly", "daily"]),
        (["2026-11-30", "2026-12-01", "2026-12-02"], USUAL, ["yearly", "monthly", "daily"]),
        (["2026-12-31", "2027-01-01"], USUAL, ["yearly", "yearly"]),
        # Two points of one day, and one that is made after a later one.
        (["2026-11-22T101500Z", "2026-11-22"], USUAL, ["yearly", "daily"]),
        (["2026-11-24", "2026-11-23", "2026-11-16"], USUAL, ["yearly", "daily", "weekly"]),
    ],
)
def test_the_first_good_point_of_a_period_stands_for_it(
    days: list[str], retention: Retention, classes: list[str]
) -> None:
    assert [point.retention_class for point in made(days, retention)] == classes


def test_a_point_that_is_not_good_stands_for_nothing() -> None:
    points = made(["2026-11-22", "2026-11-23", "2026-11-24"], USUAL, {"2026-11-23": "degraded"})
    assert [point.retention_class for point in points] == ["yearly", "daily", "weekly"]


@pytest.mark.parametrize(
    ("name", "moment", "period"),
    [
        ("daily", "2026-11-23T00:00:00+00:00", (2026, 11, 22)),
        ("daily", "2026-11-23T00:00:01+00:00", (2026, 11, 23)),
        ("weekly", "2027-01-01T12:00:00+00:00", (2026, 53)),
        ("monthly", "2026-12-01T00:00:00+00:00", (2026, 11)),
        ("yearly", "2027-01-01T01:00:00+02:00", (2026,)),
    ],
)
def test_midnight_belongs_to_the_day_it_ends(
    name: RetentionClass, moment: str, period: tuple[int, ...]
) -> None:
    assert get_period(name, dt.datetime.fromisoformat(moment)) == period


def test_three_years_of_days_leave_what_is_declared() -> None:
    points = made(all_days("2024-01-01", 1_096), USUAL)
    kept = select_kept_days(points, USUAL)
    assert set(all_days("2026-12-25", 7)) <= kept
    weekly = {day for day in kept if dt.date.fromisoformat(day).isocalendar().weekday == 1}
    assert len({dt.date.fromisoformat(day).isocalendar()[:2] for day in weekly}) >= 5
    assert {f"2026-{month:02}-01" for month in range(1, 13)} <= kept
    assert {"2024-01-01", "2025-01-01", "2026-01-01"} <= kept
    assert len(kept) <= 7 + 5 + 12 + 3


def test_when_backups_stop_the_last_ones_stay() -> None:
    points = made(all_days("2026-01-01", 30), DAYS_ONLY)
    assert select_kept_days(points, DAYS_ONLY) == {"2026-01-28", "2026-01-29", "2026-01-30"}


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        # Newer than anything good: it may be all there is of these days.
        (
            ["2026-01-09", "2026-01-10"],
            {"2026-01-06", "2026-01-07", "2026-01-08", "2026-01-09", "2026-01-10"},
        ),
        # Among the days that stay; it takes no place of a good one.
        (["2026-01-09"], {"2026-01-07", "2026-01-08", "2026-01-09", "2026-01-10"}),
        (["2026-01-02"], {"2026-01-08", "2026-01-09", "2026-01-10"}),
        (all_days("2026-01-01", 10), set(all_days("2026-01-01", 10))),
    ],
)
def test_points_that_are_not_good_stay_as_long_as_days_do(bad: list[str], kept: set[str]) -> None:
    points = made(all_days("2026-01-01", 10), DAYS_ONLY, dict.fromkeys(bad, "degraded"))
    assert select_kept_days(points, DAYS_ONLY) == kept


@pytest.mark.parametrize(("name", "days"), [("daily", 7), ("weekly", 35), ("monthly", 372), ("yearly", 1098)])
def test_locks_end_with_the_class(name: RetentionClass, days: int) -> None:
    moment = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
    assert compute_lock_end(moment, name, USUAL) == moment + dt.timedelta(days=days)


STATUSES: tuple[Status, ...] = ("verified", "verified_with_fallback", "degraded", "failed")
RETENTIONS = st.builds(
    Retention,
    daily=st.integers(1, 9),
    weekly=st.integers(0, 6),
    monthly=st.integers(0, 13),
    yearly=st.integers(0, 3),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Point], Retention]:
    numbers = draw(st.lists(st.integers(0, 1500), unique=True, max_size=60))
    retention = draw(RETENTIONS)
    days = [(dt.date(2024, 1, 1) + dt.timedelta(days=number)).isoformat() for number in numbers]
    status = {day: draw(st.sampled_from(STATUSES)) for day in days}
    return made(days, retention, status), retention


@settings(deadline=None)
@given(histories())
def test_the_newest_good_point_always_stays(history: tuple[list[Point], Retention]) -> None:
    points, retention = history
    good = [point for point in points if point.status in GOOD_STATUSES]
    kept = select_kept_days(points, retention)
    assert kept <= {point.day for point in points}
    if good:
        assert max(good, key=lambda point: point.as_of).day in kept


@settings(deadline=None)
@given(histories())
def test_of_each_class_no_more_periods_stay_than_declared_and_the_newest_do(
    history: tuple[list[Point], Retention],
) -> None:
    points, retention = history
    kept = select_kept_days(points, retention)
    for name in CLASSES:
        serving = [
            point
            for point in points
            if point.status in GOOD_STATUSES and CLASSES.index(point.retention_class) >= CLASSES.index(name)
        ]
        periods = sorted({get_period(name, point.as_of) for point in serving}, reverse=True)
        for point in serving:
            if get_period(name, point.as_of) in periods[: getattr(retention, name)]:
                assert point.day in kept


@settings(deadline=None)
@given(histories())
def test_sweeping_twice_is_sweeping_once(history: tuple[list[Point], Retention]) -> None:
    points, retention = history
    kept = select_kept_days(points, retention)
    assert select_kept_days([point for point in points if point.day in kept], retention) == kept


@settings(deadline=None)
@given(histories())
def test_a_new_good_point_never_brings_an_old_one_back(history: tuple[list[Point], Retention]) -> None:
    points, retention = history
    kept = select_kept_days(points, retention)
    day = "2030-01-01"
    after = [
        *points,
        a_point(day, "verified", choose_class(get_point_time(day), "verified", points, retention)),
    ]
    assert select_kept_days(after, retention) <= kept | {day}
