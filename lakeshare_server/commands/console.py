"""What every command needs: the catalog of this machine's settings, who sits in front of it, and their yes."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lakeshare_server.catalog import Catalog
    from lakeshare_server.catalog.sharing import Edit
    from lakeshare_server.versions import Versions


def open_state_catalog() -> "Catalog":
    """The catalog that LAKESHARE_DATABASE_URL or LAKESHARE_STATE_DIR names."""
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.settings import StateSettings

    return open_catalog(StateSettings().catalog_url)


def open_versions(catalog: "Catalog") -> "Versions":
    """The versions of the lake's tables, which rules are held against."""
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.stores import Stores
    from lakeshare_server.versions import Versions

    settings = ServerSettings()
    return Versions(catalog, settings, Stores(settings))


@contextmanager
def editing_share(share: str, tables: Iterable[str] = (), *, writes_rule: bool) -> "Iterator[Edit]":
    """One transaction of whoever sits there, on a share and tables of the lake that come to it.

    Raises:
        BadRequest: a rule is none, or partitions do not decide it.
    """
    from lakeshare_server.access.rules import require_decidable_rules
    from lakeshare_server.access.versions_ahead import find_versions_ahead
    from lakeshare_server.catalog.sharing import editing

    catalog = open_state_catalog()
    versions = open_versions(catalog)
    find_versions_ahead(catalog, versions, share, tables, writes_rule=writes_rule)
    with editing(catalog, operator()) as edit:
        yield edit
        require_decidable_rules(edit, versions)


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
