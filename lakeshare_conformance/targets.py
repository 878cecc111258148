"""The targets of the cases: the server, its shared tables, and each table in each response format (a view).

Responses that many cases read are requested once and cached, failures included.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from lakeshare_conformance import wire
from lakeshare_conformance.case import DELTA, PARQUET, ExpectationFailed, NotApplicable, require
from lakeshare_conformance.client import BadOption, Client, Profile, Response, Unreachable

MAX_PAGES, MAX_ANSWER_PAGES = 2000, 200
MAX_TABLES = 25
MAX_VERSIONS = 16
FEATURES = (
    "deletionVectors,columnMapping,timestampNtz,typeWidening,typeWidening-preview,variantType,"
    "variantType-preview,variantShredding,variantShredding-preview,geospatial"
)
# The capabilities that requests announce; for parquet none, as the oldest clients.
ANNOUNCED = {PARQUET: None, DELTA: f"responseformat=delta;readerfeatures={FEATURES}"}
Body = Mapping[str, object] | bytes
Owner = TypeVar("Owner")
Result = TypeVar("Result")
P = ParamSpec("P")


def once(method: Callable[Concatenate[Owner, P], Result]) -> Callable[Concatenate[Owner, P], Result]:
    """Cache a method's result or failure in its object, by its arguments."""

    @wraps(method)
    def cached(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        results: dict[object, Any] = owner.__dict__.setdefault("_results", {})
        key = (method.__name__, repr(args), repr(kwargs))
        if key not in results:
            try:
                results[key] = method(owner, *args, **kwargs)
            except (ExpectationFailed, NotApplicable) as error:
                results[key] = error
        result = results[key]
        if isinstance(result, ExpectationFailed | NotApplicable):
            raise result
        return result  # type: ignore[no-any-return]

    return cached


@dataclass
class Server:
    """The server behind a profile, and its listings, restricted to one share if `only_share` is set.

    `foreign` is the profile of another recipient of the server, `expired` one whose token has expired.
    """

    client: Client
    profile: Profile
    only_share: str | None = None
    foreign: Profile | None = None
    expired: Profile | None = None

    def ask_as(self, authorization: str | None) -> Response:
        """List the shares with other credentials."""
        return self.client.ask("GET", "/shares", authorization=authorization)

    @once
    def items(self, path: str) -> list[dict[str, Any]]:
        """The items of a listing, from all pages."""
        return [item for page in list_pages(self.client, path) for item in page]

    @property
    def shares(self) -> list[str]:
        names = [str(item.get("name")) for item in self.items("/shares")]
        return [name for name in names if _is_same_name(name, self.only_share)]

    def schemas(self, share: str) -> list[str]:
        return [str(item.get("name")) for item in self.items(f"{make_path(share)}/schemas")]

    @property
    def table_listings(self) -> list[str]:
        """The path of every listing of tables: by schema, and of whole shares."""
        schemas = [make_path(share, schema) for share in self.shares for schema in self.schemas(share)]
        return [f"{make_path(one)}/all-tables" for one in self.shares] + [f"{one}/tables" for one in schemas]

    @property
    def listings(self) -> list[str]:
        """The path of every listing: shares, schemas, tables."""
        schemas = [f"{make_path(share)}/schemas" for share in self.shares]
        return ["/shares", *schemas, *self.table_listings]

    def ask_listings(self, **params: object) -> Iterator[tuple[str, Response, list[dict[str, Any]]]]:
        """The path of every listing, its first page with these parameters, and the items of the page."""
        for path in self.listings:
            response = self.client.get(path, **params)
            yield path, response, parse_page(response).items

    def tables(self) -> Iterator["Table"]:
        for share in self.shares:
            for schema in self.schemas(share):
                for item in self.items(f"{make_path(share, schema)}/tables"):
                    yield Table(self, (share, schema, str(item.get("name"))))


@dataclass
class Table:
    """A shared table; `others` are the other tables of the run."""

    server: Server
    names: tuple[str, str, str]
    others: tuple["Table", ...] = field(default=(), repr=False)

    @property
    def client(self) -> Client:
        return self.server.client

    @property
    def name(self) -> str:
        return ".".join(self.names)

    @property
    def path(self) -> str:
        return make_path(*self.names)

    def ask(self, method: str, below: str = "", **options: Any) -> Response:
        return self.client.ask(method, self.path + below, **options)

    def version(self, **params: object) -> Response:
        return self.ask("GET", "/version", params=params)

    def metadata(self, capabilities: str | None = None, **params: object) -> Response:
        return self.ask("GET", "/metadata", params=params, capabilities=capabilities)

    def query(self, body: Body, capabilities: str | None = None, **headers: str) -> Response:
        return self.ask("POST", "/query", body=body, capabilities=capabilities, headers=headers)

    def refuse_times(self, *times: str) -> None:
        """Expect 400 for a version call with each of these as startingTimestamp."""
        for time in times:
            self.version(startingTimestamp=time).refusal(400)

    @property
    @once
    def latest(self) -> int:
        """The latest version, from the version call."""
        return self.version().expect_status(200).version

    @once
    def view(self, format: str) -> "View | None":
        """The table in a response format; None if the server does not serve the table in it."""
        response = self.metadata(ANNOUNCED[format])
        is_other = response.status == 200 and response.format != format
        return None if response.is_refusal or is_other else View(self, format)

    @property
    def views(self) -> list["View"]:
        return [view for format in (PARQUET, DELTA) if (view := self.view(format)) is not None]

    @property
    def first_view(self) -> "View":
        """The table in the first format that it is served in; `NotApplicable` if in none."""
        return require(self.views, f"{self.name} is served in no format")[0]

    @property
    def other_views(self) -> list["View"]:
        """A view of up to five other tables; `NotApplicable` without."""
        views = [other.views[0] for other in self.others if other.views]
        return require(views, "there is one table only")[:5]

    def require_readable(self) -> None:
        """Raise `NotApplicable` if the server refuses the whole table."""
        if not self.views and self.version().is_refusal:
            raise NotApplicable(f"{self.name} cannot be read: {self.version().summary}")

    def require_delta_only(self) -> None:
        is_delta_only = self.view(PARQUET) is None and self.view(DELTA) is not None
        require(is_delta_only, "no table is served in delta format only")


@dataclass
class View:
    """A shared table in one response format."""

    table: Table
    format: str

    @property
    def client(self) -> Client:
        return self.table.client

    @property
    def announced(self) -> str | None:
        return ANNOUNCED[self.format]

    def announce(self, more: str | None = None) -> str | None:
        """The capabilities of this view and some more."""
        return ";".join(part for part in (self.announced, more) if part) or None

    def ask(self, body: Body, more: str | None = None, **headers: str) -> Response:
        return self.table.query(body, self.announce(more), **headers)

    def ask_changes(self, params: Mapping[str, object], more: str | None = None, **headers: str) -> Response:
        announced = self.announce(more)
        return self.table.ask("GET", "/changes", params=params, capabilities=announced, headers=headers)

    def refuse(self, *bodies: Body) -> None:
        """Expect 400 for a query with each of these bodies."""
        for body in bodies:
            self.ask(body).refusal(400)

    def refuse_changes(self, *ranges: Mapping[str, object]) -> None:
        """Expect 400 for a request for each of these ranges of changes."""
        for params in ranges:
            self.ask_changes(params).refusal(400)

    def expect_all_files(self, *bodies: Body, **headers: str) -> None:
        """Expect the files of a plain query for each of these bodies."""
        for body in bodies:
            self.ask(body, **headers).read().expect_ids(self.snapshot.ids, "all files")

    @once
    def query(self, /, **body: object) -> Response:
        """The lines of a query, requested once for each body."""
        return self.ask(body).read()

    @once
    def changes(self, /, **params: object) -> Response:
        """The lines of a range of changes, requested once for each range."""
        return self.ask_changes(params).read()

    @property
    def snapshot(self) -> Response:
        return self.query()

    @property
    @once
    def metadata(self) -> Response:
        return self.table.metadata(self.announced).read()

    @property
    def window(self) -> Response:
        """All versions that a window can have."""
        return self.query(startingVersion=self.window_start)

    @property
    def feed(self) -> Response:
        """All changes that can be read."""
        return self.changes(startingVersion=self.change_start)

    @property
    def feed_with_metadata(self) -> Response:
        """All changes that can be read, with the metaData lines between them."""
        return self.changes(startingVersion=self.change_start, includeHistoricalMetadata="true")

    @property
    @once
    def page_token(self) -> str:
        """The token of a second page; `NotApplicable` if the server does not page."""
        response = self.ask({"maxFiles": 1})
        require(not response.is_refusal, "the server does not answer in pages")
        first = response.read()
        if not first.end.next_page_token:
            missing = len(self.snapshot.actions) - len(first.actions)
            first.expect(missing <= 0, "all files, or a nextPageToken", f"{missing} files fewer, no token")
        return require(first.end.next_page_token, "no answer comes in two pages")

    def require_pages(self) -> None:
        """Raise `NotApplicable` if no answer comes in two pages."""
        require(self.page_token, "no answer comes in two pages")

    def pages(self, size: int = 1, **body: object) -> list[Response]:
        """The pages of a query; `NotApplicable` if the server does not page."""
        self.require_pages()
        return read_pages(lambda more: self.query(**{**body, "maxFiles": size, **more}))

    @property
    def refresh_token(self) -> str:
        """A refresh token; `NotApplicable` if the server gives none."""
        reply = self.query(includeRefreshToken=True)
        return require(reply.end.refresh_token, "the server gives no refresh tokens")

    @property
    @once
    def versions(self) -> tuple[int, ...]:
        """The newest readable versions, the latest last; `NotApplicable` if the history is not shared."""
        latest = self.table.latest
        response = self.ask({"version": latest, "limitHint": 0})
        require(not response.is_refusal, f"{self.table.name} does not share its history")
        response.expect_status(200)
        earlier = range(max(0, latest - MAX_VERSIONS), latest)
        return (*(v for v in earlier if self.ask({"version": v, "limitHint": 0}).status == 200), latest)

    @property
    @once
    def window_start(self) -> int:
        """The earliest version that a window can start at; `NotApplicable` without."""
        return self._find_first("windows of versions", self.ask)

    @property
    @once
    def change_start(self) -> int:
        """The earliest version that changes can be read from; `NotApplicable` without."""
        return self._find_first("changes", self.ask_changes)

    def versions_from(self, start: int) -> tuple[int, ...]:
        return tuple(version for version in self.versions if version >= start)

    def find_schema_changes(self, start: int) -> set[int]:
        """The versions after `start` whose schema differs from the version before; `NotApplicable` without."""
        versions = self.versions_from(start)
        schemas = {version: self.query(version=version).metadata.schema_string for version in versions}
        changed = {new for old, new in pairwise(versions) if schemas[old] != schemas[new]}
        return require(changed, "no table changed its schema within these versions")

    def _find_first(self, what: str, ask: Callable[[Mapping[str, object]], Response]) -> int:
        for version in self.versions:
            response = ask({"startingVersion": version})
            if response.status == 200:
                return version
            response.expect(response.status < 500, "200, or a refusal by 4xx", response.summary)
        raise NotApplicable(f"{self.table.name} does not serve {what}")


# The targets of cases about one format alone.
ParquetView = Annotated[View, PARQUET]
DeltaView = Annotated[View, DELTA]


@dataclass(frozen=True)
class Targets:
    """Everything the cases run on; `left_out` tables exceed the limit of a run."""

    server: Server
    tables: tuple[Table, ...]
    left_out: int = 0

    def select(self, target: str, formats: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """The server, the tables, or the views in these formats, with the names that reports give them."""
        if target == "server":
            yield "", self.server
        for table in self.tables if target != "server" else ():
            if target == "table":
                yield table.name, table
            for format in formats if target == "view" else ():
                view = table.view(format)
                if view is not None:
                    yield f"{table.name} as {format}", view


def discover_targets(
    client: Client,
    profile: Profile,
    share: str | None = None,
    table: str | None = None,
    *,
    foreign: Profile | None = None,
    expired: Profile | None = None,
) -> Targets:
    """Read the listings of a server, of one share, or of one table given as `schema.table`.

    Raises Unreachable if the server does not respond, BadOption if the share or the table is not listed.
    """
    server = Server(client, profile, share, foreign, expired)
    try:
        client.get("/shares")
    except ExpectationFailed as error:
        raise Unreachable(f"{error}. Check the profile's endpoint, and that the server runs.") from error
    try:
        shares, found = server.shares, list(server.tables())
    except ExpectationFailed:
        # The cases about listings report the cause.
        return Targets(server, ())
    if share is not None and not shares:
        raise BadOption("--share", share, "The server does not list it to this recipient.")
    if table is not None:
        found = [listed for listed in found if _is_same_name(".".join(listed.names[1:]), table)]
        if not found:
            raise BadOption("--table", table, "The server does not list such a schema.table.")
    tables = tuple(found[:MAX_TABLES])
    for chosen in tables:
        chosen.others = tuple(other for other in tables if other is not chosen)
    return Targets(server, tables, len(found) - len(tables))


def list_pages(client: Client, path: str, **params: object) -> Iterator[list[dict[str, Any]]]:
    """The pages of a listing, until a page has no token; fails if the tokens do not end."""
    tokens: set[str] = set()
    token = ""
    while not tokens or token:
        response = client.get(path, **params, **({"pageToken": token} if token else {}))
        page = parse_page(response)
        yield page.items
        token = page.next_page_token
        response.expect(token not in tokens and len(tokens) < MAX_PAGES, "tokens that come to an end", token)
        tokens.add(token)


def read_pages(ask: Callable[[Mapping[str, object]], Response]) -> list[Response]:
    """The pages of an answer; `ask` sends the request with the token of the next page."""
    pages = [ask({})]
    while token := pages[-1].end.next_page_token:
        pages.append(ask({"pageToken": token}))
        pages[0].expect(len(pages) < MAX_ANSWER_PAGES, f"fewer than {MAX_ANSWER_PAGES} pages", len(pages))
    return pages


def parse_page(response: Response) -> wire.Page:
    return wire.parse(wire.Page, response.object(), response.where)


def make_path(share: str, schema: str | None = None, table: str | None = None) -> str:
    """The path of a share, a schema or a table."""
    path = f"/shares/{quote(share, safe='')}"
    if schema is not None:
        path += f"/schemas/{quote(schema, safe='')}"
    return path if table is None else f"{path}/tables/{quote(table, safe='')}"


def _is_same_name(name: str, wanted: str | None) -> bool:
    return wanted is None or name.lower() == wanted.lower()
