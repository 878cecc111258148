"""The server is ready as long as it can write what it has to, and says what it cannot and which services are gone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.routes import health
from tests.builders import plain_http
from tests.builders.held_requests import silent_service
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_provider_of_flights, a_server
from tests.builders.small_disk import fill, small_disk

DISK_BYTES = 24 << 20


def readiness(url: str, **headers: str) -> tuple[int, dict[str, Any]]:
    answer = plain_http.get(f"{url.removesuffix('/delta-sharing')}/readyz", headers=headers)
    return answer.status_code, answer.json()


@pytest.fixture(autouse=True)
def _each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_S", 0.0)


def test_a_full_disk_is_named_and_what_needs_no_write_is_served(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        provider = a_provider_of_flights(disk, min_free_bytes=0)
        token = provider.recipient()
        with a_server(provider) as server, server.client(token) as client:
            assert readiness(server.url) == (200, {"status": "ready", "reasons": []})
            fill(disk)
            status, said = readiness(server.url)
            assert status == 503
            assert said["status"] == "not ready"
            assert any("No space left on device" in reason for reason in said["reasons"])
            assert client.get(f"{FLIGHTS}/version").status_code == 200
            assert client.post(f"{FLIGHTS}/query", json={}).status_code == 200
            (disk / "filler").unlink()
            assert readiness(server.url)[0] == 200


def test_a_disk_that_is_nearly_full_is_named_before_it_is(tmp_path: Path) -> None:
    provider = a_provider(tmp_path, min_free_bytes=1 << 60)
    with a_server(provider) as server:
        status, said = readiness(server.url)
    assert status == 503
    [reason] = said["reasons"]
    assert "LAKESHARE_MIN_FREE_BYTES" in reason
    assert str(provider.settings.state_dir) in reason


def test_a_database_that_refuses_writes_is_not_ready(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    with a_server(provider) as server:
        with provider.catalog.engine.connect() as connection:
            # As a database does that was restored for reading, or whose disk is read-only.
            connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON allowances BEGIN SELECT RAISE(ABORT, 'read only'); END"
            )
            connection.commit()
        status, said = readiness(server.url)
    assert status == 503
    assert said["reasons"] == [
        "the database refuses writes; the server's log says why. Check its disk and its mode"
    ]


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with silent_service() as store:
        provider = a_provider(tmp_path, s3_endpoint=store, s3_region="eu-north-1", outside_answer_s=0.5)
        provider.follow("lake.flights", "s3://hung/table")
        provider.share("lake.flights")
        yield provider


def test_a_store_that_hangs_is_named_by_readiness_and_metrics_to_those_who_may_know(
    provider: Provider,
) -> None:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        refused = client.get(f"{FLIGHTS}/version")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        status, said = readiness(server.url)
        assert status == 200
        [service] = said["services"]
        assert service["name"] == "s3://hung"
        assert "does not answer" in service["reason"]
        # As it comes through a proxy.
        _, said = readiness(server.url, **{"x-forwarded-for": "192.0.2.1"})
        assert "hung" not in str(said)
        assert len(said["services"]) == 1
        counts = plain_http.get(f"{server.url.removesuffix('/delta-sharing')}/metrics").text
        assert 'lakeshare_service_unavailable{service="s3://hung"} 1.0' in counts
