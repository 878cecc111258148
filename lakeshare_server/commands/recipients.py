"""Commands about recipients: who may read which shares, and with which token."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.commands.activation import LINK_DAYS, LinkDays, add_with_link, invite_recipient
from lakeshare_server.commands.console import ask, open_state_catalog, operator
from lakeshare_server.commands.credentials import RecipientName, federate_recipient, limit_recipient
from lakeshare_server.commands.option_values import moment, properties

if TYPE_CHECKING:
    from lakeshare_server.catalog.sharing import Given, RecipientState
    from lakeshare_server.catalog.sharing.states import Authentication


class By(StrEnum):
    """How a recipient gets in."""

    TOKEN = "token"  # noqa: S105  # a kind of token
    OAUTH = "oauth"
    OIDC = "oidc"


AUTHENTICATION: dict[By, "Authentication"] = {
    By.TOKEN: "TOKEN",
    By.OAUTH: "OAUTH_CLIENT_CREDENTIALS",
    By.OIDC: "OIDC_FEDERATION",
}

recipient_app = typer.Typer(
    help="Recipients: who may read which shares, and with which token.", no_args_is_help=True
)

recipient_app.command("federate")(federate_recipient)
recipient_app.command("limit")(limit_recipient)

Days = Annotated[
    int | None, typer.Option("--days", min=1, help="The token ends after this many days; never by default.")
]
ProfilePath = Annotated[
    Path | None, typer.Option("--profile", help="Where the profile goes; NAME.share by default.")
]
Url = Annotated[str | None, typer.Option("--url", help="The server's root as the recipient reaches it.")]


@recipient_app.command("add")
def add_recipient(
    name: str,
    share: Annotated[
        list[str], typer.Option("--share", help="A share the recipient may read; repeat for more.")
    ],
    days: Days = None,
    comment: Annotated[str | None, typer.Option(help="Whatever helps to know who this is.")] = None,
    by: Annotated[
        By, typer.Option("--by", help="How it gets in: a bearer token, OAuth client credentials, or OIDC.")
    ] = By.TOKEN,
    profile: ProfilePath = None,
    url: Url = None,
    invite: Annotated[
        bool,
        typer.Option(
            "--invite", help="Print a link that gives the profile once, instead of writing it here."
        ),
    ] = False,
    link_days: LinkDays = LINK_DAYS,
) -> None:
    """Add a recipient and write the profile its client needs, or print a link to it. The secret is nowhere else.

    With `--by oidc` there is no secret and no profile: `lakeshare recipient federate` says whose tokens are its own.
    """
    from lakeshare_server.catalog import sharing

    if invite:
        add_with_link(name, share, comment, link_days, _ends(days), url, AUTHENTICATION[by])
        return
    with sharing.editing(open_state_catalog(), operator()) as edit:
        sharing.create_recipient(edit, name, comment=comment, authentication=AUTHENTICATION[by])
        for one in {one.lower(): one for one in share}.values():
            sharing.grant(edit, one, recipient=name)
        given = None if by == By.OIDC else sharing.issue_token(edit, name, expires_at=_ends(days))
        grants = sharing.look.grants_to(edit.session, name)
        recipient = sharing.look.recipient(edit.session, name)
    if given is not None:
        _write(profile or Path(f"{name}.share"), url, recipient, given)
    typer.echo(f"{recipient.name} may read {', '.join(one.share for one in grants)}")


recipient_app.command("invite")(invite_recipient)


@recipient_app.command("list")
def list_recipients() -> None:
    """List recipients with their shares and the end of their token."""
    from lakeshare_server.catalog import Recipients

    for recipient in Recipients(open_state_catalog()).list():
        state = "revoked" if recipient.revoked_at else f"until {_day(recipient.expires_at)}"
        typer.echo(
            f"{recipient.name}\t{', '.join(recipient.shares) or '-'}\t{state}\t{recipient.comment or ''}"
        )


@recipient_app.command("rotate")
def rotate_recipient(name: str, days: Days = None, profile: ProfilePath = None, url: Url = None) -> None:
    """Give a recipient a new token, or client secret, and profile; the old one stops working at once."""
    from lakeshare_server.catalog import sharing

    with sharing.editing(open_state_catalog(), operator()) as edit:
        given = sharing.rotate_token(edit, name, expires_at=_ends(days))
        recipient = sharing.look.recipient(edit.session, name)
    _write(profile or Path(f"{recipient.name}.share"), url, recipient, given)


@recipient_app.command("revoke")
def revoke_recipient(name: str) -> None:
    """End all access of a recipient at once."""
    from lakeshare_server.catalog import Recipients

    typer.echo(f"{Recipients(open_state_catalog()).revoke(name).name} may read nothing any more")


@recipient_app.command("show")
def show_recipient(name: RecipientName) -> None:
    """Show a recipient: its state, tokens and links without their secrets, groups, and what it may read."""
    from lakeshare_server.catalog.sharing import look

    with open_state_catalog().reading() as session:
        told, grants = look.recipient(session, name).as_json(), look.grants_to(session, name)
    several = {kind: told.pop(kind, []) for kind in ("tokens", "links", "policies")}
    for field, value in told.items():
        typer.echo(f"{field}\t{value}")
    for kind, found in several.items():
        for one in found:
            typer.echo(f"{kind}\t{', '.join(f'{field}={value}' for field, value in one.items())}")
    for grant in grants:
        through = "" if grant.group is None else f"as a member of {grant.group}, "
        typer.echo(
            f"may read\t{grant.share}\t{through}until {_day(grant.ends_at)}\t{grant.rule or ''}".rstrip()
        )


@recipient_app.command("set")
def set_recipient(
    name: RecipientName,
    comment: Annotated[str | None, typer.Option(help="Whatever helps to know who this is.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who answers for it.")] = None,
    rename: Annotated[str | None, typer.Option(help="The new name; tokens and grants stay.")] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="When all its access ends, with the zone; '' for never.")
    ] = None,
    agreement: Annotated[
        Path | None, typer.Option("--agreement", help="A text file to accept with the next activation link.")
    ] = None,
) -> None:
    """Change what is given of a recipient; an empty text takes a comment or the end away."""
    from lakeshare_server.catalog.sharing import KEEP, alter_recipient, editing

    with editing(open_state_catalog(), operator()) as edit:
        altered = alter_recipient(
            edit,
            name,
            new_name=KEEP if rename is None else rename,
            comment=KEEP if comment is None else comment or None,
            owner=KEEP if owner is None else owner,
            expires_at=KEEP if expires is None else moment("--expires", expires or None),
            agreement=KEEP if agreement is None else _agreement(agreement),
        )
    typer.echo(f"{altered.name} is at revision {altered.revision}")


@recipient_app.command("ip")
def allow_addresses(
    name: RecipientName,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="An address or network, like 203.0.113.0/24; repeat for more."),
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="It may come from anywhere again.")] = False,
) -> None:
    """Say from where a recipient may come, in place of what was said before; without an option, show it."""
    from lakeshare_server.catalog.sharing import alter_recipient, editing, look
    from lakeshare_server.errors import BadRequest

    if allow and any_:
        raise BadRequest("--any", "given with --allow", "Give one of the two.")
    catalog = open_state_catalog()
    if allow or any_:
        with editing(catalog, operator()) as edit:
            alter_recipient(edit, name, ip_allow=allow or None)
    with catalog.reading() as session:
        told = look.recipient(session, name)
    typer.echo(f"{told.name} may come from {', '.join(told.ip_allow) or 'anywhere'}")


@recipient_app.command("props")
def set_properties(
    name: RecipientName,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Properties to set.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", help="A key to take away; repeat for more.")
    ] = None,
) -> None:
    """Set properties of a recipient, which rules read as current_recipient('key'); the others stay.

    Example: lakeshare recipient props acme region=EU tier=gold --unset trial
    """
    from lakeshare_server.catalog.sharing import alter_recipient, editing, look

    wanted, catalog = properties("KEY=VALUE", pairs or []), open_state_catalog()
    if wanted or unset:
        with editing(catalog, operator()) as edit:
            held = look.recipient(edit.session, name).properties
            kept = {key: value for key, value in held.items() if key not in (unset or [])}
            alter_recipient(edit, name, properties={**kept, **wanted})
    with catalog.reading() as session:
        for key, value in sorted(look.recipient(session, name).properties.items()):
            typer.echo(f"{key}\t{value}")


@recipient_app.command("drop")
def drop_recipient(
    name: RecipientName, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Remove a recipient with its tokens and grants; its name can be used again. `revoke` keeps the name."""
    from lakeshare_server.catalog import sharing

    catalog = open_state_catalog()
    with catalog.reading() as session:
        told = sharing.look.recipient(session, name)
        grants = len(sharing.look.grants_to(session, name))
    if not yes:
        ask(f"Drop {told.name}, which may read {grants} shares?")
    with sharing.editing(catalog, operator()) as edit:
        sharing.drop_recipient(edit, name, revision=told.revision)
    typer.echo(f"{told.name} is gone")


def _agreement(path: Path) -> str | None:
    from lakeshare_server.errors import BadRequest

    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--agreement", str(path), f"Give a readable text file: {error}.") from error


def _ends(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


def _day(moment: datetime | None) -> str:
    return "further notice" if moment is None else moment.strftime("%Y-%m-%d %H:%MZ")


def _write(path: Path, url: str | None, recipient: "RecipientState", given: "Given") -> None:
    from lakeshare_server.access.profile import profile_of, write_profile_file
    from lakeshare_server.settings import ServerSettings

    settings = ServerSettings()
    if url is not None:
        settings = settings.model_copy(update={"public_url": url})
    write_profile_file(path, profile_of(recipient, given, settings))
    typer.echo(f"profile: {path}")
