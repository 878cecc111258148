"""A recipient's view of a table: grant, version, rule and file index; and the worker of async queries.

Every request for a table passes through a view. A shared table without a publication does not exist for recipients.
"""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lakeshare_server.access.rules import combine_rules
from lakeshare_server.catalog import (
    AsyncQueries,
    Catalog,
    Claim,
    GenerationCache,
    GrantedTable,
    Listings,
    Reader,
    SharedTable,
)
from lakeshare_server.errors import BadRequest, LakeshareError, NotFound, Unavailable, Unserveable
from lakeshare_server.protocol.requests import (
    ChangesRequest,
    QueryRequest,
    TimePoint,
    format_iso,
    parse_query,
)
from lakeshare_server.storage import Signers
from lakeshare_server.tables.delta.changes import ADVICE, VersionChanges, restrict_changes
from lakeshare_server.tables.index import FileIndex, TableFolder
from lakeshare_server.tables.predicates import EVERYTHING, Predicate
from lakeshare_server.tables.restrictions import (
    Undecided,
    find_renamed_column,
    find_undecided_in_index,
    restrict_index,
)
from lakeshare_server.tables.snapshot import TableHead
from lakeshare_server.versions import PinnedSnapshot, TableVersions, Version, Versions

MAX_CACHED_VIEWS = 1 << 15


class TableViews:
    """Reads recipients' views from the catalog, and caches them until it changes."""

    def __init__(self, catalog: Catalog, versions: Versions) -> None:
        self._catalog, self._versions = catalog, versions
        self._seen = GenerationCache[TableView](catalog, MAX_CACHED_VIEWS, TableView.is_over)

    def peek(
        self, reader: Reader, share: str, schema: str, table: str, generation: int
    ) -> "TableView | None":
        """The view of a granted table, if it was read in this generation; never waits."""
        return self._seen.peek(_key(reader, share, schema, table), generation)

    def table(
        self, reader: Reader, share: str, schema: str, table: str, generation: int | None = None
    ) -> "TableView":
        """The view of a granted table. Raises NotFound for an unknown table and for one that is not granted."""
        return self._seen.get(
            _key(reader, share, schema, table),
            lambda: self._view(Listings(self._catalog, reader.id).table(share, schema, table)),
            generation,
        )

    def table_of_id(self, reader: Reader, table_id: str) -> "TableView":
        return self._view(Listings(self._catalog, reader.id).table_of_id(table_id))

    def _view(self, granted: GrantedTable) -> "TableView":
        entry = granted.entry
        versions = self._versions.of(entry.table, entry.publication)
        rule = combine_rules(entry.rule, granted.grant)
        return TableView(entry, versions, rule, granted.grant.valid_until, versions.services())


