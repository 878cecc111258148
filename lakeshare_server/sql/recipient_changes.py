"""Doing the statements that change recipients, groups and grants. Secrets are in the answer, here only."""

from datetime import datetime

from lakeshare_server.catalog.sharing import (
    LINK_LIFE,
    Edit,
    FederationPolicy,
    LinkState,
    alter_group,
    alter_recipient,
    create_group,
    create_recipient,
    drop_group,
    drop_policy,
    drop_recipient,
    grant,
    invite,
    look,
    put_policy,
    revoke,
    revoke_recipient,
    revoke_token,
    rotate_token,
)
from lakeshare_server.errors import BadRequest
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.provider import Provider
from lakeshare_server.sql.results import Result, done, rows_of
from lakeshare_server.sql.share_changes import is_there

LINK_COLUMNS = {"recipient_name": str, "activation_link": str, "link_expires_at": datetime}
TOKEN_COLUMNS = {
    "recipient_name": str,
    "token_id": str,
    "token": str,
    "expires_at": datetime,
    "endpoint": str,
}


def do_create_recipient(edit: Edit, asked: said.CreateRecipient, provider: Provider) -> Result:
    """CREATE RECIPIENT: with a link to its profile, or with a policy if it has an issuer of its own."""
    if asked.metastore_id is not None:
        hint = (
            "It names a metastore of Databricks; recipients of lakeshare open a link. Leave it out, or use "
            "USING OIDC or USING CLIENT CREDENTIALS."
        )
        raise BadRequest("USING ID", asked.metastore_id, hint)
    if asked.if_not_exists and is_there(edit, "recipient", asked.name):
        return done(f"there is a recipient {asked.name} already: nothing is changed")
    made = create_recipient(
        edit,
        asked.name,
        comment=asked.comment,
        properties=asked.properties,
        authentication=asked.authentication,
        ip_allow=asked.ip_allow,
        expires_at=asked.until,
        agreement=asked.agreement,
    )
    if asked.policy is not None:
        _put(edit, made.name, asked.policy, provider)
        return done(f"recipient {made.name} is made; it gets in with tokens of {asked.policy.issuer}")
    return _linked(*invite(edit, made.name, token_expires_at=asked.until), provider)


def do_invite(edit: Edit, asked: said.Invite, provider: Provider) -> Result:
    """ALTER RECIPIENT … INVITE."""
    until = look.recipient(edit.session, asked.name).expires_at
    made = invite(edit, asked.name, link_life=asked.link_life or LINK_LIFE, token_expires_at=until)
    return _linked(*made, provider)


def do_alter_recipient(edit: Edit, asked: said.AlterRecipient, _: Provider) -> Result:
    """ALTER RECIPIENT, of the recipient itself."""
    return done(f"recipient {alter_recipient(edit, asked.name, **asked.fields).name} is changed")


def do_set_properties(edit: Edit, asked: said.SetProperties, _: Provider) -> Result:
    """ALTER RECIPIENT … SET PROPERTIES."""
    properties = {**look.recipient(edit.session, asked.name).properties, **asked.properties}
    return done(f"recipient {alter_recipient(edit, asked.name, properties=properties).name} is changed")


def do_unset_properties(edit: Edit, asked: said.UnsetProperties, _: Provider) -> Result:
    """ALTER RECIPIENT … UNSET PROPERTIES."""
    properties = dict(look.recipient(edit.session, asked.name).properties)
    for key in asked.keys:
        if key not in properties:
            raise BadRequest("properties", key, f"{asked.name} has: {', '.join(properties) or 'none'}.")
        del properties[key]
    return done(f"recipient {alter_recipient(edit, asked.name, properties=properties).name} is changed")


def do_rotate_token(edit: Edit, asked: said.RotateToken, provider: Provider) -> Result:
    """ALTER RECIPIENT … ROTATE TOKEN."""
    given = rotate_token(edit, asked.name, keep_old_for=asked.keep_old_for, expires_at=asked.until)
    row = (asked.name, given.state.id, given.secret, given.state.expires_at, provider.settings.base_url())
    told = f"the token is shown here only; older ones end {_within(asked)}"
    return rows_of(TOKEN_COLUMNS, [row], told)


def do_revoke_token(edit: Edit, asked: said.RevokeToken, _: Provider) -> Result:
    """REVOKE TOKEN: one, or all."""
    ids = [asked.token_id] if asked.token_id is not None else _valid_tokens(edit, asked.name)
    for token_id in ids:
        revoke_token(edit, asked.name, token_id)
    return done(f"{len(ids)} tokens of {asked.name} are revoked")


