"""Operations on recipients, groups and grants."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, get_args

from sqlalchemy import delete, select, update

from lakeshare_server.catalog.models import (
    MAX_LONG,
    ActivationRow,
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    RecipientRow,
    TokenRow,
)
from lakeshare_server.catalog.sharing.editing import (
    UNCHANGED,
    Edit,
    Unchanged,
    changed_fields,
    changed_name,
    new_row_fields,
    parse_networks,
    require_aware,
    require_free,
    require_name,
    require_owner,
    require_properties,
    require_rule_text,
    touch_row,
)
from lakeshare_server.catalog.sharing.states import (
    Authentication,
    Grant,
    Group,
    RecipientState,
    find_group_row,
    find_recipient_row,
    find_share_row,
    get_group,
    get_recipient,
    grant_from_row,
)
from lakeshare_server.errors import BadRequest, NotFound

MAX_AGREEMENT_CHARS = 100_000


def create_recipient(
    edit: Edit,
    name: str,
    *,
    comment: str | None = None,
    owner: str | None = None,
    properties: Mapping[str, str] | None = None,
    authentication: Authentication = "TOKEN",
    ip_allow: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    agreement: str | None = None,
) -> RecipientState:
    """Creates a recipient without access: issue a token, create a link or put a federation policy next."""
    require_name("recipient", name)
    require_owner(owner)
    own_properties = require_properties("properties", properties)
    require_aware("expires_at", expires_at)
    _require_agreement(agreement)
    if authentication not in get_args(Authentication):
        hint = f"It is one of {', '.join(get_args(Authentication))}."
        raise BadRequest("authentication", authentication, hint)
    require_free(edit, RecipientRow, name)
    row = RecipientRow(
        **new_row_fields(edit, name),
        comment=comment,
        owner=owner or edit.by,
        properties=own_properties,
        authentication=authentication,
        ip_allow=parse_networks("ip_allow", ip_allow),
        expires_at=expires_at,
        agreement=agreement,
    )
    edit.keep(row)
    edit.add(row)
    return edit.changed("create_recipient", name, None, get_recipient(edit.session, name))


def alter_recipient(
    edit: Edit,
    name: str,
    *,
    new_name: str | Unchanged = UNCHANGED,
    comment: str | Unchanged | None = UNCHANGED,
    owner: str | Unchanged | None = UNCHANGED,
    properties: Mapping[str, str] | Unchanged | None = UNCHANGED,
    ip_allow: Sequence[str] | Unchanged | None = UNCHANGED,
    expires_at: datetime | Unchanged | None = UNCHANGED,
    agreement: str | Unchanged | None = UNCHANGED,
    revision: int | None = None,
) -> RecipientState:
    """Changes the fields that are given; another agreement has to be accepted with the next link."""
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    fields = changed_fields(comment=comment, owner=owner, expires_at=expires_at, agreement=agreement)
    require_owner(fields.get("owner"))
    require_aware("expires_at", fields.get("expires_at"))
    _require_agreement(fields.get("agreement"))
    if properties is not UNCHANGED:
        fields["properties"] = require_properties("properties", properties)
    if ip_allow is not UNCHANGED:
        fields["ip_allow"] = parse_networks("ip_allow", ip_allow)
    fields |= changed_name(edit, row, new_name)
    if fields.get("agreement", row.agreement) != row.agreement:
        fields |= {"agreement_accepted_at": None, "agreement_accepted_from": None}
    touch_row(edit, row, revision)
    edit.keep(row)
    edit.update(row, fields)
    return edit.changed("alter_recipient", before.name, before, get_recipient(edit.session, row.name))


def revoke_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """Ends all access of a recipient for good; its name and its audit events stay."""
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    touch_row(edit, row, revision)
    row.revoked_at = row.revoked_at or edit.at
    for model in (TokenRow, ActivationRow):
        unrevoked = (model.recipient_key == row.key) & model.revoked_at.is_(None)
        edit.session.execute(update(model).where(unrevoked).values(revoked_at=edit.at))
    edit.session.flush()
    return edit.changed("revoke_recipient", before.name, before, get_recipient(edit.session, name))


def drop_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """Removes a recipient with its tokens, links, policies and grants; its name can be used again."""
    row, state = find_recipient_row(edit.session, name), get_recipient(edit.session, name)
    touch_row(edit, row, revision)
    return edit.delete("drop_recipient", row.name, row, state)


def require_not_revoked(row: RecipientRow) -> None:
    """Refuses with BadRequest to give anything to a revoked recipient."""
    if row.revoked_at is not None:
        raise BadRequest("recipient", row.name, "It was revoked; add it under another name.")


def _require_agreement(agreement: str | None) -> None:
    if agreement is not None and not 0 < len(agreement.strip()) <= len(agreement) <= MAX_AGREEMENT_CHARS:
        raise BadRequest("agreement", agreement, f"Give a text of 1 to {MAX_AGREEMENT_CHARS} characters.")


def create_group(edit: Edit, name: str, *, comment: str | None = None, members: Sequence[str] = ()) -> Group:
    """Creates a group of recipients."""
    require_name("group", name)
    require_free(edit, GroupRow, name)
    row = GroupRow(**new_row_fields(edit, name), comment=comment)
    edit.keep(row)
    edit.add(row)
    _add_members(edit, row, members)
    return edit.changed("create_group", name, None, get_group(edit.session, name))


def alter_group(
    edit: Edit,
    name: str,
    *,
    new_name: str | Unchanged = UNCHANGED,
    comment: str | Unchanged | None = UNCHANGED,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    revision: int | None = None,
) -> Group:
    """Changes the fields that are given; adding a member twice, or removing a non-member, changes nothing."""
    row = find_group_row(edit.session, name)
    before = get_group(edit.session, name)
    fields = changed_fields(comment=comment) | changed_name(edit, row, new_name)
    touch_row(edit, row, revision)
    edit.keep(row)
    edit.update(row, fields)
    removed = [find_recipient_row(edit.session, member).key for member in remove]
    own = (GroupMemberRow.group_key == row.key) & GroupMemberRow.recipient_key.in_(removed)
    edit.session.execute(delete(GroupMemberRow).where(own))
    _add_members(edit, row, add)
    return edit.changed("alter_group", before.name, before, get_group(edit.session, row.name))


def drop_group(edit: Edit, name: str, *, revision: int | None = None) -> Group:
    """Removes a group with its grants; its members keep their own."""
    row, state = find_group_row(edit.session, name), get_group(edit.session, name)
    touch_row(edit, row, revision)
    return edit.delete("drop_group", row.name, row, state)


def _add_members(edit: Edit, row: GroupRow, members: Sequence[str]) -> None:
    known = select(GroupMemberRow.recipient_key).where(GroupMemberRow.group_key == row.key)
    keys = {find_recipient_row(edit.session, member).key for member in members}
    new_keys = sorted(keys - set(edit.session.scalars(known)))
    edit.session.add_all(GroupMemberRow(group_key=row.key, recipient_key=key) for key in new_keys)
    edit.session.flush()


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
    """Grants a share to a recipient or to the members of a group, or replaces the terms of the existing grant.

    `revision` is the share's. Exactly one of `recipient` and `group` is given.
    """
    require_aware("starts_at", starts_at)
    require_aware("ends_at", ends_at)
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        hint = f"It ends after it starts, at {starts_at.isoformat()}."
        raise BadRequest("ends_at", ends_at.isoformat(), hint)
    require_rule_text("rule", rule)
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, revision)
    row, new_row, reader = _find_grant(edit, parent.key, recipient, group)
    before = None if row is None else grant_from_row(row, parent.name, **reader)
    if row is None:
        row = new_row(created_at=edit.at, created_by=edit.by, applied=False)
        edit.session.add(row)
    if recipient is not None:
        require_not_revoked(find_recipient_row(edit.session, recipient))
    edit.keep(row)
    edit.update(row, {"starts_at": starts_at, "ends_at": ends_at, "rule": rule})
    return edit.changed("grant", parent.name, before, grant_from_row(row, parent.name, **reader))


def revoke(
    edit: Edit,
    share: str,
    *,
    recipient: str | None = None,
    group: str | None = None,
    revision: int | None = None,
) -> Grant:
    """Removes the grant of a share to a recipient or to a group; `revision` is the share's."""
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, revision)
    row, _, reader = _find_grant(edit, parent.key, recipient, group)
    if row is None:
        raise NotFound("Grant", f"{parent.name} to {recipient or group}")
    return edit.delete("revoke", parent.name, row, grant_from_row(row, parent.name, **reader))


