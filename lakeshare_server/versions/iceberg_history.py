"""Looking at a followed Iceberg table, and numbering in the ledger what it went through since the last number.

Several workers do so at once: whoever finds that another one was faster looks again, so that numbers go with time.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from lakeshare_server.catalog import (
    FollowedTable,
    IcebergIdentity,
    Ledger,
    NewPublication,
    NumberedSnapshot,
    Publication,
)
from lakeshare_server.errors import BadRequest, TableFilesMissing, Unserveable
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.metadata import (
    NO_SNAPSHOT,
    MetadataTooLarge,
    decompress_metadata,
    readers_schema_id,
)
from lakeshare_server.tables.index import FileIndex, describe_index
from lakeshare_server.tables.serveability import is_read_by_iceberg_clients
from lakeshare_server.versions.metadata_sources import BranchState, MetadataSource, Pointer


@dataclass(frozen=True)
class ObservedState:
    """What a look found: the current metadata file, and the number of the state that it tells."""

    pointer: Pointer
    newest: Publication


class LatestObservation:
    """The last look at a table: what it found, or why it was refused."""

    def __init__(self, source: MetadataSource, check_every_s: float) -> None:
        self.source = source
        self.seen: ObservedState | None = None
        self._refresh = SharedRefresh(check_every_s, lasting_s=check_every_s)

    def is_fresh(self) -> bool:
        """Whether the last look found something and is not older than the interval."""
        return self._refresh.is_fresh()

    def refresh(self, observe: Callable[[ObservedState | None], ObservedState]) -> ObservedState:
        """What is to be seen; `look` is asked when the last look is too old, and gets what that one found.

        Raises:
            LakeshareError: what `look` raises, to everybody who waited for it; what lasts is repeated to everybody who
                asks within the interval, what passes for a moment.
        """
        self._refresh.run(lambda: self._look(observe))
        if self.seen is None:
            raise AssertionError("unreachable: a look finds something or is refused")
        return self.seen

    def _look(self, observe: Callable[[ObservedState | None], ObservedState]) -> None:
        self.seen = observe(self.seen)


MAX_METADATA_BYTES = 32 << 20
FORMATS = (1, 2, 3)
MAIN = "main"
# What a file that is not whole, or not Iceberg's at all, does to whoever takes it apart.
UNUSABLE = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class TableState:
    """A snapshot that was the table's current one, since when, and what readers need to read it as it was.

    Of a table without a snapshot it is `NO_SNAPSHOT`, since the metadata's own time.

    `rows`, `files` and `size_bytes` are what its writer counted, 0 where none did.
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
    """A metadata file, taken apart."""

    pointer: Pointer
    table_id: str
    location: str
    current: TableState
    updated_ms: int
    log: tuple[tuple[int, int], ...]  # time in ms and snapshot id of what became current, oldest first
    _snapshots: Mapping[int, Mapping[str, Any]]
    _today: int
    _schemas: frozenset[int]

    def state(self, snapshot_id: int, at_ms: int) -> TableState | None:
        """A snapshot as an earlier state of the table; None when it has expired."""
        return self._state(snapshot_id, at_ms, self.pointer.metadata_location, None)

    def branch_state(self, branch: BranchState) -> TableState | None:
        """The same of a state that a branch tells; None when the table's metadata does not list it."""
        return self._state(branch.snapshot_id, branch.at_ms, branch.metadata_location, branch.commit)

    def schema_of(self, snapshot_id: int) -> int | None:
        """The schema that readers of a snapshot get from this file; None when it has no such snapshot."""
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None:
            return None
        return _schema_of(
            snapshot, self._today, self._schemas, is_newest=snapshot_id == self.current.snapshot_id
        )

    def _state(
        self, snapshot_id: int, at_ms: int, metadata_location: str, commit: str | None
    ) -> TableState | None:
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None:
            return None
        schema_id = _schema_of(snapshot, self._today, self._schemas, is_newest=False)
        return _state_of(snapshot, at_ms, metadata_location, schema_id, commit)


