"""The ledger: the publications of every table, in order, append-only; with followed tables and the locks of sets.

A writer for a set holds the set's lock, whose fencing token is checked in the same transaction.
"""

import logging
import math
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog, heartbeat
from lakeshare_server.catalog.evidence import Sign, add_evidence
from lakeshare_server.catalog.models import (
    MAX_LONG,
    ContractRow,
    ExpirationRow,
    FollowedTableRow,
    PublicationRow,
    SetLockRow,
    SharedTableRow,
)
from lakeshare_server.catalog.sharing import LOCAL_OPERATOR, NAME_HINT, Edit, editing, is_name
from lakeshare_server.catalog.states import JsonState
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound, Unavailable

TableFormat = Literal["iceberg", "delta"]


@dataclass(frozen=True, kw_only=True)
class NewPublication:
    """A publication without a number yet; `table` is the lake's own name, like `flights.departures`.

    `changes_digest` is that of its index of changes: None for Delta tables and if no index was built. `schema_id` is
    Iceberg's id of the schema of readers, for followed tables only. `maintenance_of` is the number whose rows it holds
    in other files, or with fewer snapshots. `started_at` is when its run began to stage, `traceparent` the trace of the
    run (W3C Trace Context); both are None for publications without a run, and of versions before them.
    """

    table: str
    set_name: str
    format: TableFormat
    location: str
    table_id: str
    metadata_location: str | None = None
    snapshot_id: int | None = None
    schema_id: int | None = None
    delta_version: int | None = None
    nessie_hash: str | None = None
    schema_string: str
    rows: int
    files: int
    size_bytes: int
    index_digest: str
    contract_digest: str
    verdicts: Mapping[str, Any]
    run_id: str
    partition: str
    audited: bool = True
    rollback_of: int | None = None
    changes_digest: str | None = None
    maintenance_of: int | None = None
    started_at: datetime | None = None
    traceparent: str | None = None

    @property
    def repeats(self) -> int | None:
        """The number whose rows it holds again, after a rollback or maintenance."""
        return self.rollback_of if self.maintenance_of is None else self.maintenance_of


@dataclass(frozen=True, kw_only=True)
class Publication(NewPublication):
    """A publication in the ledger; `version` is the number for recipients."""

    version: int
    published_at: datetime


@dataclass(frozen=True)
class NumberedSnapshot:
    """The snapshot of an Iceberg table that a number pins, and the run that published it."""

    version: int
    table_id: str
    snapshot_id: int | None
    run_id: str


@dataclass(frozen=True)
class RecordedContract:
    """The contract that a set was staged with, as its file was."""

    digest: str
    set_name: str
    version: str
    text: str


CHECK_EVERY_S = 10.0
IN_CATALOGS = ("iceberg:", "nessie:")


@dataclass(frozen=True)
class IcebergIdentity:
    """An Iceberg table's UUID and the location in its metadata; another table at the same path has others."""

    table_id: str
    location: str


@dataclass(frozen=True)
class FollowedTable(JsonState):
    """A followed table; `table` is the lake name that shared tables refer to.

    `iceberg` is None for a Delta table. `applied`: a file of `lakeshare apply` declares it.
    """

    table: str
    location: str
    check_every_s: float
    start_version: int
    created_at: datetime
    iceberg: IcebergIdentity | None = None
    applied: bool = False
    configuration: str | None = None

    @property
    def format(self) -> TableFormat:
        """The format of the table."""
        return "delta" if self.iceberg is None else "iceberg"

    def as_json(self) -> dict[str, Any]:
        """Its fields for the audit log."""
        names = ("table", "location", "format", "check_every_s", "start_version", "applied")
        return {name: getattr(self, name) for name in names}


