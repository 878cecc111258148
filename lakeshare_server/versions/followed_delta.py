"""The versions of a followed Delta table: those of its log in storage, which is read at intervals.

A version is in the ledger, marked unaudited, before recipients learn its number. Older versions are read from
the log on demand; their indexes are cached.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from lakeshare_server.catalog import FollowedTable, NewPublication
from lakeshare_server.errors import CatalogConflict, TableFilesMissing
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.storage import StoredObject, Stores
from lakeshare_server.tables.delta.changes import ChangeLog, VersionChanges, read_changes
from lakeshare_server.tables.delta.log import (
    LOG,
    LogListing,
    list_log,
    read_commits,
    replay,
    require_published,
)
from lakeshare_server.tables.delta.snapshot import snapshot_of
from lakeshare_server.tables.index import FileIndex, IndexHeader, describe_index
from lakeshare_server.tables.snapshot import TableHead, TableSnapshot
from lakeshare_server.versions.published import (
    PinnedSnapshot,
    Version,
    VersionSources,
    make_followed_publication,
)

_log = logging.getLogger(__name__)


class FollowedLog:
    """The listing of a log, refreshed at intervals, and the times of its versions."""

    def __init__(self, stores: Stores, root: str, check_every_s: float) -> None:
        self.stores, self.root, self.check_every_s = stores, root.rstrip("/"), check_every_s
        self.listing = LogListing(self.root)
        self.newest: Version | None = None
        self.refreshing = SharedRefresh(check_every_s)
        self._published: tuple[int, StoredObject | None] | None = None
        self._commit_times_since: int | None = None
        self._is_catalog_managed = False
        self._numbers: list[int] = []
        self._times: Mapping[int, int] = {}
        self._commit_times: dict[int, int] = {}

    @property
    def latest(self) -> int:
        """The newest version for recipients."""
        if self._published is None:
            raise TableFilesMissing(self.root, "its log was never read")
        return self._published[0]

    def numbers(self, first: int) -> list[int]:
        """The versions from `first` on that have a commit or checkpoint: a log may have gaps."""
        numbers = self._numbers
        return numbers[bisect_left(numbers, first) : bisect_right(numbers, self.latest)]

    def has(self, version: int) -> bool:
        listing = self.listing
        return version in listing.commits or version in listing.checkpoints

    @property
    def oldest(self) -> int:
        """The oldest version that the log can replay."""
        return self.listing.oldest_readable()

    def refresh(self, publish: Callable[[int], TableHead]) -> None:
        """List new versions when the last refresh is too old; `publish` gets the newest before recipients see it."""
        self.refreshing.run(lambda: self._reload(publish))

    def timestamp_ms(self, version: int) -> int:
        """The time of a version; times grow with the versions, also where clocks and copies disagree."""
        since = self._commit_times_since
        if since is not None and version >= since:
            return self._in_commit_time(version)
        known = self._times.get(version)
        return self._file_of(version).modified_ms if known is None else known

    def identity(self, version: int) -> tuple[object, ...]:
        """The cache key of a version's index; different for a table that was recreated at the same location."""
        file = self._file_of(version)
        return self.root, version, file.etag or file.modified_ms, file.size_bytes

    def _reload(self, publish: Callable[[int], TableHead]) -> None:
        before = self._published
        extended = None if before is None else self._extend(before)
        if before is not None and extended is not None:
            try:
                self._apply(extended, publish, before)
            except TableFilesMissing as error:
                _log.warning("%s is listed again: %s", self.root, error)
            else:
                return
        listing = list_log(self.stores, self.root)
        listing.latest  # noqa: B018  raises for a log that is missing, maybe for a moment: the known one is kept
        self._commit_times = {}
        self._apply(listing, publish, None)

    def _extend(self, published: tuple[int, StoredObject | None]) -> LogListing | None:
        """The listing with new files; None when the log changed in another way."""
        version, file = published
        if file is None or self.stores.head(file.location) != file:
            return None
        if self.stores.head(f"{self.root}/{LOG}/{version + 1:020d}.json") is None:
            return self.listing
        oldest = self.listing.commits[min(self.listing.commits)]
        if self.stores.head(oldest.location) is None:
            return None
        # From the known version on, because its checkpoint is written after its commit.
        return self.listing.grown_by(list_log(self.stores, self.root, version))

    def _apply(
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
        # Reads the commit if its time is in it: `latest_now` must not wait for that.
        self.newest = Version(newest, self.timestamp_ms(newest))

    def _file_times(self, listing: LogListing) -> dict[int, int]:
        """The times of the versions without a time of their own, each later than the one before."""
        since = self._commit_times_since
        numbers = [number for number in self._numbers if since is None or number < since]
        times: dict[int, int] = {}
        last = None
        for number in numbers:
            commit = listing.commits.get(number)
            if commit is not None:
                last = commit.modified_ms if last is None else max(commit.modified_ms, last + 1)
                times[number] = last
        # In a copied log files are younger than their content, and checkpoints than the commits after them.
        following = None
        if len(numbers) < len(self._numbers):
            following = self._in_commit_time(self._numbers[len(numbers)])
        for number in reversed(numbers):
            own = times.get(number, self._file_of(number).modified_ms)
            times[number] = following = own if following is None else min(own, following - 1)
        return times

    def _file_of(self, version: int) -> StoredObject:
        commit, listing = self.listing.commits.get(version), self.listing
        if commit is not None:
            return commit
        if version not in listing.checkpoints:
            raise TableFilesMissing(self.root, f"the log of version {version} is gone")
        return listing.checkpoints[version][0].parts[0]

    def _in_commit_time(self, version: int) -> int:
        known = self._commit_times.get(version)
        if known is not None:
            return known
        commit = self.listing.commits.get(version)
        if commit is None:
            following = bisect_right(self._numbers, version)
            known = self._file_of(version).modified_ms
            if following < len(self._numbers):
                known = min(known, self._in_commit_time(self._numbers[following]) - 1)
        else:
            [read] = read_commits(self.stores, self.root, [(version, version, commit)])
            in_commit = read.info.get("inCommitTimestamp")
            known = in_commit if isinstance(in_commit, int) else commit.modified_ms
        self._commit_times[version] = known
        return known


MAX_READ_ATTEMPTS = 2
# The first response for a table with more files does not wait for its bounds and the file of its index.
SMALL_FILES = 50_000


class FollowedVersions:
    """The versions of one followed Delta table."""

    def __init__(self, sources: VersionSources, followed: FollowedTable, log: FollowedLog) -> None:
        self._sources, self._followed, self._log = sources, followed, log
        # This object lives for one generation of the catalog; a version added by another worker begins the next one.
        self._is_compared = False

    def location(self) -> str:
        return self._log.root

    def services(self) -> Sequence[str]:
        return self._log.stores.services_of(self._log.root)

    def latest(self) -> Version:
        self._refresh()
        return self._version(self._log.latest)

    def latest_now(self) -> Version | None:
        return self._log.newest if self._is_compared and self._log.refreshing.is_fresh() else None

    def oldest(self) -> Version:
        self._refresh()
        return self._version(self._first())

    def at(self, number: int) -> Version | None:
        self._refresh()
        is_readable = self._first() <= number <= self._log.latest and self._log.has(number)
        return self._version(number) if is_readable else None

    def at_or_below(self, number: int) -> Version | None:
        numbers = self._numbers()
        place = bisect_right(numbers, number)
        return self._version(numbers[place - 1]) if place else None

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        numbers = self._numbers()
        place = bisect_right(numbers, timestamp_ms, key=self._log.timestamp_ms)
        return self._version(numbers[place - 1]) if place else None

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        numbers = self._numbers()
        place = bisect_left(numbers, timestamp_ms, key=self._log.timestamp_ms)
        return self._version(numbers[place]) if place < len(numbers) else None

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        return ()

    def index(self, version: Version) -> FileIndex:
        return self._index(version.number)

    def changes(
        self, first: int, last: int, *, feed: bool = False, schema_at: int | None = None
    ) -> Sequence[VersionChanges]:
        log = self._log
        change_log = ChangeLog(log.stores, log.root, listing=log.listing)
        changes = read_changes(change_log, self._sources.segments, first, last)
        return [each if each.has_own_time else each.at(log.timestamp_ms(each.version)) for each in changes]

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        # Delta's log maps renamed columns by id.
        return None

    def _refresh(self) -> None:
        """Refreshes the log unless it is fresh, and not behind the versions of other workers."""
        self._log.refresh(self._publish)
        if self._is_compared:
            return
        latest = self._sources.ledger.latest(self._followed.table)
        # A refresh may have been running: the second one begins after the number was added. A table that was
        # recreated keeps lower numbers than the ledger.
        for _ in range(MAX_READ_ATTEMPTS):
            if latest is None or self._log.latest >= latest.version:
                break
            self._log.refreshing.expire()
            self._log.refresh(self._publish)
        self._is_compared = True

    def _numbers(self) -> list[int]:
        self._refresh()
        return self._log.numbers(self._first())

    def _first(self) -> int:
        # The newest version is always readable, also below the configured start.
        return min(max(self._followed.start_version, self._log.oldest), self._log.latest)

    def _version(self, number: int) -> Version:
        return Version(number, self._log.timestamp_ms(number))

    def _index(self, number: int) -> FileIndex:
        log = self._log

        def build() -> TableSnapshot:
            state = replay(log.stores, log.listing, number)
            return snapshot_of(log.root, state, with_bounds=state.adds.num_rows <= SMALL_FILES)

        return self._sources.cache.get_early(log.identity(number), build)

    def _publish(self, number: int) -> TableHead:
        """Add a version to the ledger, unless it is there; returns its head."""
        header = self._index(number).header
        if not self._is_in_ledger(number):
            try:
                self._sources.ledger.append([self._make_publication(number, header)])
            except CatalogConflict:
                # Another worker may have added a later one.
                if not self._is_in_ledger(number):
                    raise
        return header.head

    def _is_in_ledger(self, number: int) -> bool:
        """Whether the ledger has this or a later version; numbers of a recreated table are below it."""
        known = self._sources.ledger.latest(self._followed.table)
        return known is not None and known.version >= number

    def _make_publication(self, number: int, header: IndexHeader) -> NewPublication:
        return make_followed_publication(
            self._followed.table,
            format="delta",
            delta_version=number,
            run_id=f"follow-{header.head.table_id}-{number}",
            **describe_index(header),
        )
