"""From rows to what the provider sees."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from lakeshare_server.catalog.models import (
    ActivationRow,
    FederationPolicyRow,
    GrantRow,
    GroupGrantRow,
    GroupRow,
    RecipientRow,
    SharedTableRow,
    ShareRow,
    TokenRow,
    TokenUseRow,
)
from lakeshare_server.catalog.sharing.states import (
    Authentication,
    FederationPolicy,
    Grant,
    Group,
    Kind,
    LifeCycle,
    LinkState,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
)


def told_share(row: ShareRow) -> Share:
    """A share's row as administrators see it."""
    return Share(
        key=row.key,
        id=row.id,
        name=row.name,
        comment=row.comment,
        display_name=row.display_name,
        properties=row.properties or {},
        owner=row.owner,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        revision=row.revision,
        declared=row.declared,
        applied=row.applied,
    )


def told_object(row: SharedTableRow, schema: str, share: str) -> SharedObject:
    """A shared table's row as administrators see it."""
    return SharedObject(
        schema=schema,
        name=row.name,
        table=row.lake_table,
        kind=cast(Kind, row.kind),
        comment=row.comment,
        history=row.history,
        start_version=row.start_version,
        rule=row.rule,
        publication=row.publication,
        directory_access=row.directory_access,
        share=share,
        id=row.id,
        added_at=row.added_at,
        added_by=row.added_by,
        declared=row.declared,
        applied=row.applied,
    )


def told_group(row: GroupRow, members: Sequence[str]) -> Group:
    """A group's row as administrators see it."""
    return Group(
        key=row.key,
        id=row.id,
        name=row.name,
        comment=row.comment,
        members=tuple(members),
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        revision=row.revision,
        applied=row.applied,
    )


def told_token(row: TokenRow, use: TokenUseRow | None = None) -> TokenState:
    """A token's row as administrators see it."""
    return TokenState(
        id=row.id,
        kind=row.kind,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        superseded_at=row.superseded_at,
        revoked_at=row.revoked_at,
        last_used_at=None if use is None else use.last_used_at,
        last_used_from=None if use is None else use.last_used_from,
    )


def told_link(row: ActivationRow, recipient: str) -> LinkState:
    """A link's row as administrators see it."""
    return LinkState(
        id=row.id,
        recipient=recipient,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        token_expires_at=row.token_expires_at,
        used_at=row.used_at,
        used_from=row.used_from,
        revoked_at=row.revoked_at,
    )


def told_policy(row: FederationPolicyRow) -> FederationPolicy:
    """A policy's row as administrators see it."""
    return FederationPolicy(
        name=row.name,
        issuer=row.issuer,
        subject_claim=row.subject_claim,
        subject=row.subject,
        audiences=tuple(row.audiences),
        comment=row.comment,
        id=row.id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def told_grant(
    row: GrantRow | GroupGrantRow, share: str, *, recipient: str | None = None, group: str | None = None
) -> Grant:
    """A grant's row as administrators see it."""
    return Grant(
        share=share,
        recipient=recipient,
        group=group,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        rule=row.rule,
        created_at=row.created_at,
        created_by=row.created_by,
        applied=row.applied,
    )


def told_recipient(
    row: RecipientRow,
    tokens: Sequence[TokenState],
    links: Sequence[LinkState],
    policies: Sequence[FederationPolicy],
    of_groups: Sequence[str],
) -> RecipientState:
    return RecipientState(
        key=row.key,
        id=row.id,
        name=row.name,
        state=_life_cycle(row, tokens, links, policies),
        comment=row.comment,
        owner=row.owner,
        properties=row.properties or {},
        authentication=cast(Authentication, row.authentication),
        ip_allow=tuple(row.ip_allow or ()),
        expires_at=row.expires_at,
        activated_at=row.activated_at,
        agreement=row.agreement,
        agreement_accepted_at=row.agreement_accepted_at,
        agreement_accepted_from=row.agreement_accepted_from,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        revoked_at=row.revoked_at,
        revision=row.revision,
        applied=row.applied,
        tokens=tuple(tokens),
        links=tuple(links),
        policies=tuple(policies),
        groups=tuple(of_groups),
        limits=row.limits or {},
    )


def _life_cycle(
    row: RecipientRow,
    tokens: Sequence[TokenState],
    links: Sequence[LinkState],
    policies: Sequence[FederationPolicy],
) -> LifeCycle:
    now = datetime.now(UTC)
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    valid = [token for token in tokens if token.is_valid(now)]
    is_invited = any(link.is_open(now) for link in links)
    if any(token.superseded_at is not None for token in valid) or (valid and is_invited):
        return "rotating"
    if valid or policies:
        return "activated"
    if is_invited or (not tokens and not links):
        return "invited"
    return "expired"
