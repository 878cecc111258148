"""A recipient's view of one table: grant, then version, then rule, then the files' index; one place for each.

A request passes here or it gets nothing. What is shared but was never published is not there yet.
"""

import json
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from lakeshare_server.access.rules import combine_rules
from lakeshare_server.catalog import (
    AsyncQueries,
    Catalog,
    Claim,
    GenerationCache,
    GrantedTable,
    Listings,
    Reader,
    TableEntry,
)
from lakeshare_server.errors import BadRequest, LakeshareError, NotFound, Unavailable, Unserveable
from lakeshare_server.protocol.lines import URLS_ONLY, DirectoryAccess
from lakeshare_server.protocol.requests import (
    ChangesRequest,
    QueryRequest,
    TimePoint,
    format_iso,
    parse_query,
)
from lakeshare_server.storage import Signers
from lakeshare_server.tables.delta.changes import ADVICE, VersionChanges, restrict_changes
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.predicates import EVERYTHING, Predicate
from lakeshare_server.tables.restrictions import (
    Undecided,
    find_renamed_column,
    find_undecided_in_index,
    restrict_index,
)
from lakeshare_server.tables.snapshot import TableHead
from lakeshare_server.versions import PinnedSnapshot, TableVersions, Version, Versions, VersionsUntil

MAX_CACHED_VIEWS = 1 << 15


class TableViews:
    """Looks at the catalog for recipients; what was seen is kept until the catalog changes."""

    def __init__(self, catalog: Catalog, versions: Versions) -> None:
        self._catalog, self._versions = catalog, versions
        self._seen = GenerationCache[TableView](catalog, MAX_CACHED_VIEWS, TableView.is_over)

    def peek(
        self, reader: Reader, share: str, schema: str, table: str, generation: int
    ) -> "TableView | None":
        """A granted table, if it was looked at in this generation; never waits."""
        return self._seen.peek(_key(reader, share, schema, table), generation)

    def table(
        self, reader: Reader, share: str, schema: str, table: str, generation: int | None = None
    ) -> "TableView":
        """A table the recipient was granted.

        Raises:
            NotFound: unknown or not granted, which look the same.
        """

        def look() -> TableView:
            return self._view(Listings(self._catalog, reader.id).table(share, schema, table))

        return self._seen.get(_key(reader, share, schema, table), look, generation)

    def table_of_id(self, reader: Reader, table_id: str) -> "TableView":
        """The same by the id of the shared table, not kept here.

        Raises:
            NotFound: it is not shared with the recipient any more.
        """
        return self._view(Listings(self._catalog, reader.id).table_of_id(table_id))

    def _view(self, found: GrantedTable) -> "TableView":
        entry, versions = found.entry, self._versions.of(found.entry.lake_table)
        if entry.publication is not None:
            versions = VersionsUntil(versions, entry.publication)
        rule = combine_rules(entry.rule, found.grant)
        return TableView(entry, versions, rule, found.grant.valid_until, versions.services())


