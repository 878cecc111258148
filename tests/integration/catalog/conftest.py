"""Every test of the catalog runs on SQLite and on PostgreSQL, each time in a copy of a migrated database."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.catalog import Catalog, database, open_catalog
from tests.builders import applied_files
from tests.builders.database_schema import MIGRATE, copy_migrated_database
from tests.integration.postgres_server import PostgresServer


@pytest.fixture(autouse=True)
def real_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrations run, which other tests copy the result of."""
    monkeypatch.setattr(database, "migrate", MIGRATE)


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a migrated database without rows, which nothing is connected to."""
    url = postgres.new_database()
    open_catalog(url).close()
    return url.rpartition("/")[2]


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A migrated database without rows."""
    url = postgres.new_database(postgres_template)
    yield url
    postgres.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A migrated database without rows."""
    return copy_migrated_database(tmp_path / "state" / "lakeshare.db")


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    """A migrated database without rows, once of each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state' / 'lakeshare.db'}"
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def other_url(request: pytest.FixtureRequest, tmp_path: Path, catalog_url: str) -> Iterator[str]:
    """A database without tables, of the other kind than the catalog's."""
    if not catalog_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'elsewhere' / 'lakeshare.db'}"
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def catalog(catalog_url: str) -> Iterator[Catalog]:
    opened = open_catalog(catalog_url)
    yield opened
    opened.close()


@pytest.fixture
def other_catalog(tmp_path: Path) -> Iterator[Catalog]:
    """An empty one beside the catalog."""
    opened = open_catalog(copy_migrated_database(tmp_path / "other" / "lakeshare.db"))
    yield opened
    opened.close()


@pytest.fixture
def said(tmp_path: Path) -> Callable[..., Mapping[Any, Any]]:
    """What a file of some text wants."""
    return partial(applied_files.said, tmp_path)
