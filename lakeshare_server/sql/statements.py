"""The statements of the sharing DDL that change the catalog: their fields, and their execution.

Each is executed in an open transaction; FOLLOW and UNFOLLOW have transactions of their own. Statements that read are in
`show`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, dataclass_transform

from lakeshare_server.catalog import FollowedTables, credentials, sharing, states
from lakeshare_server.catalog.sharing import Edit
from lakeshare_server.catalog.states import FederationPolicy, LinkState, SharedTable
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.provider.following import FollowRequest
from lakeshare_server.provider.following import Provider as Provider

Verb = Literal["ADD", "ALTER"]
ObjectKind = Literal["SHARE", "RECIPIENT", "GROUP"]
Cell = str | int | bool | datetime | None
Columns = Mapping[str, type]  # str, int, bool or datetime
LINK_COLUMNS = {"recipient_name": str, "activation_link": str, "link_expires_at": datetime}
TOKEN_COLUMNS = {
    "recipient_name": str,
    "token_id": str,
    "token": str,
    "expires_at": datetime,
    "endpoint": str,
}
FOLLOW_COLUMNS = {"result": str, "table": str, "location": str, "version": int, "clients": str}
OUTSIDE = "It reads stores: run it outside of the transaction."


@dataclass(frozen=True)
class Result:
    """Rows, or none; `message` is for people, and not needed to understand the rows."""

    columns: Columns = field(default_factory=dict)
    rows: tuple[tuple[Cell, ...], ...] = ()
    message: str = ""


# By the kind of object: what else is dropped with it.
ALSO_DROPPED: Mapping[ObjectKind, str] = {
    "SHARE": "the grants on it",
    "RECIPIENT": "its tokens and grants",
    "GROUP": "its grants",
}


class Now:
    """A start version: the latest publication when the statement is executed."""


@dataclass(frozen=True)
class Grantee:
    kind: Literal["RECIPIENT", "GROUP"]
    name: str

    @property
    def reader(self) -> dict[str, Any]:
        """The reader as an argument of the operations."""
        return {self.kind.lower(): self.name}


@dataclass_transform(frozen_default=True)
class Statement:
    """A statement, with its class name as its keywords; its classes are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class ChangeStatement(Statement):
    """A statement that changes the catalog."""

    def execute(self, edit: Edit, provider: Provider) -> Result:
        """Changes the catalog in an open transaction; raises as the operations of `sharing`."""
        raise NotImplementedError


class SetRecipient(Statement):
    """Makes the session read as a recipient; RESET RECIPIENT has None."""

    name: str | None = None


class Alter(ChangeStatement):
    """ALTER SHARE | RECIPIENT | GROUP and COMMENT ON: sets fields of the object."""

    kind: ObjectKind
    name: str
    fields: Mapping[str, Any]  # as the operations of the catalog take them

    def execute(self, edit: Edit, _: Provider) -> Result:
        kind = self.kind.lower()
        altered = sharing.NAMED[kind].alter(edit, self.name, **self.fields)
        return Result(message=f"{kind} {altered.name} is changed")


class Create(ChangeStatement):
    """CREATE SHARE | GROUP."""

    kind: Literal["SHARE", "GROUP"]
    name: str
    if_not_exists: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)  # as the operation of the catalog takes them

    def execute(self, edit: Edit, _: Provider) -> Result:
        if self.if_not_exists and _exists(self.kind, edit, self.name):
            return _already_there(self.kind, self.name)
        kind = self.kind.lower()
        created = sharing.NAMED[kind].create(edit, self.name, **self.fields)
        return Result(message=f"{kind} {created.name} is made")


class Drop(ChangeStatement):
    kind: ObjectKind
    name: str
    if_exists: bool = False

    def execute(self, edit: Edit, _: Provider) -> Result:
        kind, name = self.kind.lower(), self.name
        if self.if_exists and not _exists(self.kind, edit, name):
            return Result(message=f"there is no {kind} {name}: nothing is changed")
        dropped = sharing.NAMED[kind].drop(edit, name)
        return Result(message=f"{kind} {dropped.name} is gone, and {ALSO_DROPPED[self.kind]}")


