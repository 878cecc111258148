"""Opens and migrates the catalog's database, and its transactions; a cache that ends with the next write.

Several processes can open the same catalog at once; one of them migrates, the others wait for it.
"""

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, TextClause, UpdateBase, create_engine, event, inspect, text, update
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from lakeshare_server.catalog.models import StateRow
from lakeshare_server.errors import BadRequest, CatalogConflict, LakeshareError, Unavailable
from lakeshare_server.metrics import PROCESS
from lakeshare_server.settings import make_private

# The tables whose rows no recipient sees.
UNCOUNTED_TABLES = frozenset({
    "admin_keys", "audit_log", "audit_chain", "audit_journals", "usage_days", "set_locks", "async_queries",
    "token_uses", "allowances", "contracts", "ended_sessions", "webhooks", "webhook_deliveries", "audit_verifications",
})  # fmt: skip
NEXT_GENERATION = update(StateRow).values(generation=StateRow.generation + 1)
CURRENT = "SELECT generation FROM catalog_state"


def guard_writes(engine: Engine, allowed: frozenset[str]) -> Engine:
    """Refuses every write through this engine, except those to the allowed tables."""

    def refuse(_connection: Connection, statement: object, *_: Any) -> None:
        written = getattr(statement.table, "name", None) if isinstance(statement, UpdateBase) else None
        is_unknown = isinstance(statement, TextClause) and allowed
        if is_unknown or (isinstance(statement, UpdateBase) and written not in allowed):
            raise AssertionError(
                f"{written or statement} may change what recipients see: write it in Catalog.writing()"
            )

    event.listen(engine, "before_execute", refuse)
    return engine


class _SqliteConnection:
    """The connection of one thread, and the generation that it read last."""

    def __init__(self, engine: Engine) -> None:
        fairy = engine.raw_connection()
        fairy.detach()
        connection: Any = fairy.dbapi_connection  # the driver's own, without the cost of a layer
        self.execute: Callable[[str], sqlite3.Cursor] = connection.execute
        self.data_version: int = -1
        self.generation: int = -1
        self.close = weakref.finalize(self, connection.close)


class SqliteGeneration:
    """Reads the generation only if SQLite reports a commit since the last read; safe from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own = threading.local()
        self._connections: weakref.WeakSet[_SqliteConnection] = weakref.WeakSet()

    def read(self) -> int:
        """The generation of the newest committed write."""
        own: _SqliteConnection | None = getattr(self._own, "connection", None)
        if own is None or not own.close.alive:
            own = self._own.connection = _SqliteConnection(self._engine)
            self._connections.add(own)
        # This number changes for commits of other connections only; this one never writes.
        (data_version,) = own.execute("PRAGMA data_version").fetchone()
        if data_version != own.data_version:
            (own.generation,) = own.execute(CURRENT).fetchone()
            own.data_version = data_version
        return own.generation

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()


class QueriedGeneration:
    """Queries the database each time, over one connection of its own; safe from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def read(self) -> int:
        """The generation of the newest committed write."""
        with self._turn:
            try:
                return self._ask()
            except DBAPIError:
                # The database may have dropped an idle connection: a new one decides.
                return self._ask()

    def close(self) -> None:
        with self._turn:
            self._drop()

    def _ask(self) -> int:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            return int(self._connection.exec_driver_sql(CURRENT).scalar_one())
        except SQLAlchemyError:
            # A cut connection would refuse every later read.
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


