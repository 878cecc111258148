"""Operations on recipients themselves; what they get in with is in `tokens`, `activation` and `federation`."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import get_args

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
from lakeshare_server.catalog.names import (
    parse_networks,
    require_name,
    require_owner,
    require_properties,
    require_rule_text,
)
from lakeshare_server.catalog.sharing.editing import (
    UNCHANGED,
    Edit,
    Unchanged,
    changed_fields,
    require_aware,
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
from lakeshare_server.errors import BadRequest, NameTaken, NotFound

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
    """Make a recipient, which gets in nowhere yet: a token, a link or a federation policy comes next.

    Raises:
        BadRequest: a value cannot be used.
        CatalogConflict: the name is taken.
    """
    require_name("recipient", name)
    require_owner(owner)
    require_properties("properties", properties)
    require_aware("expires_at", expires_at)
    _require_agreement(agreement)
    _require_authentication(authentication)
    _require_free(edit, name, None)
    row = RecipientRow(
        id=str(uuid.uuid4()),
        name=name,
        name_key=name.lower(),
        comment=comment,
        owner=owner or edit.by,
        properties=dict(properties or {}) or None,
        authentication=authentication,
        ip_allow=parse_networks("ip_allow", ip_allow),
        expires_at=expires_at,
        agreement=agreement,
        applied=False,
        created_at=edit.at,
        created_by=edit.by,
        revision=1,
    )
    edit.keep(row)
    edit.session.add(row)
    touch_row(edit, row, "Recipient", name, is_new=True)
    edit.session.flush()
    state = get_recipient(edit.session, name)
    edit.changed("create_recipient", name, None, state.as_json())
    return state


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
    """Change what is given; tokens and grants stay. Another agreement has to be accepted with the next link.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: a value cannot be used.
        CatalogConflict: the new name is taken, or the revision is another.
    """
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    fields = changed_fields(comment=comment, owner=owner, expires_at=expires_at, agreement=agreement)
    require_owner(fields.get("owner"))
    require_aware("expires_at", fields.get("expires_at"))
    _require_agreement(fields.get("agreement"))
    if properties is not UNCHANGED:
        require_properties("properties", properties)
        fields["properties"] = dict(properties or {}) or None
    if ip_allow is not UNCHANGED:
        fields["ip_allow"] = parse_networks("ip_allow", ip_allow)
    if new_name is not UNCHANGED:
        if new_name != row.name:
            require_name("recipient", new_name)
        _require_free(edit, new_name, row.key)
        fields |= {"name": new_name, "name_key": new_name.lower()}
    if fields.get("agreement", row.agreement) != row.agreement:
        fields |= {"agreement_accepted_at": None, "agreement_accepted_from": None}
    touch_row(edit, row, "Recipient", row.name, revision)
    edit.keep(row)
    for key, value in fields.items():
        setattr(row, key, value)
    edit.session.flush()
    state = get_recipient(edit.session, row.name)
    edit.changed("alter_recipient", before.name, before.as_json(), state.as_json())
    return state


def revoke_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """End all access of a recipient for good; its name and what the audit log says of it stay.

    Raises:
        NotFound: there is no such recipient.
        CatalogConflict: the revision is another.
    """
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    touch_row(edit, row, "Recipient", row.name, revision)
    row.revoked_at = row.revoked_at or edit.at
    for model in (TokenRow, ActivationRow):
        open_ones = (model.recipient_key == row.key) & model.revoked_at.is_(None)
        edit.session.execute(update(model).where(open_ones).values(revoked_at=edit.at))
    edit.session.flush()
    state = get_recipient(edit.session, name)
    edit.changed("revoke_recipient", state.name, before.as_json(), state.as_json())
    return state


def drop_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """Remove a recipient with its tokens, links, policies and grants; its name can be used again.

    Raises:
        NotFound: there is no such recipient.
        CatalogConflict: the revision is another.
    """
    row = find_recipient_row(edit.session, name)
    state = get_recipient(edit.session, name)
    touch_row(edit, row, "Recipient", row.name, revision)
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("drop_recipient", state.name, state.as_json(), None)
    return state


def require_not_revoked(row: RecipientRow) -> None:
    """Refuse to give anything to a recipient that was revoked.

    Raises:
        BadRequest: it was.
    """
    if row.revoked_at is not None:
        raise BadRequest("recipient", row.name, "It was revoked; add it under another name.")


def _require_free(edit: Edit, name: str, key: int | None) -> None:
    taken = edit.session.scalars(
        select(RecipientRow).where(RecipientRow.name_key == name.lower())
    ).one_or_none()
    if taken is not None and taken.key != key:
        raise NameTaken(
            f"there is a recipient {taken.name} already",
            "Choose another name. `lakeshare recipient rotate` gives the recipient a new token.",
        )


def _require_authentication(authentication: str) -> None:
    known = get_args(Authentication)
    if authentication not in known:
        raise BadRequest("authentication", authentication, f"It is one of {', '.join(known)}.")


def _require_agreement(agreement: str | None) -> None:
    if agreement is not None and not 0 < len(agreement.strip()) <= len(agreement) <= MAX_AGREEMENT_CHARS:
        raise BadRequest("agreement", agreement, f"Give a text of 1 to {MAX_AGREEMENT_CHARS} characters.")


def create_group(edit: Edit, name: str, *, comment: str | None = None, members: Sequence[str] = ()) -> Group:
    """Make a group of recipients.

    Raises:
        NotFound: a member is no recipient.
        BadRequest: the name cannot be used.
        CatalogConflict: the name is taken.
    """
    require_name("group", name)
    _require_free_group(edit, name, None)
    row = GroupRow(
        id=str(uuid.uuid4()),
        name=name,
        name_key=name.lower(),
        comment=comment,
        created_at=edit.at,
        created_by=edit.by,
        applied=False,
        revision=1,
    )
    edit.keep(row)
    edit.session.add(row)
    touch_row(edit, row, "Group", name, is_new=True)
    edit.session.flush()
    _add(edit, row, members)
    state = get_group(edit.session, name)
    edit.changed("create_group", name, None, state.as_json())
    return state


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
    """Change what is given; whoever is a member already, or is none, stays so.

    Raises:
        NotFound: there is no such group, or somebody named is no recipient.
        BadRequest: the new name cannot be used.
        CatalogConflict: the new name is taken, or the revision is another.
    """
    row = find_group_row(edit.session, name)
    before = get_group(edit.session, name)
    fields = changed_fields(comment=comment)
    if new_name is not UNCHANGED:
        if new_name != row.name:
            require_name("group", new_name)
        _require_free_group(edit, new_name, row.key)
        fields |= {"name": new_name, "name_key": new_name.lower()}
    touch_row(edit, row, "Group", row.name, revision)
    edit.keep(row)
    for key, value in fields.items():
        setattr(row, key, value)
    gone = [find_recipient_row(edit.session, member).key for member in remove]
    edit.session.execute(
        delete(GroupMemberRow).where(
            GroupMemberRow.group_key == row.key, GroupMemberRow.recipient_key.in_(gone)
        )
    )
    _add(edit, row, add)
    state = get_group(edit.session, row.name)
    edit.changed("alter_group", before.name, before.as_json(), state.as_json())
    return state


def drop_group(edit: Edit, name: str, *, revision: int | None = None) -> Group:
    """Remove a group with its grants; its members keep their own.

    Raises:
        NotFound: there is no such group.
        CatalogConflict: the revision is another.
    """
    row = find_group_row(edit.session, name)
    state = get_group(edit.session, name)
    touch_row(edit, row, "Group", row.name, revision)
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("drop_group", state.name, state.as_json(), None)
    return state


def _add(edit: Edit, row: GroupRow, members: Sequence[str]) -> None:
    known = set(
        edit.session.scalars(select(GroupMemberRow.recipient_key).where(GroupMemberRow.group_key == row.key))
    )
    keys = {find_recipient_row(edit.session, member).key for member in members}
    edit.session.add_all(GroupMemberRow(group_key=row.key, recipient_key=key) for key in sorted(keys - known))
    edit.session.flush()


def _require_free_group(edit: Edit, name: str, key: int | None) -> None:
    taken = edit.session.scalars(select(GroupRow).where(GroupRow.name_key == name.lower())).one_or_none()
    if taken is not None and taken.key != key:
        raise NameTaken(f"there is a group {taken.name} already", "Choose another name.")


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
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, "Share", parent.name, revision)
    row, reader = _row(edit, parent.key, recipient, group)
    before = None if row is None else grant_from_row(row, parent.name, **reader).as_json()
    if row is None:
        row = _new_row(edit, parent.key, recipient, group)
    if recipient is not None:
        require_not_revoked(find_recipient_row(edit.session, recipient))
    row.starts_at, row.ends_at, row.rule = starts_at, ends_at, rule
    edit.keep(row)
    edit.session.flush()
    state = grant_from_row(row, parent.name, **reader)
    edit.changed("grant", parent.name, before, state.as_json())
    return state


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
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, "Share", parent.name, revision)
    row, reader = _row(edit, parent.key, recipient, group)
    if row is None:
        raise NotFound("Grant", f"{parent.name} to {recipient or group}")
    state = grant_from_row(row, parent.name, **reader)
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("revoke", parent.name, state.as_json(), None)
    return state


def _row(
    edit: Edit, share_key: int, recipient: str | None, group: str | None
) -> tuple[GrantRow | GroupGrantRow | None, dict[str, str]]:
    if recipient is not None and group is None:
        reader = find_recipient_row(edit.session, recipient)
        own = select(GrantRow).where(GrantRow.share_key == share_key, GrantRow.recipient_key == reader.key)
        return edit.session.scalars(own).one_or_none(), {"recipient": reader.name}
    if group is not None and recipient is None:
        members = find_group_row(edit.session, group)
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
        row = GrantRow(recipient_key=find_recipient_row(edit.session, recipient).key, **made)
    else:
        row = GroupGrantRow(group_key=find_group_row(edit.session, group or "").key, **made)
    edit.session.add(row)
    return row


def _require_times(starts_at: datetime | None, ends_at: datetime | None) -> None:
    require_aware("starts_at", starts_at)
    require_aware("ends_at", ends_at)
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        raise BadRequest(
            "ends_at", ends_at.isoformat(), f"It ends after it starts, at {starts_at.isoformat()}."
        )


def set_limits(
    edit: Edit,
    name: str,
    *,
    requests_per_minute: int | Unchanged | None = UNCHANGED,
    urls_per_day: int | Unchanged | None = UNCHANGED,
    bytes_per_day: int | Unchanged | None = UNCHANGED,
    revision: int | None = None,
) -> RecipientState:
    """Change the limits that are given; None gives back that of the settings.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: a limit is no whole number of one or more.
        CatalogConflict: the revision is another.
    """
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    fields = changed_fields(
        requests_per_minute=requests_per_minute, urls_per_day=urls_per_day, bytes_per_day=bytes_per_day
    )
    for field, most in fields.items():
        if most is not None and (isinstance(most, bool) or not 1 <= most <= MAX_LONG):
            raise BadRequest(
                field, most, "Give a whole number of one or more, or none to take the settings'."
            )
    touch_row(edit, row, "Recipient", row.name, revision)
    limits = {**(row.limits or {}), **fields}
    row.limits = {field: most for field, most in limits.items() if most is not None} or None
    edit.session.flush()
    state = get_recipient(edit.session, row.name)
    edit.changed("set_limits", row.name, before.as_json(), state.as_json())
    return state
