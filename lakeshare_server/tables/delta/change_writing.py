"""Writing a segment of the index of changes: commits are read a few at a time, so that memory is bounded by those."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.delta.change_rows import CDC, FileChange, change_table, file_changes
from lakeshare_server.tables.delta.change_segment import SegmentFile, SegmentNote, SegmentVersion
from lakeshare_server.tables.delta.commits import Commit, read_commits
from lakeshare_server.tables.delta.heads import head_actions
from lakeshare_server.tables.delta.log import LogListing
from lakeshare_server.tables.delta.mapping import partition_types
from lakeshare_server.tables.delta.removed import RemovedFiles
from lakeshare_server.tables.delta.replay import NOT_AS_SPECIFIED
from lakeshare_server.tables.locations import elsewhere, roots_of

Action = dict[str, Any]
# Commits of one version each may be of any size: so many bytes of them are parsed at once.
BYTES_AT_ONCE = 32_000_000
COMMITS_AT_ONCE = 100


@dataclass(frozen=True)
class HeadTexts:
    """Protocol and metadata as the log has them, in JSON; the same text wherever in the log they were found."""

    protocol: str
    metadata: str

    @cached_property
    def partition_types(self) -> dict[str, str]:
        """The types of the partition columns by the names the log uses for them."""
        return partition_types(orjson.loads(self.metadata))

    def after(self, commit: Commit) -> "HeadTexts":
        """What is in force when a commit was made."""
        if commit.protocol is None and commit.metadata is None:
            return self
        return HeadTexts(
            self.protocol if commit.protocol is None else _text(commit.protocol),
            self.metadata if commit.metadata is None else _text(commit.metadata),
        )


# In force before the first version.
NOTHING_YET = HeadTexts("", "")


class SegmentWriter:
    """Writes the segment of the versions from `begin` to `end`, as far as the log has their commits.

    `before` is what was in force before `begin`, None when that is not known.
    """

    def __init__(
        self, stores: Stores, listing: LogListing, begin: int, end: int, before: HeadTexts | None
    ) -> None:
        self._stores, self._listing, self._root = stores, listing, listing.root
        self.begin, self.end, self._before = begin, end, before
        self._removed = RemovedFiles(stores, listing)
        self._versions: dict[int, SegmentVersion] = {}
        self._roots: set[str] = set()
        self._rows = 0

    def write(self, path: Path, asked: Collection[int]) -> None:
        """Write the file; the versions in `asked` must be in it.

        Raises:
            TableFilesMissing: the commit of a version that was asked for is missing or not whole, or what was in force
                at it is not known any more.
        """
        self._require(asked)
        with SegmentFile(path) as file:
            for run in self._runs():
                readable, heads = self._readable(run, asked)
                self._write_run(file, readable, heads)
            file.close(SegmentNote(self._versions, tuple(sorted(self._roots))))

    def _require(self, asked: Collection[int]) -> None:
        for version in sorted(asked):
            if version not in self._listing.commits:
                raise _missing_commit(self._listing, version)

    def _runs(self) -> list[list[int]]:
        """The versions that are there, cut where one is missing."""
        runs: list[list[int]] = []
        for version in range(self.begin, self.end + 1):
            if version in self._listing.commits:
                if version - 1 not in self._listing.commits or not runs:
                    runs.append([])
                runs[-1].append(version)
        return runs

    def _readable(self, run: Sequence[int], asked: Collection[int]) -> tuple[Sequence[int], HeadTexts]:
        """The versions of a run from the first on of which protocol and metadata are known, and those before it."""
        if run[0] == 0:
            return run, NOTHING_YET
        if run[0] == self.begin and self._before is not None:
            return run, self._before
        for place, version in enumerate(run):
            if place == 0 or version in asked or version in self._listing.checkpoints:
                try:
                    # At the version itself: the one before may be gone, and its commit says the same once more.
                    protocol, metadata = head_actions(self._stores, self._listing, version)
                except TableFilesMissing:
                    if version in asked:
                        raise
                else:
                    return run[place:], HeadTexts(_text(protocol), _text(metadata))
        return [], NOTHING_YET

    def _write_run(self, file: SegmentFile, run: Sequence[int], heads: HeadTexts) -> None:
        for files in _bounded([(version, version, self._listing.commits[version]) for version in run]):
            for commit in read_commits(self._stores, self._root, files):
                heads = heads.after(commit)
                if not heads.protocol or not heads.metadata:
                    raise TableFilesMissing(self._root, "its log has no protocol or no metadata")
                self._write_commit(file, commit, heads)

    def _write_commit(self, file: SegmentFile, commit: Commit, heads: HeadTexts) -> None:
        try:
            self._write_changes(file, commit, heads)
        except NOT_AS_SPECIFIED as error:
            raise TableFilesMissing(
                self._root, f"an entry of version {commit.last} in its log is not whole"
            ) from error

    def _write_changes(self, file: SegmentFile, commit: Commit, heads: HeadTexts) -> None:
        fault = None
        try:
            changes = self._changes(commit, heads)
        except TableFilesMissing as error:
            # Only whoever asks for this version has to know.
            fault, changes = error.what, []
        self._versions[commit.last] = _described(commit, heads, changes, self._rows, fault)
        if changes:
            table = change_table(self._root, changes, heads.partition_types)
            self._rows += table.num_rows
            self._roots |= roots_of(self._root, elsewhere(self._root, table))
            file.add(table)

    def _changes(self, commit: Commit, heads: HeadTexts) -> list[FileChange]:
        return list(file_changes(commit, self._removed.of(commit, bool(heads.partition_types))))


def _missing_commit(listing: LogListing, version: int) -> TableFilesMissing:
    """The refusal of a version that the log cannot tell any more."""
    oldest = min(listing.commits, default=None)
    kept = "it has no commits at all" if oldest is None else f"its oldest commit is that of version {oldest}"
    return TableFilesMissing(listing.root, f"the log has lost the commit of version {version}; {kept}")


def _bounded(
    files: Sequence[tuple[int, int, StoredObject]],
) -> Iterator[list[tuple[int, int, StoredObject]]]:
    """The files in groups that fit into memory together."""
    group: list[tuple[int, int, StoredObject]] = []
    size_bytes = 0
    for file in files:
        if group and (size_bytes + file[2].size_bytes > BYTES_AT_ONCE or len(group) == COMMITS_AT_ONCE):
            yield group
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file[2].size_bytes
    if group:
        yield group


def _described(
    commit: Commit, heads: HeadTexts, changes: Sequence[FileChange], first_row: int, fault: str | None
) -> SegmentVersion:
    window = [change for change in changes if change.kind != CDC]
    feed = [change for change in changes if change.in_feed]
    return SegmentVersion(
        version=commit.last,
        protocol=heads.protocol,
        metadata=heads.metadata,
        modified_ms=commit.modified_ms,
        own_time_ms=_own_time_ms(commit, heads),
        first_row=first_row,
        window_rows=len(window),
        cdc_rows=len(changes) - len(window),
        feed_rows=len(feed),
        window_bytes=_size_bytes(window),
        feed_bytes=_size_bytes(feed),
        vectors=sum(bool(change.action.get("deletionVector")) for change in changes),
        lacks_row_ids=any(change.action.get("baseRowId") is None for change in window),
        fault=fault,
    )


def _size_bytes(changes: Sequence[FileChange]) -> int:
    return sum(change.action["size"] for change in changes)


def _own_time_ms(commit: Commit, heads: HeadTexts) -> int | None:
    configuration = orjson.loads(heads.metadata).get("configuration") or {}
    if configuration.get("delta.enableInCommitTimestamps") != "true":
        return None
    said = commit.info.get("inCommitTimestamp")
    return said if isinstance(said, int) and not isinstance(said, bool) else None


def _text(action: Action) -> str:
    return orjson.dumps(_said(action), option=orjson.OPT_SORT_KEYS).decode()


def _said(value: Any) -> Any:
    """The value without members that say nothing: commits and checkpoints differ in nulls and in empty maps."""
    if not isinstance(value, dict):
        return value
    members = {name: _said(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member is not None and member != {}}