@dataclass(frozen=True)
class TableView:
    """What one recipient may read of one table."""

    entry: TableEntry
    versions: TableVersions
    # True for every row that may be read, for the table's and the grants' own restrictions together.
    rule: Predicate = EVERYTHING
    valid_until: datetime | None = None
    # The stores and catalogs outside of this process that the table is read from.
    services: Sequence[str] = ()

    @property
    def is_restricted(self) -> bool:
        """Whether the recipient may read some rows only."""
        return self.rule != EVERYTHING

    @property
    def restriction(self) -> str | None:
        """What tells the rule from every other one; None when there is none."""
        return repr(self.rule) if self.is_restricted else None

    def is_over(self) -> bool:
        """Whether a grant has begun or ended since it was looked at."""
        return self.valid_until is not None and self.valid_until <= datetime.now(UTC)

    def latest(self) -> Version:
        """The version read when none is asked for.

        Raises:
            NotFound: nothing was published yet.
        """
        try:
            return self.versions.latest()
        except NotFound as error:
            entry = self.entry
            name = f"{entry.share.name}/{entry.schema}/{entry.name}"
            raise NotFound("[Share/Schema/Table]", name) from error

    def requested_version(self, query: QueryRequest) -> Version:
        """The version of a snapshot query.

        Raises:
            NotFound, BadRequest: as the three ways to ask say.
        """
        if query.version is not None:
            return self.at_version(query.version)
        return self.latest() if query.timestamp is None else self.at_timestamp(query.timestamp)

    def at_version(self, number: int) -> Version:
        """A version by its number.

        Raises:
            BadRequest: there is no such version, or the recipient may not read earlier ones.
        """
        self._require_history("version", number)
        self._require_started(number, "data")
        return self._existing("version", number)

    def version_for_page(self, query: QueryRequest, number: int) -> Version:
        """The version that was found for a query before, for page one or when it was submitted.

        Raises:
            NotFound, BadRequest: it is not there any more, or the recipient may not read it any more.
        """
        if query.version is not None or query.timestamp is not None:
            return self.at_version(number)
        return self.pinned(number)

    def pinned(self, number: int) -> Version:
        """A version that was the latest when a token of ours was made, with or without history.

        Raises:
            NotFound, BadRequest: it is not there any more, or the recipient may not read earlier ones any more.
        """
        # The latest version is read by everyone, also where earlier ones end only after it. Where none end, pages go
        # on even if the latest one has become unreadable meanwhile.
        if self.entry.start_version is not None and number < self.latest().number:
            self._require_started(number, "data")
        return self._existing("version", number)

    def at_timestamp(self, at: TimePoint) -> Version:
        """The last version of a time or earlier.

        Raises:
            BadRequest: there is none, it is later than the latest, or the recipient may not read earlier ones.
        """
        self._require_history("timestamp", at.text)
        latest = self.latest()
        if at.ms > latest.timestamp_ms:
            raise BadRequest("timestamp", at.text, _after(at, latest))
        return self._until("timestamp", at)

    def from_timestamp(self, field: str, at: TimePoint) -> Version:
        """The first version of a time or later.

        Raises:
            BadRequest: there is none, or the recipient may not read earlier ones.
        """
        self._require_history(field, at.text)
        found = self.versions.at_or_after(at.ms)
        if found is None:
            raise BadRequest(
                field, at.text, f"{_after(at, self.latest())} Please use a timestamp less than it."
            )
        self._require_started(found.number, "data")
        return found

    def window(self, starting: int, ending: int | None) -> int:
        """The last version of a `startingVersion` query, whose first is the one that was asked for.

        Whoever has read a publication asks for what comes after the next number, also when the next publication
        has a higher one: the range begins at the number, so that nothing in between is passed over.

        Raises:
            BadRequest: the recipient may not read them, or they are not there.
        """
        self._require_history("startingVersion", starting)
        latest = self.latest()
        if ending is not None and ending > latest.number:
            hint = f"End version cannot be greater than the latest version {latest.number} of the table."
            raise BadRequest("endingVersion", ending, hint)
        self._require_started(starting, "data")
        self._require_first("startingVersion", starting, latest)
        return latest.number if ending is None else self._last_of(ending).number

    def changes_range(self, request: ChangesRequest) -> tuple[int, int]:
        """The first and last version of a change data feed; an end after the latest is the latest.

        Raises:
            BadRequest: the recipient may not read them, or they are not there.
        """
        if not self.entry.history:
            raise BadRequest(
                "startingVersion",
                "given",
                f"cdf is not enabled on table {self.entry.path}: its history is not shared.",
            )
        latest = self.latest()
        first = self._first_changed(request, latest)
        last = self._last_changed(request, latest).number
        if last < first:
            hint = f"CDF range from start {first} to end {last} was invalid. End cannot be before start."
            raise BadRequest("endingVersion", last, hint)
        return first, last

    def index(self, version: Version) -> FileIndex:
        """The files of a version that may be read, and no others.

        Raises:
            Unavailable: the index is gone and cannot be built again.
            Unserveable: the partitions of its files do not tell which rows may be read.
        """
        whole = self.versions.index(version)
        if not self.is_restricted:
            return whole
        head = whole.header.head
        self._require_decided(
            find_undecided_in_index(whole, self.rule) or self._renamed(head), version.number
        )
        return restrict_index(whole, self.rule)

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What of the changes of the versions `first` to `last` may be read, as windows tell it.

        Raises:
            Unserveable, TableFilesMissing: they cannot be told, or not which of them may be read.
        """
        return self._within(self.versions.changes(first, last))

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same as the change data feed tells it: under the head of version `told_at`, or each under its own.

        Raises:
            Unserveable, TableFilesMissing: they cannot be told, or not which of them may be read.
        """
        return self._within(self.versions.feed(first, last, schema_at))

    def snapshots(self) -> Sequence[PinnedSnapshot]:
        """The snapshots that the recipient may read, the newest last; none of a table that is not Iceberg.

        Raises:
            NotFound: nothing was published yet.
        """
        return self.versions.snapshots(self.first_readable(), self.latest().number)

    def first_readable(self) -> int:
        """The number from which on versions may be read.

        Raises:
            NotFound: nothing was published yet.
        """
        latest = self.latest().number
        # The latest version is read by everyone, also where earlier ones end only after it.
        return min(self.entry.start_version or 0, latest) if self.entry.history else latest

    def _within(self, changes: Sequence[VersionChanges]) -> Sequence[VersionChanges]:
        if not self.is_restricted:
            return changes
        for change in changes:
            self._require_decided(self._renamed(change.head), change.version)
        return restrict_changes(changes, self.rule)

    def _renamed(self, head: TableHead) -> Undecided | None:
        return find_renamed_column(self.rule, head, self.versions.index(self.latest()).header.head)

    def _require_decided(self, found: Undecided | None, number: int) -> None:
        if found is not None:
            raise Unserveable(
                f"What you may read of version {number} of {self.entry.path} cannot be told from partitions. "
                f"{found.column}: {found.reason}.",
                ADVICE,
            )

    def _first_changed(self, request: ChangesRequest, latest: Version) -> int:
        if request.starting_timestamp is not None:
            return self.from_timestamp("startingTimestamp", request.starting_timestamp).number
        number = request.starting_version or 0
        if number > latest.number:
            hint = (
                f"Provided Start version({number}) for reading change data is invalid. Start version cannot be "
                f"greater than the latest version of the table({latest.number})."
            )
            raise BadRequest("startingVersion", number, hint)
        self._require_started(number, "changes")
        self._require_first("startingVersion", number, latest)
        return number

    def _last_changed(self, request: ChangesRequest, latest: Version) -> Version:
        at = request.ending_timestamp
        if at is not None:
            return self._until("endingTimestamp", at)
        if request.ending_version is None or request.ending_version >= latest.number:
            return latest
        return self._last_of(request.ending_version)

    def _until(self, field: str, at: TimePoint) -> Version:
        """The last version of a time or earlier; of those before the start nothing is told, not even that they are."""
        found = self.versions.at_or_before(at.ms)
        if found is None or found.number < (self.entry.start_version or 0):
            oldest = self._oldest()
            hint = (
                f"{_before(at, oldest)} You can only query table data since version {oldest.number}. "
                "Please use a timestamp greater than it."
            )
            raise BadRequest(field, at.text, hint)
        return found

    def _oldest(self) -> Version:
        """The first version that the recipient may read."""
        start = self.entry.start_version
        before = None if start is None else self.versions.at_or_below(start - 1)
        if before is None:
            return self.versions.oldest()
        # Numbers have gaps, and times grow with them.
        return self.versions.at_or_after(before.timestamp_ms + 1) or self.latest()

    def _require_first(self, field: str, number: int, latest: Version) -> None:
        if number > latest.number:
            hint = f"{field} cannot be greater than the latest version {latest.number} of the table."
            raise BadRequest(field, number, hint)
        if number < self.versions.oldest().number:
            self._existing(field, number)

    def _last_of(self, number: int) -> Version:
        return self.versions.at_or_below(number) or self._existing("endingVersion", number)

    def _existing(self, field: str, number: int) -> Version:
        found = self.versions.at(number)
        if found is None:
            latest, oldest = self.latest(), self._oldest()
            raise BadRequest(
                field,
                number,
                f"{self.entry.path} has no such version. You can only query table data since version "
                f"{oldest.number}; its latest is {latest.number}.",
            )
        return found

    def _require_history(self, field: str, value: object) -> None:
        if not self.entry.history:
            hint = (
                "Reading table by version or timestamp is not supported because history sharing is not enabled on "
                f"table: {self.entry.path}. Ask without it for the latest version."
            )
            raise BadRequest(field, value, hint)

    def _require_started(self, number: int, what: str) -> None:
        start = self.entry.start_version
        if start is not None and number < start:
            hint = f"You can only query table {what} since version {start}."
            raise BadRequest("version", number, hint)


