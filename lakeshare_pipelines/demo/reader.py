"""The recipient of the demo: the official delta-sharing client, and a watch on what it sees meanwhile."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_S = 0.5


def tables(profile: Path) -> list[str]:
    """`share.schema.table` of everything the recipient may read, sorted."""
    import delta_sharing

    found = delta_sharing.SharingClient(str(profile)).list_all_tables()
    return sorted(f"{table.share}.{table.schema}.{table.name}" for table in found)


def read(profile: Path, table: str) -> Any:
    """The whole table as a pandas frame (pandas comes without type stubs for the client)."""
    import delta_sharing

    return delta_sharing.load_as_pandas(f"{profile}#{table}")


def version(profile: Path, table: str) -> int:
    """The publication number the recipient sees."""
    import delta_sharing

    return int(delta_sharing.get_table_version(f"{profile}#{table}"))


def fingerprint(frame: Any) -> tuple[int, int]:
    """The number of rows of a frame and a hash of their values, whatever their order."""
    import pandas as pd

    # As texts, because a struct is a dict there, which has no hash.
    return len(frame), int(pd.util.hash_pandas_object(frame.astype(str), index=False).sum())


@dataclass
class Watch:
    """Every version and every set of rows, as `fingerprint`, that a recipient saw while something else went on."""

    versions: set[int] = field(default_factory=set)
    contents: set[tuple[int, int]] = field(default_factory=set)
    looks: int = 0

    def saw_only(self, version: int, content: tuple[int, int]) -> bool:
        """Whether there were looks, and each saw just this."""
        return self.versions == {version} and self.contents == {content}


@contextmanager
def watching(profile: Path, table: str) -> Iterator[Watch]:
    """Ask for the table's version and its rows over and over until the block ends; a failed read fails the block."""
    watch, over = Watch(), threading.Event()

    def look() -> None:
        while not over.wait(POLL_S):
            watch.versions.add(version(profile, table))
            watch.contents.add(fingerprint(read(profile, table)))
            watch.looks += 1

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="watching") as pool:
        watcher = pool.submit(look)
        try:
            yield watch
        finally:
            over.set()
        watcher.result()