def read_history(stores: Stores, pointer: Pointer) -> TableHistory:
    """The states that a metadata file tells.

    Raises:
        TableFilesMissing: it is not whole.
        Unserveable: it is too large, of an unknown format version, or has a main branch without a current snapshot.
        StoreError, Unavailable: it cannot be read, or not now.
    """
    location = pointer.metadata_location
    try:
        found = stores.head(location)
        if found is not None and found.size_bytes > MAX_METADATA_BYTES:
            raise _too_large(location)
        content = stores.read(location)
    except BadRequest as error:
        raise Unserveable(
            f"The metadata {location} is in no store that this server knows.", error.hint
        ) from error
    try:
        return _parse_history(pointer, orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES)))
    except MetadataTooLarge as error:
        raise _too_large(location) from error
    except UNUSABLE as error:
        what = f"the Iceberg metadata {location} is not whole ({type(error).__name__})"
        raise TableFilesMissing(location, what) from error


def _parse_history(pointer: Pointer, metadata: Mapping[str, Any]) -> TableHistory:
    location, place = pointer.metadata_location, str(metadata["location"])
    version = metadata["format-version"]
    if version not in FORMATS:
        raise Unserveable(
            f"{place} is an Iceberg table of format version {version}; this server reads versions 1 to 3.",
            "Use a newer lakeshare, or share a copy in an older format version.",
        )
    if not metadata.get("table-uuid"):
        raise Unserveable(
            f"{place} has no table UUID, so it cannot be told from another table in its place.",
            "Upgrade the table to format version 2.",
        )
    snapshots = {int(one["snapshot-id"]): one for one in metadata.get("snapshots") or ()}
    current_id, today = metadata.get("current-snapshot-id"), int(metadata.get("current-schema-id", 0))
    updated_ms = int(metadata["last-updated-ms"])
    # Writers of old versions say -1 where there is none.
    if current_id is None or current_id == NO_SNAPSHOT:
        if MAIN in (metadata.get("refs") or {}):
            raise Unserveable(
                f"{place} has no current snapshot, but a main branch.",
                "Restore the table's newest metadata file, or roll the table back to one of its snapshots.",
            )
        current_id = NO_SNAPSHOT
        snapshots[NO_SNAPSHOT] = {"snapshot-id": NO_SNAPSHOT, "timestamp-ms": updated_ms, "schema-id": today}
    log = tuple(
        (int(one["timestamp-ms"]), int(one["snapshot-id"])) for one in metadata.get("snapshot-log") or ()
    )
    current = snapshots[int(current_id)]
    since = log[-1][0] if log and log[-1][1] == int(current_id) else int(current["timestamp-ms"])
    return TableHistory(
        pointer=pointer,
        table_id=str(metadata["table-uuid"]).lower(),
        location=place,
        current=_state_of(current, since, location, today, pointer.commit),
        updated_ms=updated_ms,
        log=log,
        _snapshots=snapshots,
        _today=today,
        _schemas=frozenset(int(one.get("schema-id", 0)) for one in metadata.get("schemas") or ()),
    )


def _schema_of(snapshot: Mapping[str, Any], today: int, known: frozenset[int], *, is_newest: bool) -> int:
    return readers_schema_id(
        is_newest=is_newest, written_with=snapshot.get("schema-id"), today=today, known=known
    )


def _state_of(
    snapshot: Mapping[str, Any], at_ms: int, metadata_location: str, schema_id: int, commit: str | None
) -> TableState:
    summary = snapshot.get("summary") or {}
    rows, files, size = (
        _count(summary.get(name)) for name in ("total-records", "total-data-files", "total-files-size")
    )
    return TableState(
        int(snapshot["snapshot-id"]), at_ms, metadata_location, schema_id, rows, files, size, commit
    )