@dataclass(frozen=True)
class TableView:
    entry: SharedTable
    versions: TableVersions
    # Matches the readable rows, by the table's rule and those of the grants.
    rule: Predicate = EVERYTHING
    valid_until: datetime | None = None

    services: Sequence[str] = ()

    @property
    def is_restricted(self) -> bool:
        return self.rule != EVERYTHING

    @property
    def restriction(self) -> str | None:
        """A text that identifies the rule; None without a rule."""
        return repr(self.rule) if self.is_restricted else None

    @property
    def terms(self) -> tuple[object, ...]:
        """What decides which rows and versions the recipient may read."""
        entry = self.entry
        terms = entry.table, entry.history, entry.start_version, self.restriction
        # Tables without a pinned publication keep the terms that are in tickets of earlier releases.
        return terms if entry.publication is None else (*terms, entry.publication)

    def is_over(self) -> bool:
        """Whether a grant has begun or ended since the view was read."""
        return self.valid_until is not None and self.valid_until <= datetime.now(UTC)

    def latest(self) -> Version:
        """The latest version. Raises NotFound before the first publication."""
        try:
            return self.versions.latest()
        except NotFound as error:
            entry = self.entry
            name = f"{entry.share}/{entry.schema}/{entry.name}"
            raise NotFound("[Share/Schema/Table]", name) from error

    def requested_version(self, query: QueryRequest) -> Version:
        if query.version is not None:
            return self.at_version(query.version)
        return self.latest() if query.timestamp is None else self.at_timestamp(query.timestamp)

    def at_version(self, number: int) -> Version:
        """A version by its number. Raises BadRequest if it does not exist or may not be read."""
        self._require_history("version", number)
        self._require_started(number, "data")
        return self._existing("version", number)

    def version_for_page(self, query: QueryRequest, number: int) -> Version:
        """The version of page one, or of a submitted query, checked again. Raises NotFound or BadRequest."""
        if query.version is not None or query.timestamp is not None:
            return self.at_version(number)
        return self.pinned(number)

    def pinned(self, number: int) -> Version:
        """A version that was the latest when a token was issued. Raises NotFound or BadRequest as `at_version`."""
        # The latest version is always readable. Without a start version, pages continue even if the latest version
        # has become unreadable.
        if self.entry.start_version is not None and number < self.latest().number:
            self._require_started(number, "data")
        return self._existing("version", number)

    def at_timestamp(self, at: TimePoint) -> Version:
        self._require_history("timestamp", at.text)
        latest = self.latest()
        if at.ms > latest.timestamp_ms:
            raise BadRequest("timestamp", at.text, _after(at, latest))
        return self._until("timestamp", at)

    def from_timestamp(self, field: str, at: TimePoint) -> Version:
        self._require_history(field, at.text)
        version = self.versions.at_or_after(at.ms)
        if version is None:
            hint = f"{_after(at, self.latest())} Please use a timestamp less than it."
            raise BadRequest(field, at.text, hint)
        self._require_started(version.number, "data")
        return version

    def window(self, starting: int, ending: int | None) -> int:
        """The last version of a query from `starting` on; numbers have gaps. Raises BadRequest as `at_version`."""
        self._require_history("startingVersion", starting)
        latest = self.latest()
        if ending is not None and ending > latest.number:
            hint = f"End version cannot be greater than the latest version {latest.number} of the table."
            raise BadRequest("endingVersion", ending, hint)
        self._require_started(starting, "data")
        self._require_first("startingVersion", starting, latest)
        return latest.number if ending is None else self._last_of(ending).number

    def changes_range(self, request: ChangesRequest) -> tuple[int, int]:
        """The first and last version of a change data feed. Raises BadRequest outside the readable versions."""
        if not self.entry.history:
            hint = f"cdf is not enabled on table {self.entry.path}: its history is not shared."
            if request.starting_timestamp is not None:
                raise BadRequest("startingTimestamp", request.starting_timestamp.text, hint)
            raise BadRequest("startingVersion", request.starting_version, hint)
        latest = self.latest()
        first = self._first_changed(request, latest)
        if request.ending_timestamp is not None:
            last = self._until("endingTimestamp", request.ending_timestamp).number
        elif request.ending_version is None or request.ending_version >= latest.number:
            last = latest.number
        else:
            last = self._last_of(request.ending_version).number
        if last < first:
            hint = f"CDF range from start {first} to end {last} was invalid. End cannot be before start."
            raise BadRequest("endingVersion", last, hint)
        return first, last

    def index(self, version: Version) -> FileIndex:
        """A version's readable files. Raises Unserveable if partitions do not decide the rule, or Unavailable."""
        index = self.versions.index(version)
        if not self.is_restricted:
            return index
        index = index.written()
        undecided = find_undecided_in_index(index, self.rule) or self._renamed(index.header.head)
        self._require_decided(undecided, version.number)
        return restrict_index(index, self.rule)

    def changes(
        self, first: int, last: int, *, feed: bool = False, schema_at: int | None = None
    ) -> Sequence[VersionChanges]:
        """The readable changes of a window of versions or of a feed. Raises Unserveable or TableFilesMissing."""
        changes = self.versions.changes(first, last, feed=feed, schema_at=schema_at)
        if self.is_restricted:
            for change in changes:
                self._require_decided(self._renamed(change.head), change.version)
            changes = restrict_changes(changes, self.rule)
        return changes

    def snapshots(self) -> Sequence[PinnedSnapshot]:
        """The readable Iceberg snapshots, the newest last; none for a Delta table. Raises NotFound as `latest`."""
        return self.versions.snapshots(self.first_readable(), self.latest().number)

    def first_readable(self) -> int:
        latest = self.latest().number
        # The latest version is always readable, also below the start version.
        return min(self.entry.start_version or 0, latest) if self.entry.history else latest

    def _renamed(self, head: TableHead) -> Undecided | None:
        return find_renamed_column(self.rule, head, self.versions.index(self.latest()).header.head)

    def _require_decided(self, undecided: Undecided | None, number: int) -> None:
        if undecided is not None:
            raise Unserveable(
                f"What you may read of version {number} of {self.entry.path} cannot be determined from partitions. "
                f"{undecided.column}: {undecided.reason}.",
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

    def _until(self, field: str, at: TimePoint) -> Version:
        """The last version at or before a time; versions below the start version are not disclosed."""
        version = self.versions.at_or_before(at.ms)
        if version is None or version.number < (self.entry.start_version or 0):
            oldest = self._oldest()
            hint = (
                f"The provided timestamp ({at.text}) is before the earliest available version of the table "
                f"({format_iso(oldest.timestamp_ms)}, version {oldest.number}). You can only query table data since "
                f"version {self._since(oldest)}. Please use a timestamp greater than it."
            )
            raise BadRequest(field, at.text, hint)
        return version

    def _oldest(self) -> Version:
        start = self.entry.start_version
        before = None if start is None else self.versions.at_or_below(start - 1)
        if before is None:
            return self.versions.oldest()
        # Version numbers have gaps; times increase with the numbers.
        return self.versions.at_or_after(before.timestamp_ms + 1) or self.latest()

    def _since(self, oldest: Version) -> int:
        # The start version is above the latest one until that is published.
        return max(oldest.number, self.entry.start_version or 0)

    def _require_first(self, field: str, number: int, latest: Version) -> None:
        if number > latest.number:
            hint = f"{field} cannot be greater than the latest version {latest.number} of the table."
            raise BadRequest(field, number, hint)
        if number < self.versions.oldest().number:
            self._existing(field, number)

    def _last_of(self, number: int) -> Version:
        return self.versions.at_or_below(number) or self._existing("endingVersion", number)

    def _existing(self, field: str, number: int) -> Version:
        version = self.versions.at(number)
        if version is None:
            latest, oldest = self.latest(), self._oldest()
            raise BadRequest(
                field,
                number,
                f"{self.entry.path} has no such version. You can only query table data since version "
                f"{self._since(oldest)}; its latest is {latest.number}.",
            )
        return version

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


def directory_refusal(entry: SharedTable, folder: TableFolder, signers: Signers) -> str | None:
    """Why no recipient gets the table's folder; None if recipients may get it. Raises Unavailable."""
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
    if view.is_restricted:
        return "some of its rows are not shared with you, and the folder holds all of them"
    return directory_refusal(view.entry, folder, signers)


def find_shared_folder(view: TableView, signers: Signers) -> str | None:
    """The location of a folder that is shared; None if it is not, or if that cannot be decided now."""
    if not view.entry.directory_access or view.is_restricted:
        return None
    try:
        return require_directory_access(view, signers)
    except LakeshareError:
        # One table must not fail a listing; a request for credentials gets the error.
        return None


def require_directory_access(view: TableView, signers: Signers) -> str:
    """The location of a folder that is shared. Raises Unserveable with the reason if it is not, or Unavailable."""
    header = view.versions.index(view.latest()).header
    refusal = folder_refusal(view, header, signers)
    if refusal is not None:
        reason = f"{view.entry.path} is not served by directory access: {refusal}."
        raise Unserveable(reason, "Query it for URLs.")
    return header.location


IDLE_S = 1.0
PREPARED_AT_ONCE = 4  # async queries of a process: one whose store hangs does not delay the next
PURGE_EVERY = 600  # turns

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submission:
    reader: Reader
    names: tuple[str, str, str]
    fields: Mapping[str, Any]

    def as_json(self) -> str:
        """Canonical JSON: equal submissions have equal texts."""
        fields = {"reader": [self.reader.id, self.reader.name], "names": self.names, "fields": self.fields}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Submission":
        stored = json.loads(text)
        share, schema, table = stored["names"]
        return cls(Reader(*stored["reader"]), (share, schema, table), stored["fields"])

    def query(self) -> QueryRequest:
        return parse_query(self.fields)


def prepare_response(view: TableView, query: QueryRequest) -> int:
    """Builds what a response needs. Returns its version, for a window the last one. Raises LakeshareError."""
    if query.starting_version is not None:
        last = view.window(query.starting_version, query.ending_version)
        if query.starting_version <= last:
            view.changes(query.starting_version, last)
        return last
    version = view.requested_version(query)
    view.index(version)
    return version.number


class AsyncWorker:
    """Claims async queries and prepares their responses, one in each of its threads."""

    def __init__(self, queries: AsyncQueries, views: TableViews) -> None:
        self._queries, self._views = queries, views
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=[number], name=f"async-queries-{number}", daemon=True)
            for number in range(1, PREPARED_AT_ONCE + 1)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        turns = 0
        while not self._stopping.is_set():
            turns += 1
            try:
                if turns % PURGE_EVERY == 0:
                    self._queries.purge()
                claim = self._queries.claim()
                if claim is not None:
                    # Another thread looks for the next one.
                    self._wake.set()
                    # A query whose result cannot be stored is claimed again later, like that of a dead worker.
                    self._run(claim)
            # After any error the next turn is tried.
            except Exception as error:
                is_expected = isinstance(error, LakeshareError)
                _log.warning("async queries wait, a turn failed: %s", error, exc_info=not is_expected)
                self._stopping.wait(IDLE_S)
            else:
                # What is not announced is looked for by the first thread, or by the next one while that is busy.
                if claim is None and self._wake.wait(IDLE_S * number) and not self._stopping.is_set():
                    self._wake.clear()

    def _run(self, claim: Claim) -> None:
        try:
            with self._queries.working(claim):
                submission = Submission.from_json(claim.query.request)
                view = self._views.table(submission.reader, *submission.names)
                version = prepare_response(view, submission.query())
            self._queries.finish(claim, version)
        except Unavailable as error:
            _log.warning("async query %s, attempt %s: %s", claim.query.id, claim.attempt, error)
            # The query is claimed again when this claim expires, and may succeed then.
            if claim.is_last:
                self._queries.fail(claim, type(error).__name__, error.for_recipient())
        except LakeshareError as error:
            _log.info("async query %s is refused: %s", claim.query.id, error)
            self._queries.fail(claim, type(error).__name__, error.for_recipient())
        except Exception:
            _log.exception("async query %s failed", claim.query.id)
            message = f"The query failed; its id {claim.query.id} is in the server's log."
            self._queries.fail(claim, "INTERNAL_ERROR", message)
