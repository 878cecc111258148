"""SHOW, DESCRIBE and SELECT as a recipient sees: from the listings that answer its own requests, nothing else.

What a recipient is never told, like who shared what and under which rule, is empty here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lakeshare_server.catalog import Listings, ShareEntry, TableEntry
from lakeshare_server.catalog.models import MAX_LONG
from lakeshare_server.errors import BadRequest, Denied, NotFound
from lakeshare_server.sql import information_schema
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.looks import GRANTS_TO_COLUMNS, OBJECT_COLUMNS, SHARE_COLUMNS, SHARE_DETAILS
from lakeshare_server.sql.provider import Provider
from lakeshare_server.sql.results import Cell, Columns, Result, matches, rows_of

# The first rows of a table as a recipient reads it: its name, the table's path, how many; columns and rows as texts.
RowsReadBy = Callable[[str, tuple[str, ...], int], tuple[list[str], list[list[str]]]]
FEW, MOST = 100, 1000


@dataclass(frozen=True)
class SeenAs:
    """The eyes of one recipient."""

    provider: Provider
    recipient: str
    recipient_id: str
    rows: RowsReadBy | None = None

    def look(self, asked: said.Look) -> Result:
        """What the recipient is shown.

        Raises:
            NotFound: it does not exist for this recipient.
            Denied: recipients are never shown such a thing.
        """
        if type(asked) not in _LOOKS:
            raise Denied(
                f"{self.recipient} is not shown this. RESET RECIPIENT shows what the provider sees again."
            )
        return _LOOKS[type(asked)](self, asked)

    def shares(self) -> list[ShareEntry]:
        """The shares it may read now."""
        found = self._listings().shares(0, MAX_LONG)
        return sorted(found, key=lambda share: share.name.lower())

    def tables(self, share: str) -> list[TableEntry]:
        """The tables of a share it may read now."""
        return self._listings().tables(share, None, 0, MAX_LONG)

    def _listings(self) -> Listings:
        return Listings(self.provider.catalog, self.recipient_id)


def _show_shares(eyes: SeenAs, asked: said.ShowShares) -> Result:
    found = [share for share in eyes.shares() if matches(asked.pattern, share.name)]
    return rows_of(SHARE_COLUMNS, (_told(SHARE_COLUMNS, name=one.name, comment=one.comment) for one in found))


def _show_all(eyes: SeenAs, asked: said.ShowAllInShare) -> Result:
    return rows_of(OBJECT_COLUMNS, map(_object, eyes.tables(asked.share)))


def _describe_share(eyes: SeenAs, asked: said.DescribeShare) -> Result:
    named = [share for share in eyes.shares() if share.name.lower() == asked.name.lower()]
    if not named:
        raise NotFound("Share", asked.name)
    one = named[0]
    row = _told(SHARE_DETAILS, name=one.name, comment=one.comment, display_name=one.display_name)
    return rows_of(SHARE_DETAILS, [row])


def _show_grants(eyes: SeenAs, asked: said.ShowGrantsTo) -> Result:
    if asked.grantee != said.Grantee("RECIPIENT", asked.grantee.name) or not _is_self(
        eyes, asked.grantee.name
    ):
        raise NotFound(asked.grantee.kind.title(), asked.grantee.name)
    rows = (_told(GRANTS_TO_COLUMNS, share=one.name, privilege="SELECT") for one in eyes.shares())
    return rows_of(GRANTS_TO_COLUMNS, rows)


def _select(eyes: SeenAs, asked: said.SelectAll) -> Result:
    *parents, name = (part.lower() for part in asked.path)
    if parents[-1:] != [information_schema.SCHEMA]:
        return _rows(eyes, asked)
    if name not in _VIEWS:
        raise NotFound("View", ".".join(asked.path))
    found = _VIEWS[name](eyes)
    return Result(found.columns, found.rows[: asked.limit])


def _rows(eyes: SeenAs, asked: said.SelectAll) -> Result:
    if eyes.rows is None:
        path = ".".join(asked.path)
        hint = f"`lakeshare as {eyes.recipient} preview {path}` shows rows as this recipient reads them."
        raise BadRequest("FROM", path, hint)
    count = FEW if asked.limit is None else asked.limit
    if not 0 < count <= MOST:
        raise BadRequest("LIMIT", count, f"From 1 to {MOST} rows are shown here; clients read all.")
    columns, rows = eyes.rows(eyes.recipient, asked.path, count)
    told = f"the first {count}" if len(rows) == count else ""
    return rows_of(dict.fromkeys(columns, str), map(tuple, rows), told)


def _shares_view(eyes: SeenAs) -> Result:
    columns = information_schema.SHARES
    return rows_of(
        columns, (_told(columns, share_name=one.name, comment=one.comment) for one in eyes.shares())
    )


def _tables_view(eyes: SeenAs) -> Result:
    columns = information_schema.TABLES
    found = [table for share in eyes.shares() for table in eyes.tables(share.name)]
    return rows_of(
        columns,
        (
            _told(
                columns,
                share_name=one.share.name,
                shared_as_schema=one.schema,
                shared_as_table=one.name,
                cdf_enabled="YES" if one.history else "NO",
                start_version=one.start_version,
                comment=one.comment,
            )
            for one in found
        ),
    )


def _object(one: TableEntry) -> tuple[Cell, ...]:
    return _told(
        OBJECT_COLUMNS,
        name=f"{one.schema}.{one.name}",
        type="TABLE",  # the protocol has no other
        comment=one.comment,
        history=one.history,
        start_version=one.start_version,
    )


def _told(columns: Columns, **known: Cell) -> tuple[Cell, ...]:
    return tuple(known.get(column) for column in columns)


def _is_self(eyes: SeenAs, name: str) -> bool:
    return eyes.recipient.lower() == name.lower()


# By the type of the statement, which each function takes.
_LOOKS: Mapping[type, Callable[[SeenAs, Any], Result]] = {
    said.ShowShares: _show_shares,
    said.ShowAllInShare: _show_all,
    said.DescribeShare: _describe_share,
    said.ShowGrantsTo: _show_grants,
    said.SelectAll: _select,
}
_VIEWS: Mapping[str, Callable[[SeenAs], Result]] = {"shares": _shares_view, "table_share_usage": _tables_view}
