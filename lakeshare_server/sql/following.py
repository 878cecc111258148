"""FOLLOW, UNFOLLOW and SHOW FOLLOWED TABLES.

The first two read stores, so they take place outside of the transactions of other statements.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from lakeshare_server.access.following import Following, FollowRequest
from lakeshare_server.catalog import FollowedTables
from lakeshare_server.catalog.followed import followed_tables
from lakeshare_server.errors import BadRequest
from lakeshare_server.sql.provider import Provider
from lakeshare_server.sql.results import Result, done, matches, rows_of
from lakeshare_server.sql.statements import Change, Look

COLUMNS = {"result": str, "table": str, "location": str, "version": int, "clients": str}

FOLLOWED_COLUMNS = {
    "table": str,
    "location": str,
    "format": str,
    "start_version": int,
    "created_at": datetime,
}


@dataclass(frozen=True)
class Follow(Change):
    """FOLLOW; with a star for the table it is all tables of a folder or a namespace."""

    location: str
    alias: tuple[str, ...] = ()
    share: str = "lake"
    history: bool = True
    start_version: int = 0


@dataclass(frozen=True)
class Unfollow(Change):
    """UNFOLLOW."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class ShowFollowedTables(Look):
    """SHOW FOLLOWED TABLES."""

    pattern: str | None = None


def do_follow(asked: Follow, provider: Provider, principal: str) -> Result:
    """FOLLOW.

    Raises:
        LakeshareError: a single table, or the location itself, is refused.
        BadRequest: some of many tables are refused; the others are followed.
    """
    following = Following.of(provider.catalog, provider.settings)
    usual = FollowRequest(share=asked.share, history=asked.history, start_version=asked.start_version)
    requests = following.requests([(asked.location, ".".join(asked.alias) or None)], usual)
    if len(requests) == 1:
        found = [following.follow(requests[0], principal)]
    else:
        found = list(following.follow_all(requests, principal))
    refused = [one for one in found if one.result == "refused"]
    if refused:
        first = refused[0]
        raise BadRequest(
            "FOLLOW",
            asked.location,
            f"{len(refused)} of its {len(found)} tables are refused, the others are followed. "
            f"{first.location}: {first.remark}",
        )
    rows = []
    for one in found:
        told = one.as_json()
        rows.append(
            (told["result"], told["table"], one.location, told["version"], ", ".join(told["clients"]))
        )
    return rows_of(COLUMNS, rows)


def do_unfollow(asked: Unfollow, provider: Provider, principal: str) -> Result:
    """UNFOLLOW.

    Raises:
        NotFound: no table is followed under this name.
    """
    found = FollowedTables(provider.catalog).remove(".".join(asked.path), principal)
    return done(f"{found.table} is not followed any more")


def show_followed_tables(session: Session, asked: ShowFollowedTables) -> Result:
    """SHOW FOLLOWED TABLES."""
    found = [one for one in followed_tables(session) if matches(asked.pattern, one.table)]
    rows = (
        (
            one.table,
            one.location,
            "delta" if one.iceberg is None else "iceberg",
            one.start_version,
            one.created_at,
        )
        for one in found
    )
    return rows_of(FOLLOWED_COLUMNS, rows)
