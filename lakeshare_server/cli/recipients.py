"""Commands about recipients: who may read which shares, and with which token."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO
from urllib.parse import urlsplit

import typer

from lakeshare_server.cli.console import (
    confirm,
    open_state_catalog,
    operator_name,
    parse_moment,
    parse_properties,
)
from lakeshare_server.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    import httpx

    from lakeshare_server.catalog.sharing import IssuedSecret, LinkState, RecipientState
    from lakeshare_server.catalog.sharing.states import Authentication

POLICY = "default"
RecipientName = Annotated[str, typer.Argument(metavar="RECIPIENT", help="The recipient's name.")]


def federate_recipient(
    name: RecipientName,
    issuer: Annotated[
        str | None, typer.Option(help="The recipient's OIDC issuer, as its tokens say it in `iss`.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Whose tokens count, as the claim says it.")] = None,
    claim: Annotated[str, typer.Option(help="The claim: sub, or one with groups, like groups.")] = "sub",
    audience: Annotated[
        list[str] | None, typer.Option(help="Whom its tokens are for; repeat for more. One is enough.")
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy's name, where a recipient has several.")] = POLICY,
    drop: Annotated[bool, typer.Option("--drop", help="Take the policy away.")] = False,
) -> None:
    """Let a recipient in with tokens that its own OIDC issuer signs; add it with `--by oidc` first.

    Example: lakeshare recipient federate acme --issuer https://login.acme.example --audience lakeshare --subject job-7
    """
    from lakeshare_server.catalog.sharing import FederationPolicy, drop_policy, editing, put_policy
    from lakeshare_server.errors import BadRequest

    with editing(open_state_catalog(), operator_name()) as edit:
        if drop:
            drop_policy(edit, name, policy)
            typer.echo(f"{name}: policy {policy} is gone")
            return
        if not (issuer and subject and audience):
            raise BadRequest(
                "--issuer, --subject, --audience", "not given", "Give all three, or --drop to take one away."
            )
        state = put_policy(edit, name, FederationPolicy(
            name=policy, issuer=issuer, subject_claim=claim, subject=subject, audiences=tuple(audience)
        ))  # fmt: skip
    typer.echo(
        f"{name} gets in with tokens of {state.issuer} for {', '.join(state.audiences)}, {claim}={subject}"
    )


def limit_recipient(
    name: RecipientName,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Most requests in a minute.")] = None,
    urls_per_day: Annotated[
        int | None, typer.Option(min=1, help="Most files it gets URLs of in a day (UTC).")
    ] = None,
    bytes_per_day: Annotated[
        int | None, typer.Option(min=1, help="Most bytes of files it gets URLs of in a day (UTC).")
    ] = None,
    usual: Annotated[
        bool, typer.Option("--usual", help="Take back what is not given here: the settings' limits hold.")
    ] = False,
) -> None:
    """Say how much a recipient may ask for, in the place of the server's settings; without an option, show it."""
    from lakeshare_server.catalog.sharing import UNCHANGED, editing, set_limits, states

    catalog = open_state_catalog()
    given = {
        "requests_per_minute": requests_per_minute,
        "urls_per_day": urls_per_day,
        "bytes_per_day": bytes_per_day,
    }
    if usual or any(given.values()):
        untouched = None if usual else UNCHANGED
        with editing(catalog, operator_name()) as edit:
            set_limits(
                edit,
                name,
                requests_per_minute=requests_per_minute or untouched,
                urls_per_day=urls_per_day or untouched,
                bytes_per_day=bytes_per_day or untouched,
            )
    with catalog.reading() as session:
        limits = states.get_recipient(session, name).limits
    for key in given:
        typer.echo(f"{key}\t{limits.get(key, 'as the settings say')}")


