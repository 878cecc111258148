"""For all tests: many queries on few rows and many small files, so Spark compiles little and starts no processes."""

import os
from pathlib import Path

from lakeshare_pipelines.settings import SHORT_RUNS

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# Spark's launcher appends it to the class path; LocalFiles.java beside it has the reason.
LOCAL_FILES = Path(__file__).parent / "builders" / "local_files" / "local_files.jar"

os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", f"{SHORT_RUNS} {INTERPRETED}")
os.environ.setdefault("SPARK_DIST_CLASSPATH", str(LOCAL_FILES))
