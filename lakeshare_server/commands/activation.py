"""The commands around activation links: `lakeshare recipient invite`, and a recipient's own `lakeshare activate`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO
from urllib.parse import urlsplit

import typer

from lakeshare_server.commands.console import ask, open_state_catalog, operator
from lakeshare_server.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    import httpx

    from lakeshare_server.catalog.sharing import LinkState
    from lakeshare_server.catalog.sharing.states import Authentication

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
    from lakeshare_server.catalog.sharing import editing, invite

    with editing(open_state_catalog(), operator()) as edit:
        made = invite(edit, name, link_life=timedelta(days=link_days), token_expires_at=_ends(token_days))
    _tell(*made, url)


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
    from lakeshare_server.catalog.sharing import create_recipient, editing, grant, invite

    with editing(open_state_catalog(), operator()) as edit:
        create_recipient(edit, name, comment=comment, authentication=authentication)
        for share in {share.lower(): share for share in shares}.values():
            grant(edit, share, recipient=name)
        made = invite(edit, name, link_life=timedelta(days=link_days), token_expires_at=ends)
    _tell(*made, url)


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
        offer = _told(client, "GET", link)
        typer.echo(f"{offer['provider']} shares with {offer['recipient']}:")
        for share in offer["shares"]:
            typer.echo(f"  {share['name']}: {', '.join(share['tables']) or 'nothing yet'}")
        if offer["agreement"] is not None and not accept:
            typer.echo(f"\n{offer['agreement']}\n")
            ask("Do you accept this agreement?", "read it, then give --accept.")
        path = output or Path(_plain_name(offer["fileName"]))
        with _reserved(path) as file:
            given = _told(client, "POST", link, {"acceptsAgreement": True})
            _write(file, given["profile"])
    typer.echo(f"profile: {path}")


def _require_link(link: str) -> None:
    parts = urlsplit(link)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest("LINK", link, "Give the whole link, from https:// on.")


def _told(
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


def _write(file: BinaryIO, profile: dict[str, object]) -> None:
    from lakeshare_server.access.profile import profile_text

    text = profile_text(profile)
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


def _tell(link: "LinkState", code: str, url: str | None) -> None:
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
