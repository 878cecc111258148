"""Doing the statements that change shares: each in one open transaction, by the operations of the catalog."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, FollowedTables, Ledger
from lakeshare_server.catalog.ledger import followed_tables
from lakeshare_server.catalog.sharing import (
    LINK_LIFE,
    Edit,
    FederationPolicy,
    LinkState,
    SharedObject,
    add_table,
    alter_group,
    alter_recipient,
    alter_share,
    alter_table,
    create_group,
    create_recipient,
    create_share,
    drop_group,
    drop_policy,
    drop_recipient,
    drop_share,
    grant,
    invite,
    put_policy,
    remove_table,
    revoke,
    revoke_recipient,
    revoke_token,
    rotate_token,
    states,
)
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.provider.following import Following, FollowRequest
from lakeshare_server.settings import ServerSettings
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.statements import Change, Look, Result, done, matches, rows_of
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions


@dataclass(frozen=True)
class Provider:
    """Where statements take effect."""

    catalog: Catalog
    settings: ServerSettings

    @property
    def ledger(self) -> Ledger:
        """What is published."""
        return Ledger(self.catalog)

    @cached_property
    def versions(self) -> Versions:
        """What recipients can read of tables: it decides whether their partitions decide a rule."""
        return Versions(self.catalog, self.settings, Stores(self.settings))

    def latest_version(self, table: str) -> int | None:
        """The number that recipients of a table of the lake read now; None before it is published."""
        latest = self.ledger.latest(table)
        return None if latest is None else latest.version

    def tables_of(self, schema: str) -> list[str]:
        """The published tables of a schema of the lake.

        Raises:
            BadRequest: there is none.
        """
        tables = self.ledger.tables()
        found = [table for table in tables if table.lower().startswith(f"{schema.lower()}.")]
        if not found:
            schemas = sorted({table.rpartition(".")[0] for table in tables})
            raise BadRequest(
                "schema", schema, f"Schemas with published tables: {', '.join(schemas) or 'none'}."
            )
        return found

    def require_published(self, table: str, number: int) -> None:
        """See that a table has a publication of this number.

        Raises:
            BadRequest: it has none.
        """
        if self.ledger.at(table, number) is None:
            latest = self.latest_version(table)
            has = "no publication yet" if latest is None else f"none of this number; the latest is {latest}"
            raise BadRequest("publication", number, f"{table} has {has}.")


def do_create_share(edit: Edit, asked: said.CreateShare, _: Provider) -> Result:
    """CREATE SHARE."""
    if asked.if_not_exists and is_there(edit, "share", asked.name):
        return done(f"there is a share {asked.name} already: nothing is changed")
    share = create_share(edit, asked.name, comment=asked.comment)
    return done(f"share {share.name} is made")


def do_alter_share(edit: Edit, asked: said.AlterShare, _: Provider) -> Result:
    """ALTER SHARE, of the share itself."""
    share = alter_share(edit, asked.name, **asked.fields)
    return done(f"share {share.name} is changed")


def do_drop_share(edit: Edit, asked: said.DropShare, _: Provider) -> Result:
    """DROP SHARE: the grants on it go with it."""
    if asked.if_exists and not is_there(edit, "share", asked.name):
        return done(f"there is no share {asked.name}: nothing is changed")
    return done(f"share {drop_share(edit, asked.name).name} is gone, and the grants on it")


def do_put_object(edit: Edit, asked: said.PutObject, provider: Provider) -> Result:
    """ALTER SHARE … ADD | ALTER TABLE | VIEW."""
    kind = _kind(asked)
    table = ".".join(asked.path)
    if asked.verb == "ALTER":
        found = _known(edit, asked)
        shared = _altered(edit, asked, found, kind, provider)
        return done(f"{shared.path} is changed")
    schema, name = asked.alias
    wanted = SharedObject(
        schema=schema,
        name=name,
        table=table,
        kind=kind,
        comment=asked.comment,
        history=asked.history,
        start_version=_start(asked, table, provider),
        rule=asked.rule,
    )
    shared = add_table(edit, asked.share, wanted)
    awaited = "" if provider.latest_version(table) is not None else "; it is not published yet"
    return done(f"{table} is shared as {shared.path}{awaited}")


def do_put_schema(edit: Edit, asked: said.PutSchema, provider: Provider) -> Result:
    """ALTER SHARE … ADD | ALTER SCHEMA: the tables that are published by now and not in the share."""
    if asked.comment is not None:
        hint = "A schema of a share has no comment; give one to the share, or to its tables."
        raise BadRequest("COMMENT", asked.comment, hint)
    schema = ".".join(asked.path)
    tables = provider.tables_of(schema)
    there = {one.table for one in states.objects(edit.session, asked.share)}
    added = [table for table in tables if table not in there]
    for table in added:
        name = table[len(schema) + 1 :]
        add_table(edit, asked.share, SharedObject(schema=asked.path[-1], name=name, table=table))
    return done(f"{len(added)} of {len(tables)} published tables of {schema} are new in {asked.share}")


def do_remove_object(edit: Edit, asked: said.RemoveObject, _: Provider) -> Result:
    """ALTER SHARE … REMOVE TABLE | VIEW."""
    found = find_object(edit, asked.share, asked.path)
    return done(f"{remove_table(edit, asked.share, found.schema, found.name).path} is shared no more")


def do_remove_schema(edit: Edit, asked: said.RemoveSchema, _: Provider) -> Result:
    """ALTER SHARE … REMOVE SCHEMA: everything in a schema of the share."""
    schema = asked.path[-1].lower()
    found = [one for one in states.objects(edit.session, asked.share) if one.schema.lower() == schema]
    if not found:
        raise NotFound(f"In share {asked.share}, schema", asked.path[-1])
    for one in found:
        remove_table(edit, asked.share, one.schema, one.name)
    return done(f"{', '.join(one.path for one in found)}: shared no more")


def do_pin_publication(edit: Edit, asked: said.PinPublication, provider: Provider) -> Result:
    """ALTER SHARE … SET | UNSET PUBLICATION."""
    if asked.path is None:
        found = states.objects(edit.session, asked.share)
    else:
        found = [find_object(edit, asked.share, asked.path)]
    if not found:
        raise BadRequest("share", asked.share, "It is empty; add a table first.")
    for one in found:
        if asked.publication is not None:
            provider.require_published(one.table, asked.publication)
        alter_table(edit, asked.share, one.schema, one.name, publication=asked.publication)
    served = "the latest publication" if asked.publication is None else f"publication {asked.publication}"
    return done(f"{', '.join(one.path for one in found)}: recipients read {served}")


def do_publish(_: Edit, asked: said.Publish, __: Provider) -> Result:
    """PUBLISH TABLE … FROM BRANCH: refused with the command that does it."""
    hint = (
        "Only what passed its audit is published, and that is the pipelines' work: "
        f"`lakeshare wap retry {asked.branch}` audits what is staged there again and publishes it if it is green."
    )
    raise BadRequest("PUBLISH TABLE", ".".join(asked.path), hint)


def find_object(edit: Edit, share: str, path: tuple[str, ...]) -> SharedObject:
    """An object of a share by the name that recipients see, else by the lake's own.

    Raises:
        NotFound: the share has none of that name.
        BadRequest: the table is in the share more than once.
    """
    found = states.objects(edit.session, share)
    named = [one for one in found if _is_alias(one, path)] or [one for one in found if _is_table(one, path)]
    return _only(named, share, path)


def is_there(edit: Edit, kind: str, name: str) -> bool:
    """Whether there is a share, recipient or group of this name."""
    find = {"share": states.share_row, "recipient": states.recipient_row, "group": states.group_row}[kind]
    try:
        find(edit.session, name)
    except NotFound:
        return False
    return True


def _known(edit: Edit, asked: said.PutObject) -> SharedObject:
    """What ALTER speaks of: the table of that name, and of several the one with the alias that is given."""
    found = states.objects(edit.session, asked.share)
    named = [one for one in found if _is_table(one, asked.path)]
    if len(named) > 1:
        named = [one for one in named if _is_alias(one, asked.alias)] or named
    return _only(named or [one for one in found if _is_alias(one, asked.path)], asked.share, asked.path)


def _only(named: list[SharedObject], share: str, path: tuple[str, ...]) -> SharedObject:
    written = ".".join(path)
    if not named:
        raise NotFound(f"In share {share}, table or view", written)
    if len(named) > 1:
        aliases = ", ".join(f"{one.schema}.{one.name}" for one in named)
        raise BadRequest("table", written, f"{share} has it more than once; name one of {aliases}.")
    return named[0]


def _altered(
    edit: Edit, asked: said.PutObject, found: SharedObject, kind: said.SharedKind, provider: Provider
) -> SharedObject:
    schema, name = asked.alias
    return alter_table(
        edit,
        asked.share,
        found.schema,
        found.name,
        new_schema=schema,
        new_name=name,
        kind=kind,
        comment=asked.comment,
        history=asked.history,
        start_version=_start(asked, found.table, provider),
        rule=asked.rule,
    )


def _kind(asked: said.PutObject) -> said.SharedKind:
    if asked.columns:
        hint = "Let a contract declare a view with these columns, and add that: files hold whole rows."
        raise BadRequest("COLUMNS", ", ".join(asked.columns), hint)
    if asked.kind == "MODEL":
        raise BadRequest("MODEL", ".".join(asked.path), "Shares hold tables and views only.")
    return asked.kind


def _start(asked: said.PutObject, table: str, provider: Provider) -> int | None:
    if isinstance(asked.start_version, said.Now):
        return provider.latest_version(table) or 0
    return asked.start_version


def _is_alias(one: SharedObject, path: tuple[str, ...]) -> bool:
    return [one.schema.lower(), one.name.lower()][-len(path) :] == [part.lower() for part in path]


def _is_table(one: SharedObject, path: tuple[str, ...]) -> bool:
    return one.table.lower() == ".".join(path).lower()


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
    until = states.recipient(edit.session, asked.name).expires_at
    made = invite(edit, asked.name, link_life=asked.link_life or LINK_LIFE, token_expires_at=until)
    return _linked(*made, provider)


def do_alter_recipient(edit: Edit, asked: said.AlterRecipient, _: Provider) -> Result:
    """ALTER RECIPIENT, of the recipient itself."""
    return done(f"recipient {alter_recipient(edit, asked.name, **asked.fields).name} is changed")


def do_set_properties(edit: Edit, asked: said.SetProperties, _: Provider) -> Result:
    """ALTER RECIPIENT … SET PROPERTIES."""
    properties = {**states.recipient(edit.session, asked.name).properties, **asked.properties}
    return done(f"recipient {alter_recipient(edit, asked.name, properties=properties).name} is changed")


def do_unset_properties(edit: Edit, asked: said.UnsetProperties, _: Provider) -> Result:
    """ALTER RECIPIENT … UNSET PROPERTIES."""
    properties = dict(states.recipient(edit.session, asked.name).properties)
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
    return [one.id for one in states.recipient(edit.session, recipient).tokens if one.is_valid(edit.at)]


def _within(asked: said.RotateToken) -> str:
    return f"within {asked.keep_old_for}" if asked.keep_old_for else "at once"


COLUMNS = {"result": str, "table": str, "location": str, "version": int, "clients": str}

FOLLOWED_COLUMNS = {
    "table": str,
    "location": str,
    "format": str,
    "start_version": int,
    "created_at": datetime,
}


@dataclass(frozen=True)
class Follow(Change):
    """FOLLOW; with a star for the table it is all tables of a folder or a namespace."""

    location: str
    alias: tuple[str, ...] = ()
    share: str = "lake"
    history: bool = True
    start_version: int = 0


@dataclass(frozen=True)
class Unfollow(Change):
    """UNFOLLOW."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class ShowFollowedTables(Look):
    """SHOW FOLLOWED TABLES."""

    pattern: str | None = None


