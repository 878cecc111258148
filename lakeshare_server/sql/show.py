"""Doing SHOW and DESCRIBE for the provider. Columns of ours stand behind those of Databricks' manual."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, Listings, ShareEntry, TableEntry
from lakeshare_server.catalog.audit import usage
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
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.changes import Provider
from lakeshare_server.sql.statements import Cell, Columns, Result, matches, rows_of

Made = TypeVar("Made", Share, RecipientState, Group)

MADE = {"name": str, "created_at": datetime, "created_by": str, "comment": str}
SHARE_COLUMNS = MADE
SHARE_DETAILS = {**MADE, "display_name": str, "owner": str, "updated_at": datetime, "updated_by": str}
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
RECIPIENT_COLUMNS = {**MADE, "authentication_type": str, "state": str}
GROUP_COLUMNS = {**MADE, "members": str}
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


def show_shares(session: Session, asked: said.ShowShares) -> Result:
    """SHOW SHARES."""
    found = [share for share in states.shares(session) if matches(asked.pattern, share.name)]
    return rows_of(SHARE_COLUMNS, (_made(share) for share in _by_name(found)))


def show_shares_in_provider(_: Session, asked: said.ShowSharesInProvider) -> Result:
    """SHOW SHARES IN PROVIDER: a recipient's question; refused with the answer to it."""
    hint = (
        "This is the provider itself: SHOW SHARES shows its own. Recipients list theirs with their profile."
    )
    raise BadRequest("PROVIDER", asked.provider, hint)


def show_all_in_share(session: Session, asked: said.ShowAllInShare) -> Result:
    """SHOW ALL IN SHARE."""
    return rows_of(OBJECT_COLUMNS, (_object(one) for one in states.objects(session, asked.share)))


def show_recipients(session: Session, asked: said.ShowRecipients) -> Result:
    """SHOW RECIPIENTS."""
    found = [one for one in states.recipients(session) if matches(asked.pattern, one.name)]
    rows = ((*_made(one), one.authentication, one.state) for one in _by_name(found))
    return rows_of(RECIPIENT_COLUMNS, rows)


def show_groups(session: Session, asked: said.ShowGroups) -> Result:
    """SHOW GROUPS."""
    found = [one for one in states.groups(session) if matches(asked.pattern, one.name)]
    return rows_of(GROUP_COLUMNS, ((*_made(one), ", ".join(one.members)) for one in _by_name(found)))


def show_grants_on_share(session: Session, asked: said.ShowGrantsOnShare) -> Result:
    """SHOW GRANTS ON SHARE."""
    return rows_of(GRANTS_ON_COLUMNS, (_grant_on(one) for one in states.grants_on(session, asked.share)))


def show_grants_to(session: Session, asked: said.ShowGrantsTo) -> Result:
    """SHOW GRANTS TO RECIPIENT | GROUP; those of a recipient's groups are its own."""
    name = asked.grantee.name
    if asked.grantee.kind == "RECIPIENT":
        found = states.grants_to(session, name)
    else:
        group = states.group(session, name)
        found = [one for one in states.grants(session) if one.group == group.name]
    return rows_of(GRANTS_TO_COLUMNS, (_grant_to(one) for one in found))


def show_usage(session: Session, asked: said.ShowUsage, catalog: Catalog) -> Result:
    """SHOW USAGE FOR RECIPIENT: by day (UTC), table and version, from the day it was made on if no other is named."""
    one = states.recipient(session, asked.recipient)
    since = asked.since or one.created_at
    found = usage(catalog, since.date(), datetime.now(UTC).date(), one.name)
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
    return rows_of(USAGE_COLUMNS, rows)


def describe_share(session: Session, asked: said.DescribeShare) -> Result:
    """DESCRIBE SHARE."""
    share = states.share(session, asked.name)
    row = (*_made(share), share.display_name, share.owner, share.updated_at, share.updated_by)
    return rows_of(SHARE_DETAILS, [row])


def describe_group(session: Session, asked: said.DescribeGroup) -> Result:
    """DESCRIBE GROUP."""
    group = states.group(session, asked.name)
    return rows_of(GROUP_COLUMNS, [(*_made(group), ", ".join(group.members))])


def describe_recipient(session: Session, asked: said.DescribeRecipient) -> Result:
    """DESCRIBE RECIPIENT: a name and a value in each row."""
    one = states.recipient(session, asked.name)
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
    return rows_of(INFO_COLUMNS, ((name, written(value)) for name, value in facts))


