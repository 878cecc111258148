"""What a DataFrame reads: the tables and files of its logical plan, with the state of each.

Rows that were collected, checkpointed or taken from an RDD have no scan: the plan begins with them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RELATIONS = ("DataSourceV2Relation", "DataSourceV2ScanRelation")


@dataclass(frozen=True)
class Scan:
    """A table or files that a plan reads.

    `catalog` is the Spark catalog of a table that is read by name, `locations` its folder or the paths of files,
    without the schemes `file` and `s3a`. Two scans with the same `state` read the same rows.
    """

    name: str
    catalog: str
    locations: tuple[str, ...]
    state: str

    def is_below(self, root: str) -> bool:
        """Whether one of its files is in a folder, or the folder holds others that it reads."""
        folder = normalise_path(root).rstrip("/")
        return any(f"{path}/".startswith(f"{folder}/") for path in self.locations)


def normalise_path(path: str) -> str:
    """Returns a path of Hadoop as lakeshare has it: `file:///a` is `/a`, `s3a://b` is `s3://b`."""
    return re.sub(r"^file:/+", "/", re.sub(r"^s3[an]://", "s3://", path))


def list_scans(frame: "DataFrame") -> list[Scan]:
    """Returns the scans of a frame's plan and of its subqueries. The frame is of a session without Connect."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # Py4J has no types
    plans = [plan, *_iterate(plan.subqueriesAll())]
    leaves = (leaf for each in plans for leaf in _iterate(each.collectLeaves()))
    return [scan for scan in map(_describe_leaf, leaves) if scan is not None]


def _iterate(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.length()))


def _describe_leaf(leaf: Any) -> Scan | None:
    kind = leaf.getClass().getSimpleName()
    if kind in RELATIONS:
        return _describe_table(leaf)
    if kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
        return _describe_files(leaf.relation().location())
    return None


def _describe_table(leaf: Any) -> Scan:
    table, catalog = leaf.table(), leaf.catalog()
    name = str(table.name())
    owner = str(catalog.get().name()) if catalog.isDefined() else ""
    if "iceberg" not in table.getClass().getName():
        return Scan(name, owner, (), f"{name} {table.toString()}")
    opened = table.table()
    location = normalise_path(str(opened.location()))
    if opened.getClass().getSimpleName() != "BaseTable":
        return Scan(name, owner, (location,), f"{opened.getClass().getSimpleName()} {name}")
    metadata = normalise_path(str(opened.operations().current().metadataFileLocation()))
    snapshot = table.snapshotId()
    if snapshot is None:
        newest = opened.snapshot(table.branch()) if table.branch() else opened.currentSnapshot()
        snapshot = None if newest is None else newest.snapshotId()
    return Scan(name, owner, (location,), f"{metadata} {snapshot}")


def _describe_files(index: Any) -> Scan:
    paths = tuple(normalise_path(str(path.toString())) for path in _iterate(index.rootPaths()))
    name = f"{paths[0]}{' and others' if len(paths) > 1 else ''}" if paths else ""
    # The text of Delta's index has the version; that of others has some of the paths only.
    version = str(index.toString()) if ".delta." in index.getClass().getName() else ""
    return Scan(name, "", paths, f"{version} {paths}")
