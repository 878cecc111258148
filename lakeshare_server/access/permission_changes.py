"""Changes of who may read a share, as the admin API sends them, done by the operations of the catalog."""

from collections.abc import Sequence
from typing import TypedDict

from lakeshare_server.catalog.sharing.editing import Edit
from lakeshare_server.catalog.sharing.grants import grant, revoke
from lakeshare_server.catalog.sharing.look import grants_on, group_row, recipient_row, share
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.admin.fields import from_ms
from lakeshare_server.protocol.admin.requests import PermissionsChange

GROUP = "group:"


class Reader(TypedDict):
    """Who reads, as the operations are told: one of the two."""

    recipient: str | None
    group: str | None


def change_permissions(
    edit: Edit, name: str, changes: Sequence[PermissionsChange], revision: int | None
) -> int:
    """Grant and revoke as asked; revoking what is not granted is no error. Returns the share's revision.

    Raises:
        NotFound: there is no such share, recipient or group.
        BadRequest: a change contradicts itself, or a time or rule cannot be used.
        CatalogConflict: the share's revision is another.
    """
    for number, change in enumerate(changes):
        if change.add and change.remove:
            raise BadRequest(f"changes.{number}", change.principal, "Add or remove, not both.")
        reader = _reader(edit, change.principal)
        is_granted = _is_granted(edit, name, reader)
        # The first operation compares the revision; those behind it see the edits of those before.
        if change.add and (_says_more(change) or not is_granted):
            times = {"starts_at": from_ms(change.starts_at), "ends_at": from_ms(change.ends_at)}
            grant(edit, name, **reader, **times, rule=change.rule or None, revision=revision)
            revision = None
        if change.remove and is_granted:
            revoke(edit, name, **reader, revision=revision)
            revision = None
    return share(edit.session, name).revision


def _says_more(change: PermissionsChange) -> bool:
    """Whether it sets what the Databricks API does not know of; granting again without it leaves that as it is."""
    return change.has("starts_at") or change.has("ends_at") or change.has("rule")


def _is_granted(edit: Edit, name: str, reader: Reader) -> bool:
    return any(
        (one.recipient, one.group) == (reader["recipient"], reader["group"])
        for one in grants_on(edit.session, name)
    )


def _reader(edit: Edit, principal: str) -> Reader:
    if principal.startswith(GROUP):
        name = group_row(edit.session, principal.removeprefix(GROUP)).name
        return {"recipient": None, "group": name}
    return {"recipient": recipient_row(edit.session, principal).name, "group": None}
