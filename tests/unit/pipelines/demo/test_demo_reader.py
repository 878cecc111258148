"""A watch on what a recipient sees holds every look; neither a failed read nor no look at all counts as right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from requests import HTTPError

from lakeshare_pipelines.demo.processes import Observation, compute_fingerprint, read_table, watch_table
from tests.builders.events import newest_requests
from tests.builders.lake_tables import append_delta, some_rows
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, a_provider_of_flights, a_server
from tests.builders.waiting import wait_until

TABLE = "flights.lake.flights"
NOTHING = (0, 0)


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider_of_flights(tmp_path)


@pytest.fixture
def profile(provider: Provider) -> Iterator[Path]:
    token = provider.recipient("bob")
    with a_server(provider) as server:
        yield server.profile(token)


def test_a_publication_during_the_watch_is_seen(provider, profile, tmp_path):
    before = compute_fingerprint(read_table(profile, TABLE))
    with watch_table(profile, TABLE) as watch:
        wait_until(lambda: watch.reads > 0)
        assert watch.saw_only(0, before)
        append_delta(tmp_path / "table", some_rows())
        published = provider.publish_delta("lake.flights", tmp_path / "table").version
        wait_until(lambda: len(watch.contents) == 2)

    assert watch.versions == {0, published}
    after = compute_fingerprint(read_table(profile, TABLE))
    assert watch.contents == {before, after}
    assert not watch.saw_only(0, before)
    assert not watch.saw_only(published, after)


def test_a_fingerprint_tells_values_apart_and_not_their_order(profile):
    rows = read_table(profile, TABLE)
    changed = rows.copy()
    changed.iloc[0, 0] = changed.iloc[-1, 0]
    assert compute_fingerprint(rows.iloc[::-1]) == compute_fingerprint(rows)
    assert compute_fingerprint(changed) != compute_fingerprint(rows)


def test_a_read_that_fails_fails_the_watch(provider, profile):
    def is_refused() -> bool:
        return any(row.status == 401 for row in newest_requests(provider.catalog, 10))

    def watch_until_refused() -> None:
        with watch_table(profile, TABLE) as watch:
            wait_until(lambda: watch.reads > 0)
            Recipients(provider.catalog).revoke("bob")
            wait_until(is_refused)

    with pytest.raises(HTTPError, match="401"):
        watch_until_refused()


def test_what_fails_beside_the_watch_is_told_first(profile):
    with pytest.raises(RuntimeError, match="the run broke"), watch_table(profile, TABLE):
        raise RuntimeError("the run broke")


def test_without_a_look_nothing_was_seen():
    assert not Observation().saw_only(0, NOTHING)
