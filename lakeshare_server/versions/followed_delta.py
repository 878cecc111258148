"""The versions of a followed table: those its Delta log in storage has, found by looking there now and then.

A version is in the ledger, marked unaudited, before any recipient learns its number. Older ones are read from the
log on demand; their indexes are kept in a cache.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from lakeshare_server.catalog import FollowedTable, Ledger, NewPublication
from lakeshare_server.errors import CatalogConflict, TableFilesMissing
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.storage import StoredObject, Stores
from lakeshare_server.tables.delta.changes import ChangeLog, SegmentCache, VersionChanges, read_changes
from lakeshare_server.tables.delta.log import (
    LOG,
    LogListing,
    list_log,
    read_commits,
    replay,
    require_published,
)
from lakeshare_server.tables.delta.snapshot import snapshot_of
from lakeshare_server.tables.index import FileIndex, IndexCache, IndexHeader, describe_index
from lakeshare_server.tables.snapshot import TableHead, TableSnapshot
from lakeshare_server.versions.version import PinnedSnapshot, Version

_log = logging.getLogger(__name__)


class FollowedLog:
    """The listing of a log, kept fresh, and the times of its versions."""

    def __init__(self, stores: Stores, root: str, check_every_s: float) -> None:
        self.stores, self.root, self.check_every_s = stores, root.rstrip("/"), check_every_s
        self.listing = LogListing(self.root)
        self.newest: Version | None = None
        self._refresh = SharedRefresh(check_every_s)
        self._published: tuple[int, StoredObject | None] | None = None
        self._commit_times_since: int | None = None
        self._is_catalog_managed = False
        self._numbers: list[int] = []
        self._times: Mapping[int, int] = {}
        self._commit_times: dict[int, int] = {}

    def is_fresh(self) -> bool:
        """Whether the last look is not older than the interval."""
        return self._refresh.is_fresh()

    @property
    def latest(self) -> int:
        """The newest version that recipients may know of."""
        if self._published is None:
            raise TableFilesMissing(self.root, "its log was never read")
        return self._published[0]

    def numbers(self, first: int) -> list[int]:
        """The versions from `first` on whose commit or checkpoint is there: a log may have lost some in between."""
        numbers = self._numbers
        return numbers[bisect_left(numbers, first) : bisect_right(numbers, self.latest)]

    def has(self, version: int) -> bool:
        """Whether the version's commit or checkpoint is there."""
        listing = self.listing
        return version in listing.commits or version in listing.checkpoints

    @property
    def oldest(self) -> int:
        """The oldest version that the log can still tell."""
        return self.listing.oldest_readable()

    def refresh(self, publish: Callable[[int], TableHead]) -> None:
        """Look for new versions when the last look is too old; `publish` is told of the newest, before it is shown.

        Raises:
            LakeshareError: what the store or `publish` raises, to everybody who waited for that look, too. While the
                store does not answer this is repeated for a moment; after that the next request looks again.
        """
        self._refresh.run(lambda: self._look(publish))

    def expire(self) -> None:
        """Let the next `refresh` look, however fresh the last look is."""
        self._refresh.expire()

    def timestamp_ms(self, version: int) -> int:
        """When a version came about; times grow with the versions, whatever clocks and copies did to the files."""
        since = self._commit_times_since
        if since is not None and version >= since:
            return self._in_commit_time(version)
        known = self._times.get(version)
        return self._file_of(version).modified_ms if known is None else known

    def identity(self, version: int) -> tuple[object, ...]:
        """What an index of the version is kept under: a table made anew at the same place is another one."""
        file = self._file_of(version)
        return self.root, version, file.etag or file.modified_ms, file.size_bytes

    def _look(self, publish: Callable[[int], TableHead]) -> None:
        before = self._published
        grown = None if before is None else self._grown(before)
        if before is not None and grown is not None:
            try:
                self._take(grown, publish, before)
            except TableFilesMissing as error:
                _log.warning("%s is listed anew: %s", self.root, error)
            else:
                return
        listing = list_log(self.stores, self.root)
        listing.latest  # noqa: B018  what is known is not given up for a log that is gone, maybe for a moment
        self._commit_times = {}
        self._take(listing, publish, None)

    def _grown(self, published: tuple[int, StoredObject | None]) -> LogListing | None:
        """The listing with what was added since; None when more than that has happened to the log."""
        version, file = published
        if file is None or self.stores.head(file.location) != file:
            return None
        if self.stores.head(f"{self.root}/{LOG}/{version + 1:020d}.json") is None:
            return self.listing
        oldest = self.listing.commits[min(self.listing.commits)]
        if self.stores.head(oldest.location) is None:
            return None
        # From the known version on: a checkpoint of it comes after its commit.
        return self.listing.grown_by(list_log(self.stores, self.root, version))

    def _take(
        self,
        listing: LogListing,
        publish: Callable[[int], TableHead],
        before: tuple[int, StoredObject | None] | None,
    ) -> None:
        is_new, newest = listing is not self.listing, listing.latest
        self.listing = listing
        if before is None or newest != before[0]:
            head = publish(newest)
            self._commit_times_since = head.commit_times_since
            self._is_catalog_managed = head.is_catalog_managed
        if self._is_catalog_managed:
            require_published(self.stores, self.root, newest)
        if is_new:
            self._numbers = sorted({*listing.commits, *listing.checkpoints})
            self._times = self._file_times(listing)
        self._published = (newest, listing.commits.get(newest))
        # The commit may have to be read for its time: polls are answered where nobody may wait for that.
        self.newest = Version(newest, self.timestamp_ms(newest))

    def _file_times(self, listing: LogListing) -> dict[int, int]:
        """The times of the versions that do not tell their own, each later than the one before."""
        since = self._commit_times_since
        numbers = [number for number in self._numbers if since is None or number < since]
        times: dict[int, int] = {}
        last = None
        for number in numbers:
            commit = listing.commits.get(number)
            if commit is not None:
                last = commit.modified_ms if last is None else max(commit.modified_ms, last + 1)
                times[number] = last
        # Files are younger than what they tell where a log was copied, and checkpoints than the commits behind them.
        following = None
        if len(numbers) < len(self._numbers):
            following = self._in_commit_time(self._numbers[len(numbers)])
        for number in reversed(numbers):
            told = times.get(number, self._file_of(number).modified_ms)
            times[number] = following = told if following is None else min(told, following - 1)
        return times

    def _file_of(self, version: int) -> StoredObject:
        listing = self.listing
        found = listing.commits.get(version)
        if found is None and version in listing.checkpoints:
            found = listing.checkpoints[version][0].parts[0]
        if found is None:
            raise TableFilesMissing(self.root, f"the log of version {version} is gone")
        return found

    def _in_commit_time(self, version: int) -> int:
        known = self._commit_times.get(version)
        if known is not None:
            return known
        commit = self.listing.commits.get(version)
        if commit is None:
            place = bisect_right(self._numbers, version)
            known = self._file_of(version).modified_ms
            if place < len(self._numbers):
                known = min(known, self._in_commit_time(self._numbers[place]) - 1)
        else:
            [read] = read_commits(self.stores, self.root, [(version, version, commit)])
            told = read.info.get("inCommitTimestamp")
            known = told if isinstance(told, int) else commit.modified_ms
        self._commit_times[version] = known
        return known


MAX_READ_ATTEMPTS = 2


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
        return [
            change if change.tells_time else change.at(log.timestamp_ms(change.version)) for change in changes
        ]

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same: Delta's log has one answer for both."""
        return self.changes(first, last)

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
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
        for _ in range(MAX_READ_ATTEMPTS):
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
            **describe_index(header, header),
            index_digest="",
            contract_digest="",
            verdicts={},
            run_id=f"follow-{header.head.table_id}-{number}",
            partition="",
            audited=False,
        )
