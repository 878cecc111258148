"""The versions of a followed table: those its Delta log in storage has, found by looking there now and then.

A version is in the ledger, marked unaudited, before any recipient learns its number. Older ones are read from the
log on demand; their indexes are kept in a cache.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from lakeshare_server.catalog import FollowedTable, Ledger, NewPublication
from lakeshare_server.errors import CatalogConflict
from lakeshare_server.tables.delta.changes import ChangeLog, SegmentCache, VersionChanges, read_changes
from lakeshare_server.tables.delta.replay import replay
from lakeshare_server.tables.delta.snapshot import snapshot_of
from lakeshare_server.tables.description import described
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.index import FileIndex, IndexHeader
from lakeshare_server.tables.index_cache import IndexCache
from lakeshare_server.tables.snapshot import TableSnapshot
from lakeshare_server.versions.followed_log import FollowedLog
from lakeshare_server.versions.version import PinnedSnapshot, Version

# Looks at a log that has fewer versions than another worker found in it.
LOOKS = 2


class FollowedVersions:
    """Reads the log of one followed table."""

    def __init__(
        self,
        ledger: Ledger,
        followed: FollowedTable,
        log: FollowedLog,
        cache: IndexCache,
        segments: SegmentCache,
    ) -> None:
        self._ledger, self._followed, self._log = ledger, followed, log
        self._cache, self._segments = cache, segments
        # These versions live for one generation of the catalog: what other workers enter begins the next.
        self._is_compared = False

    def location(self) -> str:
        """The table's folder."""
        return self._log.root

    def services(self) -> Sequence[str]:
        """The table's store."""
        return self._log.stores.services_of(self._log.root)

    def latest(self) -> Version:
        """The newest version in storage, as of a look that is not older than the table's interval.

        Raises:
            StoreError: the log is gone, or the store refuses it.
            Unserveable: its newest version cannot be served; an older one is not passed off as it.
            Unavailable: the store does not answer.
        """
        self._refresh()
        return self._version(self._log.latest)

    def latest_now(self) -> Version | None:
        """The newest version, if somebody looked within the table's interval; reads nothing."""
        return self._log.newest if self._is_compared and self._log.is_fresh() else None

    def oldest(self) -> Version:
        """The oldest version that the log can still tell, and the operator shows."""
        self._refresh()
        return self._version(self._first())

    def at(self, number: int) -> Version | None:
        """The version with this number, None when the log cannot tell it."""
        self._refresh()
        is_told = self._first() <= number <= self._log.latest and self._log.has(number)
        return self._version(number) if is_told else None

    def at_or_below(self, number: int) -> Version | None:
        """The last version with this number or a lower one."""
        numbers = self._numbers()
        place = bisect_right(numbers, number)
        return self._version(numbers[place - 1]) if place else None

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last version of that time or earlier."""
        numbers = self._numbers()
        place = bisect_right(numbers, timestamp_ms, key=self._log.timestamp_ms)
        return self._version(numbers[place - 1]) if place else None

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first version of that time or later."""
        numbers = self._numbers()
        place = bisect_left(numbers, timestamp_ms, key=self._log.timestamp_ms)
        return self._version(numbers[place]) if place < len(numbers) else None

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """None: what is followed is a Delta log."""
        return ()

    def index(self, version: Version) -> FileIndex:
        """The files of a version; built when it is asked for first."""
        return self._index(version.number)

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What the versions `first` to `last` changed."""
        log = self._log
        changes = read_changes(
            ChangeLog(log.stores, log.root, listing=log.listing), self._segments, first, last
        )
        return [one if one.tells_time else one.at(log.timestamp_ms(one.version)) for one in changes]

    def feed(self, first: int, last: int, told_at: int | None) -> Sequence[VersionChanges]:
        """The same: Delta's log has one answer for both."""
        return self.changes(first, last)

    def unlike_columns(self, first: int, last: int, told_at: int) -> str | None:
        """None: Delta's log tells renamed columns by id for good."""
        return None

    def _refresh(self) -> None:
        """Look at the log unless that was done within the interval, and no worker has found more since.

        Raises:
            LakeshareError: as `FollowedLog.refresh`.
        """
        self._log.refresh(self._publish)
        if self._is_compared:
            return
        entered = self._ledger.latest(self._followed.table)
        # A look may have been under way: the second one begins after the number was entered. A table that was made
        # anew has lower numbers than the ledger for good.
        for _ in range(LOOKS):
            if entered is None or self._log.latest >= entered.version:
                break
            self._log.expire()
            self._log.refresh(self._publish)
        self._is_compared = True

    def _numbers(self) -> list[int]:
        self._refresh()
        return self._log.numbers(self._first())

    def _first(self) -> int:
        # The newest one is there however late the operator lets the table begin.
        return min(max(self._followed.start_version, self._log.oldest), self._log.latest)

    def _version(self, number: int) -> Version:
        return Version(number, self._log.timestamp_ms(number))

    def _index(self, number: int) -> FileIndex:
        return self._cache.get(self._log.identity(number), lambda: self._snapshot(number))

    def _snapshot(self, number: int) -> TableSnapshot:
        return snapshot_of(self._log.root, replay(self._log.stores, self._log.listing, number))

    def _publish(self, number: int) -> TableHead:
        """Enter a version that was found into the ledger; returns its head."""
        header = self._index(number).header
        if not self._is_entered(number):
            try:
                self._ledger.append([self._found(number, header)])
            except CatalogConflict:
                # Another worker may have entered a later one since.
                if not self._is_entered(number):
                    raise
        return header.head

    def _is_entered(self, number: int) -> bool:
        """Whether the version was seen before, or the table made anew: the ledger's numbers only grow."""
        known = self._ledger.latest(self._followed.table)
        return known is not None and known.version >= number

    def _found(self, number: int, header: IndexHeader) -> NewPublication:
        return NewPublication(
            table=self._followed.table,
            set_name="",
            format="delta",
            delta_version=number,
            **described(header, header),
            index_digest="",
            contract_digest="",
            verdicts={},
            run_id=f"follow-{header.head.table_id}-{number}",
            partition="",
            audited=False,
        )
