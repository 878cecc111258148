"""Work on a lake, for a process of its own (tests/builders/apart.py): a process has one Spark only."""

import io
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
from dagster._cli import main as run_dagster

from lakeshare_pipelines.cli import main
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.demo.processes import PARTITION, run_job
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.staged import open_lake


def frames_on_main(state_dir: Path) -> dict[str, pd.DataFrame]:
    """What Spark reads from main for every shared table, as `{share.schema.table: frame}`."""
    settings = LakeSettings(_env_file=None, state_dir=state_dir)
    frames = {}
    with open_lake(settings) as lake:
        for contract in load_contracts():
            for entry in contract.shares:
                table = contract.table(entry.table)
                if table.format == "iceberg":
                    frame = lake.table(table.name)
                else:
                    frame = lake.spark.read.format("delta").load(table_location(settings, table))
                frames[f"{entry.share}.{entry.schema}.{entry.name}"] = frame.toPandas()
    return frames


def delete_on_branch(state_dir: Path, contract: SetContract, ref: str, where: str) -> None:
    """Repair a branch by hand, as an engineer would: delete rows of every table of the set."""
    with open_lake(LakeSettings(_env_file=None, state_dir=state_dir)) as lake:
        for table in contract.tables:
            lake.spark.sql(f"DELETE FROM {lake.catalog(ref)}.{table.name} WHERE {where}")


def run_dg() -> None:
    """The command of `dagster-dg-cli`, which few processes need."""
    from dagster_dg_cli.cli import main as run

    run()


SCRIPTS: Mapping[str, Callable[[], object]] = {"lakeshare": main.main, "dagster": run_dagster, "dg": run_dg}


def run_command(script: str, *arguments: str) -> tuple[object, str]:
    """Run a command as its script does: its exit code and what it printed."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = [script, *arguments]
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            SCRIPTS[script]()
    except SystemExit as ended:
        return ended.code, printed.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("a command ends with an exit code")


def run_set_job(set_name: str, partition: str) -> set[str]:
    """Run a set's job as the UI does, which unlike a materialization can be re-executed: its failed checks."""
    with dg.DagsterInstance.get() as instance:
        ran = dg.execute_job(_job(f"publish_{set_name}"), instance, tags={PARTITION: partition})
        return {check.check_name for check in ran.get_asset_check_evaluations() if not check.passed}


def reexecute_newest_failure() -> tuple[bool, set[str]]:
    """Take the newest failed run up again from its failure, as the UI does: success, and the steps that ran."""
    with dg.DagsterInstance.get() as instance:
        failed = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]), limit=1)[0]
        options = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        again = dg.execute_job(_job(failed.job_name), instance, reexecution_options=options)
        return again.success, {event.step_key for event in again.all_events if event.is_step_start}


def _job(name: str) -> Any:
    return dg.build_reconstructable_job(run_job.__module__, run_job.__name__, (name,))