group_app = typer.Typer(help="Groups: recipients that are granted shares together.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
Members = Annotated[list[str], typer.Argument(metavar="RECIPIENT...", help="Names of recipients.")]


@group_app.command("list")
def list_groups() -> None:
    """List groups with their members."""
    from lakeshare_server.catalog.sharing import states

    with open_state_catalog().reading() as session:
        for group in states.list_groups(session):
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

    with editing(open_state_catalog(), operator_name()) as edit:
        made = create_group(edit, name, comment=comment, members=member or [])
    typer.echo(f"{made.name}: {', '.join(made.members) or 'nobody yet'}")


@group_app.command("add")
def add(name: GroupName, members: Members) -> None:
    """Take recipients into a group: they may read what it is granted, at once."""
    from lakeshare_server.catalog.sharing import alter_group, editing

    with editing(open_state_catalog(), operator_name()) as edit:
        typer.echo(f"{name}: {', '.join(alter_group(edit, name, add=members).members)}")


@group_app.command("remove")
def remove(name: GroupName, members: Members) -> None:
    """Let recipients be in a group no more; what they were granted themselves stays."""
    from lakeshare_server.catalog.sharing import alter_group, editing

    with editing(open_state_catalog(), operator_name()) as edit:
        typer.echo(f"{name}: {', '.join(alter_group(edit, name, remove=members).members) or 'nobody'}")


@group_app.command("drop")
def drop(
    name: GroupName, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Remove a group with its grants; its members stay, with grants of their own."""
    from lakeshare_server.catalog.sharing import drop_group, editing, states

    catalog = open_state_catalog()
    with catalog.reading() as session:
        group = states.get_group(session, name)
    if not yes:
        confirm(f"Drop {group.name} of {len(group.members)} recipients?")
    with editing(catalog, operator_name()) as edit:
        drop_group(edit, name, revision=group.revision)
    typer.echo(f"{group.name} is gone")


LINK_DAYS = 3
ANSWER_S = 60
JSON = {"Accept": "application/json"}

LinkDays = Annotated[
    int, typer.Option("--link-days", min=1, max=365, help="The link ends after this many days.")
]


def invite_recipient(
    name: str,
    link_days: LinkDays = LINK_DAYS,
    token_days: Annotated[
        int | None,
        typer.Option(min=1, help="The token in the profile ends after this many days; never by default."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="The server's root as the recipient reaches it.")
    ] = None,
) -> None:
    """Make a link that gives a recipient its profile, once. Links that were not used yet end; tokens stay.

    Example: lakeshare recipient invite acme --link-days 7 --token-days 365
    """
    from lakeshare_server.catalog.sharing import create_link, editing

    with editing(open_state_catalog(), operator_name()) as edit:
        made = create_link(
            edit, name, link_life=timedelta(days=link_days), token_expires_at=_ends(token_days)
        )
    _print_link(*made, url)


def add_with_link(
    name: str,
    shares: Sequence[str],
    comment: str | None,
    link_days: int,
    ends: datetime | None,
    url: str | None,
    authentication: "Authentication" = "TOKEN",
) -> None:
    """Add a recipient that gets its profile by a link: all of it, or nothing."""
    from lakeshare_server.catalog.sharing import create_link, create_recipient, editing, grant

    with editing(open_state_catalog(), operator_name()) as edit:
        create_recipient(edit, name, comment=comment, authentication=authentication)
        for share in {share.lower(): share for share in shares}.values():
            grant(edit, share, recipient=name)
        made = create_link(edit, name, link_life=timedelta(days=link_days), token_expires_at=ends)
    _print_link(*made, url)


def activate(
    link: Annotated[str, typer.Argument(help="The link that your provider has sent you.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the profile goes; NAME.share by default.")
    ] = None,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Accept the agreement, if there is one; it is asked for by default."),
    ] = False,
) -> None:
    """Get your profile from an activation link, without a browser. It works once.

    Example: lakeshare activate https://lake.example/activate/… -o acme.share
    """
    import httpx

    _require_link(link)
    with httpx.Client(headers=JSON, timeout=ANSWER_S) as client:
        offer = _request_link(client, "GET", link)
        typer.echo(f"{offer['provider']} shares with {offer['recipient']}:")
        for share in offer["shares"]:
            typer.echo(f"  {share['name']}: {', '.join(share['tables']) or 'nothing yet'}")
        if offer["agreement"] is not None and not accept:
            typer.echo(f"\n{offer['agreement']}\n")
            confirm("Do you accept this agreement?", "read it, then give --accept.")
        path = output or Path(_plain_name(offer["fileName"]))
        with _reserved(path) as file:
            body = _request_link(client, "POST", link, {"acceptsAgreement": True})
            _write_profile(file, body["profile"])
    typer.echo(f"profile: {path}")


def _require_link(link: str) -> None:
    parts = urlsplit(link)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest("LINK", link, "Give the whole link, from https:// on.")


def _request_link(
    client: "httpx.Client", method: str, link: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the server says of a link.

    Raises:
        BadRequest: it refuses; says why.
        Unavailable: it does not answer, or is no lakeshare server.
    """
    import httpx

    try:
        answer = client.request(method, link, json=body)
        told = answer.json()
    except httpx.TransportError as error:
        raise Unavailable(
            f"{urlsplit(link).hostname} does not answer: {error}", "Try again in a moment."
        ) from error
    except ValueError:
        told = None
    if not isinstance(told, dict) or (answer.is_success and "fileName" not in told):
        raise Unavailable(
            f"{urlsplit(link).hostname} answers {answer.status_code}, and not as a link does",
            "Check that the link is whole, or open it in a browser.",
        )
    if not answer.is_success:
        raise BadRequest("LINK", "this one", str(told.get("message", answer.status_code)))
    return told


@contextmanager
def _reserved(path: Path) -> Iterator[BinaryIO]:
    """A new file that only its owner can read: there before the link is used up, gone again if that fails.

    Raises:
        BadRequest: there is one already, or none can be made there.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BadRequest("--output", str(path), "There is such a file already; name another one.") from error
    except OSError as error:
        raise BadRequest("--output", str(path), f"No file can be made there: {error.strerror}.") from error
    with os.fdopen(descriptor, "wb") as file:
        try:
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _write_profile(file: BinaryIO, profile: dict[str, object]) -> None:
    from lakeshare_server.access.authentication import format_profile

    text = format_profile(profile)
    try:
        file.write(text.encode())
        file.flush()
    except OSError:
        # The link is used up: on the screen it is not lost.
        typer.echo(text)
        raise


def _plain_name(name: str) -> str:
    """The server proposes a name, never a place."""
    return Path(name).name or "recipient.share"


def _print_link(link: "LinkState", code: str, url: str | None) -> None:
    from lakeshare_server.settings import ServerSettings

    settings = ServerSettings()
    if url is not None:
        settings = settings.model_copy(update={"public_url": url})
    typer.echo(f"link: {settings.activation_url(code)}")
    typer.echo(
        f"It gives {link.recipient} its profile, once, until {link.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC. "
        "Send it by a way that nobody else reads."
    )


def _ends(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


class AuthenticationMethod(StrEnum):
    """How a recipient gets in."""

    TOKEN = "token"  # noqa: S105  # a kind of token
    OAUTH = "oauth"
    OIDC = "oidc"


AUTHENTICATION: dict[AuthenticationMethod, "Authentication"] = {
    AuthenticationMethod.TOKEN: "TOKEN",
    AuthenticationMethod.OAUTH: "OAUTH_CLIENT_CREDENTIALS",
    AuthenticationMethod.OIDC: "OIDC_FEDERATION",
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
        AuthenticationMethod,
        typer.Option("--by", help="How it gets in: a bearer token, OAuth client credentials, or OIDC."),
    ] = AuthenticationMethod.TOKEN,
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
    with sharing.editing(open_state_catalog(), operator_name()) as edit:
        sharing.create_recipient(edit, name, comment=comment, authentication=AUTHENTICATION[by])
        for one in {one.lower(): one for one in share}.values():
            sharing.grant(edit, one, recipient=name)
        issued = (
            None
            if by == AuthenticationMethod.OIDC
            else sharing.issue_token(edit, name, expires_at=_ends(days))
        )
        grants = sharing.states.list_grants_to(edit.session, name)
        recipient = sharing.states.get_recipient(edit.session, name)
    if issued is not None:
        _write(profile or Path(f"{name}.share"), url, recipient, issued)
    typer.echo(f"{recipient.name} may read {', '.join(grant.share for grant in grants)}")


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

    with sharing.editing(open_state_catalog(), operator_name()) as edit:
        issued = sharing.rotate_token(edit, name, expires_at=_ends(days))
        recipient = sharing.states.get_recipient(edit.session, name)
    _write(profile or Path(f"{recipient.name}.share"), url, recipient, issued)


@recipient_app.command("revoke")
def revoke_recipient(name: str) -> None:
    """End all access of a recipient at once."""
    from lakeshare_server.catalog import Recipients

    typer.echo(f"{Recipients(open_state_catalog()).revoke(name).name} may read nothing any more")


@recipient_app.command("show")
def show_recipient(name: RecipientName) -> None:
    """Show a recipient: its state, tokens and links without their secrets, groups, and what it may read."""
    from lakeshare_server.catalog.sharing import states

    with open_state_catalog().reading() as session:
        told, grants = states.get_recipient(session, name).as_json(), states.list_grants_to(session, name)
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
    from lakeshare_server.catalog.sharing import UNCHANGED, alter_recipient, editing

    with editing(open_state_catalog(), operator_name()) as edit:
        altered = alter_recipient(
            edit,
            name,
            new_name=UNCHANGED if rename is None else rename,
            comment=UNCHANGED if comment is None else comment or None,
            owner=UNCHANGED if owner is None else owner,
            expires_at=UNCHANGED if expires is None else parse_moment("--expires", expires or None),
            agreement=UNCHANGED if agreement is None else _agreement(agreement),
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
    from lakeshare_server.catalog.sharing import alter_recipient, editing, states
    from lakeshare_server.errors import BadRequest

    if allow and any_:
        raise BadRequest("--any", "given with --allow", "Give one of the two.")
    catalog = open_state_catalog()
    if allow or any_:
        with editing(catalog, operator_name()) as edit:
            alter_recipient(edit, name, ip_allow=allow or None)
    with catalog.reading() as session:
        state = states.get_recipient(session, name)
    typer.echo(f"{state.name} may come from {', '.join(state.ip_allow) or 'anywhere'}")


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
    from lakeshare_server.catalog.sharing import alter_recipient, editing, states

    wanted, catalog = parse_properties("KEY=VALUE", pairs or []), open_state_catalog()
    if wanted or unset:
        with editing(catalog, operator_name()) as edit:
            current = states.get_recipient(edit.session, name).properties
            kept = {key: value for key, value in current.items() if key not in (unset or [])}
            alter_recipient(edit, name, properties={**kept, **wanted})
    with catalog.reading() as session:
        for key, value in sorted(states.get_recipient(session, name).properties.items()):
            typer.echo(f"{key}\t{value}")


@recipient_app.command("drop")
def drop_recipient(
    name: RecipientName, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Remove a recipient with its tokens and grants; its name can be used again. `revoke` keeps the name."""
    from lakeshare_server.catalog import sharing

    catalog = open_state_catalog()
    with catalog.reading() as session:
        state = sharing.states.get_recipient(session, name)
        grants = len(sharing.states.list_grants_to(session, name))
    if not yes:
        confirm(f"Drop {state.name}, which may read {grants} shares?")
    with sharing.editing(catalog, operator_name()) as edit:
        sharing.drop_recipient(edit, name, revision=state.revision)
    typer.echo(f"{state.name} is gone")


def _agreement(path: Path) -> str | None:
    from lakeshare_server.errors import BadRequest

    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--agreement", str(path), f"Give a readable text file: {error}.") from error


def _day(moment: datetime | None) -> str:
    return "further notice" if moment is None else moment.strftime("%Y-%m-%d %H:%MZ")


def _write(path: Path, url: str | None, recipient: "RecipientState", issued: "IssuedSecret") -> None:
    from lakeshare_server.access.authentication import make_profile, write_profile_file
    from lakeshare_server.settings import ServerSettings

    settings = ServerSettings()
    if url is not None:
        settings = settings.model_copy(update={"public_url": url})
    write_profile_file(path, make_profile(recipient, issued, settings))
    typer.echo(f"profile: {path}")
