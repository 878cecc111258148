"""No reply begins before its event is safe: a killed process, a killed worker and a full disk lose nothing."""

import os
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import pytest

from lakeshare_server.app import WORKER_ANSWER_S
from lakeshare_server.catalog import AuditEvent, AuditLog
from lakeshare_server.catalog.audit import events_after, import_orphans, log, verify
from lakeshare_server.catalog.audit.log import ROOM_BYTES, Journal, events_in, serialize_event
from lakeshare_server.metrics import WORKERS_FOLDER
from tests.builders.database_schema import open_migrated
from tests.builders.server_process import a_process
from tests.builders.sharing import FLIGHTS, Provider, a_provider_of_flights, a_server, files
from tests.builders.trace_collector import a_trace_collector
from tests.builders.waiting import wait_until

PATIENCE_S = 30
CLIENTS = 2
POLLS = 'lakeshare_requests_total{action="table_version",credential="bearer",error="",status="200"}'


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider_of_flights(tmp_path)


def recorded(provider: Provider) -> set[str]:
    import_orphans(provider.catalog, provider.settings.audit_dir)
    return {entry.event.request_id for entry in events_after(provider.catalog, 0)}


class Askers:
    """Clients that poll and query until they are stopped, and note each reply that begins."""

    def __init__(self, url: str, token: str) -> None:
        self.ids: list[str] = []
        self._url, self._token, self._stop = url, token, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        while not self._stop.is_set():
            try:
                # Without the list of authorities, whose reading costs more than the requests.
                with httpx.Client(base_url=self._url, headers=headers, timeout=5, verify=False) as client:
                    for _ in range(20):
                        with client.stream("POST", f"{FLIGHTS}/query", json={}) as answer:
                            self.ids.append(answer.headers["x-request-id"])
                        self.ids.append(client.get(f"{FLIGHTS}/version").headers["x-request-id"])
            except httpx.HTTPError:
                # The server is gone, or comes again.
                time.sleep(0.01)


