"""Doing SHOW and DESCRIBE for the provider. Columns of ours stand behind those of Databricks' manual."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, Listings, ShareEntry, TableEntry
from lakeshare_server.catalog.audit import read_usage
from lakeshare_server.catalog.models import MAX_LONG
from lakeshare_server.catalog.sharing import (
    Grant,
    Group,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
    states,
)
from lakeshare_server.errors import BadRequest, Denied, NotFound
from lakeshare_server.sql import statements as statement_types
from lakeshare_server.sql.changes import Provider
from lakeshare_server.sql.statements import Cell, Columns, Result, make_rows, matches_pattern

CreatedRow = TypeVar("CreatedRow", Share, RecipientState, Group)

CREATED_COLUMNS = {"name": str, "created_at": datetime, "created_by": str, "comment": str}
SHARE_COLUMNS = CREATED_COLUMNS
SHARE_DETAILS = {
    **CREATED_COLUMNS,
    "display_name": str,
    "owner": str,
    "updated_at": datetime,
    "updated_by": str,
}
OBJECT_COLUMNS = {
    "name": str,
    "type": str,
    "shared_object": str,
    "added_at": datetime,
    "added_by": str,
    "comment": str,
    "partitions": str,
    "history": bool,
    "start_version": int,
    "publication": int,
}
RECIPIENT_COLUMNS = {**CREATED_COLUMNS, "authentication_type": str, "state": str}
GROUP_COLUMNS = {**CREATED_COLUMNS, "members": str}
GRANTS_ON_COLUMNS = {
    "recipient": str,
    "actionType": str,
    "objectType": str,
    "objectKey": str,
    "granteeType": str,
    "startsAt": datetime,
    "endsAt": datetime,
    "rule": str,
}
GRANTS_TO_COLUMNS = {
    "share": str,
    "privilege": str,
    "via_group": str,
    "starts_at": datetime,
    "ends_at": datetime,
    "rule": str,
}
USAGE_COLUMNS = {
    "day": str,
    "table": str,
    "version": int,
    "requests": int,
    "queries": int,
    "files": int,
    "size_bytes": int,
    "refused": int,
}
INFO_COLUMNS = {"info_name": str, "info_value": str}


def show_shares(session: Session, statement: statement_types.ShowShares) -> Result:
    """SHOW SHARES."""
    found = [share for share in states.list_shares(session) if matches_pattern(statement.pattern, share.name)]
    return make_rows(SHARE_COLUMNS, (_created_row(share) for share in _by_name(found)))


def show_shares_in_provider(_: Session, statement: statement_types.ShowSharesInProvider) -> Result:
    """SHOW SHARES IN PROVIDER: a recipient's question; refused with the answer to it."""
    hint = (
        "This is the provider itself: SHOW SHARES shows its own. Recipients list theirs with their profile."
    )
    raise BadRequest("PROVIDER", statement.provider, hint)


def show_all_in_share(session: Session, statement: statement_types.ShowAllInShare) -> Result:
    """SHOW ALL IN SHARE."""
    return make_rows(OBJECT_COLUMNS, (_object(one) for one in states.list_objects(session, statement.share)))


def show_recipients(session: Session, statement: statement_types.ShowRecipients) -> Result:
    """SHOW RECIPIENTS."""
    found = [
        recipient
        for recipient in states.list_recipients(session)
        if matches_pattern(statement.pattern, recipient.name)
    ]
    rows = ((*_created_row(one), one.authentication, one.state) for one in _by_name(found))
    return make_rows(RECIPIENT_COLUMNS, rows)


def show_groups(session: Session, statement: statement_types.ShowGroups) -> Result:
    """SHOW GROUPS."""
    found = [group for group in states.list_groups(session) if matches_pattern(statement.pattern, group.name)]
    return make_rows(GROUP_COLUMNS, ((*_created_row(one), ", ".join(one.members)) for one in _by_name(found)))