class FollowedTables:
    """The followed tables of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def add(
        self,
        table: str,
        location: str,
        check_every_s: float,
        start_version: int = 0,
        iceberg: IcebergIdentity | None = None,
        by: str = LOCAL_OPERATOR,
    ) -> FollowedTable:
        """Follows a table, in a transaction of its own; see `follow_table`."""
        with editing(self.catalog, by) as edit:
            return follow_table(edit, table, location, check_every_s, start_version, iceberg)

    def get(self, table: str) -> FollowedTable | None:
        """Returns the followed table of this lake name."""
        with self.catalog.reading() as session:
            row = _find_followed(session, table)
            return None if row is None else followed_from_row(row)

    def list(self) -> list[FollowedTable]:
        """Lists all followed tables by name."""
        with self.catalog.reading() as session:
            return followed_tables(session)

    def remove(self, table: str, by: str = LOCAL_OPERATOR) -> FollowedTable:
        """Stops following a table, in a transaction of its own; see `unfollow_table`."""
        with editing(self.catalog, by) as edit:
            return unfollow_table(edit, table)


def follow_table(
    edit: Edit,
    table: str,
    location: str,
    check_every_s: float,
    start_version: int = 0,
    iceberg: IcebergIdentity | None = None,
) -> FollowedTable:
    """Follows the table at a location, or changes how often it is checked and its first version.

    Raises:
        BadRequest: the name or a number cannot be used.
        CatalogConflict: pipelines publish the name, or it is followed at another location or as another table.
    """
    _require_usable(location, check_every_s, start_version)
    published = select(PublicationRow.key).where(PublicationRow.table == table, PublicationRow.audited)
    if edit.session.scalars(published.limit(1)).one_or_none() is not None:
        raise CatalogConflict(
            f"{table} is published by pipelines; the ledger numbers its versions",
            "Follow the table under another name.",
        )
    row = _find_followed(edit.session, table)
    if row is None:
        row = _new_followed(edit, table, location, iceberg)
    elif row.location != location:
        raise CatalogConflict(
            f"{table} is followed at {row.location} already",
            f"Take another name for {location}, or end it first: lakeshare table unfollow {table}",
        )
    elif _identity(row) != iceberg:
        raise CatalogConflict(
            f"{location} has another table than the one that is followed as {table}",
            f"To follow this one, end it first: lakeshare table unfollow {table}",
        )
    return _put_followed(edit, row, check_every_s, start_version)


def alter_followed(edit: Edit, table: str, check_every_s: float, start_version: int) -> FollowedTable:
    """Changes how often a followed table is checked, and its first version; raises NotFound and BadRequest."""
    row = _require_followed_row(edit.session, table)
    _require_usable(row.location, check_every_s, start_version)
    return _put_followed(edit, row, check_every_s, start_version)


def unfollow_table(edit: Edit, table: str) -> FollowedTable:
    """Stops following a table; its shared tables stay, like those of a table without publications. Raises NotFound.

    Ends directory access to it: the next table of this name may be in another folder.
    """
    row = _require_followed_row(edit.session, table)
    shared = update(SharedTableRow).where(SharedTableRow.lake_table == table)
    edit.session.execute(shared.values(directory_access=False))
    return edit.delete("unfollow_table", table, row, followed_from_row(row))


def is_location_pattern(location: str) -> bool:
    """Whether a location has `*` for the table, and so is that of all tables of a folder or a namespace."""
    if location.startswith(IN_CATALOGS):
        return location.partition("@")[0].endswith(".*")
    return location.endswith("/*")


def followed_tables(session: Session) -> list[FollowedTable]:
    """Lists all followed tables by name."""
    rows = session.scalars(select(FollowedTableRow).order_by(FollowedTableRow.table_name))
    return [followed_from_row(row) for row in rows]


def require_table_name(field: str, table: str) -> None:
    """Refuses with BadRequest a new name of a followed table that is not `schema.table` with usable names."""
    parts = table.split(".")
    if len(parts) != 2 or not all(is_name(part) for part in parts):
        raise BadRequest(field, table, f"Give schema.table, like sales.orders. {NAME_HINT}")


def _require_usable(location: str, check_every_s: float, start_version: int) -> None:
    if not location or "\x00" in location:
        raise BadRequest("location", location, "Give the place of a Delta or Iceberg table.")
    if not (math.isfinite(check_every_s) and check_every_s >= 0):
        raise BadRequest("check_every_s", check_every_s, "Give seconds, 0 or more.")
    if not 0 <= start_version <= MAX_LONG:
        raise BadRequest("start_version", start_version, "Give a version of the table, 0 or more.")


def _put_followed(
    edit: Edit, row: FollowedTableRow, check_every_s: float, start_version: int
) -> FollowedTable:
    before = followed_from_row(row) if row in edit.session else None
    edit.keep(row)
    edit.session.add(row)
    edit.update(row, {"check_every_s": float(check_every_s), "start_version": start_version})
    after = followed_from_row(row)
    if before != after:
        edit.changed("alter_followed_table" if before else "follow_table", row.table_name, before, after)
    return after


def _new_followed(edit: Edit, table: str, location: str, iceberg: IcebergIdentity | None) -> FollowedTableRow:
    require_table_name("table", table)
    table_format = "delta" if iceberg is None else "iceberg"
    numbered = select(PublicationRow.format).where(PublicationRow.table == table)
    known = edit.session.scalars(numbered.order_by(PublicationRow.version.desc()).limit(1)).one_or_none()
    if known not in (None, table_format):
        raise CatalogConflict(
            f"{table} has versions in the format {known}, and the table to follow is in the format {table_format}",
            "Follow it under another name: numbers are given once.",
        )
    return FollowedTableRow(
        table_name=table,
        location=location,
        table_id=None if iceberg is None else iceberg.table_id,
        table_location=None if iceberg is None else iceberg.location,
        created_at=edit.at,
        applied=False,
    )


def _require_followed_row(session: Session, table: str) -> FollowedTableRow:
    row = _find_followed(session, table)
    if row is None:
        raise NotFound("Followed table", table)
    return row


def _find_followed(session: Session, table: str) -> FollowedTableRow | None:
    return session.scalars(select(FollowedTableRow).where(FollowedTableRow.table_name == table)).one_or_none()


def followed_from_row(row: FollowedTableRow) -> FollowedTable:
    identity, name = _identity(row), row.table_name
    every_s, start = row.check_every_s, row.start_version
    declared = row.applied, row.configuration
    return FollowedTable(name, row.location, every_s, start, row.created_at, identity, *declared)


def _identity(row: FollowedTableRow) -> IcebergIdentity | None:
    if row.table_id is None or row.table_location is None:
        return None
    return IcebergIdentity(row.table_id, row.table_location)


PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinct from a later one with the same number."""

    host: str
    pid: int
    start: str | None

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """The identity of this process."""
        return cls(_host(), os.getpid(), _start(os.getpid()))

    def is_dead(self) -> bool:
        """Whether the process ran on this host and has ended; False for other hosts, where that is unknown."""
        if self.host != _host():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.start is not None and _start(self.pid) != self.start


