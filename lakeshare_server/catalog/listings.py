"""The shares, schemas and tables that one recipient can read.

An ungranted share, schema or table is not found, exactly like one that does not exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, select, union_all
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    RecipientRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
)
from lakeshare_server.catalog.states import OBJECTS, Share, SharedTable, object_from_row, share_from_row
from lakeshare_server.errors import BadRequest, NotFound


@dataclass(frozen=True)
class EffectiveGrant:
    """The combined grants of one recipient on one share.

    `rules` are those of all grants in force: a row can be read if any is true; None if a grant has no rule.
    `properties` are the values of `current_recipient`. `valid_until` is when the next grant begins or ends.
    """

    recipient_id: str
    recipient_name: str
    properties: Mapping[str, Any] = field(hash=False)
    rules: tuple[str, ...] | None = None
    valid_until: datetime | None = None

    def is_over(self) -> bool:
        """Whether a grant has begun or ended since."""
        return self.valid_until is not None and self.valid_until <= datetime.now(UTC)


def select_grants(recipient_id: str) -> Subquery:
    """All grants of a recipient and of its groups, also ended and future ones.

    The recipient is selected inside, so that databases join no other grants.
    """
    terms = "share_key", "starts_at", "ends_at", "rule"
    reader = RecipientRow.name.label("recipient_name"), RecipientRow.properties
    own = (
        select(*(getattr(GrantRow, name) for name in terms), *reader)
        .join(RecipientRow, RecipientRow.key == GrantRow.recipient_key)
        .where(RecipientRow.id == recipient_id)
    )
    of_groups = (
        select(*(getattr(GroupGrantRow, name) for name in terms), *reader)
        .join(GroupMemberRow, GroupMemberRow.group_key == GroupGrantRow.group_key)
        .join(RecipientRow, RecipientRow.key == GroupMemberRow.recipient_key)
        .where(RecipientRow.id == recipient_id)
    )
    return union_all(own, of_groups).subquery("own_grants")


def select_granted(recipient_id: str, now: datetime) -> Select[int]:
    """The keys of the shares that the recipient may read at that time, each once."""
    grants = select_grants(recipient_id).c
    has_begun = grants.starts_at.is_(None) | (grants.starts_at <= now)
    in_force = has_begun & (grants.ends_at.is_(None) | (grants.ends_at > now))
    return select(grants.share_key).where(in_force).distinct()


def effective_grant(recipient_id: str, grants: Sequence[Any], now: datetime) -> EffectiveGrant | None:
    """Combines the recipient's grants on one share, rows of `select_grants`; None if no grant is in force."""
    in_force = [
        grant.rule
        for grant in grants
        if (grant.starts_at is None or grant.starts_at <= now)
        and (grant.ends_at is None or grant.ends_at > now)
    ]
    if not in_force:
        return None
    times = (time for grant in grants for time in (grant.starts_at, grant.ends_at))
    return EffectiveGrant(
        recipient_id=recipient_id,
        recipient_name=grants[0].recipient_name,
        properties=grants[0].properties or {},
        # Sorted: databases return grants in any order, and table tokens for the same rules must stay valid.
        rules=None if None in in_force else tuple(sorted(set(in_force))),
        valid_until=min((time for time in times if time is not None and time > now), default=None),
    )


@dataclass(frozen=True)
class SchemaEntry:
    """A schema of a share."""

    key: int
    name: str
    share: Share


@dataclass(frozen=True)
class GrantedTable:
    """A shared table and the recipient's combined grants on its share."""

    entry: SharedTable
    grant: EffectiveGrant


