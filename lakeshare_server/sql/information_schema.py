"""The views of `information_schema`: what SHOW tells, of everything at once, in the manual's columns."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from lakeshare_server.catalog.sharing import SharedObject, look
from lakeshare_server.errors import NotFound
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.looks import link_state
from lakeshare_server.sql.results import Cell, Result, rows_of

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
            for one in look.shares(session)
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
            for one in look.recipients(session)
        ),
    )


def recipient_tokens(session: Session) -> Result:
    """Every token; where a recipient has none yet, its link."""
    rows: list[tuple[Cell, ...]] = []
    for one in look.recipients(session):
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
    members = {group.name: group.members for group in look.groups(session)}
    rows: list[tuple[Cell, ...]] = []
    for one in look.grants(session):
        readers = (one.recipient,) if one.recipient is not None else members[one.group or ""]
        inherited = None if one.group is None else f"GROUP {one.group}"
        times = (one.starts_at, one.ends_at, one.rule)
        rows += [(one.created_by, reader, one.share, "SELECT", inherited, *times) for reader in readers]
    return rows_of(PRIVILEGES, rows)


def table_share_usage(session: Session) -> Result:
    """Which tables are in which share."""
    return rows_of(TABLES, map(_usage, look.objects(session)))


def recipient_allowed_ip_ranges(session: Session) -> Result:
    """From where recipients may come, one network in a row; who has none may come from anywhere."""
    found = look.recipients(session)
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
