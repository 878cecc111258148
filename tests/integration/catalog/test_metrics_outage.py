"""A database that hangs or is gone costs a scrape seconds at most, and hides nothing but what is read from it."""

import time
from pathlib import Path

import pytest
from sqlalchemy import text

from lakeshare_server.catalog import Ledger
from lakeshare_server.routes import monitoring
from tests.builders import plain_http
from tests.builders.publications import a_publication
from tests.builders.scrapes import Scrape
from tests.builders.sharing import a_provider, a_server
from tests.builders.waiting import wait_until
from tests.integration.postgres_server import PostgresServer


def test_a_scrape_of_a_database_that_hangs_or_is_gone(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "STATE_S", 1.0)
    url = postgres.new_database()
    provider = a_provider(tmp_path, database_url=url, metrics_refresh_s=0)
    Ledger(provider.catalog).append([a_publication(table="lake.flights")])
    provider.share("lake.flights")
    with a_server(provider) as server, server.client(None) as stranger:

        def scrape() -> Scrape:
            found, began = Scrape(), time.monotonic()
            found.add(plain_http.get(f"{server.url.removesuffix('/delta-sharing')}/metrics").text)
            assert time.monotonic() - began < 6
            return found

        assert stranger.get("/shares").status_code == 401
        assert scrape().values("lakeshare_database_up") == [1]
        with provider.catalog.engine.begin() as connection:
            connection.execute(text("LOCK TABLE publications IN ACCESS EXCLUSIVE MODE"))
            hung = scrape()
        assert hung.values("lakeshare_database_up") == [0]
        assert hung.values("lakeshare_requests_total", action="list_shares", status="401") == [1]
        # What was read before is shown, and its age.
        assert hung.values("lakeshare_publication_age_seconds", table="lake.flights")[0] > 0
        assert hung.values("lakeshare_state_age_seconds")[0] >= 1
        wait_until(lambda: scrape().values("lakeshare_database_up") == [1], 0.2)
        provider.catalog.close()
        postgres.drop_database(url)
        assert stranger.get("/shares").status_code == 503
        wait_until(lambda: scrape().values("lakeshare_audit_backlog_events") == [1], 0.2)
        gone = scrape()
    assert gone.values("lakeshare_database_up") == [0]
    assert gone.values("lakeshare_check_failed", check="catalog") == [1]
    assert sum(gone.values("lakeshare_database_errors_total")) > 0
