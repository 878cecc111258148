"""A database that is held, gone or too small for a value is said so in a sentence without any secret."""

import socket
import threading
import time
from contextlib import ExitStack

import pytest
from sqlalchemy import text

from lakeshare_server.catalog import Catalog, FollowedTables, Ledger, database, open_catalog
from lakeshare_server.errors import BadRequest, Unavailable
from tests.builders.publications import a_publication


def test_a_writer_that_another_one_holds_up_for_too_long_says_so(
    catalog: Catalog, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.3)
    waiting = open_catalog(catalog_url)
    with catalog.writing():
        began = time.monotonic()
        with pytest.raises(Unavailable, match="a lock or a full disk passes"):
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


def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(Unavailable, match="LAKESHARE_DATABASE_URL") as refused:
            open_catalog(f"postgresql+psycopg://lake:hush@127.0.0.1:{port}/lakeshare")
    assert "hush" not in str(refused.value)
    assert str(port) in str(refused.value)


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