class PutObject(ChangeStatement):
    """ALTER SHARE … ADD | ALTER TABLE | VIEW; ALTER states all fields again."""

    share: str
    verb: Verb
    path: tuple[str, ...]
    alias: tuple[str, str]
    fields: Mapping[str, Any]  # as the operations of the catalog take them, and Now for a start version
    columns: tuple[str, ...] = ()

    def execute(self, edit: Edit, provider: Provider) -> Result:
        if self.columns:
            hint = "Let a contract declare a view with these columns, and add that: files hold whole rows."
            raise BadRequest("COLUMNS", ", ".join(self.columns), hint)
        (schema, name), table = self.alias, ".".join(self.path)
        altered = _find_altered(edit, self) if self.verb == "ALTER" else None
        fields = dict(self.fields)
        if isinstance(fields["start_version"], Now):
            latest = provider.latest_version(table if altered is None else altered.table)
            fields["start_version"] = latest or 0
        if altered is not None:
            where = edit, self.share, altered.schema, altered.name
            shared = sharing.alter_table(*where, new_schema=schema, new_name=name, **fields)
            return Result(message=f"{shared.path} is changed")
        shared = sharing.add_table(
            edit, self.share, SharedTable(schema=schema, name=name, table=table, **fields)
        )
        unpublished = "" if provider.latest_version(table) is not None else "; it is not published yet"
        return Result(message=f"{table} is shared as {shared.path}{unpublished}")


class PutSchema(ChangeStatement):
    """ALTER SHARE … ADD | ALTER SCHEMA: every published table of a schema of the lake."""

    share: str
    verb: Verb
    path: tuple[str, ...]
    comment: str | None = None

    def execute(self, edit: Edit, provider: Provider) -> Result:
        if self.comment is not None:
            hint = "A schema of a share has no comment; give one to the share, or to its tables."
            raise BadRequest("COMMENT", self.comment, hint)
        schema = ".".join(self.path)
        tables = provider.tables_of(schema)
        shared = {item.table for item in states.list_objects(edit.session, self.share)}
        added = [table for table in tables if table not in shared]
        for table in added:
            name = table[len(schema) + 1 :]
            sharing.add_table(edit, self.share, SharedTable(schema=self.path[-1], name=name, table=table))
        message = f"{len(added)} of {len(tables)} published tables of {schema} are new in {self.share}"
        return Result(message=message)


class RemoveObject(ChangeStatement):
    """ALTER SHARE … REMOVE TABLE | VIEW: by the name for recipients, or by the lake's table."""

    share: str
    path: tuple[str, ...]

    def execute(self, edit: Edit, _: Provider) -> Result:
        item = _find_object(edit, self.share, self.path)
        removed = sharing.remove_table(edit, self.share, item.schema, item.name)
        return Result(message=f"{removed.path} is shared no more")


class RemoveSchema(ChangeStatement):
    share: str
    path: tuple[str, ...]

    def execute(self, edit: Edit, _: Provider) -> Result:
        schema = self.path[-1].lower()
        objects = states.list_objects(edit.session, self.share)
        removed = [item for item in objects if item.schema.lower() == schema]
        if not removed:
            raise NotFound(f"In share {self.share}, schema", self.path[-1])
        for item in removed:
            sharing.remove_table(edit, self.share, item.schema, item.name)
        return Result(message=f"{', '.join(item.path for item in removed)}: shared no more")


