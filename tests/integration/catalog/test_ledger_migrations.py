"""The migrations make exactly what the models say, in one step."""

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.catalog import database as database_module
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.catalog.models import Base
from lakeshare_server.errors import BadRequest, Unavailable


def migrations(**attributes: Connection) -> Config:
    config = Config(attributes=dict(attributes))
    config.set_main_option("script_location", str(database_module.MIGRATIONS))
    return config


def test_the_migrations_and_the_models_agree(catalog: Catalog) -> None:
    with catalog.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_newest_migration_is_the_one_the_code_expects() -> None:
    assert ScriptDirectory.from_config(migrations()).get_heads() == [HEAD]


def test_the_migrations_can_be_taken_back_and_made_again(empty_url: str) -> None:
    with open_catalog(empty_url).writing() as session:
        connection = session.connection()
        command.downgrade(migrations(connection=connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    assert open_catalog(empty_url).schema_state() == (HEAD, "0018")


def test_opening_again_changes_nothing(empty_url: str) -> None:
    assert open_catalog(empty_url).schema_state() == open_catalog(empty_url).schema_state() == (HEAD, "0018")


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "lakeshare.db"
    file.write_text("not a database, and longer than the header of one " * 100)
    with pytest.raises(Unavailable, match="cannot be opened"):
        open_catalog(f"sqlite:///{file}")
    assert file.read_text().startswith("not a database")


def test_a_url_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(BadRequest, match="LAKESHARE_DATABASE_URL"):
        open_catalog("nonsense")
