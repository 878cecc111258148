"""Permits are counted once for all workers: never more than the limit, however many take at the same time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from lakeshare_server.access import rate_limit
from lakeshare_server.access.rate_limit import (
    BYTES,
    REQUESTS,
    URLS,
    BruteForceProtection,
    RateLimit,
    RecipientLimits,
)
from lakeshare_server.catalog import Access, Allowances, Catalog, Reader, TokenUses, open_catalog
from lakeshare_server.catalog.models import AllowanceRow, TokenUseRow
from lakeshare_server.errors import TooManyRequests, Unavailable
from lakeshare_server.settings import ServerSettings

# Counts of long ago are removed, so the tests count today.
NOW = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
BOB = Access(Reader("bob", "bob"), "credential")

# What is decided before the database is asked need not be asked of both.
IN_MEMORY = pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as long as the test does not change it."""
    moment = [NOW.timestamp()]
    monkeypatch.setattr(rate_limit, "now", lambda: moment[0])
    return moment


def used(meter: RateLimit, most: int, tries: int) -> int:
    """How many of so many tries succeed."""
    count = 0
    for _ in range(tries):
        try:
            meter.use("bob", most, "enough")
            count += 1
        except TooManyRequests:
            pass
    return count


def test_permits_are_taken_until_there_are_none_and_again_in_the_next_stretch(catalog: Catalog) -> None:
    allowances = Allowances(catalog)
    take = lambda at, wanted, overdrawn=0: allowances.take("bob", "requests", at, 10, wanted, overdrawn)  # noqa: E731
    assert [take(NOW, 4), take(NOW, 4), take(NOW, 4), take(NOW, 4)] == [4, 4, 2, 0]
    later = NOW + timedelta(minutes=1)
    assert [take(later, 4, overdrawn=5), take(later, 4)] == [4, 1]
    # A worker whose clock is behind counts with the others, and does not set anything back.
    assert take(NOW, 4) == 0
    assert allowances.take("eve", "requests", NOW, 10, 4) == 4


def test_several_workers_never_take_more_than_the_limit_together(
    catalog: Catalog, clock: list[float]
) -> None:
    workers = [RateLimit(Allowances(catalog), "requests", 60) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda number: used(workers[number % 4], 100, 40), range(8)))
    # What a worker still holds another cannot use: at most a lease each.
    assert 100 - 4 * 2 <= sum(counts) <= 100
    clock[0] += 60
    assert used(workers[0], 100, 200) == 100


