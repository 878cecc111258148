"""Tables that a listing shows by its keys alone, and which table a key belongs to.

Nothing is read: `_delta_log/` tells a Delta table, `metadata/….metadata.json` an Iceberg one, `.hoodie/` one of Hudi.
"""

import re
from collections.abc import Callable, Mapping
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

TELLING = r"(^|/)(_delta_log/.|\.hoodie/.|metadata/[^/]*\.metadata\.json)"
DELTA_KEY = re.compile(r"(?:(.*?)/)?_delta_log/.", re.DOTALL)
ICEBERG_KEY = re.compile(r"(?:(.*)/)?metadata/[^/]*\.metadata\.json(?:\.gz)?", re.DOTALL)
HUDI_KEY = re.compile(r"(?:(.*?)/)?\.hoodie/.", re.DOTALL)
STAGED = "/_staged/"
"""Where a run of ours writes a Delta table of its own, inside the table that its files will be of (design, §5)."""

Format = Literal["delta", "iceberg"]
CACHED_FOLDERS = 200_000


class TableRoots:
    """Roots of tables, found while batches of keys go by; then which root a key belongs to."""

    def __init__(self) -> None:
        self._delta: set[str] = set()
        self._iceberg: set[str] = set()
        self._hudi: set[str] = set()

    def look_at(self, keys: pa.Array) -> None:
        """Find the roots that these keys tell of."""
        for key in keys.filter(pc.match_substring_regex(keys, TELLING)).to_pylist():
            if found := DELTA_KEY.match(key):
                self._delta.add(found[1] or "")
            elif found := HUDI_KEY.match(key):
                self._hudi.add(found[1] or "")
            elif found := ICEBERG_KEY.fullmatch(key):
                self._iceberg.add(found[1] or "")

    def tables(self) -> dict[str, Format]:
        """Format by root, in order of the roots; a Delta table that also tells Iceberg clients is a Delta table."""
        found: dict[str, Format] = dict.fromkeys(self._iceberg, "iceberg")
        found |= dict.fromkeys(self._delta, "delta")
        return {root: found[root] for root in sorted(found) if not _is_staged(root, found)}

    def warnings(self) -> list[str]:
        """What people should know of the tables: one sentence a kind."""
        told = []
        if both := sorted(self._delta & self._iceberg):
            told.append(
                f"{_some(both)}: a Delta table that Iceberg clients read too; its files are all copied, and it is "
                "proved and restored as a Delta table."
            )
        if self._hudi:
            told.append(
                f"{_some(sorted(self._hudi))}: a Hudi table; its files are copied, but nobody proves that it opens."
            )
        return told


class Roots:
    """Which root the keys belong to: the nearest one above, and the family, which is the farthest one above.

    Tables inside each other stay together, as the outer one may have files below the inner one's root.
    """

    def __init__(self, roots: Mapping[str, Format]) -> None:
        self._roots = roots
        self._of_folder: dict[str, tuple[str | None, str | None]] = {}

    def nearest(self, keys: pa.Array) -> pa.Array:
        """The root of each key's own table; null for what belongs to none."""
        return self._looked_up(keys, lambda found: found[0])

    def families(self, keys: pa.Array) -> pa.Array:
        """The outermost root of each key; null for what belongs to no table."""
        return self._looked_up(keys, lambda found: found[1])

    def family(self, root: str) -> str:
        """The outermost root that a table is inside of; its own where it is in none."""
        return self._found(f"{root}/" if root else "")[1] or root

    def _looked_up(
        self, keys: pa.Array, chosen: Callable[[tuple[str | None, str | None]], str | None]
    ) -> pa.Array:
        if not self._roots:
            return pa.nulls(len(keys), pa.string())
        folders = pc.replace_substring_regex(keys, r"[^/]*$", "").dictionary_encode()
        if len(self._of_folder) > CACHED_FOLDERS:
            self._of_folder.clear()
        found = [chosen(self._found(folder)) for folder in folders.dictionary.to_pylist()]
        return pa.array(found, pa.string()).take(folders.indices)

    def _found(self, folder: str) -> tuple[str | None, str | None]:
        if folder not in self._of_folder:
            above = [""] + [folder[: match.start()] for match in re.finditer("/", folder)]
            roots = [root for root in above if root in self._roots]
            self._of_folder[folder] = (roots[-1], roots[0]) if roots else (None, None)
        return self._of_folder[folder]


def _is_staged(root: str, tables: Mapping[str, Format]) -> bool:
    outer, staged, run = root.rpartition(STAGED)
    return bool(staged) and "/" not in run and tables.get(outer) == "delta"


def _some(roots: list[str]) -> str:
    named = ", ".join(root or "(the whole store)" for root in roots[:3])
    return named if len(roots) <= 3 else f"{named} and {len(roots) - 3} more"
