"""From what the catalog has to what administrators' clients are told."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from lakeshare_server.catalog.admin_keys import AdminKey
from lakeshare_server.catalog.followed import FollowedTable
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Grant,
    Group,
    LinkState,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
)
from lakeshare_server.protocol.admin.fields import in_ms
from lakeshare_server.protocol.admin.partitions import partitions_of
from lakeshare_server.protocol.admin.replies import (
    AdminKeyInfo,
    FederationPolicyInfo,
    FollowedTableInfo,
    GroupInfo,
    IpAccessListInfo,
    OidcPolicyInfo,
    PrivilegeAssignment,
    PropertiesInfo,
    RecipientInfo,
    RecipientTokenInfo,
    SharedDataObject,
    ShareInfo,
    ShareToPrivileges,
)

SELECT = "SELECT"
GROUP = "group:"


def told_share(share: Share, objects: Iterable[SharedObject] | None = None) -> ShareInfo:
    """A share, with its tables if they were asked for."""
    return ShareInfo(
        name=share.name,
        id=share.id,
        comment=share.comment,
        owner=share.owner,
        created_at=in_ms(share.created_at),
        created_by=share.created_by,
        updated_at=in_ms(share.updated_at),
        updated_by=share.updated_by,
        display_name=share.display_name,
        properties=dict(share.properties) or None,
        revision=share.revision,
        declared=share.declared,
        objects=None if objects is None else [told_object(one) for one in objects],
    )


def told_object(shared: SharedObject) -> SharedDataObject:
    """A shared table; its rule is told as partitions where they can say it."""
    partitions = partitions_of(shared.rule)
    return SharedDataObject(
        name=shared.table,
        data_object_type=shared.kind,
        shared_as=f"{shared.schema}.{shared.name}",
        comment=shared.comment,
        added_at=in_ms(shared.added_at),
        added_by=shared.added_by,
        cdf_enabled=shared.history,
        history_data_sharing_status="ENABLED" if shared.history else "DISABLED",
        start_version=shared.start_version,
        partitions=partitions or None,
        id=shared.id,
        rule=shared.rule if partitions is None else None,
        publication=shared.publication,
        declared=shared.declared,
    )


def told_assignment(grant: Grant) -> PrivilegeAssignment:
    """A grant, as an assignment of the one privilege there is."""
    return PrivilegeAssignment(
        principal=grant.recipient or f"{GROUP}{grant.group}",
        privileges=[SELECT],
        starts_at=in_ms(grant.starts_at),
        ends_at=in_ms(grant.ends_at),
        rule=grant.rule,
    )


def told_permissions(grants: Iterable[Grant]) -> list[ShareToPrivileges]:
    """What a recipient may read, share by share."""
    by_share: dict[str, list[PrivilegeAssignment]] = {}
    for grant in grants:
        by_share.setdefault(grant.share, []).append(told_assignment(grant))
    return [
        ShareToPrivileges(share_name=share, privilege_assignments=assignments)
        for share, assignments in by_share.items()
    ]


def told_recipient(
    recipient: RecipientState, activation_urls: Mapping[str, str] | None = None
) -> RecipientInfo:
    """A recipient; `activation_urls`, by the ids of links, are those that were made just now."""
    urls = activation_urls or {}
    return RecipientInfo(
        name=recipient.name,
        id=recipient.id,
        authentication_type=recipient.authentication,
        activated=recipient.activated_at is not None,
        activation_url=next(iter(urls.values()), None),
        comment=recipient.comment,
        owner=recipient.owner,
        created_at=in_ms(recipient.created_at),
        created_by=recipient.created_by,
        updated_at=in_ms(recipient.updated_at),
        updated_by=recipient.updated_by,
        expiration_time=in_ms(recipient.expires_at),
        ip_access_list=IpAccessListInfo(allowed_ip_addresses=list(recipient.ip_allow))
        if recipient.ip_allow
        else None,
        properties_kvpairs=PropertiesInfo(properties=dict(recipient.properties))
        if recipient.properties
        else None,
        tokens=_tokens(recipient, urls) or None,
        state=recipient.state,
        agreement=recipient.agreement,
        groups=list(recipient.groups) or None,
        revision=recipient.revision,
    )


def _tokens(recipient: RecipientState, urls: Mapping[str, str]) -> list[RecipientTokenInfo]:
    """The tokens that open something, and the links that will give one."""
    now = datetime.now(UTC)
    valid = [_token(token, recipient) for token in recipient.tokens if token.is_valid(now)]
    return valid + [_link(link, recipient, urls) for link in recipient.links if link.is_open(now)]


def _token(token: TokenState, recipient: RecipientState) -> RecipientTokenInfo:
    return RecipientTokenInfo(
        id=token.id,
        created_at=in_ms(token.created_at),
        created_by=token.created_by,
        expiration_time=_first(token.expires_at, recipient.expires_at),
        last_used_at=in_ms(token.last_used_at),
    )


def _link(link: LinkState, recipient: RecipientState, urls: Mapping[str, str]) -> RecipientTokenInfo:
    return RecipientTokenInfo(
        id=link.id,
        created_at=in_ms(link.created_at),
        created_by=link.created_by,
        expiration_time=_first(link.token_expires_at, recipient.expires_at),
        activation_url=urls.get(link.id),
    )


def _first(*ends: datetime | None) -> int | None:
    return in_ms(min((end for end in ends if end is not None), default=None))


def told_policy(policy: FederationPolicy) -> FederationPolicyInfo:
    """A federation policy; its times are texts, as the API of policies has them."""
    return FederationPolicyInfo(
        name=policy.name,
        id=policy.id,
        comment=policy.comment,
        oidc_policy=OidcPolicyInfo(
            issuer=policy.issuer,
            subject_claim=policy.subject_claim,
            subject=policy.subject,
            audiences=list(policy.audiences),
        ),
        create_time=_text(policy.created_at),
        update_time=_text(policy.updated_at or policy.created_at),
    )


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def told_group(group: Group) -> GroupInfo:
    """A group of recipients."""
    return GroupInfo(
        name=group.name,
        id=group.id,
        comment=group.comment,
        members=list(group.members),
        created_at=in_ms(group.created_at),
        created_by=group.created_by,
        updated_at=in_ms(group.updated_at),
        updated_by=group.updated_by,
        revision=group.revision,
    )


def told_key(key: AdminKey, secret: str | None = None) -> AdminKeyInfo:
    """An administrator's key; `secret` is the key itself, when it was made just now."""
    return AdminKeyInfo(
        name=key.name,
        id=key.id,
        role=key.role,
        created_at=in_ms(key.created_at),
        created_by=key.created_by,
        expiration_time=in_ms(key.expires_at),
        revoked_at=in_ms(key.revoked_at),
        key=secret,
    )


def told_followed_table(followed: FollowedTable) -> FollowedTableInfo:
    """A followed table as the API tells it."""
    return FollowedTableInfo(
        table=followed.table,
        location=followed.location,
        format="delta" if followed.iceberg is None else "iceberg",
        check_every_s=followed.check_every_s,
        start_version=followed.start_version,
        created_at=in_ms(followed.created_at),
    )
