"""Executes the statements that change the catalog, each in an open transaction, and those of followed tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from lakeshare_server.catalog import Catalog, FollowedTables, Ledger, credentials, sharing, states
from lakeshare_server.catalog.sharing import Edit
from lakeshare_server.catalog.states import FederationPolicy, LinkState, SharedObject
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.provider.following import Following, FollowRequest
from lakeshare_server.settings import ServerSettings
from lakeshare_server.sql import statements
from lakeshare_server.sql.statements import Result
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions


@dataclass(frozen=True)
class Provider:
    """The catalog and the settings that statements work on."""

    catalog: Catalog
    settings: ServerSettings

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.catalog)

    @cached_property
    def versions(self) -> Versions:
        return Versions(self.catalog, self.settings, Stores(self.settings))

    def latest_version(self, table: str) -> int | None:
        """The number of the latest publication of a table; None before the first."""
        latest = self.ledger.latest(table)
        return None if latest is None else latest.version

    def tables_of(self, schema: str) -> list[str]:
        """Lists the published tables of a schema of the lake; raises BadRequest if it has none."""
        published = self.ledger.tables()
        tables = [table for table in published if table.lower().startswith(f"{schema.lower()}.")]
        if not tables:
            schemas = sorted({table.rpartition(".")[0] for table in published})
            hint = f"Schemas with published tables: {', '.join(schemas) or 'none'}."
            raise BadRequest("schema", schema, hint)
        return tables


# By the kind of object: how it is found, changed and dropped, and what else is dropped with it.
OBJECTS: Mapping[
    statements.ObjectKind, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], str]
] = {
    "SHARE": (states.find_share_row, sharing.alter_share, sharing.drop_share, "the grants on it"),
    "RECIPIENT": (
        states.find_recipient_row,
        sharing.alter_recipient,
        sharing.drop_recipient,
        "its tokens and grants",
    ),
    "GROUP": (states.find_group_row, sharing.alter_group, sharing.drop_group, "its grants"),
}


def execute_alter(edit: Edit, statement: statements.Alter, _: Provider) -> Result:
    return _alter(edit, statement.kind, statement.name, statement.fields)


def _alter(edit: Edit, kind: statements.ObjectKind, name: str, fields: Mapping[str, Any]) -> Result:
    _, alter, _, _ = OBJECTS[kind]
    return Result(message=f"{kind.lower()} {alter(edit, name, **fields).name} is changed")


def execute_drop(edit: Edit, statement: statements.Drop, _: Provider) -> Result:
    kind, name = statement.kind.lower(), statement.name
    if statement.if_exists and not _exists(statement.kind, edit, name):
        return Result(message=f"there is no {kind} {name}: nothing is changed")
    drop, also = OBJECTS[statement.kind][2:]
    return Result(message=f"{kind} {drop(edit, name).name} is gone, and {also}")


def _exists(kind: statements.ObjectKind, edit: Edit, name: str) -> bool:
    find, *_ = OBJECTS[kind]
    try:
        find(edit.session, name)
    except NotFound:
        return False
    return True


def execute_create_share(edit: Edit, statement: statements.CreateShare, _: Provider) -> Result:
    if statement.if_not_exists and _exists("SHARE", edit, statement.name):
        return Result(message=f"there is a share {statement.name} already: nothing is changed")
    share = sharing.create_share(edit, statement.name, comment=statement.comment)
    return Result(message=f"share {share.name} is made")


def execute_put_object(edit: Edit, statement: statements.PutObject, provider: Provider) -> Result:
    if statement.columns:
        hint = "Let a contract declare a view with these columns, and add that: files hold whole rows."
        raise BadRequest("COLUMNS", ", ".join(statement.columns), hint)
    (schema, name), table = statement.alias, ".".join(statement.path)
    altered = _find_altered(edit, statement) if statement.verb == "ALTER" else None
    start_version = statement.start_version
    if isinstance(start_version, statements.Now):
        start_version = provider.latest_version(table if altered is None else altered.table) or 0
    fields: dict[str, Any] = {
        "kind": statement.kind,
        "comment": statement.comment,
        "history": statement.history,
        "start_version": start_version,
        "rule": statement.rule,
    }
    if altered is not None:
        where = edit, statement.share, altered.schema, altered.name
        shared = sharing.alter_table(*where, new_schema=schema, new_name=name, **fields)
        return Result(message=f"{shared.path} is changed")
    shared = sharing.add_table(
        edit, statement.share, SharedObject(schema=schema, name=name, table=table, **fields)
    )
    unpublished = "" if provider.latest_version(table) is not None else "; it is not published yet"
    return Result(message=f"{table} is shared as {shared.path}{unpublished}")


def execute_put_schema(edit: Edit, statement: statements.PutSchema, provider: Provider) -> Result:
    if statement.comment is not None:
        hint = "A schema of a share has no comment; give one to the share, or to its tables."
        raise BadRequest("COMMENT", statement.comment, hint)
    schema = ".".join(statement.path)
    tables = provider.tables_of(schema)
    shared = {item.table for item in states.list_objects(edit.session, statement.share)}
    added = [table for table in tables if table not in shared]
    for table in added:
        name = table[len(schema) + 1 :]
        sharing.add_table(
            edit, statement.share, SharedObject(schema=statement.path[-1], name=name, table=table)
        )
    message = f"{len(added)} of {len(tables)} published tables of {schema} are new in {statement.share}"
    return Result(message=message)


def execute_remove_object(edit: Edit, statement: statements.RemoveObject, _: Provider) -> Result:
    item = _find_object(edit, statement.share, statement.path)
    removed = sharing.remove_table(edit, statement.share, item.schema, item.name)
    return Result(message=f"{removed.path} is shared no more")


def execute_remove_schema(edit: Edit, statement: statements.RemoveSchema, _: Provider) -> Result:
    schema = statement.path[-1].lower()
    objects = states.list_objects(edit.session, statement.share)
    removed = [item for item in objects if item.schema.lower() == schema]
    if not removed:
        raise NotFound(f"In share {statement.share}, schema", statement.path[-1])
    for item in removed:
        sharing.remove_table(edit, statement.share, item.schema, item.name)
    return Result(message=f"{', '.join(item.path for item in removed)}: shared no more")


def execute_pin_publication(edit: Edit, statement: statements.PinPublication, provider: Provider) -> Result:
    number = statement.publication
    if statement.path is None:
        objects = states.list_objects(edit.session, statement.share)
    else:
        objects = [_find_object(edit, statement.share, statement.path)]
    if not objects:
        raise BadRequest("share", statement.share, "It is empty; add a table first.")
    for item in objects:
        if number is not None and provider.ledger.at(item.table, number) is None:
            latest = provider.latest_version(item.table)
            has = "no publication yet" if latest is None else f"none of this number; the latest is {latest}"
            raise BadRequest("publication", number, f"{item.table} has {has}.")
        sharing.alter_table(edit, statement.share, item.schema, item.name, publication=number)
    served = "the latest publication" if number is None else f"publication {number}"
    return Result(message=f"{', '.join(item.path for item in objects)}: recipients read {served}")


def execute_publish(_: Edit, statement: statements.Publish, __: Provider) -> Result:
    hint = (
        "Only what passed its audit is published, and that is the pipelines' work: "
        f"`lakeshare wap retry {statement.branch}` audits what is staged there again and publishes it if it is green."
    )
    raise BadRequest("PUBLISH TABLE", ".".join(statement.path), hint)


def _find_object(edit: Edit, share: str, path: tuple[str, ...]) -> SharedObject:
    """The object of a share by its name for recipients, else by the lake's table."""
    objects = states.list_objects(edit.session, share)
    named = [item for item in objects if _is_alias(item, path)]
    return _require_single(named or [item for item in objects if _is_table(item, path)], share, path)


