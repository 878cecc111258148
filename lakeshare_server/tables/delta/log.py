"""The files of a Delta log: which checkpoint, compactions and commits together make a version.

Delta's PROTOCOL.md, "File Types". What the files say is read elsewhere.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lakeshare_server.errors import StoreMissing, TableFilesMissing, Unserveable
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.reason_codes import ReasonCode

Read = TypeVar("Read")

LOG = "_delta_log"
COMMIT = re.compile(r"(\d{20})\.json")
COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
STAGED_COMMIT = re.compile(r"(\d{20})\.[0-9a-fA-F-]{36}\.json")
# The second is of coordinated commits, which is what catalog-managed tables were called before.
STAGED_FOLDERS = ("_staged_commits", "_commits")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-fA-F-]{36}))?\.(parquet|json)")


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint: a file, or all parts of a multi-part one in order."""

    version: int
    parts: tuple[StoredObject, ...]


@dataclass(frozen=True)
class Segment:
    """What has to be read for a version: newest first, then the checkpoint if there is one."""

    version: int
    checkpoint: Checkpoint | None
    # Commits and compactions, each with the first and last version it speaks of.
    deltas: tuple[tuple[int, int, StoredObject], ...]


@dataclass
class LogListing:
    """The log's files from the version `since` on, as the store listed them."""

    root: str
    since: int = 0
    commits: dict[int, StoredObject] = field(default_factory=dict)
    compacted: dict[int, list[tuple[int, StoredObject]]] = field(default_factory=dict)
    checkpoints: dict[int, list[Checkpoint]] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The newest version.

        Raises:
            TableFilesMissing: there is no commit and no checkpoint.
        """
        versions = [*self.commits, *self.checkpoints]
        if not versions:
            raise TableFilesMissing(self.root, "there is no Delta log")
        return max(versions)

    def grown_by(self, listed: "LogListing") -> "LogListing":
        """This listing and what a later one found; whoever reads this one meanwhile finds it as it was."""
        return LogListing(
            self.root,
            self.since,
            {**self.commits, **listed.commits},
            {**self.compacted, **listed.compacted},
            {**self.checkpoints, **listed.checkpoints},
        )

    def segments(self, version: int) -> Iterator[Segment]:
        """Ways to read a version, the one of least reading first.

        Raises:
            TableFilesMissing: a file is missing for every way.
        """
        found = False
        for checkpoint in self._candidates(version):
            start = -1 if checkpoint is None else checkpoint.version
            ways = [self._deltas(start, version, self.compacted), self._deltas(start, version, {})]
            for deltas in ways if ways[0] != ways[1] else ways[:1]:
                if deltas is not None:
                    found = True
                    yield Segment(version, checkpoint, deltas)
        if not found:
            raise TableFilesMissing(self.root, f"the log of version {version} is not whole")

    def read(self, version: int, way: Callable[[Segment], Read]) -> Read:
        """What is read of a version by the first way that has all it needs.

        Raises:
            TableFilesMissing: something is missing for every way; it is what the first one missed.
        """
        refused: TableFilesMissing | None = None
        for segment in self.segments(version):
            try:
                return way(segment)
            except TableFilesMissing as error:
                # Another checkpoint, or the commits alone, may tell the same.
                refused = refused or error
        if refused is None:
            raise AssertionError("unreachable: a listing without a way raises")
        raise refused

    def oldest_readable(self) -> int:
        """The oldest version that can be rebuilt."""
        starts = list(self.checkpoints)
        if 0 in self.commits:
            starts.append(0)
        return min(starts, default=self.latest)

    def _candidates(self, version: int) -> Iterator[Checkpoint | None]:
        for at in sorted((at for at in self.checkpoints if at <= version), reverse=True):
            yield from self.checkpoints[at]
        yield None

    def _deltas(
        self, start: int, version: int, compacted: Mapping[int, list[tuple[int, StoredObject]]]
    ) -> tuple[tuple[int, int, StoredObject], ...] | None:
        chosen = []
        at = version
        while at > start:
            wider = [(first, file) for first, file in compacted.get(at, ()) if first > start]
            if wider:
                first, file = min(wider, key=lambda one: one[0])
                chosen.append((first, at, file))
                at = first - 1
            elif at in self.commits:
                chosen.append((at, at, self.commits[at]))
                at -= 1
            else:
                return None
        return tuple(chosen)


def list_log(stores: Stores, root: str, from_version: int = 0) -> LogListing:
    """The log's files from a version on; checkpoints below it are not seen."""
    listing = LogListing(root, from_version)
    parts: dict[tuple[int, int], dict[int, StoredObject]] = {}
    after = f"{root}/{LOG}/{from_version:020d}" if from_version else None
    folder = len(stores.place(f"{root}/{LOG}/").location)
    for file in stores.list(f"{root}/{LOG}", after):
        name = file.location[folder:]
        if name > ":":
            break  # names of versions begin with digits; what sorts behind them are folders and pointers
        # A file in a folder is no file of the log, whatever it is called: its name has a slash here.
        _note(listing, parts, name, file)
    for (version, count), found in parts.items():
        if len(found) == count:
            whole = Checkpoint(version, tuple(found[number] for number in range(1, count + 1)))
            listing.checkpoints.setdefault(version, []).append(whole)
    return listing


