"""Doing the statements that change shares: each in one open transaction, by the operations of the catalog."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, FollowedTables, Ledger
from lakeshare_server.catalog.ledger import followed_tables
from lakeshare_server.catalog.sharing import (
    DEFAULT_LINK_LIFE,
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
    create_link,
    create_recipient,
    create_share,
    drop_group,
    drop_policy,
    drop_recipient,
    drop_share,
    grant,
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
from lakeshare_server.sql import statements as statement_types
from lakeshare_server.sql.statements import (
    ChangeStatement,
    ReadStatement,
    Result,
    make_message,
    make_rows,
    matches_pattern,
)
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


def execute_create_share(edit: Edit, statement: statement_types.CreateShare, _: Provider) -> Result:
    """CREATE SHARE."""
    if statement.if_not_exists and exists(edit, "share", statement.name):
        return make_message(f"there is a share {statement.name} already: nothing is changed")
    share = create_share(edit, statement.name, comment=statement.comment)
    return make_message(f"share {share.name} is made")


def execute_alter_share(edit: Edit, statement: statement_types.AlterShare, _: Provider) -> Result:
    """ALTER SHARE, of the share itself."""
    share = alter_share(edit, statement.name, **statement.fields)
    return make_message(f"share {share.name} is changed")


def execute_drop_share(edit: Edit, statement: statement_types.DropShare, _: Provider) -> Result:
    """DROP SHARE: the grants on it go with it."""
    if statement.if_exists and not exists(edit, "share", statement.name):
        return make_message(f"there is no share {statement.name}: nothing is changed")
    return make_message(f"share {drop_share(edit, statement.name).name} is gone, and the grants on it")


def execute_put_object(edit: Edit, statement: statement_types.PutObject, provider: Provider) -> Result:
    """ALTER SHARE … ADD | ALTER TABLE | VIEW."""
    kind = _kind(statement)
    table = ".".join(statement.path)
    if statement.verb == "ALTER":
        found = _require_known(edit, statement)
        shared = _alter_object(edit, statement, found, kind, provider)
        return make_message(f"{shared.path} is changed")
    schema, name = statement.alias
    wanted = SharedObject(
        schema=schema,
        name=name,
        table=table,
        kind=kind,
        comment=statement.comment,
        history=statement.history,
        start_version=_start(statement, table, provider),
        rule=statement.rule,
    )
    shared = add_table(edit, statement.share, wanted)
    awaited = "" if provider.latest_version(table) is not None else "; it is not published yet"
    return make_message(f"{table} is shared as {shared.path}{awaited}")


def execute_put_schema(edit: Edit, statement: statement_types.PutSchema, provider: Provider) -> Result:
    """ALTER SHARE … ADD | ALTER SCHEMA: the tables that are published by now and not in the share."""
    if statement.comment is not None:
        hint = "A schema of a share has no comment; give one to the share, or to its tables."
        raise BadRequest("COMMENT", statement.comment, hint)
    schema = ".".join(statement.path)
    tables = provider.tables_of(schema)
    there = {one.table for one in states.list_objects(edit.session, statement.share)}
    added = [table for table in tables if table not in there]
    for table in added:
        name = table[len(schema) + 1 :]
        add_table(edit, statement.share, SharedObject(schema=statement.path[-1], name=name, table=table))
    return make_message(
        f"{len(added)} of {len(tables)} published tables of {schema} are new in {statement.share}"
    )


def execute_remove_object(edit: Edit, statement: statement_types.RemoveObject, _: Provider) -> Result:
    """ALTER SHARE … REMOVE TABLE | VIEW."""
    found = find_object(edit, statement.share, statement.path)
    return make_message(
        f"{remove_table(edit, statement.share, found.schema, found.name).path} is shared no more"
    )


def execute_remove_schema(edit: Edit, statement: statement_types.RemoveSchema, _: Provider) -> Result:
    """ALTER SHARE … REMOVE SCHEMA: everything in a schema of the share."""
    schema = statement.path[-1].lower()
    found = [
        one for one in states.list_objects(edit.session, statement.share) if one.schema.lower() == schema
    ]
    if not found:
        raise NotFound(f"In share {statement.share}, schema", statement.path[-1])
    for one in found:
        remove_table(edit, statement.share, one.schema, one.name)
    return make_message(f"{', '.join(one.path for one in found)}: shared no more")


def execute_pin_publication(
    edit: Edit, statement: statement_types.PinPublication, provider: Provider
) -> Result:
    """ALTER SHARE … SET | UNSET PUBLICATION."""
    if statement.path is None:
        found = states.list_objects(edit.session, statement.share)
    else:
        found = [find_object(edit, statement.share, statement.path)]
    if not found:
        raise BadRequest("share", statement.share, "It is empty; add a table first.")
    for one in found:
        if statement.publication is not None:
            provider.require_published(one.table, statement.publication)
        alter_table(edit, statement.share, one.schema, one.name, publication=statement.publication)
    served = (
        "the latest publication" if statement.publication is None else f"publication {statement.publication}"
    )
    return make_message(f"{', '.join(one.path for one in found)}: recipients read {served}")


def execute_publish(_: Edit, statement: statement_types.Publish, __: Provider) -> Result:
    """PUBLISH TABLE … FROM BRANCH: refused with the command that does it."""
    hint = (
        "Only what passed its audit is published, and that is the pipelines' work: "
        f"`lakeshare wap retry {statement.branch}` audits what is staged there again and publishes it if it is green."
    )
    raise BadRequest("PUBLISH TABLE", ".".join(statement.path), hint)


def find_object(edit: Edit, share: str, path: tuple[str, ...]) -> SharedObject:
    """An object of a share by the name that recipients see, else by the lake's own.

    Raises:
        NotFound: the share has none of that name.
        BadRequest: the table is in the share more than once.
    """
    found = states.list_objects(edit.session, share)
    named = [one for one in found if _is_alias(one, path)] or [one for one in found if _is_table(one, path)]
    return _require_single(named, share, path)


def exists(edit: Edit, kind: str, name: str) -> bool:
    """Whether there is a share, recipient or group of this name."""
    find = {
        "share": states.find_share_row,
        "recipient": states.find_recipient_row,
        "group": states.find_group_row,
    }[kind]
    try:
        find(edit.session, name)
    except NotFound:
        return False
    return True


def _require_known(edit: Edit, statement: statement_types.PutObject) -> SharedObject:
    """What ALTER speaks of: the table of that name, and of several the one with the alias that is given."""
    found = states.list_objects(edit.session, statement.share)
    named = [one for one in found if _is_table(one, statement.path)]
    if len(named) > 1:
        named = [one for one in named if _is_alias(one, statement.alias)] or named
    return _require_single(
        named or [one for one in found if _is_alias(one, statement.path)], statement.share, statement.path
    )


def _require_single(named: list[SharedObject], share: str, path: tuple[str, ...]) -> SharedObject:
    written = ".".join(path)
    if not named:
        raise NotFound(f"In share {share}, table or view", written)
    if len(named) > 1:
        aliases = ", ".join(f"{one.schema}.{one.name}" for one in named)
        raise BadRequest("table", written, f"{share} has it more than once; name one of {aliases}.")
    return named[0]


def _alter_object(
    edit: Edit,
    statement: statement_types.PutObject,
    found: SharedObject,
    kind: statement_types.SharedKind,
    provider: Provider,
) -> SharedObject:
    schema, name = statement.alias
    return alter_table(
        edit,
        statement.share,
        found.schema,
        found.name,
        new_schema=schema,
        new_name=name,
        kind=kind,
        comment=statement.comment,
        history=statement.history,
        start_version=_start(statement, found.table, provider),
        rule=statement.rule,
    )


def _kind(statement: statement_types.PutObject) -> statement_types.SharedKind:
    if statement.columns:
        hint = "Let a contract declare a view with these columns, and add that: files hold whole rows."
        raise BadRequest("COLUMNS", ", ".join(statement.columns), hint)
    if statement.kind == "MODEL":
        raise BadRequest("MODEL", ".".join(statement.path), "Shares hold tables and views only.")
    return statement.kind


def _start(statement: statement_types.PutObject, table: str, provider: Provider) -> int | None:
    if isinstance(statement.start_version, statement_types.Now):
        return provider.latest_version(table) or 0
    return statement.start_version


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


def execute_create_recipient(
    edit: Edit, statement: statement_types.CreateRecipient, provider: Provider
) -> Result:
    """CREATE RECIPIENT: with a link to its profile, or with a policy if it has an issuer of its own."""
    if statement.metastore_id is not None:
        hint = (
            "It names a metastore of Databricks; recipients of lakeshare open a link. Leave it out, or use "
            "USING OIDC or USING CLIENT CREDENTIALS."
        )
        raise BadRequest("USING ID", statement.metastore_id, hint)
    if statement.if_not_exists and exists(edit, "recipient", statement.name):
        return make_message(f"there is a recipient {statement.name} already: nothing is changed")
    made = create_recipient(
        edit,
        statement.name,
        comment=statement.comment,
        properties=statement.properties,
        authentication=statement.authentication,
        ip_allow=statement.ip_allow,
        expires_at=statement.until,
        agreement=statement.agreement,
    )
    if statement.policy is not None:
        _put_policy(edit, made.name, statement.policy, provider)
        return make_message(
            f"recipient {made.name} is made; it gets in with tokens of {statement.policy.issuer}"
        )
    return _link_result(*create_link(edit, made.name, token_expires_at=statement.until), provider)


def execute_invite(edit: Edit, statement: statement_types.Invite, provider: Provider) -> Result:
    """ALTER RECIPIENT … INVITE."""
    until = states.get_recipient(edit.session, statement.name).expires_at
    made = create_link(
        edit, statement.name, link_life=statement.link_life or DEFAULT_LINK_LIFE, token_expires_at=until
    )
    return _link_result(*made, provider)


def execute_alter_recipient(edit: Edit, statement: statement_types.AlterRecipient, _: Provider) -> Result:
    """ALTER RECIPIENT, of the recipient itself."""
    return make_message(
        f"recipient {alter_recipient(edit, statement.name, **statement.fields).name} is changed"
    )


def execute_set_properties(edit: Edit, statement: statement_types.SetProperties, _: Provider) -> Result:
    """ALTER RECIPIENT … SET PROPERTIES."""
    properties = {**states.get_recipient(edit.session, statement.name).properties, **statement.properties}
    return make_message(
        f"recipient {alter_recipient(edit, statement.name, properties=properties).name} is changed"
    )


def execute_unset_properties(edit: Edit, statement: statement_types.UnsetProperties, _: Provider) -> Result:
    """ALTER RECIPIENT … UNSET PROPERTIES."""
    properties = dict(states.get_recipient(edit.session, statement.name).properties)
    for key in statement.keys:
        if key not in properties:
            raise BadRequest("properties", key, f"{statement.name} has: {', '.join(properties) or 'none'}.")
        del properties[key]
    return make_message(
        f"recipient {alter_recipient(edit, statement.name, properties=properties).name} is changed"
    )


def execute_rotate_token(edit: Edit, statement: statement_types.RotateToken, provider: Provider) -> Result:
    """ALTER RECIPIENT … ROTATE TOKEN."""
    given = rotate_token(
        edit, statement.name, keep_old_for=statement.keep_old_for, expires_at=statement.until
    )
    row = (statement.name, given.state.id, given.secret, given.state.expires_at, provider.settings.base_url())
    message = f"the token is shown here only; older ones end {_grace_period(statement)}"
    return make_rows(TOKEN_COLUMNS, [row], message)


def execute_revoke_token(edit: Edit, statement: statement_types.RevokeToken, _: Provider) -> Result:
    """REVOKE TOKEN: one, or all."""
    ids = [statement.token_id] if statement.token_id is not None else _valid_tokens(edit, statement.name)
    for token_id in ids:
        revoke_token(edit, statement.name, token_id)
    return make_message(f"{len(ids)} tokens of {statement.name} are revoked")


def execute_put_policy(edit: Edit, statement: statement_types.PutPolicy, provider: Provider) -> Result:
    """ALTER RECIPIENT … ADD OIDC."""
    _put_policy(edit, statement.name, statement.policy, provider)
    return make_message(f"recipient {statement.name} gets in with tokens of {statement.policy.issuer}")


def execute_drop_policy(edit: Edit, statement: statement_types.DropPolicy, _: Provider) -> Result:
    """ALTER RECIPIENT … DROP OIDC."""
    return make_message(
        f"policy {drop_policy(edit, statement.name, statement.policy).name} of {statement.name} is gone"
    )


def execute_revoke_recipient(edit: Edit, statement: statement_types.RevokeRecipient, _: Provider) -> Result:
    """REVOKE RECIPIENT."""
    return make_message(f"{revoke_recipient(edit, statement.name).name} may read nothing any more")


def execute_drop_recipient(edit: Edit, statement: statement_types.DropRecipient, _: Provider) -> Result:
    """DROP RECIPIENT."""
    if statement.if_exists and not exists(edit, "recipient", statement.name):
        return make_message(f"there is no recipient {statement.name}: nothing is changed")
    return make_message(
        f"recipient {drop_recipient(edit, statement.name).name} is gone, and its tokens and grants"
    )


def execute_create_group(edit: Edit, statement: statement_types.CreateGroup, _: Provider) -> Result:
    """CREATE GROUP."""
    if statement.if_not_exists and exists(edit, "group", statement.name):
        return make_message(f"there is a group {statement.name} already: nothing is changed")
    return make_message(f"group {create_group(edit, statement.name, comment=statement.comment).name} is made")


def execute_alter_group(edit: Edit, statement: statement_types.AlterGroup, _: Provider) -> Result:
    """ALTER GROUP, of the group itself."""
    return make_message(f"group {alter_group(edit, statement.name, **statement.fields).name} is changed")


def execute_change_members(edit: Edit, statement: statement_types.ChangeMembers, _: Provider) -> Result:
    """ALTER GROUP … ADD | REMOVE RECIPIENT."""
    if statement.verb == "ADD":
        group = alter_group(edit, statement.name, add=statement.recipients)
    else:
        group = alter_group(edit, statement.name, remove=statement.recipients)
    return make_message(f"group {group.name} has {', '.join(group.members) or 'no members'}")


def execute_drop_group(edit: Edit, statement: statement_types.DropGroup, _: Provider) -> Result:
    """DROP GROUP."""
    if statement.if_exists and not exists(edit, "group", statement.name):
        return make_message(f"there is no group {statement.name}: nothing is changed")
    return make_message(f"group {drop_group(edit, statement.name).name} is gone, and its grants")


def execute_grant(edit: Edit, statement: statement_types.Grant, _: Provider) -> Result:
    """GRANT SELECT ON SHARE."""
    given = grant(
        edit,
        statement.share,
        recipient=_name_if_kind(statement.to, "RECIPIENT"),
        group=_name_if_kind(statement.to, "GROUP"),
        starts_at=statement.starts_at,
        ends_at=statement.ends_at,
        rule=statement.rule,
    )
    until = "" if given.ends_at is None else f" until {given.ends_at:%Y-%m-%d %H:%M} UTC"
    where = "" if given.rule is None else f" where {given.rule}"
    return make_message(f"{given.recipient or given.group} may read {given.share}{until}{where}")


def execute_revoke(edit: Edit, statement: statement_types.Revoke, _: Provider) -> Result:
    """REVOKE SELECT ON SHARE."""
    reader, group = _name_if_kind(statement.grantee, "RECIPIENT"), _name_if_kind(statement.grantee, "GROUP")
    taken = revoke(edit, statement.share, recipient=reader, group=group)
    return make_message(
        f"{taken.recipient or taken.group} may not read {taken.share} any more by a grant of its own"
    )


def _name_if_kind(grantee: statement_types.Grantee, kind: str) -> str | None:
    return grantee.name if grantee.kind == kind else None


def _link_result(link: LinkState, code: str, provider: Provider) -> Result:
    row = (link.recipient, provider.settings.activation_url(code), link.expires_at)
    return make_rows(LINK_COLUMNS, [row], "the link is shown here only, and opens once")


def _put_policy(edit: Edit, recipient: str, policy: statement_types.Policy, provider: Provider) -> None:
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
    return [
        token.id for token in states.get_recipient(edit.session, recipient).tokens if token.is_valid(edit.at)
    ]


def _grace_period(statement: statement_types.RotateToken) -> str:
    return f"within {statement.keep_old_for}" if statement.keep_old_for else "at once"


COLUMNS = {"result": str, "table": str, "location": str, "version": int, "clients": str}

FOLLOWED_COLUMNS = {
    "table": str,
    "location": str,
    "format": str,
    "start_version": int,
    "created_at": datetime,
}


@dataclass(frozen=True)
class Follow(ChangeStatement):
    """FOLLOW; with a star for the table it is all tables of a folder or a namespace."""

    location: str
    alias: tuple[str, ...] = ()
    share: str = "lake"
    history: bool = True
    start_version: int = 0


@dataclass(frozen=True)
class Unfollow(ChangeStatement):
    """UNFOLLOW."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class ShowFollowedTables(ReadStatement):
    """SHOW FOLLOWED TABLES."""

    pattern: str | None = None