def _count(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else 0


def _too_large(location: str) -> Unserveable:
    return Unserveable(
        f"The Iceberg metadata {location} is too large: this server reads up to {MAX_METADATA_BYTES} bytes.",
        "Expire snapshots of the table, and let its writers delete old metadata from the log.",
    )


def complete_log(history: TableHistory) -> Sequence[TableState]:
    """The states that the snapshot log tells without a gap, oldest first; the last one is the current one.

    A time before an expired snapshot's is nobody's any more (Iceberg spec, "Snapshots": entries before one that has
    expired should be removed), so what lies before one is left out. Of a table without a snapshot no log tells since
    when.
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
    """A state that gets a number; `at_ms` is when it came about, None if nobody knows."""

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
    """The states to be numbered after `latest`, oldest first; none when the table is as it was.

    `branch` are the states of a branch since the latest number, None where the table's own log tells them; `numbered`
    is everything that has a number.
    """
    ours = [one for one in numbered if one.table_id == history.table_id]
    is_ours = latest is not None and latest.table_id == history.table_id
    last = (latest.snapshot_id, latest.schema_id) if latest is not None and is_ours else None
    if branch is None:
        fresh = _after_known(history, {our.run_id for our in ours})
        fresh = fresh if ours else fresh[-FIRST_OBSERVATION:]
    else:
        fresh = _of_branch(history, branch, None if last is None else last[0])
    found = [NewState(state, state.at_ms, _run_of(history, state)) for state in fresh]
    current = history.current.snapshot_id, history.current.schema_id
    newest = (fresh[-1].snapshot_id, fresh[-1].schema_id) if fresh else last
    if newest != current:
        found.append(_state_without_log(history, newest, latest))
    return _with_rollbacks(found, -1 if latest is None else latest.version, ours)


def _after_known(history: TableHistory, runs: Collection[str]) -> Sequence[TableState]:
    """What the table's log tells after the last state that has a number."""
    states = complete_log(history)
    known = [place for place, state in enumerate(states) if _run_of(history, state) in runs]
    return states[known[-1] + 1 :] if known else states


def _of_branch(
    history: TableHistory, branch: Sequence[TableState], last_snapshot: int | None
) -> Sequence[TableState]:
    """The branch's states without commits that left the snapshot as it was."""
    states: list[TableState] = []
    for state in branch:
        before = states[-1].snapshot_id if states else last_snapshot
        if state.snapshot_id != before:
            states.append(state)
    if states and states[-1].snapshot_id == history.current.snapshot_id:
        current = history.current
        states[-1] = replace(
            states[-1], metadata_location=current.metadata_location, schema_id=current.schema_id
        )
    return states


def _state_without_log(
    history: TableHistory, newest: tuple[int | None, ...] | None, latest: Publication | None
) -> NewState:
    """The current state where no log tells how it came about: other columns, or an older state restored."""
    state = history.current
    if latest is None:
        return NewState(state, state.at_ms, _run_of(history, state))
    run_id = f"{_run_of(history, state)}-after-{latest.version}"
    has_other_columns = newest is not None and newest[0] == state.snapshot_id
    return NewState(state, history.updated_ms if has_other_columns else None, run_id)


def _with_rollbacks(
    found: Sequence[NewState], latest: int, numbered: Sequence[NumberedSnapshot]
) -> Sequence[NewState]:
    """The same, with the number that a restored snapshot had before."""
    numbers = {one.snapshot_id: one.version for one in numbered}
    states = []
    for number, one in enumerate(found, latest + 1):
        before = numbers.get(one.state.snapshot_id)
        # The number right before pins the same snapshot where only the columns changed.
        states.append(one if before is None or before == number - 1 else replace(one, rollback_of=before))
        numbers[one.state.snapshot_id] = number
    return states


def _run_of(history: TableHistory, state: TableState) -> str:
    return f"follow-{history.table_id}-{state.commit or state.at_ms}-{state.snapshot_id}"


MAX_READ_ATTEMPTS = 5
# How long to wait for a file that may be on its way: on a disk writers are seen at work.
WRITTEN_WITHIN_S = 0.1


class SnapshotNumbers:
    """Numbers the states of one table; `index` builds the files of one before its number is told."""

    def __init__(
        self,
        ledger: Ledger,
        followed: FollowedTable,
        identity: IcebergIdentity,
        source: MetadataSource,
        stores: Stores,
        index: Callable[[TableState], FileIndex],
    ) -> None:
        self._ledger, self._table, self._identity = ledger, followed.table, identity
        self._source, self._stores, self._index = source, stores, index

    def look(self, before: ObservedState | None) -> ObservedState:
        """The table as it is now, its newest state numbered; `before` is what the last look of this process saw.

        Raises:
            Unserveable: its newest state cannot be served, or another table is in its place.
            StoreError, BadRequest: its place cannot be read.
            Unavailable: it cannot be read now.
            CatalogConflict: it is followed no more, or was published in another format.
        """
        for attempt in range(1, MAX_READ_ATTEMPTS + 1):
            # Read before the table is: whoever numbers a state later has seen the table later.
            latest = self._ledger.latest(self._table)
            pointer = self._source.current(None if before is None else before.pointer)
            was_seen = before if before is not None and _is_latest(before, latest) else None
            if was_seen is not None and was_seen.pointer.mark == pointer.mark:
                return ObservedState(pointer, was_seen.newest)
            try:
                history = read_history(self._stores, pointer)
            except TableFilesMissing:
                if attempt == MAX_READ_ATTEMPTS:
                    raise
                time.sleep(WRITTEN_WITHIN_S)
                continue
            require_same_table(history, self._identity, self._stores, self._source.root)
            found = self._new_states(history, was_seen, latest)
            if not found and latest is not None:
                return ObservedState(pointer, latest)
            entered = self._enter(found, latest)
            if entered:
                return ObservedState(pointer, entered[-1])
        return self._told_by_others()

    def _told_by_others(self) -> ObservedState:
        """The newest number, where others were faster again and again: it was given while this look was under way."""
        latest = self._ledger.latest(self._table)
        if latest is None or latest.metadata_location is None:
            raise AssertionError("unreachable: somebody else has numbered a state")
        # Without a mark: the next look reads the table again.
        return ObservedState(Pointer(latest.metadata_location, "", latest.nessie_hash), latest)

    def _new_states(
        self, history: TableHistory, was_seen: ObservedState | None, latest: Publication | None
    ) -> Sequence[NewState]:
        commit = None if latest is None else latest.nessie_hash
        if was_seen is not None:
            # Later than the number's, and nothing has happened to the table between the two.
            commit = was_seen.pointer.commit
        told = self._source.states_since(commit, history.pointer)
        branch = None if told is None else [one for one in map(history.branch_state, told) if one is not None]
        return find_new_states(history, branch, latest, self._ledger.numbered_snapshots(self._table))

    def _enter(self, found: Sequence[NewState], latest: Publication | None) -> list[Publication] | None:
        """The ledger's entries; the newest state's index is built first, those of others when they are asked for."""
        newest = found[-1]
        publications = [self._publication(one, _counted(one.state, self._identity)) for one in found[:-1]]
        publications.append(self._publication(newest, self._described(newest.state)))
        times = [one.at_ms for one in found]
        return self._ledger.append_found(
            self._table, publications, times, None if latest is None else latest.version
        )

    def _described(self, state: TableState) -> Mapping[str, Any]:
        """A state by its index, which is built first; one that only Iceberg clients can read has none."""
        try:
            header = self._index(state).header
        except Unserveable as error:
            if not is_read_by_iceberg_clients(error):
                raise
            return _counted(state, self._identity)
        return describe_index(header, header)

    def _publication(self, found: NewState, fields: Mapping[str, Any]) -> NewPublication:
        state = found.state
        return NewPublication(
            table=self._table,
            set_name="",
            format="iceberg",
            metadata_location=state.metadata_location,
            snapshot_id=state.snapshot_id,
            schema_id=state.schema_id,
            nessie_hash=state.commit,
            index_digest="",
            contract_digest="",
            verdicts={},
            run_id=found.run_id,
            partition="",
            audited=False,
            rollback_of=found.rollback_of,
            **fields,
        )


def require_same_table(
    history: TableHistory, identity: IcebergIdentity, stores: Stores, root: str | None
) -> None:
    """Refuse metadata of another table than the one that is followed, and of one that has moved.

    Raises:
        Unserveable: says what is different.
    """
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
    """Which table the metadata is of.

    Raises:
        Unserveable: its location is of no store of ours, or not the folder `root` that it was found in.
    """
    try:
        location = stores.place(history.location).location.rstrip("/")
    except BadRequest as error:
        raise Unserveable(
            f"The table says that it is in {history.location}, which is no store of ours.", error.hint
        ) from error
    if root is not None and location != root:
        raise Unserveable(
            f"{root} has moved: the table says that it is in {location}, and names its files there.",
            "Follow it there, or follow one metadata file of it.",
        )
    return IcebergIdentity(history.table_id, location)


def _is_latest(observed: ObservedState, latest: Publication | None) -> bool:
    """Whether nobody has numbered anything since."""
    return latest is not None and latest.version == observed.newest.version


def _counted(state: TableState, identity: IcebergIdentity) -> Mapping[str, Any]:
    """What is told of a state whose files nobody has looked at: its writer's own counts."""
    return {
        "location": identity.location,
        "table_id": identity.table_id,
        "schema_string": "",
        "rows": state.rows,
        "files": state.files,
        "size_bytes": state.size_bytes,
    }
