"""A Spark that dies under an audit is an error of the run, never a verdict on the rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import driver_pid
from lakeshare_pipelines.wap import table_audit
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.lake import with_spark
from tests.builders.audits import NOT_NULL, a_rule, a_set, flight_rows, flights, stage_rows

ROOT = Path(__file__).parents[2]


def test_spark_killed_under_great_expectations_is_told_as_such(tmp_path):
    here = "tests.integration.test_audit_dead_spark"
    script = f"from {here} import audit_on_a_dying_spark; audit_on_a_dying_spark({str(tmp_path)!r})"

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def audit_on_a_dying_spark(state_dir: str) -> None:
    """In a process of its own: the other tests keep their Spark."""
    judge = table_audit.judge

    def kill_then_judge(frame, rules):
        os.kill(driver_pid(), signal.SIGKILL)
        return judge(frame, rules)

    with (
        pytest.MonkeyPatch.context() as patch,
        with_spark(LakeSettings(_env_file=None, state_dir=state_dir)) as lake,
    ):
        contract = a_set(flights(a_rule("known", NOT_NULL, column="carrier")))
        staged = stage_rows(lake, contract, flights=flight_rows(60))
        patch.setattr(table_audit, "judge", kill_then_judge)
        with pytest.raises(SparkError, match="Spark died"):
            audit(lake, contract, staged)