def _find_altered(edit: Edit, statement: statements.PutObject) -> SharedObject:
    """The object of a share by the lake's table, and by the given alias if there are several, else by its name."""
    objects = states.list_objects(edit.session, statement.share)
    named = [item for item in objects if _is_table(item, statement.path)]
    if len(named) > 1:
        named = [item for item in named if _is_alias(item, statement.alias)] or named
    named = named or [item for item in objects if _is_alias(item, statement.path)]
    return _require_single(named, statement.share, statement.path)


def _require_single(named: list[SharedObject], share: str, path: tuple[str, ...]) -> SharedObject:
    written = ".".join(path)
    if not named:
        raise NotFound(f"In share {share}, table or view", written)
    if len(named) > 1:
        aliases = ", ".join(f"{item.schema}.{item.name}" for item in named)
        raise BadRequest("table", written, f"{share} has it more than once; name one of {aliases}.")
    return named[0]


def _is_alias(item: SharedObject, path: tuple[str, ...]) -> bool:
    return [item.schema.lower(), item.name.lower()][-len(path) :] == [part.lower() for part in path]


def _is_table(item: SharedObject, path: tuple[str, ...]) -> bool:
    return item.table.lower() == ".".join(path).lower()


LINK_COLUMNS = {"recipient_name": str, "activation_link": str, "link_expires_at": datetime}
TOKEN_COLUMNS = {
    "recipient_name": str,
    "token_id": str,
    "token": str,
    "expires_at": datetime,
    "endpoint": str,
}