def _key(reader: Reader, share: str, schema: str, table: str) -> tuple[str, ...]:
    return reader.id, share.lower(), schema.lower(), table.lower()


def _after(at: TimePoint, latest: Version) -> str:
    return (
        f"The provided timestamp ({at.text}) is after the latest available version of the table "
        f"({format_iso(latest.timestamp_ms)}, version {latest.number})."
    )


def _before(at: TimePoint, oldest: Version) -> str:
    return (
        f"The provided timestamp ({at.text}) is before the earliest available version of the table "
        f"({format_iso(oldest.timestamp_ms)}, version {oldest.number})."
    )


class TableFolder(Protocol):
    """Where a table is, the stores that its files are in, and how many of them lie outside of its folder."""

    @property
    def location(self) -> str:
        """The table's folder."""
        ...

    @property
    def roots(self) -> Collection[str]:
        """The stores of all files, or the folders of local ones outside of the table's own."""
        ...

    @property
    def elsewhere(self) -> int:
        """The number of files outside of the folder."""
        ...


def directory_refusal(entry: TableEntry, folder: TableFolder, signers: Signers) -> str | None:
    """Why the table's folder is not handed out; None when it is.

    Raises:
        Unavailable: what tells is not there now.
    """
    if not entry.history:
        return "its history is not shared, and the folder holds all of it"
    if entry.start_version:
        return f"its versions before {entry.start_version} are not shared, and the folder may hold them"
    if entry.rule is not None:
        return "some of its rows are not shared, and the folder holds all of them"
    if entry.publication is not None:
        return f"its versions after {entry.publication} are not shared, and the folder may hold them"
    if not entry.directory_access:
        return (
            "files that were never published may lie in the folder; allow it with "
            f"`lakeshare table directory-access {entry.path} --allow`"
        )
    if folder.elsewhere:
        return f"{folder.elsewhere} of its files lie outside of the folder"
    return signers.can_vend(folder.location)


