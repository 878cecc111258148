"""The versions of a followed Iceberg table: the snapshots that were its current ones, numbered in the ledger.

A number is in the ledger, marked unaudited, before recipients learn it, and is never given again. Its snapshot stays
readable as long as its files exist. Several workers number states at the same time: a worker that another one overtook
reads the table again.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import orjson

from lakeshare_server.catalog import (
    FollowedTable,
    IcebergIdentity,
    NewPublication,
    NumberedSnapshot,
    Publication,
)
from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    StoreDenied,
    StoreError,
    TableFilesMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.settings import StateSettings
from lakeshare_server.storage import Stores, parse_location
from lakeshare_server.tables import read_delta, read_iceberg
from lakeshare_server.tables.iceberg.metadata import (
    FORMAT_VERSIONS,
    NO_SNAPSHOT,
    UNUSABLE,
    MetadataTooLarge,
    decompress_metadata,
    readers_schema_id,
)
from lakeshare_server.tables.index import FileIndex, describe_index
from lakeshare_server.tables.publications import pins_of
from lakeshare_server.tables.serveability import ReasonCode, is_read_by_iceberg_clients
from lakeshare_server.tables.snapshot import TableSnapshot
from lakeshare_server.versions.metadata_sources import (
    MetadataSource,
    Pointer,
    catalog_service,
    is_delta,
    make_source,
)
from lakeshare_server.versions.published import (
    ExpiringValues,
    LedgerVersions,
    Version,
    VersionSources,
    make_followed_publication,
)


@dataclass(frozen=True)
class ObservedState:
    """The current metadata file of a table, and the number of its state."""

    pointer: Pointer
    newest: Publication


class LatestObservation:
    """The last successful read of a table, or its error."""

    def __init__(self, source: MetadataSource, check_every_s: float) -> None:
        self.source = source
        self.seen: ObservedState | None = None
        self.refreshing = SharedRefresh(check_every_s, lasting_s=check_every_s)

    def refresh(self, observe: Callable[[ObservedState | None], ObservedState]) -> ObservedState:
        """The state, read by `observe` from the last one when that is too old."""

        def read() -> None:
            self.seen = observe(self.seen)

        self.refreshing.run(read)
        if self.seen is None:
            raise AssertionError("unreachable: a read succeeds or raises")
        return self.seen


MAX_METADATA_BYTES = 32 << 20
MAIN = "main"


@dataclass(frozen=True)
class TableState:
    """A snapshot that was the table's current one since `at_ms`, and the metadata to read it with.

    Its id is `NO_SNAPSHOT` for a table without snapshots. `rows`, `files` and `size_bytes` are its writer's counts, 0
    without any.
    """

    snapshot_id: int
    at_ms: int
    metadata_location: str
    schema_id: int
    rows: int
    files: int
    size_bytes: int
    commit: str | None = None


@dataclass(frozen=True)
class TableHistory:
    """A parsed metadata file."""

    pointer: Pointer
    table_id: str
    location: str
    current: TableState
    updated_ms: int
    log: tuple[tuple[int, int], ...]  # time in ms and snapshot id of what became current, oldest first
    _snapshots: Mapping[int, Mapping[str, Any]]
    _today: int
    _schemas: frozenset[int]

    def state(
        self, snapshot_id: int, at_ms: int, metadata_location: str | None = None, commit: str | None = None
    ) -> TableState | None:
        """A snapshot as an earlier state of the table; None when it has expired."""
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None:
            return None
        location = metadata_location or self.pointer.metadata_location
        return _make_state(snapshot, at_ms, location, self._read_schema_id(snapshot, is_newest=False), commit)

    def schema_of(self, snapshot_id: int) -> int | None:
        """The schema of a snapshot for readers of this file; None when the file does not list it."""
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None:
            return None
        return self._read_schema_id(snapshot, is_newest=snapshot_id == self.current.snapshot_id)

    def _read_schema_id(self, snapshot: Mapping[str, Any], *, is_newest: bool) -> int:
        written_with = snapshot.get("schema-id")
        return readers_schema_id(
            is_newest=is_newest, written_with=written_with, today=self._today, known=self._schemas
        )


class IncompleteMetadata(TableFilesMissing):
    """A metadata file is no JSON: it is being written, or broken."""


def read_history(stores: Stores, pointer: Pointer) -> TableHistory:
    """The states in a metadata file; raises `TableFilesMissing` or `Unserveable` where they cannot be used."""
    location = pointer.metadata_location
    try:
        file = stores.head(location)
        if file is not None and file.size_bytes > MAX_METADATA_BYTES:
            raise _too_large(location)
        content = stores.read(location)
    except BadRequest as error:
        what = f"The metadata {location} is in no store that this server knows."
        raise Unserveable(what, error.hint) from error
    try:
        metadata = orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES))
    except MetadataTooLarge as error:
        raise _too_large(location) from error
    except UNUSABLE as error:
        raise IncompleteMetadata(location, _not_whole(location, error)) from error
    try:
        return _parse_history(pointer, metadata)
    except UNUSABLE as error:
        raise TableFilesMissing(location, _not_whole(location, error)) from error


def _parse_history(pointer: Pointer, metadata: Mapping[str, Any]) -> TableHistory:
    location, place = pointer.metadata_location, str(metadata["location"])
    version = metadata["format-version"]
    if version not in FORMAT_VERSIONS:
        raise Unserveable(
            f"{place} is an Iceberg table of format version {version}; this server reads versions 1 to 3.",
            "Use a newer lakeshare, or share a copy in an older format version.",
        )
    if not metadata.get("table-uuid"):
        raise Unserveable(
            f"{place} has no table UUID, so it cannot be distinguished from another table in its place.",
            "Upgrade the table to format version 2.",
        )
    snapshots = {int(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}
    current_id, today = metadata.get("current-snapshot-id"), int(metadata.get("current-schema-id", 0))
    updated_ms = int(metadata["last-updated-ms"])
    # Old writers have -1 for none.
    if current_id is None or current_id == NO_SNAPSHOT:
        if MAIN in (metadata.get("refs") or {}):
            raise Unserveable(
                f"{place} has no current snapshot, but a main branch.",
                "Restore the table's newest metadata file, or roll the table back to one of its snapshots.",
            )
        current_id = NO_SNAPSHOT
        snapshots[NO_SNAPSHOT] = {"snapshot-id": NO_SNAPSHOT, "timestamp-ms": updated_ms, "schema-id": today}
    entries = metadata.get("snapshot-log") or ()
    log = tuple((int(entry["timestamp-ms"]), int(entry["snapshot-id"])) for entry in entries)
    current = snapshots[int(current_id)]
    since = log[-1][0] if log and log[-1][1] == int(current_id) else int(current["timestamp-ms"])
    return TableHistory(
        pointer=pointer,
        table_id=str(metadata["table-uuid"]).lower(),
        location=place,
        current=_make_state(current, since, location, today, pointer.commit),
        updated_ms=updated_ms,
        log=log,
        _snapshots=snapshots,
        _today=today,
        _schemas=frozenset(int(schema.get("schema-id", 0)) for schema in metadata.get("schemas") or ()),
    )


def _make_state(
    snapshot: Mapping[str, Any], at_ms: int, metadata_location: str, schema_id: int, commit: str | None
) -> TableState:
    summary = snapshot.get("summary") or {}
    names = ("total-records", "total-data-files", "total-files-size")
    rows, files, size = (_parse_count(summary.get(name)) for name in names)
    id_ = int(snapshot["snapshot-id"])
    return TableState(id_, at_ms, metadata_location, schema_id, rows, files, size, commit)


def _parse_count(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else 0


def _not_whole(location: str, error: Exception) -> str:
    return f"the Iceberg metadata {location} is not whole ({type(error).__name__})"


def _too_large(location: str) -> Unserveable:
    return Unserveable(
        f"The Iceberg metadata {location} is too large: this server reads up to {MAX_METADATA_BYTES} bytes.",
        "Expire snapshots of the table, and let its writers delete old metadata from the log.",
    )


def complete_log(history: TableHistory) -> Sequence[TableState]:
    """The states of the snapshot log without a gap, oldest first, up to the current one; none without a snapshot.

    Entries before an expired snapshot are left out (Iceberg spec, "Snapshots": "entries before one that has expired
    should be removed").
    """
    if history.current.snapshot_id == NO_SNAPSHOT:
        return ()
    states: list[TableState] = []
    for at_ms, snapshot_id in history.log:
        state = history.state(snapshot_id, at_ms)
        if state is None:
            states.clear()
        else:
            states.append(state)
    if not states or states[-1].snapshot_id != history.current.snapshot_id:
        return (history.current,)
    return (*states[:-1], history.current)


FIRST_OBSERVATION = 1000


@dataclass(frozen=True)
class NewState:
    """A state that gets a number; `at_ms` is its time, None if unknown."""

    state: TableState
    at_ms: int | None
    run_id: str
    rollback_of: int | None = None


def find_new_states(
    history: TableHistory,
    branch: Sequence[TableState] | None,
    latest: Publication | None,
    numbered: Sequence[NumberedSnapshot],
) -> Sequence[NewState]:
    """The states to number after `latest`, oldest first; none when the table has not changed.

    `branch` are the states of a branch since the latest number, None to use the table's own log; `numbered` are all
    numbered snapshots.
    """
    ours = [snapshot for snapshot in numbered if snapshot.table_id == history.table_id]
    is_ours = latest is not None and latest.table_id == history.table_id
    last = (latest.snapshot_id, latest.schema_id) if latest is not None and is_ours else None
    if branch is None:
        fresh = _states_after_known(history, {snapshot.run_id for snapshot in ours})
        fresh = fresh if ours else fresh[-FIRST_OBSERVATION:]
    else:
        fresh = _states_of_branch(history, branch, None if last is None else last[0])
    new = [NewState(state, state.at_ms, _make_run_id(history, state)) for state in fresh]
    current = history.current.snapshot_id, history.current.schema_id
    newest = (fresh[-1].snapshot_id, fresh[-1].schema_id) if fresh else last
    if newest != current:
        new.append(_make_state_without_log(history, newest, latest))
    return _add_rollbacks(new, -1 if latest is None else latest.version, ours)


def _states_after_known(history: TableHistory, runs: Collection[str]) -> Sequence[TableState]:
    states = complete_log(history)
    known = [number for number, state in enumerate(states) if _make_run_id(history, state) in runs]
    return states[known[-1] + 1 :] if known else states


def _states_of_branch(
    history: TableHistory, branch: Sequence[TableState], last_snapshot: int | None
) -> Sequence[TableState]:
    """The branch's states without commits that did not change the snapshot."""
    states: list[TableState] = []
    for state in branch:
        before = states[-1].snapshot_id if states else last_snapshot
        if state.snapshot_id != before:
            states.append(state)
    current = history.current
    if states and states[-1].snapshot_id == current.snapshot_id:
        location, schema_id = current.metadata_location, current.schema_id
        states[-1] = replace(states[-1], metadata_location=location, schema_id=schema_id)
    return states


def _make_state_without_log(
    history: TableHistory, newest: tuple[int | None, ...] | None, latest: Publication | None
) -> NewState:
    """The current state when no log explains it: its columns changed, or an older state was restored."""
    state = history.current
    if latest is None:
        return NewState(state, state.at_ms, _make_run_id(history, state))
    run_id = f"{_make_run_id(history, state)}-after-{latest.version}"
    has_other_columns = newest is not None and newest[0] == state.snapshot_id
    return NewState(state, history.updated_ms if has_other_columns else None, run_id)


def _add_rollbacks(
    new: Sequence[NewState], latest: int, numbered: Sequence[NumberedSnapshot]
) -> Sequence[NewState]:
    """The states with the earlier number of each restored snapshot."""
    numbers = {snapshot.snapshot_id: snapshot.version for snapshot in numbered}
    states = []
    for number, state in enumerate(new, latest + 1):
        before = numbers.get(state.state.snapshot_id)
        # The number just before has the same snapshot when only the columns changed.
        is_rollback = before is not None and before != number - 1
        states.append(replace(state, rollback_of=before) if is_rollback else state)
        numbers[state.state.snapshot_id] = number
    return states


def _make_run_id(history: TableHistory, state: TableState) -> str:
    return f"follow-{history.table_id}-{state.commit or state.at_ms}-{state.snapshot_id}"


MAX_READ_ATTEMPTS = 5
# On a disk readers see incomplete metadata files. One that is older than this, in seconds, is broken.
WRITTEN_WITHIN_S = 10.0
# Seconds between two reads of an incomplete metadata file.
READ_AGAIN_S = 0.1


def require_same_table(
    history: TableHistory, identity: IcebergIdentity, stores: Stores, root: str | None
) -> None:
    """Raises `Unserveable` for metadata of another table, and of one that has moved."""
    if history.table_id != identity.table_id:
        raise Unserveable(
            f"{identity.location} has another table now: its UUID is {history.table_id}, not {identity.table_id}.",
            "Restore the table, or end this and follow the new one: lakeshare table unfollow.",
        )
    location = make_identity(history, stores, root).location
    if location != identity.location:
        raise Unserveable(
            f"{identity.location} has moved: the table says now that it is in {location}.",
            "Move it back, or end this and follow it there: lakeshare table unfollow.",
        )


def make_identity(history: TableHistory, stores: Stores, root: str | None) -> IcebergIdentity:
    """The identity of the metadata's table; raises `Unserveable` if it is in no known store, or not in `root`."""
    try:
        location = stores.place(history.location).location.rstrip("/")
    except BadRequest as error:
        what = f"The table says that it is in {history.location}, which is no store of ours."
        raise Unserveable(what, error.hint) from error
    if root is not None and location != root:
        raise Unserveable(
            f"{root} has moved: the table says that it is in {location}, and names its files there.",
            "Follow it there, or follow one metadata file of it.",
        )
    return IcebergIdentity(history.table_id, location)


LOCATION_PATTERN = re.compile(r"\S*[/\\]\S*")
# A location at the begin of a sentence is replaced by a subject.
SUBJECT_PATTERN = re.compile(r"(^|[.:;,] )\S*[/\\]\S*(?= \w)")
PROVIDER = "Provider: the server's log says more."


def hide_locations(error: LakeshareError, places: Iterable[str]) -> LakeshareError:
    """The same refusal without locations of the table, its catalog or the server."""
    if isinstance(error, Unavailable):
        what = "the table's store or catalog does not answer"
        return Unavailable(what, "Try again in a moment.", error.retry_s)
    if isinstance(error, Unserveable):
        if error.code == ReasonCode.EQUALITY_DELETES:
            # Its own text names settings of the provider.
            return ReasonCode.EQUALITY_DELETES.error(ReasonCode.EQUALITY_DELETES.sentence)
        fix = _replace_locations(error.fix, places) if error.code else PROVIDER
        return Unserveable(_replace_locations(error.reason, places), fix, error.code)
    if isinstance(error, TableFilesMissing):
        return TableFilesMissing("", _replace_locations(error.what, places))
    if isinstance(error, StoreError):
        return TableFilesMissing("", "a file of its metadata is gone, or not readable")
    if isinstance(error, BadRequest):
        return Unserveable("The table's place cannot be looked at.", PROVIDER)
    return Unserveable("The table's newest state cannot be numbered.", PROVIDER)


def _replace_locations(text: str, places: Iterable[str]) -> str:
    for place in sorted(places, key=len, reverse=True):
        text = re.sub(rf"(?<!\S){re.escape(place)}(?=[\s.,:;]|$)", "the table", text)
    text = SUBJECT_PATTERN.sub(r"\1a file of it", text)
    text = LOCATION_PATTERN.sub("…", text)
    return text[:1].upper() + text[1:]


T = TypeVar("T")
_log = logging.getLogger(__name__)


class FollowedSnapshots(LedgerVersions):
    """The versions of one followed Iceberg table, for one generation of the catalog; gives new states their numbers."""

    unrecorded = (
        "files were removed or rewritten, and the changed rows of a table that is followed are not recorded"
    )

    def __init__(
        self,
        sources: VersionSources,
        followed: FollowedTable,
        identity: IcebergIdentity,
        observation: LatestObservation,
    ) -> None:
        super().__init__(sources, followed.table)
        self._followed, self._identity, self._observation = followed, identity, observation
        # A version that only Iceberg clients can read has no index: manifests are not read again for each request.
        self._refused = ExpiringValues[tuple[object, ...], Unserveable]()
        self._since: int | None = None

    def location(self) -> str:
        return self._identity.location

    def services(self) -> Sequence[str]:
        catalog = catalog_service(self._followed.location)
        services = self._stores.services_of(self._identity.location)
        return services if catalog is None else (catalog, *services)

    def latest_now(self) -> Version | None:
        observed, latest = self._observation.seen, self._last
        if observed is None or latest is None or not self._observation.refreshing.is_fresh():
            return None
        return Version.of(max(observed.newest, latest, key=lambda row: row.version))

    def oldest(self) -> Version:
        newest = self._newest()
        return Version.of(self._ledger.at(self._table, self._first()) or newest)

    def at(self, number: int) -> Version | None:
        if self._row(number) is None:
            # It may be newer than the last observation.
            self._refresh()
        return super().at(number)

    def _newest(self) -> Publication:
        # Also a state that only Iceberg clients can read: its index is refused.
        newest = self._observation.refresh(self._observe).newest
        # Another worker may have numbered and shown more: numbers must not go back.
        if self._last is None or self._last.version < newest.version:
            self._last = self._ledger.latest(self._table) or newest
        return self._last

    def _refresh(self) -> None:
        self._newest()

    def _observe(self, before: ObservedState | None) -> ObservedState:
        return self._translated(lambda: self._number_newest(before))

    def _number_newest(self, before: ObservedState | None) -> ObservedState:
        """Read the table and number its newest state; `before` is the last observation of this process.

        Raises:
            Unserveable: its newest state cannot be served, or another table is at its location.
            StoreError, BadRequest: its location cannot be read.
            CatalogConflict: it is no longer followed, or was published in another format.
        """
        for _ in range(MAX_READ_ATTEMPTS):
            # Read before the table, so that a later number is of a later read.
            latest = self._ledger.latest(self._table)
            pointer = self._observation.source.current(None if before is None else before.pointer)
            is_latest = before is not None and latest is not None and latest.version == before.newest.version
            known = before if is_latest else None
            if known is not None and known.pointer.mark == pointer.mark:
                return ObservedState(pointer, known.newest)
            history = self._read_history(pointer, latest)
            if history is None:
                break
            require_same_table(history, self._identity, self._stores, self._observation.source.root)
            new = self._find_new_states(history, known, latest)
            if not new and latest is not None:
                return ObservedState(pointer, latest)
            added = self._add_to_ledger(new, latest)
            if added:
                return ObservedState(pointer, added[-1])
        # Other workers were faster each time, and gave their newest number during this call; or the last state counts.
        latest = self._ledger.latest(self._table)
        if latest is None or latest.metadata_location is None:
            raise AssertionError("unreachable: another worker has numbered a state")
        # Without a mark, so that the next call reads the table.
        return ObservedState(Pointer(latest.metadata_location, "", latest.nessie_hash), latest)

    def _read_history(self, pointer: Pointer, latest: Publication | None) -> TableHistory | None:
        """The states in the metadata; None while its file is written, because the last state is current until then.

        Waits for the file, for up to `WRITTEN_WITHIN_S`, where the table has no earlier states.
        """
        while True:
            try:
                return read_history(self._stores, pointer)
            except IncompleteMetadata:
                file = self._stores.head(pointer.metadata_location)
                if file is None or abs(time.time() - file.modified_ms / 1000) > WRITTEN_WITHIN_S:
                    raise
                if latest is not None and latest.metadata_location is not None:
                    return None
            time.sleep(READ_AGAIN_S)

    def _find_new_states(
        self, history: TableHistory, known: ObservedState | None, latest: Publication | None
    ) -> Sequence[NewState]:
        commit = None if latest is None else latest.nessie_hash
        if known is not None:
            # Later than the number's commit; the table did not change between the two.
            commit = known.pointer.commit
        since = self._observation.source.states_since(commit, history.pointer)
        branch = None
        if since is not None:
            states = (history.state(s.snapshot_id, s.at_ms, s.metadata_location, s.commit) for s in since)
            branch = [state for state in states if state is not None]
        return find_new_states(history, branch, latest, self._ledger.numbered_snapshots(self._table))

    def _add_to_ledger(self, new: Sequence[NewState], latest: Publication | None) -> list[Publication] | None:
        """The new publications; the index of the newest state is built first, those of others on demand."""
        publications = [self._make_publication(state, self._count(state.state)) for state in new[:-1]]
        publications.append(self._make_publication(new[-1], self._describe(new[-1].state)))
        times, before = [state.at_ms for state in new], None if latest is None else latest.version
        return self._ledger.append_found(self._table, publications, times, before)

    def _describe(self, state: TableState) -> Mapping[str, Any]:
        """The counts of a state's index, or of its writer if only Iceberg clients can read it."""
        try:
            header = self._index_at(state.metadata_location, state.snapshot_id, state.schema_id).header
        except Unserveable as error:
            if not is_read_by_iceberg_clients(error):
                raise
            return self._count(state)
        return describe_index(header)

    def _count(self, state: TableState) -> Mapping[str, Any]:
        counts = {"rows": state.rows, "files": state.files, "size_bytes": state.size_bytes}
        return {**asdict(self._identity), "schema_string": "", **counts}

    def _make_publication(self, new: NewState, fields: Mapping[str, Any]) -> NewPublication:
        state = new.state
        return make_followed_publication(
            self._table,
            format="iceberg",
            metadata_location=state.metadata_location,
            snapshot_id=state.snapshot_id,
            schema_id=state.schema_id,
            nessie_hash=state.commit,
            run_id=new.run_id,
            rollback_of=new.rollback_of,
            **fields,
        )

    def _first(self) -> int:
        """The first readable number of this very table; the newest one is always readable."""
        if self._since is None:
            self._since = self._ledger.first_of(self._table, self._identity.table_id)
        newest = self._last or self._ledger.latest(self._table)
        first = max(self._followed.start_version, self._since)
        return first if newest is None else min(first, newest.version)

    def _readable(self, row: Publication | None) -> Version | None:
        return None if row is None or row.version < self._first() else Version.of(row)

    def _row(self, number: int) -> Publication | None:
        """The ledger's row with this number, if it is of this table."""
        row = super()._row(number)
        return None if row is None or row.table_id != self._identity.table_id else row

    def _before(self, first: int) -> Publication | None:
        return self._row(first - 1)

    def _metadata_location(self, row: Publication) -> str | None:
        observed = self._observation.seen
        # The owner may have removed the metadata file that the newest version was numbered with.
        is_newest = observed is not None and observed.newest.version == row.version
        return observed.pointer.metadata_location if observed and is_newest else row.metadata_location

    def _index(self, row: Publication) -> FileIndex:
        location, snapshot_id = pins_of(row)
        try:
            return self._index_at(location, snapshot_id, row.schema_id)
        except (Unserveable, StoreError) as error:
            if self._stores.head(location) is not None:
                raise
            observed = self._observation.seen or self._observation.refresh(self._observe)
            return self._index_from(observed.pointer, row, error)

    def _index_from(self, pointer: Pointer, row: Publication, error: LakeshareError) -> FileIndex:
        """The files of a version whose own metadata file was removed, from the newest metadata."""
        history = read_history(self._stores, pointer)
        _, snapshot_id = pins_of(row)
        # For the current snapshot, the newest metadata has the present column names.
        if history.table_id != row.table_id or history.schema_of(snapshot_id) != row.schema_id:
            what = f"the metadata of version {row.version} was removed, and newer metadata does not have it as it was"
            raise TableFilesMissing(self._identity.location, what) from error
        return self._index_at(pointer.metadata_location, snapshot_id, row.schema_id)

    def _index_at(self, metadata_location: str, snapshot_id: int, schema_id: int | None) -> FileIndex:
        identity = "followed", self._identity.table_id, metadata_location, snapshot_id, schema_id
        refusal = self._refused.get(identity)
        if refusal is not None:
            raise refusal.with_traceback(None)
        try:
            return self._sources.cache.get(identity, lambda: self._read(metadata_location, snapshot_id))
        except Unserveable as error:
            if is_read_by_iceberg_clients(error):
                self._refused.keep(identity, error)
            raise

    def _read(self, metadata_location: str, snapshot_id: int) -> TableSnapshot:
        pins, settings = (metadata_location, snapshot_id), self._sources.settings
        snapshot = _read_snapshot(self._identity, pins, settings, self._stores)
        if snapshot.head.table_id != self._identity.table_id:
            raise Unserveable(f"{metadata_location} is of another table now.", "Restore the table.")
        return snapshot

    def _translated(self, read: Callable[[], T]) -> T:
        """The result; a refusal is logged, and raised without locations, because recipients know only shared names."""
        try:
            return read()
        except LakeshareError as error:
            _log.warning("followed table %s at %s: %s", self._table, self._followed.location, error)
            raise hide_locations(error, (self._followed.location, self._identity.location)) from error


def _read_snapshot(
    table: IcebergIdentity, pins: tuple[str, int], settings: StateSettings, stores: Stores
) -> TableSnapshot:
    """The table at a snapshot. Its large deletion vectors are kept for all hosts, or by this one if it cannot write."""
    shared = settings.vectors_location
    # From another store than the table's nothing is handed out.
    if isinstance(shared, str) and parse_location(shared).root == parse_location(table.location).root:
        with suppress(StoreDenied):
            return read_iceberg(*pins, shared, stores)
    return read_iceberg(*pins, settings.vectors_dir, stores)


def read_unfollowed(location: str, stores: Stores, settings: StateSettings) -> IcebergIdentity | None:
    """Read a table once, before it is followed; None for a Delta table.

    Raises:
        Unserveable: there is no table, it has moved, or no API can serve its newest state.
        BadRequest: its catalog is not configured.
    """
    if is_delta(location, stores):
        read_delta(location, stores=stores)
        return None
    source = make_source(location, stores, settings)
    try:
        pointer = source.current(None)
    except TableFilesMissing as error:
        raise Unserveable(
            f"There is no Delta table at {location}, and no Iceberg table.",
            "Give the folder above _delta_log or metadata, or a table of a catalog: iceberg:CATALOG/NAMESPACE.TABLE.",
        ) from error
    history = read_history(stores, pointer)
    identity = make_identity(history, stores, source.root)
    state = history.current
    try:
        _read_snapshot(identity, (state.metadata_location, state.snapshot_id), settings, stores)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
    return identity
