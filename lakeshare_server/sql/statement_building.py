"""Callbacks for statements: one for each rule of the grammar, named like it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from lark import Token, v_args
from lark.tree import Meta

from lakeshare_server.sql import statements as said
from lakeshare_server.sql.clause_building import ClauseBuilder, Parts
from lakeshare_server.sql.following import Follow, ShowFollowedTables, Unfollow
from lakeshare_server.sql.reading import Unusable, gathered, place_at, span_in, text_in
from lakeshare_server.sql.words import plain_text

# What follows ALTER … name: fields for the operation, or a statement that waits for the name.
Altered = dict[str, Any] | Callable[[str], said.Statement]


@dataclass(frozen=True)
class Placed:
    """A statement and the characters of the script it takes, from `start` to before `end`."""

    statement: said.Statement
    start: int
    end: int


def _flagged(parts: Parts) -> tuple[bool, Parts]:
    """Whether IF [NOT] EXISTS is there, and the rest."""
    return (True, parts[1:]) if parts[0] is True else (False, parts)


@v_args(meta=True)
class StatementBuilder(ClauseBuilder):
    """Makes the statements of a script."""

    def script(self, _: Meta, parts: Parts) -> tuple[Placed, ...]:
        return tuple(parts)

    def placed(self, meta: Meta, parts: Parts) -> Placed:
        return Placed(parts[0], meta.start_pos, meta.end_pos)

    # --- shares

    def create_share(self, _: Meta, parts: Parts) -> said.Statement:
        if_not_exists, (name, *clauses) = _flagged(parts)
        return said.CreateShare(name, if_not_exists, **gathered(clauses))

    def share_clause(self, _: Meta, parts: Parts) -> Any:
        return parts[0]

    def drop_share(self, _: Meta, parts: Parts) -> said.Statement:
        if_exists, [name] = _flagged(parts)
        return said.DropShare(name, if_exists)

    def alter_share(self, _: Meta, parts: Parts) -> said.Statement:
        name, change = parts
        return said.AlterShare(name, change) if isinstance(change, dict) else change(name)

    def comment_on_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.AlterShare(parts[0], {"comment": text_in(parts[1])})

    def comment_on_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.AlterRecipient(parts[0], {"comment": text_in(parts[1])})

    def comment_on(self, _: Meta, parts: Parts) -> said.Statement:
        return parts[0]  # type: ignore[no-any-return]  # as every callback's parts

    def view(self, _: Meta, __: Parts) -> None:
        return None

    def put_table(self, meta: Meta, parts: Parts) -> Altered:
        return self._put("TABLE", meta, parts)

    def put_view(self, meta: Meta, parts: Parts) -> Altered:
        return self._put("VIEW", meta, [part for part in parts if part is not None])

    def put_model(self, meta: Meta, parts: Parts) -> Altered:
        return self._put("MODEL", meta, parts)

    def _put(self, kind: said.Kind, meta: Meta, parts: Parts) -> Altered:
        verb, (path, *clauses) = _verb(parts)
        given = gathered(clauses)
        history, start = given.pop("history", (True, None))
        alias = given.pop("alias", path[-2:])
        if len(alias) == 1:
            alias = (*path[-2:-1], *alias)
        if len(alias) != 2:
            what = f"{'.'.join(path)} has no schema; write schema.table, or name it AS schema.table."
            raise Unusable(what, place_at(meta))
        fields = {"alias": alias, "history": history, "start_version": start, **given}
        return partial(said.PutObject, verb=verb, kind=kind, path=path, **fields)

    def put_schema(self, _: Meta, parts: Parts) -> Altered:
        verb, (path, *clauses) = _verb(parts)
        return partial(said.PutSchema, verb=verb, path=path, **gathered(clauses))

    def remove_object(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RemoveObject, path=parts[-1])

    def remove_schema(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RemoveSchema, path=parts[0])

    def renamed(self, _: Meta, parts: Parts) -> Altered:
        return {"new_name": parts[0]}

    def owned(self, _: Meta, parts: Parts) -> Altered:
        return {"owner": parts[0]}

    def commented(self, _: Meta, parts: Parts) -> Altered:
        return {"comment": text_in(parts[0])}

    def display_named(self, _: Meta, parts: Parts) -> Altered:
        return {"display_name": text_in(parts[0])}

    def pinned(self, _: Meta, parts: Parts) -> Altered:
        number, *path = parts
        return partial(said.PinPublication, publication=number, path=path[0] if path else None)

    def unpinned(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.PinPublication, publication=None, path=parts[0] if parts else None)

    # --- recipients

    def create_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        if_not_exists, (name, *clauses) = _flagged(parts)
        fields = gathered(clauses)
        return said.CreateRecipient(name, if_not_exists, **fields.pop("using", {}), **fields)

    def drop_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        if_exists, [name] = _flagged(parts)
        return said.DropRecipient(name, if_exists)

    def alter_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        name, change = parts
        return said.AlterRecipient(name, change) if isinstance(change, dict) else change(name)

    def properties_set(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.SetProperties, properties=parts[0])

    def properties_unset(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.UnsetProperties, keys=tuple(dict.fromkeys(parts)))

    def addresses_set(self, _: Meta, parts: Parts) -> Altered:
        return {"ip_allow": parts[0]}

    def addresses_unset(self, _: Meta, __: Parts) -> Altered:
        return {"ip_allow": None}

    def agreement_set(self, _: Meta, parts: Parts) -> Altered:
        return {"agreement": plain_text(parts[0])}

    def agreement_unset(self, _: Meta, __: Parts) -> Altered:
        return {"agreement": None}

    def end_set(self, _: Meta, parts: Parts) -> Altered:
        return {"expires_at": parts[0]}

    def end_unset(self, _: Meta, __: Parts) -> Altered:
        return {"expires_at": None}

    def token_rotated(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RotateToken, **gathered(parts))

    def token_revoked(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RevokeToken, token_id=text_in(parts[0]) if parts else None)

    def invited(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.Invite, link_life=span_in(parts[0]) if parts else None)

    def policy_put(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.PutPolicy, policy=parts[0])

    def policy_dropped(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.DropPolicy, policy=parts[0])

    # --- groups

    def create_group(self, _: Meta, parts: Parts) -> said.Statement:
        if_not_exists, (name, *comment) = _flagged(parts)
        return said.CreateGroup(name, if_not_exists, text_in(comment[0]) if comment else None)

    def drop_group(self, _: Meta, parts: Parts) -> said.Statement:
        if_exists, [name] = _flagged(parts)
        return said.DropGroup(name, if_exists)

    def alter_group(self, _: Meta, parts: Parts) -> said.Statement:
        name, change = parts
        return said.AlterGroup(name, change) if isinstance(change, dict) else change(name)

    def members_added(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.ChangeMembers, verb="ADD", recipients=tuple(parts))

    def members_removed(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.ChangeMembers, verb="REMOVE", recipients=tuple(parts))

    # --- who may read what

    def to_recipient(self, _: Meta, parts: Parts) -> said.Grantee:
        return said.Grantee("RECIPIENT", parts[0])

    def to_group(self, _: Meta, parts: Parts) -> said.Grantee:
        return said.Grantee("GROUP", parts[0])

    def grant(self, _: Meta, parts: Parts) -> said.Statement:
        share, to, *clauses = parts
        fields = gathered(clauses)
        return said.Grant(share, to, ends_at=fields.pop("until", None), **fields)

    def revoke(self, _: Meta, parts: Parts) -> said.Statement:
        return said.Revoke(*parts)

    def revoke_token(self, _: Meta, parts: Parts) -> said.Statement:
        *token_id, name = parts
        return said.RevokeToken(name, text_in(token_id[0]) if token_id else None)

    def revoke_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.RevokeRecipient(parts[0])

    def publish(self, _: Meta, parts: Parts) -> said.Statement:
        path, branch = parts
        return said.Publish(path, plain_text(branch) if isinstance(branch, Token) else branch)

    # --- tables that are followed where they lie

    def follow(self, meta: Meta, parts: Parts) -> said.Statement:
        location, *clauses = parts
        given = gathered(clauses)
        history, start = given.pop("history", (True, None))
        if len(given.get("alias", ("", ""))) != 2:
            raise Unusable("Name the table AS schema.table.", place_at(meta))
        return Follow(plain_text(location), history=history, start_version=start or 0, **given)

    def unfollow(self, _: Meta, parts: Parts) -> said.Statement:
        return Unfollow(parts[0])

    # --- looking

    def show_followed_tables(self, _: Meta, parts: Parts) -> said.Statement:
        return ShowFollowedTables(*parts)

    def show_shares(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowShares(*parts)

    def show_shares_in_provider(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowSharesInProvider(*parts)

    def show_all_in_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowAllInShare(*parts)

    def show_recipients(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowRecipients(*parts)

    def show_groups(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowGroups(*parts)

    def show_grants_on_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowGrantsOnShare(*parts)

    def show_grants_to(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowGrantsTo(*parts)

    def show_usage(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowUsage(*parts)

    def since(self, _: Meta, parts: Parts) -> Any:
        return parts[0]

    def describe_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.DescribeShare(*parts)

    def describe_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.DescribeRecipient(*parts)

    def describe_group(self, _: Meta, parts: Parts) -> said.Statement:
        return said.DescribeGroup(*parts)

    def select(self, _: Meta, parts: Parts) -> said.Statement:
        return said.SelectAll(*parts)

    def set_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.SetRecipient(parts[0])

    def reset_recipient(self, _: Meta, __: Parts) -> said.Statement:
        return said.SetRecipient(None)


def _verb(parts: Parts) -> tuple[Literal["ADD", "ALTER"], Parts]:
    """ALTER leaves its token, ADD none."""
    if isinstance(parts[0], Token) and parts[0].type == "ALTER":
        return "ALTER", parts[1:]
    return "ADD", parts
