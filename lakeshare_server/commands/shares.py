"""Commands about shares: what can be granted, and to whom it is."""

from typing import Annotated

import typer

from lakeshare_server.commands.console import ask, editing_share, open_state_catalog, operator
from lakeshare_server.commands.option_values import moment, properties, shared_path, table_path

share_app = typer.Typer(help="Shares: what can be granted, and to whom it is.", no_args_is_help=True)

ShareName = Annotated[str, typer.Argument(metavar="SHARE", help="The share's name.")]
TablePath = Annotated[
    str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="What recipients call the table.")
]
Comment = Annotated[str | None, typer.Option(help="What it is, for whoever reads the list.")]
Rule = Annotated[
    str | None,
    typer.Option(
        "--where",
        help="Which partitions are read: a predicate on partition columns, like \"region = 'EU'\"; '' for all.",
    ),
]
Recipient = Annotated[str | None, typer.Option("--recipient", help="The recipient that may read it.")]
Group = Annotated[str | None, typer.Option("--group", help="The group whose members may read it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@share_app.command("list")
def list_shares() -> None:
    """List what is shared under which name, and which publication recipients read."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.catalog.listings import all_shared_tables

    catalog = open_state_catalog()
    ledger = Ledger(catalog)
    for entry in all_shared_tables(catalog):
        latest = ledger.latest(entry.lake_table)
        number = "not published yet" if latest is None else f"publication {latest.version}"
        typer.echo(f"{entry.path}\t{entry.lake_table}\t{number}")


@share_app.command("show")
def show_share(name: ShareName) -> None:
    """Show a share: its fields, its tables, and who may read it from when until when."""
    from lakeshare_server.catalog.sharing import look

    with open_state_catalog().reading() as session:
        share, objects = look.share(session, name), look.objects(session, name)
        grants = look.grants_on(session, name)
    for field, value in share.as_json().items():
        typer.echo(f"{field}\t{value}")
    for one in objects:
        said = {**one.as_json(), "history": one.history}
        remarks = [f"{field}={said[field]}" for field in TOLD if said.get(field)]
        remarks += [] if one.history else ["no history"]
        typer.echo("\t".join([one.kind.lower(), one.path, one.table, ", ".join(remarks)]).rstrip())
    for grant in grants:
        reader = f"recipient {grant.recipient}" if grant.recipient is not None else f"group {grant.group}"
        end = "further notice" if grant.ends_at is None else f"{grant.ends_at:%Y-%m-%d %H:%MZ}"
        start = "" if grant.starts_at is None else f"from {grant.starts_at:%Y-%m-%d %H:%MZ} "
        typer.echo("\t".join(["grant", reader, f"{start}until {end}", grant.rule or ""]).rstrip())


@share_app.command("create")
def create(
    name: ShareName,
    comment: Comment = None,
    display_name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    owner: Annotated[
        str | None, typer.Option(help="Who answers for it; whoever makes it by default.")
    ] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="key=value; repeat for more.")
    ] = None,
) -> None:
    """Make an empty share.

    Example: lakeshare share create partners --comment "Orders of the last year"
    """
    from lakeshare_server.catalog.sharing import create_share, editing

    said = properties("--property", property_ or [])
    with editing(open_state_catalog(), operator()) as edit:
        made = create_share(
            edit, name, comment=comment, display_name=display_name, owner=owner, properties=said
        )
    typer.echo(f"{made.name} is there: lakeshare share add {made.name} LAKE.TABLE")


@share_app.command("set")
def set_(
    name: ShareName,
    comment: Comment = None,
    display_name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who answers for it.")] = None,
    rename: Annotated[
        str | None, typer.Option(help="The new name; recipients find it under that only.")
    ] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="key=value; replaces all; repeat for more.")
    ] = None,
) -> None:
    """Change what is given of a share; an empty text takes a comment or display name away."""
    from lakeshare_server.catalog.sharing import KEEP, alter_share, editing

    with editing(open_state_catalog(), operator()) as edit:
        altered = alter_share(
            edit,
            name,
            new_name=KEEP if rename is None else rename,
            comment=KEEP if comment is None else comment or None,
            display_name=KEEP if display_name is None else display_name or None,
            owner=KEEP if owner is None else owner,
            properties=KEEP if property_ is None else properties("--property", property_),
        )
    typer.echo(f"{altered.name} is at revision {altered.revision}")


@share_app.command("drop")
def drop(name: ShareName, yes: Yes = False) -> None:
    """Remove a share with its tables and the grants on it; the tables of the lake stay."""
    from lakeshare_server.catalog.sharing import drop_share, editing, look

    catalog = open_state_catalog()
    with catalog.reading() as session:
        share = look.share(session, name)
        tables, grants = len(look.objects(session, name)), len(look.grants_on(session, name))
    if not yes:
        question = f"Drop {share.name} with {tables} shared tables and {grants} grants?"
        ask(question)
    with editing(catalog, operator()) as edit:
        # Of the revision that was asked about: whoever adds to it meanwhile is not overruled.
        drop_share(edit, name, revision=share.revision)
    typer.echo(f"{share.name} is gone")


@share_app.command("add")
def add(
    name: ShareName,
    table: Annotated[
        str, typer.Argument(metavar="LAKE.TABLE", help="The lake's table, like flights.departures.")
    ],
    as_: Annotated[
        str | None, typer.Option("--as", help="What recipients call it: schema.table; the same by default.")
    ] = None,
    comment: Comment = None,
    history: Annotated[bool, typer.Option(help="Recipients may read earlier versions and changes.")] = True,
    start_version: Annotated[
        int | None, typer.Option(min=0, help="The first version recipients may read.")
    ] = None,
    rule: Rule = None,
    view: Annotated[bool, typer.Option("--view", help="It is a view.")] = False,
) -> None:
    """Add a table of the lake to a share.

    Example: lakeshare share add partners sales.orders --as eu.orders --where "region = 'EU'"
    """
    from lakeshare_server.catalog.sharing import SharedObject, add_table

    schema, alias = table_path("--as" if as_ else "LAKE.TABLE", as_ or table)
    wanted = SharedObject(
        schema=schema,
        name=alias,
        table=table,
        comment=comment,
        history=history,
        start_version=start_version,
        rule=rule or None,
        kind="VIEW" if view else "TABLE",
    )
    with editing_share(name, [table], writes_rule=bool(rule)) as edit:
        path = add_table(edit, name, wanted).path
    typer.echo(f"{path} is {table}")


@share_app.command("change")
def change(
    path: TablePath,
    as_: Annotated[str | None, typer.Option("--as", help="What recipients call it from now on.")] = None,
    comment: Comment = None,
    history: Annotated[
        bool | None, typer.Option("--history/--no-history", help="Whether earlier versions may be read.")
    ] = None,
    start_version: Annotated[
        int | None, typer.Option(min=0, help="The first version recipients may read.")
    ] = None,
    rule: Rule = None,
    publication: Annotated[
        int | None, typer.Option(min=-1, help="The number that is served; -1 for the latest.")
    ] = None,
) -> None:
    """Change what is given of a shared table; an empty text takes a comment or rule away."""
    from lakeshare_server.catalog.sharing import KEEP, alter_table

    schema, alias = table_path("--as", as_) if as_ else (KEEP, KEEP)
    names = shared_path("SHARE.SCHEMA.TABLE", path)
    with editing_share(names[0], writes_rule=bool(rule)) as edit:
        altered = alter_table(
            edit,
            *names,
            new_schema=schema,
            new_name=alias,
            comment=KEEP if comment is None else comment or None,
            history=KEEP if history is None else history,
            start_version=KEEP if start_version is None else start_version,
            rule=KEEP if rule is None else rule or None,
            publication=KEEP if publication is None else (None if publication < 0 else publication),
        )
    typer.echo(f"{altered.path} is {altered.table}")


@share_app.command("remove")
def remove(path: TablePath) -> None:
    """Share a table no more; the share and the grants on it stay."""
    from lakeshare_server.catalog.sharing import editing, remove_table

    with editing(open_state_catalog(), operator()) as edit:
        typer.echo(f"{remove_table(edit, *shared_path('SHARE.SCHEMA.TABLE', path)).path} is shared no more")


@share_app.command("grant")
def grant_share(
    name: ShareName,
    recipient: Recipient = None,
    group: Group = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="From when on, like 2027-01-01T00:00:00Z; at once by default."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Until when, like 2027-12-31T00:00:00+01:00; for good by default."),
    ] = None,
    rule: Rule = None,
) -> None:
    """Let a recipient or the members of a group read a share; again, it replaces the grant that is there.

    Example: lakeshare share grant partners --recipient acme --until 2027-01-01T00:00:00Z
    """
    from lakeshare_server.catalog.sharing import grant

    with editing_share(name, writes_rule=bool(rule)) as edit:
        made = grant(
            edit,
            name,
            recipient=recipient,
            group=group,
            starts_at=moment("--from", from_),
            ends_at=moment("--until", until),
            rule=rule or None,
        )
    typer.echo(f"{made.recipient or made.group} may read {made.share}")


@share_app.command("revoke")
def revoke_share(name: ShareName, recipient: Recipient = None, group: Group = None) -> None:
    """Let a recipient or the members of a group read a share no more, at once."""
    from lakeshare_server.catalog.sharing import editing, revoke

    with editing(open_state_catalog(), operator()) as edit:
        ended = revoke(edit, name, recipient=recipient, group=group)
    typer.echo(f"{ended.recipient or ended.group} may read {ended.share} no more by this grant")


TOLD = ("comment", "start_version", "rule", "publication", "directory_access", "declared", "applied")
