"""A driver on a Spark cluster: an Iceberg set, its correction after an executor was killed, a run of a Delta set.

Run as `python -m tests.builders.cluster_run FOLDER`, with lakeshare's settings in the environment. Prints the rows that
Spark reads of each set's orders as JSON.
"""

import json
import sys
from pathlib import Path
from uuid import uuid4

import psutil

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, open_lake
from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading

MONDAY = "2024-01-01"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def sets_in(folder: Path) -> list[SetContract]:
    return [a_contract(folder, f"cluster_{form}", form) for form in ("iceberg", "delta")]


def run_without_reading(lake: Lake, catalog: Catalog, contract: SetContract, count: int) -> None:
    rows = orders(MONDAY, count)
    a_delivery(lake.settings, contract, MONDAY, rows)
    staged = staged_without_reading(lake, contract, MONDAY, rows)
    publish(lake, catalog, contract, staged, green(contract, staged))


def run(lake: Lake, catalog: Catalog, contract: SetContract, count: int) -> None:
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, count))
    staged = stage(lake, contract, [MONDAY], str(uuid4()))
    publish(lake, catalog, contract, staged, audit_and_save(lake, contract, staged))


def kill_executor(lake: Lake) -> int:
    """Kill an executor of this application; returns how many it had."""
    application = lake.spark.sparkContext.applicationId
    found = [
        one
        for one in psutil.process_iter(["cmdline"])
        if {EXECUTOR, application} <= set(one.info["cmdline"] or ())
    ]
    found[0].kill()
    return len(found)


def main(folder: Path) -> None:
    settings = LakeSettings(_env_file=None)
    catalog = open_catalog(settings.catalog_url)
    with open_lake(settings) as lake:
        for contract in sets_in(folder):
            if contract.tables[0].format == "delta":
                run(lake, catalog, contract, 2)
            else:
                run_without_reading(lake, catalog, contract, 3)
                print(f"{kill_executor(lake)} executors", file=sys.stderr)
                # The same day corrected: Spark also writes which rows changed.
                run_without_reading(lake, catalog, contract, 2)
            rows = rows_on_main(lake, contract, "orders")
            print(json.dumps({"set": contract.name, "rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
