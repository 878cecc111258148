"""Doing SHOW and DESCRIBE for the provider. Columns of ours stand behind those of Databricks' manual."""

from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.audit import usage
from lakeshare_server.catalog.sharing import (
    Grant,
    Group,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
    look,
)
from lakeshare_server.errors import BadRequest
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.results import Cell, Result, matches, rows_of

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
    found = [share for share in look.shares(session) if matches(asked.pattern, share.name)]
    return rows_of(SHARE_COLUMNS, (_made(share) for share in _by_name(found)))


def show_shares_in_provider(_: Session, asked: said.ShowSharesInProvider) -> Result:
    """SHOW SHARES IN PROVIDER: a recipient's question; refused with the answer to it."""
    hint = (
        "This is the provider itself: SHOW SHARES shows its own. Recipients list theirs with their profile."
    )
    raise BadRequest("PROVIDER", asked.provider, hint)


def show_all_in_share(session: Session, asked: said.ShowAllInShare) -> Result:
    """SHOW ALL IN SHARE."""
    return rows_of(OBJECT_COLUMNS, (_object(one) for one in look.objects(session, asked.share)))


def show_recipients(session: Session, asked: said.ShowRecipients) -> Result:
    """SHOW RECIPIENTS."""
    found = [one for one in look.recipients(session) if matches(asked.pattern, one.name)]
    rows = ((*_made(one), one.authentication, one.state) for one in _by_name(found))
    return rows_of(RECIPIENT_COLUMNS, rows)


def show_groups(session: Session, asked: said.ShowGroups) -> Result:
    """SHOW GROUPS."""
    found = [one for one in look.groups(session) if matches(asked.pattern, one.name)]
    return rows_of(GROUP_COLUMNS, ((*_made(one), ", ".join(one.members)) for one in _by_name(found)))


def show_grants_on_share(session: Session, asked: said.ShowGrantsOnShare) -> Result:
    """SHOW GRANTS ON SHARE."""
    return rows_of(GRANTS_ON_COLUMNS, (_grant_on(one) for one in look.grants_on(session, asked.share)))


def show_grants_to(session: Session, asked: said.ShowGrantsTo) -> Result:
    """SHOW GRANTS TO RECIPIENT | GROUP; those of a recipient's groups are its own."""
    name = asked.grantee.name
    if asked.grantee.kind == "RECIPIENT":
        found = look.grants_to(session, name)
    else:
        group = look.group(session, name)
        found = [one for one in look.grants(session) if one.group == group.name]
    return rows_of(GRANTS_TO_COLUMNS, (_grant_to(one) for one in found))


def show_usage(session: Session, asked: said.ShowUsage, catalog: Catalog) -> Result:
    """SHOW USAGE FOR RECIPIENT: by day (UTC), table and version, from the day it was made on if no other is named."""
    one = look.recipient(session, asked.recipient)
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
    share = look.share(session, asked.name)
    row = (*_made(share), share.display_name, share.owner, share.updated_at, share.updated_by)
    return rows_of(SHARE_DETAILS, [row])


def describe_group(session: Session, asked: said.DescribeGroup) -> Result:
    """DESCRIBE GROUP."""
    group = look.group(session, asked.name)
    return rows_of(GROUP_COLUMNS, [(*_made(group), ", ".join(group.members))])


def describe_recipient(session: Session, asked: said.DescribeRecipient) -> Result:
    """DESCRIBE RECIPIENT: a name and a value in each row."""
    one = look.recipient(session, asked.name)
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
