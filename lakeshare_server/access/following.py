"""Following tables: each is read once, numbered, shared, and judged for its clients; many of them at the same time.

The command, SQL and the admin API follow tables by this code. Files of `lakeshare apply` have theirs read by it, before
their transaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Literal

from lakeshare_server.access.serveability import ServedTable, TableServeability, provider_view
from lakeshare_server.catalog import Catalog, FollowedTables, SharedTable, TableEntry, open_catalog
from lakeshare_server.catalog.declared.faults import problem_of, raise_all, remedy_of
from lakeshare_server.catalog.declared.objects import FoundTable, Key, TableLocation, Wanted
from lakeshare_server.catalog.declared.planning import Step
from lakeshare_server.catalog.followed import CHECK_EVERY_S, is_many, require_table_name
from lakeshare_server.catalog.hand_shares import share_table
from lakeshare_server.catalog.recipients import BY_HAND
from lakeshare_server.errors import BadRequest, CatalogConflict, LakeshareError
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Stores
from lakeshare_server.versions import TableVersions, Versions, found_at, spelt, table_name_at, tables_at

# Tables that are read at a time: following waits for stores and catalogs.
AT_A_TIME = 16
# A table that was read for a file is not looked at again until the file is applied.
READ_ONCE_S = 86_400.0


@dataclass(frozen=True)
class FollowRequest:
    """A table to follow: where it is, and under which `schema.table` it is shared."""

    location: str = ""
    name: str = ""
    share: str = "lake"
    check_every_s: float = CHECK_EVERY_S
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
        number = f"version {self.served.version.number}, " if self.served.clients else ""
        return f"{number}{self.clients}"

    @property
    def clients(self) -> str:
        """The clients that can read the table, or why none can."""
        if self.served is None:
            return str(self.refusal)
        if not self.served.clients:
            return f"no known client can read it: {next(iter(self.served.verdicts.values()))}"
        return f"served to {', '.join(self.served.clients)}"

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
        self._followed.add(request.name, place, request.check_every_s, request.start_version, identity, by)
        try:
            self._versions.of(request.name).latest()
            entry = self._share(request, by)
        except LakeshareError:
            if known is None:
                # Its name would be taken, and nobody could read it.
                self._followed.remove(request.name, by)
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


def find_tables(
    settings: ServerSettings, locations: Sequence[str]
) -> list[list[TableLocation] | LakeshareError]:
    """The tables of locations, several of which are looked into at a time; a refusal in the place of its tables."""
    stores = Stores(settings)

    def find(location: str) -> list[TableLocation] | LakeshareError:
        try:
            tables = tables_at(location, stores, settings)
        except LakeshareError as error:
            return error
        return [TableLocation(table, table_name_at(table).partition(".")[2]) for table in tables]

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(find, locations))


class FollowingAhead:
    """Reads the tables that files are about to follow, before the transaction that writes them.

    They are followed in a catalog of their own that lasts as long as the command: read, numbered and judged by the code
    that follows tables, with the same refusals, and with nothing written to the real catalog.
    """

    def __init__(self, settings: ServerSettings, versions: Versions) -> None:
        self._settings, self._versions = settings, versions
        self._ahead: Versions | None = None
        self._names: frozenset[str] = frozenset()
        self._open = ExitStack()

    def __enter__(self) -> "FollowingAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, wanted: Mapping[Key, Wanted], steps: Iterable[Step]) -> dict[Key, Wanted]:
        """What is wanted, with what was found of each table that the steps are to follow.

        Raises:
            DocumentError: a table cannot be followed; its `also` holds all further refusals.
        """
        new = [
            step.wanted for step in steps if (step.kind, step.verb) == ("followed", "create") and step.wanted
        ]
        if not new:
            return dict(wanted)
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="lakeshare-apply-")))
        catalog = open_catalog(f"sqlite:///{folder / 'ahead.db'}")
        self._open.callback(catalog.close)
        stores = Stores(self._settings)
        self._ahead = Versions(catalog, self._settings, stores)
        self._names = frozenset(one.name for one in new)
        judging = TableServeability.of(catalog, self._settings)
        following = Following(catalog, self._settings, stores, self._ahead, judging)
        requests = [
            FollowRequest(str(one.fields["location"]), one.name, check_every_s=READ_ONCE_S) for one in new
        ]
        found, faults = dict(wanted), []
        for one, outcome in zip(new, following.follow_all(requests), strict=True):
            if outcome.refusal is not None and one.origin is not None:
                problem = (
                    f"{outcome.location} cannot be followed as {one.name}: {problem_of(outcome.refusal)}"
                )
                faults.append(one.origin.fault(problem, remedy_of(outcome.refusal)))
            followed = FollowedTables(catalog).get(one.name)
            if followed is not None:
                found[one.key] = replace(one, found=FoundTable(followed.iceberg, outcome.clients))
        raise_all(faults)
        return found

    def of(self, table: str) -> TableVersions:
        """The versions of a lake table; also of one that is about to be followed."""
        if self._ahead is not None and table in self._names:
            return self._ahead.of(table)
        return self._versions.of(table)
