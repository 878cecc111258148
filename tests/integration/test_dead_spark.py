"""A Spark that dies or cannot write is an error of the run that names the cause, and leaves nothing behind."""

import math
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import ExecutorWatch
from lakeshare_pipelines.wap import checks as table_checks
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.delta import DeltaStaging
from lakeshare_pipelines.wap.iceberg import IcebergStaging
from lakeshare_pipelines.wap.stage import list_staging_locations, stage
from lakeshare_pipelines.wap.staged import Staged, list_recorded_names, make_staging_prefix, open_lake
from tests.builders.audits import NOT_NULL, a_rule, a_set, flight_rows, flights, stage_rows
from tests.builders.forks import start_process
from tests.builders.killed_run import wait_for_exit
from tests.builders.main_state import main_state
from tests.builders.sets import a_contract, a_delivery, orders
from tests.builders.shared_spark import driver_pid

DAY = "2024-01-01"


def test_a_full_disk_and_a_killed_spark_are_errors_of_each_run_that_stages_or_audits(lake, tmp_path):
    """Spark dies once: under Great Expectations, while a set of each format is between its two tables."""
    audited = a_set(flights(a_rule("known", NOT_NULL, column="carrier")))
    rows = stage_rows(lake, audited, flights=flight_rows(60))
    contracts = [a_contract(tmp_path, f"dying_{kind}", kind) for kind in ("iceberg", "delta")]
    for contract in contracts:
        a_delivery(lake.settings, contract, DAY, orders(DAY))
    seen = tmp_path / "seen.txt"

    process = start_process(work_on_a_dying_spark, lake.settings, contracts, audited, rows, seen)

    assert wait_for_exit(process) == 0
    assert seen.read_text().splitlines() == [
        "iceberg, the disk was full", "delta, the disk was full", "iceberg, no executor", "audit", "delta", "iceberg",
    ]  # fmt: skip
    for contract in contracts:
        assert list_staging_locations(lake, [contract]) == []
        assert list_recorded_names(lake, make_staging_prefix(contract.name)) == []
        assert set(main_state(lake, contract).values()) == {None}


def work_on_a_dying_spark(
    settings: LakeSettings, contracts: list[SetContract], audited: SetContract, rows: Staged, seen: Path
) -> None:
    """In a process of its own: the other tests keep their Spark."""
    iceberg, delta = contracts
    judge = table_checks.evaluate_rules

    def kill_then_judge(frame, rules):
        os.kill(driver_pid(), signal.SIGKILL)
        return judge(frame, rules)

    def require_error(
        name: str, work: Callable[[], object], message: str = r"Spark died.*spark\.log"
    ) -> None:
        with pytest.raises(SparkError, match=message):
            work()
        with seen.open("a") as file:
            file.write(f"{name}\n")

    with pytest.MonkeyPatch.context() as patch, open_lake(settings) as lake:

        def stage_set(contract: SetContract) -> None:
            stage(lake, contract, [DAY], str(uuid4()))

        full = f"disk.*{re.escape(settings.lake_root)}|{re.escape(settings.lake_root)}.*disk"
        for contract in contracts:
            lake.spark.range(1).count()
            with full_disk(driver_pid()):
                require_error(
                    f"{contract.tables[0].format}, the disk was full", partial(stage_set, contract), full
                )
        # Often enough to see a short job, and the next one.
        patch.setattr("lakeshare_pipelines.spark.session.EXECUTOR_POLL_S", 0.002)
        watch = ExecutorWatch(lake.spark, 0)
        watch.start()
        # A local driver has none.
        require_error("iceberg, no executor", partial(stage_set, iceberg), "no executor.*within 600 s")
        vars(watch)["_wait_s"] = math.inf
        patch.setattr("lakeshare_pipelines.spark.session.EXECUTOR_POLL_S", 60.0)
        patch.setattr(table_checks, "evaluate_rules", kill_then_judge)
        after_first_write(
            patch, DeltaStaging, lambda: require_error("audit", lambda: audit(lake, audited, rows))
        )
        after_first_write(patch, IcebergStaging, lambda: require_error("delta", lambda: stage_set(delta)))
        require_error("iceberg", lambda: stage_set(iceberg))


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """The kernel refuses a process's writes beyond a few bytes of a file, as a full disk does."""
    usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (64, usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)


def after_first_write(patch: pytest.MonkeyPatch, staging: type, work: Callable[[], None]) -> None:
    """Let a staging do other work after it wrote its first table."""
    write = staging.write

    def write_then_work(*arguments) -> int:
        rows: int = write(*arguments)
        patch.setattr(staging, "write", write)
        work()
        return rows

    patch.setattr(staging, "write", write_then_work)
