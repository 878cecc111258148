"""What every command needs: the catalog of this machine's settings, who sits in front of it, and their yes."""

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lakeshare_server.catalog import Catalog


def open_state_catalog() -> "Catalog":
    """The catalog that LAKESHARE_DATABASE_URL or LAKESHARE_STATE_DIR names."""
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.settings import StateSettings

    return open_catalog(StateSettings().catalog_url)


def operator() -> str:
    """Who runs the command, as the audit log names them."""
    from lakeshare_server.sql.principal import operating_system_user

    return operating_system_user()


def ask(question: str, otherwise: str = "give --yes.") -> None:
    """Go on when whoever sits there says yes.

    Raises:
        BadRequest: nobody sits there.
        typer.Abort: they say no.
    """
    from lakeshare_server.errors import BadRequest

    if not sys.stdin.isatty():
        raise BadRequest("--yes", "not given", f"{question} Nobody can be asked here: {otherwise}")
    typer.confirm(question, abort=True, err=True)
