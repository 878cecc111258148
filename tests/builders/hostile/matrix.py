"""Makes the whole matrix in one Spark process: `python -m tests.builders.hostile.matrix FOLDER [NAME…]`.

Tables go to `FOLDER/tables`, what Spark read of them to `FOLDER/judged`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.builders.canonical import Rows
from tests.builders.delta_log import latest_version
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.place import Hostile, HostileTable, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 900
AT_ONCE = 3  # half of a small commit is waiting
CONF = {
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
}


def hostile_matrix(folder: Path) -> dict[str, HostileTable]:
    """The matrix in a folder, made by another process unless it is there; processes of tests wait for each other.

    HOSTILE_MATRIX names a folder to keep it in between runs, for who works on the tests.
    """
    kept = Path(os.environ.get("HOSTILE_MATRIX") or folder)
    kept.mkdir(parents=True, exist_ok=True)
    finished = kept / "finished"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            command = [sys.executable, "-m", "tests.builders.hostile.matrix", str(kept)]
            made = subprocess.run(command, check=False, text=True, capture_output=True, timeout=WAIT_S)
            assert made.returncode == 0, f"{made.stdout[-2000:]}\n{made.stderr[-6000:]}"
            finished.touch()
    return {path.stem: HostileTable.read(path) for path in sorted((kept / "judged").glob("*.json"))}


def make(session: "SparkSession", folder: Path, plan: Hostile) -> HostileTable:
    """Build one table and let Spark tell its rows."""
    location = folder / "tables" / (plan.folder or plan.name)
    place = Place(location, fresh(session))
    shutil.rmtree(location, ignore_errors=True)
    plan.build(place)
    newest = latest_version(location)
    judged = () if plan.refused else plan.versions
    assert plan.refused or judged[-1] == newest, f"{plan.name} is at {newest}, to be judged last is {judged}"
    table = HostileTable(
        name=plan.name,
        location=str(location),
        latest=newest,
        judged=str(folder / "judged" / f"{plan.name}.json"),
    )
    # A session of its own: what a builder sets is not for the judge.
    table.write(judgement(fresh(session), table, judged, plan.cdf))
    return table


def fresh(session: "SparkSession") -> "SparkSession":
    """A session of its own on the same Spark, set for small tables."""
    new = session.newSession()
    for key, value in CONF.items():
        new.conf.set(key, value)
    return new


def judgement(
    session: "SparkSession", table: HostileTable, versions: tuple[int, ...], cdf: tuple[tuple[int, int], ...]
) -> dict[str, Any]:
    """What Spark reads of the versions and ranges to be judged."""

    def read(**options: object) -> "DataFrame":
        return session.read.format("delta").options(**options).load(table.location)

    at_latest = {table.latest: {}}
    by_version = {v: told(read(**at_latest.get(v, {"versionAsOf": v}))) for v in versions}
    ranges = {
        f"{start}-{end}": told(read(readChangeFeed="true", startingVersion=start, endingVersion=end))
        for start, end in cdf
    }
    return {"versions": by_version, "cdf": ranges}


def told(frame: "DataFrame") -> Mapping[str, Any]:
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


def main(folder: Path, names: list[str]) -> None:
    """Make the tables of these names, or all."""
    import tests.conftest  # noqa: F401  # the driver's options for short runs
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.spark.session import spark_session

    for part in ("tables", "judged"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    # Nearly all of what such small work makes is garbage at once.
    options = f"{os.environ['LAKESHARE_SPARK_DRIVER_OPTIONS']} -Xmn700m"
    settings = LakeSettings(_env_file=None, state_dir=folder / "state", spark_driver_options=options)
    began = time.monotonic()
    failed: list[str] = []

    def timed(plan: Hostile) -> None:
        start = time.monotonic()
        try:
            make(spark, folder, plan)
        except Exception as error:
            failed.append(plan.name)
            print(f"{plan.name} was not made: {type(error).__name__}: {str(error)[:1500]}", flush=True)
        else:
            print(f"{time.monotonic() - start:6.2f} s  {plan.name}", flush=True)

    with spark_session(settings) as spark, ThreadPoolExecutor(AT_ONCE) as pool:
        print(f"{time.monotonic() - began:6.2f} s  until Spark was there", flush=True)
        list(pool.map(timed, [TABLES[name] for name in names or TABLES]))
    print(f"{time.monotonic() - began:6.2f} s  in all")
    sys.exit(f"not made: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
