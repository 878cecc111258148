"""The matrix as Spark wrote and read it, recorded in `recorded.tar.xz` beside this file and unpacked for each test run.

`python -m tests.builders.hostile.matrix` writes the tables again in one Spark process and replaces the archive. It is
necessary after a change of a builder or of an engine's version; a test compares both with the archive.
"""

import ast
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.spark.jars import load_pinned_jars
from tests.builders.canonical import Rows
from tests.builders.delta_log import latest_version
from tests.builders.hostile.families import FAMILIES, TABLES
from tests.builders.hostile.place import Hostile, HostileTable, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDED = Path(__file__).with_name("recorded.tar.xz")
# Where the tables lie according to the logs of the archive: some name files by absolute paths.
RECORDED_AT = "/recorded/hostile/tables"
AT_ONCE = 3  # half of a small commit is waiting
CONF = {
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
}


def unpack(folder: Path) -> dict[str, HostileTable]:
    """The recorded tables in a folder."""
    with tarfile.open(RECORDED) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(folder)
    tables = folder / "tables"
    move_paths(tables, RECORDED_AT, str(tables))
    return {path.stem: HostileTable.read(path, tables) for path in sorted((folder / "judged").glob("*.json"))}


def record(folder: Path) -> None:
    """Replace the archive by the tables of a folder, in which all of them were made."""
    move_paths(folder / "tables", str(folder / "tables"), RECORDED_AT)
    (folder / "sources.json").write_text(json.dumps(sources(), indent=1), "utf-8")

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        # Commit times are those of files, in whole milliseconds: the half keeps a rounded float on the same one.
        entry.mtime = int(entry.mtime * 1000) / 1000 + 0.0005
        hidden_checksum = Path(entry.name).name.startswith(".") and entry.name.endswith(".crc")
        return None if hidden_checksum else entry

    with tarfile.open(RECORDED, "w:xz", preset=9) as archive:
        for part in ("sources.json", "judged", "tables"):
            archive.add(folder / part, part, filter=kept)


def recorded_sources() -> dict[str, str]:
    """What the archive was made from and by."""
    with tarfile.open(RECORDED) as archive:
        member = archive.extractfile("sources.json")
        assert member is not None
        return json.load(member)


def sources() -> dict[str, str]:
    """The engines' versions, and a digest of every statement and number in the builders, whatever their names are."""
    versions = {name: importlib.metadata.version(name) for name in ("pyspark", "deltalake")}
    return {
        **versions,
        "delta-spark": load_pinned_jars()["delta-spark"].coordinate,
        "builders": digest_of_literals(FAMILIES),
    }


def digest_of_literals(modules: Iterable[ModuleType]) -> str:
    """A digest of every statement and number in some modules."""
    digest = hashlib.sha256()
    for module in modules:
        assert module.__file__ is not None
        for literal in _literals(ast.parse(Path(module.__file__).read_text("utf-8"))):
            digest.update(f"{literal!r}\n".encode())
    return digest.hexdigest()


def _literals(node: ast.AST) -> Iterator[object]:
    """The literals below a node, without docstrings and decorators."""
    if isinstance(node, ast.Constant):
        yield node.value
    for name, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        for part in parts if name != "decorator_list" else ():
            is_docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
            if isinstance(part, ast.AST) and not is_docstring:
                yield from _literals(part)


def move_paths(tables: Path, old: str, new: str) -> None:
    """Replace a folder's path in the logs of all tables, whose files keep their times."""
    for log in tables.glob("*/_delta_log"):
        texts = [path for path in log.iterdir() if path.suffix in (".json", ".crc", ".tmp")]
        moved = [path for path in texts if old.encode() in path.read_bytes()]
        for path in moved:
            _keeping_time(path, path.read_bytes().replace(old.encode(), new.encode()))
        # The checkpoint of such a log has the same paths.
        for path in log.glob("*.checkpoint*.parquet") if moved else ():
            rows = pq.read_table(path)
            moved_rows = _replaced(rows.to_pylist(), old, new)
            buffer = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(moved_rows, schema=rows.schema), buffer)
            _keeping_time(path, buffer.getvalue().to_pybytes())


def _keeping_time(path: Path, content: bytes) -> None:
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: _replaced(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(inner, old, new) for inner in value)
    return value


def make(session: "SparkSession", folder: Path, plan: Hostile) -> HostileTable:
    """Build one table in `tables` below a folder, and read its rows by Spark."""
    location = folder / "tables" / plan.folder_name
    place = Place(location, fresh(session))
    shutil.rmtree(location, ignore_errors=True)
    plan.build(place)
    newest = latest_version(location)
    versions = () if plan.refused else plan.versions
    assert plan.refused or versions[-1] == newest, (
        f"{plan.name} is at {newest}, to be judged last is {versions}"
    )
    # A session of its own: what a builder sets is not for the judge.
    judged = judgement(fresh(session), str(location), newest, plan)
    return HostileTable(plan.name, str(location), newest, judged)


def fresh(session: "SparkSession") -> "SparkSession":
    """A session of its own on the same Spark, set for small tables."""
    new = session.newSession()
    for key, value in CONF.items():
        new.conf.set(key, value)
    return new


def judgement(session: "SparkSession", location: str, latest: int, plan: Hostile) -> dict[str, Any]:
    """What Spark reads of the versions and ranges to be judged."""

    def read(**options: object) -> "DataFrame":
        return session.read.format("delta").options(**options).load(location)

    by_version = {
        str(version): as_json(read(**({} if version == latest else {"versionAsOf": version})))
        for version in (() if plan.refused else plan.versions)
    }
    ranges = {
        f"{start}-{end}": as_json(read(readChangeFeed="true", startingVersion=start, endingVersion=end))
        for start, end in plan.cdf
    }
    return {"versions": by_version, "cdf": ranges}


def as_json(frame: "DataFrame") -> Mapping[str, Any]:
    """The columns and rows of a frame, as JSON can carry them."""
    schema = frame.schema.jsonValue()
    if any(field["type"] == "variant" for field in schema["fields"]):
        # toArrow() refuses a null among variants.
        columns = [(field["name"], field["type"]) for field in schema["fields"]]
        rows = Rows.of(columns, ([_parts(value) for value in row] for row in frame.collect()))
    else:
        rows = Rows.of_arrow(frame.toArrow(), schema)
    return {"columns": rows.columns, "rows": rows.rows}


def _parts(value: Any) -> Any:
    """A variant as its two binaries; anything else as it is."""
    from pyspark.sql.types import VariantVal

    return {"value": value.value, "metadata": value.metadata} if isinstance(value, VariantVal) else value


def main() -> None:
    """Make all tables and record them."""
    import tests.conftest  # noqa: F401  # the driver's options for short runs
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.spark.session import spark_session

    failed: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for part in ("tables", "judged"):
            (folder / part).mkdir()
        # Nearly all of what such small work makes is garbage at once.
        options = f"{os.environ['LAKESHARE_SPARK_DRIVER_OPTIONS']} -Xmn700m"
        settings = LakeSettings(_env_file=None, state_dir=folder / "state", spark_driver_options=options)

        def timed(plan: Hostile) -> None:
            start = time.monotonic()
            try:
                make(spark, folder, plan).write(folder / "judged")
            except Exception as error:
                failed.append(plan.name)
                print(f"{plan.name} was not made: {type(error).__name__}: {str(error)[:1500]}", flush=True)
            else:
                print(f"{time.monotonic() - start:6.2f} s  {plan.name}", flush=True)

        with spark_session(settings) as spark, ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(timed, TABLES.values()))
        if not failed:
            record(folder)
    sys.exit(f"not made: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