def _host() -> str:
    # Containers on one host have process numbers of their own, and sometimes the same name: the namespace is in it.
    parts = [platform.node()]
    boot = PROC / "sys/kernel/random/boot_id"
    namespace = PROC / "self/ns/pid"
    if boot.exists() and namespace.exists():
        parts += [boot.read_text().strip(), str(namespace.readlink())]
    return "/".join(parts)


def _start(pid: int) -> str | None:
    """The process's start time in ticks; None without a /proc, and for a zombie, which holds no lock."""
    try:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start = fields[0], fields[19]
    return None if state == "Z" else start


LIFE_S = 60.0
HEARTBEAT_S = 5.0
POLL_S = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """The right to publish a set, until another holder has a higher token."""

    set_name: str
    owner: str
    token: int


@contextmanager
def lock_set(catalog: Catalog, set_name: str, owner: str, wait_s: float) -> Iterator[Lease]:
    """Holds the lock of a set; `owner` is the holder's name in messages to others.

    Raises CatalogConflict if another holder kept it for all of `wait_s`.
    """
    lease = _acquire(catalog, set_name, owner, wait_s)

    def extend() -> bool:
        until = datetime.now(UTC) + timedelta(seconds=LIFE_S)
        with catalog.writing(seen=False) as session:
            session.execute(update(SetLockRow).where(_is_held_by(lease)).values(expires_at=until))
        return True

    try:
        # There are several heartbeats within the lock's life; after a lost one, the token decides.
        with heartbeat(f"lock-{set_name}", HEARTBEAT_S, extend):
            yield lease
    finally:
        _release(catalog, lease)


def _acquire(catalog: Catalog, set_name: str, owner: str, wait_s: float) -> Lease:
    deadline = time.monotonic() + wait_s
    while True:
        taken = _try_acquire(catalog, set_name, owner)
        if isinstance(taken, Lease):
            return taken
        if time.monotonic() > deadline:
            raise CatalogConflict(
                f"set {set_name} is being published by {taken}, for longer than {wait_s:.0f} s",
                "Wait for that run to end, or stop it; a dead holder is taken over by itself. "
                "LAKESHARE_LOCK_WAIT_S sets the wait.",
            )
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic()) + 0.001))


