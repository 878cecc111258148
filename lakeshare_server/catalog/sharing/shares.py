"""Operations on shares."""

import uuid
from collections.abc import Mapping

from sqlalchemy import delete, select

from lakeshare_server.catalog.models import GrantRow, GroupGrantRow, ShareRow
from lakeshare_server.catalog.names import require_name, require_owner, require_properties
from lakeshare_server.catalog.sharing.editing import KEEP, Edit, Keep, given, touch
from lakeshare_server.catalog.sharing.look import share_row
from lakeshare_server.catalog.sharing.states import Share
from lakeshare_server.catalog.sharing.told import told_share
from lakeshare_server.errors import CatalogConflict, NameTaken

Properties = Mapping[str, str]


def create_share(
    edit: Edit,
    name: str,
    *,
    comment: str | None = None,
    display_name: str | None = None,
    properties: Properties | None = None,
    owner: str | None = None,
) -> Share:
    """Make a share; its owner is whoever makes it, if no other is named.

    Raises:
        BadRequest: the name, the owner or a property cannot be used.
        CatalogConflict: the name is taken.
    """
    require_name("share", name)
    require_owner(owner)
    require_properties("properties", properties)
    _require_free(edit, name, None)
    row = ShareRow(
        id=str(uuid.uuid4()),
        name=name,
        name_key=name.lower(),
        comment=comment,
        display_name=display_name,
        properties=dict(properties or {}) or None,
        owner=owner or edit.by,
        declared=False,
        applied=False,
        created_at=edit.at,
        created_by=edit.by,
        revision=1,
    )
    edit.keep(row)
    edit.session.add(row)
    touch(edit, row, "Share", name, is_new=True)
    edit.session.flush()
    told = told_share(row)
    edit.changed("create_share", name, None, told.as_json())
    return told


def alter_share(
    edit: Edit,
    name: str,
    *,
    new_name: str | Keep = KEEP,
    comment: str | Keep | None = KEEP,
    display_name: str | Keep | None = KEEP,
    properties: Properties | Keep | None = KEEP,
    owner: str | Keep | None = KEEP,
    revision: int | None = None,
) -> Share:
    """Change what is given; recipients find a renamed share under its new name only.

    Raises:
        NotFound: there is no such share.
        BadRequest: a value cannot be used.
        CatalogConflict: the new name is taken, the revision is another, or a contract declares the name or comment.
    """
    row = share_row(edit.session, name)
    before = told_share(row)
    fields = given(comment=comment, display_name=display_name, owner=owner)
    if properties is not KEEP:
        require_properties("properties", properties)
        fields["properties"] = dict(properties or {}) or None
    if new_name is not KEEP:
        if new_name != row.name:
            require_name("share", new_name)
        _require_free(edit, new_name, row.key)
        fields |= {"name": new_name, "name_key": new_name.lower()}
    require_owner(fields.get("owner"))
    is_contracts = row.declared and edit.keeper != "contracts"
    if is_contracts and (
        {"name", "comment"} & {key for key, value in fields.items() if value != getattr(row, key)}
    ):
        raise CatalogConflict(
            f"{row.name} is declared by a contract", "Change the contract and apply the shares."
        )
    touch(edit, row, "Share", row.name, revision)
    edit.keep(row)
    for key, value in fields.items():
        setattr(row, key, value)
    edit.session.flush()
    told = told_share(row)
    edit.changed("alter_share", before.name, before.as_json(), told.as_json())
    return told


def drop_share(edit: Edit, name: str, *, revision: int | None = None) -> Share:
    """Remove a share with its tables and the grants on it.

    Raises:
        NotFound: there is no such share.
        CatalogConflict: the revision is another, or a contract declares tables in it.
    """
    row = share_row(edit.session, name)
    touch(edit, row, "Share", row.name, revision)
    if row.declared and edit.keeper != "contracts":
        raise CatalogConflict(
            f"{row.name} is declared by a contract", "Take it out of the contract and apply the shares."
        )
    told = told_share(row)
    for model in (GrantRow, GroupGrantRow):
        edit.session.execute(delete(model).where(model.share_key == row.key))
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("drop_share", told.name, told.as_json(), None)
    return told


def _require_free(edit: Edit, name: str, key: int | None) -> None:
    taken = edit.session.scalars(select(ShareRow).where(ShareRow.name_key == name.lower())).one_or_none()
    if taken is not None and taken.key != key:
        raise NameTaken(
            f"there is a share {taken.name} already", "Choose another name; case makes no difference."
        )
