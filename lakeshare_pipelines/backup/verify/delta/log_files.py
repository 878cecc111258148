"""The files of a copied Delta log, and which versions they can make (Delta's PROTOCOL.md, "File Types").

What the files say is read elsewhere.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT, COMPACTED, LOG

CRC = re.compile(r"(\d{20})\.crc")
SIDECARS = "_sidecars/"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with all its parts; `names` are those of its files, in order, below the log's folder."""

    version: int
    names: tuple[str, ...]

    @property
    def has_sidecars(self) -> bool:
        """Whether it may name sidecars: it is one of version 2, by its name."""
        found = CHECKPOINT.fullmatch(self.names[0])
        return found is not None and found[4] is not None


@dataclass(frozen=True)
class Step:
    """A commit, or a compaction that stands for several of which some are not there."""

    first: int
    last: int
    name: str


@dataclass(frozen=True)
class Chain:
    """Versions that are made one from the other: a base, and what follows without a hole.

    Without a base it begins with commit 0, which is then the first step. Versions inside a compaction cannot be made.
    """

    base: Checkpoint | None
    steps: tuple[Step, ...]

    @property
    def versions(self) -> list[int]:
        """The versions that can be made, in order."""
        own = [] if self.base is None else [self.base.version]
        return own + [step.last for step in self.steps]


@dataclass
class LogFiles:
    """The log's files by what they are."""

    commits: set[int] = field(default_factory=set)
    compacted: set[tuple[int, int]] = field(default_factory=set)
    checkpoints: dict[int, list[Checkpoint]] = field(default_factory=dict)
    crcs: set[int] = field(default_factory=set)

    def chains(self, without: frozenset[Checkpoint] = frozenset()) -> list[Chain]:
        """All chains, oldest first; `without` are checkpoints that turned out to be unreadable."""
        bases = {
            version: usable
            for version, found in self.checkpoints.items()
            if (usable := [one for one in found if one not in without])
        }
        found: list[Chain] = []
        if 0 in self.commits:
            found.append(self._chain(None, -1))
        last = found[0].versions[-1] if found else -1
        for version in sorted(bases):
            # A checkpoint that a chain reaches adds no version to it.
            if version > last:
                found.append(self._chain(bases[version][0], version))
                last = found[-1].versions[-1]
        return found

    def newest_checkpoints(self, version: int) -> list[Checkpoint]:
        """The checkpoints a reader of a version begins with: all forms of the newest one."""
        at = max((one for one in self.checkpoints if one <= version), default=None)
        return [] if at is None else self.checkpoints[at]

    def _chain(self, base: Checkpoint | None, at: int) -> Chain:
        wider: dict[int, int] = {}
        for first, last in self.compacted:
            wider[first] = max(last, wider.get(first, last))
        steps = []
        while True:
            if at + 1 in self.commits:
                steps.append(Step(at + 1, at + 1, commit_name(at + 1)))
            elif at + 1 in wider:
                steps.append(Step(at + 1, wider[at + 1], compaction_name(at + 1, wider[at + 1])))
            else:
                return Chain(base, tuple(steps))
            at = steps[-1].last


def log_files(names: Iterable[str]) -> LogFiles:
    """Sort the names of files below a table's `_delta_log/`; what is no file of a log is left out."""
    found = LogFiles()
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        if commit := COMMIT.fullmatch(name):
            found.commits.add(int(commit[1]))
        elif compacted := COMPACTED.fullmatch(name):
            found.compacted.add((int(compacted[1]), int(compacted[2])))
        elif crc := CRC.fullmatch(name):
            found.crcs.add(int(crc[1]))
        elif checkpoint := CHECKPOINT.fullmatch(name):
            version = int(checkpoint[1])
            if checkpoint[2]:
                parts.setdefault((version, int(checkpoint[3])), {})[int(checkpoint[2])] = name
            elif checkpoint[4] or checkpoint[5] == "parquet":
                found.checkpoints.setdefault(version, []).append(Checkpoint(version, (name,)))
    for (version, count), of_version in parts.items():
        if len(of_version) == count:
            names_in_order = tuple(of_version[number] for number in sorted(of_version))
            found.checkpoints.setdefault(version, []).append(Checkpoint(version, names_in_order))
    return found


def commit_name(version: int) -> str:
    """The name of a commit's file."""
    return f"{version:020}.json"


def compaction_name(first: int, last: int) -> str:
    """The name of a compaction's file."""
    return f"{first:020}.{last:020}.compacted.json"


def version_of(name: str) -> int | None:
    """The last version that a file of a log speaks of; None for what is of no version: sidecars, pointers, folders."""
    if compacted := COMPACTED.fullmatch(name):
        return int(compacted[2])
    for kind in (COMMIT, CRC, CHECKPOINT):
        if found := kind.fullmatch(name):
            return int(found[1])
    return None


__all__ = [
    "LOG",
    "SIDECARS",
    "Chain",
    "Checkpoint",
    "LogFiles",
    "Step",
    "commit_name",
    "log_files",
    "version_of",
]