def _try_acquire(catalog: Catalog, set_name: str, owner: str) -> Lease | str:
    """The lease, or a description of its holder."""
    try:
        with catalog.writing(seen=False) as session:
            row = session.get(SetLockRow, set_name, with_for_update=True)
            if row is None:
                row = SetLockRow(set_name=set_name, token=0)
                session.add(row)
            elif not _is_free(row):
                return f"{row.owner} (process {row.pid} on {str(row.host).partition('/')[0]})"
            process = ProcessIdentity.current()
            row.token += 1
            row.owner, row.host, row.pid, row.process_start = owner, process.host, process.pid, process.start
            row.expires_at = datetime.now(UTC) + timedelta(seconds=LIFE_S)
            return Lease(set_name, owner, row.token)
    except IntegrityError:
        # Another process has just inserted the row of a set that was never locked before.
        return "a process that has just taken it"


def _is_free(row: SetLockRow) -> bool:
    if row.owner is None or row.host is None or row.pid is None or row.expires_at is None:
        return True
    holder = ProcessIdentity(row.host, row.pid, row.process_start)
    return row.expires_at < datetime.now(UTC) or holder.is_dead()


def _release(catalog: Catalog, lease: Lease) -> None:
    no_holder = dict.fromkeys(("owner", "host", "pid", "process_start", "expires_at"))
    try:
        with catalog.writing(seen=False) as session:
            session.execute(update(SetLockRow).where(_is_held_by(lease)).values(no_holder))
    except (SQLAlchemyError, Unavailable) as error:
        # The lock ends by itself: this must not hide the result, or the error, of the block.
        message = "lock of set %s: %s could not free it, it ends within %.0f s: %s"
        _log.warning(message, lease.set_name, lease.owner, LIFE_S, error)


def _is_held_by(lease: Lease) -> ColumnElement[bool]:
    return (SetLockRow.set_name == lease.set_name) & (SetLockRow.token == lease.token)


TICK = timedelta(milliseconds=1)
ATTEMPTS = 5
ROWS_AT_ONCE = 50
# Times that every database and driver can hold, in every zone.
FIRST, LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


Written = TypeVar("Written")


