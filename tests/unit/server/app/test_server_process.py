"""The server as a process: ready when it is announced, right about its health, and ended in order when stopped.

Several workers of one server: tests/unit/server/catalog/test_event_process.py.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import psutil
import pytest
import uvicorn
from sqlalchemy import text

from lakeshare_server import app
from lakeshare_server.app import create_app, make_server
from lakeshare_server.errors import Unavailable
from lakeshare_server.protocol.lines import PIECE_ROWS
from lakeshare_server.storage import SigningSession
from lakeshare_server.storage.stores import LocalStore
from tests.builders.commands import Runner
from tests.builders.events import newest_requests
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.server_process import a_process
from tests.builders.sharing import (
    FLIGHTS,
    LONG,
    LONG_FILES,
    Provider,
    a_provider,
    a_provider_of_flights,
    a_server,
    files,
    hold_second_batch,
    lines,
    share_long_table,
)
from tests.builders.waiting import wait_until

ICEBERG = "/shares/flights/schemas/lake/tables/iceberg/query"


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider_of_flights(tmp_path)


def test_a_stopped_process_has_answered_and_written_everything_and_its_urls_are_good_at_another(
    provider: Provider,
) -> None:
    token = provider.recipient()
    with a_process(provider) as (process, one), a_process(provider) as (_, other):
        with httpx.Client(base_url=one, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
            answers = [files(client.post(f"{FLIGHTS}/query")) for _ in range(20)]
        assert [len(answer) for answer in answers] == [3] * 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        # Before the other process records a request.
        events = newest_requests(provider.catalog, 100)
        url = answers[0][0]["url"]
        assert url.startswith(one)
        assert httpx.get(url.replace(one, other)).status_code == 200
    assert sorted(event.kind for event in events) == ["end"] * 20 + ["request"] * 20


def test_a_port_that_is_taken_is_said_in_a_sentence(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    mask = os.umask(0o077)  # `serve` sets it for its process
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            ended = Runner(monkeypatch, capsys).ended("serve", "--port", port)
    finally:
        os.umask(mask)
    assert ended.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.errors
    assert "LAKESHARE_PORT" in ended.errors
    assert "Traceback" not in ended.errors


def test_it_is_not_ready_while_the_catalog_is_not_what_it_needs(provider: Provider) -> None:
    with a_server(provider) as server:
        root = server.url.removesuffix("/delta-sharing")
        with provider.catalog.writing() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
        answer = httpx.get(f"{root}/readyz")
        assert answer.status_code == 503
        assert "revision 0000" in answer.json()["reasons"][0]
        assert httpx.get(f"{root}/healthz").status_code == 200


def lose_indexes(provider: Provider) -> None:
    for index in provider.settings.index_dir.glob("*.arrow"):
        index.unlink()


def test_a_lost_index_is_built_again_from_the_pinned_version(provider: Provider, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        before = [without_urls(file) for file in files(client.post(f"{FLIGHTS}/query"))]
    append_delta(table, some_rows(days=1))
    lose_indexes(provider)
    with a_server(provider) as server, server.client(provider.recipient("eve")) as client:
        after = [without_urls(file) for file in files(client.post(f"{FLIGHTS}/query"))]
    assert len(before) == 3
    assert after == before


def without_urls(file: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in file.items() if key not in ("url", "expirationTimestamp")}


def no_log(table: Path) -> None:
    for commit in (table / "_delta_log").iterdir():
        commit.unlink()


def another_table(table: Path) -> None:
    rmtree(table)
    a_delta_table(table)


@pytest.mark.parametrize(
    ("lose", "why"), [(no_log, "cannot be read any more"), (another_table, "another table is in its place")]
)
def test_a_lost_index_that_cannot_be_built_again_is_the_tables_fault(
    provider: Provider,
    tmp_path: Path,
    lose: Callable[[Path], None],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """protocol §0.19: a lasting fault is 4xx. The provider's log names the table; recipients learn no place."""
    lose_indexes(provider)
    lose(tmp_path / "table")
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        answer = client.post(f"{FLIGHTS}/query")
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "RESOURCE_DOES_NOT_EXIST")
        message = answer.json()["message"]
        assert "table files missing: version 0 has lost its file index" in message
        assert why in message
        assert str(tmp_path) not in message
        assert client.get(f"{FLIGHTS}/version").status_code == 200
    assert f"publication 0 of lake.flights at {tmp_path / 'table'} has lost its file index" in caplog.text


