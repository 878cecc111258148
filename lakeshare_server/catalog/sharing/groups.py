"""Operations on groups of recipients."""

import uuid
from collections.abc import Sequence

from sqlalchemy import delete, select

from lakeshare_server.catalog.models import GroupMemberRow, GroupRow
from lakeshare_server.catalog.names import require_name
from lakeshare_server.catalog.sharing.editing import KEEP, Edit, Keep, given, touch
from lakeshare_server.catalog.sharing.look import group, group_row, recipient_row
from lakeshare_server.catalog.sharing.states import Group
from lakeshare_server.errors import NameTaken


def create_group(edit: Edit, name: str, *, comment: str | None = None, members: Sequence[str] = ()) -> Group:
    """Make a group of recipients.

    Raises:
        NotFound: a member is no recipient.
        BadRequest: the name cannot be used.
        CatalogConflict: the name is taken.
    """
    require_name("group", name)
    _require_free(edit, name, None)
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
    touch(edit, row, "Group", name, is_new=True)
    edit.session.flush()
    _add(edit, row, members)
    told = group(edit.session, name)
    edit.changed("create_group", name, None, told.as_json())
    return told


def alter_group(
    edit: Edit,
    name: str,
    *,
    new_name: str | Keep = KEEP,
    comment: str | Keep | None = KEEP,
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
    row = group_row(edit.session, name)
    before = group(edit.session, name)
    fields = given(comment=comment)
    if new_name is not KEEP:
        if new_name != row.name:
            require_name("group", new_name)
        _require_free(edit, new_name, row.key)
        fields |= {"name": new_name, "name_key": new_name.lower()}
    touch(edit, row, "Group", row.name, revision)
    edit.keep(row)
    for key, value in fields.items():
        setattr(row, key, value)
    gone = [recipient_row(edit.session, member).key for member in remove]
    edit.session.execute(
        delete(GroupMemberRow).where(
            GroupMemberRow.group_key == row.key, GroupMemberRow.recipient_key.in_(gone)
        )
    )
    _add(edit, row, add)
    told = group(edit.session, row.name)
    edit.changed("alter_group", before.name, before.as_json(), told.as_json())
    return told


def drop_group(edit: Edit, name: str, *, revision: int | None = None) -> Group:
    """Remove a group with its grants; its members keep their own.

    Raises:
        NotFound: there is no such group.
        CatalogConflict: the revision is another.
    """
    row = group_row(edit.session, name)
    told = group(edit.session, name)
    touch(edit, row, "Group", row.name, revision)
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("drop_group", told.name, told.as_json(), None)
    return told


def _add(edit: Edit, row: GroupRow, members: Sequence[str]) -> None:
    known = set(
        edit.session.scalars(select(GroupMemberRow.recipient_key).where(GroupMemberRow.group_key == row.key))
    )
    wanted = {recipient_row(edit.session, member).key for member in members}
    edit.session.add_all(
        GroupMemberRow(group_key=row.key, recipient_key=key) for key in sorted(wanted - known)
    )
    edit.session.flush()


def _require_free(edit: Edit, name: str, key: int | None) -> None:
    taken = edit.session.scalars(select(GroupRow).where(GroupRow.name_key == name.lower())).one_or_none()
    if taken is not None and taken.key != key:
        raise NameTaken(f"there is a group {taken.name} already", "Choose another name.")
