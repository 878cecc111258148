"""`lakeshare explain`: what a recipient's predicate does to the files of a table, told by this server's own catalog."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_server.access.view import Views
from lakeshare_server.catalog import Catalog, Reader, Recipients
from lakeshare_server.errors import BadRequest, Unauthenticated
from lakeshare_server.protocol.requests import query_of
from lakeshare_server.tables.explanation import Explanation, explain, explained_files
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.predicate import Predicate, Unknown, conjuncts


@dataclass(frozen=True)
class AskedTable:
    """A table as clients write it: `PROFILE#share.schema.table`."""

    profile: Path
    share: str
    schema: str
    table: str

    @property
    def name(self) -> str:
        """Share, schema and table."""
        return f"{self.share}.{self.schema}.{self.table}"


@dataclass(frozen=True)
class Explained:
    """What is asked of which version by whom, and what comes of it."""

    table: str
    recipient: str
    version: int
    index: FileIndex
    predicate: Predicate
    limit: int | None

    def summary(self) -> Explanation:
        """What each part of the predicate does."""
        return explain(self.index, self.predicate, self.limit)

    def lines(self) -> Iterator[str]:
        """The summary for people."""
        found = self.summary()
        rows = f"at most {found.rows} rows" if not found.uncounted else f"{found.rows} rows and more"
        yield (
            f"{self.table}, version {self.version}, as {self.recipient} reads it: "
            f"{found.kept} of {found.files} files are kept, {rows}; {found.dropped} are left out"
        )
        yield "DROPS\tPART\tREMARK"
        for part in found.parts:
            yield f"{part.drops}\t{part.text}\t{part.remark or ''}"
        if self.limit is not None:
            yield f"{found.beyond_limit}\tLIMIT {self.limit}\tafter what the parts above leave"

    def file_lines(self) -> Iterator[str]:
        """One line for each file: what became of it, its rows, its path, and why."""
        yield "FILE\tROWS\tPATH\tWHY"
        for file in explained_files(self.index, self.predicate, self.limit):
            rows = "unknown" if file.rows is None else file.rows
            yield f"{'kept' if file.is_kept else 'dropped'}\t{rows}\t{file.path}\t{file.reason}"


def asked_table(text: str) -> AskedTable:
    """The table of `PROFILE#share.schema.table`.

    Raises:
        BadRequest: it does not look like that.
    """
    profile, _, name = text.rpartition("#")
    names = name.split(".")
    if not profile or len(names) != 3 or not all(names):
        raise BadRequest("TABLE", text, "Give PROFILE#share.schema.table, like bob.share#sales.lake.orders.")
    return AskedTable(Path(profile).expanduser(), *names)


def explained(catalog: Catalog, views: Views, asked: AskedTable, fields: Mapping[str, Any]) -> Explained:
    """What a query with these fields would get from the table.

    Raises:
        BadRequest: the profile or a field cannot be used.
        Unauthenticated: the profile's token is nobody's here.
        NotFound: the recipient has no such table.
    """
    reader = _reader(catalog, asked.profile)
    view = views.table(reader, asked.share, asked.schema, asked.table)
    request = query_of(fields)
    _require_some_sense(request.predicate, fields)
    version = view.asked(request)
    return Explained(
        asked.name, reader.name, version.number, view.index(version), request.predicate, request.limit
    )


def _reader(catalog: Catalog, profile: Path) -> Reader:
    found = Recipients(catalog).by_token(_token(profile))
    if found is None:
        raise Unauthenticated(
            f"The token in {profile} is unknown, expired or revoked in this server's catalog. Run this where the "
            "server runs, with its LAKESHARE_STATE_DIR, and with a profile it wrote."
        )
    return found


def _token(profile: Path) -> str:
    try:
        fields = json.loads(profile.read_text("utf-8"))
    except (OSError, ValueError) as error:
        hint = f"Give the path of a profile file ({type(error).__name__})."
        raise BadRequest("PROFILE", str(profile), hint) from error
    if not isinstance(fields, dict) or fields.get("shareCredentialsVersion") != 1:
        raise BadRequest("PROFILE", str(profile), "Give a profile with shareCredentialsVersion 1.")
    token = fields.get("bearerToken")
    if not isinstance(token, str) or not token:
        raise BadRequest("PROFILE", str(profile), "Give a profile with a bearerToken.")
    return token


def _require_some_sense(predicate: Predicate, fields: Mapping[str, Any]) -> None:
    """A server takes what it does not understand for "everything"; whoever asks why wants to be told."""
    given = [name for name in ("predicateHints", "jsonPredicateHints") if fields.get(name)]
    if given and all(isinstance(part, Unknown) for part in conjuncts(predicate)):
        hint = "Nothing of it is understood. Compare columns with constants, like day >= '2024-03-01'."
        raise BadRequest(" and ".join(given), [fields[name] for name in given], hint)
