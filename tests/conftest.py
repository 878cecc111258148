"""For all tests: Spark compiles little and starts no processes, and garbage is collected of what tests make only."""

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from lakeshare_pipelines.settings import SHORT_RUNS

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# Spark's launcher appends it to the class path; LocalFiles.java beside it has the reason.
LOCAL_FILES = Path(__file__).parent / "builders" / "local_files" / "local_files.jar"

# For many queries on few rows, and many small files.
os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", f"{SHORT_RUNS} {INTERPRETED}")
os.environ.setdefault("SPARK_DIST_CLASSPATH", str(LOCAL_FILES))

# As in lakeshare_pipelines.cli.main: in a background job, Dagster would let every process of the tests ignore SIGTERM.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules and collected tests stay to the end. Looking for garbage among them took a third of the collection's time.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


class SparkOnTwoWorkers(LoadFileScheduling):
    """Like `--dist loadfile`, but the last of three workers begins with tests without Spark and the others with Spark.

    A worker's Spark and Nessie cost 40 processor seconds to start and to warm up.
    """

    def _assign_work_unit(self, node: Any) -> None:
        with_spark = len(self.nodes) < 3 or node is not self.nodes[-1]
        fit = (file for file in self.workqueue if file.startswith("tests/integration/test_") == with_spark)
        if (file := next(fit, None)) is not None:
            self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return SparkOnTwoWorkers(config, log) if config.getoption("dist") == "loadfile" else None
