"""What the catalog holds of everything that can be declared, read in a handful of queries."""

from collections.abc import Collection, Iterator

from sqlalchemy.orm import Session

from lakeshare_server.catalog.declared.objects import (
    Held,
    Key,
    followed_key,
    grant_key,
    group_key,
    recipient_key,
    share_key,
    table_key,
)
from lakeshare_server.catalog.followed import FollowedTable, followed_tables
from lakeshare_server.catalog.sharing import look
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Grant,
    Group,
    RecipientState,
    Share,
    SharedObject,
)


def held(session: Session) -> dict[Key, Held]:
    """Every object of the catalog that a file or a contract can say something about."""
    return {one.key: one for one in _all(session)}


def held_shares(session: Session) -> dict[Key, Held]:
    """The shares and their tables: what contracts can say something about."""
    return {one.key: one for one in _shares(session)}


def _all(session: Session) -> Iterator[Held]:
    recipients = look.recipients(session)
    # Whoever was revoked reads nothing, as a member or by a grant: no file can say that it does.
    revoked = {one.name for one in recipients if one.revoked_at is not None}
    yield from map(_recipient, recipients)
    yield from (_group(one, revoked) for one in look.groups(session))
    yield from map(_followed, followed_tables(session))
    yield from _shares(session)
    yield from (_grant(one) for one in look.grants(session) if one.recipient not in revoked)


def _shares(session: Session) -> Iterator[Held]:
    yield from map(_share, look.shares(session))
    yield from map(_table, look.objects(session))


def _followed(table: FollowedTable) -> Held:
    fields: dict[str, object] = {
        "location": table.location,
        "check_every_s": table.check_every_s,
        "start_version": table.start_version or None,
    }
    return Held(followed_key(table.table), table.table, fields, applied=table.applied)


def _share(share: Share) -> Held:
    fields: dict[str, object] = {
        "name": share.name,
        "comment": share.comment,
        "display_name": share.display_name,
        "owner": share.owner,
        "properties": dict(share.properties),
    }
    return Held(
        share_key(share.name),
        share.name,
        fields,
        declared=share.declared,
        applied=share.applied,
        revision=share.revision,
        updated_by=share.updated_by,
        updated_at=share.updated_at,
    )


def _table(table: SharedObject) -> Held:
    fields: dict[str, object] = {
        "schema": table.schema,
        "name": table.name,
        "table": table.table,
        "kind": table.kind,
        "comment": table.comment,
        "history": table.history,
        "start_version": table.start_version,
        "rule": table.rule,
        "publication": table.publication,
        "directory_access": table.directory_access,
    }
    key = table_key(table.share, table.schema, table.name)
    return Held(
        key, table.path, fields, declared=table.declared, applied=table.applied, updated_by=table.added_by
    )


def _recipient(recipient: RecipientState) -> Held:
    fields: dict[str, object] = {
        "name": recipient.name,
        "comment": recipient.comment,
        "owner": recipient.owner,
        "authentication": recipient.authentication,
        "properties": dict(recipient.properties),
        "ip_allow": recipient.ip_allow,
        "expires_at": recipient.expires_at,
        "agreement": recipient.agreement,
        "policies": {
            one.name: policy_fields(one) for one in sorted(recipient.policies, key=lambda one: one.name)
        },
    }
    return Held(
        recipient_key(recipient.name),
        recipient.name,
        fields,
        applied=recipient.applied,
        revision=recipient.revision,
        updated_by=recipient.updated_by,
        updated_at=recipient.updated_at,
        is_revoked=recipient.revoked_at is not None,
    )


def policy_fields(policy: FederationPolicy) -> dict[str, object]:
    """What a file says of a policy."""
    return {
        "issuer": policy.issuer,
        "subject": policy.subject,
        "subject_claim": policy.subject_claim,
        "audiences": list(policy.audiences),
        "comment": policy.comment,
    }


def _group(group: Group, revoked: Collection[str]) -> Held:
    fields: dict[str, object] = {
        "name": group.name,
        "comment": group.comment,
        "members": tuple(sorted(member.lower() for member in group.members if member not in revoked)),
    }
    return Held(
        group_key(group.name),
        group.name,
        fields,
        applied=group.applied,
        revision=group.revision,
        updated_by=group.updated_by,
        updated_at=group.updated_at,
    )


def _grant(grant: Grant) -> Held:
    key = grant_key(grant.share, recipient=grant.recipient, group=grant.group)
    reader = f"recipient {grant.recipient}" if grant.recipient is not None else f"group {grant.group}"
    fields: dict[str, object] = {"starts_at": grant.starts_at, "ends_at": grant.ends_at, "rule": grant.rule}
    return Held(key, f"{grant.share} to {reader}", fields, applied=grant.applied, updated_by=grant.created_by)