def show_grants_on_share(session: Session, statement: statement_types.ShowGrantsOnShare) -> Result:
    """SHOW GRANTS ON SHARE."""
    return make_rows(
        GRANTS_ON_COLUMNS, (_grant_on(one) for one in states.list_grants_on(session, statement.share))
    )


def show_grants_to(session: Session, statement: statement_types.ShowGrantsTo) -> Result:
    """SHOW GRANTS TO RECIPIENT | GROUP; those of a recipient's groups are its own."""
    name = statement.grantee.name
    if statement.grantee.kind == "RECIPIENT":
        found = states.list_grants_to(session, name)
    else:
        group = states.get_group(session, name)
        found = [grant for grant in states.list_grants(session) if grant.group == group.name]
    return make_rows(GRANTS_TO_COLUMNS, (_grant_to(one) for one in found))


def show_usage(session: Session, statement: statement_types.ShowUsage, catalog: Catalog) -> Result:
    """SHOW USAGE FOR RECIPIENT: by day (UTC), table and version, from the day it was made on if no other is named."""
    one = states.get_recipient(session, statement.recipient)
    since = statement.since or one.created_at
    found = read_usage(catalog, since.date(), datetime.now(UTC).date(), one.name)
    rows = (
        (
            each.day.isoformat(),
            each.table,
            each.version,
            each.requests,
            each.queries,
            each.files,
            each.size_bytes,
            each.refused,
        )
        for each in sorted(found, key=lambda each: (each.day, each.table or "", each.version or 0))
    )
    return make_rows(USAGE_COLUMNS, rows)


def describe_share(session: Session, statement: statement_types.DescribeShare) -> Result:
    """DESCRIBE SHARE."""
    share = states.get_share(session, statement.name)
    row = (*_created_row(share), share.display_name, share.owner, share.updated_at, share.updated_by)
    return make_rows(SHARE_DETAILS, [row])


def describe_group(session: Session, statement: statement_types.DescribeGroup) -> Result:
    """DESCRIBE GROUP."""
    group = states.get_group(session, statement.name)
    return make_rows(GROUP_COLUMNS, [(*_created_row(group), ", ".join(group.members))])


def describe_recipient(session: Session, statement: statement_types.DescribeRecipient) -> Result:
    """DESCRIBE RECIPIENT: a name and a value in each row."""
    one = states.get_recipient(session, statement.name)
    now = datetime.now(UTC)
    valid = [token for token in one.tokens if token.is_valid(now)]
    active = next((token for token in reversed(valid) if token.superseded_at is None), None)
    facts: list[tuple[str, object]] = [
        ("recipient_name", one.name),
        ("recipient_id", one.id),
        ("authentication_type", one.authentication),
        ("owner", one.owner),
        ("created_by", one.created_by),
        ("create_at", one.created_at),
        ("updated_by", one.updated_by),
        ("updated_at", one.updated_at),
        ("comment", one.comment),
        ("active_token_id", active and active.id),
        ("active_token_expiration", active and active.expires_at),
        ("activation_link", link_state(one, now)),
        *_rotated(valid),
        ("state", one.state),
        ("expiration", one.expires_at),
        *((f"property {key}", value) for key, value in one.properties.items()),
        ("ip_allow", ", ".join(one.ip_allow) or None),
        ("agreement_accepted_at", one.agreement_accepted_at),
        ("groups", ", ".join(one.groups) or None),
        *((f"oidc {policy.name}", f"{policy.issuer} {policy.subject}") for policy in one.policies),
    ]
    return make_rows(INFO_COLUMNS, ((name, format_value(value)) for name, value in facts))


def link_state(recipient: RecipientState, now: datetime) -> str | None:
    """What has become of a recipient's newest link; the link itself was shown once and is kept nowhere."""
    if not recipient.links:
        return None
    link = recipient.links[-1]
    if link.used_at is not None:
        return f"used {format_value(link.used_at)} from {link.used_from or 'an unknown address'}"
    if link.is_open(now):
        return f"open until {format_value(link.expires_at)}"
    return f"ended {format_value(link.revoked_at or link.expires_at)}"


