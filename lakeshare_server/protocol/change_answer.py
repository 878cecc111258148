"""The lines of what a range of versions changed: files a batch at a time, later metadata and protocols in between.

What changed comes from the index of changes. Memory is bounded by the batch, not by the range.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.answer import PIECE_ROWS, Progress
from lakeshare_server.protocol.change_lines import ChangeLines
from lakeshare_server.protocol.heads import HeadLines
from lakeshare_server.protocol.signing import Sign
from lakeshare_server.tables.delta.change_rows import CDC
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.head import TableHead, TableProtocol


def require_recorded(changes: Sequence[VersionChanges]) -> None:
    """Refuse a change data feed with a version at which it was switched off, or whose changed rows are not known.

    Raises:
        BadRequest: names the range and the version, in the words that clients' tests look for (protocol §1.8).
    """
    _require_known(changes)
    for one in changes:
        if not one.head.has_change_data_feed:
            first, last = changes[0].version, changes[-1].version
            raise BadRequest(
                "startingVersion",
                first,
                f"Error getting change data for range [{first}, {last}] as change data was not recorded for version "
                f"[{one.version}]. Ask for a range without it.",
            )


def require_one_schema(unlike: str | None, first: int, latest: int) -> None:
    """Refuse a feed under the latest schema when that does not fit the files of the range.

    Raises:
        BadRequest: says what does not fit.
    """
    if unlike is not None:
        raise BadRequest(
            "includeHistoricalMetadata",
            "False",
            f"The schema of version {latest} does not tell the changes from version {first} on: {unlike}. Ask with "
            "includeHistoricalMetadata=true, or for versions after that.",
        )


def _require_known(changes: Sequence[VersionChanges]) -> None:
    unknown = [one for one in changes if one.feed_fault is not None]
    if not unknown:
        return
    newest, last = unknown[-1], changes[-1].version
    following = newest.version + 1
    remedy = (
        f"The first version from which changes can be read up to {last} is {following}: ask with "
        f"startingVersion={following}"
        if newest.version < last
        else f"No changes can be read up to version {last}: ask for those from startingVersion={following} on once "
        "it is published"
    )
    raise BadRequest(
        "startingVersion",
        changes[0].version,
        f"Error getting change data for range [{changes[0].version}, {last}] as change data was not recorded for "
        f"version [{newest.version}]: {newest.feed_fault}. {remedy}, and read a snapshot of version {newest.version} "
        "for what was before.",
    )


@dataclass(frozen=True, kw_only=True)
class ChangeAnswer:
    """Which changes are wanted: of the `feed` or of a window, from the place `start` of their files, at most `most`.

    `announced` says which protocol this client is told at a version.
    """

    changes: Sequence[VersionChanges]
    feed: bool
    historical_metadata: bool
    historical_protocol: bool
    announced: Callable[[TableHead], TableProtocol]
    start: int = 0
    most: int | None = None

    @property
    def files(self) -> int:
        """How many file lines all pages have together."""
        return sum(map(self._files_of, self.changes))

    @property
    def size_bytes(self) -> int:
        """How many bytes the files of all pages have together."""
        return sum(one.feed_bytes if self.feed else one.window_bytes for one in self.changes)

    def parts(
        self, lines: ChangeLines, heads: HeadLines, sign: Sign, progress: Progress
    ) -> Iterator[bytes | memoryview]:
        """The lines in pieces, in the order of the versions; `heads` are those of the answer's first lines."""
        files = self.files
        end = files if self.most is None else self.start + self.most
        progress.next_place = end if end < files else None
        times_ms = {one.version: one.timestamp_ms for one in self.changes}
        for later, batch in self._wanted(heads, end, is_last=end >= files):
            if later:
                yield later
            for piece in _pieces(batch):
                progress.files += piece.num_rows
                progress.size_bytes += pc.sum(piece.column("size"), min_count=0).as_py()
                yield lines.of(piece, times_ms, sign)

    def _wanted(
        self, heads: HeadLines, end: int, *, is_last: bool
    ) -> Iterator[tuple[bytes, pa.RecordBatch | None]]:
        """The page's head lines and batches of files, in the order of the versions."""
        place = 0
        for later, stretch in self._stretches(heads):
            if place >= end and not is_last:
                # A head line at the very end of a page is the first of the next one.
                return
            files = sum(map(self._files_of, stretch))
            if place >= self.start and later:
                yield later, None
            if place + files > self.start:
                yield from ((b"", batch) for batch in self._page(stretch, place, end))
            place += files

    def _page(self, stretch: Sequence[VersionChanges], place: int, end: int) -> Iterator[pa.RecordBatch]:
        """What of a stretch that begins at a place is between the page's start and its end."""
        for batch in self._rows(stretch):
            skipped = max(self.start - place, 0)
            yield batch.slice(skipped, max(end - place - skipped, 0))
            place += batch.num_rows
            if place >= end:
                return

    def _stretches(self, heads: HeadLines) -> Iterator[tuple[bytes, list[VersionChanges]]]:
        """Versions whose files are told together: neighbours in one segment with no head line in between."""
        stretch: list[VersionChanges] = []
        pending = b""
        for before, one in pairwise([*self.changes[:1], *self.changes]):
            later = self._later(heads, before, one)
            if stretch and (later or not _are_neighbours(before, one)):
                yield pending, stretch
                stretch = []
            if not stretch:
                pending = later
            stretch.append(one)
        if stretch:
            yield pending, stretch

    def _later(self, heads: HeadLines, before: VersionChanges, one: VersionChanges) -> bytes:
        """The head lines of a version that is not the first: of what it changed, or the versions left out before it."""
        said = b""
        if self.historical_protocol and one.protocol_text != before.protocol_text:
            told = replace(heads, protocol=self.announced(one.head), protocol_version=one.version)
            said += told.protocol_line()
        if self.historical_metadata and one.metadata_text != before.metadata_text:
            said += replace(heads, version=one.version, size_bytes=None, files=None).metadata_line(one.head)
        return said

    def _rows(self, stretch: Sequence[VersionChanges]) -> Iterator[pa.RecordBatch]:
        first, last = stretch[0], stretch[-1]
        told, there = sum(map(self._files_of, stretch)), last.end_row - first.first_row
        for batch in first.segment.rows(first.first_row, last.end_row):
            if told == there:
                yield batch
            elif self.feed:
                yield batch.filter(batch.column("in_feed"))
            else:
                yield batch.filter(pc.not_equal(batch.column("kind"), CDC))

    def _files_of(self, one: VersionChanges) -> int:
        return one.feed_rows if self.feed else one.window_rows


def _are_neighbours(one: VersionChanges, following: VersionChanges) -> bool:
    return one.segment is following.segment and one.end_row == following.first_row


def _pieces(batch: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    if batch is not None:
        for start in range(0, batch.num_rows, PIECE_ROWS):
            yield batch.slice(start, PIECE_ROWS)