class Ledger:
    """Publications of the catalog's tables; `readable_only` leaves out expired ones, and those of followed tables."""

    def __init__(self, catalog: Catalog, *, readable_only: bool = False) -> None:
        self.catalog, self._readable_only = catalog, readable_only

    def append(
        self, pubs: Sequence[NewPublication], lease: Lease | None = None, sign: Sign | None = None
    ) -> list[Publication]:
        """Numbers and records the publications of one run, with their signed statements: all tables or none.

        Appending a run again changes nothing and returns the publications of the first time.

        Raises:
            CatalogConflict: the lease was lost, a Delta version is not above the latest one, or a table is followed.
        """

        def append(session: Session) -> list[Publication]:
            if lease is not None:
                _require_held(session, lease)
            publications = [_append(session, new) for new in pubs]
            if sign is not None:
                add_evidence(session, publications, sign)
            return publications

        return self._written(append, pubs)

    def append_found(
        self, table: str, states: Sequence[NewPublication], at_ms: Sequence[int | None], after: int | None
    ) -> list[Publication] | None:
        """Numbers the states in which a followed table was found, in order, if `after` is its latest number.

        Returns None if it is not: another process has numbered a state that may be newer. `at_ms` is the time of each
        state, None is now; times grow with the numbers and are never in the future.

        Raises:
            CatalogConflict: the table was published in another format, or is no longer followed.
        """
        append = partial(_append_found, table=table, states=states, at_ms=at_ms, after=after)
        return self._written(append, states)

    def _written(self, write: Callable[[Session], Written], pubs: Sequence[NewPublication]) -> Written:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.catalog.writing() as session:
                    return write(session)
            except IntegrityError as error:
                # Without a single writer two appends can take one number: one of them tries again.
                if attempt == ATTEMPTS:
                    raise CatalogConflict(
                        f"the ledger refused {', '.join(new.table for new in pubs)}: {error.orig}",
                        "Other writers keep appending; run again.",
                    ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def expire(self, table: str, oldest: int, lease: Lease) -> None:
        """Makes the publications of a table below the number `oldest` unreadable; their rows stay.

        Raises:
            BadRequest: the latest publication would expire.
            CatalogConflict: the lease was lost.
        """
        with self.catalog.writing() as session:
            _require_held(session, lease)
            latest = _latest_row(session, table)
            if latest is None or oldest > latest.version:
                newest = "none" if latest is None else str(latest.version)
                raise BadRequest(
                    "oldest", oldest, f"Give a number up to the latest one of {table}, {newest}."
                )
            row = ExpirationRow(table_name=table, oldest_version=oldest, expired_at=datetime.now(UTC))
            session.add(row)

    def record_contract(self, contract: RecordedContract) -> None:
        """Records a contract for comparisons with later ones; one that is recorded stays as it is."""
        same = select(ContractRow.key).where(ContractRow.digest == contract.digest)
        with self.catalog.reading() as session:
            if session.scalars(same).one_or_none() is not None:
                return
        with suppress(IntegrityError), self.catalog.writing(seen=False) as session:  # another run recorded it
            session.add(ContractRow(**vars(contract), recorded_at=datetime.now(UTC)))

    def published_contract(self, set_name: str) -> RecordedContract | None:
        """The contract of the newest publication of a set that repeats no other; None if it is not recorded."""
        row = PublicationRow
        is_new = row.audited & row.rollback_of.is_(None) & row.maintenance_of.is_(None)
        digests = select(row.contract_digest).where(row.set_name == set_name, is_new)
        with self.catalog.reading() as session:
            digest = session.scalars(digests.order_by(row.key.desc()).limit(1)).one_or_none()
        return None if digest is None else self.recorded_contract(digest)

    def recorded_contract(self, digest: str) -> RecordedContract | None:
        """The contract with a digest, which a publication names; None if it is not recorded."""
        with self.catalog.reading() as session:
            found = session.scalars(select(ContractRow).where(ContractRow.digest == digest)).one_or_none()
            if found is None:
                return None
            return RecordedContract(found.digest, found.set_name, found.version, found.text)

    def oldest_readable(self, table: str, at: datetime | None = None) -> int:
        """The number below which publications have expired, now or at a time; 0 if none has."""
        oldest = select(func.max(ExpirationRow.oldest_version)).where(ExpirationRow.table_name == table)
        if at is not None:
            oldest = oldest.where(ExpirationRow.expired_at <= at)
        with self.catalog.reading() as session:
            return session.scalars(oldest).one() or 0

    def pinned_by_shares(self, table: str) -> int | None:
        """The lowest number of a table that a share serves instead of the latest; None without one."""
        lowest = select(func.min(SharedTableRow.publication)).where(SharedTableRow.lake_table == table)
        with self.catalog.reading() as session:
            return session.scalars(lowest).one()

    def replace_changes(self, publication: Publication, digest: str, lease: Lease) -> Publication:
        """Names the index of changes that was recorded again for a publication; nothing else of a row ever changes."""
        row = PublicationRow
        is_it = (row.table == publication.table) & (row.version == publication.version)
        with self.catalog.writing() as session:
            _require_held(session, lease)
            session.execute(update(row).where(is_it).values(changes_digest=digest))
        return replace(publication, changes_digest=digest)

    def latest(self, table: str) -> Publication | None:
        """The publication that recipients read now."""
        return self._one(self._newest_first(table).limit(1))

    def at(self, table: str, version: int) -> Publication | None:
        """The publication with this number."""
        return self._one(self._newest_first(table).where(PublicationRow.version == _number(version)))

    def history(self, table: str, limit: int | None = None) -> list[Publication]:
        """Publications of the table, newest first."""
        return self._all(self._newest_first(table).limit(limit))

    def of_partitions(self, table: str, partitions: Collection[str]) -> Iterator[Publication]:
        """The publications of these partitions, newest first, with all of ranges and all that repeat another one."""
        row = PublicationRow
        is_range = row.partition.contains("...", autoescape=True)
        repeats = row.rollback_of.is_not(None) | row.maintenance_of.is_not(None)
        rows = self._newest_first(table).where(row.partition.in_(partitions) | is_range | repeats)
        at_once = rows.execution_options(yield_per=ROWS_AT_ONCE)
        # The caller ends after a few rows: PostgreSQL has a cursor, which the end of the session does not close.
        with self.catalog.reading() as session, closing(session.scalars(at_once)) as found:
            yield from map(_publication_from_row, found)

    def oldest(self, table: str) -> Publication | None:
        """The first publication."""
        return self._one(self._oldest_first(table).limit(1))

    def at_or_below(self, table: str, version: int) -> Publication | None:
        """The last publication with this number or a lower one."""
        return self._one(self._newest_first(table).where(PublicationRow.version <= _number(version)).limit(1))

    def before(self, table: str, version: int) -> Publication | None:
        """The last publication with a lower number, even if it has expired."""
        rows = _rows(table, readable_only=False).where(PublicationRow.version < _number(version))
        if self._readable_only:
            rows = rows.where(PublicationRow.audited)
        return self._one(rows.order_by(PublicationRow.version.desc()).limit(1))

    def at_or_before(self, table: str, timestamp_ms: int) -> Publication | None:
        """The last publication of that time or earlier."""
        since = PublicationRow.published_at <= _moment(timestamp_ms)
        return self._one(self._newest_first(table).where(since).limit(1))

    def at_or_after(self, table: str, timestamp_ms: int) -> Publication | None:
        """The first publication of that time or later."""
        until = PublicationRow.published_at >= _moment(timestamp_ms)
        return self._one(self._oldest_first(table).where(until).limit(1))

    def between(self, table: str, first: int, last: int) -> list[Publication]:
        """The publications with numbers from `first` to `last`, in order."""
        versions = PublicationRow.version.between(_number(first), _number(last))
        return self._all(self._oldest_first(table).where(versions))

    def by_run(self, run_id: str) -> list[Publication]:
        """The publications of one run."""
        rows = select(PublicationRow).where(PublicationRow.run_id == run_id)
        return self._all(rows.order_by(PublicationRow.key))

    def find_tables_within(self, location: str) -> list[tuple[str, str]]:
        """The tables with a version or that are followed at, below or above a location, each with its own location."""
        with self.catalog.reading() as session:
            pairs = select(PublicationRow.table, PublicationRow.location).distinct()
            found = [*session.execute(pairs)]
            found += session.execute(select(FollowedTableRow.table_name, FollowedTableRow.location))
        return [
            (table, other)
            for table, other in found
            if f"{location}/".startswith(f"{other.rstrip('/')}/")
            or f"{other}/".startswith(f"{location.rstrip('/')}/")
        ]

    def numbered_snapshots(self, table: str) -> list[NumberedSnapshot]:
        """The snapshots that the numbers of an Iceberg table pin, in order."""
        row = PublicationRow
        columns = (row.version, row.table_id, row.snapshot_id, row.run_id)
        rows = select(*columns).where(PublicationRow.table == table).order_by(PublicationRow.version)
        with self.catalog.reading() as session:
            return [NumberedSnapshot(*row) for row in session.execute(rows)]

    def first_of(self, table: str, table_id: str) -> int:
        """The first number after which all publications of a name are of the table with this id."""
        others = select(func.max(PublicationRow.version)).where(
            PublicationRow.table == table, PublicationRow.table_id != table_id
        )
        with self.catalog.reading() as session:
            last = session.scalars(others).one()
            return 0 if last is None else last + 1

    def tables(self) -> list[str]:
        """The names of all tables with a publication."""
        with self.catalog.reading() as session:
            names = select(PublicationRow.table).distinct().order_by(PublicationRow.table)
            return list(session.scalars(names))

    def _newest_first(self, table: str) -> Select[PublicationRow]:
        return _rows(table, self._readable_only).order_by(PublicationRow.version.desc())

    def _oldest_first(self, table: str) -> Select[PublicationRow]:
        return _rows(table, self._readable_only).order_by(PublicationRow.version)

    def _one(self, rows: Select[PublicationRow]) -> Publication | None:
        return next(iter(self._all(rows)), None)

    def _all(self, rows: Select[PublicationRow]) -> list[Publication]:
        with self.catalog.reading() as session:
            return [_publication_from_row(row) for row in session.scalars(rows)]


def _rows(table: str, readable_only: bool) -> Select[PublicationRow]:
    rows = select(PublicationRow).where(PublicationRow.table == table)
    if not readable_only:
        return rows
    oldest = select(func.coalesce(func.max(ExpirationRow.oldest_version), 0))
    of_table = oldest.where(ExpirationRow.table_name == table).scalar_subquery()
    return rows.where(PublicationRow.audited, PublicationRow.version >= of_table)


def _number(version: int) -> int:
    """The version within the range of database integers."""
    return min(max(version, -MAX_LONG), MAX_LONG)


def _moment(timestamp_ms: int) -> datetime:
    """The time within the range of database times."""
    least, most = int(FIRST.timestamp() * 1000), int(LAST.timestamp() * 1000)
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=min(max(timestamp_ms, least), most))


