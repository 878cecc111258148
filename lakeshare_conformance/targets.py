"""What a server offers to try the cases on: its listings, its tables, and the views of them in each response format.

What many cases look at is asked for once and kept, refusals included.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote

from lakeshare_conformance.case import DELTA, PARQUET, ExpectationFailed, NotApplicable, expect
from lakeshare_conformance.client import CAPABILITIES, BadOption, Client, Profile, Response, Unreachable
from lakeshare_conformance.reply import Reply

MAX_PAGES = 2000
MAX_TABLES = 25
MAX_VERSIONS = 16
FEATURES = (
    "deletionVectors,columnMapping,timestampNtz,typeWidening,typeWidening-preview,variantType,"
    "variantType-preview,variantShredding,variantShredding-preview,geospatial"
)
# What the views announce: nothing at all for parquet, as the oldest clients.
ANNOUNCED = {PARQUET: None, DELTA: f"responseformat=delta;readerfeatures={FEATURES}"}
Cached = TypeVar("Cached")


class Cache:
    """Results by key, each made once; what could not be made is not tried again."""

    def __init__(self) -> None:
        self._made: dict[object, Any] = {}
        self._failed: dict[object, Exception] = {}

    def once(self, key: object, make: Callable[[], Cached]) -> Cached:
        if key in self._failed:
            raise self._failed[key]
        if key not in self._made:
            try:
                self._made[key] = make()
            except (ExpectationFailed, NotApplicable) as error:
                self._failed[key] = error
                raise
        found: Cached = self._made[key]
        return found


class Server:
    """The server behind a profile, and what it lists.

    `foreign` is the profile of another recipient of the server, `expired` one whose token has expired.
    """

    def __init__(
        self,
        client: Client,
        profile: Profile,
        share: str | None = None,
        *,
        foreign: Profile | None = None,
        expired: Profile | None = None,
    ) -> None:
        self.client, self.profile = client, profile
        self.foreign, self.expired = foreign, expired
        self._only_share = share
        self._kept = Cache()

    def items(self, path: str) -> list[dict[str, Any]]:
        """The items of a listing, all pages of it."""
        return self._kept.once(
            path, lambda: [item for page in list_pages(self.client, path) for item in page]
        )

    @property
    def shares(self) -> list[str]:
        """The names of the shares in scope."""
        names = [str(item.get("name")) for item in self.items("/shares")]
        return [name for name in names if _is_same_name(name, self._only_share)]

    def schemas(self, share: str) -> list[str]:
        return [str(item.get("name")) for item in self.items(f"{make_path(share)}/schemas")]

    @cached_property
    def listings(self) -> list[str]:
        """The path of every listing in scope: shares, schemas, tables, all tables."""
        found = ["/shares"]
        for share in self.shares:
            found += [f"{make_path(share)}/schemas", f"{make_path(share)}/all-tables"]
            found += [f"{make_path(share, schema)}/tables" for schema in self.schemas(share)]
        return found

    def tables(self) -> Iterator["Table"]:
        """The tables in scope, found by the listings that every server has."""
        for share in self.shares:
            for schema in self.schemas(share):
                for item in self.items(f"{make_path(share, schema)}/tables"):
                    yield Table(self, share, schema, str(item.get("name")))


class Table:
    """A shared table."""

    def __init__(self, server: Server, share: str, schema: str, table: str) -> None:
        self.server, self.client = server, server.client
        self.others: tuple[Table, ...] = ()
        self.names = (share, schema, table)
        self.name = ".".join(self.names)
        self.path = make_path(*self.names)
        self._kept = Cache()

    def ask(self, method: str, below: str = "", **options: Any) -> Response:
        """Send a request below the table's path."""
        return self.client.ask(method, self.path + below, **options)

    def version(self, **params: object) -> Response:
        return self.ask("GET", "/version", params=params)

    def metadata(self, capabilities: str | None = None, **params: object) -> Response:
        return self.ask("GET", "/metadata", params=params, headers=make_capabilities_header(capabilities))

    def query(
        self, body: Mapping[str, object] | bytes, capabilities: str | None = None, **headers: str
    ) -> Response:
        return self.ask(
            "POST", "/query", body=body, headers={**make_capabilities_header(capabilities), **headers}
        )

    @property
    def latest(self) -> int:
        """The latest version, as the version call tells it."""
        return self._kept.once("latest", lambda: self.version().expect_status(200).version)

    def view(self, format: str) -> "View | None":
        """The table in a response format; None if the server does not serve it so."""
        response = self._kept.once(format, lambda: self.metadata(ANNOUNCED[format]))
        if 400 <= response.status < 500:
            return None
        if response.status == 200 and (response.capabilities.get("responseformat") or PARQUET) != format:
            return None
        return self._kept.once((format, "view"), lambda: View(self, format))

    @property
    def views(self) -> list["View"]:
        return [view for format in (PARQUET, DELTA) if (view := self.view(format)) is not None]

    def expect_readable(self) -> None:
        """Go on unless the server refuses the whole table.

        Raises:
            NothingToTry: it does, and says why.
        """
        if not self.views and 400 <= self.version().status < 500:
            raise NotApplicable(f"{self.name} cannot be read: {self.version().summary}")

    @property
    def other_views(self) -> list["View"]:
        """A view of each other table of the ground.

        Raises:
            NothingToTry: there is none.
        """
        found = [other.views[0] for other in self.others if other.views]
        if not found:
            raise NotApplicable("there is one table only")
        return found

    @property
    def first_view(self) -> "View":
        """The table in the first format it is served in.

        Raises:
            NothingToTry: in none.
        """
        for view in self.views:
            return view
        raise NotApplicable(f"{self.name} is served in no format")


