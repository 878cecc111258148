"""The ledger: all publications of every table, in order. It is appended to, never changed.

Whoever appends for a set holds the set's lock; its fencing token is checked in the same transaction.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.followed import require_followed, require_not_followed
from lakeshare_server.catalog.models import MAX_LONG, PublicationRow
from lakeshare_server.catalog.publications import NewPublication, NumberedSnapshot, Publication
from lakeshare_server.catalog.set_lock import Lease, require_held
from lakeshare_server.errors import BadRequest, CatalogConflict

TICK = timedelta(milliseconds=1)
ATTEMPTS = 5
# Times that every database and driver can hold, in every zone.
FIRST, LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


Written = TypeVar("Written")


class Ledger:
    """Publications of the catalog's tables; `audited_only` leaves out what was found while a table was followed."""

    def __init__(self, catalog: Catalog, *, audited_only: bool = False) -> None:
        self.catalog, self._audited_only = catalog, audited_only

    def append(self, pubs: Sequence[NewPublication], lease: Lease | None = None) -> list[Publication]:
        """Number and record the publications of one run: all tables or none.

        Appending a run again changes nothing and returns what is there.

        Raises:
            CatalogConflict: the lease was lost, a Delta version is not above the latest one, or a table is followed.
        """

        def append(session: Session) -> list[Publication]:
            if lease is not None:
                require_held(session, lease)
            return [_append(session, new) for new in pubs]

        return self._written(append, pubs)

    def append_found(
        self, table: str, states: Sequence[NewPublication], at_ms: Sequence[int | None], after: int | None
    ) -> list[Publication] | None:
        """Number the states that a followed table was found in, in order, if `after` is still its latest number.

        None when somebody has numbered another state since: what was found may be older than that one. `at_ms` says
        when each state came about, None is now; times grow with the numbers and are never in the future.

        Raises:
            CatalogConflict: the table was published in another format, or is followed no more.
        """
        return self._written(
            partial(_append_found, table=table, states=states, at_ms=at_ms, after=after), states
        )

    def _written(self, write: Callable[[Session], Written], pubs: Sequence[NewPublication]) -> Written:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.catalog.writing() as session:
                    return write(session)
            except IntegrityError as error:
                # Without a single writer two appends can take one number: one of them comes again.
                if attempt == ATTEMPTS:
                    raise CatalogConflict(
                        f"the ledger refused {', '.join(new.table for new in pubs)}: {error.orig}",
                        "Other writers keep appending; run again.",
                    ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def latest(self, table: str) -> Publication | None:
        """The publication that recipients read now."""
        return self._one(self._newest_first(table).limit(1))

    def at(self, table: str, version: int) -> Publication | None:
        """The publication with this number."""
        return self._one(self._newest_first(table).where(PublicationRow.version == _number(version)))

    def history(self, table: str, limit: int | None = None) -> list[Publication]:
        """Publications of the table, newest first."""
        return self._all(self._newest_first(table).limit(limit))

    def oldest(self, table: str) -> Publication | None:
        """The first publication."""
        return self._one(self._oldest_first(table).limit(1))

    def at_or_below(self, table: str, version: int) -> Publication | None:
        """The last publication with this number or a lower one."""
        return self._one(self._newest_first(table).where(PublicationRow.version <= _number(version)).limit(1))

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
        return self._all(
            self._oldest_first(table).where(PublicationRow.version.between(_number(first), _number(last)))
        )

    def by_run(self, run_id: str) -> list[Publication]:
        """What one run published."""
        return self._all(
            select(PublicationRow).where(PublicationRow.run_id == run_id).order_by(PublicationRow.key)
        )

    def numbered_snapshots(self, table: str) -> list[NumberedSnapshot]:
        """What every number of an Iceberg table pins, in order."""
        columns = (
            PublicationRow.version,
            PublicationRow.table_id,
            PublicationRow.snapshot_id,
            PublicationRow.run_id,
        )
        rows = select(*columns).where(PublicationRow.table_name == table).order_by(PublicationRow.version)
        with self.catalog.reading() as session:
            return [NumberedSnapshot(*row) for row in session.execute(rows)]

    def first_of(self, table: str, table_id: str) -> int:
        """The number from which on all publications of a name are of the table with this id."""
        others = select(func.max(PublicationRow.version)).where(
            PublicationRow.table_name == table, PublicationRow.table_id != table_id
        )
        with self.catalog.reading() as session:
            last = session.scalars(others).one()
            return 0 if last is None else last + 1

    def tables(self) -> list[str]:
        """Names of all tables that were ever published."""
        with self.catalog.reading() as session:
            names = select(PublicationRow.table_name).distinct().order_by(PublicationRow.table_name)
            return list(session.scalars(names))

    def _newest_first(self, table: str) -> Select[PublicationRow]:
        return _rows(table, self._audited_only).order_by(PublicationRow.version.desc())

    def _oldest_first(self, table: str) -> Select[PublicationRow]:
        return _rows(table, self._audited_only).order_by(PublicationRow.version)

    def _one(self, rows: Select[PublicationRow]) -> Publication | None:
        found = self._all(rows)
        return found[0] if found else None

    def _all(self, rows: Select[PublicationRow]) -> list[Publication]:
        with self.catalog.reading() as session:
            return [_publication(row) for row in session.scalars(rows)]


def _rows(table: str, audited_only: bool) -> Select[PublicationRow]:
    rows = select(PublicationRow).where(PublicationRow.table_name == table)
    return rows.where(PublicationRow.audited) if audited_only else rows


def _number(version: int) -> int:
    """The version, or the last number that a database can compare with."""
    return min(max(version, -MAX_LONG), MAX_LONG)


def _moment(timestamp_ms: int) -> datetime:
    """The time, or the end of time that a database can compare with."""
    least, most = int(FIRST.timestamp() * 1000), int(LAST.timestamp() * 1000)
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=min(max(timestamp_ms, least), most))


