"""Operations on grants: who may read a share, from when until when, and which part of it."""

from datetime import datetime

from sqlalchemy import select

from lakeshare_server.catalog.models import GrantRow, GroupGrantRow
from lakeshare_server.catalog.names import require_rule_text
from lakeshare_server.catalog.sharing.editing import Edit, require_aware, touch
from lakeshare_server.catalog.sharing.look import group_row, recipient_row, share_row
from lakeshare_server.catalog.sharing.recipients import require_not_revoked
from lakeshare_server.catalog.sharing.states import Grant
from lakeshare_server.catalog.sharing.told import told_grant
from lakeshare_server.errors import BadRequest, NotFound


def grant(
    edit: Edit,
    share: str,
    *,
    recipient: str | None = None,
    group: str | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    rule: str | None = None,
    revision: int | None = None,
) -> Grant:
    """Let a recipient, or the members of a group, read a share; again, it changes the grant that is there.

    Raises:
        NotFound: there is no such share, recipient or group.
        BadRequest: not exactly one reader is named, the recipient was revoked, or a time or the rule cannot be used.
        CatalogConflict: the share's revision is another.
    """
    _require_times(starts_at, ends_at)
    require_rule_text("rule", rule)
    parent = share_row(edit.session, share)
    touch(edit, parent, "Share", parent.name, revision)
    row, reader = _row(edit, parent.key, recipient, group)
    before = None if row is None else told_grant(row, parent.name, **reader).as_json()
    if row is None:
        row = _new_row(edit, parent.key, recipient, group)
    if recipient is not None:
        require_not_revoked(recipient_row(edit.session, recipient))
    row.starts_at, row.ends_at, row.rule = starts_at, ends_at, rule
    edit.keep(row)
    edit.session.flush()
    told = told_grant(row, parent.name, **reader)
    edit.changed("grant", parent.name, before, told.as_json())
    return told


def revoke(
    edit: Edit,
    share: str,
    *,
    recipient: str | None = None,
    group: str | None = None,
    revision: int | None = None,
) -> Grant:
    """Let a recipient, or the members of a group, read a share no more.

    Raises:
        NotFound: there is no such share, recipient, group or grant.
        BadRequest: not exactly one reader is named.
        CatalogConflict: the share's revision is another.
    """
    parent = share_row(edit.session, share)
    touch(edit, parent, "Share", parent.name, revision)
    row, reader = _row(edit, parent.key, recipient, group)
    if row is None:
        raise NotFound("Grant", f"{parent.name} to {recipient or group}")
    told = told_grant(row, parent.name, **reader)
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("revoke", parent.name, told.as_json(), None)
    return told


def _row(
    edit: Edit, share_key: int, recipient: str | None, group: str | None
) -> tuple[GrantRow | GroupGrantRow | None, dict[str, str]]:
    if recipient is not None and group is None:
        reader = recipient_row(edit.session, recipient)
        own = select(GrantRow).where(GrantRow.share_key == share_key, GrantRow.recipient_key == reader.key)
        return edit.session.scalars(own).one_or_none(), {"recipient": reader.name}
    if group is not None and recipient is None:
        members = group_row(edit.session, group)
        of_group = select(GroupGrantRow).where(
            GroupGrantRow.share_key == share_key, GroupGrantRow.group_key == members.key
        )
        return edit.session.scalars(of_group).one_or_none(), {"group": members.name}
    raise BadRequest("recipient,group", f"{recipient}, {group}", "Name one recipient or one group.")


def _new_row(
    edit: Edit, share_key: int, recipient: str | None, group: str | None
) -> GrantRow | GroupGrantRow:
    made = {"share_key": share_key, "created_at": edit.at, "created_by": edit.by, "applied": False}
    row: GrantRow | GroupGrantRow
    if recipient is not None:
        row = GrantRow(recipient_key=recipient_row(edit.session, recipient).key, **made)
    else:
        row = GroupGrantRow(group_key=group_row(edit.session, group or "").key, **made)
    edit.session.add(row)
    return row


def _require_times(starts_at: datetime | None, ends_at: datetime | None) -> None:
    require_aware("starts_at", starts_at)
    require_aware("ends_at", ends_at)
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        raise BadRequest(
            "ends_at", ends_at.isoformat(), f"It ends after it starts, at {starts_at.isoformat()}."
        )
