"""What an Iceberg metadata file says of the states of a table's main branch (Iceberg spec, "Table Metadata").

Only what numbering needs is looked at; how a snapshot is read is `tables.iceberg`'s business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lakeshare_server.errors import BadRequest, TableFilesMissing, Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, readers_schema_id
from lakeshare_server.tables.iceberg.metadata_json import TooLong, unpacked
from lakeshare_server.versions.metadata_source import BranchState, Pointer

# About 60,000 snapshots; reading more keeps all other answers of the process waiting for seconds.
MOST_BYTES = 32 << 20
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

    def branch_state(self, told: BranchState) -> TableState | None:
        """The same of a state that a branch tells; None when the table's metadata does not list it."""
        return self._state(told.snapshot_id, told.at_ms, told.metadata_location, told.commit)

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
        if found is not None and found.size_bytes > MOST_BYTES:
            raise _too_large(location)
        content = stores.read(location)
    except BadRequest as error:
        raise Unserveable(
            f"The metadata {location} is in no store that this server knows.", error.hint
        ) from error
    try:
        return _taken_apart(pointer, orjson.loads(unpacked(content, MOST_BYTES)))
    except TooLong as error:
        raise _too_large(location) from error
    except UNUSABLE as error:
        what = f"the Iceberg metadata {location} is not whole ({type(error).__name__})"
        raise TableFilesMissing(location, what) from error


def _taken_apart(pointer: Pointer, metadata: Mapping[str, Any]) -> TableHistory:
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
        f"The Iceberg metadata {location} is too large: this server reads up to {MOST_BYTES} bytes.",
        "Expire snapshots of the table, and let its writers delete old metadata from the log.",
    )


def told_log(history: TableHistory) -> Sequence[TableState]:
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