def do_put_policy(edit: Edit, asked: said.PutPolicy, provider: Provider) -> Result:
    """ALTER RECIPIENT … ADD OIDC."""
    _put(edit, asked.name, asked.policy, provider)
    return done(f"recipient {asked.name} gets in with tokens of {asked.policy.issuer}")


def do_drop_policy(edit: Edit, asked: said.DropPolicy, _: Provider) -> Result:
    """ALTER RECIPIENT … DROP OIDC."""
    return done(f"policy {drop_policy(edit, asked.name, asked.policy).name} of {asked.name} is gone")


def do_revoke_recipient(edit: Edit, asked: said.RevokeRecipient, _: Provider) -> Result:
    """REVOKE RECIPIENT."""
    return done(f"{revoke_recipient(edit, asked.name).name} may read nothing any more")


def do_drop_recipient(edit: Edit, asked: said.DropRecipient, _: Provider) -> Result:
    """DROP RECIPIENT."""
    if asked.if_exists and not is_there(edit, "recipient", asked.name):
        return done(f"there is no recipient {asked.name}: nothing is changed")
    return done(f"recipient {drop_recipient(edit, asked.name).name} is gone, and its tokens and grants")


def do_create_group(edit: Edit, asked: said.CreateGroup, _: Provider) -> Result:
    """CREATE GROUP."""
    if asked.if_not_exists and is_there(edit, "group", asked.name):
        return done(f"there is a group {asked.name} already: nothing is changed")
    return done(f"group {create_group(edit, asked.name, comment=asked.comment).name} is made")


def do_alter_group(edit: Edit, asked: said.AlterGroup, _: Provider) -> Result:
    """ALTER GROUP, of the group itself."""
    return done(f"group {alter_group(edit, asked.name, **asked.fields).name} is changed")


def do_change_members(edit: Edit, asked: said.ChangeMembers, _: Provider) -> Result:
    """ALTER GROUP … ADD | REMOVE RECIPIENT."""
    if asked.verb == "ADD":
        group = alter_group(edit, asked.name, add=asked.recipients)
    else:
        group = alter_group(edit, asked.name, remove=asked.recipients)
    return done(f"group {group.name} has {', '.join(group.members) or 'no members'}")


def do_drop_group(edit: Edit, asked: said.DropGroup, _: Provider) -> Result:
    """DROP GROUP."""
    if asked.if_exists and not is_there(edit, "group", asked.name):
        return done(f"there is no group {asked.name}: nothing is changed")
    return done(f"group {drop_group(edit, asked.name).name} is gone, and its grants")


def do_grant(edit: Edit, asked: said.Grant, _: Provider) -> Result:
    """GRANT SELECT ON SHARE."""
    given = grant(
        edit,
        asked.share,
        recipient=_named(asked.to, "RECIPIENT"),
        group=_named(asked.to, "GROUP"),
        starts_at=asked.starts_at,
        ends_at=asked.ends_at,
        rule=asked.rule,
    )
    until = "" if given.ends_at is None else f" until {given.ends_at:%Y-%m-%d %H:%M} UTC"
    where = "" if given.rule is None else f" where {given.rule}"
    return done(f"{given.recipient or given.group} may read {given.share}{until}{where}")


def do_revoke(edit: Edit, asked: said.Revoke, _: Provider) -> Result:
    """REVOKE SELECT ON SHARE."""
    reader, group = _named(asked.grantee, "RECIPIENT"), _named(asked.grantee, "GROUP")
    taken = revoke(edit, asked.share, recipient=reader, group=group)
    return done(f"{taken.recipient or taken.group} may not read {taken.share} any more by a grant of its own")


def _named(grantee: said.Grantee, kind: str) -> str | None:
    return grantee.name if grantee.kind == kind else None


def _linked(link: LinkState, code: str, provider: Provider) -> Result:
    row = (link.recipient, provider.settings.activation_url(code), link.expires_at)
    return rows_of(LINK_COLUMNS, [row], "the link is shown here only, and opens once")


def _put(edit: Edit, recipient: str, policy: said.Policy, provider: Provider) -> None:
    # Tokens are made for somebody: for this server, if nothing else is said.
    audiences = policy.audiences or (provider.settings.base_url(),)
    wanted = FederationPolicy(
        name=policy.name,
        issuer=policy.issuer,
        subject_claim=policy.subject_claim,
        subject=policy.subject,
        audiences=audiences,
    )
    put_policy(edit, recipient, wanted)


def _valid_tokens(edit: Edit, recipient: str) -> list[str]:
    return [one.id for one in look.recipient(edit.session, recipient).tokens if one.is_valid(edit.at)]


def _within(asked: said.RotateToken) -> str:
    return f"within {asked.keep_old_for}" if asked.keep_old_for else "at once"