def folder_refusal(view: TableView, folder: TableFolder, signers: Signers) -> str | None:
    """The same for one recipient, whose grants may be restricted.

    Raises:
        Unavailable: what tells is not there now.
    """
    if view.is_restricted:
        return "some of its rows are not shared with you, and the folder holds all of them"
    return directory_refusal(view.entry, folder, signers)


def describe_directory_access(view: TableView, signers: Signers) -> DirectoryAccess:
    """What listings and metadata say of directory access; nothing when the folder is not handed out."""
    if not view.entry.directory_access or view.is_restricted:
        return URLS_ONLY
    try:
        header = view.index(view.latest()).header
        refusal = directory_refusal(view.entry, header, signers)
    except LakeshareError:
        # A listing is not to fail for one table, or for credentials that nobody asked for: whoever does is told.
        return URLS_ONLY
    return URLS_ONLY if refusal else DirectoryAccess(header.location)


def require_directory_access(view: TableView, signers: Signers) -> str:
    """The folder of a table that hands it out.

    Raises:
        Unserveable: says why it does not.
        Unavailable: that cannot be told now.
    """
    header = view.versions.index(view.latest()).header
    refusal = folder_refusal(view, header, signers)
    if refusal is not None:
        raise Unserveable(
            f"{view.entry.path} is not served by directory access: {refusal}.", "Query it for URLs."
        )
    return header.location