def execute_create_recipient(edit: Edit, statement: statements.CreateRecipient, provider: Provider) -> Result:
    """Creates a recipient with an activation link, or with a policy if it authenticates by OIDC."""
    if statement.metastore_id is not None:
        hint = (
            "It names a metastore of Databricks; recipients of lakeshare open a link. Leave it out, or use "
            "USING OIDC or USING CLIENT CREDENTIALS."
        )
        raise BadRequest("USING ID", statement.metastore_id, hint)
    if statement.if_not_exists and _exists("RECIPIENT", edit, statement.name):
        return Result(message=f"there is a recipient {statement.name} already: nothing is changed")
    recipient = sharing.create_recipient(
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
        _put_policy(edit, recipient.name, statement.policy, provider)
        message = f"recipient {recipient.name} is made; it gets in with tokens of {statement.policy.issuer}"
        return Result(message=message)
    return _link_result(
        *credentials.create_link(edit, recipient.name, token_expires_at=statement.until), provider
    )


def execute_invite(edit: Edit, statement: statements.Invite, provider: Provider) -> Result:
    until = states.get_recipient(edit.session, statement.name).expires_at
    life = statement.link_life or credentials.DEFAULT_LINK_LIFE
    link, code = credentials.create_link(edit, statement.name, link_life=life, token_expires_at=until)
    return _link_result(link, code, provider)


def execute_set_properties(edit: Edit, statement: statements.SetProperties, _: Provider) -> Result:
    properties = {**states.get_recipient(edit.session, statement.name).properties, **statement.properties}
    return _alter(edit, "RECIPIENT", statement.name, {"properties": properties})


def execute_unset_properties(edit: Edit, statement: statements.UnsetProperties, _: Provider) -> Result:
    properties = dict(states.get_recipient(edit.session, statement.name).properties)
    for key in statement.keys:
        if key not in properties:
            raise BadRequest("properties", key, f"{statement.name} has: {', '.join(properties) or 'none'}.")
        del properties[key]
    return _alter(edit, "RECIPIENT", statement.name, {"properties": properties})


def execute_rotate_token(edit: Edit, statement: statements.RotateToken, provider: Provider) -> Result:
    issued = credentials.rotate_token(
        edit, statement.name, keep_old_for=statement.keep_old_for, expires_at=statement.until
    )
    token, base_url = issued.state, provider.settings.base_url()
    grace_period = f"within {statement.keep_old_for}" if statement.keep_old_for else "at once"
    message = f"the token is shown here only; older ones end {grace_period}"
    return Result(
        TOKEN_COLUMNS, ((statement.name, token.id, issued.secret, token.expires_at, base_url),), message
    )


def execute_revoke_token(edit: Edit, statement: statements.RevokeToken, _: Provider) -> Result:
    ids = [statement.token_id] if statement.token_id is not None else []
    if not ids:
        tokens = states.get_recipient(edit.session, statement.name).tokens
        ids = [token.id for token in tokens if token.is_valid(edit.at)]
    for token_id in ids:
        credentials.revoke_token(edit, statement.name, token_id)
    return Result(message=f"{len(ids)} tokens of {statement.name} are revoked")


def execute_put_policy(edit: Edit, statement: statements.PutPolicy, provider: Provider) -> Result:
    _put_policy(edit, statement.name, statement.policy, provider)
    return Result(message=f"recipient {statement.name} gets in with tokens of {statement.policy.issuer}")


def execute_drop_policy(edit: Edit, statement: statements.DropPolicy, _: Provider) -> Result:
    policy = credentials.drop_policy(edit, statement.name, statement.policy)
    return Result(message=f"policy {policy.name} of {statement.name} is gone")


def execute_revoke_recipient(edit: Edit, statement: statements.RevokeRecipient, _: Provider) -> Result:
    return Result(message=f"{sharing.revoke_recipient(edit, statement.name).name} may read nothing any more")


def execute_create_group(edit: Edit, statement: statements.CreateGroup, _: Provider) -> Result:
    if statement.if_not_exists and _exists("GROUP", edit, statement.name):
        return Result(message=f"there is a group {statement.name} already: nothing is changed")
    return Result(
        message=f"group {sharing.create_group(edit, statement.name, comment=statement.comment).name} is made"
    )


def execute_change_members(edit: Edit, statement: statements.ChangeMembers, _: Provider) -> Result:
    if statement.verb == "ADD":
        group = sharing.alter_group(edit, statement.name, add=statement.recipients)
    else:
        group = sharing.alter_group(edit, statement.name, remove=statement.recipients)
    return Result(message=f"group {group.name} has {', '.join(group.members) or 'no members'}")


def execute_grant(edit: Edit, statement: statements.Grant, _: Provider) -> Result:
    given = sharing.grant(
        edit,
        statement.share,
        **_reader(statement.to),
        starts_at=statement.starts_at,
        ends_at=statement.ends_at,
        rule=statement.rule,
    )
    until = "" if given.ends_at is None else f" until {given.ends_at:%Y-%m-%d %H:%M} UTC"
    where = "" if given.rule is None else f" where {given.rule}"
    return Result(message=f"{given.recipient or given.group} may read {given.share}{until}{where}")


def execute_revoke(edit: Edit, statement: statements.Revoke, _: Provider) -> Result:
    revoked = sharing.revoke(edit, statement.share, **_reader(statement.grantee))
    reader = revoked.recipient or revoked.group
    return Result(message=f"{reader} may not read {revoked.share} any more by a grant of its own")


def _reader(grantee: statements.Grantee) -> dict[str, Any]:
    return {grantee.kind.lower(): grantee.name}


def _link_result(link: LinkState, code: str, provider: Provider) -> Result:
    row = (link.recipient, provider.settings.activation_url(code), link.expires_at)
    return Result(LINK_COLUMNS, (row,), "the link is shown here only, and opens once")


def _put_policy(edit: Edit, recipient: str, policy: statements.Policy, provider: Provider) -> None:
    # The default audience of a token is this server.
    audiences = policy.audiences or (provider.settings.base_url(),)
    credentials.put_policy(edit, recipient, FederationPolicy(**{**vars(policy), "audiences": audiences}))


COLUMNS = {"result": str, "table": str, "location": str, "version": int, "clients": str}


def execute_follow(statement: statements.Follow, provider: Provider, principal: str) -> Result:
    """Follows the tables of a location, in transactions of their own; BadRequest names the first that is refused."""
    following = Following.of(provider.catalog, provider.settings)
    usual = FollowRequest(
        share=statement.share, history=statement.history, start_version=statement.start_version
    )
    requests = following.requests([(statement.location, ".".join(statement.alias) or None)], usual)
    if len(requests) == 1:
        outcomes = [following.follow(requests[0], principal)]
    else:
        outcomes = list(following.follow_all(requests, principal))
    refused = [outcome for outcome in outcomes if outcome.result == "refused"]
    if refused:
        first = refused[0]
        raise BadRequest(
            "FOLLOW",
            statement.location,
            f"{len(refused)} of its {len(outcomes)} tables are refused, the others are followed. "
            f"{first.location}: {first.remark}",
        )
    rows = []
    for outcome in outcomes:
        fields = outcome.as_json()
        clients = ", ".join(fields["clients"])
        rows.append((fields["result"], fields["table"], outcome.location, fields["version"], clients))
    return Result(COLUMNS, tuple(rows))


def execute_unfollow(statement: statements.Unfollow, provider: Provider, principal: str) -> Result:
    """Stops following a table, in a transaction of its own; raises NotFound."""
    table = FollowedTables(provider.catalog).remove(".".join(statement.path), principal)
    return Result(message=f"{table.table} is not followed any more")
