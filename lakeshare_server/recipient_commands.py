"""Commands about recipients: who may read which shares, and with which token."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from lakeshare_server.console import open_state_catalog

recipient_app = typer.Typer(
    help="Recipients: who may read which shares, and with which token.", no_args_is_help=True
)

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
    profile: ProfilePath = None,
    url: Url = None,
) -> None:
    """Add a recipient and write the profile its client needs. The token is nowhere else."""
    from lakeshare_server.catalog import Recipients

    recipient, token = Recipients(open_state_catalog()).add(name, share, _ends(days), comment)
    _write(profile or Path(f"{name}.share"), url, token, recipient.expires_at)
    typer.echo(f"{recipient.name} may read {', '.join(recipient.shares)}")


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
    """Give a recipient a new token and profile; the old token stops working at once."""
    from lakeshare_server.catalog import Recipients

    recipient, token = Recipients(open_state_catalog()).rotate(name, _ends(days))
    _write(profile or Path(f"{recipient.name}.share"), url, token, recipient.expires_at)


@recipient_app.command("revoke")
def revoke_recipient(name: str) -> None:
    """End all access of a recipient at once."""
    from lakeshare_server.catalog import Recipients

    typer.echo(f"{Recipients(open_state_catalog()).revoke(name).name} may read nothing any more")


def _ends(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


def _day(moment: datetime | None) -> str:
    return "further notice" if moment is None else moment.strftime("%Y-%m-%d %H:%MZ")


def _write(path: Path, url: str | None, token: str, expires_at: datetime | None) -> None:
    from lakeshare_server.access.profile import write_profile
    from lakeshare_server.settings import ServerSettings

    settings = ServerSettings()
    if url is not None:
        settings = settings.model_copy(update={"public_url": url})
    write_profile(path, settings.base_url(), token, expires_at, settings.iceberg_url())
    typer.echo(f"profile: {path}")
