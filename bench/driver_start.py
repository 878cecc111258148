"""What an archive of its classes saves a Spark driver: at its start, and until its first tables are written and read.

Run: `python -m bench.driver_start [TURNS]`, 3 by default. Each driver is a process of its own with the settings of a
run; the first one writes the archive at its end, unless the cache folder has it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.server.turns import by_turns, say
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import ensure_jars
from lakeshare_pipelines.spark.session import list_session_jars

TURNS, DRIVER_S = 3, 300
# Java's own archive only, as before.
WAYS = {"with the archive": "", "without": "-Xshare:auto"}
DRIVER = """
import json, sys, time
from pathlib import Path
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import make_driver_conf, start_driver

folder, options = Path(sys.argv[1]), sys.argv[2]
settings = LakeSettings(state_dir=folder, spark_driver_options=options)
catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": str(folder / "iceberg")}
conf = make_driver_conf(settings) | {f"spark.sql.catalog.lake{name}": value for name, value in catalog.items()}
began = time.monotonic()
start_driver(settings, conf)
started_s = time.monotonic() - began
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql("CREATE TABLE lake.a.b USING iceberg AS SELECT id, cast(id AS string) AS text FROM range(100)")
assert spark.table("lake.a.b").where("id > 5").groupBy("text").count().count() == 94
spark.range(100).selectExpr("id", "cast(id AS string) AS text").write.format("delta").save(f"{folder}/delta")
assert spark.read.format("delta").load(f"{folder}/delta").where("id > 5").groupBy("text").count().count() == 94
print(json.dumps([started_s, time.monotonic() - began]), flush=True)
java = spark.sparkContext._gateway.proc
java.stdin.close()
java.wait()
"""


def main() -> int:
    """Measures, prints and returns the exit code."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    settings = LakeSettings()
    ensure_jars(settings, list_session_jars(settings))
    say("a driver that writes the archive, if there is none")
    drive("")
    measured = by_turns(turns, {way: lambda options=options: drive(options) for way, options in WAYS.items()})
    for what, at in (("started", 0), ("first tables written and read", 1)):
        archived, plain = (median(times[at] for times in measured[way]) for way in WAYS)
        print(f"{what}: {archived:.1f} s with the archive, {plain:.1f} s without (x {archived / plain:.2f})")
    return 0


def drive(options: str) -> list[float]:
    """Seconds until a driver has started, and until its tables were written and read."""
    with tempfile.TemporaryDirectory(prefix="lakeshare-driver-") as folder:
        command = [sys.executable, "-c", DRIVER, str(Path(folder) / "state"), options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S, check=True)
    times: list[float] = json.loads(ended.stdout.splitlines()[-1])
    return times


if __name__ == "__main__":
    sys.exit(main())
