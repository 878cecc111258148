"""`lakeshare admin`: who administers over the API. Whoever may run this may open the catalog itself."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from lakeshare_server.commands.console import open_state_catalog, operator
from lakeshare_server.settings import make_private

# Where the first key is kept when nobody is at a terminal to read it.
KEY_FILE = "first-admin.key"

admin_app = typer.Typer(help="Administrators of the API.", no_args_is_help=True)
key_app = typer.Typer(
    help="Their API keys. Roles: owner (everything), steward (shares, recipients, grants), auditor (looks only).",
    no_args_is_help=True,
)
admin_app.add_typer(key_app, name="key")


@key_app.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="Whom the audit log is to know by this key.")],
    role: Annotated[str, typer.Option("--role", help="owner, steward or auditor.")],
    days: Annotated[
        int | None, typer.Option("--days", min=1, help="The key ends after this many days; never by default.")
    ] = None,
) -> None:
    """Make a key and print it; it is nowhere else."""
    from lakeshare_server.catalog.admin_keys import add_admin_key
    from lakeshare_server.catalog.sharing import editing

    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with editing(open_state_catalog(), operator()) as edit:
        made, key = add_admin_key(edit, name, role, expires_at=expires_at)
    typer.echo(f"{made.name} administers as {made.role}{_until(made.expires_at)}; the key is shown only now:")
    typer.echo(key)


@key_app.command("list")
def list_keys() -> None:
    """List the keys: name, role, state, who made them. Never a key itself."""
    from lakeshare_server.catalog.admin_keys import admin_keys

    with open_state_catalog().reading() as session:
        found = admin_keys(session)
    now = datetime.now(UTC)
    for key in found:
        valid = f"valid{_until(key.expires_at)}"
        state = "revoked" if key.revoked_at else valid if key.is_valid(now) else "expired"
        typer.echo(
            f"{key.name}\t{key.role}\t{state}\tmade {key.created_at:%Y-%m-%d} by {key.created_by or '-'}"
        )


@key_app.command("revoke")
def revoke_key(name: str) -> None:
    """End a key at once; its name stays taken."""
    from lakeshare_server.catalog.admin_keys import revoke_admin_key
    from lakeshare_server.catalog.sharing import editing

    with editing(open_state_catalog(), operator()) as edit:
        revoked = revoke_admin_key(edit, name)
    typer.echo(f"{revoked.name} administers no more")


def tell_first_key(catalog_url: str, state_dir: Path) -> None:
    """Make the first key of a catalog that never had one; it is printed on a terminal, and kept in a file elsewhere.

    What a service prints goes into a log, which others read and which is kept.
    """
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.catalog.admin_keys import FIRST, first_admin_key

    catalog = open_catalog(catalog_url)
    key = first_admin_key(catalog)
    catalog.close()
    if key is None:
        return
    if sys.stdout.isatty():
        typer.echo(f"The first key of the admin API, an owner's, is shown only now ({FIRST}):\n{key}")
        return
    path = state_dir / KEY_FILE
    make_private(state_dir)
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{key}\n")
    typer.echo(
        f"The first key of the admin API, an owner's ({FIRST}), is in {path}: keep it somewhere safe and remove the "
        "file."
    )


def _until(moment: datetime | None) -> str:
    return "" if moment is None else f" until {moment:%Y-%m-%d %H:%MZ}"