def _require_held(session: Session, lease: Lease) -> None:
    row = session.get(SetLockRow, lease.set_name, with_for_update=True)
    if row is None or row.token != lease.token or row.owner is None:
        holder = "no process" if row is None or row.owner is None else row.owner
        raise CatalogConflict(
            f"{lease.owner} lost the lock of set {lease.set_name}; it is held by {holder} now",
            "Nothing was written. Run again: it starts from what is published by then.",
        )


def _append(session: Session, new: NewPublication) -> Publication:
    same_run = select(PublicationRow).filter_by(table=new.table, run_id=new.run_id)
    existing = session.scalars(same_run).one_or_none()
    if existing is not None:
        return _publication_from_row(existing)
    latest = _latest_row(session, new.table)
    followed = _find_followed(session, new.table) if latest is None and new.audited else None
    if followed is not None:
        # The versions of followed tables are unaudited; publications of pipelines must not mix with them.
        raise CatalogConflict(
            f"{new.table} is followed at {followed.location}, so its versions are found there",
            f"Publish under another name, or end it first: lakeshare table unfollow {new.table}",
        )
    row = _row(new, _next_version(new, latest), _publication_time(latest))
    session.add(row)
    session.flush()
    return _publication_from_row(row)


def _append_found(
    session: Session,
    *,
    table: str,
    states: Sequence[NewPublication],
    at_ms: Sequence[int | None],
    after: int | None,
) -> list[Publication] | None:
    latest = _latest_row(session, table)
    if (None if latest is None else latest.version) != after:
        return None
    if states:
        followed = _find_followed(session, table)
        if followed is None or {new.table_id for new in states} != {followed.table_id}:
            raise CatalogConflict(
                f"{table} is not followed any more as the table that was found", "Follow it again."
            )
    added = []
    for new, state_ms in zip(states, at_ms, strict=True):
        latest = _row(new, _next_version(new, latest), _publication_time(latest, state_ms))
        session.add(latest)
        added.append(latest)
    session.flush()
    return [_publication_from_row(row) for row in added]


