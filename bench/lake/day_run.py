"""Publishes a delivered day, and writes it by a plain Spark job: `python -m bench.lake.day_run FILES FORMAT...`.

With lakeshare's settings in the environment. A few rows go both ways before, so that Java is warm. Prints the seconds
of each step and format as JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from bench.lake.days import DAY, deliver_trips, observed, trips_contract, write_trips
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.spark.session import to_hadoop_path
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, open_lake
from lakeshare_server.catalog import Catalog, open_catalog

WARM_ROWS = 1_000


def main(files: Path, formats: list[str]) -> None:
    """Run both ways for each format."""
    settings = LakeSettings(_env_file=None)
    catalog = open_catalog(settings.catalog_url)
    seconds = {}
    with nessie_for(settings, keep=False), open_lake(settings) as lake, tempfile.TemporaryDirectory() as warm:
        write_trips(Path(warm) / "few", WARM_ROWS)
        for form in formats:
            for name, source in (("warm", Path(warm) / "few"), ("day", files)):
                table = f"{name}_{form}_{uuid4().hex[:8]}"
                plain_s = run_plainly(lake, table, form, source)
                seconds[form] = {"plain": plain_s, **run(lake, catalog, table, form, source)}
    print(json.dumps(seconds))


def run(lake: Lake, catalog: Catalog, name: str, form: str, files: Path) -> dict[str, float]:
    """Delivers, stages, audits and publishes a day; returns the seconds of each step."""
    contract = trips_contract(lake.settings.state_dir / "contracts", name, form)
    deliver_trips(lake.settings, contract, files)
    times = [time.perf_counter()]
    staged = stage(lake, contract, [DAY], str(uuid4()))
    times.append(time.perf_counter())
    verdicts = audit_and_save(lake, contract, staged)
    times.append(time.perf_counter())
    if not verdicts.green:
        raise RuntimeError(f"the audit failed: {verdicts.failed}")
    publish(lake, catalog, contract, staged, verdicts)
    times.append(time.perf_counter())
    steps = ("stage", "audit", "publish")
    return {step: after - before for step, before, after in zip(steps, times, times[1:], strict=False)}


def run_plainly(lake: Lake, name: str, form: str, files: Path) -> float:
    """Writes the same table and evaluates the same rules in one pass; returns the seconds."""
    root = to_hadoop_path(f"{lake.settings.lake_root}/plain")
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": root,
    }.items():
        lake.spark.conf.set(f"spark.sql.catalog.plain{key}", value)
    began = time.perf_counter()
    frame, observation = observed(lake.spark.read.parquet(to_hadoop_path(str(files))))
    if form == "iceberg":
        frame.sortWithinPartitions("day").writeTo(f"plain.bench.{name}").partitionedBy(frame["day"]).create()
    else:
        frame.write.format("delta").partitionBy("day").save(f"{root}/{name}")
    failed = {rule: count for rule, count in observation.get.items() if rule != "rows" and count}
    if failed:
        raise RuntimeError(f"rules failed: {failed}")
    return time.perf_counter() - began


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
