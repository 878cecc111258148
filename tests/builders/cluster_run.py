"""A driver on a Spark cluster or behind Spark Connect: sets of both formats, published, corrected, and maintained.

For a process of its own (apart.py), with the settings in its environment. On a cluster it kills an executor.
"""

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.maintenance.run import maintain
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, open_lake
from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading
from tests.builders.waiting import wait_until

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
SMALL_FILES = 6
MAINTENANCE = "  - {property: maintenance, value: {compaction: {targetMb: 1, sortBy: [id]}}}"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def sets_in(folder: Path, prefix: str) -> list[SetContract]:
    return [a_contract(folder, f"{prefix}_{form}", form, MAINTENANCE) for form in ("iceberg", "delta")]


def run_without_reading(lake: Lake, catalog: Catalog, contract: SetContract, day: str, count: int) -> None:
    rows = orders(day, count)
    a_delivery(lake.settings, contract, day, rows)
    staged = staged_without_reading(lake, contract, day, rows, one_row_files=count == SMALL_FILES)
    publish(lake, catalog, contract, staged, green(contract, staged))


def run(lake: Lake, catalog: Catalog, contract: SetContract, count: int) -> None:
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, count))
    staged = stage(lake, contract, [MONDAY], str(uuid4()))
    publish(lake, catalog, contract, staged, audit_and_save(lake, contract, staged))


def executors_on(master: str) -> dict[str, list[psutil.Process]]:
    """The executors on the workers of a standalone cluster, by their application."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with suppress(psutil.NoSuchProcess):
            worker = process.parent()
            if EXECUTOR in words and worker is not None and master in worker.cmdline():
                found.setdefault(words[words.index("--app-id") + 1], []).append(process)
    return found


def wait_until_executors_ended(master: str, *others: str) -> None:
    """Wait until a cluster has no executors but those of some applications."""
    wait_until(lambda: executors_on(master).keys() <= set(others), look_s=0.2)


def kill_executor(lake: Lake) -> int:
    """Kill an executor of this application; returns how many it had."""
    found = executors_on(lake.settings.spark_master)[lake.spark.sparkContext.applicationId]
    found[0].kill()
    return len(found)


def publish_and_correct(lake: Lake, catalog: Catalog, contract: SetContract) -> int:
    """Returns how many executors there were when one was killed, 0 behind Spark Connect."""
    run_without_reading(lake, catalog, contract, MONDAY, 3)
    executors = kill_executor(lake) if lake.settings.spark_mode == "cluster" else 0
    # The same day corrected: Spark also writes which rows changed.
    run_without_reading(lake, catalog, contract, MONDAY, 2)
    return executors


def publish_and_maintain(lake: Lake, catalog: Catalog, contract: SetContract) -> None:
    run(lake, catalog, contract, 3)
    run(lake, catalog, contract, 2)
    run_without_reading(lake, catalog, contract, TUESDAY, SMALL_FILES)
    result = maintain(lake, catalog, contract, contract.tables[0])
    assert result.publication is not None
    assert (result.before.files, result.after.files) == (SMALL_FILES + 1, 2)


def publish_sets(
    folder: Path, prefix: str, is_maintained: bool
) -> tuple[dict[str, list[tuple[object, ...]]], int]:
    """Publishes the sets; returns the rows that Spark reads of each set's orders, and the number of executors."""
    settings, found, executors = LakeSettings(_env_file=None), {}, 0
    catalog = open_catalog(settings.catalog_url)
    with open_lake(settings) as lake:
        for contract in sets_in(folder, prefix):
            if is_maintained:
                publish_and_maintain(lake, catalog, contract)
            elif contract.tables[0].format == "delta":
                run(lake, catalog, contract, 2)
            else:
                executors = publish_and_correct(lake, catalog, contract)
            found[contract.name] = rows_on_main(lake, contract, "orders")
    return found, executors