def _find_grant(
    edit: Edit, share_key: int, recipient: str | None, group: str | None
) -> tuple[Any, Callable[..., Any], dict[str, str]]:  # rows of grants to recipients, or to groups
    """The row of a grant, if it exists, the maker of a new one, and the reader's name."""
    reader: RecipientRow | GroupRow
    model: Any
    if recipient is not None and group is None:
        model, kind, reader = GrantRow, "recipient", find_recipient_row(edit.session, recipient)
    elif group is not None and recipient is None:
        model, kind, reader = GroupGrantRow, "group", find_group_row(edit.session, group)
    else:
        raise BadRequest("recipient,group", f"{recipient}, {group}", "Name one recipient or one group.")
    own = {"share_key": share_key, f"{kind}_key": reader.key}
    row = edit.session.scalars(select(model).filter_by(**own)).one_or_none()
    return row, partial(model, **own), {kind: reader.name}


def set_limits(
    edit: Edit,
    name: str,
    *,
    requests_per_minute: int | Unchanged | None = UNCHANGED,
    urls_per_day: int | Unchanged | None = UNCHANGED,
    bytes_per_day: int | Unchanged | None = UNCHANGED,
    revision: int | None = None,
) -> RecipientState:
    """Changes the limits that are given; None restores the limit of the settings."""
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    fields = changed_fields(
        requests_per_minute=requests_per_minute, urls_per_day=urls_per_day, bytes_per_day=bytes_per_day
    )
    for field, most in fields.items():
        if most is not None and (isinstance(most, bool) or not 1 <= most <= MAX_LONG):
            hint = "Give a whole number of one or more, or none to take the settings'."
            raise BadRequest(field, most, hint)
    touch_row(edit, row, revision)
    limits = {field: most for field, most in {**(row.limits or {}), **fields}.items() if most is not None}
    edit.update(row, {"limits": limits or None})
    return edit.changed("set_limits", row.name, before, get_recipient(edit.session, row.name))
