"""Every request leaves one audit row, refusals too, and none is lost when the server stops."""

import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from lakeshare_server.access.table_access import TableViews
from lakeshare_server.catalog import AuditEvent, AuditLog
from lakeshare_server.catalog.audit import import_orphans
from lakeshare_server.catalog.audit import log as audit_log
from tests.builders import plain_http
from tests.builders.events import newest_requests
from tests.builders.sharing import (
    FLIGHTS,
    LONG,
    LONG_FILES,
    Provider,
    a_provider_of_flights,
    a_server,
    files,
    hold_second_batch,
    share_long_table,
)


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider_of_flights(tmp_path)


def an_entry(number: int) -> AuditEvent:
    return AuditEvent(
        at=datetime.now(UTC),
        recipient="bob",
        action="query_table",
        object_name="s.a.x",
        status=200,
        error_code=None,
        version=1,
        files=number,
        request_id=f"r{number}",
        ip="::1",
        user_agent="ü",
        elapsed_ms=2,
    )


def rows(provider: Provider, *kinds: str) -> list[AuditEvent]:
    """All events, or those of these kinds, oldest first."""
    import_orphans(provider.catalog, provider.settings.audit_dir)
    found = newest_requests(provider.catalog, 1000)[::-1]
    return [event for event in found if not kinds or event.kind in kinds]


def rename_table(provider: Provider, name: str, new_name: str) -> None:
    with provider.catalog.writing() as session:
        session.execute(text(f"ALTER TABLE {name} RENAME TO {new_name}"))


def test_a_row_says_who_did_what_to_what_and_what_came_of_it(provider: Provider) -> None:
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client:
        answer = client.post(f"{FLIGHTS}/query", json={}, headers={"User-Agent": "tests/1"})
        [first, *_] = files(answer)
        plain_http.get(first["url"])
    query, end, read = rows(provider)
    assert (query.recipient, query.action, query.object_name) == (
        "bob",
        "query_table",
        "flights.lake.flights",
    )
    assert (query.kind, query.status, query.error_code, query.version, query.files) == (
        "request",
        200,
        None,
        0,
        None,
    )
    assert (end.kind, end.request_id, end.files, end.rows) == ("end", query.request_id, 3, 12)
    assert end.size_bytes == sum(file["size"] for file in files(answer))
    assert (query.ip, query.user_agent) == ("127.0.0.1", "tests/1")
    assert query.request_id == answer.headers["x-request-id"]
    assert abs((datetime.now(UTC) - query.at).total_seconds()) < 60
    assert (read.recipient, read.action, read.status) == ("bob", "read_file", 200)
    assert read.object_name is not None
    assert Path(read.object_name).is_file()


def test_refusals_are_recorded_with_their_reason(provider: Provider) -> None:
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, server.client("wrong") as stranger:
        stranger.get(f"{FLIGHTS}/version")
        client.get("/shares/hidden")
        client.post(f"{FLIGHTS}/query", content=b"{")
        client.get("/files/etc/passwd")
        client.get("/nothing")
        client.delete(FLIGHTS)
    assert [
        (row.recipient, row.action, row.object_name, row.status, row.error_code) for row in rows(provider)
    ] == [
        (None, "table_version", "flights.lake.flights", 401, "UNAUTHENTICATED"),
        ("bob", "get_share", "hidden", 404, "RESOURCE_DOES_NOT_EXIST"),
        ("bob", "query_table", "flights.lake.flights", 400, "MALFORMED_REQUEST"),
        (None, "read_file", None, 403, "PERMISSION_DENIED"),
        (None, "unknown", "/delta-sharing/nothing", 404, "RESOURCE_DOES_NOT_EXIST"),
        (None, "unknown", f"/delta-sharing{FLIGHTS}", 405, "METHOD_NOT_ALLOWED"),
    ]


