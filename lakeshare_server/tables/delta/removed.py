"""`remove` actions of older writers, which name a file and nothing else: its size and values are those of its `add`."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import Stores
from lakeshare_server.tables.delta.change_rows import changes_data
from lakeshare_server.tables.delta.commits import Commit
from lakeshare_server.tables.delta.log import LogListing
from lakeshare_server.tables.delta.replay import replay

Action = dict[str, Any]


class RemovedFiles:
    """Completes removes, commit after commit; it reads the table's files only when a remove makes it necessary."""

    def __init__(self, stores: Stores, listing: LogListing) -> None:
        self._stores, self._listing = stores, listing
        # The files before the first such remove, and what was added since.
        self._before: pa.Table | None = None
        self._since: dict[str, Action] = {}

    def of(self, commit: Commit, is_partitioned: bool) -> list[Action]:
        """The removes of a commit, each with its size and partition values.

        Raises:
            TableFilesMissing: the log does not have them any more.
        """
        lacking = {
            remove["path"]
            for remove in commit.removes
            if changes_data(remove) and _lacks(remove, is_partitioned)
        }
        if lacking and self._before is None:
            self._before = replay(self._stores, self._listing, commit.first - 1).adds
        found = self._described(sorted(lacking))
        whole = [
            {**remove, **_given(remove, found)} if remove["path"] in lacking else remove
            for remove in commit.removes
        ]
        if self._before is not None:
            self._since.update({add["path"]: _description(add) for add in commit.adds})
        return whole

    def _described(self, paths: Sequence[str]) -> dict[str, Action]:
        found = {path: self._since[path] for path in paths if path in self._since}
        left = [path for path in paths if path not in found]
        if left and self._before is not None:
            before = self._before.filter(pc.is_in(self._before.column("path"), pa.array(left, pa.string())))
            for row in before.select(["path", "size", "partition_values"]).to_pylist():
                found[row["path"]] = {"size": row["size"], "partitionValues": row["partition_values"] or {}}
        unknown = [path for path in left if path not in found]
        if unknown:
            raise TableFilesMissing(
                self._listing.root, f"its log removes {unknown[0]} without a size, and never added it"
            )
        return found


def _lacks(remove: Action, is_partitioned: bool) -> bool:
    return remove.get("size") is None or (is_partitioned and remove.get("partitionValues") is None)


def _given(remove: Action, found: dict[str, Action]) -> Action:
    """What the remove says for itself counts, but null says nothing."""
    said = found[remove["path"]]
    return {name: said[name] if remove.get(name) is None else remove[name] for name in said}


def _description(add: Action) -> Action:
    return {"size": add["size"], "partitionValues": add.get("partitionValues") or {}}
