"""A watch on what a recipient sees holds every look; neither a failed read nor no look at all counts as right."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from requests import HTTPError

from lakeshare_pipelines.demo.reader import Watch, watching
from lakeshare_server.catalog import AuditLog, Recipients
from tests.builders.lake_tables import append_delta, some_rows
from tests.builders.sharing import Provider, a_provider_of_flights, a_server

TABLE = "flights.lake.flights"
ROWS = some_rows().num_rows


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider_of_flights(tmp_path)


@pytest.fixture
def profile(provider: Provider) -> Iterator[Path]:
    token = provider.recipient("bob")
    with a_server(provider) as server:
        yield server.profile(token)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_publication_during_the_watch_is_seen(provider, profile, tmp_path):
    with watching(profile, TABLE) as watch:
        wait_until(lambda: watch.looks > 0)
        assert watch.saw_only(0, ROWS)
        append_delta(tmp_path / "table", some_rows())
        published = provider.publish_delta("lake.flights", tmp_path / "table").version
        wait_until(lambda: 2 * ROWS in watch.row_counts)

    assert watch.versions == {0, published}
    assert watch.row_counts == {ROWS, 2 * ROWS}
    assert not watch.saw_only(0, ROWS)
    assert not watch.saw_only(published, 2 * ROWS)


def test_a_read_that_fails_fails_the_watch(provider, profile):
    def is_refused() -> bool:
        return any(row.status == 401 for row in AuditLog(provider.catalog).newest(10))

    def watch_until_refused() -> None:
        with watching(profile, TABLE) as watch:
            wait_until(lambda: watch.looks > 0)
            Recipients(provider.catalog).revoke("bob")
            wait_until(is_refused)

    with pytest.raises(HTTPError, match="401"):
        watch_until_refused()


def test_what_fails_beside_the_watch_is_told_first(profile):
    with pytest.raises(RuntimeError, match="the run broke"), watching(profile, TABLE):
        raise RuntimeError("the run broke")


def test_without_a_look_nothing_was_seen():
    assert not Watch().saw_only(0, ROWS)
