"""The schema of a database as text: tables, columns, keys, indexes, checks, triggers, functions, sequences.

And copies of an SQLite database that has it: migrating one takes thirty times as long as copying it.
"""

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, inspect, text

from lakeshare_server.catalog import Catalog, database, open_catalog
from lakeshare_server.catalog.database import database_file
from lakeshare_server.settings import make_private

TRIGGERS = {
    "sqlite": "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY 1, 2",
    "postgresql": "SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t "
    "JOIN pg_class c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal ORDER BY 1, 2",
}
FUNCTIONS = {
    "postgresql": "SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc p "
    "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'public' ORDER BY 1"
}
SEQUENCES = {"postgresql": "SELECT sequencename, data_type FROM pg_sequences ORDER BY 1"}
VIEWS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'view' ORDER BY 1",
    "postgresql": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public' ORDER BY 1",
}
EMPTY = ("", "None", "[]", "{}")
# Words behind a table's columns, and AUTOINCREMENT, which inspection does not give.
OPTIONS = re.compile(r"AUTOINCREMENT|WITHOUT ROWID|\bSTRICT\b")


def copy_migrated_database(file: Path) -> str:
    """Write a migrated SQLite database without rows, with the modes of one that is opened for the first time.

    Returns:
        Its SQLAlchemy URL.
    """
    make_private(file.parent)
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(_migrated())
    return f"sqlite:///{file}"


def open_migrated(url: str) -> Catalog:
    """Open the catalog at an SQLAlchemy URL. A new SQLite file is a copy of a migrated one."""
    file = database_file(url)
    if file is not None and not file.exists():
        copy_migrated_database(file)
    return open_catalog(url)


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lakeshare.db"
        catalog = Catalog(database._engine(f"sqlite:///{file}"))
        MIGRATE(catalog)
        catalog.close()
        return file.read_bytes()


MIGRATE, SHIPPED = database.migrate, (database.MIGRATIONS, database.HEAD)


def migrate_by_copy(catalog: Catalog, revision: str | None = None, *, with_copy: bool = True) -> None:
    """`migrate`, but a new SQLite database gets the schema and rows of a migrated one, also in one transaction."""
    is_newest = revision is None and (database.MIGRATIONS, database.HEAD) == SHIPPED
    if is_newest and catalog.engine.dialect.name == "sqlite":
        with catalog.engine.execution_options(**{database.WRITES: True}).begin() as connection:
            if not connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
                for statement in _statements():
                    connection.exec_driver_sql(statement)
                return
    MIGRATE(catalog, revision, with_copy=with_copy)


@cache
def _statements() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lakeshare.db"
        file.write_bytes(_migrated())
        with closing(sqlite3.connect(file)) as connection:
            return [line for line in connection.iterdump() if line not in {"BEGIN TRANSACTION;", "COMMIT;"}]


MIGRATION = '''"""A later one."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{next}", "{head}", None, None


def upgrade() -> None:
    {statement}
'''


def add_migration(folder: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> str:
    """Let this process be a newer lakeshare, with one more migration; returns its revision."""
    head = database.HEAD
    revision = f"{int(head) + 1:04}"
    shutil.copytree(database.MIGRATIONS, folder)
    text = MIGRATION.format(next=revision, head=head, statement=statement)
    (folder / "versions" / f"{revision}_later.py").write_text(text)
    monkeypatch.setattr(database, "MIGRATIONS", folder)
    monkeypatch.setattr(database, "HEAD", revision)
    return revision


def schema_lines(engine: Engine) -> list[str]:
    """The schema, sorted; the order of columns is not part of it."""
    with engine.connect() as connection:
        return [*_tables(connection), *_others(connection)]


def _tables(connection: Connection) -> Iterator[str]:
    inspector = inspect(connection)
    dialect = connection.dialect
    for table in sorted(inspector.get_table_names()):
        yield f"table {table}{_options(connection, table)}"
        for column in sorted(inspector.get_columns(table), key=lambda one: one["name"]):
            null = "null" if column["nullable"] else "not null"
            default = f" default {column['default']}" if column.get("default") is not None else ""
            identity = " identity" if column.get("identity") else ""
            yield f"  {column['name']} {column['type'].compile(dialect)} {null}{default}{identity}"
        key = inspector.get_pk_constraint(table)
        yield f"  primary key {key.get('name') or ''}({', '.join(key['constrained_columns'])})"
        others: list[str] = []
        for foreign in inspector.get_foreign_keys(table):
            others.append(
                f"foreign key {foreign['name'] or ''}({', '.join(foreign['constrained_columns'])}) references "
                f"{foreign['referred_table']}({', '.join(foreign['referred_columns'])}) {foreign['options'] or ''}"
            )
        for unique in inspector.get_unique_constraints(table):
            others.append(f"unique {unique['name'] or ''}({', '.join(unique['column_names'])})")
        for check in inspector.get_check_constraints(table):
            others.append(f"check {check['name'] or ''}({_on_one_line(check['sqltext'])})")
        for index in inspector.get_indexes(table):
            if index.get("duplicates_constraint"):
                continue
            given = {
                name: str(value)
                for name, value in index.get("dialect_options", {}).items()
                if str(value) not in EMPTY
            }
            columns = index.get("expressions") or index["column_names"]
            kind = "unique index" if index["unique"] else "index"
            others.append(f"{kind} {index['name']}({', '.join(map(str, columns))}) {given or ''}")
        yield from (f"  {line.rstrip()}" for line in sorted(others))


def _options(connection: Connection, table: str) -> str:
    if connection.dialect.name != "sqlite":
        return ""
    sql = connection.scalar(
        text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :t"), {"t": table}
    )
    return "".join(f" {word.lower()}" for word in sorted(set(OPTIONS.findall(str(sql)))))


def _others(connection: Connection) -> Iterator[str]:
    dialect = connection.dialect.name
    kinds = (("view", VIEWS), ("trigger of", TRIGGERS), ("function", FUNCTIONS), ("sequence", SEQUENCES))
    for kind, queries in kinds:
        for row in connection.execute(text(queries[dialect])) if dialect in queries else ():
            yield f"{kind} {': '.join(_on_one_line(value) for value in row)}"


def _on_one_line(value: Any) -> str:
    return " ".join(str(value).split())