class PinPublication(ChangeStatement):
    """ALTER SHARE … SET | UNSET PUBLICATION of one object, or of all in the share; None serves the latest."""

    share: str
    publication: int | None
    path: tuple[str, ...] | None = None

    def execute(self, edit: Edit, provider: Provider) -> Result:
        number = self.publication
        if self.path is None:
            objects = states.list_objects(edit.session, self.share)
        else:
            objects = [_find_object(edit, self.share, self.path)]
        if not objects:
            raise BadRequest("share", self.share, "It is empty; add a table first.")
        for item in objects:
            if number is not None and provider.ledger.at(item.table, number) is None:
                latest = provider.latest_version(item.table)
                has = (
                    "no publication yet" if latest is None else f"none of this number; the latest is {latest}"
                )
                raise BadRequest("publication", number, f"{item.table} has {has}.")
            sharing.alter_table(edit, self.share, item.schema, item.name, publication=number)
        served = "the latest publication" if number is None else f"publication {number}"
        return Result(message=f"{', '.join(item.path for item in objects)}: recipients read {served}")


class CreateRecipient(ChangeStatement):
    name: str
    if_not_exists: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)  # as the operation of the catalog takes them
    policy: FederationPolicy | None = None
    metastore_id: str | None = None

    def execute(self, edit: Edit, provider: Provider) -> Result:
        """Creates a recipient with an activation link, or with a policy if it authenticates by OIDC."""
        if self.metastore_id is not None:
            hint = (
                "It names a metastore of Databricks; recipients of lakeshare open a link. Leave it out, or use "
                "USING OIDC or USING CLIENT CREDENTIALS."
            )
            raise BadRequest("USING ID", self.metastore_id, hint)
        if self.if_not_exists and _exists("RECIPIENT", edit, self.name):
            return _already_there("RECIPIENT", self.name)
        recipient = sharing.create_recipient(edit, self.name, **self.fields)
        if self.policy is not None:
            _put_policy(edit, recipient.name, self.policy, provider)
            message = f"recipient {recipient.name} is made; it gets in with tokens of {self.policy.issuer}"
            return Result(message=message)
        return _link_result(
            *credentials.create_link(edit, recipient.name, token_expires_at=recipient.expires_at), provider
        )


Entries = Literal["properties", "limits"]


class SetEntries(ChangeStatement):
    """ALTER RECIPIENT … SET PROPERTIES | LIMITS; the others stay."""

    kind: Entries
    name: str
    entries: Mapping[str, Any]

    def execute(self, edit: Edit, provider: Provider) -> Result:
        entries = {**getattr(states.get_recipient(edit.session, self.name), self.kind), **self.entries}
        return Alter("RECIPIENT", self.name, {self.kind: entries}).execute(edit, provider)


class UnsetEntries(ChangeStatement):
    kind: Entries
    name: str
    keys: tuple[str, ...]

    def execute(self, edit: Edit, provider: Provider) -> Result:
        entries = dict(getattr(states.get_recipient(edit.session, self.name), self.kind))
        for key in self.keys:
            if key not in entries:
                raise BadRequest(self.kind, key, f"{self.name} has: {', '.join(entries) or 'none'}.")
            del entries[key]
        return Alter("RECIPIENT", self.name, {self.kind: entries}).execute(edit, provider)


class RotateToken(ChangeStatement):
    name: str
    keep_old_for: timedelta = timedelta()
    expires_at: datetime | None = None

    def execute(self, edit: Edit, provider: Provider) -> Result:
        issued = credentials.rotate_token(
            edit, self.name, keep_old_for=self.keep_old_for, expires_at=self.expires_at
        )
        token, base_url = issued.state, provider.settings.base_url()
        grace_period = f"within {self.keep_old_for}" if self.keep_old_for else "at once"
        message = f"the token is shown here only; older ones end {grace_period}"
        return Result(
            TOKEN_COLUMNS, ((self.name, token.id, issued.secret, token.expires_at, base_url),), message
        )


class RevokeToken(ChangeStatement):
    """One token by its id, or all of the recipient."""

    name: str
    token_id: str | None = None

    def execute(self, edit: Edit, _: Provider) -> Result:
        ids = [self.token_id] if self.token_id is not None else []
        if not ids:
            tokens = states.get_recipient(edit.session, self.name).tokens
            ids = [token.id for token in tokens if token.is_valid(edit.at)]
        for token_id in ids:
            credentials.revoke_token(edit, self.name, token_id)
        return Result(message=f"{len(ids)} tokens of {self.name} are revoked")


