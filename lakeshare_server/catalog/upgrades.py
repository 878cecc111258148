"""What upgrades and checks a catalog's database: backup, migration, pending migrations, and schema drift."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from lakeshare_server.catalog import database
from lakeshare_server.catalog.database import Catalog, SchemaState, connect_catalog, read_schema_state
from lakeshare_server.catalog.models import Base
from lakeshare_server.catalog.transfer import export_catalog
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import make_private


class Upgrade(NamedTuple):
    """Revisions before and after an upgrade, and the backup of the state before; None if nothing was migrated."""

    before: str | None
    after: str
    backup: Path | None


def upgrade_catalog(url: str, backups: Path | None, report: Callable[[str], None]) -> Upgrade:
    """Backs up a catalog and migrates it to the revision of this lakeshare; creates it where there is none.

    An SQLite file is copied beside it. Other databases are exported into the folder `backups`, with None they are not.

    Raises:
        CatalogConflict: a newer lakeshare has migrated the database.
        BadRequest: the backup cannot be written. Nothing is migrated then.
        Unavailable: the database cannot be reached, copied or written.
    """
    catalog = connect_catalog(url)
    if catalog is None:
        database.new_catalog(url, database.HEAD).close()
        return Upgrade(None, database.HEAD, None)
    with closing(catalog):
        before = _read_state(catalog)
        if before.is_usable:
            return Upgrade(before.revision, before.revision or database.HEAD, None)
        backup = None
        if before.revision is not None and not before.is_newer:
            backup = _back_up(catalog, before.revision, backups, report)
        database.migrate(catalog)
    return Upgrade(before.revision, database.HEAD, backup)


def _read_state(catalog: Catalog) -> SchemaState:
    hint = "Check LAKESHARE_DATABASE_URL and LAKESHARE_STATE_DIR."
    with database.describing_failure(catalog.engine, "read", hint), catalog.engine.connect() as connection:
        return read_schema_state(connection)


def _back_up(
    catalog: Catalog, revision: str, backups: Path | None, report: Callable[[str], None]
) -> Path | None:
    file = database.database_file(catalog.engine.url.render_as_string(hide_password=False))
    if file is not None:
        return database.copy_path(file, revision)  # `migrate` makes it while nothing writes
    if backups is None:
        return None
    try:
        make_private(backups)
    except OSError as error:
        hint = f"Give a folder that can be written ({error.strerror})."
        raise BadRequest("--backups", str(backups), hint) from error
    path = backups / f"catalog-{revision}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    export_catalog(catalog, path, report)
    return path


@dataclass(frozen=True)
class PendingMigration:
    revision: str
    title: str


@dataclass(frozen=True)
class DatabaseState:
    """A database beside this lakeshare; `problems` are differences from the schema, and damage that SQLite finds."""

    location: str
    lakeshare: str
    expected: str
    revision: str | None
    is_usable: bool
    summary: str
    pending: tuple[PendingMigration, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NO_CATALOG = "no catalog: `lakeshare db upgrade`, or the first start of a server, creates it"


def check_catalog(url: str) -> DatabaseState:
    """Compares a database with this lakeshare; changes nothing. Raises BadRequest and Unavailable."""
    catalog = connect_catalog(url)
    if catalog is None:
        return _describe(str(database.database_file(url)), SchemaState(None), ())
    with closing(catalog):
        state = _read_state(catalog)
        location = catalog.engine.url.set(query={}).render_as_string(hide_password=True)
        problems: tuple[str, ...] = ()
        if state.revision is not None:
            hint = "Check its disk, or restore a backup."
            with (
                database.describing_failure(catalog.engine, "checked", hint),
                catalog.engine.connect() as connection,
            ):
                problems = (*_find_damage(connection), *_find_drift(connection))
        return _describe(location, state, problems)


def _describe(location: str, state: SchemaState, problems: tuple[str, ...]) -> DatabaseState:
    if state.revision is None:
        summary = NO_CATALOG
    elif state.revision == database.HEAD:
        summary = "current"
    elif not state.is_newer:
        summary = "older: run `lakeshare db upgrade`"
    elif state.is_usable:
        summary = f"newer; releases from revision {state.compatible_from} can use it"
    else:
        summary = "newer, and this lakeshare cannot use it: install the release that migrated it"
    return DatabaseState(
        location=location,
        lakeshare=version("lakeshare"),
        expected=database.HEAD,
        revision=state.revision,
        is_usable=state.is_usable,
        summary=summary,
        pending=() if state.is_newer else _list_pending(state.revision),
        problems=problems,
    )


def _list_pending(revision: str | None) -> tuple[PendingMigration, ...]:
    config = Config()
    config.set_main_option("script_location", str(database.MIGRATIONS))
    scripts = reversed(list(ScriptDirectory.from_config(config).walk_revisions()))
    return tuple(
        PendingMigration(script.revision, script.doc.partition("\n")[0])
        for script in scripts
        if revision is None or script.revision > revision
    )


def _find_damage(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []
    found = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
    lines = [
        line for text in found for line in text.splitlines() if line != "ok" and not line.startswith("***")
    ]
    damage = [f"the file is damaged: {line}. Restore a backup" for line in lines]
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(10)
    return damage + [f"a row of {row[0]} refers to a row of {row[2]} that is missing" for row in orphans]


def _find_drift(connection: Connection) -> list[str]:
    """What differs from the schema of this revision; of other revisions nothing is known here."""
    if read_schema_state(connection).revision != database.HEAD:
        return []
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    differences = compare_metadata(context, Base.metadata)
    return [f"the schema differs: {_name(difference)}" for difference in differences]


def _name(difference: Any) -> str:
    if isinstance(difference, list):
        return "; ".join(map(_name, difference))
    kind, *parts = difference
    return f"{kind} {' '.join(str(getattr(part, 'name', part)) for part in parts if part is not None)}"
