"""Replaying a copied Delta log of 1,000,000 adds to every complete version, in at most 25 s; deltalake makes just one.

Run: `python -m bench.replay [--adds 100000]`. The log is made once, in .lakeshare/bench; that takes half a minute.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import pyarrow as pa

from lakeshare_pipelines.backup.model import FoundTable, open_database
from lakeshare_pipelines.backup.points import get_point_time
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.verify.delta import assess
from lakeshare_pipelines.backup.verify.objects import OBJECTS, JudgedObjects, TableCopy

ADDS, COMMITS = 1_000_000, 500
MOST_S = 25.0
AS_OF = get_point_time("2026-11-20")
SCHEMA = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}


def main() -> int:
    """Measure, print, and return the exit code."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--adds", type=int, default=ADDS)
    adds = asked.parse_args().adds
    folder = Path(".lakeshare/bench").absolute() / f"replay-{adds}"
    if not folder.exists():
        _write_log(folder / "table" / "_delta_log", adds)
    copy = _copy(folder, adds)
    began = time.perf_counter()
    with open_database() as database:
        found = assess(copy, AS_OF, database)
    ours = time.perf_counter() - began
    if [count.version for count in found.complete] != list(range(COMMITS - 1, COMMITS // 2 - 1, -1)):
        raise AssertionError("other versions are complete than those after the lost file was removed")
    theirs = _opened_s(folder / "table", found.complete[0].files)
    most = MOST_S * adds / ADDS
    print(
        f"{adds:,} adds in {COMMITS} commits replayed to {COMMITS} versions: {ours:.1f} s, at most {most:.1f}; "
        f"deltalake makes the newest version alone in {theirs:.1f} s"
    )
    return 0 if ours <= most else 1


def _opened_s(table: Path, files: int) -> float:
    from deltalake import DeltaTable

    began = time.perf_counter()
    if DeltaTable(table).get_add_actions().num_rows != files:
        raise AssertionError("deltalake finds other files")
    return time.perf_counter() - began


def _write_log(log: Path, adds: int) -> None:
    """Every commit adds, and removes a tenth of what the one before it added; the first file is lost and removed."""
    making = log.with_name("_making")
    making.mkdir(parents=True)
    each = adds // COMMITS
    for version in range(COMMITS):
        actions: list[dict[str, object]] = []
        if version == 0:
            actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
            told = {"id": "replay", "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
            actions.append({"metaData": {**told, "schemaString": json.dumps(SCHEMA), "configuration": {}}})
        if version:
            actions += [
                _remove(number)
                for number in range((version - 1) * each + 1, (version - 1) * each + each // 10)
            ]
        if version == COMMITS // 2:
            actions.append(_remove(0))
        actions += [_add(number) for number in range(version * each, (version + 1) * each)]
        lines = "".join(f"{json.dumps(action)}\n" for action in actions)
        (making / f"{version:020}.json").write_text(lines)
    making.rename(log)


def _name(number: int) -> str:
    return f"part-{number:010}-5f2b7a50-3f6e-4c0f-9f0e-7d8d2b3c4a5e-c000.snappy.parquet"


def _add(number: int) -> dict[str, object]:
    stats = json.dumps(
        {"numRecords": 10, "minValues": {"n": number}, "maxValues": {"n": number}, "nullCount": {"n": 0}}
    )
    told = {
        "path": _name(number),
        "partitionValues": {},
        "size": 1000,
        "modificationTime": 1,
        "dataChange": True,
    }
    return {"add": {**told, "stats": stats}}


def _remove(number: int) -> dict[str, object]:
    return {"remove": {"path": _name(number), "deletionTimestamp": 1, "dataChange": True}}


def _copy(folder: Path, adds: int) -> TableCopy:
    """The table's objects as they would be after a copy that lost the first data file."""
    store = open_store(StoreAddress(url=str(folder)))
    keys = [one.key for one in store.list("table/_delta_log/")]
    names = [f"table/{_name(number)}" for number in range(1, adds)]
    every = pa.array(keys + names, pa.string())
    count = len(every)
    columns = {
        "key": every,
        "stored_key": every,
        "bucket": pa.array([str(folder)] * count),
        "location": pa.array([f"{folder}/{key}" for key in [*keys, *names]]),
        "size_bytes": pa.array([1000] * count),
        "last_modified": pa.array([AS_OF.replace(day=1)] * count, OBJECTS.field("last_modified").type),
        "is_whole": pa.array([True] * count),
        "is_healed": pa.array([False] * count),
        "first_point": pa.array(["2026-11-20"] * count),
        "level": pa.array([2] * count, pa.int8()),
        "table_root": pa.array(["table"] * count),
    }
    nothing = {
        name: pa.nulls(count, OBJECTS.field(name).type) for name in OBJECTS.names if name not in columns
    }
    columns |= nothing
    objects = pa.table({name: columns[name] for name in OBJECTS.names}).cast(OBJECTS)
    table = FoundTable(bucket=str(folder), root="table", format="delta", stored_root="table")
    return TableCopy(table, store.address, store, JudgedObjects(objects))


if __name__ == "__main__":
    sys.exit(main())