class Invite(ChangeStatement):
    """Creates a new activation link."""

    name: str
    link_life: timedelta | None = None

    def execute(self, edit: Edit, provider: Provider) -> Result:
        until = states.get_recipient(edit.session, self.name).expires_at
        life = credentials.DEFAULT_LINK_LIFE if self.link_life is None else self.link_life
        link, code = credentials.create_link(edit, self.name, link_life=life, token_expires_at=until)
        return _link_result(link, code, provider)


class PutPolicy(ChangeStatement):
    name: str
    policy: FederationPolicy

    def execute(self, edit: Edit, provider: Provider) -> Result:
        _put_policy(edit, self.name, self.policy, provider)
        return Result(message=f"recipient {self.name} gets in with tokens of {self.policy.issuer}")


class DropPolicy(ChangeStatement):
    name: str
    policy: str

    def execute(self, edit: Edit, _: Provider) -> Result:
        policy = credentials.drop_policy(edit, self.name, self.policy)
        return Result(message=f"policy {policy.name} of {self.name} is gone")


class RevokeRecipient(ChangeStatement):
    """Ends all access; the name and the history stay."""

    name: str

    def execute(self, edit: Edit, _: Provider) -> Result:
        return Result(message=f"{sharing.revoke_recipient(edit, self.name).name} may read nothing any more")


class ChangeMembers(ChangeStatement):
    name: str
    verb: Literal["ADD", "REMOVE"]
    recipients: tuple[str, ...]

    def execute(self, edit: Edit, _: Provider) -> Result:
        if self.verb == "ADD":
            group = sharing.alter_group(edit, self.name, add=self.recipients)
        else:
            group = sharing.alter_group(edit, self.name, remove=self.recipients)
        return Result(message=f"group {group.name} has {', '.join(group.members) or 'no members'}")


class Grant(ChangeStatement):
    """GRANT SELECT ON SHARE; replaces the terms of an existing grant."""

    share: str
    to: Grantee
    terms: Mapping[str, Any] = field(default_factory=dict)  # as the operation of the catalog takes them

    def execute(self, edit: Edit, _: Provider) -> Result:
        given = sharing.grant(edit, self.share, **self.to.reader, **self.terms)
        until = "" if given.ends_at is None else f" until {given.ends_at:%Y-%m-%d %H:%M} UTC"
        where = "" if given.rule is None else f" where {given.rule}"
        return Result(message=f"{given.reader} may read {given.share}{until}{where}")


class Revoke(ChangeStatement):
    share: str
    grantee: Grantee

    def execute(self, edit: Edit, _: Provider) -> Result:
        revoked = sharing.revoke(edit, self.share, **self.grantee.reader)
        message = f"{revoked.reader} may not read {revoked.share} any more by a grant of its own"
        return Result(message=message)


class Publish(ChangeStatement):
    """PUBLISH TABLE … FROM BRANCH; refused with the command of the pipelines."""

    path: tuple[str, ...]
    branch: str

    def execute(self, _edit: Edit, _provider: Provider) -> Result:
        hint = (
            "Only what passed its audit is published, and that is the pipelines' work: "
            f"`lakeshare wap retry {self.branch}` audits what is staged there again and publishes it if it is green."
        )
        raise BadRequest("PUBLISH TABLE", ".".join(self.path), hint)


