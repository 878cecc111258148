"""Following tables: each is read once, numbered, shared, and judged for its clients; many of them at the same time.

The command, SQL and the admin API follow tables by this code. Files of `lakeshare apply` have theirs read by it, before
their transaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Literal, TypedDict

from lakeshare_server.catalog import Catalog, FollowedTables, SharedTable, TableEntry, open_catalog
from lakeshare_server.catalog.declared.documents import describe_problem, describe_remedy, raise_all
from lakeshare_server.catalog.declared.files import DesiredObject, FoundTable, Key, TableLocation
from lakeshare_server.catalog.declared.plan import Step
from lakeshare_server.catalog.ledger import CHECK_EVERY_S, is_location_pattern, require_table_name
from lakeshare_server.catalog.recipients import LOCAL_OPERATOR
from lakeshare_server.catalog.shares import share_table
from lakeshare_server.catalog.sharing.editing import UNCHANGED, Edit
from lakeshare_server.catalog.sharing.recipients import grant, revoke
from lakeshare_server.catalog.sharing.shares import add_table, alter_share, alter_table, remove_table
from lakeshare_server.catalog.sharing.states import (
    Share,
    SharedObject,
    find_group_row,
    find_recipient_row,
    get_share,
    is_followed,
    list_grants_on,
    list_objects,
    newest_publication_number,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, LakeshareError, NotFound
from lakeshare_server.protocol.admin_requests import DataObject, PermissionsChange, UpdateShare, from_ms
from lakeshare_server.protocol.admin_responses import parse_partitions
from lakeshare_server.provider.serveability import ServedTable, TableServeability, provider_view
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import (
    TableVersions,
    Versions,
    list_tables_at,
    normalise_followed_location,
    read_table_name,
    read_unfollowed,
)

MAX_PARALLEL_READS = 16
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
            tables = list_tables_at(location, self._stores, self._settings)
            if name is not None and is_location_pattern(location):
                raise BadRequest("name", name, f"It names a single table, and {location} stands for many.")
            if not tables:
                raise BadRequest("location", location, "There is no table in it.")
            for table in tables:
                own = read_table_name(table)
                named = name or (own if schema is None else f"{schema}.{own.partition('.')[2]}")
                found.setdefault(table, replace(usual, location=table, name=named))
        return list(found.values())

    def follow(self, request: FollowRequest, by: str = LOCAL_OPERATOR) -> FollowOutcome:
        """Follow a table and share it; again it changes how often it is checked and where it starts.

        Nothing is written for a table that no API can serve. One that was not followed before is followed no more
        when it cannot be shared.

        Raises:
            BadRequest: a name, a number or the location cannot be used.
            Unserveable, StoreError: there is no table at the location, or no API can serve it.
            CatalogConflict: the name is taken, or a contract declares the shared table.
            Unavailable: the store or the catalog does not answer.
        """
        place = normalise_followed_location(request.location, self._settings)
        known = self._followed.get(request.name)
        if known is None:
            require_table_name("name", request.name)
        identity = read_unfollowed(place, self._stores, self._settings)
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

    def follow_all(
        self, requests: Sequence[FollowRequest], by: str = LOCAL_OPERATOR
    ) -> Iterator[FollowOutcome]:
        """Follow tables, several at a time; the outcomes in the order of the requests, refusals among them."""
        names: dict[str, str] = {}
        with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
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
            tables = list_tables_at(location, stores, settings)
        except LakeshareError as error:
            return error
        return [TableLocation(table, read_table_name(table).partition(".")[2]) for table in tables]

    with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
        return list(pool.map(find, locations))


class FollowPrefetch:
    """Reads the tables that files are about to follow, before the transaction that writes them.

    They are followed in a catalog of their own that lasts as long as the command: read, numbered and judged by the code
    that follows tables, with the same refusals, and with nothing written to the real catalog.
    """

    def __init__(self, settings: ServerSettings, versions: Versions) -> None:
        self._settings, self._versions = settings, versions
        self._ahead: Versions | None = None
        self._names: frozenset[str] = frozenset()
        self._open = ExitStack()

    def __enter__(self) -> "FollowPrefetch":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, wanted: Mapping[Key, DesiredObject], steps: Iterable[Step]) -> dict[Key, DesiredObject]:
        """What is wanted, with what was found of each table that the steps are to follow.

        Raises:
            DocumentError: a table cannot be followed; its `also` holds all further refusals.
        """
        new = [
            step.desired
            for step in steps
            if (step.kind, step.verb) == ("followed", "create") and step.desired
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
                problem = f"{outcome.location} cannot be followed as {one.name}: {describe_problem(outcome.refusal)}"
                faults.append(one.origin.fault(problem, describe_remedy(outcome.refusal)))
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


def prefetch_versions(
    catalog: Catalog, versions: Versions, share: str, tables: Iterable[str], *, writes_rule: bool
) -> None:
    """Find the versions of the tables that rules will be held against: those of the share, and those to come.

    Raises:
        Unavailable: the catalog or the files of a table cannot be read now.
    """
    with catalog.reading() as session:
        try:
            is_needed = writes_rule or any(grant.rule for grant in list_grants_on(session, share))
            concerned = {one.table for one in list_objects(session, share)} | set(tables)
        except NotFound:
            # The edit may make it; if not, whoever edits is told so by the operation.
            is_needed, concerned = writes_rule, set(tables)
        followed = sorted(table for table in concerned if is_needed and is_followed(session, table))
    _find(versions, followed)


def prefetch_all_versions(catalog: Catalog, versions: Versions, tables: Set[str]) -> None:
    """Find the versions of those of the tables that are followed: any number of tables, in one query.

    Raises:
        Unavailable: the catalog or the files of a table cannot be read now.
    """
    _find(versions, sorted(one.table for one in FollowedTables(catalog).list() if one.table in tables))


def _find(versions: Versions, followed: Iterable[str]) -> None:
    for table in followed:
        try:
            versions.of(table).latest()
        except NotFound:
            continue


OF_SHARE = ("new_name", "comment", "owner", "display_name", "properties")


def update_share(edit: Edit, name: str, wanted: UpdateShare, revision: int | None) -> Share:
    """Do all that an update of a share asks for.

    Raises:
        NotFound: there is no such share, or no such table in it.
        BadRequest: a value cannot be used, or does not say which table is meant.
        CatalogConflict: an alias or the new name is taken, the revision is another, or a contract declares it.
    """
    fields = {field: getattr(wanted, field) for field in OF_SHARE if wanted.has(field)}
    if fields.get("new_name", "") is None:
        raise BadRequest("new_name", None, "Give a name, or leave it out.")
    # The first operation compares the revision; those behind it see the edits of those before.
    if fields:
        name, revision = alter_share(edit, name, **fields, revision=revision).name, None
    for number, update in enumerate(wanted.updates):
        _Update(edit, name, update.data_object, f"updates.{number}.data_object").do(update.action, revision)
        revision = None
    return get_share(edit.session, name)


@dataclass(frozen=True)
class _Update:
    edit: Edit
    share: str
    wanted: DataObject
    field: str

    def do(self, action: Literal["ADD", "REMOVE", "UPDATE"], revision: int | None) -> None:
        """Add, remove or alter the table that is meant."""
        if action == "ADD":
            add_table(self.edit, self.share, self._new(), revision=revision)
            return
        found = self._found(may_rename=action == "UPDATE")
        place = self.edit, self.share, found.schema, found.name
        if action == "REMOVE":
            remove_table(*place, revision=revision)
        else:
            alter_table(*place, **self._changes(found), revision=revision)

    def _new(self) -> SharedObject:
        schema, name = self._alias() or self._own_alias()
        return SharedObject(
            schema=schema,
            name=name,
            table=self.wanted.name,
            kind=self.wanted.data_object_type or "TABLE",
            comment=self.wanted.comment or None,
            history=self._history() or False,
            start_version=self._start_version(self.wanted.name, begins=self._history() or False),
            rule=self._rule(),
            publication=self.wanted.publication,
        )

    def _changes(self, found: SharedObject) -> dict[str, Any]:
        wanted = self.wanted
        schema, name = self._alias() or (UNCHANGED, UNCHANGED)
        history = self._history()
        begins = history is True and not found.history
        start = self._start_version(found.table, begins=begins)
        return {
            "new_schema": schema,
            "new_name": name,
            "kind": wanted.data_object_type or UNCHANGED,
            "comment": (wanted.comment or None) if wanted.has("comment") else UNCHANGED,
            "history": UNCHANGED if history is None else history,
            "start_version": start if begins or wanted.has("start_version") else UNCHANGED,
            "rule": self._rule() if wanted.has("rule") or wanted.has("partitions") else UNCHANGED,
            "publication": wanted.publication if wanted.has("publication") else UNCHANGED,
        }

    def _found(self, *, may_rename: bool) -> SharedObject:
        """The one shared table that is meant: by its table of the lake, and by its alias where there are several."""
        of_share = list_objects(self.edit.session, self.share)
        same = [one for one in of_share if one.table.lower() == self.wanted.name.lower()]
        alias = self.wanted.shared_as
        named = [one for one in same if alias and f"{one.schema}.{one.name}".lower() == alias.lower()]
        found = named or (same if may_rename or alias is None else [])
        if not found:
            raise NotFound("Shared table", f"{self.wanted.name} of {self.share}")
        if len(found) > 1:
            names = ", ".join(f"{one.schema}.{one.name}" for one in found)
            raise BadRequest(f"{self.field}.shared_as", alias, f"The table is shared as {names}: say which.")
        return found[0]

    def _alias(self) -> tuple[str, str] | None:
        if self.wanted.shared_as is None:
            return None
        schema, dot, name = self.wanted.shared_as.partition(".")
        if not dot:
            hint = "Give two parts, the schema and the table as recipients see them."
            raise BadRequest(f"{self.field}.shared_as", self.wanted.shared_as, hint)
        return schema, name

    def _own_alias(self) -> tuple[str, str]:
        parts = self.wanted.name.split(".")
        if len(parts) < 2:
            hint = "Name the table as `schema.table`, or give it an alias by shared_as."
            raise BadRequest(f"{self.field}.name", self.wanted.name, hint)
        return parts[-2], parts[-1]

    def _history(self) -> bool | None:
        if self.wanted.history_data_sharing_status is not None:
            return self.wanted.history_data_sharing_status == "ENABLED"
        return self.wanted.cdf_enabled

    def _start_version(self, table: str, *, begins: bool) -> int | None:
        """The oldest version that recipients may read: where history begins, the one of today, if no other is named."""
        if self.wanted.start_version is not None or not begins:
            return self.wanted.start_version
        if is_followed(self.edit.session, table):
            hint = "Say from which version of the followed table on recipients may read; 0 is all of them."
            raise BadRequest(f"{self.field}.start_version", None, hint)
        return newest_publication_number(self.edit.session, table)

    def _rule(self) -> str | None:
        by_partitions = parse_partitions(self.wanted.partitions or [])
        if self.wanted.rule and by_partitions:
            raise BadRequest(f"{self.field}.rule", self.wanted.rule, "Give it or partitions, not both.")
        return self.wanted.rule or by_partitions


GROUP = "group:"


class Reader(TypedDict):
    """Who reads, as the operations are told: one of the two."""

    recipient: str | None
    group: str | None


def change_permissions(
    edit: Edit, name: str, changes: Sequence[PermissionsChange], revision: int | None
) -> int:
    """Grant and revoke as asked; revoking what is not granted is no error. Returns the share's revision.

    Raises:
        NotFound: there is no such share, recipient or group.
        BadRequest: a change contradicts itself, or a time or rule cannot be used.
        CatalogConflict: the share's revision is another.
    """
    for number, change in enumerate(changes):
        if change.add and change.remove:
            raise BadRequest(f"changes.{number}", change.principal, "Add or remove, not both.")
        reader = _reader(edit, change.principal)
        is_granted = _is_granted(edit, name, reader)
        # The first operation compares the revision; those behind it see the edits of those before.
        if change.add and (_has_extra_terms(change) or not is_granted):
            times = {"starts_at": from_ms(change.starts_at), "ends_at": from_ms(change.ends_at)}
            grant(edit, name, **reader, **times, rule=change.rule or None, revision=revision)
            revision = None
        if change.remove and is_granted:
            revoke(edit, name, **reader, revision=revision)
            revision = None
    return get_share(edit.session, name).revision


def _has_extra_terms(change: PermissionsChange) -> bool:
    """Whether it sets what the Databricks API does not know of; granting again without it leaves that as it is."""
    return change.has("starts_at") or change.has("ends_at") or change.has("rule")


def _is_granted(edit: Edit, name: str, reader: Reader) -> bool:
    return any(
        (one.recipient, one.group) == (reader["recipient"], reader["group"])
        for one in list_grants_on(edit.session, name)
    )


def _reader(edit: Edit, principal: str) -> Reader:
    if principal.startswith(GROUP):
        name = find_group_row(edit.session, principal.removeprefix(GROUP)).name
        return {"recipient": None, "group": name}
    return {"recipient": find_recipient_row(edit.session, principal).name, "group": None}
