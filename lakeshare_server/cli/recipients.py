"""Commands for recipients, their groups, activation links and tokens."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from lakeshare_server.cli.console import (
    AsJson,
    Texts,
    confirm,
    drop_named,
    edit_catalog,
    given,
    given_texts,
    open_state_catalog,
    operator_name,
    parse_moment,
    parse_properties,
    print_json,
    print_table,
    shift_now,
    text_options,
)
from lakeshare_server.errors import BadRequest, Unavailable
from lakeshare_server.lazy import LazyModule
from lakeshare_server.locations import is_web_address
from lakeshare_server.settings import ServerSettings

if TYPE_CHECKING:
    import httpx
    from sqlalchemy.orm import Session

    from lakeshare_server.catalog import credentials, sharing, states
    from lakeshare_server.catalog.states import Authentication, IssuedSecret, LinkState, RecipientState
else:
    sharing = LazyModule("lakeshare_server.catalog.sharing")
    states = LazyModule("lakeshare_server.catalog.states")
    credentials = LazyModule("lakeshare_server.catalog.credentials")

POLICY = "default"
LINK_DAYS = 3
RESPONSE_TIMEOUT_S = 60

RecipientName = Annotated[str, typer.Argument(metavar="RECIPIENT", help="The recipient's name.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
Members = Annotated[list[str], typer.Argument(metavar="RECIPIENT...", help="Names of recipients.")]
LinkDays = Annotated[int, typer.Option("--link-days", min=1, max=365, help="Days until the link expires.")]
TokenDays = Annotated[int | None, typer.Option(min=1, help="Days until the token expires; never by default.")]
ProfilePath = Annotated[Path | None, typer.Option("--profile", help="Profile file; NAME.share by default.")]
Url = Annotated[str | None, typer.Option("--url", help="The server's root URL for the recipient.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

HELP = "Recipients: who may read which shares, and with which token."
recipient_app = typer.Typer(help=HELP, no_args_is_help=True)
group_app = typer.Typer(help="Groups: recipients that are granted shares together.", no_args_is_help=True)


AuthenticationMethod = Literal["token", "oauth", "oidc"]
AUTHENTICATION: dict[AuthenticationMethod, "Authentication"] = {
    "token": "TOKEN",
    "oauth": "OAUTH_CLIENT_CREDENTIALS",
    "oidc": "OIDC_FEDERATION",
}


@recipient_app.command("federate")
def federate_recipient(
    name: RecipientName,
    issuer: Annotated[str | None, typer.Option(help="Its OIDC issuer: `iss` of its tokens.")] = None,
    subject: Annotated[str | None, typer.Option(help="The claim's value in its tokens.")] = None,
    claim: Annotated[str, typer.Option(help="The claim: sub, or one with groups, like groups.")] = "sub",
    audience: Annotated[
        list[str] | None, typer.Option(help="Audience of its tokens; repeat for more. One must match.")
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy's name, for recipients with several.")] = POLICY,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the policy.")] = False,
) -> None:
    """Accept tokens that a recipient's own OIDC issuer signs; add the recipient with `--by oidc` first.

    Example: lakeshare recipient federate acme --issuer https://login.acme.example --audience lakeshare --subject job-7
    """
    with edit_catalog() as edit:
        if drop:
            credentials.drop_policy(edit, name, policy)
            typer.echo(f"{name}: policy {policy} is gone")
            return
        if not (issuer and subject and audience):
            hint = "Give all three, or --drop to take one away."
            raise BadRequest("--issuer, --subject, --audience", "not given", hint)
        made = states.FederationPolicy(
            name=policy, issuer=issuer, subject_claim=claim, subject=subject, audiences=tuple(audience)
        )
        state = credentials.put_policy(edit, name, made)
    audiences = ", ".join(state.audiences)
    typer.echo(f"{name} gets in with tokens of {state.issuer} for {audiences}, {claim}={subject}")


@recipient_app.command("limit")
def limit_recipient(
    name: RecipientName,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests per minute.")] = None,
    urls_per_day: Annotated[int | None, typer.Option(min=1, help="Files with URLs per day (UTC).")] = None,
    bytes_per_day: Annotated[int | None, typer.Option(min=1, help="Bytes of files per day (UTC).")] = None,
    usual: Annotated[bool, typer.Option("--usual", help="Reset the other limits to the settings.")] = False,
) -> None:
    """Set limits of a recipient in place of those of the settings; without an option, print them."""
    catalog = open_state_catalog()
    limits = {
        "requests_per_minute": requests_per_minute,
        "urls_per_day": urls_per_day,
        "bytes_per_day": bytes_per_day,
    }
    changes = given(**limits)
    if usual or changes:
        with sharing.editing(catalog, operator_name()) as edit:
            kept = {} if usual else states.get_recipient(edit.session, name).limits
            sharing.alter_recipient(edit, name, limits={**kept, **changes})
    with catalog.reading() as session:
        in_force = states.get_recipient(session, name).limits
    print_table((key, in_force.get(key, "as the settings say")) for key in limits)


@group_app.command("list")
def list_groups(as_json: AsJson = False) -> None:
    """List groups with their members."""
    with open_state_catalog().reading() as session:
        groups = states.list_groups(session)
    if as_json:
        print_json([group.as_json() for group in groups])
    else:
        print_table((group.name, ", ".join(group.members) or "-", group.comment) for group in groups)


@group_app.command("create")
def create(
    name: GroupName,
    member: Annotated[list[str] | None, typer.Option(help="A recipient; repeat for more.")] = None,
    comment: Annotated[str | None, typer.Option(help="A description.")] = None,
) -> None:
    """Create a group of recipients.

    Example: lakeshare group create retail --member acme --member globex
    """
    with edit_catalog() as edit:
        group = sharing.create_group(edit, name, comment=comment, members=member or [])
    typer.echo(f"{group.name}: {', '.join(group.members) or 'no members'}")


@group_app.command("add")
def add(name: GroupName, members: Members) -> None:
    """Add recipients to a group: they may read its shares at once."""
    with edit_catalog() as edit:
        typer.echo(f"{name}: {', '.join(sharing.alter_group(edit, name, add=members).members)}")


@group_app.command("remove")
def remove(name: GroupName, members: Members) -> None:
    """Remove recipients from a group; their own grants stay."""
    with edit_catalog() as edit:
        left = sharing.alter_group(edit, name, remove=members).members
        typer.echo(f"{name}: {', '.join(left) or 'no members'}")


@group_app.command("drop")
def drop(name: GroupName, yes: Yes = False) -> None:
    """Remove a group with its grants; its members stay, with grants of their own."""
    catalog = open_state_catalog()
    with catalog.reading() as session:
        group = states.get_group(session, name)
    drop_named(catalog, "group", group, f"Drop {group.name} of {len(group.members)} recipients?", yes=yes)


@recipient_app.command("invite")
def invite_recipient(
    name: RecipientName, link_days: LinkDays = LINK_DAYS, token_days: TokenDays = None, url: Url = None
) -> None:
    """Create a link that gives a recipient its profile, once. Unused earlier links end; tokens stay.

    Example: lakeshare recipient invite acme --link-days 7 --token-days 365
    """
    with edit_catalog() as edit:
        life, expires_at = timedelta(days=link_days), _expires_at("--token-days", token_days)
        link, code = credentials.create_link(edit, name, link_life=life, token_expires_at=expires_at)
    _print_link(link, code, url)


def activate(
    link: Annotated[str, typer.Argument(help="The link from your provider.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Profile file; NAME.share by default.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept the agreement, without a question.")
    ] = False,
) -> None:
    """Get your profile from an activation link, without a browser. The link works once.

    Example: lakeshare activate https://lake.example/activate/… -o acme.share
    """
    import httpx

    if not is_web_address(link):
        raise BadRequest("LINK", link, "Give the whole link, from https:// on.")
    with httpx.Client(headers={"Accept": "application/json"}, timeout=RESPONSE_TIMEOUT_S) as client:
        offer = _request_link(client, "GET", link)
        typer.echo(f"{offer['provider']} shares with {offer['recipient']}:")
        for share in offer["shares"]:
            typer.echo(f"  {share['name']}: {', '.join(share['tables']) or 'nothing yet'}")
        if offer["agreement"] is not None and not accept:
            typer.echo(f"\n{offer['agreement']}\n")
            confirm("Do you accept this agreement?", "read it, then give --accept.")
        # The server proposes a file name; a folder in it is ignored.
        path = output or Path(Path(offer["fileName"]).name or "recipient.share")
        with _reserve_file(path) as file:
            body = _request_link(client, "POST", link, {"acceptsAgreement": True})
            _write_profile(file, path, body["profile"])
    typer.echo(f"profile: {path}")


def _request_link(
    client: "httpx.Client", method: str, link: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The response to a request of a link."""
    import httpx

    host = urlsplit(link).hostname
    try:
        response = client.request(method, link, json=body)
        fields = response.json()
    # The last is of a host that cannot be a name in the DNS.
    except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
        raise Unavailable(f"{host} does not answer: {error}", "Try again in a moment.") from error
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or (response.is_success and "fileName" not in fields):
        what = f"{host} answers {response.status_code}, and not as a link does"
        raise Unavailable(what, "Check that the link is whole, or open it in a browser.")
    if not response.is_success:
        raise BadRequest("LINK", "this one", str(fields.get("message", response.status_code)))
    return fields