def link_state(recipient: RecipientState, now: datetime) -> str | None:
    """What has become of a recipient's newest link; the link itself was shown once and is kept nowhere."""
    if not recipient.links:
        return None
    link = recipient.links[-1]
    if link.used_at is not None:
        return f"used {written(link.used_at)} from {link.used_from or 'an unknown address'}"
    if link.is_open(now):
        return f"open until {written(link.expires_at)}"
    return f"ended {written(link.revoked_at or link.expires_at)}"


def written(value: object) -> str | None:
    """A value as text: times in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return None if value is None else str(value)


def _made(one: Share | RecipientState | Group) -> tuple[Cell, ...]:
    return one.name, one.created_at, one.created_by, one.comment


def _by_name(found: list[Made]) -> list[Made]:
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


def select_all(session: Session, asked: said.SelectAll) -> Result:
    """SELECT * FROM information_schema.….

    Raises:
        NotFound: there is no such view.
    """
    *parents, name = (part.lower() for part in asked.path)
    if parents[-1:] != [SCHEMA] or name not in VIEWS:
        known = ", ".join(sorted(VIEWS))
        raise NotFound(
            "View", f"{'.'.join(asked.path)} ({SCHEMA} has {known}; rows of tables: `lakeshare as`)"
        )
    found = VIEWS[name](session)
    return Result(found.columns, found.rows[: asked.limit])


def shares(session: Session) -> Result:
    """Every share."""
    return rows_of(
        SHARES,
        (
            (one.name, one.owner, one.comment, one.created_at, one.created_by, one.updated_at, one.updated_by)
            for one in states.shares(session)
        ),
    )


def recipients(session: Session) -> Result:
    """Every recipient."""
    return rows_of(
        RECIPIENTS,
        (
            (
                *(one.name, one.id, one.owner, one.authentication, one.comment),
                *(one.created_at, one.created_by, one.updated_at, one.updated_by),
                one.state,
            )
            for one in states.recipients(session)
        ),
    )


def recipient_tokens(session: Session) -> Result:
    """Every token; where a recipient has none yet, its link."""
    rows: list[tuple[Cell, ...]] = []
    for one in states.recipients(session):
        link = link_state(one, datetime.now(UTC))
        if not one.tokens and one.links:
            last = one.links[-1]
            rows.append((one.name, None, link, None, last.created_at, last.created_by, *(None,) * 4))
        rows += [
            (
                *(one.name, token.id, link, token.expires_at, token.created_at, token.created_by),
                *(token.superseded_at, None, token.revoked_at, token.last_used_at),
            )
            for token in one.tokens
        ]
    return rows_of(TOKENS, rows)


def share_recipient_privileges(session: Session) -> Result:
    """Who may read which share; what comes through a group says so."""
    members = {group.name: group.members for group in states.groups(session)}
    rows: list[tuple[Cell, ...]] = []
    for one in states.grants(session):
        readers = (one.recipient,) if one.recipient is not None else members[one.group or ""]
        inherited = None if one.group is None else f"GROUP {one.group}"
        times = (one.starts_at, one.ends_at, one.rule)
        rows += [(one.created_by, reader, one.share, "SELECT", inherited, *times) for reader in readers]
    return rows_of(PRIVILEGES, rows)


def table_share_usage(session: Session) -> Result:
    """Which tables are in which share."""
    return rows_of(TABLES, map(_usage, states.objects(session)))


def recipient_allowed_ip_ranges(session: Session) -> Result:
    """From where recipients may come, one network in a row; who has none may come from anywhere."""
    found = states.recipients(session)
    return rows_of(ADDRESSES, ((one.name, address) for one in found for address in one.ip_allow))


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
FEW, MOST = 100, 1000


@dataclass(frozen=True)
class SeenAs:
    """The eyes of one recipient."""

    provider: Provider
    recipient: str
    recipient_id: str
    rows: RowsReadBy | None = None

    def look(self, asked: said.Look) -> Result:
        """What the recipient is shown.

        Raises:
            NotFound: it does not exist for this recipient.
            Denied: recipients are never shown such a thing.
        """
        if type(asked) not in _LOOKS:
            raise Denied(
                f"{self.recipient} is not shown this. RESET RECIPIENT shows what the provider sees again."
            )
        return _LOOKS[type(asked)](self, asked)

    def shares(self) -> list[ShareEntry]:
        """The shares it may read now."""
        found = self._listings().shares(0, MAX_LONG)
        return sorted(found, key=lambda share: share.name.lower())

    def tables(self, share: str) -> list[TableEntry]:
        """The tables of a share it may read now."""
        return self._listings().tables(share, None, 0, MAX_LONG)

    def _listings(self) -> Listings:
        return Listings(self.provider.catalog, self.recipient_id)


def _show_shares(eyes: SeenAs, asked: said.ShowShares) -> Result:
    found = [share for share in eyes.shares() if matches(asked.pattern, share.name)]
    return rows_of(SHARE_COLUMNS, (_told(SHARE_COLUMNS, name=one.name, comment=one.comment) for one in found))


def _show_all(eyes: SeenAs, asked: said.ShowAllInShare) -> Result:
    return rows_of(OBJECT_COLUMNS, map(_seen_object, eyes.tables(asked.share)))


def _describe_share(eyes: SeenAs, asked: said.DescribeShare) -> Result:
    named = [share for share in eyes.shares() if share.name.lower() == asked.name.lower()]
    if not named:
        raise NotFound("Share", asked.name)
    one = named[0]
    row = _told(SHARE_DETAILS, name=one.name, comment=one.comment, display_name=one.display_name)
    return rows_of(SHARE_DETAILS, [row])


def _show_grants(eyes: SeenAs, asked: said.ShowGrantsTo) -> Result:
    if asked.grantee != said.Grantee("RECIPIENT", asked.grantee.name) or not _is_self(
        eyes, asked.grantee.name
    ):
        raise NotFound(asked.grantee.kind.title(), asked.grantee.name)
    rows = (_told(GRANTS_TO_COLUMNS, share=one.name, privilege="SELECT") for one in eyes.shares())
    return rows_of(GRANTS_TO_COLUMNS, rows)


def _select(eyes: SeenAs, asked: said.SelectAll) -> Result:
    *parents, name = (part.lower() for part in asked.path)
    if parents[-1:] != [SCHEMA]:
        return _rows(eyes, asked)
    if name not in _VIEWS:
        raise NotFound("View", ".".join(asked.path))
    found = _VIEWS[name](eyes)
    return Result(found.columns, found.rows[: asked.limit])


def _rows(eyes: SeenAs, asked: said.SelectAll) -> Result:
    if eyes.rows is None:
        path = ".".join(asked.path)
        hint = f"`lakeshare as {eyes.recipient} preview {path}` shows rows as this recipient reads them."
        raise BadRequest("FROM", path, hint)
    count = FEW if asked.limit is None else asked.limit
    if not 0 < count <= MOST:
        raise BadRequest("LIMIT", count, f"From 1 to {MOST} rows are shown here; clients read all.")
    columns, rows = eyes.rows(eyes.recipient, asked.path, count)
    told = f"the first {count}" if len(rows) == count else ""
    return rows_of(dict.fromkeys(columns, str), map(tuple, rows), told)


def _shares_view(eyes: SeenAs) -> Result:
    columns = SHARES
    return rows_of(
        columns, (_told(columns, share_name=one.name, comment=one.comment) for one in eyes.shares())
    )


def _tables_view(eyes: SeenAs) -> Result:
    columns = TABLES
    found = [table for share in eyes.shares() for table in eyes.tables(share.name)]
    return rows_of(
        columns,
        (
            _told(
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


def _seen_object(one: TableEntry) -> tuple[Cell, ...]:
    return _told(
        OBJECT_COLUMNS,
        name=f"{one.schema}.{one.name}",
        type="TABLE",  # the protocol has no other
        comment=one.comment,
        history=one.history,
        start_version=one.start_version,
    )


def _told(columns: Columns, **known: Cell) -> tuple[Cell, ...]:
    return tuple(known.get(column) for column in columns)


def _is_self(eyes: SeenAs, name: str) -> bool:
    return eyes.recipient.lower() == name.lower()


# By the type of the statement, which each function takes.
_LOOKS: Mapping[type, Callable[[SeenAs, Any], Result]] = {
    said.ShowShares: _show_shares,
    said.ShowAllInShare: _show_all,
    said.DescribeShare: _describe_share,
    said.ShowGrantsTo: _show_grants,
    said.SelectAll: _select,
}
_VIEWS: Mapping[str, Callable[[SeenAs], Result]] = {"shares": _shares_view, "table_share_usage": _tables_view}