def test_a_lost_index_whose_store_does_not_answer_is_503(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """protocol §0.19: it passes, so clients may try again."""

    def fail(*_: object) -> None:
        raise Unavailable(f"{tmp_path} does not answer as it should", "Try again later.")

    publish_iceberg(provider, tmp_path)
    lose_indexes(provider)
    monkeypatch.setattr(LocalStore, "read", fail)
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        answer = client.post(ICEBERG)
    assert answer.status_code == 503
    assert "the table's store does not answer" in answer.json()["message"]
    assert str(tmp_path) not in answer.json()["message"]
    assert f"{tmp_path} does not answer as it should" in caplog.text


def publish_iceberg(provider: Provider, folder: Path) -> None:
    provider.publish_iceberg("lake.iceberg", an_iceberg_table(folder / "warehouse").state())
    provider.share("lake.iceberg")


def test_a_lost_index_of_a_publication_that_pins_nothing_is_the_tables_fault(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_iceberg(provider, tmp_path)
    lose_indexes(provider)
    with provider.catalog.writing() as session:
        session.execute(text("UPDATE publications SET metadata_location = NULL"))
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        answer = client.post(ICEBERG)
    assert answer.status_code == 400
    assert "table files missing" in answer.json()["message"]
    assert "It pins no snapshot" in caplog.text


def test_the_prefix_is_a_setting(tmp_path: Path) -> None:
    provider = a_provider_of_flights(tmp_path, endpoint="/")
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        assert server.url.count("/") == 2
        assert client.get("/shares").status_code == 200
        [first, *_] = files(client.post(f"{FLIGHTS}/query"))
        assert httpx.get(first["url"]).status_code == 200


def test_urls_say_how_recipients_reach_the_server(provider: Provider) -> None:
    settings = provider.settings.model_copy(update={"public_url": "https://share.example/"})
    app = create_app(settings)
    headers = {"Authorization": f"Bearer {provider.recipient()}"}

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inside") as client:
            return await client.post(f"/delta-sharing{FLIGHTS}/query", headers=headers)

    urls = [file["url"] for file in files(asyncio.run(ask()))]
    app.state.app_state.audit.close()
    assert all(url.startswith("https://share.example/delta-sharing/files/") for url in urls)


@pytest.mark.parametrize("broken", ["catalog", "key"])
def test_it_does_not_start_without_its_state(provider: Provider, broken: str) -> None:
    provider.catalog.close()
    if broken == "catalog":
        for file in provider.settings.state_dir.glob("lakeshare.db*"):
            file.unlink()
        (provider.settings.state_dir / "lakeshare.db").write_text("not a database at all" * 100)
    else:
        (provider.settings.state_dir / "signing.key").write_text("short")
    with pytest.raises(Unavailable):
        make_server(provider.settings)


def test_a_worker_that_does_not_reply_is_replaced_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not after uvicorn's 5 seconds: on a busy host, importing the application takes longer."""
    assert app.WORKER_ANSWER_S == 30
    monkeypatch.setattr(app, "WORKER_ANSWER_S", 1)
    with socket.socket() as listening, pytest.MonkeyPatch.context() as of_handlers:
        listening.bind(("127.0.0.1", 0))
        of_handlers.setattr(signal, "signal", lambda *_: None)
        supervisor = app._Supervisor(uvicorn.Config("json:dumps", workers=1, lifespan="off"), [listening])
        supervisor.init_processes()
        try:
            wait_until(lambda: supervisor.processes[0].ping(0.1))
            first = supervisor.processes[0].pid
            os.kill(first, signal.SIGSTOP)
            supervisor.keep_subprocess_alive()
            assert supervisor.processes[0].pid == first
            wait_until(lambda: supervisor.keep_subprocess_alive() or supervisor.processes[0].pid != first)
            assert not psutil.pid_exists(first)
        finally:
            supervisor.terminate_all()
            supervisor.join_all()


@pytest.fixture
def failing_signer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece of an answer cannot be signed."""
    sign = SigningSession.sign
    calls: list[int] = []

    def sign_once(self: SigningSession, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) % 2 == 0:
            raise OSError("the key is gone")
        return sign(self, *arguments)

    monkeypatch.setattr(SigningSession, "sign", sign_once)


@pytest.fixture
def long_table(provider: Provider) -> None:
    share_long_table(provider)


@pytest.mark.usefixtures("failing_signer", "long_table")
def test_an_answer_that_breaks_off_does_not_look_whole(provider: Provider) -> None:
    with (
        a_server(provider) as server,
        server.client(provider.recipient()) as client,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        client.post(f"{LONG}/query")
    row, _ = newest_requests(provider.catalog, 10)
    assert (row.status, row.error_code, row.files) == (200, "INTERNAL_ERROR", PIECE_ROWS)


@pytest.mark.usefixtures("failing_signer", "long_table")
def test_whoever_reads_the_last_line_is_told_that_the_answer_broke_off(provider: Provider) -> None:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        *_, last = lines(client.post(f"{LONG}/query", json={"maxFiles": 5000}))
    assert "broke off" in last["endStreamAction"]["errorMessage"]
    assert last["endStreamAction"]["httpStatusErrorCode"] == 500


@pytest.mark.usefixtures("long_table")
def test_the_first_files_leave_before_the_last_are_signed(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = hold_second_batch(monkeypatch)
    with (
        a_server(provider) as server,
        server.client(provider.recipient()) as client,
        client.stream("POST", f"{LONG}/query") as answer,
    ):
        arrived = answer.iter_lines()
        first = [next(arrived) for _ in range(PIECE_ROWS + 2)]
        go_on.set()
        rest = list(arrived)
    assert '"protocol"' in first[0]
    assert len(rest) == LONG_FILES - PIECE_ROWS


@pytest.mark.parametrize(("life_s", "warns"), [(60, True), (900, True), (901, False), (3600, False)])
def test_a_life_of_urls_that_breaks_long_spark_jobs_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, life_s: int, warns: bool
) -> None:
    provider = a_provider(tmp_path, url_life_s=life_s)
    server, listening = make_server(provider.settings)
    listening.close()
    server.config.app.state.app_state.catalog.close()  # type: ignore[union-attr]
    assert (f"LAKESHARE_URL_LIFE_S is {life_s}" in caplog.text) == warns


def test_small_writes_are_sent_at_once_by_the_event_loop_of_an_installation_without_uvloop(
    provider: Provider,
) -> None:
    """Otherwise the kernel holds the body of each response back for 40 ms, until the client confirms the headers."""

    async def read_option(listening: socket.socket) -> int:
        option: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            option.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            writer.close()
            return await asyncio.wait_for(option, 10)

    _, listening = make_server(provider.settings)
    with listening:
        assert asyncio.run(read_option(listening)) == 1