def format_value(value: object) -> str | None:
    """A value as text: times in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return None if value is None else str(value)


def _created_row(one: Share | RecipientState | Group) -> tuple[Cell, ...]:
    return one.name, one.created_at, one.created_by, one.comment


def _by_name(found: list[CreatedRow]) -> list[CreatedRow]:
    return sorted(found, key=lambda one: one.name.lower())


def _object(one: SharedObject) -> tuple[Cell, ...]:
    return (
        f"{one.schema}.{one.name}",
        one.kind,
        one.table,
        one.added_at,
        one.added_by,
        one.comment,
        one.rule,
        one.history,
        one.start_version,
        one.publication,
    )


def _grant_on(one: Grant) -> tuple[Cell, ...]:
    kind = "RECIPIENT" if one.recipient is not None else "GROUP"
    named = one.recipient or one.group
    return named, "SELECT", "SHARE", one.share, kind, one.starts_at, one.ends_at, one.rule


def _grant_to(one: Grant) -> tuple[Cell, ...]:
    return one.share, "SELECT", one.group, one.starts_at, one.ends_at, one.rule


def _rotated(valid: list[TokenState]) -> list[tuple[str, object]]:
    rotated = [token for token in valid if token.superseded_at is not None]
    return [
        fact
        for token in rotated
        for fact in (("rotated_token_id", token.id), ("rotated_token_expiration", token.expires_at))
    ]


SCHEMA = "information_schema"
TOUCHED = {"created": datetime, "created_by": str, "last_altered": datetime, "last_altered_by": str}
SHARES = {"share_name": str, "share_owner": str, "comment": str, **TOUCHED}
RECIPIENTS = {
    "recipient_name": str,
    "recipient_id": str,
    "recipient_owner": str,
    "authentication_type": str,
    "comment": str,
    **TOUCHED,
    "state": str,
}
TOKENS = {
    "recipient_name": str,
    "recipient_token_id": str,
    "activation_url": str,
    "expiration_time": datetime,
    **TOUCHED,
    "revoked": datetime,
    "last_used": datetime,
}
PRIVILEGES = {
    "grantor": str,
    "recipient_name": str,
    "share_name": str,
    "privilege_type": str,
    "inherited_from": str,
    "starts": datetime,
    "ends": datetime,
    "rule": str,
}
TABLES = {
    "catalog_name": str,
    "schema_name": str,
    "table_name": str,
    "share_name": str,
    "partition_spec": str,
    "cdf_enabled": str,
    "start_version": int,
    "shared_as_schema": str,
    "shared_as_table": str,
    "comment": str,
}
ADDRESSES = {"recipient_name": str, "allowed_ip_range": str}


def select_all(session: Session, statement: statement_types.SelectAll) -> Result:
    """SELECT * FROM information_schema.….

    Raises:
        NotFound: there is no such view.
    """
    *parents, name = (part.lower() for part in statement.path)
    if parents[-1:] != [SCHEMA] or name not in VIEWS:
        known = ", ".join(sorted(VIEWS))
        raise NotFound(
            "View", f"{'.'.join(statement.path)} ({SCHEMA} has {known}; rows of tables: `lakeshare as`)"
        )
    found = VIEWS[name](session)
    return Result(found.columns, found.rows[: statement.limit])


def shares(session: Session) -> Result:
    """Every share."""
    return make_rows(
        SHARES,
        (
            (
                share.name,
                share.owner,
                share.comment,
                share.created_at,
                share.created_by,
                share.updated_at,
                share.updated_by,
            )
            for share in states.list_shares(session)
        ),
    )


def recipients(session: Session) -> Result:
    """Every recipient."""
    return make_rows(
        RECIPIENTS,
        (
            (
                *(recipient.name, recipient.id, recipient.owner, recipient.authentication, recipient.comment),
                *(recipient.created_at, recipient.created_by, recipient.updated_at, recipient.updated_by),
                recipient.state,
            )
            for recipient in states.list_recipients(session)
        ),
    )


def recipient_tokens(session: Session) -> Result:
    """Every token; where a recipient has none yet, its link."""
    rows: list[tuple[Cell, ...]] = []
    for recipient in states.list_recipients(session):
        link = link_state(recipient, datetime.now(UTC))
        if not recipient.tokens and recipient.links:
            last = recipient.links[-1]
            rows.append((recipient.name, None, link, None, last.created_at, last.created_by, *(None,) * 4))
        rows += [
            (
                *(recipient.name, token.id, link, token.expires_at, token.created_at, token.created_by),
                *(token.superseded_at, None, token.revoked_at, token.last_used_at),
            )
            for token in recipient.tokens
        ]
    return make_rows(TOKENS, rows)


def share_recipient_privileges(session: Session) -> Result:
    """Who may read which share; what comes through a group says so."""
    members = {group.name: group.members for group in states.list_groups(session)}
    rows: list[tuple[Cell, ...]] = []
    for grant in states.list_grants(session):
        readers = (grant.recipient,) if grant.recipient is not None else members[grant.group or ""]
        inherited = None if grant.group is None else f"GROUP {grant.group}"
        times = (grant.starts_at, grant.ends_at, grant.rule)
        rows += [(grant.created_by, reader, grant.share, "SELECT", inherited, *times) for reader in readers]
    return make_rows(PRIVILEGES, rows)


def table_share_usage(session: Session) -> Result:
    """Which tables are in which share."""
    return make_rows(TABLES, map(_usage, states.list_objects(session)))


def recipient_allowed_ip_ranges(session: Session) -> Result:
    """From where recipients may come, one network in a row; who has none may come from anywhere."""
    found = states.list_recipients(session)
    return make_rows(ADDRESSES, ((one.name, address) for one in found for address in one.ip_allow))


VIEWS: Mapping[str, Callable[[Session], Result]] = {
    "shares": shares,
    "recipients": recipients,
    "recipient_tokens": recipient_tokens,
    "share_recipient_privileges": share_recipient_privileges,
    "table_share_usage": table_share_usage,
    "recipient_allowed_ip_ranges": recipient_allowed_ip_ranges,
}


def _usage(one: SharedObject) -> tuple[Cell, ...]:
    parents, _, table = one.table.rpartition(".")
    catalog, _, schema = parents.rpartition(".")
    return (
        catalog or None,
        schema or None,
        table,
        one.share,
        one.rule,
        "YES" if one.history else "NO",
        one.start_version,
        one.schema,
        one.name,
        one.comment,
    )


RowsReadBy = Callable[[str, tuple[str, ...], int], tuple[list[str], list[list[str]]]]
DEFAULT_ROWS, MAX_ROWS = 100, 1000


@dataclass(frozen=True)
class RecipientSession:
    """The eyes of one recipient."""

    provider: Provider
    recipient: str
    recipient_id: str
    rows: RowsReadBy | None = None

    def look(self, statement: statement_types.ReadStatement) -> Result:
        """What the recipient is shown.

        Raises:
            NotFound: it does not exist for this recipient.
            Denied: recipients are never shown such a thing.
        """
        if type(statement) not in _READS:
            raise Denied(
                f"{self.recipient} is not shown this. RESET RECIPIENT shows what the provider sees again."
            )
        return _READS[type(statement)](self, statement)

    def shares(self) -> list[ShareEntry]:
        """The shares it may read now."""
        found = self._listings().shares(0, MAX_LONG)
        return sorted(found, key=lambda share: share.name.lower())

    def tables(self, share: str) -> list[TableEntry]:
        """The tables of a share it may read now."""
        return self._listings().tables(share, None, 0, MAX_LONG)

    def _listings(self) -> Listings:
        return Listings(self.provider.catalog, self.recipient_id)


def _show_shares(session: RecipientSession, statement: statement_types.ShowShares) -> Result:
    found = [share for share in session.shares() if matches_pattern(statement.pattern, share.name)]
    return make_rows(
        SHARE_COLUMNS, (_fill_columns(SHARE_COLUMNS, name=one.name, comment=one.comment) for one in found)
    )


def _show_all(session: RecipientSession, statement: statement_types.ShowAllInShare) -> Result:
    return make_rows(OBJECT_COLUMNS, map(_recipient_object, session.tables(statement.share)))


def _describe_share(session: RecipientSession, statement: statement_types.DescribeShare) -> Result:
    named = [share for share in session.shares() if share.name.lower() == statement.name.lower()]
    if not named:
        raise NotFound("Share", statement.name)
    one = named[0]
    row = _fill_columns(SHARE_DETAILS, name=one.name, comment=one.comment, display_name=one.display_name)
    return make_rows(SHARE_DETAILS, [row])


def _show_grants(session: RecipientSession, statement: statement_types.ShowGrantsTo) -> Result:
    if statement.grantee != statement_types.Grantee("RECIPIENT", statement.grantee.name) or not _is_recipient(
        session, statement.grantee.name
    ):
        raise NotFound(statement.grantee.kind.title(), statement.grantee.name)
    rows = (
        _fill_columns(GRANTS_TO_COLUMNS, share=share.name, privilege="SELECT") for share in session.shares()
    )
    return make_rows(GRANTS_TO_COLUMNS, rows)


def _select(session: RecipientSession, statement: statement_types.SelectAll) -> Result:
    *parents, name = (part.lower() for part in statement.path)
    if parents[-1:] != [SCHEMA]:
        return _rows(session, statement)
    if name not in _VIEWS:
        raise NotFound("View", ".".join(statement.path))
    found = _VIEWS[name](session)
    return Result(found.columns, found.rows[: statement.limit])


def _rows(session: RecipientSession, statement: statement_types.SelectAll) -> Result:
    if session.rows is None:
        path = ".".join(statement.path)
        hint = f"`lakeshare as {session.recipient} preview {path}` shows rows as this recipient reads them."
        raise BadRequest("FROM", path, hint)
    count = DEFAULT_ROWS if statement.limit is None else statement.limit
    if not 0 < count <= MAX_ROWS:
        raise BadRequest("LIMIT", count, f"From 1 to {MAX_ROWS} rows are shown here; clients read all.")
    columns, rows = session.rows(session.recipient, statement.path, count)
    message = f"the first {count}" if len(rows) == count else ""
    return make_rows(dict.fromkeys(columns, str), map(tuple, rows), message)


def _shares_view(session: RecipientSession) -> Result:
    columns = SHARES
    return make_rows(
        columns,
        (_fill_columns(columns, share_name=share.name, comment=share.comment) for share in session.shares()),
    )


def _tables_view(session: RecipientSession) -> Result:
    columns = TABLES
    found = [table for share in session.shares() for table in session.tables(share.name)]
    return make_rows(
        columns,
        (
            _fill_columns(
                columns,
                share_name=one.share.name,
                shared_as_schema=one.schema,
                shared_as_table=one.name,
                cdf_enabled="YES" if one.history else "NO",
                start_version=one.start_version,
                comment=one.comment,
            )
            for one in found
        ),
    )


def _recipient_object(one: TableEntry) -> tuple[Cell, ...]:
    return _fill_columns(
        OBJECT_COLUMNS,
        name=f"{one.schema}.{one.name}",
        type="TABLE",  # the protocol has no other
        comment=one.comment,
        history=one.history,
        start_version=one.start_version,
    )


def _fill_columns(columns: Columns, **known: Cell) -> tuple[Cell, ...]:
    return tuple(known.get(column) for column in columns)


def _is_recipient(session: RecipientSession, name: str) -> bool:
    return session.recipient.lower() == name.lower()


# By the type of the statement, which each function takes.
_READS: Mapping[type, Callable[[RecipientSession, Any], Result]] = {
    statement_types.ShowShares: _show_shares,
    statement_types.ShowAllInShare: _show_all,
    statement_types.DescribeShare: _describe_share,
    statement_types.ShowGrantsTo: _show_grants,
    statement_types.SelectAll: _select,
}
_VIEWS: Mapping[str, Callable[[RecipientSession], Result]] = {
    "shares": _shares_view,
    "table_share_usage": _tables_view,
}
