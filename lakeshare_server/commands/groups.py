"""Commands about groups of recipients that are granted shares together."""

from typing import Annotated

import typer

from lakeshare_server.commands.console import ask, open_state_catalog, operator

group_app = typer.Typer(help="Groups: recipients that are granted shares together.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
Members = Annotated[list[str], typer.Argument(metavar="RECIPIENT...", help="Names of recipients.")]


@group_app.command("list")
def list_groups() -> None:
    """List groups with their members."""
    from lakeshare_server.catalog.sharing import look

    with open_state_catalog().reading() as session:
        for group in look.groups(session):
            typer.echo(f"{group.name}\t{', '.join(group.members) or '-'}\t{group.comment or ''}".rstrip())


@group_app.command("create")
def create(
    name: GroupName,
    member: Annotated[
        list[str] | None, typer.Option("--member", help="A recipient; repeat for more.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="Who they are.")] = None,
) -> None:
    """Make a group of recipients.

    Example: lakeshare group create retail --member acme --member globex
    """
    from lakeshare_server.catalog.sharing import create_group, editing

    with editing(open_state_catalog(), operator()) as edit:
        made = create_group(edit, name, comment=comment, members=member or [])
    typer.echo(f"{made.name}: {', '.join(made.members) or 'nobody yet'}")


@group_app.command("add")
def add(name: GroupName, members: Members) -> None:
    """Take recipients into a group: they may read what it is granted, at once."""
    from lakeshare_server.catalog.sharing import alter_group, editing

    with editing(open_state_catalog(), operator()) as edit:
        typer.echo(f"{name}: {', '.join(alter_group(edit, name, add=members).members)}")


@group_app.command("remove")
def remove(name: GroupName, members: Members) -> None:
    """Let recipients be in a group no more; what they were granted themselves stays."""
    from lakeshare_server.catalog.sharing import alter_group, editing

    with editing(open_state_catalog(), operator()) as edit:
        typer.echo(f"{name}: {', '.join(alter_group(edit, name, remove=members).members) or 'nobody'}")


@group_app.command("drop")
def drop(
    name: GroupName, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Remove a group with its grants; its members stay, with grants of their own."""
    from lakeshare_server.catalog.sharing import drop_group, editing, look

    catalog = open_state_catalog()
    with catalog.reading() as session:
        group = look.group(session, name)
    if not yes:
        ask(f"Drop {group.name} of {len(group.members)} recipients?")
    with editing(catalog, operator()) as edit:
        drop_group(edit, name, revision=group.revision)
    typer.echo(f"{group.name} is gone")
