"""The catalog as a file of `lakeshare apply`. Applied to an empty catalog it makes the same again, ids aside.

Left out are tables that contracts declare, which come back with them; recipients that were revoked; tokens and links,
which are secrets. A share of a contract is there when somebody has said something about it, or granted it.
"""

from collections.abc import Collection, Mapping
from typing import Any

import yaml
from sqlalchemy.orm import Session

from lakeshare_server.catalog.declared.held import policy_fields
from lakeshare_server.catalog.declared.telling import jsonable
from lakeshare_server.catalog.followed import CHECK_EVERY_S, FollowedTable, followed_tables
from lakeshare_server.catalog.sharing import look
from lakeshare_server.catalog.sharing.states import Grant, Group, RecipientState, Share, SharedObject

HEAD = """\
# What this catalog shares with whom; `lakeshare apply -f FILE` makes a catalog hold it. It has no secrets: recipients
# get their profiles by `lakeshare recipient rotate`.
"""


class _Dumper(yaml.CSafeDumper):
    """Writes a text of several lines as one."""


def _text(dumper: "_Dumper", text: str) -> yaml.ScalarNode:
    # Blank ends of lines cannot stand in a block.
    is_block = "\n" in text and not any(line != line.rstrip() for line in text.split("\n"))
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if is_block else None)


_Dumper.add_representer(str, _text)


def export(session: Session, *, revisions: bool = False) -> str:
    """The YAML of everything that files can say; with revisions, an edit of it cannot overwrite another."""
    everybody = look.recipients(session)
    recipients = {one.name: one for one in everybody if one.revoked_at is None}
    grants = [one for one in look.grants(session) if one.recipient is None or one.recipient in recipients]
    groups = {one.name: _group(one, recipients) for one in look.groups(session)}
    shares = _shares(session, {one.share for one in grants})
    document = {
        "version": 1,
        "followed": {one.table: _followed(one) for one in followed_tables(session)},
        "shares": shares,
        "recipients": {name: _recipient(one) for name, one in recipients.items()},
        "groups": groups,
        "grants": [_grant(one) for one in grants],
    }
    if revisions:
        _add_revisions(session, document)
    left_out = [one.name for one in everybody if one.revoked_at is not None]
    remark = f"# Revoked, and left out: {', '.join(left_out)}\n" if left_out else ""
    said = {name: value for name, value in document.items() if value}
    return HEAD + remark + yaml.dump(said, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _followed(table: FollowedTable) -> str | dict[str, Any]:
    said = {
        "location": table.location,
        "check_every_s": None if table.check_every_s == CHECK_EVERY_S else table.check_every_s,
        "start_version": table.start_version or None,
    }
    return table.location if said["check_every_s"] is said["start_version"] is None else _worth_saying(said)


def _shares(session: Session, granted: set[str]) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for table in look.objects(session):
        said = _contracts_table(table) if table.declared else _table(table)
        if said is not None:
            tables.setdefault(table.share, {})[f"{table.schema}.{table.name}"] = said
    shares = {}
    for share in look.shares(session):
        said = _share(share, tables.get(share.name, {}))
        if not share.declared or share.name in granted or said:
            shares[share.name] = said
    return shares


def _share(share: Share, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    is_default_owner = share.declared and share.owner == share.created_by
    return _worth_saying(
        {
            "comment": share.comment,
            "display_name": share.display_name,
            "owner": None if is_default_owner else share.owner,
            "properties": dict(share.properties),
            "tables": tables,
        }
    )


def _table(table: SharedObject) -> dict[str, Any]:
    return _worth_saying(
        {
            "table": None if table.table == f"{table.schema}.{table.name}" else table.table,
            "kind": None if table.kind == "TABLE" else table.kind,
            "comment": table.comment,
            "history": None if table.history else False,
            **_set_by_hand(table),
        }
    )


def _contracts_table(table: SharedObject) -> dict[str, Any] | None:
    said = _worth_saying(_set_by_hand(table))
    return {"declared": True, **said} if said else None


def _set_by_hand(table: SharedObject) -> dict[str, Any]:
    return {
        "start_version": table.start_version,
        "rule": table.rule,
        "publication": table.publication,
        "directory_access": table.directory_access or None,
    }


def _recipient(recipient: RecipientState) -> dict[str, Any]:
    return _worth_saying(
        {
            "comment": recipient.comment,
            "owner": recipient.owner,
            "authentication": None if recipient.authentication == "TOKEN" else recipient.authentication,
            "properties": dict(recipient.properties),
            "ip_allow": list(recipient.ip_allow),
            "expires_at": jsonable(recipient.expires_at),
            "agreement": recipient.agreement,
            "policies": {one.name: _worth_saying(policy_fields(one)) for one in recipient.policies},
        }
    )


def _group(group: Group, recipients: Collection[str]) -> dict[str, Any]:
    members = [member for member in group.members if member in recipients]
    return _worth_saying({"comment": group.comment, "members": members})


def _grant(grant: Grant) -> dict[str, Any]:
    return _worth_saying(
        {
            "share": grant.share,
            "recipient": grant.recipient,
            "group": grant.group,
            "starts_at": jsonable(grant.starts_at),
            "ends_at": jsonable(grant.ends_at),
            "rule": grant.rule,
        }
    )


def _worth_saying(said: Mapping[str, Any]) -> dict[str, Any]:
    """What is not the default anyway."""
    return {name: value for name, value in said.items() if value is not None and value not in ({}, [])}


def _add_revisions(session: Session, document: dict[str, Any]) -> None:
    for kind, read in (("shares", look.shares), ("recipients", look.recipients), ("groups", look.groups)):
        for one in read(session):
            if one.name in document[kind]:
                document[kind][one.name]["revision"] = one.revision
