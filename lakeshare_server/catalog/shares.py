"""Shares as contracts declare them, and making the catalog say the same.

Ids stay what they are over every application. What was made by hand, recipients and grants are never touched.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import GrantRow, SchemaRow, SharedTableRow, ShareRow
from lakeshare_server.catalog.names import require_name
from lakeshare_server.errors import BadRequest


@dataclass(frozen=True)
class SharedTable:
    """A table in a share: `schema.name` to recipients, `table` in the ledger."""

    schema: str
    name: str
    table: str
    comment: str | None = None
    history: bool = True  # recipients may read earlier publications by number


@dataclass(frozen=True)
class DeclaredShare:
    """A share as contracts declare it."""

    name: str
    tables: tuple[SharedTable, ...]
    description: str | None = None


@dataclass(frozen=True)
class ShareDiff:
    """What an application changed, as `share.schema.table` names."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    closed: tuple[str, ...] = ()  # those of the changed whose directory access has ended


@dataclass
class _Changes:
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def diff(self) -> ShareDiff:
        lists = self.added, self.removed, self.changed, self.unchanged, self.closed
        return ShareDiff(*(tuple(names) for names in lists))


def apply_shares(catalog: Catalog, declared: Sequence[DeclaredShare]) -> ShareDiff:
    """Make the declared shares the declared part of the catalog, in one transaction; twice changes nothing.

    Raises:
        BadRequest: a name the protocol cannot carry, or the same name twice, or one that was shared by hand.
    """
    _require_good_names(declared)
    changes = _Changes()
    with catalog.writing() as session:
        kept: set[int] = set()
        for share in declared:
            row = _declared_row(session, share)
            kept |= {_apply_table(session, row, table, changes) for table in share.tables}
        _remove_undeclared(session, kept, {share.name.lower() for share in declared}, changes)
    return changes.diff()


def _require_good_names(declared: Sequence[DeclaredShare]) -> None:
    seen: set[str] = set()
    for field_name, parents, name in _named(declared):
        path = "/".join((*parents, name))
        require_name(field_name, name)
        if path.lower() in seen:
            raise BadRequest(
                field_name, path, "The name is declared twice; case makes no difference to recipients."
            )
        seen.add(path.lower())


def _named(declared: Sequence[DeclaredShare]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for share in declared:
        yield "share", (), share.name
        for schema in {table.schema.lower(): table.schema for table in share.tables}.values():
            yield "schema", (share.name,), schema
        for table in share.tables:
            yield "table", (share.name, table.schema), table.name


def _declared_row(session: Session, share: DeclaredShare) -> ShareRow:
    row = share_row(session, share.name, share.description, declared=True)
    if row.declared:
        row.name, row.comment = share.name, share.description
    return row


def share_row(session: Session, name: str, comment: str | None = None, *, declared: bool) -> ShareRow:
    """The share of this name, made when it is not there."""
    row = session.scalars(select(ShareRow).where(ShareRow.name_key == name.lower())).one_or_none()
    if row is None:
        row = ShareRow(
            id=str(uuid.uuid4()),
            name=name,
            name_key=name.lower(),
            comment=comment,
            declared=declared,
            created_at=datetime.now(UTC),
        )
        session.add(row)
        session.flush()
    return row


def schema_row(session: Session, share: ShareRow, name: str, *, declared: bool) -> SchemaRow:
    """The schema of a share, made when it is not there."""
    same = select(SchemaRow).where(SchemaRow.share_key == share.key, SchemaRow.name_key == name.lower())
    row = session.scalars(same).one_or_none()
    if row is None:
        row = SchemaRow(share_key=share.key, name=name, name_key=name.lower(), declared=declared)
        session.add(row)
        session.flush()
    return row


def table_row(session: Session, schema: SchemaRow, name: str) -> SharedTableRow | None:
    """The shared table of this name."""
    same = select(SharedTableRow).where(
        SharedTableRow.schema_key == schema.key, SharedTableRow.name_key == name.lower()
    )
    return session.scalars(same).one_or_none()


def point_at(row: SharedTableRow, lake_table: str) -> bool:
    """Let a shared table stand for a table of the lake; says whether directory access to another one ends with it."""
    # Whoever allowed it looked at what lies in the folder of the table it stood for.
    ends = bool(row.directory_access) and row.lake_table != lake_table
    if ends:
        row.directory_access = False
    row.lake_table = lake_table
    return ends


def _apply_table(session: Session, share: ShareRow, table: SharedTable, changes: _Changes) -> int:
    schema = schema_row(session, share, table.schema, declared=True)
    path = f"{share.name}.{schema.name}.{table.name}"
    row = table_row(session, schema, table.name)
    if row is None:
        row = SharedTableRow(id=str(uuid.uuid4()), schema_key=schema.key, name_key=table.name.lower())
        session.add(row)
        report = changes.added
    elif not row.declared:
        raise BadRequest("table", path, "It was shared by hand; remove it there, or declare another name.")
    elif (row.name, row.lake_table, row.comment, row.history) == _told(table):
        report = changes.unchanged
    else:
        report = changes.changed
    if point_at(row, table.table):
        changes.closed.append(path)
    row.name, row.comment, row.history, row.declared = table.name, table.comment, table.history, True
    session.flush()
    report.append(path)
    return row.key


def _told(table: SharedTable) -> tuple[str, str, str | None, bool]:
    return table.name, table.table, table.comment, table.history


def _remove_undeclared(session: Session, kept: set[int], names: set[str], changes: _Changes) -> None:
    rows = session.execute(
        select(SharedTableRow, SchemaRow.name, ShareRow.name)
        .join(SchemaRow, SchemaRow.key == SharedTableRow.schema_key)
        .join(ShareRow, ShareRow.key == SchemaRow.share_key)
        .where(SharedTableRow.declared)
        .order_by(SharedTableRow.key)
    ).all()
    for row, schema, share in rows:
        if row.key not in kept:
            changes.removed.append(f"{share}.{schema}.{row.name}")
            session.delete(row)
    session.flush()
    session.execute(
        delete(SchemaRow).where(SchemaRow.declared, SchemaRow.key.not_in(select(SharedTableRow.schema_key)))
    )
    # A share that somebody was granted stays, empty: dropping it would drop the grant.
    session.execute(
        delete(ShareRow).where(
            ShareRow.declared,
            ShareRow.name_key.not_in(names),
            ShareRow.key.not_in(select(SchemaRow.share_key)),
            ShareRow.key.not_in(select(GrantRow.share_key)),
        )
    )
