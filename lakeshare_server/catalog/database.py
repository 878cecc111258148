"""Opening the catalog: engine, transactions, and its schema brought up to date.

Several processes may open the same catalog at once; one of them migrates, the others wait for it.
"""

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

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

from lakeshare_server.catalog.models import (
    AdminKeyRow,
    AllowanceRow,
    AsyncQueryRow,
    AuditChainRow,
    AuditJournalRow,
    AuditRow,
    SetLockRow,
    StateRow,
    TokenUseRow,
    UsageRow,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, Unavailable
from lakeshare_server.settings import make_private

UNCOUNTED_TABLES = frozenset(
    model.__tablename__
    for model in (
        AdminKeyRow,
        AuditRow,
        AuditChainRow,
        AuditJournalRow,
        SetLockRow,
        AsyncQueryRow,
        TokenUseRow,
        AllowanceRow,
        UsageRow,
    )
)
NEXT_GENERATION = update(StateRow).values(generation=StateRow.generation + 1)
CURRENT = "SELECT generation FROM catalog_state"


class GenerationReader(Protocol):
    """Something that reads the generation; safe from any thread."""

    def read(self) -> int:
        """The generation of the newest committed write."""

    def close(self) -> None:
        """Give the connections back."""


def generation_reader(engine: Engine) -> GenerationReader:
    """The cheapest way to read the generation of this database."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        return SqliteGeneration(engine)
    return QueriedGeneration(engine)


def guard_writes(engine: Engine, allowed: frozenset[str]) -> Engine:
    """Make every write through this engine but those to the allowed tables an error."""

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
    """One thread's own connection, and the generation it saw last."""

    def __init__(self, engine: Engine) -> None:
        fairy = engine.raw_connection()
        fairy.detach()
        connection: Any = fairy.dbapi_connection  # the driver's own, without a layer's cost
        self.execute: Callable[[str], sqlite3.Cursor] = connection.execute
        self.data_version: int = -1
        self.generation: int = -1
        self.close = weakref.finalize(self, connection.close)


class SqliteGeneration:
    """Asks SQLite whether anything was committed since the last look, and only then for the generation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own = threading.local()
        self._eyes: weakref.WeakSet[_SqliteConnection] = weakref.WeakSet()

    def read(self) -> int:
        """The generation of the newest committed write."""
        eye: _SqliteConnection | None = getattr(self._own, "eye", None)
        if eye is None or not eye.close.alive:
            eye = self._own.eye = _SqliteConnection(self._engine)
            self._eyes.add(eye)
        # It moves for commits of other connections only; this one never writes.
        (data_version,) = eye.execute("PRAGMA data_version").fetchone()
        if data_version != eye.data_version:
            (eye.generation,) = eye.execute(CURRENT).fetchone()
            eye.data_version = data_version
        return eye.generation

    def close(self) -> None:
        """Give the connections back."""
        for eye in list(self._eyes):
            eye.close()


class QueriedGeneration:
    """Asks the database each time, over one connection kept for this."""

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
                # The database may have dropped an idle connection: a fresh one decides.
                return self._ask()

    def close(self) -> None:
        """Give the connection back."""
        with self._turn:
            self._drop()

    def _ask(self) -> int:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            return int(self._connection.exec_driver_sql(CURRENT).scalar_one())
        except SQLAlchemyError:
            # Kept, a connection that was cut would refuse every later read.
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


HEAD = "0008"
MIGRATIONS = Path(__file__).with_name("migrations")
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
# Any number, as long as no other program takes the same advisory lock in this database.
MIGRATION_LOCK = 7_161_433
USABLE_URL = (
    "Give an SQLAlchemy URL of an installed driver, like sqlite:////folder/file.db or postgresql+psycopg://…."
)

_log = logging.getLogger(__name__)


class Catalog:
    """The database of publications, shares, recipients and requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        look = READ_OPTIONS.get(engine.dialect.name, {})
        self._reader = guard_writes(engine.execution_options(**look), frozenset())
        self._writer = engine.execution_options(**{WRITES: True})
        self._unseen_writer = guard_writes(engine.execution_options(**{WRITES: True}), UNCOUNTED_TABLES)
        self._generation = generation_reader(engine)
        # However the catalog is let go, its connections are closed.
        weakref.finalize(self, engine.dispose)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent look at the catalog.

        Raises:
            Unavailable: the database does not answer.
        """
        with self._reachable(), Session(self._reader) as session, session.begin():
            yield session

    @contextmanager
    def writing(self, *, seen: bool = True) -> Iterator[Session]:
        """One transaction that writes: committed at the end, or not at all.

        Begins the next generation, unless told that no recipient can see what is written. Writers that do
        take turns, on every database: what one has read is still true when it writes.

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
        """Whether `generation` costs microseconds, without a network in between."""
        return self.engine.dialect.name == "sqlite"

    def generation(self) -> int:
        """The number of the newest write that recipients can see; cheap enough for every request.

        Raises:
            Unavailable: the database does not answer.
        """
        try:
            return self._generation.read()
        except (DBAPIError, PoolTimeout, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def revision(self) -> str | None:
        """The migration the database is at, or None when it is empty.

        Raises:
            Unavailable: the database does not answer.
        """
        try:
            with self.engine.connect() as connection:
                return _revision(connection)
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
            if not error.connection_invalidated:
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        # Whoever asks is told nothing of the database: some do without a token.
        _log.error("the catalog at %s does not answer: %s", *_describe_failure(self.engine.url, error))
        return Unavailable("the catalog does not answer", "Try again; the server's log says why.")

    def close(self) -> None:
        """Give the connections back."""
        self._generation.close()
        self.engine.dispose()


def open_catalog(url: str) -> Catalog:
    """Open the catalog at an SQLAlchemy URL, made and migrated when it needs to be.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: a newer lakeshare has migrated the database.
        Unavailable: the database cannot be reached or written.
    """
    engine = _engine_at(url)
    catalog = Catalog(engine)
    try:
        with engine.connect() as connection:
            is_old = _revision(connection) != HEAD
        if is_old:
            _migrate(catalog, HEAD)
    except DatabaseError as error:
        engine.dispose()
        place, cause = _describe_failure(engine.url, error)
        raise Unavailable(
            f"the catalog at {place} cannot be opened: {cause}",
            "Check that the database is there and writable (LAKESHARE_DATABASE_URL, LAKESHARE_STATE_DIR).",
        ) from error
    return catalog


def new_catalog(url: str, revision: str) -> Catalog:
    """An empty catalog at an SQLAlchemy URL, as the migration `revision` leaves it: for rows that were kept then.

    A catalog of that revision that is there already is taken as it is.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: there is a catalog of another revision, or this lakeshare does not know the revision.
        Unavailable: the database cannot be reached or written.
    """
    engine = _engine_at(url)
    catalog = Catalog(engine)
    try:
        with engine.connect() as connection:
            found = _revision(connection)
        if found is None:
            _migrate(catalog, revision)
    except DatabaseError as error:
        engine.dispose()
        place, cause = _describe_failure(engine.url, error)
        raise Unavailable(f"the catalog at {place} cannot be made: {cause}", USABLE_URL) from error
    if found not in {None, revision}:
        engine.dispose()
        raise CatalogConflict(
            f"there is a catalog of revision {found}, not {revision}", "Give the URL of an empty database."
        )
    return catalog


def database_file(url: str) -> Path | None:
    """The file of the catalog at an SQLAlchemy URL, None when it is in no file of ours.

    Raises:
        BadRequest: the URL cannot be used.
    """
    with _usable_url(url):
        parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database.removeprefix("file:") if "uri" in parsed.query else parsed.database)


def _describe_failure(url: URL, error: Exception) -> tuple[str, str]:
    """Where the database is and what it said, without the password and the query, which can hold others."""
    cause = str(getattr(error, "orig", None) or error)
    options = (value for values in url.normalized_query.values() for value in values)
    for secret in sorted(filter(None, (url.password, *options)), key=len, reverse=True):
        cause = cause.replace(secret, "…")
    return url.set(query={}).render_as_string(hide_password=True), cause


def _engine_at(url: str) -> Engine:
    with _usable_url(url):
        return _engine(make_url(url))


@contextmanager
def _usable_url(url: str) -> Iterator[None]:
    try:
        yield
    except (ArgumentError, ValueError, TypeError, ImportError):
        # Their words, and all of the URL behind its scheme, may hold the password.
        scheme, colon, _ = url.partition(":")
        raise BadRequest("LAKESHARE_DATABASE_URL", f"{scheme}:…" if colon else "…", USABLE_URL) from None


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return _postgresql_engine(url)
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    if url.database:
        _make_for_owner(database_file(str(url)))
    # One connection for each thread of the server's pool, so that none waits for another's.
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=20, max_overflow=60)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_for_owner(database: Path | None) -> None:
    """Make the file of a new database: SQLite would let everybody read it. Files beside it get the same mode."""
    if database is None or str(database) == ":memory:":
        return
    make_private(database.parent)
    if not database.exists():
        with suppress(OSError):  # where it cannot be made, SQLite says so
            os.close(os.open(database, os.O_WRONLY | os.O_CREAT, 0o600))