def do_follow(asked: Follow, provider: Provider, principal: str) -> Result:
    """FOLLOW.

    Raises:
        LakeshareError: a single table, or the location itself, is refused.
        BadRequest: some of many tables are refused; the others are followed.
    """
    following = Following.of(provider.catalog, provider.settings)
    usual = FollowRequest(share=asked.share, history=asked.history, start_version=asked.start_version)
    requests = following.requests([(asked.location, ".".join(asked.alias) or None)], usual)
    if len(requests) == 1:
        found = [following.follow(requests[0], principal)]
    else:
        found = list(following.follow_all(requests, principal))
    refused = [one for one in found if one.result == "refused"]
    if refused:
        first = refused[0]
        raise BadRequest(
            "FOLLOW",
            asked.location,
            f"{len(refused)} of its {len(found)} tables are refused, the others are followed. "
            f"{first.location}: {first.remark}",
        )
    rows = []
    for one in found:
        told = one.as_json()
        rows.append(
            (told["result"], told["table"], one.location, told["version"], ", ".join(told["clients"]))
        )
    return rows_of(COLUMNS, rows)


def do_unfollow(asked: Unfollow, provider: Provider, principal: str) -> Result:
    """UNFOLLOW.

    Raises:
        NotFound: no table is followed under this name.
    """
    found = FollowedTables(provider.catalog).remove(".".join(asked.path), principal)
    return done(f"{found.table} is not followed any more")


def show_followed_tables(session: Session, asked: ShowFollowedTables) -> Result:
    """SHOW FOLLOWED TABLES."""
    found = [one for one in followed_tables(session) if matches(asked.pattern, one.table)]
    rows = (
        (
            one.table,
            one.location,
            "delta" if one.iceberg is None else "iceberg",
            one.start_version,
            one.created_at,
        )
        for one in found
    )
    return rows_of(FOLLOWED_COLUMNS, rows)