def _note(
    listing: LogListing,
    parts: dict[tuple[int, int], dict[int, StoredObject]],
    name: str,
    file: StoredObject,
) -> None:
    commit = COMMIT.fullmatch(name)
    if commit:
        listing.commits[int(commit[1])] = file
        return
    compacted = COMPACTED.fullmatch(name)
    if compacted:
        listing.compacted.setdefault(int(compacted[2]), []).append((int(compacted[1]), file))
        return
    checkpoint = CHECKPOINT.fullmatch(name)
    if checkpoint is None or (checkpoint[5] == "json" and checkpoint[4] is None):
        return
    version = int(checkpoint[1])
    if checkpoint[2]:
        parts.setdefault((version, int(checkpoint[3])), {})[int(checkpoint[2])] = file
    else:
        listing.checkpoints.setdefault(version, []).append(Checkpoint(version, (file,)))


def last_checkpoint(stores: Stores, root: str) -> Mapping[str, object]:
    """What `_last_checkpoint` says; empty when it is not there or not readable, it is only a hint."""
    import orjson

    try:
        said = orjson.loads(stores.read(f"{root}/{LOG}/_last_checkpoint"))
    except (StoreMissing, orjson.JSONDecodeError):
        return {}
    return said if isinstance(said, dict) else {}


def list_for_latest(stores: Stores, root: str) -> LogListing:
    """Enough of the log for its newest version: from the last checkpoint on, when that is where it should be."""
    version = last_checkpoint(stores, root).get("version")
    if isinstance(version, int) and version > 0:
        listing = list_log(stores, root, version)
        if version in listing.checkpoints:
            return listing
    return list_log(stores, root)


def require_published(stores: Stores, root: str, latest: int) -> None:
    """Refuse a catalog-managed table that may be newer than `latest`, the newest version in its log.

    Which staged commits are ratified is known to the catalog only ("Reading Catalog-managed Tables"), so any that is
    newer than the log counts.

    Raises:
        Unserveable: names the staged commit.
    """
    newest = max((_newest_staged(stores, root, folder, latest) for folder in STAGED_FOLDERS), default=-1)
    if newest > latest:
        code = ReasonCode.UNPUBLISHED_COMMITS
        raise Unserveable(
            f"The Delta table is managed by a catalog, and a commit of version {newest} is staged: the log ends at "
            f"version {latest}, so the table may be newer than what the log shows.",
            code.fix,
            code,
        )


def _newest_staged(stores: Stores, root: str, folder: str, latest: int) -> int:
    """The newest version with a staged commit behind `latest`; -1 when there is none."""
    path = f"{root}/{LOG}/{folder}"
    start = len(stores.place(f"{path}/").location)
    names = (file.location[start:] for file in stores.list(path, f"{path}/{latest + 1:020d}"))
    staged = (STAGED_COMMIT.fullmatch(name) for name in names)
    return max((int(found[1]) for found in staged if found), default=-1)
