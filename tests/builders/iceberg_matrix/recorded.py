"""The matrix as Spark wrote and read it, recorded in `recorded.tar.xz` beside this file and unpacked for each test run.

`python -m tests.builders.iceberg_matrix.recorded` writes the tables again in one Spark process and replaces the
archive. It is necessary after a change of a builder or of an engine's version; a test compares both with the archive.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from lakeshare_pipelines.spark.jars import load_pinned_jars
from tests.builders.canonical import Rows
from tests.builders.hostile.matrix import digest_of_literals
from tests.builders.iceberg_matrix import FAMILIES, TABLES, plan, steps
from tests.builders.iceberg_matrix.expectations import FIXED, fix_of
from tests.builders.iceberg_matrix.made import Makers, Written
from tests.builders.lake_tables import IcebergState

Made: TypeAlias = tuple[dict[str, Written], dict[str, Written]]
"""The tables as they were made, and those of `FIXED` after their fixes."""

RECORDED = Path(__file__).with_name("recorded.tar.xz")
# Iceberg's metadata and delete files name files by absolute paths: tables are unpacked where Spark wrote them.
PLACE = Path("/tmp/lakeshare-iceberg-matrix")
TABLES_IN, JUDGED, SOURCES, DIGEST = "tables", "judged.json", "sources.json", "digest"


@contextmanager
def unpacked() -> Iterator[Made]:
    """The recorded tables, which processes of several working trees read at the same time; the last removes them."""
    digest = hashlib.sha256(RECORDED.read_bytes()).hexdigest()
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not _is_unpacked(digest):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_unpacked(digest):
                _unpack(digest)
            fcntl.flock(lock, fcntl.LOCK_SH)
        judged = json.loads((PLACE / JUDGED).read_text("utf-8"))
        try:
            yield _tables_of(judged["made"]), _tables_of(judged["fixed"])
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(PLACE)


def _is_unpacked(digest: str) -> bool:
    marker = PLACE / DIGEST
    return marker.exists() and marker.read_text("utf-8") == digest


def _unpack(digest: str) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    with tarfile.open(RECORDED) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(PLACE)
    (PLACE / DIGEST).write_text(digest, "utf-8")


def recorded_sources() -> dict[str, str]:
    """What the archive was made from and by."""
    with tarfile.open(RECORDED) as archive:
        member = archive.extractfile(SOURCES)
        assert member is not None
        return json.load(member)


def sources() -> dict[str, str]:
    """The engines' versions, and a digest of every statement and number in the plans."""
    return {
        "pyspark": importlib.metadata.version("pyspark"),
        "iceberg-spark-runtime": load_pinned_jars()["iceberg-spark-runtime"].coordinate,
        "plans": digest_of_literals((*FAMILIES, plan, steps)),
    }


def make(
    makers: Makers, names: Iterable[str]
) -> tuple[dict[str, Future[Written]], dict[str, Future[Written]]]:
    """Make some tables by Spark, and fix those of them that have a fix."""
    made = makers.make({name: TABLES[name] for name in names})
    fixable = [name for name in made if name in FIXED and made[name].exception() is None]
    return made, makers.mend({name: (TABLES[name], fix_of(name)) for name in fixable})


def record(made: Made) -> None:
    """Replace the archive by the tables at the place, in which all of them were made."""
    judged = {
        part: {name: _as_json(table) for name, table in tables.items()}
        for part, tables in zip(("made", "fixed"), made, strict=True)
    }
    (PLACE / JUDGED).write_text(json.dumps(judged), "utf-8")
    (PLACE / SOURCES).write_text(json.dumps(sources(), indent=1), "utf-8")

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        name = Path(entry.name).name
        return None if name.startswith(".") and name.endswith(".crc") else entry

    with tarfile.open(RECORDED, "w:xz", preset=9) as archive:
        for part in (SOURCES, JUDGED, TABLES_IN):
            archive.add(PLACE / part, part, filter=kept)


def _as_json(table: Written) -> dict[str, Any]:
    where, some = table.some or (None, None)
    return {
        "metadata_location": table.state.metadata_location,
        "snapshot_id": table.state.snapshot_id,
        "rows": table.rows and _rows_as_json(table.rows),
        "where": where,
        "some": some and _rows_as_json(some),
    }


def _rows_as_json(rows: Rows) -> dict[str, Any]:
    return {"columns": rows.columns, "rows": rows.rows}


def _tables_of(judged: Mapping[str, Any]) -> dict[str, Written]:
    return {
        name: Written(
            IcebergState(table["metadata_location"], table["snapshot_id"]),
            _rows_of(table["rows"]),
            (table["where"], _rows_of(table["some"])) if table["where"] else None,
        )
        for name, table in judged.items()
    }


def _rows_of(judged: Mapping[str, Any] | None) -> Rows | None:
    return (
        None
        if judged is None
        else Rows(tuple((name, kind) for name, kind in judged["columns"]), tuple(judged["rows"]))
    )


def main() -> None:
    """Make all tables and record them."""
    import tests.conftest  # noqa: F401  # the driver's options for short runs
    from lakeshare_pipelines.nessie.server import nessie_for
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.staged import open_lake

    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder, PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        (PLACE / TABLES_IN).mkdir(parents=True)
        settings = LakeSettings(_env_file=None, state_dir=Path(folder) / "state")
        with nessie_for(settings, keep=False), open_lake(settings) as lake:
            parts = make(Makers.on(lake, PLACE / TABLES_IN), TABLES)
        for part in parts:
            for name, table in part.items():
                if error := table.exception():
                    failed.append(name)
                    print(f"{name} was not made: {type(error).__name__}: {str(error)[:1500]}", flush=True)
        if not failed:
            made, fixed = ({name: table.result() for name, table in part.items()} for part in parts)
            record((made, fixed))
        shutil.rmtree(PLACE)
    sys.exit(f"not made: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