class Follow(ChangeStatement):
    """FOLLOW; with a star for the table: all tables of a folder or a namespace."""

    location: str
    alias: tuple[str, ...] = ()
    share: str = "lake"
    history: bool = True
    start_version: int = 0

    def run(self, provider: Provider, principal: str) -> Result:
        """Follows the tables, in transactions of their own; BadRequest names the first that is refused."""
        following = provider.following
        usual = FollowRequest(share=self.share, history=self.history, start_version=self.start_version)
        requests = following.requests([(self.location, ".".join(self.alias) or None)], usual)
        if len(requests) == 1:
            outcomes = [following.follow(requests[0], principal)]
        else:
            outcomes = list(following.follow_all(requests, principal))
        refused = [outcome for outcome in outcomes if outcome.result == "refused"]
        if refused:
            first = refused[0]
            raise BadRequest(
                "FOLLOW",
                self.location,
                f"{len(refused)} of its {len(outcomes)} tables are refused, the others are followed. "
                f"{first.location}: {first.remark}",
            )
        rows = []
        for outcome in outcomes:
            fields = outcome.as_json()
            clients = ", ".join(fields["clients"])
            rows.append((fields["result"], fields["table"], outcome.location, fields["version"], clients))
        return Result(FOLLOW_COLUMNS, tuple(rows))

    def execute(self, _edit: Edit, _provider: Provider) -> Result:
        raise BadRequest("FOLLOW", "FOLLOW", OUTSIDE)


class Unfollow(ChangeStatement):
    path: tuple[str, ...]

    def run(self, provider: Provider, principal: str) -> Result:
        """Stops following a table, in a transaction of its own; raises NotFound."""
        table = FollowedTables(provider.catalog).remove(".".join(self.path), principal)
        return Result(message=f"{table.table} is not followed any more")

    def execute(self, _edit: Edit, _provider: Provider) -> Result:
        raise BadRequest("UNFOLLOW", "UNFOLLOW", OUTSIDE)


def _exists(kind: ObjectKind, edit: Edit, name: str) -> bool:
    try:
        sharing.NAMED[kind.lower()].find(edit.session, name)
    except NotFound:
        return False
    return True


def _already_there(kind: ObjectKind, name: str) -> Result:
    return Result(message=f"there is a {kind.lower()} {name} already: nothing is changed")


def _find_object(edit: Edit, share: str, path: tuple[str, ...]) -> SharedTable:
    """The object of a share by its name for recipients, else by the lake's table."""
    objects = states.list_objects(edit.session, share)
    named = [item for item in objects if _is_alias(item, path)]
    return _require_single(named or [item for item in objects if _is_table(item, path)], share, path)


def _find_altered(edit: Edit, statement: PutObject) -> SharedTable:
    """The object of a share by the lake's table, and by the given alias if there are several, else by its name."""
    objects = states.list_objects(edit.session, statement.share)
    named = [item for item in objects if _is_table(item, statement.path)]
    if len(named) > 1:
        named = [item for item in named if _is_alias(item, statement.alias)] or named
    named = named or [item for item in objects if _is_alias(item, statement.path)]
    return _require_single(named, statement.share, statement.path)


def _require_single(named: list[SharedTable], share: str, path: tuple[str, ...]) -> SharedTable:
    written = ".".join(path)
    if not named:
        raise NotFound(f"In share {share}, table or view", written)
    if len(named) > 1:
        aliases = ", ".join(item.alias for item in named)
        raise BadRequest("table", written, f"{share} has it more than once; name one of {aliases}.")
    return named[0]


def _is_alias(item: SharedTable, path: tuple[str, ...]) -> bool:
    return [item.schema.lower(), item.name.lower()][-len(path) :] == [part.lower() for part in path]


def _is_table(item: SharedTable, path: tuple[str, ...]) -> bool:
    return item.table.lower() == ".".join(path).lower()


def _link_result(link: LinkState, code: str, provider: Provider) -> Result:
    row = (link.recipient, provider.settings.activation_url(code), link.expires_at)
    return Result(LINK_COLUMNS, (row,), "the link is shown here only, and opens once")


def _put_policy(edit: Edit, recipient: str, policy: FederationPolicy, provider: Provider) -> None:
    # The default audience of a token is this server.
    audiences = policy.audiences or (provider.settings.base_url(),)
    credentials.put_policy(edit, recipient, replace(policy, audiences=audiences))
