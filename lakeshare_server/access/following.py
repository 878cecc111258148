"""Following tables: each is read once, numbered, shared, and judged for its clients; many of them at the same time.

The command, SQL and the admin API follow tables by this code.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Literal

from lakeshare_server.access.serveability import ServedTable, TableServeability, provider_view
from lakeshare_server.catalog import Catalog, FollowedTables, SharedTable, TableEntry
from lakeshare_server.catalog.followed import require_table_name
from lakeshare_server.catalog.hand_shares import share_table
from lakeshare_server.catalog.recipients import BY_HAND
from lakeshare_server.errors import BadRequest, CatalogConflict, LakeshareError
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Stores
from lakeshare_server.versions import Versions, found_at, is_many, spelt, table_name_at, tables_at

# Tables that are read at a time: following waits for stores and catalogs.
AT_A_TIME = 16


@dataclass(frozen=True)
class FollowRequest:
    """A table to follow: where it is, and under which `schema.table` it is shared."""

    location: str = ""
    name: str = ""
    share: str = "lake"
    check_every_s: float = 10.0
    start_version: int = 0
    history: bool = True


@dataclass(frozen=True)
class FollowOutcome:
    """What came of a request: the shared table and how clients get it, or the refusal."""

    request: FollowRequest
    location: str
    entry: TableEntry | None = None
    served: ServedTable | None = None
    refusal: LakeshareError | None = None

    @property
    def result(self) -> Literal["followed", "unreadable", "refused"]:
        """Whether the table is followed, and whether some known client can read it."""
        if self.served is None:
            return "refused"
        return "followed" if self.served.clients else "unreadable"

    @property
    def remark(self) -> str:
        """The version and its clients, or why there are none."""
        if self.served is None:
            return str(self.refusal)
        if not self.served.clients:
            return f"no known client can read it: {next(iter(self.served.verdicts.values()))}"
        return f"version {self.served.version.number}, served to {', '.join(self.served.clients)}"

    def as_json(self) -> dict[str, Any]:
        """The outcome as JSON's types."""
        served, request = self.served, self.request
        return {
            "result": self.result,
            "table": f"{request.share}.{request.name}" if self.entry is None else self.entry.path,
            "location": self.location,
            "version": None if served is None else served.version.number,
            "clients": [] if served is None else served.clients,
            "remark": self.remark,
        }


class Following:
    """Follows tables; for many threads."""

    def __init__(
        self,
        catalog: Catalog,
        settings: ServerSettings,
        stores: Stores,
        versions: Versions,
        serveability: TableServeability,
    ) -> None:
        self._catalog, self._settings, self._stores = catalog, settings, stores
        self._versions, self._serveability = versions, serveability
        self._followed = FollowedTables(catalog)
        # Shares are made where they are not there yet: one at a time.
        self._sharing = Lock()

    @classmethod
    def of(cls, catalog: Catalog, settings: ServerSettings) -> "Following":
        """One for a command."""
        stores = Stores(settings)
        versions = Versions(catalog, settings, stores)
        return cls(catalog, settings, stores, versions, TableServeability.of(catalog, settings))

    def requests(
        self, given: Sequence[tuple[str, str | None]], usual: FollowRequest, schema: str | None = None
    ) -> list[FollowRequest]:
        """A request for every table of the locations, each with the name that is given for it.

        What is not said of a table is as in `usual`, whose location and name do not count. Without a name a table is
        named as its location has it, in the given schema.

        Raises:
            BadRequest: a location is of no known form, or holds no table; or a name is given for many tables.
            Unserveable, StoreError, Unavailable: as `tables_at`.
        """
        found: dict[str, FollowRequest] = {}
        for location, name in given:
            tables = tables_at(location, self._stores, self._settings)
            if name is not None and is_many(location):
                raise BadRequest("name", name, f"It names a single table, and {location} stands for many.")
            if not tables:
                raise BadRequest("location", location, "There is no table in it.")
            for table in tables:
                own = table_name_at(table)
                named = name or (own if schema is None else f"{schema}.{own.partition('.')[2]}")
                found.setdefault(table, replace(usual, location=table, name=named))
        return list(found.values())

    def follow(self, request: FollowRequest, by: str = BY_HAND) -> FollowOutcome:
        """Follow a table and share it; again it changes how often it is checked and where it starts.

        Nothing is written for a table that no API can serve. One that was not followed before is followed no more
        when it cannot be shared.

        Raises:
            BadRequest: a name, a number or the location cannot be used.
            Unserveable, StoreError: there is no table at the location, or no API can serve it.
            CatalogConflict: the name is taken, or a contract declares the shared table.
            Unavailable: the store or the catalog does not answer.
        """
        place = spelt(request.location, self._settings)
        known = self._followed.get(request.name)
        if known is None:
            require_table_name("name", request.name)
        identity = found_at(place, self._stores, self._settings)
        self._followed.add(request.name, place, request.check_every_s, request.start_version, identity)
        try:
            self._versions.of(request.name).latest()
            entry = self._share(request, by)
        except LakeshareError:
            if known is None:
                # Its name would be taken, and nobody could read it.
                self._followed.remove(request.name)
            raise
        served = self._serveability.judge(provider_view(entry, self._versions))
        return FollowOutcome(request, place, entry, served)

    def follow_all(self, requests: Sequence[FollowRequest], by: str = BY_HAND) -> Iterator[FollowOutcome]:
        """Follow tables, several at a time; the outcomes in the order of the requests, refusals among them."""
        names: dict[str, str] = {}
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            waiting = []
            for request in requests:
                taken = names.setdefault(request.name.lower(), request.location)
                waiting.append(pool.submit(self._attempt, request, taken, by))
            for outcome in waiting:
                yield outcome.result()

    def _attempt(self, request: FollowRequest, taken: str, by: str) -> FollowOutcome:
        try:
            if taken != request.location:
                raise CatalogConflict(
                    f"{request.name} is the name of {taken} in the same request",
                    "Follow one of the two under another name.",
                )
            return self.follow(request, by)
        except LakeshareError as error:
            return FollowOutcome(request, request.location, refusal=error)

    def _share(self, request: FollowRequest, by: str) -> TableEntry:
        schema, _, table = request.name.partition(".")
        shared = SharedTable(schema, table, request.name, history=request.history)
        with self._sharing:
            return share_table(
                self._catalog, request.share, shared, start_version=request.start_version or None, by=by
            )
