"""A session of SQL over a catalog with published tables, and what it answers."""

from collections.abc import Sequence
from typing import Any

from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.catalog.sharing import drop_group, drop_recipient, drop_share, editing, look
from lakeshare_server.settings import ServerSettings
from lakeshare_server.sql.provider import Provider
from lakeshare_server.sql.results import Result
from lakeshare_server.sql.session import SqlSession
from tests.builders.publications import a_publication

ROOT = "https://share.example"


def a_session(catalog: Catalog, principal: str = "ann") -> SqlSession:
    """A session in the name of a principal."""
    settings = ServerSettings(public_url=ROOT, port=8765)
    return SqlSession(Provider(catalog, settings), principal)


def publish_some(catalog: Catalog) -> None:
    """Publish `lake.orders` as 0, 1 and 2, `lake.parts` and `sea.ships` as 0."""
    for table in ("lake.orders", "lake.orders", "lake.orders", "lake.parts", "sea.ships"):
        Ledger(catalog).append([a_publication(table=table)])


def answer(session: SqlSession, script: str, **options: Any) -> Result:
    """What the last statement of a script answers."""
    return list(session.run(script, **options))[-1].result


def rows(session: SqlSession, script: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows that the last statement answers; only these columns, if any are named."""
    result = answer(session, script)
    places: Sequence[int] = [list(result.columns).index(column) for column in columns or result.columns]
    return [tuple(row[place] for place in places) for row in result.rows]


def empty(catalog: Catalog) -> None:
    """Drop every share, recipient and group; what is published stays."""
    with editing(catalog, "tests") as edit:
        for share in look.shares(edit.session):
            drop_share(edit, share.name)
        for recipient in look.recipients(edit.session):
            drop_recipient(edit, recipient.name)
        for group in look.groups(edit.session):
            drop_group(edit, group.name)
