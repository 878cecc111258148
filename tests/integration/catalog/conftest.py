"""Every test of the catalog runs on SQLite and on PostgreSQL, each time in a database of its own."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders import applied_files
from tests.integration.postgres_server import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state' / 'lakeshare.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    """An empty database, once of each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def catalog(catalog_url: str) -> Iterator[Catalog]:
    opened = open_catalog(catalog_url)
    yield opened
    opened.close()


@pytest.fixture
def other_catalog(tmp_path: Path) -> Iterator[Catalog]:
    """An empty one beside the catalog."""
    opened = open_catalog(f"sqlite:///{tmp_path / 'other' / 'lakeshare.db'}")
    yield opened
    opened.close()


@pytest.fixture
def said(tmp_path: Path) -> Callable[..., Mapping[Any, Any]]:
    """What a file of some text wants."""
    return partial(applied_files.said, tmp_path)