class Listings:
    """The shares of one recipient, given by id. A page has the objects after a key, in the order of keys."""

    def __init__(self, catalog: Catalog, recipient_id: str) -> None:
        self.catalog, self.recipient_id = catalog, recipient_id

    def shares(self, after: int, limit: int) -> list[Share]:
        """Lists the granted shares."""
        page = _page(select_granted(self.recipient_id, datetime.now(UTC)), after, limit)
        rows = select(ShareRow).where(ShareRow.key.in_(page)).order_by(ShareRow.key)
        with self.catalog.reading() as session:
            return [share_from_row(row) for row in session.scalars(rows)]

    def share(self, name: str) -> Share:
        """Returns a granted share; raises NotFound if it is unknown or not granted."""
        with self.catalog.reading() as session:
            return self._share(session, name)

    def schemas(self, share: str, after: int, limit: int) -> list[SchemaEntry]:
        """Lists the schemas of a granted share; raises NotFound."""
        with self.catalog.reading() as session:
            parent = self._share(session, share)
            rows = select(SchemaRow).where(SchemaRow.share_key == parent.key, SchemaRow.key > after)
            page = session.scalars(rows.order_by(SchemaRow.key).limit(limit))
            return [SchemaEntry(row.key, row.name, parent) for row in page]

    def schema(self, share: str, name: str) -> SchemaEntry:
        """Returns a schema of a granted share; raises NotFound."""
        with self.catalog.reading() as session:
            parent = self._share(session, share)
            row = session.get_one(SchemaRow, _schema_key(session, parent, name))
            return SchemaEntry(row.key, row.name, parent)

    def tables(self, share: str, schema: str | None, after: int, limit: int) -> list[SharedTable]:
        """Lists the tables of a schema, or of the whole granted share; raises NotFound."""
        with self.catalog.reading() as session:
            parent = self._share(session, share)
            keys = _tables_of(parent).with_only_columns(SharedTableRow.key)
            if schema is not None:
                keys = keys.where(SchemaRow.key == _schema_key(session, parent, schema))
            page = _page(keys, after, limit)
            rows = _tables_of(parent).where(SharedTableRow.key.in_(page)).order_by(SharedTableRow.key)
            return [object_from_row(row, name, parent) for row, name in session.execute(rows)]

    def table(self, share: str, schema: str, table: str) -> GrantedTable:
        """Returns a table of a granted share; raises NotFound."""
        named = (
            ShareRow.name_key == share.lower(),
            SchemaRow.name_key == schema.lower(),
            SharedTableRow.name_key == table.lower(),
        )
        return self._granted_table(f"{share}/{schema}/{table}", *named)

    def table_of_id(self, table_id: str) -> GrantedTable:
        """Returns a table of a granted share by its id; raises NotFound."""
        return self._granted_table(table_id, SharedTableRow.id == table_id)

    def _granted_table(self, shown_as: str, *conditions: ColumnElement[bool]) -> GrantedTable:
        grants = select_grants(self.recipient_id)
        statement = (
            select(ShareRow, SchemaRow.name.label("schema"), SharedTableRow, *grants.c)
            .join(SchemaRow, SchemaRow.share_key == ShareRow.key)
            .join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
            .join(grants, grants.c.share_key == ShareRow.key)
            .where(*conditions)
        )
        with self.catalog.reading() as session:
            rows = session.execute(statement).all()
            grant = effective_grant(self.recipient_id, rows, datetime.now(UTC))
            if grant is None:
                raise NotFound("[Share/Schema/Table]", shown_as)
            parent, schema_name, row, *_ = rows[0]
            return GrantedTable(object_from_row(row, schema_name, share_from_row(parent)), grant)

    def _share(self, session: Session, name: str) -> Share:
        is_granted = ShareRow.key.in_(select_granted(self.recipient_id, datetime.now(UTC)))
        named = select(ShareRow).where(is_granted, ShareRow.name_key == name.lower())
        row = session.scalars(named).one_or_none()
        if row is None:
            raise NotFound("Share", name)
        return share_from_row(row)


def list_all_shared_tables(catalog: Catalog) -> list[SharedTable]:
    """Lists every table of every share: for the provider, never for a recipient."""
    with catalog.reading() as session:
        rows = session.execute(OBJECTS.order_by(ShareRow.key, SharedTableRow.key))
        return [object_from_row(row, schema.name, share) for share, schema, row in rows]


def _page(keys: Select[int], after: int, limit: int) -> Select[int]:
    """The keys of a page. Only its rows are read whole: databases sort all that could be on it."""
    [key] = keys.selected_columns
    return keys.where(key > after).order_by(key).limit(limit)


def _tables_of(share: Share) -> Select[SharedTableRow, str]:
    joined = select(SharedTableRow, SchemaRow.name).join(
        SchemaRow, SchemaRow.key == SharedTableRow.schema_key
    )
    return joined.where(SchemaRow.share_key == share.key)


def _schema_key(session: Session, share: Share, name: str) -> int:
    named = select(SchemaRow.key).where(SchemaRow.share_key == share.key, SchemaRow.name_key == name.lower())
    key = session.scalars(named).one_or_none()
    if key is None:
        raise NotFound("[Share/Schema]", f"{share.name}/{name}")
    return key


def find_shared_table(catalog: Catalog, path: str, field: str) -> SharedTable:
    """Returns the table that is shared as `share.schema.table`: for the provider, never for a recipient.

    Raises BadRequest with `field` and the tables that exist.
    """
    entries = {entry.path.lower(): entry for entry in list_all_shared_tables(catalog)}
    if path.lower() not in entries:
        shared = ", ".join(entry.path for entry in entries.values()) or "none"
        raise BadRequest(field, path, f"Shared are: {shared}.")
    return entries[path.lower()]