def execute_follow(statement: Follow, provider: Provider, principal: str) -> Result:
    """FOLLOW.

    Raises:
        LakeshareError: a single table, or the location itself, is refused.
        BadRequest: some of many tables are refused; the others are followed.
    """
    following = Following.of(provider.catalog, provider.settings)
    usual = FollowRequest(
        share=statement.share, history=statement.history, start_version=statement.start_version
    )
    requests = following.requests([(statement.location, ".".join(statement.alias) or None)], usual)
    if len(requests) == 1:
        found = [following.follow(requests[0], principal)]
    else:
        found = list(following.follow_all(requests, principal))
    refused = [one for one in found if one.result == "refused"]
    if refused:
        first = refused[0]
        raise BadRequest(
            "FOLLOW",
            statement.location,
            f"{len(refused)} of its {len(found)} tables are refused, the others are followed. "
            f"{first.location}: {first.remark}",
        )
    rows = []
    for one in found:
        message = one.as_json()
        rows.append(
            (
                message["result"],
                message["table"],
                one.location,
                message["version"],
                ", ".join(message["clients"]),
            )
        )
    return make_rows(COLUMNS, rows)


def execute_unfollow(statement: Unfollow, provider: Provider, principal: str) -> Result:
    """UNFOLLOW.

    Raises:
        NotFound: no table is followed under this name.
    """
    found = FollowedTables(provider.catalog).remove(".".join(statement.path), principal)
    return make_message(f"{found.table} is not followed any more")


def execute_show_followed_tables(session: Session, statement: ShowFollowedTables) -> Result:
    """SHOW FOLLOWED TABLES."""
    found = [table for table in followed_tables(session) if matches_pattern(statement.pattern, table.table)]
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
    return make_rows(FOLLOWED_COLUMNS, rows)