MIGRATIONS = Path(__file__).with_name("migrations")
HEAD = max(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
BUSY_TIMEOUT_S = 30
WRITES = "lakeshare_writes"
NOTICE_LOSS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Classes of SQLSTATE: a failed connection, and a server that is shut down.
ENDS_CONNECTION = ("08", "57P")
# SQLite gives every reader a snapshot of its own; PostgreSQL does when asked.
READ_OPTIONS = {"postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}}
# The first revision with a floor of its own; older databases can be used by their own revision only.
COMPATIBLE_SINCE = "0018"
COMPATIBLE_FROM = "SELECT compatible_from FROM catalog_state"
# Any number that no other program uses for an advisory lock in this database.
MIGRATION_LOCK = 7_161_433
USABLE_URL = (
    "Give an SQLAlchemy URL of an installed driver, like sqlite:////folder/file.db or postgresql+psycopg://…."
)

_log = logging.getLogger(__name__)


class SchemaState(NamedTuple):
    """The migration of a database, None without tables; and the oldest one of which a lakeshare can use it."""

    revision: str | None
    compatible_from: str | None = None

    @property
    def is_newer(self) -> bool:
        return self.revision is not None and self.revision > HEAD

    @property
    def is_usable(self) -> bool:
        """Whether this lakeshare can read and write the database as it is."""
        if self.is_newer:
            return self.compatible_from is not None and self.compatible_from <= HEAD
        return self.revision == HEAD


class Catalog:
    """The database of publications, shares, recipients and requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        options = READ_OPTIONS.get(engine.dialect.name, {})
        self._reader = guard_writes(engine.execution_options(**options), frozenset())
        self._writer = engine.execution_options(**{WRITES: True})
        self._unseen_writer = guard_writes(engine.execution_options(**{WRITES: True}), UNCOUNTED_TABLES)
        is_file = engine.dialect.name == "sqlite" and bool(engine.url.database)
        self._generation = SqliteGeneration(engine) if is_file else QueriedGeneration(engine)
        # Closes the connections of a catalog without `close`.
        weakref.finalize(self, engine.dispose)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Opens a read transaction with a consistent snapshot; raises Unavailable if the database does not answer."""
        with self._reachable(), Session(self._reader) as session, session.begin():
            yield session

    @contextmanager
    def writing(self, *, seen: bool = True) -> Iterator[Session]:
        """Opens a transaction that writes, and begins the next generation if recipients can see the change (`seen`).

        Such writers take turns, on every database: the data that a writer has read is unchanged when it writes.

        Raises:
            Unavailable: the database does not answer, or another writer held it for too long.
            BadRequest: a value is larger than the database can hold.
        """
        writer = self._writer if seen else self._unseen_writer
        with self._reachable(), Session(writer) as session, session.begin():
            if seen:
                session.execute(NEXT_GENERATION)
            yield session

    @property
    def reads_generation_at_once(self) -> bool:
        """Whether `generation` takes microseconds, without a network."""
        return self.engine.dialect.name == "sqlite"

    def generation(self) -> int:
        """The number of the newest write that recipients can see; fast enough for every request. Raises Unavailable."""
        try:
            return self._generation.read()
        except (DBAPIError, PoolTimeout, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def schema_state(self) -> SchemaState:
        """The migration of the database, and whether this lakeshare can use it; raises Unavailable."""
        try:
            with self.engine.connect() as connection:
                return read_schema_state(connection)
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, PoolTimeout) as error:
            raise self._unavailable(error) from error
        except DataError as error:
            hint = "The database cannot hold it; shorten or correct it."
            raise BadRequest("a value for the catalog", str(error.orig).splitlines()[0], hint) from error
        except DBAPIError as error:
            # SQLite's error for a damaged file is of no further class.
            if not error.connection_invalidated and type(error) is not DatabaseError:
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        PROCESS.note_database_error(type(error).__name__)
        # No details of the database for callers: some have no token.
        _log.error("the catalog at %s does not answer: %s", *_describe_failure(self.engine.url, error))
        return Unavailable("the catalog does not answer", "Try again; the server's log says why.")

    def close(self) -> None:
        """Closes the connections."""
        self._generation.close()
        self.engine.dispose()


def open_catalog(url: str) -> Catalog:
    """Opens the catalog at an SQLAlchemy URL; creates its database if necessary.

    An older SQLite file is copied, then migrated. A database on a server is shared by several hosts and stays as it is.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: a newer lakeshare has migrated the database, or `lakeshare db upgrade` has to.
        Unavailable: the database cannot be reached, copied or written.
    """
    hint = "Check that the database is there and writable (LAKESHARE_DATABASE_URL, LAKESHARE_STATE_DIR)."
    catalog = Catalog(_engine(url))
    with describing_failure(catalog.engine, "opened", hint):
        with catalog.engine.connect() as connection:
            state = read_schema_state(connection)
        if state.is_usable:
            return catalog
        if state.revision is None or (database_file(url) is not None and not state.is_newer):
            migrate(catalog)
            return catalog
    catalog.engine.dispose()
    raise _conflict(state)


def open_existing_catalog(url: str) -> Catalog | None:
    """Opens the catalog at an SQLAlchemy URL as it is, None if there is none; creates and migrates nothing.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: another lakeshare has migrated the database, or this one has not migrated it yet.
        Unavailable: the database cannot be reached.
    """
    catalog = connect_catalog(url)
    if catalog is None:
        return None
    with describing_failure(catalog.engine, "opened", USABLE_URL), catalog.engine.connect() as connection:
        state = read_schema_state(connection)
    if state.is_usable:
        return catalog
    catalog.engine.dispose()
    if state.revision is None:
        return None
    raise _conflict(state)


def connect_catalog(url: str) -> Catalog | None:
    """The catalog at an SQLAlchemy URL, whatever its revision; None without a file. For what upgrades and copies."""
    file = database_file(url)
    return None if file is not None and not file.exists() else Catalog(_engine(url))


def _conflict(state: SchemaState) -> CatalogConflict:
    if state.is_newer:
        what = f"the catalog is at revision {state.revision}, this lakeshare knows up to {HEAD}"
        return CatalogConflict(what, "Use the lakeshare version that migrated it, or a newer one.")
    what = f"the catalog is at revision {state.revision}, this lakeshare needs {HEAD}"
    return CatalogConflict(what, "Run `lakeshare db upgrade`, which backs it up first.")


def new_catalog(url: str, revision: str) -> Catalog:
    """Creates an empty catalog of the migration `revision` at an SQLAlchemy URL, to restore rows of that revision.

    An existing catalog of that revision is opened as it is.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: there is a catalog of another revision, or this lakeshare does not know the revision.
        Unavailable: the database cannot be reached or written.
    """
    catalog = Catalog(_engine(url))
    with describing_failure(catalog.engine, "made", USABLE_URL):
        with catalog.engine.connect() as connection:
            existing = read_schema_state(connection).revision
        if existing is None:
            migrate(catalog, revision)
    if existing not in {None, revision}:
        catalog.engine.dispose()
        raise CatalogConflict(
            f"there is a catalog of revision {existing}, not {revision}", "Give the URL of an empty database."
        )
    return catalog


@contextmanager
def describing_failure(engine: Engine, action: str, fix: str) -> Iterator[None]:
    """Raises Unavailable, which names the database and the failed action, for its errors in the block."""
    try:
        yield
    except DatabaseError as error:
        engine.dispose()
        location, cause = _describe_failure(engine.url, error)
        raise Unavailable(f"the catalog at {location} cannot be {action}: {cause}", fix) from error


def database_file(url: str) -> Path | None:
    """The SQLite file of an SQLAlchemy URL, None for other databases; raises BadRequest for an unusable URL."""
    with _usable_url(url) as parsed:
        if parsed.get_backend_name() != "sqlite" or not parsed.database:
            return None
        return Path(parsed.database.removeprefix("file:") if "uri" in parsed.query else parsed.database)


def _describe_failure(url: URL, error: Exception) -> tuple[str, str]:
    """The URL of the database and its error, without the password and the query, which can hold secrets."""
    cause = str(getattr(error, "orig", None) or error)
    options = (value for values in url.normalized_query.values() for value in values)
    for secret in sorted(filter(None, (url.password, *options)), key=len, reverse=True):
        cause = cause.replace(secret, "…")
    return url.set(query={}).render_as_string(hide_password=True), cause


@contextmanager
def _usable_url(url: str) -> Iterator[URL]:
    try:
        yield make_url(url)
    except (ArgumentError, ValueError, TypeError, ImportError):
        # The error, and the URL after its scheme, may hold the password.
        scheme, colon, _ = url.partition(":")
        raise BadRequest("LAKESHARE_DATABASE_URL", f"{scheme}:…" if colon else "…", USABLE_URL) from None


def _engine(database_url: str) -> Engine:
    with _usable_url(database_url) as url:
        if url.get_backend_name() == "postgresql":
            return _postgresql_engine(url)
        if url.get_backend_name() != "sqlite":
            return create_engine(url, pool_pre_ping=True)
        if url.database:
            _make_for_owner(database_file(str(url)))
        # One connection for each thread of the server's pool.
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=20, max_overflow=60)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine


def _make_for_owner(database: Path | None) -> None:
    """Creates the file of a new database for its owner only; SQLite gives the files next to it the same mode."""
    if database is None or str(database) == ":memory:":
        return
    make_private(database.parent)
    if not database.exists():
        with suppress(OSError):  # SQLite reports a file that cannot be created
            os.close(os.open(database, os.O_WRONLY | os.O_CREAT, 0o600))


def _postgresql_engine(url: URL) -> Engine:
    # They detect a lost server; parameters of the URL take precedence.
    options = {name: value for name, value in NOTICE_LOSS.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20, connect_args=options)
    event.listen(engine, "connect", _prepare_postgresql)
    event.listen(engine, "handle_error", _recognise_cut)
    return engine


def _recognise_cut(context: ExceptionContext) -> None:
    """Replaces a connection that was cut while libpq reports it as busy.

    SQLAlchemy detects a cut by libpq's state only. Its ping then fails to reset `autocommit`, which hides the cause
    ("can't change 'autocommit' now"): after any failure of a ping, its connection cannot be used.
    """
    error = context.original_exception
    state = getattr(error, "sqlstate", None)
    # An error of the database has a state; without one the driver lost the connection.
    is_lost = type(error).__name__ == "OperationalError" and state is None
    if context.is_pre_ping or is_lost or str(state).startswith(ENDS_CONNECTION):
        context.is_disconnect = True


def _prepare_postgresql(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.commit()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver opens transactions late and upgrades them, which deadlocks writers: `_begin_sqlite` sends BEGIN.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    # SQLite ignores its busy timeout here: of two processes that switch to WAL at once, one gets "locked".
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def read_schema_state(connection: Connection) -> SchemaState:
    """The migration of the database of a connection, and the oldest one that can use it."""
    inspector = inspect(connection)
    if not inspector.has_table("alembic_version"):
        return SchemaState(None)
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is None or revision < COMPATIBLE_SINCE:
        return SchemaState(revision)
    return SchemaState(revision, connection.execute(text(COMPATIBLE_FROM)).scalar())


def migrate(catalog: Catalog, revision: str | None = None, *, with_copy: bool = True) -> None:
    """Brings the database to a revision, the newest by default, whole or not at all; first copies an SQLite file.

    Raises:
        CatalogConflict: the database is at a revision that this lakeshare does not know.
        Unavailable: the file cannot be copied.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    revision = revision or HEAD
    with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        state = read_schema_state(connection)
        if state.revision == revision:
            return
        if state.revision is not None and with_copy:
            copy_database_file(catalog.engine.url, state.revision)
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(MIGRATIONS))
        try:
            command.upgrade(config, revision)
        except CommandError as error:
            raise _conflict(SchemaState(state.revision or revision)) from error


def copy_path(file: Path, revision: str) -> Path:
    """Where the copy of an SQLite file is that a migration from `revision` makes: beside it."""
    return file.with_name(f"{file.name}.{revision}")


def copy_database_file(url: URL, revision: str) -> Path | None:
    """Copies a catalog's SQLite file beside it, as of its last commit, before it is migrated; None for other databases.

    Raises:
        Unavailable: it cannot be copied. There is no copy then.
    """
    file = database_file(url.render_as_string(hide_password=False))
    if file is None or not file.exists():
        return None
    copy = copy_path(file, revision)
    part = copy.with_name(f"{copy.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        part.replace(copy)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        fix = "Make room beside it, or check the folder's mode: it is migrated only with a copy of it."
        raise Unavailable(f"the catalog's file {file} cannot be copied to {copy}: {error}", fix) from error
    _log.info("copied the catalog of revision %s to %s before its migration", revision, copy)
    return copy


@contextmanager
def heartbeat(name: str, every_s: float, beat: Callable[[], bool]) -> Iterator[None]:
    """Calls `beat` in a thread during the block, until it returns False; logs errors of the database or the store."""
    stop = threading.Event()

    def keep_beating() -> None:
        while not stop.wait(every_s):
            try:
                if not beat():
                    return
            except (SQLAlchemyError, LakeshareError) as error:
                _log.warning("%s: a heartbeat failed: %s", name, error)

    thread = threading.Thread(target=keep_beating, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


ENTRIES = 4096

Value = TypeVar("Value")


class GenerationCache(Generic[Value]):
    """Values by key, all of one generation of the catalog; safe from any thread.

    `generation` is the result of `Catalog.generation()` if the caller has it already. A value that `is_over` is loaded
    again.
    """

    def __init__(
        self, catalog: Catalog, entries: int = ENTRIES, is_over: Callable[[Value], bool] = lambda _: False
    ) -> None:
        self.catalog, self.entries, self._is_over = catalog, entries, is_over
        # Replaced as a whole: a reader without the lock gets a number with its own values.
        self._values: tuple[int, dict[Hashable, Value]] = (-1, {})
        self._turn = threading.Lock()

    def peek(self, key: Hashable, generation: int | None = None) -> Value | None:
        """The value if it is cached and current; never loads, so an event loop can call it."""
        now = self.catalog.generation() if generation is None else generation
        return self._known(key, now)

    def get(self, key: Hashable, load: Callable[[], Value], generation: int | None = None) -> Value:
        """The value, loaded if it is not cached. None is not cached: unknown names fill no memory."""
        # Read before loading: after a write in between, the entry's number is old, but never its value.
        now = self.catalog.generation() if generation is None else generation
        known = self._known(key, now)
        if known is not None:
            return known
        loaded = load()
        if loaded is None:
            return loaded
        with self._turn:
            cached, values = self._values
            if now > cached:
                values = {}
                self._values = (now, values)
            if now >= cached:
                if len(values) >= self.entries and key not in values:
                    del values[next(iter(values))]
                values[key] = loaded
        return loaded

    def _known(self, key: Hashable, generation: int) -> Value | None:
        cached, values = self._values
        value = values.get(key) if cached == generation else None
        return None if value is None or self._is_over(value) else value
