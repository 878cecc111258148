"""What every command needs: the catalog of this machine's settings, who sits in front of it, and their yes."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from lakeshare_server.errors import BadRequest

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
    from lakeshare_server.storage import Stores
    from lakeshare_server.versions import Versions

    settings = ServerSettings()
    return Versions(catalog, settings, Stores(settings))


@contextmanager
def edit_share(share: str, tables: Iterable[str] = (), *, writes_rule: bool) -> "Iterator[Edit]":
    """One transaction of whoever sits there, on a share and tables of the lake that come to it.

    Raises:
        BadRequest: a rule is none, or partitions do not decide it.
    """
    from lakeshare_server.access.rules import require_decidable_rules
    from lakeshare_server.catalog.sharing import editing
    from lakeshare_server.provider.following import prefetch_versions

    catalog = open_state_catalog()
    versions = open_versions(catalog)
    prefetch_versions(catalog, versions, share, tables, writes_rule=writes_rule)
    with editing(catalog, operator_name()) as edit:
        yield edit
        require_decidable_rules(edit, versions)


def operator_name() -> str:
    """Who runs the command, as the audit log names them."""
    from lakeshare_server.sql.statements import operating_system_user

    return operating_system_user()


def confirm(question: str, otherwise: str = "give --yes.") -> None:
    """Go on when whoever sits there says yes.

    Raises:
        BadRequest: nobody sits there.
        typer.Abort: they say no.
    """
    from lakeshare_server.errors import BadRequest

    if not sys.stdin.isatty():
        raise BadRequest("--yes", "not given", f"{question} Nobody can be asked here: {otherwise}")
    typer.confirm(question, abort=True, err=True)


def parse_moment(option: str, text: str | None) -> datetime | None:
    """A time with its zone, as ISO 8601 writes it.

    Raises:
        BadRequest: it is none, or has no zone.
    """
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise BadRequest(option, text, "Give a time with its zone, like 2027-01-01T00:00:00Z.")
    return parsed


def parse_properties(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` texts by their keys.

    Raises:
        BadRequest: a text has no `=`.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadRequest(option, pair, "Give key=value, like region=EU.")
        found[key] = value
    return found


def parse_table_path(option: str, text: str) -> tuple[str, str]:
    """The schema and the name in `schema.table`.

    Raises:
        BadRequest: it is something else.
    """
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name or "." in name:
        raise BadRequest(option, text, "Give schema.table, like sales.orders.")
    return schema, name


def parse_shared_path(option: str, text: str) -> tuple[str, str, str]:
    """The share, the schema and the name in `share.schema.table`.

    Raises:
        BadRequest: it is something else.
    """
    names = text.split(".")
    if len(names) != 3 or not all(names):
        raise BadRequest(option, text, "Give share.schema.table, like partners.sales.orders.")
    return names[0], names[1], names[2]