def test_a_killed_worker_loses_no_event_and_several_workers_share_one_address_and_end_together(
    provider: Provider, tmp_path: Path
) -> None:
    """Metrics are of all workers, too. It is killed while the supervisor waits for its reply to a ping.

    A worker that hangs does not keep the server from its end; tests/security/test_within_one_second.py ends one whose
    workers all answer.
    """
    token = provider.recipient()
    counts = tmp_path / "counts"
    counts.mkdir()
    environment = {WORKERS_FOLDER: str(counts)}
    with a_process(provider, "--workers", "2", environment=environment) as (process, url):
        askers = Askers(url, token)
        wait_until(lambda: len(askers.ids) > 60)
        victim, *_ = workers_of(process)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(1)  # twice the interval of the pings
        victim.send_signal(signal.SIGKILL)
        before = len(askers.ids)
        wait_until(lambda: len(askers.ids) > before + 20)
        askers.stop()
        # The worker that is left, or the one in the victim's place, brings its journal into the log.
        wait_until(
            lambda: set(askers.ids) <= {entry.event.request_id for entry in events_after(provider.catalog, 0)}
        )
        origin = url.removesuffix("/delta-sharing")
        # Gauges of a worker that has ended would be summed for ever: the supervisor removes them.
        wait_until(lambda: list(counts.glob(f"gauge_*_{victim.pid}.db")) == [])
        texts = {httpx.get(f"{origin}/metrics", timeout=PATIENCE_S).text for _ in range(8)}
        assert all(text.count("\nlakeshare_audit_backlog_events ") == 1 for text in texts)
        assert all(text.count("\nlakeshare_database_up 1.0\n") == 1 for text in texts)
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(f"{url}{FLIGHTS}/query", headers=headers, timeout=PATIENCE_S)
        assert len(files(answer)) == 3
        hung, *_ = workers_of(process)
        hung.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        assert process.wait(WORKER_ANSWER_S) == 0
        assert not hung.is_running()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/shares", headers=headers)
    polls = [
        entry.event for entry in events_after(provider.catalog, 0) if entry.event.action == "table_version"
    ]
    [line] = {line for text in texts for line in text.splitlines() if line.startswith(POLLS)}
    # What was under way when its worker was killed was not counted.
    assert len(polls) - CLIENTS <= float(line.split()[-1]) <= len(polls)
    assert verify(provider.catalog).is_sound


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def test_without_room_for_its_event_a_request_is_refused(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, logs = os.open("/dev/full", os.O_WRONLY), list[AuditLog]()
    record = AuditLog.record

    def noted(self: AuditLog, *arguments: object) -> None:
        logs.append(self)
        record(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(AuditLog, "record", noted)
    # It does not go on in a new file meanwhile.
    monkeypatch.setattr(log, "LONG_BYTES", 1 << 40)
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        assert len(files(client.post(f"{FLIGHTS}/query"))) == 3
        journal = logs[0]._journal
        kept = os.dup(journal._file)
        with logs[0]._changed:  # the end of the first request may not be written yet
            was = journal.size
            os.dup2(full, journal._file)
            # The room that it has is used up: it needs more.
            journal.size = len(journal._map)
        refused = client.post(f"{FLIGHTS}/query")
        assert (refused.status_code, refused.json()["errorCode"]) == (503, "TEMPORARILY_UNAVAILABLE")
        assert "url" not in refused.text
        with logs[0]._changed:
            os.dup2(kept, journal._file)
            journal.size = was
        assert len(files(client.post(f"{FLIGHTS}/query"))) == 3
    os.close(full)
    os.close(kept)
    told = [(one.event.kind, one.event.status) for one in events_after(provider.catalog, 0)]
    assert told.count(("request", 200)) == 2


def test_metrics_have_no_names_and_are_for_this_host_or_the_holder_of_the_token(tmp_path: Path) -> None:
    provider = a_provider_of_flights(tmp_path, telemetry_names=True, metrics_token="s3cret")
    with a_server(provider) as server, server.client(provider.recipient("acme")) as client:
        origin = server.url.removesuffix("/delta-sharing")
        assert len(files(client.post(f"{FLIGHTS}/query"))) == 3
        assert httpx.get(f"{origin}/metrics").status_code == 404
        assert httpx.get(f"{origin}/metrics", headers={"Authorization": "Bearer s3cre"}).status_code == 404
        named = httpx.get(f"{origin}/metrics", headers={"Authorization": "Bearer s3cret"})
    assert 'lakeshare_files_total{action="query_table",recipient="acme"} 3.0' in named.text
    anonymous = a_provider_of_flights(tmp_path / "anonymous")
    with a_server(anonymous) as server, server.client(anonymous.recipient("acme")) as client:
        origin = server.url.removesuffix("/delta-sharing")
        client.get("/shares/acme")
        client.get(f"{FLIGHTS}/version")
        answer = httpx.get(f"{origin}/metrics")
        assert httpx.get(f"{origin}/metrics", headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 404
    assert 'error="RESOURCE_DOES_NOT_EXIST",status="404"} 1.0' in answer.text
    assert 'lakeshare_request_seconds_count{action="table_version"} 1.0' in answer.text
    assert "acme" not in answer.text


def test_a_killed_process_loses_no_event_of_a_reply_that_began_and_its_spans_are_at_the_collector(
    provider: Provider,
) -> None:
    """Spans go to the collector of the environment and name no recipient."""
    with a_trace_collector() as collector:
        token = provider.recipient("acme")
        with a_process(provider, environment=collector.environment) as (process, url):
            with httpx.Client(
                base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S
            ) as client:
                answer = client.post(
                    f"{FLIGHTS}/query", headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
                )
                httpx.get(files(answer)[0]["url"])
            wait_until(lambda: {span.name.split()[0] for span in collector.spans()} >= {"GET", "POST"})
            first = collector.spans()
            askers = Askers(url, token)
            wait_until(lambda: len(askers.ids) > 60)
            process.kill()
            process.wait(PATIENCE_S)
            askers.stop()
    assert list(provider.settings.audit_dir.iterdir()) != []
    assert {*askers.ids, answer.headers["x-request-id"]} <= recorded(provider)
    assert verify(provider.catalog).is_sound
    assert list(provider.settings.audit_dir.iterdir()) == []
    [query] = [span for span in first if span.name.startswith("POST ")]
    attributes = {attribute.key: attribute.value for attribute in query.attributes}
    assert query.trace_id.hex() == "ab" * 16
    assert attributes["lakeshare.action"].string_value == "query_table"
    assert attributes["lakeshare.request_id"].string_value == answer.headers["x-request-id"]
    assert attributes["lakeshare.files"].int_value == 3
    assert all(b"acme" not in request.SerializeToString() for request in collector.received)


def test_a_journal_grows_and_is_read_to_its_last_whole_event(tmp_path: Path) -> None:
    catalog = open_migrated(f"sqlite:///{tmp_path / 'lakeshare.db'}")
    journal = Journal(tmp_path / "audit")
    text = serialize_event(
        AuditEvent(at=datetime.now(UTC), action="x" * 60, request_id="r", user_agent="y" * 900)
    )
    count = ROOM_BYTES // len(text) + 3
    ends = [journal.write(text) for _ in range(count)]
    # Ended by a signal in the middle of one more event.
    journal._map[ends[-1] : ends[-1] + 9] = text[:9]
    journal.leave()
    found = list(events_in(catalog, journal.path))
    assert [ends_at for _, ends_at in found] == ends
    assert {found_text for found_text, _ in found} == {text}
    catalog.close()
