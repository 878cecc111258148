"""Looking at a followed Iceberg table, and numbering in the ledger what it went through since the last number.

Several workers do so at once: whoever finds that another one was faster looks again, so that numbers go with time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lakeshare_server.catalog import FollowedTable, IcebergIdentity, Ledger, NewPublication, Publication
from lakeshare_server.errors import BadRequest, TableFilesMissing, Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.description import described
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.serveability import is_read_by_iceberg_clients
from lakeshare_server.versions.metadata_source import MetadataSource, Pointer
from lakeshare_server.versions.numbering import Found, new_states
from lakeshare_server.versions.snapshot_look import Seen
from lakeshare_server.versions.table_history import TableHistory, TableState, read_history

# So often a look is begun anew because another worker has numbered a state meanwhile, or a file is not whole.
LOOKS = 5
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

    def look(self, before: Seen | None) -> Seen:
        """The table as it is now, its newest state numbered; `before` is what the last look of this process saw.

        Raises:
            Unserveable: its newest state cannot be served, or another table is in its place.
            StoreError, BadRequest: its place cannot be read.
            Unavailable: it cannot be read now.
            CatalogConflict: it is followed no more, or was published in another format.
        """
        for attempt in range(1, LOOKS + 1):
            # Read before the table is: whoever numbers a state later has seen the table later.
            latest = self._ledger.latest(self._table)
            pointer = self._source.current(None if before is None else before.pointer)
            was_seen = before if before is not None and _is_latest(before, latest) else None
            if was_seen is not None and was_seen.pointer.mark == pointer.mark:
                return Seen(pointer, was_seen.newest)
            try:
                history = read_history(self._stores, pointer)
            except TableFilesMissing:
                if attempt == LOOKS:
                    raise
                time.sleep(WRITTEN_WITHIN_S)
                continue
            require_same_table(history, self._identity, self._stores, self._source.root)
            found = self._new_states(history, was_seen, latest)
            if not found and latest is not None:
                return Seen(pointer, latest)
            entered = self._enter(found, latest)
            if entered:
                return Seen(pointer, entered[-1])
        return self._told_by_others()

    def _told_by_others(self) -> Seen:
        """The newest number, where others were faster again and again: it was given while this look was under way."""
        latest = self._ledger.latest(self._table)
        if latest is None or latest.metadata_location is None:
            raise AssertionError("unreachable: somebody else has numbered a state")
        # Without a mark: the next look reads the table again.
        return Seen(Pointer(latest.metadata_location, "", latest.nessie_hash), latest)

    def _new_states(
        self, history: TableHistory, was_seen: Seen | None, latest: Publication | None
    ) -> Sequence[Found]:
        commit = None if latest is None else latest.nessie_hash
        if was_seen is not None:
            # Later than the number's, and nothing has happened to the table between the two.
            commit = was_seen.pointer.commit
        told = self._source.states_since(commit, history.pointer)
        branch = None if told is None else [one for one in map(history.branch_state, told) if one is not None]
        return new_states(history, branch, latest, self._ledger.numbered_snapshots(self._table))

    def _enter(self, found: Sequence[Found], latest: Publication | None) -> list[Publication] | None:
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
        return described(header, header)

    def _publication(self, found: Found, told: Mapping[str, Any]) -> NewPublication:
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
            **told,
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
    location = identity_of(history, stores, root).location
    if location != identity.location:
        raise Unserveable(
            f"{identity.location} has moved: the table says now that it is in {location}.",
            "Move it back, or end this and follow it there: lakeshare table unfollow.",
        )


def identity_of(history: TableHistory, stores: Stores, root: str | None) -> IcebergIdentity:
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


def _is_latest(seen: Seen, latest: Publication | None) -> bool:
    """Whether nobody has numbered anything since."""
    return latest is not None and latest.version == seen.newest.version


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