def _append(session: Session, new: NewPublication) -> Publication:
    same_run = select(PublicationRow).where(
        PublicationRow.table_name == new.table, PublicationRow.run_id == new.run_id
    )
    there = session.scalars(same_run).one_or_none()
    if there is not None:
        return _publication(there)
    rows = _rows(new.table, audited_only=False).order_by(PublicationRow.version.desc())
    latest = session.scalars(rows.limit(1)).one_or_none()
    if latest is None and new.audited:
        # What is found in storage comes unaudited; what pipelines publish must not mix with it.
        require_not_followed(session, new.table)
    row = _row(new, _next_version(new, latest), _publication_time(latest))
    session.add(row)
    session.flush()
    return _publication(row)


def _append_found(
    session: Session,
    *,
    table: str,
    states: Sequence[NewPublication],
    at_ms: Sequence[int | None],
    after: int | None,
) -> list[Publication] | None:
    rows = _rows(table, audited_only=False).order_by(PublicationRow.version.desc())
    latest = session.scalars(rows.limit(1)).one_or_none()
    if (None if latest is None else latest.version) != after:
        return None
    added = []
    for table_id in {new.table_id for new in states}:
        require_followed(session, table, table_id)
    for new, told_ms in zip(states, at_ms, strict=True):
        latest = _row(new, _next_version(new, latest), _publication_time(latest, told_ms))
        session.add(latest)
        added.append(latest)
    session.flush()
    return [_publication(row) for row in added]


def _next_version(new: NewPublication, latest: PublicationRow | None) -> int:
    if latest is not None and latest.table_format != new.format:
        raise CatalogConflict(
            f"{new.table} was published as {latest.table_format}, now it comes as {new.format}",
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


def _publication_time(latest: PublicationRow | None, told_ms: int | None = None) -> datetime:
    now = datetime.now(UTC)
    now -= timedelta(microseconds=now.microsecond % 1000)
    if told_ms is not None:
        now = min(now, _moment(told_ms))
    # Time travel by timestamp needs times that grow with the numbers, whatever the clock does.
    return now if latest is None else max(now, latest.published_at + TICK)


def _row(new: NewPublication, version: int, published_at: datetime) -> PublicationRow:
    return PublicationRow(
        table_name=new.table,
        version=version,
        set_name=new.set_name,
        table_format=new.format,
        location=new.location,
        table_id=new.table_id,
        metadata_location=new.metadata_location,
        snapshot_id=new.snapshot_id,
        schema_id=new.schema_id,
        delta_version=new.delta_version,
        nessie_hash=new.nessie_hash,
        schema_string=new.schema_string,
        row_count=new.rows,
        file_count=new.files,
        size_bytes=new.size_bytes,
        index_digest=new.index_digest,
        contract_digest=new.contract_digest,
        verdicts=dict(new.verdicts),
        run_id=new.run_id,
        partition_key=new.partition,
        audited=new.audited,
        rollback_of=new.rollback_of,
        published_at=published_at,
        changes_digest=new.changes_digest,
    )


def _publication(row: PublicationRow) -> Publication:
    return Publication(
        table=row.table_name,
        version=row.version,
        set_name=row.set_name,
        format="iceberg" if row.table_format == "iceberg" else "delta",
        location=row.location,
        table_id=row.table_id,
        metadata_location=row.metadata_location,
        snapshot_id=row.snapshot_id,
        schema_id=row.schema_id,
        delta_version=row.delta_version,
        nessie_hash=row.nessie_hash,
        schema_string=row.schema_string,
        rows=row.row_count,
        files=row.file_count,
        size_bytes=row.size_bytes,
        index_digest=row.index_digest,
        contract_digest=row.contract_digest,
        verdicts=row.verdicts,
        run_id=row.run_id,
        partition=row.partition_key,
        audited=row.audited,
        rollback_of=row.rollback_of,
        published_at=row.published_at,
        changes_digest=row.changes_digest,
    )