IDLE_S = 1.0
PURGE_EVERY = 600  # looks

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submission:
    """A query as it is kept: who asked it of which table, with which fields."""

    reader: Reader
    names: tuple[str, str, str]
    fields: Mapping[str, Any]

    def as_json(self) -> str:
        """Canonical JSON: the same submission has the same text."""
        fields = {"reader": [self.reader.id, self.reader.name], "names": self.names, "fields": self.fields}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Submission":
        """The submission that `as_json` wrote."""
        said = json.loads(text)
        share, schema, table = said["names"]
        return cls(Reader(*said["reader"]), (share, schema, table), said["fields"])

    def query(self) -> QueryRequest:
        """The query."""
        return parse_query(self.fields)


def prepare_response(view: TableView, query: QueryRequest) -> int:
    """Do what an answer needs; returns the version it has, of a window the last one.

    Raises:
        LakeshareError: there will be no answer.
    """
    if query.starting_version is not None:
        last = view.window(query.starting_version, query.ending_version)
        if query.starting_version <= last:
            view.changes(query.starting_version, last)
        return last
    version = view.requested_version(query)
    view.index(version)
    return version.number


class AsyncWorker:
    """Claims queries and prepares their answers, one at a time."""

    def __init__(self, queries: AsyncQueries, views: TableViews) -> None:
        self._queries, self._views = queries, views
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="async-queries", daemon=True)

    def start(self) -> None:
        """Begin to look for queries."""
        self._thread.start()

    def wake(self) -> None:
        """Look now: a query has come in."""
        self._wake.set()

    def stop(self) -> None:
        """End after the query under way."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        looks = 0
        while not self._stopping.is_set():
            looks += 1
            try:
                found = self._turn(looks)
            # The process has no other worker: whatever ends one turn, the next is tried.
            except Exception as error:
                is_foreseen = isinstance(error, LakeshareError)
                _log.warning("async queries wait, a turn failed: %s", error, exc_info=not is_foreseen)
                self._stopping.wait(IDLE_S)
            else:
                if not found and self._wake.wait(IDLE_S):
                    self._wake.clear()

    def _turn(self, look: int) -> bool:
        """Work on one query; says whether there was one.

        A query whose end cannot be noted is taken over later, like that of a dead worker.
        """
        if look % PURGE_EVERY == 0:
            self._queries.purge()
        claim = self._queries.claim()
        if claim is not None:
            self._do(claim)
        return claim is not None

    def _do(self, claim: Claim) -> None:
        try:
            with self._queries.working(claim):
                submission = Submission.from_json(claim.query.request)
                view = self._views.table(submission.reader, *submission.names)
                version = prepare_response(view, submission.query())
            self._queries.finish(claim, version)
        except Unavailable as error:
            _log.warning("async query %s, attempt %s: %s", claim.query.id, claim.attempt, error)
            # It passes: the query is taken up again once this claim is silent, and may come out well then.
            if claim.is_last:
                self._queries.fail(claim, type(error).__name__, error.for_recipient())
        except LakeshareError as error:
            _log.info("async query %s is refused: %s", claim.query.id, error)
            self._queries.fail(claim, type(error).__name__, error.for_recipient())
        except Exception:
            _log.exception("async query %s failed", claim.query.id)
            message = f"The query failed; its id {claim.query.id} is in the server's log."
            self._queries.fail(claim, "INTERNAL_ERROR", message)
