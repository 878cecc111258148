"""A database that is held, gone or too small for a value is said so in a sentence without any secret."""

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, FollowedTables, Ledger, database, open_catalog
from lakeshare_server.errors import BadRequest, Unavailable
from tests.builders import plain_http
from tests.builders.publications import a_publication
from tests.builders.sharing import a_provider, a_server
from tests.integration.postgres_server import PostgresServer


def test_a_writer_that_another_one_holds_up_for_too_long_says_so(
    catalog: Catalog, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.3)
    waiting = open_catalog(catalog_url)
    with catalog.writing():
        began = time.monotonic()
        with pytest.raises(Unavailable, match="Try again"):
            FollowedTables(waiting).add("a.b", "/data", 1)
        assert 0.2 < time.monotonic() - began < 10
    assert FollowedTables(waiting).add("a.b", "/data", 1).table == "a.b"
    waiting.close()


def test_readers_wait_for_no_writer(catalog: Catalog) -> None:
    Ledger(catalog).append([a_publication()])
    with catalog.writing() as session:
        session.execute(text("DELETE FROM publications"))
        assert len(Ledger(catalog).history("lake.flights")) == 1
        assert catalog.generation() == 2
    assert Ledger(catalog).history("lake.flights") == []


def test_a_damaged_file_is_unavailable(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    provider.catalog.engine.dispose()
    file = provider.settings.state_dir / "lakeshare.db"
    file.write_bytes(file.read_bytes()[:4096].ljust(file.stat().st_size, b"x"))
    with pytest.raises(Unavailable, match="does not answer"):
        Ledger(provider.catalog).tables()


def test_a_server_whose_connections_are_all_taken_is_unavailable(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog.engine.pool, "_timeout", 0.1)
    taken = 0

    def take_all() -> None:
        nonlocal taken
        with ExitStack() as looks:
            while True:
                looks.enter_context(catalog.reading()).connection()
                taken += 1

    with pytest.raises(Unavailable, match="does not answer"):
        take_all()
    assert taken >= 20
    assert Ledger(catalog).tables() == []


@pytest.mark.parametrize("query", ["", "?sslpassword=hush", "?connect_timeout=hush"])
def test_a_database_that_is_not_there_is_named_without_its_secrets(query: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(Unavailable, match="LAKESHARE_DATABASE_URL") as refused:
            open_catalog(f"postgresql+psycopg://lake:hush@127.0.0.1:{port}/lakeshare{query}")
    assert "hush" not in str(refused.value)
    assert str(port) in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nonsense", "…"),
        ("postgresql:/lake:hush@host/lake", "postgresql:…"),
        ("postgresql+psycopg://lake:hush@host:port/lake", "postgresql+psycopg:…"),
        ("oracle://lake:hush@host/lake", "oracle:…"),
        ("tablecloth://lake:hush@host/lake", "tablecloth:…"),
        ("sqlite:///lake.db?timeout=hush", "sqlite:…"),
        ("sqlite://", "sqlite:…"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_secrets(
    url: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest) as refused:
        open_catalog(url)
    assert (refused.value.field, refused.value.value) == ("LAKESHARE_DATABASE_URL", shown)
    assert "hush" not in "".join(traceback.format_exception(refused.value))


def test_callers_learn_nothing_of_a_database_that_does_not_answer(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = postgres.new_database()
    url = plain.replace("lakeshare@", "lakeshare:hush@") + "?application_name=hush"
    provider = a_provider(tmp_path, database_url=url)
    with a_server(provider) as server, server.client(None) as stranger:
        postgres.drop_database(plain)
        asked = stranger.get("/shares")
        ready = plain_http.get(f"{server.url.removesuffix('/delta-sharing')}/readyz")
    told = "the catalog does not answer. Try again; the server's log says why."
    assert (asked.status_code, asked.json()["message"]) == (503, told)
    assert (ready.status_code, ready.json()["reasons"]) == (503, [told])
    name = plain.rpartition("/")[2]
    assert f"/{name} does not answer: " in caplog.text
    assert f'database "{name}" does not exist' in caplog.text
    assert "hush" not in caplog.text
    provider.catalog.close()


def test_a_database_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.NOTICE_LOSS, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            open_catalog(f"postgresql+psycopg://lake@127.0.0.1:{silent.getsockname()[1]}/lakeshare")
        assert time.monotonic() - began < 20


def test_a_value_that_postgresql_cannot_hold_is_refused_in_a_sentence(postgres_url: str) -> None:
    ledger = Ledger(open_catalog(postgres_url))
    with pytest.raises(BadRequest, match="too long"):
        ledger.append([a_publication(run_id="x" * 300)])
    assert ledger.tables() == []
    ledger.catalog.close()


def test_a_server_that_comes_back_is_used_again(catalog: Catalog, catalog_url: str) -> None:
    """Every pooled connection is cut, as by a restart of the database."""
    Ledger(catalog).append([a_publication()])
    readers = [threading.Thread(target=Ledger(catalog).tables) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if catalog.engine.dialect.name == "postgresql":
        other = open_catalog(catalog_url)
        with other.engine.connect() as connection:
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.execute(text(f"{cut} AND datname = current_database()"))
        other.close()
    assert Ledger(catalog).tables() == ["lake.flights"]
    assert Ledger(catalog).append([a_publication()])[0].version == 1


class CutConnections:
    """A catalog whose connections are ended so that the driver notices before libpq does.

    The driver raises "connection socket closed" while libpq still takes the connection for a busy one.
    """

    def __init__(self, url: str) -> None:
        self.catalog = open_catalog(url)
        self.cuts_new = False
        self._made: list[Any] = []
        event.listen(self.catalog.engine, "connect", self._connected)
        self.catalog.engine.dispose()  # what was connected before is not known here

    def cut(self) -> None:
        """End every connection."""
        reader, writer = os.pipe()
        os.close(reader)
        for connection in self._made:
            if not connection.closed:
                os.dup2(writer, connection.pgconn.socket)
        os.close(writer)

    def _connected(self, connection: Any, _record: object) -> None:
        self._made.append(connection)
        if self.cuts_new:
            self.cut()


@pytest.fixture
def cutting(postgres_url: str) -> Iterator[CutConnections]:
    cutting = CutConnections(postgres_url)
    yield cutting
    cutting.catalog.close()


def test_pooled_connections_are_replaced_however_their_end_is_noticed(cutting: CutConnections) -> None:
    ledger = Ledger(cutting.catalog)
    ledger.append([a_publication()])
    for version in (1, 2):
        cutting.cut()
        assert ledger.tables() == ["lake.flights"]
        cutting.cut()
        assert ledger.append([a_publication()])[0].version == version


def test_the_generation_is_read_again_after_its_connection_was_cut_twice(cutting: CutConnections) -> None:
    before = cutting.catalog.generation()
    cutting.cut()
    assert cutting.catalog.generation() == before
    cutting.cut()
    cutting.cuts_new = True
    with pytest.raises(Unavailable):
        cutting.catalog.generation()
    cutting.cuts_new = False
    assert cutting.catalog.generation() == before


def test_a_connection_cut_within_a_transaction_is_unavailable_and_the_next_transaction_works(
    cutting: CutConnections,
) -> None:
    def is_cut_within(begin: Callable[[], AbstractContextManager[Session]]) -> None:
        with begin() as session:
            session.execute(select(1))
            cutting.cut()
            session.execute(select(1))

    for begin in (cutting.catalog.reading, partial(cutting.catalog.writing, seen=False)):
        with pytest.raises(Unavailable):
            is_cut_within(begin)
        assert Ledger(cutting.catalog).tables() == []
