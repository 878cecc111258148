"""Doing the statements that change shares: each in one open transaction, by the operations of the catalog."""

from lakeshare_server.catalog.sharing import (
    Edit,
    SharedObject,
    add_table,
    alter_share,
    alter_table,
    create_share,
    drop_share,
    look,
    remove_table,
)
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.provider import Provider
from lakeshare_server.sql.results import Result, done


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
    there = {one.table for one in look.objects(edit.session, asked.share)}
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
    found = [one for one in look.objects(edit.session, asked.share) if one.schema.lower() == schema]
    if not found:
        raise NotFound(f"In share {asked.share}, schema", asked.path[-1])
    for one in found:
        remove_table(edit, asked.share, one.schema, one.name)
    return done(f"{', '.join(one.path for one in found)}: shared no more")


def do_pin_publication(edit: Edit, asked: said.PinPublication, provider: Provider) -> Result:
    """ALTER SHARE … SET | UNSET PUBLICATION."""
    if asked.path is None:
        found = look.objects(edit.session, asked.share)
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
    found = look.objects(edit.session, share)
    named = [one for one in found if _is_alias(one, path)] or [one for one in found if _is_table(one, path)]
    return _only(named, share, path)


def is_there(edit: Edit, kind: str, name: str) -> bool:
    """Whether there is a share, recipient or group of this name."""
    find = {"share": look.share_row, "recipient": look.recipient_row, "group": look.group_row}[kind]
    try:
        find(edit.session, name)
    except NotFound:
        return False
    return True


def _known(edit: Edit, asked: said.PutObject) -> SharedObject:
    """What ALTER speaks of: the table of that name, and of several the one with the alias that is given."""
    found = look.objects(edit.session, asked.share)
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
