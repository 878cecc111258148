"""One commit of a Delta log, or a compaction of several, as its JSON lines tell it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson

from lakeshare_server.errors import StoreMissing, TableFilesMissing
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.delta.adds import key_of

# A store far away answers many at once as quickly as one.
READERS = 16
Action = dict[str, Any]


@dataclass(frozen=True)
class Commit:
    """What the versions `first` to `last` changed; the two are the same for a plain commit."""

    first: int
    last: int
    modified_ms: int
    protocol: Action | None = None
    metadata: Action | None = None
    adds: list[Action] = field(default_factory=list)
    removes: list[Action] = field(default_factory=list)
    cdc: list[Action] = field(default_factory=list)
    info: Action = field(default_factory=dict)
    sidecars: list[Action] = field(default_factory=list)


def read_commits(stores: Stores, root: str, files: Sequence[tuple[int, int, StoredObject]]) -> "list[Commit]":
    """The commits of these files, in their order.

    Raises:
        TableFilesMissing: a file has vanished, or is not whole.
    """
    if len(files) == 1:
        return [_read(stores, root, files[0])]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _read(stores, root, file), files))


def _read(stores: Stores, root: str, file: tuple[int, int, StoredObject]) -> Commit:
    first, last, stored = file
    name = stored.location.rsplit("/", 1)[-1]
    try:
        body = stores.read(stored.location)
    except StoreMissing as error:
        raise TableFilesMissing(root, f"{name} of its log has vanished") from error
    if not body.strip():
        raise TableFilesMissing(root, f"{name} of its log is empty")
    try:
        commit = parse_commit(body, first, last, stored.modified_ms)
        if first < last and not _is_reconciled(commit):
            raise TableFilesMissing(root, f"{name} of its log has several actions of one file")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise TableFilesMissing(root, f"{name} of its log is not whole") from error
    return commit


def _is_reconciled(compaction: Commit) -> bool:
    """Whether it tells one thing of each file, as it has to: which of several is the newest, it does not say."""
    keys = [key_of(action) for action in (*compaction.adds, *compaction.removes)]
    return len(set(keys)) == len(keys)


def parse_commit(body: bytes, first: int, last: int, modified_ms: int) -> Commit:
    """The actions of a commit file; kinds that mean nothing to readers are left out."""
    single: dict[str, Action] = {}
    several: dict[str, list[Action]] = {"add": [], "remove": [], "cdc": [], "sidecar": []}
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        for kind, action in orjson.loads(line).items():
            if action is None:
                continue
            if kind in several:
                several[kind].append(action)
            elif kind in ("protocol", "metaData", "commitInfo"):
                single[kind] = action
    return Commit(
        first=first,
        last=last,
        modified_ms=modified_ms,
        protocol=single.get("protocol"),
        metadata=single.get("metaData"),
        adds=several["add"],
        removes=several["remove"],
        cdc=several["cdc"],
        info=single.get("commitInfo", {}),
        sidecars=several["sidecar"],
    )