@IN_MEMORY
def test_a_use_is_no_write(catalog: Catalog, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    takes = []
    take = Allowances.take
    monkeypatch.setattr(Allowances, "take", lambda *args: takes.append(args) or take(*args))
    assert used(RateLimit(Allowances(catalog), "requests", 60), 1000, 1100) == 1000
    assert len(takes) == 51


@IN_MEMORY
def test_who_is_refused_is_told_when_to_come_back(catalog: Catalog, clock: list[float]) -> None:
    meter = RateLimit(Allowances(catalog), "requests", 60)
    clock[0] += 12.5
    assert used(meter, 1, 1) == 1
    with pytest.raises(TooManyRequests, match="enough") as refused:
        meter.use("bob", 1, "enough")
    assert refused.value.retry_s == 48


@IN_MEMORY
def test_another_limit_counts_at_once(catalog: Catalog, clock: list[float]) -> None:
    meter = RateLimit(Allowances(catalog), "requests", 60)
    assert (used(meter, 5, 10), used(meter, 8, 10), used(meter, 3, 10)) == (5, 3, 0)


def test_what_was_used_beyond_is_owed_and_told_to_the_other_workers(
    catalog: Catalog, clock: list[float]
) -> None:
    one, other = (RateLimit(Allowances(catalog), "urls", 86_400) for _ in range(2))
    one.require("bob", 100, "enough")
    one.count("bob", 100, 150)
    one.flush()
    with pytest.raises(TooManyRequests):
        other.require("bob", 100, "enough")
    with pytest.raises(TooManyRequests):
        one.require("bob", 100, "enough")
    clock[0] += 86_400
    other.require("bob", 100, "enough")


@IN_MEMORY
def test_what_is_owed_is_kept_while_the_catalog_does_not_answer(
    catalog: Catalog, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = RateLimit(Allowances(catalog), "urls", 86_400)
    meter.require("bob", 100, "enough")
    meter.count("bob", 100, 150)

    def fails(*_: object) -> int:
        raise Unavailable("the catalog does not answer", "Try again.")

    with monkeypatch.context() as broken:
        broken.setattr(Allowances, "take", fails)
        for _ in range(2):
            with pytest.raises(Unavailable):
                meter.flush()
    meter.flush()
    with pytest.raises(TooManyRequests):
        RateLimit(Allowances(catalog), "urls", 86_400).require("bob", 100, "enough")


@IN_MEMORY
def test_what_is_owed_outlives_the_permits_of_many_others(
    catalog: Catalog, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "MAX_SUBJECTS", 3)
    meter = RateLimit(Allowances(catalog), "urls", 86_400)
    meter.count("bob", 100, 150)
    clock[0] += 86_400
    for number in range(9):
        meter.require(f"other {number}", 100, "enough")
    meter.flush()
    clock[0] -= 86_400
    with pytest.raises(TooManyRequests):
        RateLimit(Allowances(catalog), "urls", 86_400).require("bob", 100, "enough")


@IN_MEMORY
def test_permits_that_are_forgotten_while_they_are_written_stop_no_other(
    catalog: Catalog, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = RateLimit(Allowances(catalog), "urls", 86_400)
    for name in ("ann", "bob"):
        meter.count(name, 100, 150)
    take = Allowances.take

    def take_slowly(*asked: Any) -> int:
        monkeypatch.setattr(Allowances, "take", take)
        # A request of bob writes what he owes, and then others push his permits out.
        with pytest.raises(TooManyRequests):
            meter.require("bob", 100, "enough")
        monkeypatch.setattr(rate_limit, "MAX_SUBJECTS", 1)
        meter.require("eve", 100, "enough")
        return take(*asked)

    monkeypatch.setattr(Allowances, "take", take_slowly)
    meter.flush()
    for name in ("ann", "bob"):
        with pytest.raises(TooManyRequests):
            RateLimit(Allowances(catalog), "urls", 86_400).require(name, 100, "enough")


@IN_MEMORY
def test_limits_are_the_recipient_s_own_or_those_of_the_settings(
    catalog: Catalog, clock: list[float]
) -> None:
    settings = ServerSettings(requests_per_minute=2, urls_per_day=10, bytes_per_day=1000)
    limits = RecipientLimits(Allowances(catalog), settings)
    own = Access(Reader("eve", "eve"), "credential", limits={REQUESTS: 5, URLS: 1000, BYTES: 50})
    for access, most in ((BOB, 2), (own, 5)):
        for _ in range(most):
            limits.count_request(access)
        with pytest.raises(TooManyRequests, match=f"{most} requests in a minute"):
            limits.count_request(access)
    limits.require_signing(BOB)
    limits.count_signed(BOB, 10, 10)
    with pytest.raises(TooManyRequests, match=r"10 files in a day \(UTC\)"):
        limits.require_signing(BOB)
    limits.require_signing(own)
    limits.count_signed(own, 10, 51)
    with pytest.raises(TooManyRequests, match="50 bytes in a day"):
        limits.require_signing(own)


@IN_MEMORY
def test_without_limits_nothing_is_counted(catalog: Catalog) -> None:
    limits = RecipientLimits(Allowances(catalog), ServerSettings())
    for _ in range(100):
        assert limits.try_count_request(BOB)
    limits.require_signing(BOB)
    limits.count_signed(BOB, 10**9, 10**15)
    with catalog.reading() as session:
        assert session.scalars(select(AllowanceRow)).all() == []


def test_guesses_of_an_address_are_counted_by_all_workers_and_a_repeated_one_is_none(
    catalog: Catalog, clock: list[float]
) -> None:
    one, other = (BruteForceProtection(Allowances(catalog), 10) for _ in range(2))
    for _ in range(50):
        one.count("192.0.2.1", b"the same")
    for number in range(9):
        (one if number % 2 else other).count("192.0.2.1", b"%d" % number)
    with pytest.raises(TooManyRequests, match=r"192\.0\.2\.1"):
        one.count("192.0.2.1", b"one more")
    with pytest.raises(TooManyRequests):
        other.count("192.0.2.1", b"another")
    for guesses in (one, other):
        with pytest.raises(TooManyRequests):
            guesses.count("192.0.2.1", b"never seen")
        assert guesses.is_blocked("192.0.2.1")
        assert not guesses.is_blocked("192.0.2.2")
    clock[0] += 60
    assert not one.is_blocked("192.0.2.1")
    one.count("192.0.2.1", b"never seen")


def test_counts_of_long_ago_are_removed(catalog: Catalog) -> None:
    allowances = Allowances(catalog)
    for number in range(20):
        allowances.take(f"192.0.2.{number}", "guesses", NOW - timedelta(days=900), 10, 1)
    allowances.take("192.0.2.77", "guesses", datetime.now(UTC), 10, 1)
    with catalog.reading() as session:
        assert [row.subject for row in session.scalars(select(AllowanceRow))] == ["192.0.2.77"]


def test_the_newest_use_of_a_token_wins_whoever_writes_last(catalog: Catalog) -> None:
    early, late = TokenUses(catalog), TokenUses(catalog)
    early.record("token", "192.0.2.1")
    late.record("token", "192.0.2.2")
    late.record("other", None)
    late.write()
    early.write()
    with catalog.reading() as session:
        rows = {row.token_id: row.last_used_from for row in session.scalars(select(TokenUseRow))}
    assert rows == {"token": "192.0.2.2", "other": None}


@IN_MEMORY
def test_uses_are_kept_while_the_catalog_does_not_answer(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = TokenUses(catalog)
    uses.record("token", "192.0.2.1")

    def fails(*_: object, **__: object) -> None:
        raise Unavailable("the catalog does not answer", "Try again.")

    with monkeypatch.context() as broken:
        broken.setattr(Catalog, "writing", fails)
        with pytest.raises(Unavailable):
            uses.write()
    uses.write()
    with catalog.reading() as session:
        assert session.scalars(select(TokenUseRow.token_id)).all() == ["token"]


@IN_MEMORY
def test_two_uses_in_a_minute_are_one_write_unless_the_address_changes(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = TokenUses(catalog)
    written = []
    monkeypatch.setattr(TokenUses, "_write", lambda _self, noted: written.append(sorted(noted)))
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"):
        uses.record("token", address)
        uses.write()
    assert written == [["token"]] * 2


def test_a_second_catalog_counts_the_same(catalog: Catalog, clock: list[float]) -> None:
    again = open_catalog(catalog.engine.url.render_as_string(hide_password=False))
    assert used(RateLimit(Allowances(catalog), "requests", 60), 10, 5) == 5
    assert used(RateLimit(Allowances(again), "requests", 60), 10, 20) == 5
    again.close()
