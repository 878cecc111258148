"""A Spark that dies under an audit is an error of the run, never a verdict on the rows."""

import os
import signal

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import driver_pid
from lakeshare_pipelines.wap import checks as table_checks
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.staged import Staged, open_lake
from tests.builders.audits import NOT_NULL, a_rule, a_set, flight_rows, flights, stage_rows
from tests.builders.forks import FORKS
from tests.builders.killed_run import wait_for_exit


def test_spark_killed_under_great_expectations_is_an_error_of_the_run(lake):
    contract = a_set(flights(a_rule("known", NOT_NULL, column="carrier")))
    staged = stage_rows(lake, contract, flights=flight_rows(60))

    process = FORKS.Process(target=audit_on_a_dying_spark, args=(lake.settings, contract, staged))
    process.start()

    assert wait_for_exit(process) == 0


def audit_on_a_dying_spark(settings: LakeSettings, contract: SetContract, staged: Staged) -> None:
    """In a process of its own: the other tests keep their Spark."""
    judge = table_checks.evaluate_rules

    def kill_then_judge(frame, rules):
        os.kill(driver_pid(), signal.SIGKILL)
        return judge(frame, rules)

    with pytest.MonkeyPatch.context() as patch, open_lake(settings) as lake:
        patch.setattr(table_checks, "evaluate_rules", kill_then_judge)
        with pytest.raises(SparkError, match="Spark died"):
            audit(lake, contract, staged)