class View:
    """A shared table in one response format."""

    def __init__(self, table: Table, format: str) -> None:
        self.table, self.format, self.announced = table, format, ANNOUNCED[format]
        self._kept = Cache()

    def announcing(self, more: str) -> str:
        """The capabilities of this view and some more."""
        return more if self.announced is None else f"{self.announced};{more}"

    def ask(self, body: Mapping[str, object] | bytes, more: str | None = None, **headers: str) -> Response:
        """Send a query."""
        return self.table.query(body, self.announcing(more) if more else self.announced, **headers)

    def ask_changes(self, params: Mapping[str, object], more: str | None = None, **headers: str) -> Response:
        """Send a request for changes."""
        announced = make_capabilities_header(self.announcing(more) if more else self.announced)
        return self.table.ask("GET", "/changes", params=params, headers={**announced, **headers})

    def query(self, **body: object) -> Reply:
        """The lines of a query; asked once for each body."""
        return self._kept.once(("query", repr(body)), lambda: Reply(self.ask(body)))

    def changes(self, **params: object) -> Reply:
        """The lines of a range of changes; asked once for each."""
        return self._kept.once(("changes", repr(params)), lambda: Reply(self.ask_changes(params)))

    @property
    def snapshot(self) -> Reply:
        """The latest snapshot."""
        return self.query()

    @property
    def metadata(self) -> Reply:
        return self._kept.once("metadata", lambda: Reply(self.table.metadata(self.announced)))

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that can be read, the latest last; only the newest few are tried.

        Raises:
            NothingToTry: the table's history is not shared.
        """
        return self._kept.once("versions", self._versions)

    @property
    def window_start(self) -> int:
        """The earliest version that a window of versions can start at.

        Raises:
            NothingToTry: there is none.
        """
        return self._kept.once(
            "window start",
            lambda: self._first(
                "windows of versions", lambda version: self.ask({"startingVersion": version})
            ),
        )

    @property
    def change_start(self) -> int:
        """The earliest version that changes can be read from.

        Raises:
            NothingToTry: there is none.
        """
        return self._kept.once(
            "change start",
            lambda: self._first("changes", lambda version: self.ask_changes({"startingVersion": version})),
        )

    def versions_from(self, start: int) -> tuple[int, ...]:
        return tuple(version for version in self.versions if version >= start)

    def with_another_schema(self, versions: tuple[int, ...]) -> set[int]:
        """Those of the versions whose schema is not that of the one before."""
        schemas = {version: self.query(version=version).metadata.get("schemaString") for version in versions}
        return {new for old, new in pairwise(versions) if schemas[old] != schemas[new]}

    def _versions(self) -> tuple[int, ...]:
        latest = self.table.latest
        response = self.ask({"version": latest, "limitHint": 0})
        if 400 <= response.status < 500:
            raise NotApplicable(f"{self.table.name} does not share its history")
        response.expect_status(200)
        earlier = [
            version
            for version in range(max(0, latest - MAX_VERSIONS), latest)
            if self.ask({"version": version, "limitHint": 0}).status == 200
        ]
        return (*earlier, latest)

    def _first(self, what: str, ask: Callable[[int], Response]) -> int:
        response = None
        for version in self.versions:
            response = ask(version)
            if response.status == 200:
                return version
            expect(response.status < 500, response.request, "200, or a refusal by 4xx", response.summary)
        raise NotApplicable(f"{self.table.name} does not serve {what}")


@dataclass(frozen=True)
class Targets:
    """Everything the cases are tried on. `left_out` tables were found but are more than a run takes."""

    server: Server
    tables: tuple[Table, ...]
    left_out: int = 0

    def views(self, formats: tuple[str, ...]) -> Iterator[View]:
        for table in self.tables:
            for format in formats:
                view = table.view(format)
                if view is not None:
                    yield view


def discover_targets(
    client: Client,
    profile: Profile,
    share: str | None = None,
    table: str | None = None,
    *,
    foreign: Profile | None = None,
    expired: Profile | None = None,
) -> Targets:
    """Look at what a server offers, a share or one table of it.

    Raises:
        Unreachable: the server does not answer.
        BadOption: the share or the table is not listed.
    """
    server = Server(client, profile, share, foreign=foreign, expired=expired)
    try:
        client.ask("GET", "/shares")
    except ExpectationFailed as error:
        raise Unreachable(str(error), "Check the profile's endpoint, and that the server runs.") from error
    try:
        shares, found = server.shares, list(server.tables())
    except ExpectationFailed:
        # The cases about listings will say what is wrong with them.
        return Targets(server, ())
    if share is not None and not shares:
        raise BadOption("--share", share, "The server does not list it to this recipient.")
    if table is not None:
        found = [one for one in found if _is_same_name(".".join(one.names[1:]), table)]
        if not found:
            raise BadOption("--table", table, "The server does not list such a schema.table.")
    tried = tuple(found[:MAX_TABLES])
    for one in tried:
        one.others = tuple(other for other in tried if other is not one)
    return Targets(server, tried, len(found) - len(tried))


def list_pages(client: Client, path: str, **params: object) -> Iterator[list[dict[str, Any]]]:
    """The pages of a listing, until it gives no more tokens.

    Raises:
        Broken: a page is not of the shape of a listing, or the tokens never end.
    """
    tokens: set[str] = set()
    token: str | None = None
    while token is None or token:
        response = client.ask("GET", path, params={**params, **({"pageToken": token} if token else {})})
        items, token = parse_page(response)
        yield items
        expect(
            token not in tokens and len(tokens) < MAX_PAGES,
            response.request,
            "tokens that come to an end",
            token,
        )
        tokens.add(token)


def parse_page(response: Response) -> tuple[list[dict[str, Any]], str]:
    """The items of one page, and the token of the next; an empty one ends the listing.

    Raises:
        Broken: it is not of the shape of a listing.
    """
    page = response.object()
    items, token = page.get("items") or [], page.get("nextPageToken") or ""
    is_list = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    expect(is_list, response.request, "items to be a list of objects", items)
    expect(isinstance(token, str), response.request, "nextPageToken to be a text", token)
    return items, token


def make_path(share: str, schema: str | None = None, table: str | None = None) -> str:
    """The path of a share, a schema or a table."""
    path = f"/shares/{quote(share, safe='')}"
    if schema is not None:
        path += f"/schemas/{quote(schema, safe='')}"
    return path if table is None else f"{path}/tables/{quote(table, safe='')}"


def make_capabilities_header(capabilities: str | None) -> dict[str, str]:
    """The header that announces capabilities; none for none."""
    return {} if capabilities is None else {CAPABILITIES: capabilities}


def _is_same_name(name: str, wanted: str | None) -> bool:
    return wanted is None or name.lower() == wanted.lower()
