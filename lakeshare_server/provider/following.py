"""Following tables: each is read once, numbered, shared, and judged for its clients; several at the same time.

Used by the command, SQL, the admin API, and `lakeshare apply`, which reads the tables before its transaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Literal

from lakeshare_server.catalog import (
    Catalog,
    FollowedTables,
    Ledger,
    SharedTable,
    open_catalog,
    require_shareable,
    share_table,
    states,
)
from lakeshare_server.catalog.declared.documents import explain_error, raise_all
from lakeshare_server.catalog.declared.files import DesiredObject, FoundTable, Key, TableLocation
from lakeshare_server.catalog.declared.plan import Step
from lakeshare_server.catalog.ledger import CHECK_EVERY_S, is_location_pattern, require_table_name
from lakeshare_server.catalog.sharing import (
    LOCAL_OPERATOR,
    Edit,
    add_table,
    alter_share,
    alter_table,
    grant,
    remove_table,
    revoke,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, LakeshareError, NotFound
from lakeshare_server.iceberg_rest.tables import IcebergTables
from lakeshare_server.protocol.admin import (
    DataObject,
    PermissionsChange,
    UpdateShare,
    from_ms,
    parse_partitions,
)
from lakeshare_server.provider.serveability import ServedTable, TableServeability, provider_view
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores
from lakeshare_server.versions import (
    TableVersions,
    Versions,
    list_tables_at,
    normalise_followed_location,
    read_table_name,
    read_unfollowed,
)

MAX_PARALLEL_READS = 16
# A table that was read for a file is not read again until the file is applied.
READ_ONCE_S = 86_400.0


@dataclass(frozen=True)
class FollowRequest:
    """A table to follow, and the `schema.table` that it is shared as."""

    location: str = ""
    name: str = ""
    share: str = "lake"
    check_every_s: float = CHECK_EVERY_S
    start_version: int = 0
    history: bool = True


@dataclass(frozen=True)
class FollowOutcome:
    """The result of a request: the shared table and its clients, or the refusal."""

    request: FollowRequest
    location: str
    entry: SharedTable | None = None
    served: ServedTable | None = None
    refusal: LakeshareError | None = None

    @property
    def result(self) -> Literal["followed", "unreadable", "refused"]:
        """Whether the table is followed, and whether a known client can read it."""
        if self.served is None:
            return "refused"
        return "followed" if self.served.clients else "unreadable"

    @property
    def remark(self) -> str:
        """The version and its clients, or the reason why there are none."""
        if self.served is None:
            return str(self.refusal)
        number = f"version {self.served.version.number}, " if self.served.clients else ""
        return f"{number}{self.clients}"

    @property
    def clients(self) -> str:
        """The clients that can read the table, or the reason why none can."""
        if self.served is None:
            return str(self.refusal)
        if not self.served.clients:
            return f"no known client can read it: {next(iter(self.served.verdicts.values()))}"
        return f"served to {', '.join(self.served.clients)}"

    def as_json(self) -> dict[str, Any]:
        served, request = self.served, self.request
        return {
            "result": self.result,
            "table": f"{request.share}.{request.name}" if self.entry is None else self.entry.path,
            "location": self.location,
            "version": None if served is None else served.version.number,
            "clients": [] if served is None else served.clients,
            "remark": self.remark,
        }


@dataclass(frozen=True)
class Provider:
    """The catalog and the settings that commands and statements work on, and what they open."""

    catalog: Catalog
    settings: ServerSettings

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.catalog)

    @cached_property
    def versions(self) -> Versions:
        return Versions(self.catalog, self.settings, self.stores)

    @cached_property
    def stores(self) -> Stores:
        return Stores(self.settings)

    @property
    def signers(self) -> Signers:
        """For questions about the stores: nothing is signed with its key."""
        return Signers(self.settings, LocalSigner(b"", self.settings.base_url()), self.stores)

    @property
    def serveability(self) -> TableServeability:
        return TableServeability(IcebergTables(self.catalog, self.stores), self.signers, self.settings)

    @cached_property
    def following(self) -> "Following":
        return Following(self.catalog, self.settings, self.stores, self.versions, self.serveability)

    def latest_version(self, table: str) -> int | None:
        """The number of the latest publication of a table; None before the first."""
        latest = self.ledger.latest(table)
        return None if latest is None else latest.version

    def tables_of(self, schema: str) -> list[str]:
        """Lists the published tables of a schema of the lake; raises BadRequest if it has none."""
        published = self.ledger.tables()
        tables = [table for table in published if table.lower().startswith(f"{schema.lower()}.")]
        if not tables:
            schemas = sorted({table.rpartition(".")[0] for table in published})
            hint = f"Schemas with published tables: {', '.join(schemas) or 'none'}."
            raise BadRequest("schema", schema, hint)
        return tables


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
        # One at a time, because shares are created if they are missing.
        self._sharing = Lock()

    def requests(
        self, given: Sequence[tuple[str, str | None]], defaults: FollowRequest, schema: str | None = None
    ) -> list[FollowRequest]:
        """A request for every table of the locations, each of which may have a name.

        Other fields are those of `defaults`. The default name is the location's, in the given schema.

        Raises:
            BadRequest: a location has an unknown form, or no table; or a name is given for several tables.
            Unserveable, StoreError, Unavailable: as `list_tables_at`.
        """
        requests: dict[str, FollowRequest] = {}
        for location, name in given:
            tables = list_tables_at(location, self._stores, self._settings)
            if name is not None and is_location_pattern(location):
                raise BadRequest("name", name, f"It names a single table, and {location} stands for many.")
            if not tables:
                raise BadRequest("location", location, "There is no table in it.")
            for table in tables:
                own = read_table_name(table)
                named = name or (own if schema is None else f"{schema}.{own.partition('.')[2]}")
                requests.setdefault(table, replace(defaults, location=table, name=named))
        return list(requests.values())

    def follow(self, request: FollowRequest, by: str = LOCAL_OPERATOR) -> FollowOutcome:
        """Follow a table and share it; for a followed table, changes the check interval and the first version.

        Nothing is written for a table that no API can serve, or that cannot be shared.

        Raises:
            BadRequest: a name, a number or the location cannot be used.
            Unserveable, StoreError: there is no table at the location, or no API can serve it.
            CatalogConflict: the name is taken, or a contract declares the shared table.
        """
        place = normalise_followed_location(request.location, self._settings)
        known = self._followed.get(request.name)
        if known is None:
            require_table_name("name", request.name)
        with self._catalog.reading() as session:
            # Before the table is followed: its versions would stay in the ledger.
            require_shareable(session, request.share, _shared_table(request))
        identity = read_unfollowed(place, self._stores, self._settings)
        self._followed.add(request.name, place, request.check_every_s, request.start_version, identity, by)
        try:
            self._versions.of(request.name).latest()
            entry = self._share(request, by)
        except LakeshareError:
            if known is None:
                # Otherwise its name would be taken by a table that is not shared.
                self._followed.remove(request.name, by)
            raise
        served = self._serveability.judge(provider_view(entry, self._versions))
        return FollowOutcome(request, place, entry, served)

    def follow_all(
        self, requests: Sequence[FollowRequest], by: str = LOCAL_OPERATOR
    ) -> Iterator[FollowOutcome]:
        """Follow tables, several at a time; the outcomes are in the order of the requests, refusals included."""
        names: dict[str, str] = {}
        with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
            outcomes = []
            for request in requests:
                taken = names.setdefault(request.name.lower(), request.location)
                outcomes.append(pool.submit(self._follow_or_refuse, request, taken, by))
            for outcome in outcomes:
                yield outcome.result()

    def _follow_or_refuse(self, request: FollowRequest, taken: str, by: str) -> FollowOutcome:
        try:
            if taken != request.location:
                raise CatalogConflict(
                    f"{request.name} is the name of {taken} in the same request",
                    "Follow one of the two under another name.",
                )
            return self.follow(request, by)
        except LakeshareError as error:
            return FollowOutcome(request, request.location, refusal=error)

    def _share(self, request: FollowRequest, by: str) -> SharedTable:
        table, start = _shared_table(request), request.start_version or None
        with self._sharing:
            return share_table(self._catalog, request.share, table, start_version=start, by=by)


def _shared_table(request: FollowRequest) -> SharedTable:
    schema, _, table = request.name.partition(".")
    return SharedTable(schema, table, request.name, history=request.history)


def find_tables(
    settings: ServerSettings, locations: Sequence[str]
) -> list[list[TableLocation] | LakeshareError]:
    """The tables of each location, several locations at a time; a refusal in place of its tables."""
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
    """Reads the tables that files are about to follow, in a temporary catalog, before the transaction of the files."""

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
        """The wanted objects, with the result of reading each table that the steps follow; raises `DocumentError`."""
        followed = (step.desired for step in steps if (step.kind, step.verb) == ("followed", "create"))
        new = [table for table in followed if table]
        if not new:
            return dict(wanted)
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="lakeshare-apply-")))
        catalog = open_catalog(f"sqlite:///{folder / 'ahead.db'}")
        self._open.callback(catalog.close)
        ahead = Provider(catalog, self._settings)
        self._ahead = ahead.versions
        self._names = frozenset(table.name for table in new)
        request = FollowRequest(check_every_s=READ_ONCE_S)
        requests = [replace(request, location=str(t.fields["location"]), name=t.name) for t in new]
        read, faults = dict(wanted), []
        for table, outcome in zip(new, ahead.following.follow_all(requests), strict=True):
            if outcome.refusal is not None and table.origin is not None:
                problem, remedy = explain_error(outcome.refusal)
                what = f"{outcome.location} cannot be followed as {table.name}: {problem}"
                faults.append(table.origin.fault(what, remedy))
            known = FollowedTables(catalog).get(table.name)
            if known is not None:
                read[table.key] = replace(table, found=FoundTable(known.iceberg, outcome.clients))
        raise_all(faults)
        return read

    def of(self, table: str) -> TableVersions:
        """The versions of a lake table, or of a table that is about to be followed."""
        if self._ahead is not None and table in self._names:
            return self._ahead.of(table)
        return self._versions.of(table)


def prefetch_versions(
    catalog: Catalog, versions: Versions, share: str, tables: Iterable[str], *, writes_rule: bool
) -> None:
    """Load the versions of the followed tables that rules are checked against: of the share, and of `tables`."""
    with catalog.reading() as session:
        try:
            is_needed = writes_rule or any(grant.rule for grant in states.list_grants(session, share=share))
            concerned = {shared.table for shared in states.list_objects(session, share)} | set(tables)
        except NotFound:
            # The edit may create the share; if not, the operation reports it.
            is_needed, concerned = writes_rule, set(tables)
    if is_needed:
        prefetch_all_versions(catalog, versions, concerned)


def prefetch_all_versions(catalog: Catalog, versions: Versions, tables: Set[str]) -> None:
    """Load the versions of those of the tables that are followed; raises as `prefetch_versions`."""
    for table in sorted(entry.table for entry in FollowedTables(catalog).list() if entry.table in tables):
        with suppress(NotFound):
            versions.of(table).latest()


def update_share(edit: Edit, name: str, wanted: UpdateShare, revision: int | None) -> states.Share:
    """Apply all fields and table updates of an UpdateShare request.

    Raises:
        NotFound: the share, or a table in it, does not exist.
        BadRequest: a value cannot be used, or does not identify one table.
        CatalogConflict: an alias or the new name is taken, the revision differs, or a contract declares the share.
    """
    fields = wanted.fields(exclude={"updates"})
    if fields.get("new_name", "") is None:
        raise BadRequest("new_name", None, "Give a name, or leave it out.")
    # The first operation compares the revision; later ones see the edits of those before.
    if fields:
        name, revision = alter_share(edit, name, **fields, revision=revision).name, None
    for number, update in enumerate(wanted.updates):
        update_table = _TableUpdate(edit, name, update.data_object, f"updates.{number}.data_object")
        update_table.apply(update.action, revision)
        revision = None
    return states.get_share(edit.session, name)


@dataclass(frozen=True)
class _TableUpdate:
    edit: Edit
    share: str
    wanted: DataObject
    field: str

    def apply(self, action: Literal["ADD", "REMOVE", "UPDATE"], revision: int | None) -> None:
        if action == "ADD":
            add_table(self.edit, self.share, self._make_object(), revision=revision)
            return
        shared = self._find_object(may_rename=action == "UPDATE")
        target = self.edit, self.share, shared.schema, shared.name
        if action == "REMOVE":
            remove_table(*target, revision=revision)
        else:
            alter_table(*target, **self._changes(shared), revision=revision)

    def _make_object(self) -> states.SharedTable:
        parts, alias = self.wanted.name.split("."), self._alias()
        if alias is None and len(parts) < 2:
            hint = "Name the table as `schema.table`, or give it an alias by shared_as."
            raise BadRequest(f"{self.field}.name", self.wanted.name, hint)
        schema, name = alias or (parts[-2], parts[-1])
        fields = {"history": False} | self._fields(self.wanted.name, had_history=False)
        return states.SharedTable(schema=schema, name=name, table=self.wanted.name, **fields)

    def _changes(self, shared: states.SharedTable) -> dict[str, Any]:
        alias, fields = self._alias(), self._fields(shared.table, had_history=shared.history)
        return fields if alias is None else {"new_schema": alias[0], "new_name": alias[1], **fields}

    def _fields(self, table: str, *, had_history: bool) -> dict[str, Any]:
        """The fields that were sent; history that begins to be shared has a first version."""
        wanted, history = self.wanted, self._history()
        begins = history is True and not had_history
        given = {"kind": wanted.data_object_type, "history": history}
        fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if wanted.has("comment"):
            fields["comment"] = wanted.comment or None
        if begins or wanted.has("start_version"):
            fields["start_version"] = self._start_version(table, begins=begins)
        if wanted.has("rule") or wanted.has("partitions"):
            fields["rule"] = self._rule()
        return fields | ({"publication": wanted.publication} if wanted.has("publication") else {})

    def _find_object(self, *, may_rename: bool) -> states.SharedTable:
        """The shared table with the given lake table, and with the given alias if there are several."""
        objects = states.list_objects(self.edit.session, self.share)
        same = [shared for shared in objects if shared.table.lower() == self.wanted.name.lower()]
        alias = self.wanted.shared_as
        named = [s for s in same if alias and s.alias.lower() == alias.lower()]
        candidates = named or (same if may_rename or alias is None else [])
        if not candidates:
            raise NotFound("Shared table", f"{self.wanted.name} of {self.share}")
        if len(candidates) > 1:
            names = ", ".join(shared.alias for shared in candidates)
            raise BadRequest(f"{self.field}.shared_as", alias, f"The table is shared as {names}: say which.")
        return candidates[0]

    def _alias(self) -> tuple[str, str] | None:
        if self.wanted.shared_as is None:
            return None
        schema, dot, name = self.wanted.shared_as.partition(".")
        if not dot:
            hint = "Give two parts, the schema and the table as recipients see them."
            raise BadRequest(f"{self.field}.shared_as", self.wanted.shared_as, hint)
        return schema, name

    def _history(self) -> bool | None:
        if self.wanted.history_data_sharing_status is not None:
            return self.wanted.history_data_sharing_status == "ENABLED"
        return self.wanted.cdf_enabled

    def _start_version(self, table: str, *, begins: bool) -> int | None:
        """The first version for recipients: the given one, else the newest one when history begins to be shared."""
        if self.wanted.start_version is not None or not begins:
            return self.wanted.start_version
        if states.is_followed(self.edit.session, table):
            hint = "Say from which version of the followed table on recipients may read; 0 is all of them."
            raise BadRequest(f"{self.field}.start_version", None, hint)
        return states.newest_publication_number(self.edit.session, table)

    def _rule(self) -> str | None:
        by_partitions = parse_partitions(self.wanted.partitions or [])
        if self.wanted.rule and by_partitions:
            raise BadRequest(f"{self.field}.rule", self.wanted.rule, "Give it or partitions, not both.")
        return self.wanted.rule or by_partitions


GROUP = "group:"


def change_permissions(
    edit: Edit, name: str, changes: Sequence[PermissionsChange], revision: int | None
) -> int:
    """Grant and revoke; revoking a missing grant is no error. Returns the share's revision.

    Raises:
        NotFound: the share, a recipient or a group does not exist.
        BadRequest: a change contradicts itself, or a time or rule cannot be used.
        CatalogConflict: the share's revision differs.
    """
    for number, change in enumerate(changes):
        if change.add and change.remove:
            raise BadRequest(f"changes.{number}", change.principal, "Add or remove, not both.")
        reader = _find_reader(edit, change.principal)
        is_granted = any(
            (row.recipient, row.group) == (reader["recipient"], reader["group"])
            for row in states.list_grants(edit.session, share=name)
        )
        # Terms that the Databricks API does not have; a grant without them leaves existing terms as they are.
        has_terms = change.has("starts_at") or change.has("ends_at") or change.has("rule")
        # The first operation compares the revision; later ones see the edits of those before.
        if change.add and (has_terms or not is_granted):
            times: dict[str, Any] = {
                "starts_at": from_ms(change.starts_at),
                "ends_at": from_ms(change.ends_at),
            }
            grant(edit, name, **reader, **times, rule=change.rule or None, revision=revision)
            revision = None
        if change.remove and is_granted:
            revoke(edit, name, **reader, revision=revision)
            revision = None
    return states.get_share(edit.session, name).revision


def _find_reader(edit: Edit, principal: str) -> dict[str, Any]:
    """The reader as arguments of the operations; one of the two is None."""
    if principal.startswith(GROUP):
        name = states.find_group_row(edit.session, principal.removeprefix(GROUP)).name
        return {"recipient": None, "group": name}
    return {"recipient": states.find_recipient_row(edit.session, principal).name, "group": None}