def test_names_that_no_database_takes_are_recorded_all_the_same(provider: Provider) -> None:
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client:
        for name in ("%00", "%ff", "%ed%a0%80", "x" * 9000):
            assert client.get(f"/shares/{name}").status_code == 404
    assert [row.status for row in rows(provider)] == [404] * 4


def test_a_burst_of_requests_is_recorded_completely(provider: Provider) -> None:
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client:
        ids = {client.get("/shares").headers["x-request-id"] for _ in range(200)}
    assert {row.request_id for row in rows(provider)} == ids
    assert len(ids) == 200


def test_watching_the_servers_health_leaves_no_row(provider: Provider) -> None:
    with a_server(provider) as server:
        root = server.url.removesuffix("/delta-sharing")
        assert plain_http.get(f"{root}/healthz").json() == {"status": "ok"}
        assert plain_http.get(f"{root}/readyz").json() == {"status": "ready", "reasons": []}
    assert rows(provider) == []


def test_the_server_answers_while_requests_wait_for_their_rows(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "BACKLOG", 1)
    token = provider.recipient()
    with a_server(provider) as server:
        rename_table(provider, "audit_log", "elsewhere")
        for _ in range(3):
            with server.client(token) as client:
                assert client.get("/shares").status_code == 200
        root = server.url.removesuffix("/delta-sharing")
        assert plain_http.get(f"{root}/healthz", timeout=10).status_code == 200
        rename_table(provider, "elsewhere", "audit_log")
    assert [row.status for row in rows(provider)] == [200] * 3


def test_rows_wait_while_the_database_refuses_them(provider: Provider) -> None:
    rename_table(provider, "audit_log", "elsewhere")
    log = AuditLog(provider.catalog, provider.settings.audit_dir)
    for number in range(3):
        log.record(an_entry(number))
    rename_table(provider, "elsewhere", "audit_log")
    log.close()
    assert [row.files for row in rows(provider)] == [0, 1, 2]


def test_events_that_the_database_does_not_take_wait_in_the_journal_for_the_next_server(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(provider.catalog, provider.settings.audit_dir)
    rename_table(provider, "audit_log", "elsewhere")
    log.record(an_entry(77))
    log.close()
    assert "1 events wait in" in caplog.text
    rename_table(provider, "elsewhere", "audit_log")
    AuditLog(provider.catalog, provider.settings.audit_dir).close()
    assert [row.files for row in rows(provider)] == [77]
    assert list(provider.settings.audit_dir.iterdir()) == []


def test_a_request_that_fails_for_no_reason_of_its_own_is_recorded_as_such(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(TableViews, "table", fail)
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        answer = client.get(f"{FLIGHTS}/version")
    assert answer.status_code == 500
    [row] = rows(provider)
    assert (row.status, row.error_code) == (500, "INTERNAL_ERROR")
    assert row.request_id in answer.json()["message"]


def test_a_client_that_leaves_in_mid_answer_is_recorded_as_such(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_long_table(provider)
    go_on = hold_second_batch(monkeypatch)
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        with client.stream("POST", f"{LONG}/query") as answer:
            next(answer.iter_raw())
        client.close()
        # The server is to learn of it before the next piece is signed.
        time.sleep(0.5)
        go_on.set()
    begun, ended = rows(provider)
    assert (begun.status, begun.error_code) == (200, None)
    assert (ended.status, ended.error_code) == (200, "CONNECTION_LOST")
    assert ended.files is not None
    assert ended.files < LONG_FILES


def test_a_client_that_leaves_in_mid_body_is_recorded_as_such(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    with a_server(provider) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=10) as connection:
            head = f"POST {address.path}{FLIGHTS}/query HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            token = provider.recipient()
            connection.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n{{".encode())
        until = time.monotonic() + 30
        while not rows(provider) and time.monotonic() < until:
            time.sleep(0.02)
    [row] = rows(provider)
    assert (row.action, row.recipient) == ("query_table", "bob")
    assert (row.status, row.error_code) == (499, "CONNECTION_LOST")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
