"""Copied Delta logs of every kind, and which versions of them are complete: one list for every form of the replay."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.model import POINT_COPIES, FoundTable, open_database
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.verify.objects import (
    OBJECTS,
    JudgedObjects,
    TableCopy,
    judge_objects,
    load_listed,
    read_objects,
    view_reports,
)
from tests.builders.backup_lakes import AS_OF, DAY, Lake, at
from tests.builders.deletion_vector import to_z85
from tests.builders.log_files import WrittenLog, add, metadata, remove

BEFORE = AS_OF - dt.timedelta(hours=1)
A_VECTOR = UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
ROOT = "sales/orders"


@dataclass
class Case:
    """A log, the data files that were copied with it, and what is expected of it."""

    name: str
    write: Callable[[WrittenLog], object]
    complete: list[int]
    there: tuple[str, ...] = ("a", "b", "c")
    files: dict[int, int] = field(default_factory=dict)
    """How many files a version has."""
    missing: tuple[str, ...] = ()
    """What the newest version lacks: keys below the root, also of the log."""


def dv(path: str = to_z85(A_VECTOR.bytes), kind: str = "u", offset: int = 1) -> dict:
    """A descriptor of a deletion vector."""
    return {"storageType": kind, "pathOrInlineDv": path, "offset": offset, "sizeInBytes": 4, "cardinality": 1}


def _plain(log: WrittenLog) -> None:
    log.first(add("a"))
    log.commit(1, add("b"))
    log.commit(2, remove("a"), add("c"))


def _lost(log: WrittenLog) -> None:
    log.first(add("b"))
    log.commit(1, add("gone"))
    log.commit(2, add("c"))
    log.commit(3, remove("gone"))


def _restored(log: WrittenLog) -> None:
    log.first(add("gone"))
    log.commit(1, remove("gone"), add("a"))
    log.commit(2, remove("a"), add("gone"))


def _holed(log: WrittenLog) -> None:
    log.first(add("a"))
    log.commit(1, add("b"))
    log.commit(3, add("c"))


def _holed_below_a_checkpoint(log: WrittenLog) -> None:
    _holed(log)
    log.checkpoint(4, metadata(), add("a"), add("b"), add("c"))
    log.commit(5, remove("a"))


def _vectors(log: WrittenLog) -> None:
    log.first(add("a"))
    log.commit(1, remove("a"), add("a", deletionVector=dv()))
    log.commit(2, remove("a", deletionVector=dv()), add("a", deletionVector=dv("inline", "i")))


def _prefixed_vector(log: WrittenLog) -> None:
    log.first(add("a", deletionVector=dv(f"pre{to_z85(A_VECTOR.bytes)}")))


def _compacted(log: WrittenLog) -> None:
    log.first(add("a"))
    log.commit(1, add("b"))
    log.compacted(2, 3, add("c"), remove("a"))
    log.commit(4, remove("b"))


def _parts(log: WrittenLog) -> None:
    log.part(3, 1, 2, metadata(), add("a"))
    log.part(3, 2, 2, add("b"))
    log.commit(4, add("c"))


def _half_of_the_parts(log: WrittenLog) -> None:
    log.part(3, 1, 2, metadata(), add("a"))
    log.commit(4, add("c"))


def _sidecars(log: WrittenLog) -> None:
    log.v2(3, "json", metadata(), sidecars=[[add("a")], [add("b")]])
    log.commit(4, add("c"))


def _parquet_sidecars(log: WrittenLog) -> None:
    log.v2(3, "parquet", metadata(), sidecars=[[add("a")], [add("b")]])
    log.commit(4, add("c"))


def _classic_sidecars(log: WrittenLog) -> None:
    log.v2(3, "classic", metadata(), sidecars=[[add("a")], [add("b")]])
    log.commit(4, add("c"))


def _a_sidecar_lost(log: WrittenLog) -> None:
    _sidecars(log)
    sorted((log.folder / "_sidecars").iterdir())[0].unlink()


def _cut_off(log: WrittenLog) -> None:
    _plain(log)
    path = log.folder / f"{2:020}.json"
    path.write_bytes(path.read_bytes()[:-9])


def _in_one_commit(log: WrittenLog) -> None:
    log.first(add("a"))
    log.commit(1, add("a"), remove("a"))


def _elsewhere(log: WrittenLog) -> None:
    log.first(add((log.root.parent / "other/x").as_uri()), add((log.root.parent / "other/gone").as_uri()))
    log.commit(1, remove((log.root.parent / "other/gone").as_uri()))


CASES = [
    Case("nothing is lost", _plain, [0, 1, 2], files={0: 1, 1: 2, 2: 2}),
    Case("a lost file spoils exactly the versions of its interval", _lost, [0, 3], files={1: 2, 2: 3, 3: 2}),
    Case("a file that comes back has two intervals", _restored, [1], missing=("gone",)),
    Case("a commit is lost", _holed, [0, 1], missing=("_delta_log/00000000000000000002.json",)),
    Case(
        "a checkpoint stands behind a lost commit",
        _holed_below_a_checkpoint,
        [0, 1, 4, 5],
        files={4: 3, 5: 2},
    ),
    Case("a vector is lost", _vectors, [0, 2], files={1: 1, 2: 1}),
    Case("a vector is there", _vectors, [0, 1, 2], there=("a", f"deletion_vector_{A_VECTOR}.bin")),
    Case(
        "a vector is in a folder", _prefixed_vector, [0], there=("a", f"pre/deletion_vector_{A_VECTOR}.bin")
    ),
    Case("a compaction stands for lost commits", _compacted, [0, 1, 3, 4], files={3: 2, 4: 1}),
    Case("a checkpoint in parts", _parts, [3, 4], files={3: 2, 4: 3}),
    Case("a part of a checkpoint is lost", _half_of_the_parts, []),
    Case("a checkpoint of version 2", _sidecars, [3, 4], files={3: 2, 4: 3}),
    Case("a checkpoint of version 2 in Parquet", _parquet_sidecars, [3, 4], files={3: 2, 4: 3}),
    Case("a checkpoint of version 2 of classic name", _classic_sidecars, [3, 4], files={3: 2, 4: 3}),
    Case("a sidecar is lost", _a_sidecar_lost, []),
    Case("a commit is cut off", _cut_off, [0, 1], missing=("_delta_log/00000000000000000002.json",)),
    Case("a commit removes a file and adds it", _in_one_commit, [0, 1], files={0: 1, 1: 1}),
    Case(
        "names are encoded",
        lambda log: log.first(add("day=2013-01-01%2002%3A00/a%25b")),
        [0],
        there=("day=2013-01-01 02:00/a%b",),
    ),
    Case("a file has another size", lambda log: log.first(add("a", size=2)), [], missing=("a",)),
    Case("files of another table", _elsewhere, [1], there=("../other/x",)),
]


def copied(case: Case, folder: Path) -> TableCopy:
    """The case's log and files, copied as they are: what of them is there is whole."""
    lake = Lake(folder)
    log = WrittenLog(lake.source / ROOT)
    case.write(log)
    for name in case.there:
        path = log.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    at(BEFORE, *(path for path in lake.source.rglob("*") if path.is_file()))
    return table_copy(lake)


def table_copy(lake: Lake, root: str = ROOT) -> TableCopy:
    """One table of a lake, after everything was copied."""
    lake.plan(lake.listing())
    lake.copy()
    target, workspace = open_store(StoreAddress(url=str(lake.target))), lake.workspace()
    with open_database() as on:
        view_reports(on, workspace.rows("plan"), workspace.rows("done"), POINT_COPIES.empty_table())
        load_listed(on, target.address)
        judge_objects(on, lake.backup.source, target, DAY, AS_OF)
        objects = model.conform(read_objects(on).read_all(), OBJECTS)
    table = FoundTable(bucket=str(lake.source), root=root, format="delta", stored_root=f"objects/{root}")
    return TableCopy(table, lake.backup.source, target, JudgedObjects(objects))
