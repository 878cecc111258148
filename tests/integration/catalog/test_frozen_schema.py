"""The schema of a migrated PostgreSQL database stays as its snapshot; that of SQLite is with the unit tests."""

from lakeshare_server.catalog import open_catalog
from tests.builders.database_schema import schema_lines
from tests.builders.snapshots import check_section


def test_schema_of_a_migrated_postgresql_database(postgres_url: str) -> None:
    catalog = open_catalog(postgres_url)
    try:
        check_section("database.txt", "PostgreSQL", "\n".join(schema_lines(catalog.engine)))
    finally:
        catalog.close()
