"""What this process knows of a followed table's log: looked at once per interval, by one thread for all."""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from threading import Lock

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.delta.commits import read_commits
from lakeshare_server.tables.delta.log import LOG, LogListing, list_log
from lakeshare_server.versions.version import Version


class FollowedLog:
    """The listing of a log, kept fresh, and the times of its versions."""

    def __init__(self, stores: Stores, root: str, check_every_s: float) -> None:
        self.stores, self.root, self.check_every_s = stores, root.rstrip("/"), check_every_s
        self.listing = LogListing(self.root)
        self.newest: Version | None = None
        self._looking = Lock()
        self._looked_at = float("-inf")
        self._published: tuple[int, StoredObject | None] | None = None
        self._commit_times_since: int | None = None
        self._numbers: list[int] = []
        self._times: Mapping[int, int] = {}
        self._commit_times: dict[int, int] = {}

    def is_fresh(self) -> bool:
        """Whether the last look is not older than the interval."""
        return time.monotonic() - self._looked_at < self.check_every_s

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
        return version in self.listing.commits or version in self.listing.checkpoints

    @property
    def oldest(self) -> int:
        """The oldest version that the log can still tell."""
        return self.listing.oldest_readable()

    def refresh(self, publish: Callable[[int], int | None]) -> None:
        """Look for new versions when the last look is too old; `publish` is told of the newest, before it is shown.

        Raises:
            LakeshareError: what the store or `publish` raises; the next request looks again.
        """
        if self.is_fresh():
            return
        with self._looking:
            # Whoever waited here finds the look of another that was under way.
            if self.is_fresh():
                return
            self._look(publish)
            self._looked_at = time.monotonic()

    def timestamp_ms(self, version: int) -> int:
        """When a version came about; times grow with the versions, whatever clocks and copies did to the files."""
        if self._commit_times_since is not None and version >= self._commit_times_since:
            return self._in_commit_time(version)
        known = self._times.get(version)
        return self._file_of(version).modified_ms if known is None else known

    def identity(self, version: int) -> tuple[object, ...]:
        """What an index of the version is kept under: a table made anew at the same place is another one."""
        file = self._file_of(version)
        return self.root, version, file.etag or file.modified_ms, file.size_bytes

    def _look(self, publish: Callable[[int], int | None]) -> None:
        before = self._published
        if before is None or not self._grew_only(before):
            listing = list_log(self.stores, self.root)
            listing.latest  # noqa: B018  what is known is not given up for a log that is gone, maybe for a moment
            self.listing, self._commit_times = listing, {}
            self._sort()
            before = None
        newest = self.listing.latest
        if before is None or newest != before[0]:
            self._commit_times_since = publish(newest)
            self._published = (newest, self.listing.commits.get(newest))
        # The commit may have to be read for its time: polls are answered where nobody may wait for that.
        self.newest = Version(newest, self.timestamp_ms(newest))

    def _grew_only(self, published: tuple[int, StoredObject | None]) -> bool:
        """Whether the published version is still what it was; takes over what was added since."""
        version, file = published
        if file is None or self.stores.head(file.location) != file:
            return False
        if self.stores.head(f"{self.root}/{LOG}/{version + 1:020d}.json") is not None:
            self.listing.add(list_log(self.stores, self.root, version + 1))
            self._sort()
        return True

    def _sort(self) -> None:
        """Put the log's versions and their times in order, once for all requests until the next look."""
        self._numbers = sorted({*self.listing.commits, *self.listing.checkpoints})
        times: dict[int, int] = {}
        last = None
        for number in self._numbers:
            commit = self.listing.commits.get(number)
            if commit is not None:
                last = commit.modified_ms if last is None else max(commit.modified_ms, last + 1)
                times[number] = last
        self._times = times

    def _file_of(self, version: int) -> StoredObject:
        commit = self.listing.commits.get(version)
        return commit if commit is not None else self.listing.checkpoints[version][0].parts[0]

    def _in_commit_time(self, version: int) -> int:
        known = self._commit_times.get(version)
        if known is None:
            commit = self.listing.commits.get(version)
            if commit is None:
                return self.listing.checkpoints[version][0].parts[0].modified_ms
            [read] = read_commits(self.stores, self.root, [(version, version, commit)])
            told = read.info.get("inCommitTimestamp")
            known = told if isinstance(told, int) else commit.modified_ms
            self._commit_times[version] = known
        return known
