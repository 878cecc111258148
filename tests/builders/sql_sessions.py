"""A session of SQL over a catalog with published tables, and what it answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_server.catalog import Catalog, states
from lakeshare_server.catalog.sharing import drop_group, drop_recipient, drop_share, editing
from lakeshare_server.provider.following import Provider
from lakeshare_server.settings import ServerSettings
from lakeshare_server.sql.session import SqlSession
from lakeshare_server.sql.statements import Result
from tests.builders.database_schema import open_migrated
from tests.builders.lake_tables import a_delta_table, append_delta
from tests.builders.sharing import Provider as Publishing

ROOT = "https://share.example"


def a_lake(folder: Path, **settings: Any) -> Provider:
    """A catalog, SQLite by default, with published tables: `lake.orders` as 0, 1 and 2, `lake.parts`, `sea.ships` as 0.

    Orders have partitions by `region` and `day`, the others none.
    """
    made = ServerSettings(**{"public_url": ROOT, "port": 8765, "state_dir": folder / "state", **settings})
    provider = Provider(open_migrated(made.catalog_url), made)
    publishing = Publishing(made, provider.catalog)
    orders = pa.table({"region": ["EU", "US"], "day": ["2024-01-01", "2024-01-02"], "amount": [1, 2]})
    location = a_delta_table(folder / "orders", orders, partitioned_by=("region", "day"))
    publishing.publish_delta("lake.orders", location)
    for _ in range(2):
        append_delta(location, orders)
        publishing.publish_delta("lake.orders", location)
    for table in ("lake.parts", "sea.ships"):
        place = a_delta_table(folder / table, orders, partitioned_by=())
        publishing.publish_delta(table, place)
    return provider


def a_session(provider: Provider, principal: str = "ann") -> SqlSession:
    """A session in the name of a principal."""
    return SqlSession(provider, principal)


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
        for share in states.list_shares(edit.session):
            drop_share(edit, share.name)
        for recipient in states.list_recipients(edit.session):
            drop_recipient(edit, recipient.name)
        for group in states.list_groups(edit.session):
            drop_group(edit, group.name)