def _postgresql_engine(url: URL) -> Engine:
    # A server that is gone without a word is noticed by these; what the URL says itself stands.
    options = {name: value for name, value in NOTICE_LOSS.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20, connect_args=options)
    event.listen(engine, "connect", _prepare_postgresql)
    event.listen(engine, "handle_error", _recognise_cut)
    return engine


def _recognise_cut(context: ExceptionContext) -> None:
    """Have a connection replaced that was cut, though libpq still takes it for a busy one.

    SQLAlchemy recognises a cut by libpq's state only. Its ping then fails to reset `autocommit`, which hides the cause
    ("can't change 'autocommit' now"): whatever a ping fails of, its connection is of no use.
    """
    error = context.original_exception
    state = getattr(error, "sqlstate", None)
    # Without a state it is not the database that refused: the driver lost it.
    is_lost = type(error).__name__ == "OperationalError" and state is None
    if context.is_pre_ping or is_lost or str(state).startswith(ENDS_CONNECTION):
        context.is_disconnect = True


def _prepare_postgresql(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.commit()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver opens transactions late and upgrades them, which deadlocks writers: BEGIN is ours.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    _use_wal(connection)


def _use_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait for its busy timeout here: of two processes that switch at once one gets "locked".
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


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(catalog: Catalog, revision: str) -> None:
    with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        if _revision(connection) != revision:
            _upgrade(connection, revision)


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise CatalogConflict(
            f"the catalog is at revision {_revision(connection) or revision}, this lakeshare knows up to {HEAD}",
            "Use the lakeshare version that migrated it, or a newer one.",
        ) from error


ENTRIES = 4096

Value = TypeVar("Value")


class GenerationCache(Generic[Value]):
    """Values by key, all of one generation of the catalog; safe from any thread.

    `generation` is that of `Catalog.generation()` where the caller has asked it already for this request. A value that
    `is_over` is looked up again.
    """

    def __init__(
        self, catalog: Catalog, entries: int = ENTRIES, is_over: Callable[[Value], bool] | None = None
    ) -> None:
        self.catalog, self.entries = catalog, entries
        self._is_over = is_over or _never
        # Replaced as a whole: a reader without the lock sees a number and the values that belong to it.
        self._held: tuple[int, dict[Hashable, Value]] = (-1, {})
        self._turn = threading.Lock()

    def peek(self, key: Hashable, generation: int | None = None) -> Value | None:
        """The value if it is here and still true; never loads, so it is fit for an event loop."""
        now = self.catalog.generation() if generation is None else generation
        return self._known(key, now)

    def get(self, key: Hashable, load: Callable[[], Value], generation: int | None = None) -> Value:
        """The value, loaded when it is not here. None is not kept: invented names fill nothing."""
        # Read before loading: a write in between makes the entry's number old, never its value.
        now = self.catalog.generation() if generation is None else generation
        found = self._known(key, now)
        if found is not None:
            return found
        loaded = load()
        if loaded is not None:
            self._keep(now, key, loaded)
        return loaded

    def _known(self, key: Hashable, generation: int) -> Value | None:
        held, values = self._held
        found = values.get(key) if held == generation else None
        return None if found is None or self._is_over(found) else found

    def _keep(self, generation: int, key: Hashable, value: Value) -> None:
        with self._turn:
            held, values = self._held
            if generation < held:
                return
            if generation > held:
                values = {}
                self._held = (generation, values)
            if len(values) >= self.entries and key not in values:
                del values[next(iter(values))]
            values[key] = value


def _never(_value: object) -> bool:
    return False
