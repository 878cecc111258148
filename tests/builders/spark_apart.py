"""Work on a lake in a process of its own: a process has one Spark only, and other tests keep theirs."""

import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import pandas as pd
from dagster._cli import main as run_dagster
from pyspark.sql import SparkSession

from lakeshare_pipelines.cli import main
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.demo.processes import PARTITION, run_job
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import SPARK_JARS, ensure_jars
from lakeshare_pipelines.spark.session import make_session_conf, start_driver, stop_session
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.staged import open_lake

T = TypeVar("T")


class Apart:
    """Calls functions of this module in one other process, whose JVM is warm from the second call on."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns."""
        return self._pool.submit(function, *arguments).result(timeout=300)


@contextmanager
def process_apart(environment: Mapping[str, str]) -> Iterator[Apart]:
    """The other process, with these variables added to its environment; it ends with the block."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _add_to_environment, (dict(environment),)) as pool:
        yield Apart(pool)


def _add_to_environment(variables: Mapping[str, str]) -> None:
    os.environ.update(variables)


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
                    frame = lake.spark.read.format("delta").load(str(table_location(settings, table)))
                frames[f"{entry.share}.{entry.schema}.{entry.name}"] = frame.toPandas()
    return frames


def delete_on_branch(state_dir: Path, contract: SetContract, ref: str, where: str) -> None:
    """Repair a branch by hand, as an engineer would: delete rows of every table of the set."""
    with open_lake(LakeSettings(_env_file=None, state_dir=state_dir)) as lake:
        for table in contract.tables:
            lake.spark.sql(f"DELETE FROM {lake.catalog(ref)}.{table.name} WHERE {where}")


SCRIPTS: Mapping[str, Callable[[], object]] = {"lakeshare": main.main, "dagster": run_dagster}


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


def read_without_keys(
    state_dir: Path, catalogs: Mapping[str, Mapping[str, str]], table: str, columns: str
) -> dict[str, list[tuple[Any, ...]]]:
    """What Spark reads of a table in S3 through each catalog, with Iceberg's client of S3 and no keys to the store."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        os.environ.pop(name, None)
    settings = LakeSettings(_env_file=None, state_dir=state_dir)
    jars = [str(jar) for jar in ensure_jars(settings, (*SPARK_JARS, "iceberg-aws-bundle")).values()]
    conf = make_session_conf(settings)
    conf |= {"spark.jars": ",".join(jars), "spark.driver.extraClassPath": os.pathsep.join(jars)}
    start_driver(settings, conf)
    session = SparkSession.builder.config(map=conf).getOrCreate()
    try:
        for name, options in catalogs.items():
            for key, value in options.items():
                session.conf.set(f"spark.sql.catalog.{name}{key}", value)
        return {
            name: sorted(tuple(row) for row in session.sql(f"SELECT {columns} FROM {name}.{table}").collect())
            for name in catalogs
        }
    finally:
        stop_session(session)