@contextmanager
def _reserve_file(path: Path) -> Iterator[FileIO]:
    """A new file, readable by its owner only: created before the link is used, removed again on failure."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BadRequest("--output", str(path), "There is such a file already; name another one.") from error
    except OSError as error:
        raise BadRequest("--output", str(path), f"No file can be made there: {error.strerror}.") from error
    with FileIO(descriptor, "wb") as file:
        try:
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _write_profile(file: FileIO, path: Path, profile: dict[str, object]) -> None:
    from lakeshare_server.access.authentication import format_profile

    text = format_profile(profile)
    content = text.encode()
    try:
        while content:
            content = content[file.write(content) :]
    except OSError as error:
        # The link is used up: on the screen the profile is not lost.
        typer.echo(text)
        hint = f"The profile is printed above; no file was written: {error.strerror}."
        raise BadRequest("--output", str(path), hint) from error


def _print_link(link: "LinkState", code: str, url: str | None) -> None:
    typer.echo(f"link: {_settings(url).activation_url(code)}")
    typer.echo(
        f"It gives {link.recipient} its profile, once, until {link.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC. "
        "Send it by a way that only the recipient can read."
    )


def _recipient_json(session: "Session", recipient: "RecipientState") -> dict[str, Any]:
    grants = states.list_grants(session, recipient=recipient.name)
    return {**recipient.as_json(), "grants": [grant.as_json() for grant in grants]}


def _expires_at(option: str, days: int | None) -> datetime | None:
    return None if days is None else shift_now(option, days)


@recipient_app.command("add")
@text_options("recipient")
def add_recipient(
    name: RecipientName,
    share: Annotated[list[str], typer.Option(help="A share the recipient may read; repeat for more.")],
    texts: Texts,
    days: TokenDays = None,
    comment: Annotated[str | None, typer.Option(help="A description.")] = None,
    by: Annotated[
        AuthenticationMethod,
        typer.Option(help="Authentication: a bearer token, OAuth client credentials, or OIDC."),
    ] = "token",
    profile: ProfilePath = None,
    url: Url = None,
    invite: Annotated[bool, typer.Option("--invite", help="Print an activation link instead.")] = False,
    link_days: LinkDays = LINK_DAYS,
) -> None:
    """Add a recipient and write the profile its client needs, or print a link to it. The secret is stored nowhere.

    With `--by oidc` there is no secret and no profile: configure its tokens with `lakeshare recipient federate`.
    """
    issued = made_link = None
    with edit_catalog() as edit:
        sharing.create_recipient(edit, name, comment=comment, authentication=AUTHENTICATION[by], **texts)
        for share_name in {each.lower(): each for each in share}.values():
            sharing.grant(edit, share_name, recipient=name)
        if invite:
            life, expires_at = timedelta(days=link_days), _expires_at("--days", days)
            made_link = credentials.create_link(edit, name, link_life=life, token_expires_at=expires_at)
        elif by != "oidc":
            issued = credentials.issue_token(edit, name, expires_at=_expires_at("--days", days))
        grants = states.list_grants(edit.session, recipient=name)
        recipient = states.get_recipient(edit.session, name)
    if made_link is not None:
        _print_link(*made_link, url)
        return
    if issued is not None:
        _write_issued(profile or Path(f"{name}.share"), url, recipient, issued)
    typer.echo(f"{recipient.name} may read {', '.join(grant.share for grant in grants)}")


@recipient_app.command("list")
def list_recipients(as_json: AsJson = False) -> None:
    """List recipients with their shares and the expiry of their tokens."""
    with open_state_catalog().reading() as session:
        recipients = sorted(states.list_recipients(session), key=lambda recipient: recipient.name.lower())
        if as_json:
            print_json([_recipient_json(session, recipient) for recipient in recipients])
            return
        rows = []
        for recipient in recipients:
            ends = [token.expires_at for token in recipient.tokens if token.revoked_at is None]
            state = "revoked" if recipient.revoked_at else f"until {_day(ends[-1] if ends else None)}"
            grants = states.list_grants(session, recipient=recipient.name)
            shares = ", ".join(grant.share for grant in grants) or "-"
            rows.append([recipient.name, shares, state, recipient.comment])
    print_table(rows)


@recipient_app.command("rotate")
def rotate_recipient(
    name: RecipientName, days: TokenDays = None, profile: ProfilePath = None, url: Url = None
) -> None:
    """Issue a new token, or client secret, and profile; the old one stops working at once."""
    with edit_catalog() as edit:
        issued = credentials.rotate_token(edit, name, expires_at=_expires_at("--days", days))
        recipient = states.get_recipient(edit.session, name)
    _write_issued(profile or Path(f"{recipient.name}.share"), url, recipient, issued)


@recipient_app.command("revoke")
def revoke_recipient(name: RecipientName) -> None:
    """End all access of a recipient at once."""
    with edit_catalog() as edit:
        revoked = sharing.revoke_recipient(edit, name)
    typer.echo(f"{revoked.name} may read nothing any more")


@recipient_app.command("show")
def show_recipient(name: RecipientName, as_json: AsJson = False) -> None:
    """Show a recipient: its state, tokens and links without their secrets, groups, and what it may read."""
    with open_state_catalog().reading() as session:
        recipient, grants = states.get_recipient(session, name), states.list_grants(session, recipient=name)
        if as_json:
            print_json(_recipient_json(session, recipient))
            return
    fields = recipient.as_json()
    lists = {kind: fields.pop(kind, []) for kind in ("tokens", "links", "policies")}
    rows: list[Sequence[object]] = list(fields.items())
    for kind, items in lists.items():
        rows += [(kind, ", ".join(f"{field}={value}" for field, value in item.items())) for item in items]
    for grant in grants:
        through = "" if grant.group is None else f"as a member of {grant.group}, "
        until = f"{through}until {_day(grant.ends_at)}"
        rows.append(["may read", grant.share, until, grant.rule])
    print_table(rows)


@recipient_app.command("set")
@text_options("recipient")
def set_recipient(
    name: RecipientName,
    texts: Texts,
    comment: Annotated[str | None, typer.Option(help="A description.")] = None,
    owner: Annotated[str | None, typer.Option(help="The person responsible for the recipient.")] = None,
    rename: Annotated[str | None, typer.Option(help="The new name; tokens and grants stay.")] = None,
    expires: Annotated[str | None, typer.Option(help="End of access, with the zone; '' for never.")] = None,
) -> None:
    """Change the given fields of a recipient; an empty text removes a text or the end of access."""
    fields = given(new_name=rename, owner=owner) | given_texts(comment=comment) | dict(texts)
    if expires is not None:
        fields["expires_at"] = parse_moment("--expires", expires or None)
    with edit_catalog() as edit:
        altered = sharing.alter_recipient(edit, name, **fields)
    typer.echo(f"{altered.name} is at revision {altered.revision}")


@recipient_app.command("ip")
def allow_addresses(
    name: RecipientName,
    allow: Annotated[
        list[str] | None, typer.Option(help="An address or network, like 203.0.113.0/24; repeat for more.")
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="Remove the IP allow-list.")] = False,
) -> None:
    """Replace the addresses that a recipient may use; without an option, print them."""
    if allow and any_:
        raise BadRequest("--any", "given with --allow", "Give one of the two.")
    catalog = open_state_catalog()
    if allow or any_:
        with sharing.editing(catalog, operator_name()) as edit:
            sharing.alter_recipient(edit, name, ip_allow=allow or None)
    with catalog.reading() as session:
        state = states.get_recipient(session, name)
    typer.echo(f"{state.name} may come from {', '.join(state.ip_allow) or 'anywhere'}")


@recipient_app.command("props")
def set_properties(
    name: RecipientName,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Properties.")] = None,
    unset: Annotated[list[str] | None, typer.Option(help="A key to remove; repeat for more.")] = None,
) -> None:
    """Set properties of a recipient, which rules read as current_recipient('key'); other properties stay.

    Example: lakeshare recipient props acme region=EU tier=gold --unset trial
    """
    changes, catalog = parse_properties("KEY=VALUE", pairs or []), open_state_catalog()
    if changes or unset:
        with sharing.editing(catalog, operator_name()) as edit:
            current = states.get_recipient(edit.session, name).properties
            kept = {key: value for key, value in current.items() if key not in (unset or [])}
            sharing.alter_recipient(edit, name, properties={**kept, **changes})
    with catalog.reading() as session:
        print_table(sorted(states.get_recipient(session, name).properties.items()))


@recipient_app.command("drop")
def drop_recipient(name: RecipientName, yes: Yes = False) -> None:
    """Remove a recipient with its tokens and grants; its name can be used again. `revoke` keeps the name."""
    catalog = open_state_catalog()
    with catalog.reading() as session:
        state = states.get_recipient(session, name)
        grants = len(states.list_grants(session, recipient=name))
    drop_named(catalog, "recipient", state, f"Drop {state.name}, which may read {grants} shares?", yes=yes)


def _day(moment: datetime | None) -> str:
    return "further notice" if moment is None else moment.strftime("%Y-%m-%d %H:%MZ")


def _settings(url: str | None) -> ServerSettings:
    settings = ServerSettings()
    return settings if url is None else settings.model_copy(update={"public_url": url})


def _write_issued(path: Path, url: str | None, recipient: "RecipientState", issued: "IssuedSecret") -> None:
    from lakeshare_server.access.authentication import make_profile, write_profile_file

    write_profile_file(path, make_profile(recipient, issued, _settings(url)))
    typer.echo(f"profile: {path}")