def _latest_row(session: Session, table: str) -> PublicationRow | None:
    rows = _rows(table, readable_only=False).order_by(PublicationRow.version.desc())
    return session.scalars(rows.limit(1)).one_or_none()


def _next_version(new: NewPublication, latest: PublicationRow | None) -> int:
    if latest is not None and latest.format != new.format:
        raise CatalogConflict(
            f"{new.table} was published as {latest.format}, now it comes as {new.format}",
            "Publish the new format under another table name and change the share.",
        )
    if new.format == "iceberg":
        return 0 if latest is None else latest.version + 1
    if new.delta_version is None:
        raise BadRequest("delta_version", None, f"A publication of the Delta table {new.table} needs it.")
    if latest is not None and new.delta_version <= latest.version:
        raise CatalogConflict(
            f"{new.table} is published at Delta version {latest.version}; {new.delta_version} is not above it",
            "Publish a newer commit; numbers only grow.",
        )
    return new.delta_version


def _publication_time(latest: PublicationRow | None, state_ms: int | None = None) -> datetime:
    now = datetime.now(UTC)
    now -= timedelta(microseconds=now.microsecond % 1000)
    if state_ms is not None:
        now = min(now, _moment(state_ms))
    # Time travel by timestamp needs times that grow with the numbers, also if the clock is set back.
    return now if latest is None else max(now, latest.published_at + TICK)


def _row(new: NewPublication, version: int, published_at: datetime) -> PublicationRow:
    columns = {field.name: getattr(new, field.name) for field in fields(NewPublication)}
    columns["verdicts"] = dict(new.verdicts)
    return PublicationRow(**columns, version=version, published_at=published_at)


def _publication_from_row(row: PublicationRow) -> Publication:
    return Publication(**{field.name: getattr(row, field.name) for field in fields(Publication)})
