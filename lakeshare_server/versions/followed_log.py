"""What this process knows of a followed table's log: looked at once per interval, by one thread for all."""

import time
from collections.abc import Callable
from threading import Lock

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.delta.commits import read_commits
from lakeshare_server.tables.delta.log import LOG, LogListing, list_log


class FollowedLog:
    """The listing of a log, kept fresh, and the times of its versions."""

    def __init__(self, stores: Stores, root: str, check_every_s: float) -> None:
        self.stores, self.root, self.check_every_s = stores, root.rstrip("/"), check_every_s
        self.listing = LogListing(self.root)
        self._looking = Lock()
        self._looked_at = float("-inf")
        self._published: tuple[int, StoredObject | None] | None = None
        self._commit_times_since: int | None = None
        self._times: dict[int, int] = {}
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
        known = {*self.listing.commits, *self.listing.checkpoints}
        return sorted(number for number in known if first <= number <= self.latest)

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
        if known is not None:
            return known
        last = None
        for number in sorted(self.listing.commits):
            time_ms = self.listing.commits[number].modified_ms
            last = time_ms if last is None else max(time_ms, last + 1)
            self._times[number] = last
        if version not in self._times:
            checkpoint = self.listing.checkpoints[version][0]
            self._times[version] = checkpoint.parts[0].modified_ms
        return self._times[version]

    def identity(self, version: int) -> tuple[object, ...]:
        """What an index of the version is kept under: a table made anew at the same place is another one."""
        file = self._file_of(version)
        return self.root, version, file.etag or file.modified_ms, file.size_bytes

    def _look(self, publish: Callable[[int], int | None]) -> None:
        before = self._published
        if before is None or not self._grew_only(before):
            listing = list_log(self.stores, self.root)
            listing.latest  # noqa: B018  what is known is not given up for a log that is gone, maybe for a moment
            self.listing, self._times, self._commit_times = listing, {}, {}
            before = None
        newest = self.listing.latest
        if before is None or newest != before[0]:
            self._commit_times_since = publish(newest)
            self._published = (newest, self.listing.commits.get(newest))

    def _grew_only(self, published: tuple[int, StoredObject | None]) -> bool:
        """Whether the published version is still what it was; takes over what was added since."""
        version, file = published
        if file is None or self.stores.head(file.location) != file:
            return False
        if self.stores.head(f"{self.root}/{LOG}/{version + 1:020d}.json") is not None:
            self.listing.add(list_log(self.stores, self.root, version + 1))
            self._times = {}
        return True

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
